"""The status of a task and of its runs."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ._base import Model, OpenEnum


class TaskState(OpenEnum):
    """Where a task stands: the state of its last run, or `unscheduled` if it has none."""

    UNSCHEDULED = "unscheduled"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXCEPTION = "exception"


class RunState(OpenEnum):
    """Where a run stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXCEPTION = "exception"


class ReasonCreated(OpenEnum):
    """Why a run was made."""

    SCHEDULED = "scheduled"
    RETRY = "retry"
    TASK_RETRY = "task-retry"
    RERUN = "rerun"
    EXCEPTION = "exception"


class ReasonResolved(OpenEnum):
    """Why a run ended; `superseded` is not given any more."""

    COMPLETED = "completed"
    FAILED = "failed"
    DEADLINE_EXCEEDED = "deadline-exceeded"
    CANCELED = "canceled"
    CLAIM_EXPIRED = "claim-expired"
    WORKER_SHUTDOWN = "worker-shutdown"
    MALFORMED_PAYLOAD = "malformed-payload"
    RESOURCE_UNAVAILABLE = "resource-unavailable"
    INTERNAL_ERROR = "internal-error"
    INTERMITTENT_TASK = "intermittent-task"
    SUPERSEDED = "superseded"


class Priority(OpenEnum):
    """Which task of a task queue is handed out first; `lowest` unless the definition says otherwise."""

    HIGHEST = "highest"
    VERY_HIGH = "very-high"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    VERY_LOW = "very-low"
    LOWEST = "lowest"


class Run(Model, frozen=True, kw_only=True):
    """One attempt at a task.

    A run that was never claimed has no worker, and only a resolved one has `reason_resolved` and
    `resolved`. `taken_until` stays on a resolved run.
    """

    run_id: int
    state: RunState
    reason_created: ReasonCreated
    scheduled: datetime
    reason_resolved: ReasonResolved | None = None
    worker_group: str | None = None
    worker_id: str | None = None
    taken_until: datetime | None = None
    started: datetime | None = None
    resolved: datetime | None = None


class TaskStatus(Model, frozen=True, kw_only=True):
    """A task without its definition: its names, its state and its runs.

    Every run but the last is resolved. Messages about a cancelled group have no `priority`. Where an
    old Queue leaves out `task_queue_id`, it is put together from the pair.
    """

    task_id: str
    provisioner_id: str
    worker_type: str
    task_group_id: str
    deadline: datetime
    expires: datetime
    retries_left: int
    state: TaskState
    runs: list[Run]
    scheduler_id: str = "-"
    project_id: str = "none"
    task_queue_id: str = ""
    priority: Priority | None = None

    def __post_init__(self) -> None:
        if not self.task_queue_id:
            pair = f"{self.provisioner_id}/{self.worker_type}"
            msgspec.structs.force_setattr(self, "task_queue_id", pair)


class TaskStatusResponse(Model, frozen=True):
    """Where a task stands after the call."""

    status: TaskStatus
