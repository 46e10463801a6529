"""Fixtures of the worker's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue_client.local import LocalQueue
from taskqueue_client.worker.claims import claiming
from taskqueue_client.worker.commands.command import CommandContext
from tests.worker.queue_world import WAIT, Told, World
from tests.worker.running_commands import context_in


@pytest.fixture
def world() -> Iterator[World]:
    """A local queue and a client of it; claims last 20 minutes."""
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()


@pytest.fixture
def told() -> Told:
    """The events that a keeper reports to its worker."""
    return Told()


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each open claim request as young, so that stopping does not abort it: a busy machine is slow."""
    monkeypatch.setattr(claiming, "PROMPT", 10 * WAIT)


@pytest.fixture
def held_clock(world: World) -> None:
    """Hold the queue's clock: until the test moves it, delayed requests do not end."""
    world.local.clock.hold()


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CommandContext]:
    """Yield what commands need of a run."""
    with context_in(tmp_path) as found:
        yield found


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
