"""Leaving: by signal, by the host's wish, or because the machine is about to go away."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

log = logging.getLogger("taskqueue_client.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

NOTICE_INTERVAL = 5.0
"""Seconds between looks for a termination notice: as often as providers ask to look."""

TIME_TO_REPORT = 30.0
"""Seconds before the machine goes away at which runs are stopped, to report them and upload their logs."""


@contextmanager
def signals_handled(on_signal: Callable[[str], None]) -> Generator[None]:
    """Call `on_signal` with the name of each SIGTERM and SIGINT, in the loop of this main thread.

    The handlers from before come back afterwards.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
