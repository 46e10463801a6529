"""The engine: the queue's endpoints, its background work, and nothing of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskqueue_client.local.engine import times
from taskqueue_client.local.engine.artifact_reads import ArtifactReads
from taskqueue_client.local.engine.artifact_uploads import ArtifactUploads
from taskqueue_client.local.engine.claims import Claims
from taskqueue_client.local.engine.core import Core, IssueCredentials, Settings
from taskqueue_client.local.engine.creation import Creation
from taskqueue_client.local.engine.expirers import Expirers
from taskqueue_client.local.engine.groups import Groups
from taskqueue_client.local.engine.priorities import Priorities
from taskqueue_client.local.engine.queries import Queries
from taskqueue_client.local.engine.queue_lists import QueueLists
from taskqueue_client.local.engine.reports import Reports
from taskqueue_client.local.engine.resolvers import Resolvers
from taskqueue_client.local.engine.scheduling import Scheduling
from taskqueue_client.local.engine.task_queues import TaskQueues
from taskqueue_client.local.engine.waiting import Lines
from taskqueue_client.local.engine.workers import Workers

if TYPE_CHECKING:
    from taskqueue_client.clock import Clock
    from taskqueue_client.local.audience import Audience
    from taskqueue_client.local.engine.store import Store
    from taskqueue_client.local.storage import Storage


class Engine:
    """The state machine of a Queue; to be used from one thread.

    It has one method for each endpoint of the Queue, named like it in snake_case. Arguments are, in this
    order: the caller, where the scopes are checked within the endpoint (and for `quarantine_worker`,
    which writes down who did it); URL parameters; the request's body, valid under its schema and with
    its defaults; `continuation_token` and `limit`. They return the answer's body and raise `Refusal`.
    Only `claim_work` waits.

    Args:
        store: The state; the storage may keep its own tables in the same database.
        clock: What time it is, and how to wait.
        settings: How the queue is configured.
        storage: Where artifacts' data is.
        issue_credentials: Makes temporary credentials in the queue's name.
        audience: Gets each message, after its transition was committed and in order.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        settings: Settings,
        storage: Storage,
        issue_credentials: IssueCredentials,
        audience: Audience,
    ) -> None:
        core = Core(store, clock, settings, storage, issue_credentials, audience)
        self._resolvers = Resolvers(core)
        self._expirers = Expirers(core)
        core.on_resolved = self._resolvers.resolve_at_once
        self.worker_removed = self._resolvers.worker_removed
        self._bind_tasks(core)
        self._bind_groups(core)
        self._bind_workers(core)
        self._bind_reports(core)
        self._bind_reads(core)

    def _bind_tasks(self, core: Core) -> None:
        queries = Queries(core)
        self.task = queries.task
        self.tasks = queries.tasks
        self.status = queries.status
        self.statuses = queries.statuses
        self.list_dependent_tasks = queries.list_dependent_tasks
        self.create_task = Creation(core).create_task
        scheduling = Scheduling(core)
        self.schedule_task = scheduling.schedule_task
        self.rerun_task = scheduling.rerun_task
        self.cancel_task = scheduling.cancel_task

    def _bind_groups(self, core: Core) -> None:
        groups = Groups(core)
        self.list_task_group = groups.list_task_group
        self.get_task_group = groups.get_task_group
        self.seal_task_group = groups.seal_task_group
        self.cancel_task_group = groups.cancel_task_group
        priorities = Priorities(core, groups)
        self.change_task_priority = priorities.change_task_priority
        self.change_task_group_priority = priorities.change_task_group_priority

    def _bind_workers(self, core: Core) -> None:
        task_queues = self._bind_task_queues(core)
        workers = Workers(core, task_queues)
        self.list_workers = workers.list_workers
        self.get_worker = workers.get_worker
        self.quarantine_worker = workers.quarantine_worker
        self.declare_worker = workers.declare_worker
        lines = Lines(core.clock)
        core.on_pending = lines.wake
        claims = Claims(core, workers, lines)
        self.claim_work = claims.claim_work
        self.claim_task = claims.claim_task
        self.reclaim_task = claims.reclaim_task

    def _bind_task_queues(self, core: Core) -> TaskQueues:
        task_queues = TaskQueues(core)
        self.list_task_queues = task_queues.list_task_queues
        self.get_task_queue = task_queues.get_task_queue
        self.list_provisioners = task_queues.list_provisioners
        self.get_provisioner = task_queues.get_provisioner
        self.list_worker_types = task_queues.list_worker_types
        self.get_worker_type = task_queues.get_worker_type
        lists = QueueLists(core)
        self.pending_tasks = lists.pending_tasks
        self.task_queue_counts = lists.task_queue_counts
        self.list_pending_tasks = lists.list_pending_tasks
        self.list_claimed_tasks = lists.list_claimed_tasks
        return task_queues

    def _bind_reports(self, core: Core) -> None:
        reports = Reports(core)
        self.report_completed = reports.report_completed
        self.report_failed = reports.report_failed
        self.report_exception = reports.report_exception
        uploads = ArtifactUploads(core)
        self.create_artifact = uploads.create_artifact
        self.finish_artifact = uploads.finish_artifact

    def _bind_reads(self, core: Core) -> None:
        reads = ArtifactReads(core)
        self.get_artifact = reads.get_artifact
        self.get_latest_artifact = reads.get_latest_artifact
        self.artifact = reads.artifact
        self.latest_artifact = reads.latest_artifact
        self.artifact_info = reads.artifact_info
        self.latest_artifact_info = reads.latest_artifact_info
        self.list_artifacts = reads.list_artifacts
        self.list_latest_artifacts = reads.list_latest_artifacts

    def run_due(self) -> int:
        """Do all background work whose time has come: claims, deadlines, dependencies, nightly jobs.

        Returns:
            How many pieces of work there were.
        """
        return self._resolvers.run_due() + self._expirers.run_due()

    def next_due(self) -> float:
        """When `run_due` has something to do next, in seconds since the epoch."""
        night = self._expirers.next_run
        moment = self._resolvers.next_due()
        return (night if moment is None else min(night, moment)) / times.SECOND

    def run_expirers(self) -> None:
        """Run the nightly jobs now."""
        self._expirers.run()
