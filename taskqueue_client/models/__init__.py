"""What the Queue answers: frozen structs in snake_case, with times as aware datetimes.

Fields that this version does not know are ignored, and an enumeration's unknown value reads as
itself. `task` is the plain dict of the Queue's own schema.
"""

from __future__ import annotations

from .artifacts import Artifact, ArtifactContent, ArtifactLocation, CreateArtifactResponse, StorageType
from .auth import Authentication, ScopeSet
from .claims import ClaimWorkResponse, TaskClaim, TaskReclaim
from .credentials import Credentials
from .groups import CancelledTaskGroup, TaskGroup, TaskGroupPriorityChange
from .monitoring import Ping, Version
from .objects import (
    CreateUploadResponse,
    DownloadMethod,
    ObjectMetadata,
    PutUrl,
    Redirect,
    StartDownloadResponse,
    UploadMethod,
)
from .pages import (
    ArtifactsPage,
    ClaimedTask,
    ClaimedTasksPage,
    DependentTasksPage,
    IdentifiedStatus,
    IdentifiedTask,
    Page,
    PendingTask,
    PendingTasksPage,
    ProvisionersPage,
    StatusesPage,
    TaskAndStatus,
    TaskGroupPage,
    TaskQueuesPage,
    TasksPage,
    WorkersPage,
    WorkerTypesPage,
)
from .status import (
    Priority,
    ReasonCreated,
    ReasonResolved,
    Run,
    RunState,
    TaskState,
    TaskStatus,
    TaskStatusResponse,
)
from .workers import (
    PendingTasks,
    Provisioner,
    QuarantineDetails,
    RunReference,
    Stability,
    TaskQueue,
    TaskQueueCounts,
    Worker,
    WorkerSummary,
    WorkerType,
)

__all__ = [
    "Artifact",
    "ArtifactContent",
    "ArtifactLocation",
    "ArtifactsPage",
    "Authentication",
    "CancelledTaskGroup",
    "ClaimWorkResponse",
    "ClaimedTask",
    "ClaimedTasksPage",
    "CreateArtifactResponse",
    "CreateUploadResponse",
    "Credentials",
    "DependentTasksPage",
    "DownloadMethod",
    "IdentifiedStatus",
    "IdentifiedTask",
    "ObjectMetadata",
    "Page",
    "PendingTask",
    "PendingTasks",
    "PendingTasksPage",
    "Ping",
    "Priority",
    "Provisioner",
    "ProvisionersPage",
    "PutUrl",
    "QuarantineDetails",
    "ReasonCreated",
    "ReasonResolved",
    "Redirect",
    "Run",
    "RunReference",
    "RunState",
    "ScopeSet",
    "Stability",
    "StartDownloadResponse",
    "StatusesPage",
    "StorageType",
    "TaskAndStatus",
    "TaskClaim",
    "TaskGroup",
    "TaskGroupPage",
    "TaskGroupPriorityChange",
    "TaskQueue",
    "TaskQueueCounts",
    "TaskQueuesPage",
    "TaskReclaim",
    "TaskState",
    "TaskStatus",
    "TaskStatusResponse",
    "TasksPage",
    "UploadMethod",
    "Version",
    "Worker",
    "WorkerSummary",
    "WorkerType",
    "WorkerTypesPage",
    "WorkersPage",
]
