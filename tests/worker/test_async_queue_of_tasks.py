"""`TaskRun.async_queue`: the runs of a worker share its connections; the client works in any event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

import pytest

from taskqueue_client import AsyncQueue, TaskRun, WorkerLoop
from taskqueue_client.local.faults import Delay
from taskqueue_client.testing import run_handler
from tests.worker.queue_world import World
from tests.worker.run_outcomes import reasons
from tests.worker.worker_world import work


async def call_and_close(task: TaskRun) -> None:
    for _ in range(2):
        async with task.async_queue as queue:
            assert (await queue.status(task.task_id)).status.state == "running"


async def upload_and_download(task: TaskRun) -> None:
    content = bytes(99_000)
    async with task.async_queue as queue:
        await queue.upload_artifact(task.task_id, task.run_id, "public/x", content, expires=task.expires)
    async with task.async_queue:
        assert (await task.download_artifact_async(task.task_id, "public/x")).content == content


async def leave_open(task: TaskRun) -> None:
    content = bytes(99_000)
    queue = task.async_queue
    await queue.upload_artifact(task.task_id, task.run_id, "public/y", content, expires=task.expires)
    assert (await task.download_artifact_async(task.task_id, "public/y")).content == content
    await queue.upload_artifact(task.task_id, task.run_id, "public/z", b"small", expires=task.expires)


async def ping(queue: AsyncQueue) -> None:
    assert (await queue.ping()).alive


Use = Callable[[TaskRun], Coroutine[Any, Any, None]]
using = pytest.mark.parametrize("use", [call_and_close, upload_and_download, leave_open])


def check_completed(world: World, tasks: list[str]) -> None:
    assert [reasons(world, each) for each in tasks] == [["completed"]] * len(tasks)


@using
def test_a_handler_that_closes_it_leaves_the_connections_to_the_other_runs(world: World, use: Use) -> None:
    tasks = [world.create() for _ in range(3)]
    work(world, awaited=use, max_tasks=3)
    check_completed(world, tasks)


@using
def test_a_plain_handler_uses_it_in_event_loops_of_its_own(world: World, use: Use) -> None:
    tasks = [world.create() for _ in range(3)]

    def handler(task: TaskRun) -> None:
        asyncio.run(use(task))
        asyncio.run(use(task))

    work(world, handler, max_tasks=3)
    check_completed(world, tasks)


@using
def test_a_thread_of_an_asynchronous_handler_uses_it_in_a_loop_of_its_own(world: World, use: Use) -> None:
    tasks = [world.create() for _ in range(3)]

    async def handler(task: TaskRun) -> None:
        await asyncio.to_thread(asyncio.run, use(task))
        await use(task)

    work(world, awaited=handler, max_tasks=3)
    check_completed(world, tasks)


def test_it_may_be_taken_before_the_event_loop_begins(world: World) -> None:
    tasks = [world.create() for _ in range(2)]

    def handler(task: TaskRun) -> None:
        queue = task.async_queue
        asyncio.run(ping(queue))
        asyncio.run(ping(queue))

    work(world, handler, max_tasks=2)
    check_completed(world, tasks)


def test_a_run_does_not_grow_with_the_number_of_event_loops_that_its_handler_has_run(world: World) -> None:
    tasks = [world.create()]
    clients: list[AsyncQueue] = []
    alive: list[int] = []

    def handler(task: TaskRun) -> None:
        loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

        async def use() -> None:
            loops.add(asyncio.get_running_loop())
            clients.append(task.async_queue)
            await ping(task.async_queue)

        for _ in range(5):
            asyncio.run(use())
        gc.collect()
        alive.append(len(loops))

    work(world, handler, max_tasks=1)
    check_completed(world, tasks)
    assert alive == [1]  # the last loop, until the run ends or uses another loop
    assert len({id(each) for each in clients}) == 1


def test_it_works_in_event_loops_of_a_handler_under_test(world: World) -> None:
    class Pinging(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            asyncio.run(ping(task.async_queue))
            asyncio.run(ping(task.async_queue))

    worker = Pinging(root_url=world.local.root_url, task_queue_id="a/b", worker_group="a", worker_id="b")
    assert run_handler(worker, {}).outcome == "completed"


def test_two_threads_use_it_at_the_same_time_each_in_a_loop_of_its_own(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="queue.status", seconds=60))

    async def status(queue: AsyncQueue) -> None:
        assert (await queue.with_options(attempts=1).status(task_id)).status.state == "running"

    def handler(task: TaskRun) -> None:
        queue = task.async_queue
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(lambda: asyncio.run(status(queue)))
            world.until_struck()
            asyncio.run(ping(queue))
            world.local.clock.advance(60)
            waiting.result()

    work(world, handler, max_tasks=1)
    check_completed(world, [task_id])
