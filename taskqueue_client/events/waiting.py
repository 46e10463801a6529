"""Waiting for a task, or for all tasks of a group, to be resolved."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast, overload

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.models.status import TaskState, TaskStatus

from . import _wait
from .blocking import BlockingListener
from .clients import AsyncGroupReader, AsyncStatusReader, GroupReader, StatusReader
from .listener import Listener


@overload
def wait_for_task(
    queue: StatusReader,
    task_id: str,
    *,
    listener: BlockingListener | None = None,
    timeout: float | None = None,
    on_progress: Callable[[TaskStatus], object] | None = None,
    clock: Clock | None = None,
) -> TaskStatus: ...
@overload
def wait_for_task(
    queue: AsyncStatusReader,
    task_id: str,
    *,
    listener: Listener | None = None,
    timeout: float | None = None,
    on_progress: Callable[[TaskStatus], object] | None = None,
    clock: Clock | None = None,
) -> Coroutine[Any, Any, TaskStatus]: ...
def wait_for_task(
    queue: StatusReader | AsyncStatusReader,
    task_id: str,
    *,
    listener: BlockingListener | Listener | None = None,
    timeout: float | None = None,
    on_progress: Callable[[TaskStatus], object] | None = None,
    clock: Clock | None = None,
) -> TaskStatus | Coroutine[Any, Any, TaskStatus]:
    """Wait until a task is resolved: completed, failed, or exception with no retry to follow.

    With an `AsyncQueue`, await the answer.

    Args:
        queue: The client to ask.
        task_id: The task.
        listener: One that is bound to the task (`for_task`) and serves nothing else: its events are
            used up. The Queue is still asked once a minute. Without one, it is asked every 15 s.
        timeout: In seconds; without one, wait for as long as it takes.
        on_progress: Called with the status at first, and whenever it got further.
        clock: What the waiting goes by.

    Returns:
        The status of the resolved task.

    Raises:
        WaitTimedOut: It is not resolved yet.
        TaskQueueError: What the client or the listener raises.
    """
    clock = clock or SystemClock()
    steps = _wait.until_task_is_resolved(task_id, _schedule(clock, timeout, listener), on_progress or _ignore)
    if not inspect.iscoroutinefunction(queue.status):
        reader = cast("StatusReader", queue)
        return _wait.drive(
            steps, lambda: reader.status(task_id).status, cast("BlockingListener | None", listener), clock
        )
    awaited = cast("AsyncStatusReader", queue)

    async def look() -> TaskStatus:
        return (await awaited.status(task_id)).status

    return _wait.drive_async(steps, look, cast("Listener | None", listener), clock)


@overload
def wait_for_group(
    queue: GroupReader,
    task_group_id: str,
    *,
    listener: BlockingListener | None = None,
    timeout: float | None = None,
    on_progress: Callable[[Counter[TaskState]], object] | None = None,
    clock: Clock | None = None,
) -> list[TaskStatus]: ...
@overload
def wait_for_group(
    queue: AsyncGroupReader,
    task_group_id: str,
    *,
    listener: Listener | None = None,
    timeout: float | None = None,
    on_progress: Callable[[Counter[TaskState]], object] | None = None,
    clock: Clock | None = None,
) -> Coroutine[Any, Any, list[TaskStatus]]: ...
def wait_for_group(
    queue: GroupReader | AsyncGroupReader,
    task_group_id: str,
    *,
    listener: BlockingListener | Listener | None = None,
    timeout: float | None = None,
    on_progress: Callable[[Counter[TaskState]], object] | None = None,
    clock: Clock | None = None,
) -> list[TaskStatus] | Coroutine[Any, Any, list[TaskStatus]]:
    """Wait until every task of a group is resolved, those that join meanwhile included.

    With an `AsyncQueue`, await the answer.

    Args:
        queue: The client to ask.
        task_group_id: The task group.
        listener: One that is bound to the group (`for_group`) and serves nothing else: its events
            are used up. The Queue is still asked once a minute. Without one, it is asked every 15 s.
        timeout: In seconds; without one, wait for as long as it takes.
        on_progress: Called with the number of tasks in each state at first, and when it changed.
        clock: What the waiting goes by.

    Returns:
        The status of each task, in the order of the Queue's listing.

    Raises:
        WaitTimedOut: A task is not resolved yet.
        TaskQueueError: What the client or the listener raises.
    """
    clock = clock or SystemClock()
    steps = _wait.until_group_is_resolved(
        task_group_id, _schedule(clock, timeout, listener), on_progress or _ignore
    )
    if not isinstance(queue.iter_task_group(task_group_id), AsyncIterator):  # asks nothing before it is read
        reader = cast("GroupReader", queue)
        return _wait.drive(
            steps,
            lambda: [each.status for each in reader.iter_task_group(task_group_id)],
            cast("BlockingListener | None", listener),
            clock,
        )
    awaited = cast("AsyncGroupReader", queue)

    async def look() -> list[TaskStatus]:
        return [each.status async for each in awaited.iter_task_group(task_group_id)]

    return _wait.drive_async(steps, look, cast("Listener | None", listener), clock)


def _schedule(clock: Clock, timeout: float | None, listener: object) -> _wait.Wait:
    return _wait.Wait(clock, timeout, _wait.POLL if listener is None else _wait.POLL_WHILE_LISTENING)


def _ignore(_: object) -> None:
    """Nobody asked for progress."""
