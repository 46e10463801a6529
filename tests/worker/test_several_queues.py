"""One worker for several task queues."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import requests

from taskqueue_client import AsyncQueue, Credentials
from taskqueue_client.clock import Clock, MovableClock, SystemClock
from taskqueue_client.definitions import from_now
from taskqueue_client.errors import InsufficientScopes, InvalidArgument
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Delay, Respond
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker import (
    SourceContext,
    TaskRun,
    TaskSource,
    WorkerConfig,
    WorkerIdentity,
    WorkerLoop,
)
from taskqueue_client.worker.claims import claiming
from taskqueue_client.worker.claims.claiming import SeveralTaskQueues
from taskqueue_client.worker.config_sources import setting_of_text
from tests.recorded_spans import Spans, attributes_of, spans
from tests.worker.queue_world import WAIT, World, until
from tests.worker.worker_world import Working, log_of, work, worker_for

__all__ = ["spans"]

FIRST, SECOND, THIRD = "proj/first", "proj/second", "proj/third"
QUEUES = [FIRST, SECOND, THIRD]
NO_COUNTS = Credentials("no-counts", "secret")
NO_CLAIMS_FROM_SECOND = Credentials("no-claims-from-second", "secret")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the tasks of the other task queues often, and do not wait until a claim request is 1 s old."""
    monkeypatch.setattr(claiming, "COUNT_INTERVAL", 0.05)
    monkeypatch.setattr(claiming, "PROMPT", 0.05)


@pytest.fixture
def world() -> Iterator[World]:
    """A local queue on a clock that only the test moves: a claim request without work waits for ever."""
    no_counts = Client("no-counts", "secret", ["queue:claim-work:*", "queue:worker-id:*", "queue:status:*"])
    scopes = ["queue:claim-work:proj/first", "queue:pending-count:*", "queue:worker-id:*"]
    clients = [no_counts, Client("no-claims-from-second", "secret", scopes)]
    with LocalQueue(clock=MovableClock(held=True), clients=clients, anonymous_scopes=()) as local:
        world = World(local)
        yield world
        world.close()


def has_completed(world: World, tasks: list[str]) -> bool:
    """Return whether all tasks are completed; if not, move the clock, so that open requests look for work."""
    if all(state(world, each) == "completed" for each in tasks):
        return True
    world.local.clock.advance(seconds=0.1)
    return False


def state(world: World, task_id: str) -> str:
    return world.status(task_id).state


@pytest.mark.parametrize("task_queue_id", QUEUES)
def test_a_request_that_waits_for_work_does_not_delay_tasks_of_other_task_queues(
    world: World, task_queue_id: str
) -> None:
    worker = worker_for(world, lambda _: None, task_queue_id=QUEUES)
    with Working(world, worker):
        until(lambda: world.queue.list_workers(FIRST).workers)
        task_id = world.create(taskQueueId=task_queue_id)
        until(lambda: has_completed(world, [task_id]))


def test_a_task_queue_goes_before_those_that_follow_it(world: World) -> None:
    order: list[str] = []
    for each in (THIRD, SECOND, FIRST, SECOND, FIRST):
        world.create({"queue": each}, taskQueueId=each)
    work(world, lambda task: order.append(task.payload["queue"]), task_queue_id=QUEUES, max_tasks=5)
    assert order == [FIRST, FIRST, SECOND, SECOND, THIRD]


def test_all_task_queues_share_the_concurrency(world: World) -> None:
    tasks = [world.create(taskQueueId=each) for each in QUEUES for _ in range(3)]
    lock, together = threading.Lock(), threading.Barrier(2)
    at_once: list[int] = []
    running = [0]

    def handler(_: TaskRun) -> None:
        with lock:
            running[0] += 1
            at_once.append(running[0])
            is_early = len(at_once) <= 2
        if is_early:
            together.wait(WAIT)
        with lock:
            running[0] -= 1

    work(world, handler, task_queue_id=QUEUES, concurrency=2, max_tasks=len(tasks))
    assert max(at_once) == 2
    assert [state(world, each) for each in tasks] == ["completed"] * len(tasks)
    assert [len(world.status(each).runs) for each in tasks] == [1] * len(tasks)


def test_tasks_that_are_created_together_are_all_run_once(world: World) -> None:
    with Working(world, worker_for(world, lambda _: None, task_queue_id=QUEUES)):
        for _ in range(5):
            tasks = [world.create(taskQueueId=each) for each in QUEUES]
            until(partial(has_completed, world, tasks))
            assert [len(world.status(each).runs) for each in tasks] == [1, 1, 1]


def test_a_worker_that_shuts_down_claims_from_no_task_queue_any_more(world: World) -> None:
    worker = worker_for(world, lambda _: None, task_queue_id=QUEUES)
    with Working(world, worker) as working:
        until(lambda: world.queue.list_workers(FIRST).workers)
        worker.shutdown()
        working.wait_for_end()
    tasks = [world.create(taskQueueId=each) for each in QUEUES]
    assert [state(world, each) for each in tasks] == ["pending"] * 3


def test_a_canceled_run_of_any_task_queue_is_stopped(world: World) -> None:
    begun, stopped = threading.Event(), threading.Event()
    task_id = world.create(taskQueueId=SECOND)

    def handler(task: TaskRun) -> None:
        begun.set()
        task.canceled.wait(WAIT)
        stopped.set()

    with Working(world, worker_for(world, handler, task_queue_id=QUEUES, max_tasks=1)) as working:
        assert begun.wait(WAIT)
        world.queue.cancel_task(task_id)
        assert stopped.wait(WAIT)
        working.wait_for_end()


def test_logs_and_spans_name_the_task_queue_of_the_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create(taskQueueId=SECOND)
    with caplog.at_level(logging.INFO, "taskqueue_client.worker"):
        work(world, lambda _: None, task_queue_id=QUEUES)
    assert f"of {SECOND}" in log_of(world, task_id)
    assert f"task queue {FIRST}, {SECOND}, {THIRD}," in caplog.text
    assert f"run {task_id}/0 begins ({SECOND})" in caplog.text


def test_metrics_and_spans_name_the_task_queue_whose_claim_request_failed(
    world: World, spans: Spans, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "BACKOFF_FIRST", 0.05)
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=502, times=2))
    worker = worker_for(
        world, lambda _: None, task_queue_id=QUEUES, metrics_port=unused_tcp_port, tracing=True
    )
    with Working(world, worker):
        until(lambda: world.queue.list_workers(THIRD).workers)
        world.create(taskQueueId=THIRD)
        world.local.clock.advance(seconds=1)
        until(lambda: spans.named(f"receive {THIRD}"))
        page = requests.get(f"http://127.0.0.1:{unused_tcp_port}/metrics", timeout=WAIT).text
    failed = {each.name for each in spans.all() if "error.type" in attributes_of(each)}
    assert failed == {f"receive {FIRST}", f"receive {SECOND}"}
    counts = [
        f'claim_calls_total{{result="{result}",task_queue_id="{each}"}} 1.0'
        for each, result in ((FIRST, "unknown"), (SECOND, "unknown"), (THIRD, "responded"))
    ]
    assert [each for each in counts if each not in page] == []


def test_a_proxy_that_refuses_to_count_tasks_is_not_taken_for_a_missing_scope(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskqueue_client.worker")
    world.local.faults.add(Respond(endpoint="queue.pendingTasks", status=403, html=True, times=1000))
    worker = worker_for(world, lambda _: None, task_queue_id=[FIRST, SECOND])
    with Working(world, worker):
        until(lambda: world.queue.list_workers(FIRST).workers)
        world.local.clock.advance(seconds=1)
        until(lambda: "cannot count the pending tasks of proj/second, retrying: " in caplog.text)
    assert "no scope" not in caplog.text


def test_without_the_scope_to_count_tasks_the_task_queues_take_turns_after_one_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create(taskQueueId=SECOND)

    class Builder(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            pass

    worker = Builder(
        root_url=world.local.root_url,
        credentials=NO_COUNTS,
        task_queue_id=[FIRST, SECOND],
        worker_group="group",
        worker_id="worker",
        max_tasks=1,
    )
    with Working(world, worker) as working:
        until(lambda: "queue:pending-count:proj/second" in caplog.text)
        until(lambda: world.queue.list_workers(FIRST).workers)
        world.local.clock.advance(seconds=21)  # ends the claim request to the first task queue
        until(lambda: state(world, task_id) == "completed")
        working.wait_for_end()
    assert len([each for each in caplog.records if "no scope to count" in each.getMessage()]) == 1


def test_a_task_queue_that_refuses_claims_does_not_delay_the_others(world: World) -> None:
    """Even if it has pending tasks all the time."""
    world.create(taskQueueId=SECOND)

    async def claims() -> None:
        async with AsyncQueue(world.local.root_url, NO_CLAIMS_FROM_SECOND).with_options(attempts=1) as queue:
            identity = WorkerIdentity(FIRST, "group", "worker")
            source = SeveralTaskQueues([FIRST, SECOND], SourceContext(queue, identity, SystemClock()))
            for _ in range(2):
                with pytest.raises(InsufficientScopes):
                    await source.claim(1)
            claim = asyncio.create_task(source.claim(1))
            while not claim.done():
                world.local.clock.advance(seconds=0.1)
                await asyncio.sleep(0.01)  # not a wait: lets the claim work
            assert await claim == []

    asyncio.run(claims())


@pytest.mark.parametrize("others", [[], [THIRD]])
def test_a_worker_in_quarantine_gets_responses_though_the_task_queues_have_pending_tasks(
    world: World, others: list[str]
) -> None:
    """Otherwise, its health checks would fail, and a restart would end the runs that it still has."""
    expected = [world.create(taskQueueId=each) for each in others]
    for each in (FIRST, SECOND):
        world.queue.declare_worker(each, **IDENTITY, expires=from_now("1 day", world.queue.now()))
        world.queue.quarantine_worker(each, **IDENTITY, quarantine_until=from_now("1 day", world.queue.now()))
        world.create(taskQueueId=each)

    async def claims() -> None:
        async with AsyncQueue(world.local.root_url, world.local.credentials) as queue:
            identity = WorkerIdentity(FIRST, "group", "worker")
            context = SourceContext(queue, identity, SystemClock())
            claim = asyncio.create_task(SeveralTaskQueues([FIRST, SECOND, *others], context).claim(1))
            async with asyncio.timeout(WAIT):
                while not claim.done():
                    world.local.clock.advance(seconds=0 if others else 0.1)
                    await asyncio.sleep(0.01)  # not a wait: lets the claim work
            assert [each.status.task_id for each in await claim] == expected

    asyncio.run(claims())


def source_of(queue: AsyncQueue, clock: Clock) -> SeveralTaskQueues:
    return SeveralTaskQueues([FIRST, SECOND], SourceContext(queue, WorkerIdentity(FIRST, **IDENTITY), clock))


async def claimed_by(claim: Awaitable[Sequence[TaskClaim]], *clocks: MovableClock) -> list[str]:
    """Await a claim while the clocks are moved; return the ids of its tasks."""
    task = asyncio.ensure_future(claim)
    async with asyncio.timeout(WAIT):
        while clocks and not task.done():
            for each in clocks:
                each.advance(seconds=0.1)
            await asyncio.sleep(0.01)  # not a wait: lets the claim work
        return [each.status.task_id for each in await task]


def test_a_task_queue_with_many_tasks_does_not_wait_for_empty_ones_before_it_at_each_claim(
    world: World,
) -> None:
    tasks = [world.create(taskQueueId=SECOND) for _ in range(3)]

    async def claims() -> None:
        async with AsyncQueue(world.local.root_url, world.local.credentials) as queue:
            clock = MovableClock(held=True)
            source = source_of(queue, clock)
            assert await claimed_by(source.claim(1), clock) == tasks[:1]
            assert await claimed_by(source.claim(1)) == tasks[1:2]
            preferred = world.create(taskQueueId=FIRST)
            assert await claimed_by(source.claim(1)) == [preferred]
            assert await claimed_by(source.claim(1), clock) == tasks[2:]

    asyncio.run(claims())


def test_a_preferred_task_queue_whose_tasks_cannot_be_counted_comes_first_after_each_claim(
    world: World,
) -> None:
    tasks = [world.create(taskQueueId=SECOND) for _ in range(2)]

    async def claims() -> None:
        async with AsyncQueue(world.local.root_url, NO_COUNTS) as queue:
            source = source_of(queue, SystemClock())
            assert await claimed_by(source.claim(1), world.local.clock) == []
            assert await claimed_by(source.claim(1)) == tasks[:1]
            preferred = world.create(taskQueueId=FIRST)
            assert await claimed_by(source.claim(1)) == [preferred]

    asyncio.run(claims())


def test_a_queue_that_does_not_respond_to_counts_hardly_delays_a_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create(taskQueueId=SECOND)
    monkeypatch.setattr(claiming, "COUNT_TIMEOUT", 1.0)

    async def claims() -> None:
        async with AsyncQueue(world.local.root_url, world.local.credentials) as queue:
            clock = MovableClock(held=True)
            source = source_of(queue, clock)
            assert len(await claimed_by(source.claim(1), clock)) == 1
            preferred = world.create(taskQueueId=FIRST)
            world.local.faults.add(Delay(endpoint="queue.pendingTasks", seconds=3600, times=100))
            assert await claimed_by(source.claim(1), clock) == [preferred]

    asyncio.run(claims())


def test_a_worker_that_shuts_down_does_not_wait_for_the_count_of_tasks(world: World) -> None:
    world.create(taskQueueId=SECOND)

    async def claims() -> None:
        async with AsyncQueue(world.local.root_url, world.local.credentials) as queue:
            clock = MovableClock(held=True)
            source = source_of(queue, clock)
            assert len(await claimed_by(source.claim(1), clock)) == 1
            world.local.faults.add(Delay(endpoint="queue.pendingTasks", seconds=3600))
            claim = asyncio.create_task(source.claim(1))
            await asyncio.sleep(0)  # not a wait: lets the claim begin
            source.stop()
            assert await claimed_by(claim) == []

    asyncio.run(claims())


def test_a_refused_first_claim_request_ends_the_worker(world: World) -> None:
    class Builder(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            pass

    worker = Builder(
        root_url=world.local.root_url,
        credentials=NO_COUNTS.restricted_to(("queue:status:*",)),
        task_queue_id=QUEUES,
        worker_group="group",
        worker_id="worker",
    )
    with pytest.raises(InsufficientScopes):
        worker.serve()


IDENTITY: dict[str, Any] = {"worker_group": "group", "worker_id": "worker"}


@pytest.mark.parametrize("given", [[FIRST, SECOND], (FIRST, SECOND)])
def test_the_setting_is_a_list_in_order_of_preference(given: Any) -> None:
    config = WorkerConfig(task_queue_id=given, **IDENTITY)
    assert config.task_queue_ids == config.task_queue_id == (FIRST, SECOND)


@pytest.mark.parametrize("given", [FIRST, [FIRST]])
def test_one_task_queue_stays_text(given: Any) -> None:
    config = WorkerConfig(task_queue_id=given, **IDENTITY)
    assert (config.task_queue_id, config.task_queue_ids) == (FIRST, (FIRST,))


@pytest.mark.parametrize("text", [f"{FIRST},{SECOND}", f"{FIRST}, {SECOND}", f"{FIRST} {SECOND}"])
def test_a_variable_or_option_has_several_with_commas_or_spaces(text: str) -> None:
    assert setting_of_text("task_queue_id", text) == [FIRST, SECOND]


@pytest.mark.parametrize("given", [[], [FIRST, FIRST], [FIRST, "linux"], 5, {FIRST: 1}, [5]])
def test_a_list_that_is_not_one_of_task_queues_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="task_queue_id"):
        WorkerConfig(task_queue_id=given, **IDENTITY)


def test_a_task_source_has_one_task_queue() -> None:
    def make(context: SourceContext) -> TaskSource:
        return claiming.QueueTaskSource(context)

    class Builder(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            pass

    with pytest.raises(InvalidArgument, match="one task queue, because `task_source` is set"):
        Builder(root_url="https://tc.example.com", task_source=make, task_queue_id=QUEUES, **IDENTITY)
