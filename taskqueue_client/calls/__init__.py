"""The endpoints of the Queue, and those of the object and auth services that workers need, as functions.

Each function returns a `Call` and does no I/O; the clients have a method for each. An argument that the
Queue would refuse raises `InvalidArgument`.
"""

from __future__ import annotations

from taskqueue_client._protocol.conversation import Call

from ._artifacts import *
from ._tasks import *
from ._workers import *

__all__ = [
    "Call", "artifact", "artifact_info", "cancel_task", "cancel_task_group", "change_task_group_priority",
    "change_task_priority", "claim_task", "claim_work", "create_artifact", "create_task", "create_upload",
    "current_scopes", "declare_worker", "download_object", "finish_artifact", "finish_upload",
    "get_artifact", "get_latest_artifact", "get_provisioner", "get_task_group", "get_task_queue",
    "get_worker", "get_worker_type", "heartbeat", "iter_artifacts", "iter_claimed_tasks",
    "iter_dependent_tasks", "iter_latest_artifacts", "iter_pending_tasks", "iter_provisioners",
    "iter_statuses", "iter_task_group", "iter_task_queues", "iter_tasks", "iter_worker_types",
    "iter_workers", "latest_artifact", "latest_artifact_info", "lbheartbeat", "list_artifacts",
    "list_claimed_tasks", "list_dependent_tasks", "list_latest_artifacts", "list_pending_tasks",
    "list_provisioners", "list_task_group", "list_task_queues", "list_worker_types", "list_workers",
    "object_metadata", "pending_tasks", "ping", "quarantine_worker", "reclaim_task", "report_completed",
    "report_exception", "report_failed", "rerun_task", "schedule_task", "seal_task_group", "start_download",
    "status", "statuses", "task", "task_queue_counts", "task_queue_counts_batch", "tasks",
    "test_authenticate", "test_authenticate_get", "version",
]  # fmt: skip
