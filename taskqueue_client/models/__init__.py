"""Responses: frozen structs with the Queue's fields in snake_case, and times as aware datetimes.

Unknown fields are ignored, and an unknown value of an enumeration reads as itself. `task` is a plain dict
in the form of the Queue's schema. `to_dict` returns a response for `json.dumps`.
"""

from __future__ import annotations

from ._base import Authentication, Model, Page, Ping, ScopeSet, Version, prepare
from .artifacts import (
    Artifact,
    ArtifactContent,
    ArtifactLocation,
    ArtifactsPage,
    CreateArtifactResponse,
    CreateUploadResponse,
    DownloadMethod,
    ObjectMetadata,
    PutUrl,
    Redirect,
    StartDownloadResponse,
    StorageType,
    UploadMethod,
)
from .tasks import (
    CanceledTaskGroup,
    ClaimedTask,
    ClaimedTasksPage,
    ClaimWorkResponse,
    DependentTasksPage,
    IdentifiedStatus,
    IdentifiedTask,
    PendingTask,
    PendingTasksPage,
    Priority,
    ReasonCreated,
    ReasonResolved,
    Run,
    RunState,
    StatusesPage,
    TaskAndStatus,
    TaskClaim,
    TaskGroup,
    TaskGroupPage,
    TaskGroupPriorityChange,
    TaskReclaim,
    TasksPage,
    TaskState,
    TaskStatus,
    TaskStatusResponse,
)
from .workers import (
    PendingTasks,
    Provisioner,
    ProvisionersPage,
    QuarantineDetails,
    RunReference,
    Stability,
    TaskQueue,
    TaskQueueCounts,
    TaskQueuesPage,
    Worker,
    WorkersPage,
    WorkerSummary,
    WorkerType,
    WorkerTypesPage,
)

__all__ = [
    "Artifact", "ArtifactContent", "ArtifactLocation", "ArtifactsPage", "Authentication",
    "CanceledTaskGroup", "ClaimWorkResponse", "ClaimedTask", "ClaimedTasksPage", "CreateArtifactResponse",
    "CreateUploadResponse", "DependentTasksPage", "DownloadMethod", "IdentifiedStatus", "IdentifiedTask",
    "Model", "ObjectMetadata", "Page", "PendingTask", "PendingTasks", "PendingTasksPage", "Ping",
    "Priority", "Provisioner", "ProvisionersPage", "PutUrl", "QuarantineDetails", "ReasonCreated",
    "ReasonResolved", "Redirect", "Run", "RunReference", "RunState", "ScopeSet", "Stability",
    "StartDownloadResponse", "StatusesPage", "StorageType", "TaskAndStatus", "TaskClaim", "TaskGroup",
    "TaskGroupPage", "TaskGroupPriorityChange", "TaskQueue", "TaskQueueCounts", "TaskQueuesPage",
    "TaskReclaim", "TaskState", "TaskStatus", "TaskStatusResponse", "TasksPage", "UploadMethod",
    "Version", "Worker", "WorkerSummary", "WorkerType", "WorkerTypesPage", "WorkersPage",
]  # fmt: skip

prepare(*(each for each in list(vars().values()) if isinstance(each, type) and issubclass(each, Model)))
