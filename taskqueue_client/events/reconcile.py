"""Reading what may have been missed, after a listener was cut off."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import cast, overload

from taskqueue_client.models.status import TaskStatus

from .clients import AsyncStatusReader, StatusReader
from .state import Gap


@overload
def reconcile_by_status(
    queue: StatusReader, task_ids: Callable[[], Iterable[str]], on_status: Callable[[TaskStatus], object]
) -> Callable[[Gap], None]: ...
@overload
def reconcile_by_status(
    queue: AsyncStatusReader, task_ids: Callable[[], Iterable[str]], on_status: Callable[[TaskStatus], object]
) -> Callable[[Gap], Awaitable[None]]: ...
def reconcile_by_status(
    queue: StatusReader | AsyncStatusReader,
    task_ids: Callable[[], Iterable[str]],
    on_status: Callable[[TaskStatus], object],
) -> Callable[[Gap], Awaitable[None] | None]:
    """A `reconcile` hook that reads the status of tasks, one after the other.

    Args:
        queue: The client to ask: an `AsyncQueue` for `Listener`, a `Queue` for `BlockingListener`.
        task_ids: Gives the tasks that matter, when it is called.
        on_status: Called with each task's status. Those that did not change are among them, and a
            message may still come for what they tell.
    """
    if not inspect.iscoroutinefunction(queue.status):
        reader = cast("StatusReader", queue)

        def read(_: Gap) -> None:
            for task_id in list(task_ids()):
                on_status(reader.status(task_id).status)

        return read
    awaited = cast("AsyncStatusReader", queue)

    async def read_awaited(_: Gap) -> None:
        for task_id in list(task_ids()):
            on_status((await awaited.status(task_id)).status)

    return read_awaited
