"""Waiting for tasks and groups: polls find the end of the wait, and messages find it earlier."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar, cast

import msgspec
import pytest

from taskqueue_client import AsyncQueue, LocalQueue, Queue
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import (
    AsyncListener,
    Event,
    Gap,
    Listener,
    PulseSettings,
    WaitTimedOut,
    for_group,
    for_task,
    reconcile_by_status,
    reconcile_by_status_async,
    wait_for_group,
    wait_for_group_async,
    wait_for_task,
    wait_for_task_async,
)
from taskqueue_client.models import (
    TaskAndStatus,
    TaskGroupPage,
    TaskState,
    TaskStatus,
    TaskStatusResponse,
)
from taskqueue_client.models.messages import TaskCompletedMessage, TaskMessage
from taskqueue_client.testing import TaskFactory
from tests.events.conftest import WatchedClock
from tests.events.messages_published import Publisher, body, status, task_ids
from tests.restless_clock import RestlessClock

R = TypeVar("R")

(TASK,) = task_ids(1)


def task_status(state: str, *, task_id: str = TASK, runs: int = 1) -> TaskStatus:
    return msgspec.convert(status(task_id, state, runs=runs), TaskStatus)


class Scripted:
    """A Queue that sends the given responses in turn, and then the last one again and again."""

    def __init__(self, *responses: Any) -> None:
        self._responses = list(responses)
        self.asked = 0

    def with_credentials(self, credentials: Credentials | None) -> Self:
        del credentials
        return self

    def send(self, call: Call[R], /) -> R:
        assert TASK in call.path
        self.asked += 1
        response = self._responses[min(self.asked, len(self._responses)) - 1]
        if isinstance(response, list):
            members = [TaskAndStatus(task={}, status=each) for each in cast("list[TaskStatus]", response)]
            return cast("R", TaskGroupPage(task_group_id=TASK, tasks=members))
        return cast("R", TaskStatusResponse(status=response))


class AsyncScripted(Scripted):
    """An asynchronous `Scripted`."""

    async def send(self, call: Call[R], /) -> R:  # type: ignore[override] # as in the asynchronous client
        return super().send(call)


LIFE = [task_status(state) for state in ("unscheduled", "pending", "running", "running", "completed")]


def test_the_status_of_a_task_is_polled_with_jitter_until_it_is_resolved() -> None:
    clock, progress = RestlessClock(), list[TaskStatus]()
    queue = Scripted(*LIFE)
    resolved = wait_for_task(queue, TASK, on_progress=progress.append, clock=clock)
    assert resolved == LIFE[-1]
    assert [each.state for each in progress] == ["unscheduled", "pending", "running", "completed"]
    assert len(clock.slept) == 4
    assert all(7.5 <= pause <= 15 for pause in clock.slept)
    assert len(set(clock.slept)) > 1


@pytest.mark.parametrize("function", [wait_for_task, wait_for_group])
def test_an_asynchronous_client_is_refused_where_nothing_is_awaited(function: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"queue: .*AsyncScripted.* use the function .* _async"):
        function(AsyncScripted(*LIFE), TASK, clock=RestlessClock())


@pytest.mark.parametrize("function", [wait_for_task_async, wait_for_group_async])
async def test_a_synchronous_client_is_refused_where_its_response_is_awaited(function: Any) -> None:
    allowed = "an AsyncQueue; for a Queue, use the function whose name does not end with _async"
    with pytest.raises(InvalidArgument, match=f"queue: .*Scripted.* expected {allowed}"):
        await function(Scripted(*LIFE), TASK, clock=RestlessClock())


async def test_an_asynchronous_client_waits_for_a_task() -> None:
    clock, progress = RestlessClock(), list[TaskStatus]()
    resolved = await wait_for_task_async(AsyncScripted(*LIFE), TASK, on_progress=progress.append, clock=clock)
    assert resolved == LIFE[-1]
    assert [each.state for each in progress] == ["unscheduled", "pending", "running", "completed"]


@pytest.mark.parametrize("state", ["completed", "failed", "exception"])
def test_a_resolved_task_is_not_waited_for(state: str) -> None:
    clock = RestlessClock()
    assert wait_for_task(Scripted(task_status(state)), TASK, clock=clock).state == state
    assert clock.slept == []


def test_a_run_that_is_retried_does_not_end_the_wait() -> None:
    retried, done = task_status("pending", runs=2), task_status("completed", runs=2)
    assert wait_for_task(Scripted(retried, done), TASK, clock=RestlessClock()) == done


@pytest.mark.parametrize("timeout", [100, "1 minute 40 seconds"])
def test_the_timeout_ends_the_wait_after_a_last_poll(timeout: float | str) -> None:
    clock = RestlessClock()
    queue = Scripted(task_status("running"))
    with pytest.raises(WaitTimedOut, match=f"task {TASK} is running after 100 s"):
        wait_for_task(queue, TASK, timeout=timeout, clock=clock)
    assert sum(clock.slept) == pytest.approx(100)
    assert queue.asked == len(clock.slept) + 1


@pytest.mark.parametrize("function", [wait_for_task, wait_for_group])
def test_an_asynchronous_listener_is_refused_where_nothing_is_awaited(function: Any) -> None:
    listener = AsyncListener(PulseSettings(host="h", user="u", password="p"), [for_task(TASK)])
    with pytest.raises(InvalidArgument, match=r"^listener: .*AsyncListener.* expected Listener or None"):
        function(Scripted(*LIFE), TASK, listener=listener, clock=RestlessClock())


@pytest.mark.parametrize("function", [wait_for_task_async, wait_for_group_async])
async def test_a_value_that_is_not_a_listener_is_refused(function: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^listener: 'x'.* expected AsyncListener or None"):
        await function(AsyncScripted(*LIFE), TASK, listener="x", clock=RestlessClock())


@pytest.mark.parametrize("function", [wait_for_task, wait_for_group])
def test_a_value_that_is_not_a_clock_is_refused(function: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^clock: 5 is not valid; expected Clock or None"):
        function(Scripted(*LIFE), TASK, clock=5)


@pytest.mark.parametrize("timeout", ["5", float("nan")])
def test_a_timeout_that_would_never_end_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"timeout: .* expected a number of seconds, whole numbers"):
        wait_for_task(Scripted(*LIFE), TASK, timeout=timeout)
    with pytest.raises(InvalidArgument, match="timeout: "):
        wait_for_group(Scripted(*GROUP_LIFE), TASK, timeout=timeout)


async def test_an_asynchronous_progress_hook_is_refused() -> None:
    async def on_progress(_: object) -> None:
        pytest.fail("it is awaited")

    with pytest.raises(
        InvalidArgument, match=r"on_progress: .* expected a function that is not asynchronous"
    ):
        await wait_for_task_async(AsyncScripted(*LIFE), TASK, on_progress=on_progress)


def test_a_task_that_is_resolved_at_the_last_poll_is_returned() -> None:
    queue = Scripted(task_status("running"), task_status("completed"))
    assert wait_for_task(queue, TASK, timeout=1, clock=RestlessClock()).state == "completed"


async def test_the_error_of_a_timeout_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        await wait_for_task_async(
            AsyncScripted(task_status("pending")), TASK, timeout=0, clock=RestlessClock()
        )


async def test_a_message_ends_the_wait_without_another_poll(
    settings: PulseSettings, publisher: Publisher
) -> None:
    clock = WatchedClock()
    queue = AsyncScripted(task_status("pending"))
    progress: list[TaskStatus] = []
    async with AsyncListener(settings, for_task(TASK), clock=clock) as listener:
        await publisher.publish("task-running", body("task-running", TASK))
        await publisher.publish("task-pending", body("task-pending", TASK))  # late: it is running already
        await publisher.publish("task-completed", body("task-completed", TASK))
        resolved = await wait_for_task_async(
            queue, TASK, listener=listener, on_progress=progress.append, clock=clock
        )
    assert resolved.state is TaskState.COMPLETED
    assert [each.state for each in progress] == ["pending", "running", "completed"]
    assert queue.asked == 1


@pytest.mark.usefixtures("publisher")
async def test_a_wait_with_a_listener_polls_each_minute_in_case_a_message_is_lost(
    settings: PulseSettings,
) -> None:
    clock = WatchedClock()
    queue = AsyncScripted(task_status("running"), task_status("completed"))
    async with AsyncListener(settings, for_task(TASK), clock=clock, check_interval=1000) as listener:
        waiting = asyncio.create_task(wait_for_task_async(queue, TASK, listener=listener, clock=clock))
        await clock.move_a_sleeper(30, 60)
        assert (await waiting).state is TaskState.COMPLETED
    assert queue.asked == 2


async def test_a_message_from_before_a_rerun_does_not_end_the_wait(
    settings: PulseSettings, publisher: Publisher
) -> None:
    queue = AsyncScripted(task_status("running", runs=2))
    async with AsyncListener(settings, for_task(TASK)) as listener:
        await publisher.publish("task-failed", body("task-failed", TASK, runs=1))
        await publisher.publish("task-completed", body("task-completed", TASK, runs=2))
        resolved = await wait_for_task_async(queue, TASK, listener=listener)
    assert (resolved.state, len(resolved.runs)) == ("completed", 2)


@pytest.mark.usefixtures("publisher")
async def test_a_wait_polls_when_its_listener_is_stopped(settings: PulseSettings) -> None:
    clock = RestlessClock()
    async with AsyncListener(settings, for_task(TASK)) as listener:
        listener.stop()
        resolved = await wait_for_task_async(AsyncScripted(*LIFE), TASK, listener=listener, clock=clock)
    assert resolved == LIFE[-1]


def test_a_synchronous_client_waits_with_a_synchronous_listener(
    broker_url: str, settings: PulseSettings
) -> None:
    async def publish() -> None:
        publisher = await Publisher.connect(broker_url)
        await publisher.publish("task-completed", body("task-completed", TASK))
        await publisher.close()

    queue = Scripted(task_status("running"))
    asyncio.run(_declare_exchanges(broker_url))
    with Listener(settings, for_task(TASK)) as listener:
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
    group("completed", "failed", "pending"),  # a task has joined the group
    group("completed", "failed", "exception"),
]


def test_a_group_is_polled_until_all_its_tasks_are_resolved() -> None:
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


async def test_an_asynchronous_client_waits_for_a_group() -> None:
    resolved = await wait_for_group_async(AsyncScripted(*GROUP_LIFE), TASK, clock=RestlessClock())
    assert resolved == GROUP_LIFE[-1]


def test_the_error_of_a_group_timeout_contains_the_states() -> None:
    queue = Scripted(group("running", "pending"))
    with pytest.raises(WaitTimedOut, match=f"task group {TASK}: 1 running, 1 pending after 5 s"):
        wait_for_group(queue, TASK, timeout=5, clock=RestlessClock())


async def test_messages_of_a_group_are_followed_and_the_end_is_confirmed_by_a_poll(
    settings: PulseSettings, publisher: Publisher
) -> None:
    queue = AsyncScripted(group("running", "pending"), group("completed", "failed"))
    progress: list[dict[TaskState, int]] = []
    async with AsyncListener(settings, for_group(TASK)) as listener:
        for exchange, task_id in (("task-completed", MEMBERS[0]), ("task-failed", MEMBERS[1])):
            message = body(exchange, task_id)
            message["status"]["taskGroupId"] = TASK
            await publisher.publish(exchange, message)
        resolved = await wait_for_group_async(
            queue, TASK, listener=listener, on_progress=lambda counts: progress.append(dict(counts))
        )
    assert resolved == group("completed", "failed")
    assert queue.asked == 2
    assert progress == [
        {"running": 1, "pending": 1},
        {"completed": 1, "pending": 1},
        {"completed": 1, "failed": 1},
    ]


class CountedStatus(TaskStatus, frozen=True):
    """A status that counts how often its state is read."""

    reads: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        CountedStatus.reads += name == "state"
        return super().__getattribute__(name)


class ScriptedListener(Listener):
    """A listener that has received some events."""

    def __init__(self, events: list[Event]) -> None:
        self._events = iter(events)

    @property
    def stopped(self) -> bool:
        return False

    def get(self, timeout: float | str | None = None) -> Event | None:
        del timeout
        return next(self._events, None)


def test_a_message_of_a_group_leads_to_no_look_at_all_of_its_tasks() -> None:
    """A group of 100,000 tasks has several messages for each: reading all states for each takes hours."""
    members = [status(task_id, "running") for task_id in task_ids(200)]
    known = [msgspec.convert({**each, "taskGroupId": TASK}, CountedStatus) for each in members]
    messages = [body("task-completed", each["taskId"]) for each in members]
    for each in messages:
        each["status"]["taskGroupId"] = TASK
    events = [
        Event("task-completed", msgspec.convert(each, TaskCompletedMessage), routing_key=None)
        for each in messages
    ]
    resolved = [each.message.status for each in events if isinstance(each.message, TaskMessage)]
    progress: list[dict[TaskState, int]] = []
    CountedStatus.reads = 0
    found = wait_for_group(
        Scripted(known, resolved),
        TASK,
        listener=ScriptedListener(events),
        on_progress=lambda counts: progress.append(dict(counts)),
        clock=RestlessClock(),
    )
    assert found == resolved
    assert progress[0::100] == [{"running": 200}, {"running": 100, "completed": 100}, {"completed": 200}]
    assert CountedStatus.reads < 5 * len(known)


async def test_the_message_that_a_group_is_resolved_leads_to_a_poll(
    settings: PulseSettings, publisher: Publisher
) -> None:
    queue = AsyncScripted(group("running"), group("completed"))
    async with AsyncListener(settings, for_group(TASK)) as listener:
        message = {"version": 1, "taskGroupId": TASK, "schedulerId": "-"}
        await publisher.publish("task-group-resolved", message, f"primary.{TASK}.-._")
        assert await wait_for_group_async(queue, TASK, listener=listener) == group("completed")
    assert queue.asked == 2


GAP = Gap(began=1, ended=2, queue_was_lost=True)


async def test_reconciling_by_status_reads_the_tasks_that_matter_at_that_moment(
    async_queue: AsyncQueue, task_factory: TaskFactory
) -> None:
    wanted: list[str] = []
    got: list[TaskStatus] = []
    hook = reconcile_by_status_async(async_queue, lambda: wanted, got.append)
    created = (await async_queue.create_task(TASK, task_factory())).status
    await hook(GAP)
    wanted.append(TASK)
    await hook(GAP)
    assert got == [created]


def test_reconciling_with_a_synchronous_client_is_synchronous_and_ignores_unknown_tasks(
    local_queue: LocalQueue, task_factory: TaskFactory
) -> None:
    got: list[TaskStatus] = []
    with Queue(local_queue.root_url, local_queue.credentials) as queue:
        created = queue.create_task(TASK, task_factory()).status
        hook = reconcile_by_status(queue, lambda: [*task_ids(2), TASK, TASK], got.append)
        assert hook(GAP) is None
    assert got == [created]


@pytest.mark.parametrize("reconcile", [reconcile_by_status, reconcile_by_status_async])
@pytest.mark.parametrize("argument", ["task_ids", "on_status"])
@pytest.mark.parametrize("is_none", [False, True])
def test_reconciling_by_status_refuses_an_asynchronous_function_and_none(
    reconcile: Any, argument: str, *, is_none: bool
) -> None:
    async def function(*_: object) -> None:
        pytest.fail("it is awaited")

    functions = {"task_ids": lambda: [TASK], "on_status": print, argument: None if is_none else function}
    with pytest.raises(InvalidArgument, match=f"{argument}: .* expected a function that is not asynchronous"):
        reconcile(AsyncScripted(*LIFE), **functions)
