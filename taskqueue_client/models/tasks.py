"""Tasks, their runs, claims and groups. A page without a `continuation_token` is the last one."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from taskqueue_client import _arguments as arguments

from ._base import Credentials, Model, OpenEnum, Page, decoded


class TaskState(OpenEnum):
    """The state of a task: that of its last run, or `unscheduled` if it has no run."""

    UNSCHEDULED = "unscheduled"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXCEPTION = "exception"


RESOLVED = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.EXCEPTION})
"""The states of resolved tasks."""


class RunState(OpenEnum):
    """The state of a run."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXCEPTION = "exception"


class ReasonCreated(OpenEnum):
    """Why a run was created."""

    SCHEDULED = "scheduled"
    RETRY = "retry"
    TASK_RETRY = "task-retry"
    RERUN = "rerun"
    EXCEPTION = "exception"


class ReasonResolved(OpenEnum):
    """Why a run was resolved; `superseded` is no longer used."""

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
    """The priority of a task in its task queue; default: `lowest`."""

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
    """A task without its definition: its ids, its state and its runs.

    Every run except the last is resolved. Messages about a canceled group have no `priority`. If an
    old Queue omits `task_queue_id`, it is made from provisioner and worker type.
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
            msgspec.structs.force_setattr(self, "task_queue_id", f"{self.provisioner_id}/{self.worker_type}")


class TaskStatusResponse(Model, frozen=True):
    """The status of a task after the call."""

    status: TaskStatus


class TaskClaim(Model, frozen=True, kw_only=True, dict=True, gc=True):
    """A claimed run: the task, the end of the claim, and the credentials of the run.

    `task_json` is the task definition as JSON text. If it is nested deeper than Python can parse (1,000
    levels before Python 3.12, 10,000 or more since), the parts more than 500 levels deep in the response are
    replaced by the text `CUT_OFF`.

    The credentials are temporary; `expiry` in their certificate is in milliseconds since the epoch.
    """

    status: TaskStatus
    run_id: int
    worker_group: str
    worker_id: str
    taken_until: datetime
    task_json: msgspec.Raw = msgspec.field(name="task")
    credentials: Credentials

    def __post_init__(self) -> None:
        # Workers make paths of both; msgspec adds where the response has the wrong one.
        arguments.slugid("task_id", self.status.task_id)
        arguments.number("run_id", self.run_id)
        # A view of the response would keep all of its claims, up to 32, in memory while one of them is used.
        msgspec.structs.force_setattr(self, "task_json", self.task_json.copy())

    @cached_property
    def task(self) -> dict[str, Any]:
        """The task definition, a plain dict as in the Queue's schema; decoded on first use."""
        definition: dict[str, Any] = decoded(self.task_json)
        return definition


class ClaimWorkResponse(Model, frozen=True):
    """The claimed runs; none if no task became pending during the long poll."""

    tasks: list[TaskClaim]


class TaskReclaim(Model, frozen=True, kw_only=True):
    """An extended claim, with new credentials; the old credentials are valid until they expire."""

    status: TaskStatus
    run_id: int
    worker_group: str
    worker_id: str
    taken_until: datetime
    credentials: Credentials


class TaskGroup(Model, frozen=True, kw_only=True):
    """A task group; `sealed` is when it was sealed, None if it is not."""

    task_group_id: str
    scheduler_id: str
    expires: datetime
    sealed: datetime | None = None


class CanceledTaskGroup(Model, frozen=True, kw_only=True):
    """The result of canceling a task group: the ids of the tasks canceled by this call."""

    task_group_id: str
    task_group_size: int
    cancelled_count: int
    task_ids: list[str]


class TaskGroupPriorityChange(Model, frozen=True, kw_only=True):
    """The result of changing a task group's priority: the ids of the tasks that were changed."""

    task_group_id: str
    scheduler_id: str
    new_priority: Priority
    tasks_affected: int
    task_ids: list[str]


class IdentifiedTask(Model, frozen=True, kw_only=True):
    """A task's definition, with its id."""

    task_id: str
    task: dict[str, Any]


class TasksPage(Page, frozen=True, kw_only=True):
    """Definitions, in no defined order; unknown task ids are left out."""

    tasks: list[IdentifiedTask]


class IdentifiedStatus(Model, frozen=True, kw_only=True):
    """A task's status, with its id."""

    task_id: str
    status: TaskStatus


class StatusesPage(Page, frozen=True, kw_only=True):
    """Statuses, in no defined order; unknown task ids are left out."""

    statuses: list[IdentifiedStatus]


class TaskAndStatus(Model, frozen=True, kw_only=True):
    """A task's definition and status."""

    task: dict[str, Any]
    status: TaskStatus


class TaskGroupPage(Page, frozen=True, kw_only=True):
    """A task group, and some of its tasks in the order of their ids."""

    task_group_id: str
    tasks: list[TaskAndStatus]
    scheduler_id: str | None = None
    expires: datetime | None = None
    sealed: datetime | None = None


class DependentTasksPage(Page, frozen=True, kw_only=True):
    """Tasks that depend on the task `task_id`, in the order of their ids."""

    task_id: str
    tasks: list[TaskAndStatus]


class PendingTask(Model, frozen=True, kw_only=True):
    """A pending run; `inserted` is when it became pending."""

    task_id: str
    run_id: int
    task: dict[str, Any]
    inserted: datetime


class PendingTasksPage(Page, frozen=True, kw_only=True):
    """Pending runs, in the order of `inserted` (not by priority)."""

    tasks: list[PendingTask]


class ClaimedTask(Model, frozen=True, kw_only=True):
    """A claimed run; `claimed` is when it was last claimed or reclaimed."""

    task_id: str
    run_id: int
    worker_group: str
    worker_id: str
    claimed: datetime
    task: dict[str, Any]


class ClaimedTasksPage(Page, frozen=True, kw_only=True):
    """Claimed runs, in the order of `claimed`."""

    tasks: list[ClaimedTask]
