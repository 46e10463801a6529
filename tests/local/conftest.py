"""A local queue, and requests to it that are written out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskqueue_client.local import LocalQueue
from tests.local.local_http import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def shared_queue() -> Iterator[LocalQueue]:
    """One queue for all tests that do not disturb each other."""
    with LocalQueue() as local:
        yield local


@pytest.fixture
def wire(shared_queue: LocalQueue) -> Wire:
    """Sends requests that are written out by hand to the shared queue."""
    return Wire(shared_queue)
