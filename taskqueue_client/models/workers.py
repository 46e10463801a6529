"""Task queues, and the workers that serve them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ._base import Model, OpenEnum


class Stability(OpenEnum):
    """How much a task queue can be relied on, in its owner's words; `experimental` today."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class Provisioner(Model, frozen=True, kw_only=True):
    """What all task queues whose id begins with `provisioner_id` have in common."""

    provisioner_id: str
    description: str
    stability: Stability
    expires: datetime
    last_date_active: datetime


class TaskQueue(Model, frozen=True, kw_only=True):
    """A task queue that workers have asked for work lately."""

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
    """How many tasks of a queue wait for a worker."""

    provisioner_id: str
    worker_type: str
    pending_tasks: int
    task_queue_id: str = ""


class TaskQueueCounts(Model, frozen=True, kw_only=True):
    """How many tasks of a queue wait for a worker, and how many are claimed.

    A run that was reported as an exception and retried counts as claimed until its `taken_until`.
    """

    provisioner_id: str
    worker_type: str
    task_queue_id: str
    pending_tasks: int
    claimed_tasks: int


class RunReference(Model, frozen=True, kw_only=True):
    """Names a run."""

    task_id: str
    run_id: int


class QuarantineDetails(Model, frozen=True, kw_only=True):
    """One entry in the history of a worker's quarantines."""

    client_id: str
    updated_at: datetime
    quarantine_until: datetime
    quarantine_info: str


class Worker(Model, frozen=True, kw_only=True):
    """A worker. It gets no work until `quarantine_until`, which lies in the past for most workers."""

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
    """A worker in a list; `quarantine_until` is given only while the quarantine lasts."""

    worker_group: str
    worker_id: str
    first_claim: datetime
    last_date_active: datetime | None = None
    latest_task: RunReference | None = None
    quarantine_until: datetime | None = None
