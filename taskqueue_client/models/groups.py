"""Task groups."""

from __future__ import annotations

from datetime import datetime

from ._base import Model
from .status import Priority


class TaskGroup(Model, frozen=True, kw_only=True):
    """A task group; `sealed` is when it was closed to new tasks, if it was."""

    task_group_id: str
    scheduler_id: str
    expires: datetime
    sealed: datetime | None = None


class CancelledTaskGroup(Model, frozen=True, kw_only=True):
    """What cancelling a group did: `task_ids` are those cancelled now, of `task_group_size` in all."""

    task_group_id: str
    task_group_size: int
    cancelled_count: int
    task_ids: list[str]


class TaskGroupPriorityChange(Model, frozen=True, kw_only=True):
    """What changing a group's priority did: `task_ids` are those whose priority is another one now."""

    task_group_id: str
    scheduler_id: str
    new_priority: Priority
    tasks_affected: int
    task_ids: list[str]
