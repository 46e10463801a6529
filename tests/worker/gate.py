"""A way to hold up workers of this process between a claim and its handler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tests.worker.queue_world import WAIT


class Gate(logging.Handler):
    """Holds up whoever says that a run begins.

    Attributes:
        reached: Set when somebody does.
        opened: Set it to let them go on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().endswith(" begins"):
            self.reached.set()
            assert self.opened.wait(WAIT)


@contextmanager
def gate_before_handlers() -> Generator[Gate]:
    """A gate before each handler; open in the end."""
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
