"""How a run ends, as exceptions that its handler raises, and what the Queue is told in each case.

Outcome (TaskQueueError)
├── TaskFailed             the task's own doing: a test or a build failed
├── MalformedPayload       no other run of this task could do better: whoever wrote it must correct it
├── ResourceUnavailable    something that the task needs is missing for now
├── IntermittentTask       the task itself asks to be tried again
├── InternalError          the worker is at fault
├── WorkerShutdown         the worker leaves
└── ClaimLost              the run is not ours any more: nothing is uploaded and nothing reported

A handler that returns has completed its task; any other exception is an internal error. The rules are
those of the Queue's interaction document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from taskqueue_client import calls
from taskqueue_client._call import Call
from taskqueue_client.errors import InvalidArgument, TaskQueueError
from taskqueue_client.models import ReasonResolved, TaskStatusResponse


class Outcome(TaskQueueError):
    """Base of what a handler raises to say how its run ends."""


class TaskFailed(Outcome):
    """The task did not succeed, by its own doing. It is not retried."""


class MalformedPayload(Outcome):
    """The payload cannot be run, by any worker. It is not retried."""


class ResourceUnavailable(Outcome):
    """A resource that the task needs is missing for now. It is not retried by the Queue."""


class IntermittentTask(Outcome):
    """The task asked to be tried again. The Queue retries it while it has retries left."""


class InternalError(Outcome):
    """The worker, not the task, is at fault. It is not retried by the Queue."""


class WorkerShutdown(Outcome):
    """The worker leaves before the task has ended. The Queue retries it while it has retries left."""


class ClaimLost(Outcome):
    """The run is not this worker's any more: canceled, past its deadline, or its claim expired."""


class Uploads(Enum):
    """When a run's artifacts and log go up."""

    BEFORE_REPORT = "before"
    """A completed or failed run takes no artifacts any more, so none can be missing."""

    AFTER_REPORT = "after"
    """A worker in trouble first makes sure that the run cannot end as completed."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the Queue is told about a run.

    Attributes:
        endpoint: The call: `reportCompleted`, `reportFailed` or `reportException`.
        reason: The reason that the run then has; of an exception, the one that is sent.
        uploads: When artifacts and log go up.
    """

    endpoint: str
    reason: ReasonResolved
    uploads: Uploads

    def call(self, task_id: str, run_id: int) -> Call[TaskStatusResponse]:
        """The call that resolves a run so."""
        if self.endpoint == "reportException":
            return calls.report_exception(task_id, run_id, self.reason)
        report = calls.report_completed if self.endpoint == "reportCompleted" else calls.report_failed
        return report(task_id, run_id)


def _exception(reason: ReasonResolved) -> Resolution:
    return Resolution("reportException", reason, Uploads.AFTER_REPORT)


COMPLETED = Resolution("reportCompleted", ReasonResolved.COMPLETED, Uploads.BEFORE_REPORT)

RESOLUTIONS: Mapping[type[Outcome], Resolution | None] = {
    TaskFailed: Resolution("reportFailed", ReasonResolved.FAILED, Uploads.BEFORE_REPORT),
    MalformedPayload: _exception(ReasonResolved.MALFORMED_PAYLOAD),
    ResourceUnavailable: _exception(ReasonResolved.RESOURCE_UNAVAILABLE),
    IntermittentTask: _exception(ReasonResolved.INTERMITTENT_TASK),
    InternalError: _exception(ReasonResolved.INTERNAL_ERROR),
    WorkerShutdown: _exception(ReasonResolved.WORKER_SHUTDOWN),
    ClaimLost: None,
}
"""What each outcome is reported as; None: not at all."""


def resolution_of(outcome: BaseException | None) -> Resolution | None:
    """What the Queue is told when a handler returned (None) or raised `outcome`."""
    if outcome is None:
        return COMPLETED
    for kind in type(outcome).__mro__:
        if kind in RESOLUTIONS:
            return RESOLUTIONS[kind]
    return RESOLUTIONS[InternalError]


def meant_by(raised: BaseException | None) -> BaseException | None:
    """What a handler means that raised a group, as `asyncio.TaskGroup` does.

    That is the first outcome in it, if there is nothing in it but outcomes that are reported alike.
    """
    group: object = raised
    if isinstance(group, BaseExceptionGroup):
        members = [meant_by(each) for each in cast("BaseExceptionGroup[BaseException]", group).exceptions]
        if all(isinstance(each, Outcome) for each in members) and len(set(map(resolution_of, members))) == 1:
            return members[0]
    return raised


_BY_REASON: Mapping[str, type[Outcome]] = {
    **{resolution.reason.value: kind for kind, resolution in RESOLUTIONS.items() if resolution},
    "resources-unavailable": ResourceUnavailable,  # as the interaction document spells it
}


def outcome_for(reason: str) -> type[Outcome]:
    """The outcome for a reason given as text, such as by a task's own configuration.

    Both `resource-unavailable`, which the Queue takes, and the `resources-unavailable` of the
    interaction document are known.

    Raises:
        InvalidArgument: No run ends for that reason.
    """
    try:
        return _BY_REASON[reason]
    except KeyError:
        raise InvalidArgument("reason", reason, f"one of {', '.join(_BY_REASON)}") from None
