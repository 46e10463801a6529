"""What a local queue was asked for, as its own log has it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from taskqueue_client.clock import Clock


class Request(NamedTuple):
    """A request that was answered.

    Attributes:
        moment: When, on the queue's monotonic clock.
        method: Such as `PUT`.
        path: Such as `/api/queue/v1/tasks/status`.
        status: What it was answered with.
    """

    moment: float
    method: str
    path: str
    status: int


class _Notes(logging.Handler):
    def __init__(self, clock: Clock, made: list[Request]) -> None:
        super().__init__()
        self._clock = clock
        self._made = made

    def emit(self, record: logging.LogRecord) -> None:
        method, path, status, *_ = record.getMessage().split()
        self._made.append(Request(self._clock.monotonic(), method, path, int(status)))


@contextmanager
def requests_noted(clock: Clock) -> Generator[list[Request]]:
    """The requests from now on, each soon after its answer."""
    logger = logging.getLogger("taskqueue_client.local.requests")
    made: list[Request] = []
    notes, level = _Notes(clock, made), logger.level
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    try:
        yield made
    finally:
        logger.setLevel(level)
        logger.removeHandler(notes)
