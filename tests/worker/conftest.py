"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue_client.local import LocalQueue
from tests.worker.queue_world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A local queue and a client of it; claims last 20 minutes."""
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()
