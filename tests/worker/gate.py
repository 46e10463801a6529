"""A gate that stops workers of this process between a claim and its handler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tests.worker.queue_world import WAIT


class Gate(logging.Handler):
    """Blocks the thread that reports the beginning of a run.

    Attributes:
        reached: Set when a run begins.
        opened: Set it to let the thread continue.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().partition(" (")[0].endswith(" begins"):
            self.reached.set()
            assert self.opened.wait(WAIT)


@contextmanager
def gate_before_handlers() -> Generator[Gate]:
    """Stop each run before its handler until the gate is opened, at the latest at the end of the block."""
    logger = logging.getLogger("taskqueue_client.worker")
    gate, level = Gate(), logger.level
    logger.addHandler(gate)
    logger.setLevel(logging.INFO)
    try:
        yield gate
    finally:
        gate.opened.set()
        logger.setLevel(level)
        logger.removeHandler(gate)
