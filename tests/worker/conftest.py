"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue_client.local import LocalQueue
from taskqueue_client.worker.claims import task_source
from tests.worker.queue_world import WAIT, World


@pytest.fixture
def world() -> Iterator[World]:
    """A local queue and a client of it; claims last 20 minutes."""
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim request is aborted for its age when claiming stops: a busy machine is slow."""
    monkeypatch.setattr(task_source, "PROMPT", 10 * WAIT)
