"""Responses: frozen structs with the Queue's fields in snake_case, and times as aware datetimes.

Unknown fields are ignored, and an unknown value of an enumeration keeps its text. `task` is a plain dict
in the form of the Queue's schema. `to_dict` returns a response for `json.dumps`.
"""

from __future__ import annotations

from ._base import *
from ._base import prepare
from .artifacts import *
from .tasks import *
from .workers import *

__all__ = [
    "Artifact", "ArtifactContent", "ArtifactLocation", "ArtifactsPage", "Authentication",
    "CanceledTaskGroup", "ClaimWorkResponse", "ClaimedTask", "ClaimedTasksPage", "CountsOfTaskQueue",
    "CreateArtifactResponse", "CreateUploadResponse", "DependentTasksPage", "DownloadMethod",
    "IdentifiedStatus", "IdentifiedTask", "Model", "ObjectMetadata", "Page", "PendingTask", "PendingTasks",
    "PendingTasksPage", "Ping", "Priority", "Provisioner", "ProvisionersPage", "PutUrl", "QuarantineDetails",
    "ReasonCreated", "ReasonResolved", "Redirect", "Run", "RunReference", "RunState", "ScopeSet",
    "Stability", "StartDownloadResponse", "StatusesPage", "StorageType", "TaskAndStatus", "TaskClaim",
    "TaskGroup", "TaskGroupPage", "TaskGroupPriorityChange", "TaskQueue", "TaskQueueCounts",
    "TaskQueueCountsBatch", "TaskQueuesPage", "TaskReclaim", "TaskState", "TaskStatus", "TaskStatusResponse",
    "TasksPage", "UploadMethod", "Version", "Worker", "WorkerSummary", "WorkerType", "WorkerTypesPage",
    "WorkersPage",
]  # fmt: skip

prepare(*(each for each in list(vars().values()) if isinstance(each, type) and issubclass(each, Model)))
