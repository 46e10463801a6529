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
    """What a keeper has told its worker."""
    return Told()


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim request is aborted for its age when claiming stops: a busy machine is slow."""
    monkeypatch.setattr(claiming, "PROMPT", 10 * WAIT)


@pytest.fixture
def held_clock(world: World) -> None:
    """The queue's clock moves only when the test moves it: what is delayed on it never arrives."""
    world.local.clock.hold()


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CommandContext]:
    """What commands need of a run."""
    with context_in(tmp_path) as found:
        yield found


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
