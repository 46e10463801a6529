"""How a run ends: exceptions that its handler raises, what each is reported as, and the request to stop.

Outcome (TaskQueueError)
├── TaskFailed             the task failed by its own doing, such as a test or a build
├── MalformedPayload       the payload is not valid, so no run of this task can succeed
├── ResourceUnavailable    a resource that the task needs is not available at the moment
├── IntermittentTask       the task asks for a retry
├── InternalError          the worker is at fault
├── WorkerShutdown         the worker shuts down
└── ClaimLost              the claim is lost: nothing is uploaded and nothing reported

A handler that returns has completed its task; any other exception is an internal error, unless it refuses a
value of the payload (`outcome_of`). The rules are those of the Queue's interaction document.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping
from copy import copy
from enum import StrEnum
from typing import cast

from taskqueue_client._arguments import one_of
from taskqueue_client._protocol.schemas import json_path, members_of
from taskqueue_client._protocol.threads_and_tasks import RAISE_LIMIT
from taskqueue_client.errors import InvalidArgument, Problem, TaskQueueError
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.worker_log import counted


class Outcome(TaskQueueError):
    """Base class of the exceptions with which a handler says how its run ends."""


class TaskFailed(Outcome):
    """The task failed by its own doing. The Queue does not retry it."""


class MalformedPayload(Outcome):
    """No worker can run the payload. The Queue does not retry the task."""


class ResourceUnavailable(Outcome):
    """A resource that the task needs is not available at the moment. The Queue does not retry the task."""


class IntermittentTask(Outcome):
    """The task asks for a retry. The Queue retries it while it has retries left."""


class InternalError(Outcome):
    """The worker, not the task, is at fault. The Queue does not retry the task."""


def thread_refused() -> InternalError:
    """Return the error to raise when the system does not start another thread."""
    return InternalError(f"the worker cannot start a thread: {RAISE_LIMIT}")


class WorkerShutdown(Outcome):
    """The worker shuts down before the task has ended. The Queue retries it while it has retries left."""


class LossReason(StrEnum):
    """Why a claim was lost, as `tasks_total{outcome="lost"}` counts it."""

    CANCELED = "canceled"
    """Somebody canceled the task."""
    DEADLINE_EXCEEDED = "deadline-exceeded"
    """The task's deadline has passed."""
    CLAIM_EXPIRED = "claim-expired"
    """The Queue has resolved the run, as it was not reclaimed in time."""
    LEASE_ENDED = "lease-ended"
    """No reclaim or report reached the Queue before the lease ended."""
    RECLAIM_REFUSED = "reclaim-refused"
    """The Queue refused a reclaim (409)."""
    OTHER = "other"
    """The run is resolved in another way."""

    @classmethod
    def of(cls, resolved: str | None) -> LossReason:
        """Return the loss reason for a run that the Queue has resolved for this reason."""
        return cls(resolved) if resolved in set(cls) else cls.OTHER


class ClaimLost(Outcome):
    """This worker has lost the claim: the task was canceled, its deadline passed, or the claim expired.

    Attributes:
        reason: Why the claim was lost.
    """

    def __init__(self, *args: object, reason: LossReason = LossReason.OTHER) -> None:
        super().__init__(*args)
        self.reason = reason


LOST = "lost"
"""The outcome of a run whose claim is lost, and which is not reported."""

RESOLUTIONS: Mapping[type[Outcome], ReasonResolved | None] = {
    TaskFailed: ReasonResolved.FAILED,
    MalformedPayload: ReasonResolved.MALFORMED_PAYLOAD,
    ResourceUnavailable: ReasonResolved.RESOURCE_UNAVAILABLE,
    IntermittentTask: ReasonResolved.INTERMITTENT_TASK,
    InternalError: ReasonResolved.INTERNAL_ERROR,
    WorkerShutdown: ReasonResolved.WORKER_SHUTDOWN,
    ClaimLost: None,
}
"""The reason that is reported for each outcome; None: nothing is reported."""

UPLOADED_BEFORE = frozenset({ReasonResolved.COMPLETED, ReasonResolved.FAILED})
"""The reasons that are reported after artifacts and log are uploaded: the Queue takes none afterwards. Other
reasons are reported first, so that the run of a worker in trouble cannot end as completed."""


def resolution_of(outcome: BaseException | None) -> ReasonResolved | None:
    """Return what is reported when a handler returned (None) or raised `outcome`; None: nothing."""
    if outcome is None:
        return ReasonResolved.COMPLETED
    for kind in type(outcome).__mro__:
        if kind in RESOLUTIONS:
            return RESOLUTIONS[kind]
    return RESOLUTIONS[InternalError]


def outcome_of(raised: BaseException | None, payload: object) -> BaseException | None:
    """Return the outcome that counts for what a handler raised; any other exception is returned as it is.

    An `InvalidArgument` whose value is in the payload becomes `MalformedPayload`: no schema can express all
    rules, and as internal errors, such tasks in a row would shut the worker down. A group of outcomes that
    are all reported alike, such as one of `asyncio.TaskGroup`, becomes its first member. `payload` is as the
    Queue sent it, and matches the schema.
    """
    if isinstance(raised, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", raised)
        members = [outcome_of(each, payload) for each in group.exceptions]
        are_alike = len(set(map(resolution_of, members))) == 1
        return members[0] if are_alike and all(isinstance(each, Outcome) for each in members) else group
    if not isinstance(raised, InvalidArgument):
        return raised
    path = next(_places_of(raised.given, payload), None)
    if path is None:
        return raised
    outcome = malformed([Problem(json_path(*path), raised.given, raised.allowed, raised.finding)])
    outcome.__cause__ = raised
    return outcome


def leaves_of(raised: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group and of the groups in it; for another exception, only that one."""
    if isinstance(raised, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", raised).exceptions:
            yield from leaves_of(each)
    else:
        yield raised


def malformed(problems: list[Problem]) -> MalformedPayload:
    """Return the outcome of a payload with problems, which it lists."""
    words = "".join(f"\n  {each}" for each in problems)
    return MalformedPayload(f"the payload has {counted(len(problems), 'problem')}:{words}")


def _places_of(wanted: object, value: object) -> Iterator[list[str | int]]:
    """Yield the paths of the members of a JSON value that are equal to `wanted`, or whose key is.

    None and booleans are not looked for: they are too common to tell where they came from.
    """
    if wanted is None or isinstance(wanted, bool):
        return
    for step, member in members_of(value):
        is_key = isinstance(step, str) and isinstance(wanted, str) and step == wanted
        if is_key or (type(member) is type(wanted) and member == wanted):
            yield [step]
        for path in _places_of(wanted, member):
            yield [step, *path]


def text_of(error: BaseException) -> str:
    """Return the text of what a handler raised, whose class may have a `__str__` that fails."""
    try:
        return str(error)
    except BaseException as failure:  # noqa: BLE001 - any code of the handler, which may call sys.exit
        return f"(its __str__ raises {type(failure).__name__})"


def summary_of(error: BaseException) -> str:
    """Return the class of what a handler raised, and its text, if any, like the last line of a traceback."""
    text = text_of(error)
    return type(error).__name__ + (f": {text}" if text else "")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of what a handler raised; only its text if Python cannot format the exception.

    An example is a SyntaxError with attributes of wrong types.
    """
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception as failure:  # noqa: BLE001 - any attribute of the exception
        return f"{summary_of(error)}\n(its traceback cannot be formatted: {text_of(failure)})"


_BY_REASON: Mapping[str, type[Outcome]] = {
    **{reason.value: kind for kind, reason in RESOLUTIONS.items() if reason},
    "resources-unavailable": ResourceUnavailable,  # as the interaction document spells it
}


def outcome_for(reason: str) -> type[Outcome]:
    """Return the outcome for a reason given as text, such as by a task's own configuration.

    Both `resource-unavailable`, which the Queue takes, and the `resources-unavailable` of the
    interaction document are accepted.

    Raises:
        InvalidArgument: `reason` is not a reason for which a worker resolves a run.
    """
    one_of("reason", reason, _BY_REASON)
    return _BY_REASON[reason]


class Canceled(threading.Event):
    """An event that is set when a handler should stop: wait for it, test it as a bool, or call `check`.

    Attributes:
        reason: Why the handler should stop; None until the event is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason: Outcome | None = None

    def __bool__(self) -> bool:
        """Return whether it is set. Without this method, `while not task.canceled` would end at once."""
        return self.is_set()

    def cancel(self, reason: Outcome) -> None:
        """Set the event. The first reason stays."""
        if self.reason is None:
            self.reason = reason
        self.set()

    def check(self) -> None:
        """Raise the reason to stop, if there is one.

        Raises:
            ClaimLost: The claim on the run is lost.
            WorkerShutdown: The worker shuts down.
            Outcome: The run has taken too long; a `TaskFailed` unless `max_run_time_outcome` says otherwise.
        """
        if self.reason is not None:
            raise copy(self.reason)  # without the traceback, which would grow with each call
