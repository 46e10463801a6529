"""Pages of lists. A page without a `continuation_token` is the last one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ._base import Model
from .artifacts import Artifact
from .status import TaskStatus
from .workers import Provisioner, TaskQueue, WorkerSummary, WorkerType


class Page(Model, frozen=True, kw_only=True):
    """What all pages have; the token is opaque."""

    continuation_token: str | None = None


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
    """A task group, and tasks of it in the order of their ids."""

    task_group_id: str
    tasks: list[TaskAndStatus]
    scheduler_id: str | None = None
    expires: datetime | None = None
    sealed: datetime | None = None


class DependentTasksPage(Page, frozen=True, kw_only=True):
    """Tasks that depend on the task `task_id`, in the order of their ids."""

    task_id: str
    tasks: list[TaskAndStatus]


class ArtifactsPage(Page, frozen=True, kw_only=True):
    """Artifacts in the order of their names, uploaded completely or not."""

    artifacts: list[Artifact]


class PendingTask(Model, frozen=True, kw_only=True):
    """A run that waits for a worker since `inserted`."""

    task_id: str
    run_id: int
    task: dict[str, Any]
    inserted: datetime


class PendingTasksPage(Page, frozen=True, kw_only=True):
    """Runs that wait, in the order in which they were inserted (not by priority)."""

    tasks: list[PendingTask]


class ClaimedTask(Model, frozen=True, kw_only=True):
    """A run that a worker holds; `claimed` is when it last claimed or reclaimed it."""

    task_id: str
    run_id: int
    worker_group: str
    worker_id: str
    claimed: datetime
    task: dict[str, Any]


class ClaimedTasksPage(Page, frozen=True, kw_only=True):
    """Runs that workers hold, in the order of `claimed`."""

    tasks: list[ClaimedTask]


class ProvisionersPage(Page, frozen=True, kw_only=True):
    """Provisioners. The Queue never gives a token here, so what is beyond the limit stays unseen."""

    provisioners: list[Provisioner]


class WorkerTypesPage(Page, frozen=True, kw_only=True):
    """Task queues of one provisioner, by their old names."""

    worker_types: list[WorkerType]


class TaskQueuesPage(Page, frozen=True, kw_only=True):
    """Task queues."""

    task_queues: list[TaskQueue]


class WorkersPage(Page, frozen=True, kw_only=True):
    """Workers. The Queue filters after it has read a page: one may be short, or empty, and not the last."""

    workers: list[WorkerSummary]
