"""What this package needs of a client: either kind, or anything that answers alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Protocol

from taskqueue_client.models.status import TaskStatus, TaskStatusResponse


class HasStatus(Protocol):
    """What a group's listing has for each task."""

    @property
    def status(self) -> TaskStatus:
        """The task's status."""
        ...


class StatusReader(Protocol):
    """Reads a task's status, blocking, as `Queue` does."""

    def status(self, task_id: str, /) -> TaskStatusResponse:
        """Read a task's status."""
        ...


class AsyncStatusReader(Protocol):
    """Reads a task's status, awaited, as `AsyncQueue` does. `status` has to be an `async def`."""

    def status(self, task_id: str, /) -> Awaitable[TaskStatusResponse]:
        """Read a task's status."""
        ...


class GroupReader(Protocol):
    """Lists a task group, blocking, as `Queue` does."""

    def iter_task_group(self, task_group_id: str, /) -> Iterator[HasStatus]:
        """List the tasks of a group."""
        ...


class AsyncGroupReader(Protocol):
    """Lists a task group, awaited, as `AsyncQueue` does."""

    def iter_task_group(self, task_group_id: str, /) -> AsyncIterator[HasStatus]:
        """List the tasks of a group."""
        ...
