"""Every endpoint of the Queue, and of the object and auth services what a worker needs of them.

Each is a function from its arguments to a `Call`, without I/O; the clients make methods of them. They
stand in the order of the Queue's reference, in one file for each of its categories. Arguments that the
Queue would refuse raise `InvalidArgument`.
"""

from __future__ import annotations

from ._artifacts import artifact as artifact
from ._artifacts import artifact_info as artifact_info
from ._artifacts import create_artifact as create_artifact
from ._artifacts import finish_artifact as finish_artifact
from ._artifacts import get_artifact as get_artifact
from ._artifacts import get_latest_artifact as get_latest_artifact
from ._artifacts import iter_artifacts as iter_artifacts
from ._artifacts import iter_latest_artifacts as iter_latest_artifacts
from ._artifacts import latest_artifact as latest_artifact
from ._artifacts import latest_artifact_info as latest_artifact_info
from ._artifacts import list_artifacts as list_artifacts
from ._artifacts import list_latest_artifacts as list_latest_artifacts
from ._auth import current_scopes as current_scopes
from ._auth import test_authenticate as test_authenticate
from ._auth import test_authenticate_get as test_authenticate_get
from ._groups import cancel_task_group as cancel_task_group
from ._groups import change_task_group_priority as change_task_group_priority
from ._groups import get_task_group as get_task_group
from ._groups import iter_task_group as iter_task_group
from ._groups import list_task_group as list_task_group
from ._groups import seal_task_group as seal_task_group
from ._monitoring import heartbeat as heartbeat
from ._monitoring import lbheartbeat as lbheartbeat
from ._monitoring import ping as ping
from ._monitoring import version as version
from ._objects import create_upload as create_upload
from ._objects import download_object as download_object
from ._objects import finish_upload as finish_upload
from ._objects import object_metadata as object_metadata
from ._objects import start_download as start_download
from ._tasks import cancel_task as cancel_task
from ._tasks import change_task_priority as change_task_priority
from ._tasks import create_task as create_task
from ._tasks import iter_dependent_tasks as iter_dependent_tasks
from ._tasks import iter_statuses as iter_statuses
from ._tasks import iter_tasks as iter_tasks
from ._tasks import list_dependent_tasks as list_dependent_tasks
from ._tasks import rerun_task as rerun_task
from ._tasks import schedule_task as schedule_task
from ._tasks import status as status
from ._tasks import statuses as statuses
from ._tasks import task as task
from ._tasks import tasks as tasks
from ._work import claim_task as claim_task
from ._work import claim_work as claim_work
from ._work import reclaim_task as reclaim_task
from ._work import report_completed as report_completed
from ._work import report_exception as report_exception
from ._work import report_failed as report_failed
from ._workers import declare_worker as declare_worker
from ._workers import get_provisioner as get_provisioner
from ._workers import get_task_queue as get_task_queue
from ._workers import get_worker as get_worker
from ._workers import get_worker_type as get_worker_type
from ._workers import iter_claimed_tasks as iter_claimed_tasks
from ._workers import iter_pending_tasks as iter_pending_tasks
from ._workers import iter_provisioners as iter_provisioners
from ._workers import iter_task_queues as iter_task_queues
from ._workers import iter_worker_types as iter_worker_types
from ._workers import iter_workers as iter_workers
from ._workers import list_claimed_tasks as list_claimed_tasks
from ._workers import list_pending_tasks as list_pending_tasks
from ._workers import list_provisioners as list_provisioners
from ._workers import list_task_queues as list_task_queues
from ._workers import list_worker_types as list_worker_types
from ._workers import list_workers as list_workers
from ._workers import pending_tasks as pending_tasks
from ._workers import quarantine_worker as quarantine_worker
from ._workers import task_queue_counts as task_queue_counts
