"""What belongs to a run is freed with it, and does not wait for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from taskqueue_client.local import LocalQueue
from taskqueue_client.worker.task_run import TaskRun
from tests.worker.queue_world import World
from tests.worker.worker_world import work


@pytest.fixture
def world() -> Iterator[World]:
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_run_that_has_ended_is_freed_at_once(world: World, *, is_awaited: bool) -> None:
    freed: list[weakref.ref[object]] = []

    def handler(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        task.run_command(["true"])
        task.upload_artifact("public/a.txt", b"a")

    async def awaited(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        await task.run_command_async(["true"])
        task.upload_artifact("public/a.txt", b"a")

    for _ in range(2):
        world.create()
    work(world, None if is_awaited else handler, awaited=awaited if is_awaited else None, max_tasks=2)
    assert [each() for each in freed] == [None, None]
