"""Waiting for tasks and groups: the Queue decides, messages make it quick."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.events import (
    BlockingListener,
    Gap,
    Listener,
    PulseSettings,
    WaitTimedOut,
    for_group,
    for_task,
    reconcile_by_status,
    wait_for_group,
    wait_for_task,
)
from taskqueue_client.models.status import TaskState, TaskStatus, TaskStatusResponse
from tests.events.conftest import WatchedClock
from tests.events.messages_published import Publisher, body, status, task_ids

(TASK,) = task_ids(1)


def task_status(state: str, *, task_id: str = TASK, runs: int = 1) -> TaskStatus:
    return msgspec.convert(status(task_id, state, runs=runs), TaskStatus)


@dataclass(frozen=True)
class Entry:
    status: TaskStatus


class Scripted:
    """A Queue that says one thing after the other, and the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0

    def _next(self) -> Any:
        self.asked += 1
        return self._answers[min(self.asked, len(self._answers)) - 1]

    def status(self, task_id: str, /) -> TaskStatusResponse:
        assert task_id == TASK
        return TaskStatusResponse(self._next())

    def iter_task_group(self, task_group_id: str, /) -> Iterator[Entry]:
        assert task_group_id == TASK
        yield from map(Entry, self._next())


class AsyncScripted(Scripted):
    """The same, awaited."""

    async def status(self, task_id: str, /) -> TaskStatusResponse:  # type: ignore[override] # as the clients are
        return super().status(task_id)

    async def iter_task_group(self, task_group_id: str, /) -> AsyncIterator[Entry]:  # type: ignore[override] # as the clients are
        for entry in super().iter_task_group(task_group_id):
            yield entry


class RestlessClock(MovableClock):
    """A clock on which nobody waits: sleeping moves it, and is remembered."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


LIFE = [task_status(state) for state in ("unscheduled", "pending", "running", "running", "completed")]


def test_a_task_is_asked_for_with_jitter_until_it_is_resolved() -> None:
    clock, progress = RestlessClock(), list[TaskStatus]()
    queue = Scripted(*LIFE)
    resolved = wait_for_task(queue, TASK, on_progress=progress.append, clock=clock)
    assert resolved == LIFE[-1]
    assert [each.state for each in progress] == ["unscheduled", "pending", "running", "completed"]
    assert len(clock.slept) == 4
    assert all(7.5 <= pause <= 15 for pause in clock.slept)
    assert len(set(clock.slept)) > 1


async def test_with_an_async_client_the_same_is_awaited() -> None:
    clock, progress = RestlessClock(), list[TaskStatus]()
    resolved = await wait_for_task(AsyncScripted(*LIFE), TASK, on_progress=progress.append, clock=clock)
    assert resolved == LIFE[-1]
    assert [each.state for each in progress] == ["unscheduled", "pending", "running", "completed"]


@pytest.mark.parametrize("state", ["completed", "failed", "exception"])
def test_a_resolved_task_is_not_waited_for(state: str) -> None:
    clock = RestlessClock()
    assert wait_for_task(Scripted(task_status(state)), TASK, clock=clock).state == state
    assert clock.slept == []


def test_a_retried_run_is_no_end() -> None:
    retried, done = task_status("pending", runs=2), task_status("completed", runs=2)
    assert wait_for_task(Scripted(retried, done), TASK, clock=RestlessClock()) == done


def test_the_time_limit_ends_the_wait_after_a_last_look() -> None:
    clock = RestlessClock()
    queue = Scripted(task_status("running"))
    with pytest.raises(WaitTimedOut, match=f"task {TASK} is running after 100 s"):
        wait_for_task(queue, TASK, timeout=100, clock=clock)
    assert sum(clock.slept) == pytest.approx(100)
    assert queue.asked == len(clock.slept) + 1


def test_a_task_that_is_resolved_at_the_last_look_is_in_time() -> None:
    queue = Scripted(task_status("running"), task_status("completed"))
    assert wait_for_task(queue, TASK, timeout=1, clock=RestlessClock()).state == "completed"


async def test_a_time_limit_is_a_timeout_error_too() -> None:
    with pytest.raises(TimeoutError):
        await wait_for_task(AsyncScripted(task_status("pending")), TASK, timeout=0, clock=RestlessClock())


async def test_a_message_ends_the_wait_without_another_look(
    settings: PulseSettings, publisher: Publisher
) -> None:
    clock = WatchedClock()
    queue = AsyncScripted(task_status("pending"))
    progress: list[TaskStatus] = []
    async with Listener(settings, for_task(TASK), clock=clock) as listener:
        await publisher.publish("task-running", body("task-running", TASK))
        await publisher.publish("task-pending", body("task-pending", TASK))  # late: it is running already
        await publisher.publish("task-completed", body("task-completed", TASK))
        resolved = await wait_for_task(
            queue, TASK, listener=listener, on_progress=progress.append, clock=clock
        )
    assert resolved.state is TaskState.COMPLETED
    assert [each.state for each in progress] == ["pending", "running", "completed"]
    assert queue.asked == 1


@pytest.mark.usefixtures("publisher")
async def test_a_lost_message_is_made_up_for_by_a_look_each_minute(settings: PulseSettings) -> None:
    clock = WatchedClock()
    queue = AsyncScripted(task_status("running"), task_status("completed"))
    async with Listener(settings, for_task(TASK), clock=clock, check_interval=1000) as listener:
        waiting = asyncio.create_task(wait_for_task(queue, TASK, listener=listener, clock=clock))
        await clock.move_a_sleeper(30, 60)
        assert (await waiting).state is TaskState.COMPLETED
    assert queue.asked == 2


async def test_a_message_from_before_a_rerun_does_not_end_the_wait(
    settings: PulseSettings, publisher: Publisher
) -> None:
    queue = AsyncScripted(task_status("running", runs=2))
    async with Listener(settings, for_task(TASK)) as listener:
        await publisher.publish("task-failed", body("task-failed", TASK, runs=1))
        await publisher.publish("task-completed", body("task-completed", TASK, runs=2))
        resolved = await wait_for_task(queue, TASK, listener=listener)
    assert (resolved.state, len(resolved.runs)) == ("completed", 2)


@pytest.mark.usefixtures("publisher")
async def test_a_stopped_listener_leaves_it_to_looks(settings: PulseSettings) -> None:
    clock = RestlessClock()
    async with Listener(settings, for_task(TASK)) as listener:
        listener.stop()
        resolved = await wait_for_task(AsyncScripted(*LIFE), TASK, listener=listener, clock=clock)
    assert resolved == LIFE[-1]


def test_a_blocking_listener_does_for_a_blocking_client(broker_url: str, settings: PulseSettings) -> None:
    async def publish() -> None:
        publisher = await Publisher.connect(broker_url)
        await publisher.publish("task-completed", body("task-completed", TASK))
        await publisher.close()

    queue = Scripted(task_status("running"))
    asyncio.run(_declare_exchanges(broker_url))
    with BlockingListener(settings, for_task(TASK)) as listener:
        asyncio.run(publish())
        assert wait_for_task(queue, TASK, listener=listener).state is TaskState.COMPLETED
    assert queue.asked == 1


async def _declare_exchanges(url: str) -> None:
    publisher = await Publisher.connect(url)
    await publisher.close()


MEMBERS = task_ids(3)


def group(*states: str) -> list[TaskStatus]:
    return [
        msgspec.structs.replace(task_status(state, task_id=task_id), task_group_id=TASK)
        for task_id, state in zip(MEMBERS, states, strict=False)
    ]


GROUP_LIFE: Sequence[list[TaskStatus]] = [
    group("running", "pending"),
    group("completed", "running"),
    group("completed", "failed", "pending"),  # one joined
    group("completed", "failed", "exception"),
]


def test_a_group_is_asked_for_until_all_its_tasks_are_resolved() -> None:
    progress: list[Counter[TaskState]] = []
    clock = RestlessClock()
    resolved = wait_for_group(Scripted(*GROUP_LIFE), TASK, on_progress=progress.append, clock=clock)
    assert resolved == GROUP_LIFE[-1]
    assert [dict(each) for each in progress] == [
        {"running": 1, "pending": 1},
        {"completed": 1, "running": 1},
        {"completed": 1, "failed": 1, "pending": 1},
        {"completed": 1, "failed": 1, "exception": 1},
    ]
    assert len(clock.slept) == 3


async def test_with_an_async_client_a_group_is_awaited() -> None:
    resolved = await wait_for_group(AsyncScripted(*GROUP_LIFE), TASK, clock=RestlessClock())
    assert resolved == GROUP_LIFE[-1]


def test_a_group_s_time_limit_says_where_it_stands() -> None:
    queue = Scripted(group("running", "pending"))
    with pytest.raises(WaitTimedOut, match=r"pending.* after 5 s"):
        wait_for_group(queue, TASK, timeout=5, clock=RestlessClock())


async def test_messages_of_a_group_make_progress_and_the_end_is_confirmed_by_a_look(
    settings: PulseSettings, publisher: Publisher
) -> None:
    queue = AsyncScripted(group("running", "pending"), group("completed", "failed"))
    progress: list[dict[TaskState, int]] = []
    async with Listener(settings, for_group(TASK)) as listener:
        for exchange, task_id in (("task-completed", MEMBERS[0]), ("task-failed", MEMBERS[1])):
            message = body(exchange, task_id)
            message["status"]["taskGroupId"] = TASK
            await publisher.publish(exchange, message)
        resolved = await wait_for_group(
            queue, TASK, listener=listener, on_progress=lambda counts: progress.append(dict(counts))
        )
    assert resolved == group("completed", "failed")
    assert queue.asked == 2
    assert progress == [
        {"running": 1, "pending": 1},
        {"completed": 1, "pending": 1},
        {"completed": 1, "failed": 1},
    ]


async def test_the_message_that_a_group_is_resolved_leads_to_a_look(
    settings: PulseSettings, publisher: Publisher
) -> None:
    queue = AsyncScripted(group("running"), group("completed"))
    async with Listener(settings, for_group(TASK)) as listener:
        message = {"version": 1, "taskGroupId": TASK, "schedulerId": "-"}
        await publisher.publish("task-group-resolved", message, f"primary.{TASK}.-._")
        assert await wait_for_group(queue, TASK, listener=listener) == group("completed")
    assert queue.asked == 2


GAP = Gap(began=1, ended=2, queue_was_lost=True)


async def test_reconciling_reads_the_status_of_what_matters_when_it_is_called() -> None:
    wanted: list[str] = []
    got: list[TaskStatus] = []
    hook = reconcile_by_status(AsyncScripted(*LIFE), lambda: wanted, got.append)
    await hook(GAP)
    wanted.append(TASK)
    await hook(GAP)
    assert got == LIFE[:1]


def test_reconciling_with_a_blocking_client_blocks() -> None:
    got: list[TaskStatus] = []
    hook = reconcile_by_status(Scripted(*LIFE), lambda: [TASK, TASK], got.append)
    assert hook(GAP) is None
    assert got == LIFE[:2]
