"""Waiting until a task, or every task of a group, is resolved.

The Queue's responses decide; messages only say when to make a request, or make it unnecessary. Some
messages are published at best effort, so requests are made at intervals even while a listener is connected.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from taskqueue_client import calls
from taskqueue_client._arguments import check_callback, check_kind, seconds
from taskqueue_client._protocol.conversation import (
    AsyncClient,
    Client,
    Conversation,
    Pause,
    Work,
    converse,
    converse_async,
)
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import WaitTimedOut
from taskqueue_client.models import TaskState, TaskStatus
from taskqueue_client.models.messages import TaskGroupResolvedMessage, TaskMessage
from taskqueue_client.models.tasks import RESOLVED

from .event import Event, Gap
from .listener import AsyncListener, Listener

POLL_INTERVAL: Final = 15.0
"""Seconds between requests without a listener; shortened by up to half at random."""
POLL_INTERVAL_WITH_LISTENER: Final = 60.0
"""Seconds between requests with a listener."""

_ORDER: Final = {TaskState.UNSCHEDULED: 0, TaskState.PENDING: 1, TaskState.RUNNING: 2}

R = TypeVar("R")


def wait_for_task(
    queue: Client,
    task_id: str,
    *,
    listener: Listener | None = None,
    timeout: float | str | None = None,
    on_progress: Callable[[TaskStatus], object] | None = None,
    clock: Clock | None = None,
) -> TaskStatus:
    """Wait until a task is resolved: completed, failed, or exception without a retry.

    Args:
        queue: The client.
        task_id: The task.
        listener: A listener with the bindings `for_task(task_id)` and no other use: its events are
            consumed. Requests are made once a minute then, else every 15 seconds.
        timeout: In seconds, or text such as `5 minutes`; no limit by default.
        on_progress: Called with the first status and with each later one.
        clock: The clock for all waiting.

    Returns:
        The status of the resolved task.

    Raises:
        InvalidArgument: `timeout` is not a duration, or `listener` or `on_progress` is asynchronous.
        WaitTimedOut: The task is not resolved in time.
        TaskQueueError: An error of the client or the listener.
    """
    schedule = _Schedule(clock, timeout, listener, Listener)
    return converse(queue, _until_task_resolved(task_id, schedule, _hook(on_progress)))


async def wait_for_task_async(
    queue: AsyncClient,
    task_id: str,
    *,
    listener: AsyncListener | None = None,
    timeout: float | str | None = None,  # noqa: ASYNC109 - measured on `clock`
    on_progress: Callable[[TaskStatus], object] | None = None,
    clock: Clock | None = None,
) -> TaskStatus:
    """Wait until a task is resolved; see `wait_for_task`."""
    schedule = _Schedule(clock, timeout, listener, AsyncListener)
    return await converse_async(queue, _until_task_resolved(task_id, schedule, _hook(on_progress)))


def wait_for_group(
    queue: Client,
    task_group_id: str,
    *,
    listener: Listener | None = None,
    timeout: float | str | None = None,
    on_progress: Callable[[Counter[TaskState]], object] | None = None,
    clock: Clock | None = None,
) -> list[TaskStatus]:
    """Wait until every task of a group is resolved, including tasks that are added meanwhile.

    Args:
        queue: The client.
        task_group_id: The task group.
        listener: A listener with the bindings `for_group(task_group_id)` and no other use: its events are
            consumed. Requests are made once a minute then, else every 15 seconds.
        timeout: In seconds, or text such as `5 minutes`; no limit by default.
        on_progress: Called with the number of tasks in each state, at first and after each change.
        clock: The clock for all waiting.

    Returns:
        The status of each task, in the order of the Queue's list.

    Raises:
        InvalidArgument: `timeout` is not a duration, or `listener` or `on_progress` is asynchronous.
        WaitTimedOut: A task is not resolved in time.
        TaskQueueError: An error of the client or the listener.
    """
    schedule = _Schedule(clock, timeout, listener, Listener)
    return converse(queue, _until_group_resolved(task_group_id, schedule, _hook(on_progress)))


async def wait_for_group_async(
    queue: AsyncClient,
    task_group_id: str,
    *,
    listener: AsyncListener | None = None,
    timeout: float | str | None = None,  # noqa: ASYNC109 - measured on `clock`
    on_progress: Callable[[Counter[TaskState]], object] | None = None,
    clock: Clock | None = None,
) -> list[TaskStatus]:
    """Wait until every task of a group is resolved; see `wait_for_group`."""
    schedule = _Schedule(clock, timeout, listener, AsyncListener)
    steps = _until_group_resolved(task_group_id, schedule, _hook(on_progress))
    return await converse_async(queue, steps)


def reconcile_by_status(
    queue: Client, task_ids: Callable[[], Iterable[str]], on_status: Callable[[TaskStatus], object]
) -> Callable[[Gap], None]:
    """Return a `reconcile` hook for `Listener` that reads the status of tasks.

    Args:
        queue: The client.
        task_ids: Called at each gap; returns the tasks to read. The Queue ignores ids that it does not know,
            such as those of expired tasks.
        on_status: Called once with the status of each task, changed or not. A message about the same change
            may still arrive.

    Raises:
        InvalidArgument: `task_ids` or `on_status` is asynchronous.
    """
    _check_functions(task_ids, on_status)
    return lambda _: converse(queue, _read_statuses(task_ids, on_status))


def reconcile_by_status_async(
    queue: AsyncClient, task_ids: Callable[[], Iterable[str]], on_status: Callable[[TaskStatus], object]
) -> Callable[[Gap], Awaitable[None]]:
    """Return a `reconcile` hook for `AsyncListener`; see `reconcile_by_status`.

    `task_ids` and `on_status` are not asynchronous here, either.
    """
    _check_functions(task_ids, on_status)
    return lambda _: converse_async(queue, _read_statuses(task_ids, on_status))


class _Schedule:
    """When to make a request, when to wait for an event, and when to give up."""

    def __init__(
        self,
        clock: Clock | None,
        timeout: float | str | None,
        listener: Listener | AsyncListener | None,
        kind: type[Listener | AsyncListener],
    ) -> None:
        limit = seconds("timeout", timeout)
        check_kind("listener", listener, kind | None)
        check_kind("clock", clock, Clock | None)
        self._clock = clock or SystemClock()
        self._timeout = math.inf if limit is None else limit
        self._deadline = self._clock.monotonic() + self._timeout
        self._listener = listener
        self._interval = POLL_INTERVAL if listener is None else POLL_INTERVAL_WITH_LISTENER
        self._requested = -math.inf
        self._next_request = -math.inf

    def request_next(self) -> None:
        self._next_request = -math.inf

    def step(self, request: Callable[[], Conversation[R]], state: str) -> Conversation[R | Event | None]:
        """Make a request if it is time to; else wait for an event."""
        now = self._clock.monotonic()
        if self._requested >= self._deadline:
            raise WaitTimedOut(f"{state} after {self._timeout:g} s")
        if now < self._next_request:
            return (yield from self._listen(self._next_request - now))
        self._requested = now
        wait = self._interval * random.uniform(0.5, 1)  # noqa: S311 - jitter, not cryptography
        self._next_request = min(now + wait, max(now, self._deadline))
        return (yield from request())

    def _listen(self, seconds: float) -> Conversation[Event | None]:
        """Wait for an event, or until the next request without a listener."""
        listener = self._listener
        if listener is None or listener.stopped:
            yield from Pause(seconds, self._clock)
            return None
        if isinstance(listener, AsyncListener):
            return (yield from Work(_no_event_loop, run_async=partial(listener.get, seconds)))
        return (yield from Work(partial(listener.get, seconds)))


def _until_task_resolved(
    task_id: str, schedule: _Schedule, on_progress: Callable[[TaskStatus], object]
) -> Conversation[TaskStatus]:
    status: TaskStatus | None = None
    while status is None or status.state not in RESOLVED:
        state = f"task {task_id} is {status.state}" if status else f"no status of task {task_id} received"
        found = _status_in((yield from schedule.step(lambda: _request_status(task_id), state)))
        if found is not None and found.task_id == task_id and _is_later(found, status):
            status = found
            on_progress(status)
    return status


def _until_group_resolved(
    task_group_id: str, schedule: _Schedule, on_progress: Callable[[Counter[TaskState]], object]
) -> Conversation[list[TaskStatus]]:
    known: dict[str, TaskStatus] = {}
    states: Counter[TaskState] = Counter()  # of the tasks in `known`
    reported: Counter[TaskState] = Counter()
    while True:
        state = f"task group {task_group_id}: {_counted(reported)}"
        found = yield from schedule.step(lambda: _request_statuses(task_group_id), state)
        if isinstance(found, list):
            known = {status.task_id: status for status in found}
            states = Counter(status.state for status in found)
        elif _may_be_resolved(found, task_group_id, known, states):
            schedule.request_next()
        if states != reported:
            reported = +states  # without zeros
            on_progress(reported)
        if isinstance(found, list) and states.keys() <= RESOLVED:
            return found


def _counted(states: Counter[TaskState]) -> str:
    """Return the number of tasks in each state, such as `1 running, 2 completed`."""
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "no status received"


def _request_status(task_id: str) -> Conversation[TaskStatus]:
    return (yield from calls.status(task_id)).status


def _request_statuses(task_group_id: str) -> Conversation[list[TaskStatus]]:
    members = yield from calls.iter_task_group(task_group_id).everything()
    return [each.status for each in members]


def _check_functions(task_ids: object, on_status: object) -> None:
    check_callback("task_ids", task_ids)
    check_callback("on_status", on_status)


def _read_statuses(
    task_ids: Callable[[], Iterable[str]], on_status: Callable[[TaskStatus], object]
) -> Conversation[None]:
    for found in (yield from calls.iter_statuses(list(task_ids())).everything()):
        on_status(found.status)


def _may_be_resolved(
    event: Event | None, task_group_id: str, known: dict[str, TaskStatus], states: Counter[TaskState]
) -> bool:
    """Update `known` and `states` with an event; return whether all tasks of the group seem resolved."""
    if event is not None and isinstance(event.message, TaskGroupResolvedMessage):
        return event.message.task_group_id == task_group_id
    status = _status_in(event)
    if status is None or status.task_group_id != task_group_id:
        return False
    before = known.get(status.task_id)
    if _is_later(status, before):
        known[status.task_id] = status
        states[status.state] += 1
        if before is not None:
            states[before.state] -= 1
    return (+states).keys() <= RESOLVED


def _status_in(found: TaskStatus | Event | None) -> TaskStatus | None:
    if isinstance(found, Event):
        return found.message.status if isinstance(found.message, TaskMessage) else None
    return found


def _is_later(status: TaskStatus, known: TaskStatus | None) -> bool:
    """Return whether a status is newer than the known one: messages may be late or repeated."""
    return known is None or _progress(status) > _progress(known)


def _progress(status: TaskStatus) -> tuple[int, int]:
    return len(status.runs), _ORDER.get(status.state, len(_ORDER))


def _no_event_loop() -> Event | None:
    raise TypeError("an AsyncListener needs an AsyncQueue; found a Queue")


def _hook(on_progress: Callable[[R], object] | None) -> Callable[[R], object]:
    if on_progress is None:
        return lambda _: None
    check_callback("on_progress", on_progress)
    return on_progress
