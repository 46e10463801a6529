"""The requests to a local queue, from its log."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from taskqueue_client.clock import Clock
from taskqueue_client.local import LocalQueue
from tests.worker.queue_world import WAIT, until


class Request(NamedTuple):
    """A request with its response.

    Attributes:
        moment: When the request had its response, on a monotonic clock.
        method: Such as `PUT`.
        path: Such as `/api/queue/v1/tasks/status`.
        status: The status of the response.
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
def requests_noted(local: LocalQueue, clock: Clock | None = None) -> Generator[list[Request]]:
    """Yield a list of the requests from now on. After the block, it has all requests that have a response.

    Args:
        local: The queue.
        clock: The clock of the moments; None for the queue's clock.
    """
    logger = logging.getLogger("taskqueue_client.local.requests")
    made: list[Request] = []
    notes, level = _Notes(local.clock if clock is None else clock, made), logger.level
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    try:
        yield made
        _wait_for_notes(local, made)
    finally:
        logger.setLevel(level)
        logger.removeHandler(notes)


def _wait_for_notes(local: LocalQueue, made: list[Request]) -> None:
    """Make one more request and wait for its line in the log, which follows those of earlier responses."""
    last = f"/last-{len(made)}"
    try:
        urlopen(local.root_url + last, timeout=WAIT)
    except HTTPError as refused:
        refused.close()
    until(lambda: last in {each.path for each in made})
    made[:] = [each for each in made if each.path != last]
