"""Workers: claim tasks, run them, upload their artifacts, and report the results.

Subclass `WorkerLoop` and write `run_task`. The exceptions of `outcomes` that it raises say how a run ends.
"""

from __future__ import annotations

from taskqueue_client.worker.claims.claiming import SourceContext, TaskSource, TaskSourceFactory
from taskqueue_client.worker.commands.command import (
    Command,
    CommandFailed,
    CommandNotStarted,
    CommandOptions,
    CommandOutputTooLarge,
    CommandResult,
    CommandTimedOut,
)
from taskqueue_client.worker.features.upstream import DownloadOptions, UpstreamArtifact, UpstreamOptions
from taskqueue_client.worker.run.declared_artifacts import ArtifactOptions
from taskqueue_client.worker.run.lifecycle import TaskEnd

from .config import WorkerConfig, WorkerIdentity
from .config_sources import load_config
from .loop import WorkerArguments, WorkerLoop, WorkerSettings
from .outcomes import (
    Canceled,
    ClaimLost,
    IntermittentTask,
    InternalError,
    LossReason,
    MalformedPayload,
    Outcome,
    ResourceUnavailable,
    TaskFailed,
    WorkerShutdown,
    outcome_for,
)
from .run.task_run import TaskRun
from .worker_runner import RunnerLog, WorkerRunner

__all__ = [
    "ArtifactOptions", "Canceled", "ClaimLost", "Command", "CommandFailed", "CommandNotStarted",
    "CommandOptions", "CommandOutputTooLarge", "CommandResult", "CommandTimedOut", "DownloadOptions",
    "IntermittentTask", "InternalError", "LossReason", "MalformedPayload", "Outcome",
    "ResourceUnavailable", "RunnerLog", "SourceContext", "TaskEnd", "TaskFailed", "TaskRun", "TaskSource",
    "TaskSourceFactory", "UpstreamArtifact", "UpstreamOptions", "WorkerArguments", "WorkerConfig",
    "WorkerIdentity", "WorkerLoop", "WorkerRunner", "WorkerSettings", "WorkerShutdown", "load_config",
    "outcome_for",
]  # fmt: skip
