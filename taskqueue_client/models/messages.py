"""The Queue's messages: one struct per exchange.

Messages of older Queues have no `task`, no `taskQueueId`, `projectId` and `priority` in the status, and no
`expires` if they are about a task group. They are read into the same structs.
"""

from __future__ import annotations

from datetime import datetime

from ._base import Model
from .artifacts import StorageType
from .tasks import Priority, TaskStatus

__all__ = [
    "ArtifactCreatedMessage", "CreatedArtifact", "PublishedTask", "RunMessage", "TaskCompletedMessage",
    "TaskDefinedMessage", "TaskExceptionMessage", "TaskFailedMessage", "TaskGroupChangedMessage",
    "TaskGroupMessage", "TaskGroupPriorityChangedMessage", "TaskGroupResolvedMessage",
    "TaskGroupSealedMessage", "TaskMessage", "TaskPendingMessage", "TaskPriorityChangedMessage",
    "TaskRunningMessage",
]  # fmt: skip


class PublishedTask(Model, frozen=True):
    """The part of the task's definition that a message has: its tags ({} if a group was canceled)."""

    tags: dict[str, str]


class CreatedArtifact(Model, frozen=True):
    """The artifact that a message is about; from older Queues, `storage_type` may be `blob`."""

    storage_type: StorageType
    name: str
    expires: datetime
    content_type: str


class TaskMessage(Model, frozen=True, kw_only=True):
    """Base class of messages about a task. `status` is the task's status when the message was sent."""

    status: TaskStatus
    task: PublishedTask | None = None
    version: int = 1


class RunMessage(TaskMessage, frozen=True, kw_only=True):
    """Base class of messages about a run that a worker has claimed."""

    run_id: int
    worker_group: str
    worker_id: str


class TaskDefinedMessage(TaskMessage, frozen=True, kw_only=True):
    """A task was created; its status is always `unscheduled`, without runs."""


class TaskPendingMessage(TaskMessage, frozen=True, kw_only=True):
    """A run became pending."""

    run_id: int


class TaskRunningMessage(RunMessage, frozen=True, kw_only=True):
    """A worker claimed a run. No message is sent for a reclaim."""

    taken_until: datetime


class ArtifactCreatedMessage(RunMessage, frozen=True, kw_only=True):
    """An artifact was created or, for `object`, its upload was finished. Never sent for `s3`."""

    artifact: CreatedArtifact


class TaskCompletedMessage(RunMessage, frozen=True, kw_only=True):
    """A worker reported a run completed."""


class TaskFailedMessage(RunMessage, frozen=True, kw_only=True):
    """A worker reported a run failed."""


class TaskExceptionMessage(TaskMessage, frozen=True, kw_only=True):
    """A run was resolved as an exception.

    The task itself is resolved only if `status.state` says so: the message is also sent when a retry
    follows. `worker_group` and `worker_id` are None if the run was never claimed or the deadline
    has passed. `run_id` is None only from older Queues.
    """

    run_id: int | None = None
    worker_group: str | None = None
    worker_id: str | None = None


class TaskPriorityChangedMessage(TaskMessage, frozen=True, kw_only=True):
    """A task's priority was changed; `status` is the status afterwards."""

    old_priority: Priority
    new_priority: Priority


class TaskGroupMessage(Model, frozen=True, kw_only=True):
    """Base class of messages about a task group."""

    task_group_id: str
    scheduler_id: str
    version: int = 1


class TaskGroupChangedMessage(TaskGroupMessage, frozen=True, kw_only=True):
    """Base class of messages about a task group that was resolved or sealed.

    Attributes:
        expires: When the group expires.
        sealed: When the group was sealed; None if it is not.
    """

    expires: datetime | None = None
    sealed: datetime | None = None


class TaskGroupResolvedMessage(TaskGroupChangedMessage, frozen=True, kw_only=True):
    """Every task of the group has been resolved at least once. Sent again at each later resolution."""


class TaskGroupSealedMessage(TaskGroupChangedMessage, frozen=True, kw_only=True):
    """The group takes no more tasks."""


class TaskGroupPriorityChangedMessage(TaskGroupMessage, frozen=True, kw_only=True):
    """The priority of a group's tasks was changed."""

    new_priority: Priority
    tasks_affected: int
