"""What the Queue publishes: one struct per exchange.

Messages of older Queues lack `task` and, in the status, `taskQueueId`, `projectId` and `priority`;
their group messages lack `expires`. Both generations read into the same structs.
"""

from __future__ import annotations

from datetime import datetime

from ._base import Model
from .artifacts import StorageType
from .status import Priority, TaskStatus


class PublishedTask(Model, frozen=True):
    """All that a message tells of the task's definition: its tags (none about a cancelled group)."""

    tags: dict[str, str]


class CreatedArtifact(Model, frozen=True):
    """The artifact that a message is about; from older Queues, `storage_type` may be `blob`."""

    storage_type: StorageType
    name: str
    expires: datetime
    content_type: str


class TaskMessage(Model, frozen=True, kw_only=True):
    """About a task. `status` is the task as it was when the message was sent."""

    status: TaskStatus
    task: PublishedTask | None = None
    version: int = 1


class RunMessage(TaskMessage, frozen=True, kw_only=True):
    """About a run that a worker has, or had."""

    run_id: int
    worker_group: str
    worker_id: str


class TaskDefinedMessage(TaskMessage, frozen=True, kw_only=True):
    """A task was created; its status is always `unscheduled`, without runs."""


class TaskPendingMessage(TaskMessage, frozen=True, kw_only=True):
    """A run became pending."""

    run_id: int


class TaskRunningMessage(RunMessage, frozen=True, kw_only=True):
    """A worker claimed a run; a reclaim sends nothing."""

    taken_until: datetime


class ArtifactCreatedMessage(RunMessage, frozen=True, kw_only=True):
    """An artifact was created; of an `object`, its upload was finished. Never sent for `s3`."""

    artifact: CreatedArtifact


class TaskCompletedMessage(RunMessage, frozen=True, kw_only=True):
    """A worker reported a run completed."""


class TaskFailedMessage(RunMessage, frozen=True, kw_only=True):
    """A worker reported a run failed."""


class TaskExceptionMessage(TaskMessage, frozen=True, kw_only=True):
    """A run was resolved `exception`.

    The task itself is resolved only if `status.state` says so: the message is also sent when a retry
    follows. There is no worker if the run was never claimed, and none after the deadline. Only older
    Queues leave out `run_id`.
    """

    run_id: int | None = None
    worker_group: str | None = None
    worker_id: str | None = None


class TaskPriorityChangedMessage(TaskMessage, frozen=True, kw_only=True):
    """A task's priority was changed; `status` is the task afterwards."""

    old_priority: Priority
    new_priority: Priority


class TaskGroupMessage(Model, frozen=True, kw_only=True):
    """About a task group."""

    task_group_id: str
    scheduler_id: str
    version: int = 1


class TaskGroupChangedMessage(TaskGroupMessage, frozen=True, kw_only=True):
    """What is sent about a group when it is resolved or sealed.

    Attributes:
        expires: When the group is forgotten.
        sealed: When it was sealed, if it was.
    """

    expires: datetime | None = None
    sealed: datetime | None = None


class TaskGroupResolvedMessage(TaskGroupChangedMessage, frozen=True, kw_only=True):
    """No task of the group is left unresolved. Sent again when tasks are added and resolved."""


class TaskGroupSealedMessage(TaskGroupChangedMessage, frozen=True, kw_only=True):
    """The group takes no more tasks."""


class TaskGroupPriorityChangedMessage(TaskGroupMessage, frozen=True, kw_only=True):
    """The priority of a group's tasks was changed."""

    new_priority: Priority
    tasks_affected: int
