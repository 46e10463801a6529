"""Task queues, the workers that serve them, and pages of both."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ._base import Model, OpenEnum, Page


class Stability(OpenEnum):
    """The stability of a task queue as its owner describes it; today always `experimental`."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class Provisioner(Model, frozen=True, kw_only=True):
    """A provisioner: the first part of the ids of its task queues."""

    provisioner_id: str
    description: str
    stability: Stability
    expires: datetime
    last_date_active: datetime


class TaskQueue(Model, frozen=True, kw_only=True):
    """A task queue that workers have claimed from lately."""

    task_queue_id: str
    description: str
    stability: Stability
    expires: datetime
    last_date_active: datetime


class WorkerType(Model, frozen=True, kw_only=True):
    """A task queue by its old name, the pair of provisioner and worker type."""

    provisioner_id: str
    worker_type: str
    description: str
    stability: Stability
    expires: datetime
    last_date_active: datetime
    task_queue_id: str = ""


class PendingTasks(Model, frozen=True, kw_only=True):
    """The number of pending tasks of a task queue."""

    provisioner_id: str
    worker_type: str
    pending_tasks: int
    task_queue_id: str = ""


class TaskQueueCounts(Model, frozen=True, kw_only=True):
    """The numbers of pending and of claimed tasks of a task queue.

    A run that was reported as an exception and retried counts as claimed until its `taken_until`.
    """

    provisioner_id: str
    worker_type: str
    task_queue_id: str
    pending_tasks: int
    claimed_tasks: int


class CountsOfTaskQueue(Model, frozen=True, kw_only=True):
    """The numbers of pending and of claimed tasks of one of several task queues; see `TaskQueueCounts`."""

    task_queue_id: str
    pending_tasks: int
    claimed_tasks: int


class TaskQueueCountsBatch(Model, frozen=True, kw_only=True):
    """The numbers of pending and of claimed tasks of several task queues."""

    task_queue_counts: list[CountsOfTaskQueue]


class RunReference(Model, frozen=True, kw_only=True):
    """The ids of a run."""

    task_id: str
    run_id: int


class QuarantineDetails(Model, frozen=True, kw_only=True):
    """One entry in the history of a worker's quarantines."""

    client_id: str
    updated_at: datetime
    quarantine_until: datetime
    quarantine_info: str


class Worker(Model, frozen=True, kw_only=True):
    """A worker. It is given no tasks until `quarantine_until`, which is in the past for most workers."""

    provisioner_id: str
    worker_type: str
    worker_group: str
    worker_id: str
    recent_tasks: list[RunReference]
    expires: datetime
    first_claim: datetime
    task_queue_id: str = ""
    last_date_active: datetime | None = None
    quarantine_until: datetime | None = None
    quarantine_details: list[QuarantineDetails] = msgspec.field(default_factory=list[QuarantineDetails])


class WorkerSummary(Model, frozen=True, kw_only=True):
    """A worker in a list; `quarantine_until` is None unless the worker is quarantined."""

    worker_group: str
    worker_id: str
    first_claim: datetime
    last_date_active: datetime | None = None
    latest_task: RunReference | None = None
    quarantine_until: datetime | None = None


class ProvisionersPage(Page, frozen=True, kw_only=True):
    """Provisioners, up to the limit: the Queue never returns a continuation token here."""

    provisioners: list[Provisioner]


class WorkerTypesPage(Page, frozen=True, kw_only=True):
    """Task queues of one provisioner, by their old names."""

    worker_types: list[WorkerType]


class TaskQueuesPage(Page, frozen=True, kw_only=True):
    """Task queues."""

    task_queues: list[TaskQueue]


class WorkersPage(Page, frozen=True, kw_only=True):
    """Workers. The Queue filters each page after reading it: a page that is not the last may be empty."""

    workers: list[WorkerSummary]
