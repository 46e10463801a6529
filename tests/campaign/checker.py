"""Compares the evidence of a campaign with its plan: faults must explain every difference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from taskqueue_client.models import Run

from .evidence import Evidence, StoredTask, planned_digest
from .excuses import Excuses, seconds
from .fleet import HandlerEvent
from .memory import growing
from .message_checks import messages_as_transitions
from .task_plan import KINDS, PlannedTask
from .violations import Violation

RETRIED = {"claim-expired": "retry", "worker-shutdown": "retry", "intermittent-task": "task-retry"}
"""The `reasonResolved` after which the Queue makes another run, and that run's `reasonCreated`."""

_BY_WORKERS = frozenset(
    {"completed", "failed", "malformed-payload", "resource-unavailable", "internal-error", *RETRIED}
) - {"claim-expired"}

LOGS = ("public/logs/live_backing.log", "public/logs/live.log")


def violations(evidence: Evidence) -> list[Violation]:
    """Return everything that neither the plan nor a fault explains."""
    excuses = Excuses(evidence.incidents, evidence.lease)
    checks: tuple[Callable[[Evidence, Excuses], Iterator[Violation]], ...] = (
        ends_as_planned,
        runs_in_order,
        retries_explained,
        resolved_within_claim,
        dependencies_resolved_first,
        artifacts_complete,
        handlers_once,
        messages_as_transitions,
        nothing_left,
        growing,
    )
    return [each for check in checks for each in check(evidence, excuses)]


class _Found(NamedTuple):
    task_id: str
    planned: PlannedTask
    stored: StoredTask


def _tasks(evidence: Evidence) -> Iterator[_Found]:
    for task_id, planned in evidence.planned.items():
        stored = evidence.tasks.get(task_id)
        if stored is not None:
            yield _Found(task_id, planned, stored)


def ends_as_planned(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """Each task is resolved as planned, or for a reason that the faults explain."""
    for task_id in evidence.planned.keys() - evidence.tasks.keys():
        yield Violation("task lost", task_id, "it was created, and the queue does not know it")
    blocked = blocked_tasks(evidence.planned, evidence.tasks)
    for task_id, planned, stored in _tasks(evidence):
        if task_id in blocked or stored.state == "unscheduled":
            waits = stored.state == "unscheduled" or planned.reason == stored.reason == "deadline-exceeded"
            if not (task_id in blocked and waits):
                yield Violation(
                    "dependencies", task_id, f"blocked: {task_id in blocked}, state: {stored.state}"
                )
        elif stored.state in {"pending", "running"}:
            yield Violation("not resolved", task_id, f"{stored.state}; planned: {planned.reason}")
        elif not _explained_end(task_id, planned, stored, excuses):
            yield Violation(
                "wrong end", task_id, f"{stored.reason}; planned: {planned.reason} ({planned.kind})"
            )


def _explained_end(task_id: str, planned: PlannedTask, stored: StoredTask, excuses: Excuses) -> bool:
    run = stored.runs[-1]
    if stored.reason == planned.reason:
        return True
    if stored.reason in RETRIED:
        return stored.retries_left == 0  # `retries_explained` checks each retry
    if stored.reason == "resource-unavailable":
        return excuses.unavailable(task_id, run)
    return stored.reason == "internal-error" and excuses.internal_error(task_id, run)


def blocked_tasks(planned: Mapping[str, PlannedTask], tasks: Mapping[str, StoredTask]) -> set[str]:
    """Return the tasks whose dependencies will never be satisfied."""
    blocked: set[str] = set()
    for task_id, task in planned.items():  # in the order of the plan: dependencies first
        for each in task.dependencies:
            unmet = (
                task.requires == "all-completed"
                and each in tasks
                and tasks[each].state in {"failed", "exception"}
            )
            if unmet or each in blocked:
                blocked.add(task_id)
    return blocked


def runs_in_order(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """A run begins when the one before is resolved, and only after a reason that the Queue retries."""
    del excuses
    for task_id, _, stored in _tasks(evidence):
        for before, run in zip(stored.runs, stored.runs[1:], strict=False):
            if RETRIED.get(str(before.reason_resolved)) != run.reason_created:
                detail = f"run {run.run_id} ({run.reason_created}) after {before.reason_resolved}"
                yield Violation("wrong retry", task_id, detail)
            if seconds(run.scheduled) < seconds(before.resolved):
                yield Violation("overlapping runs", task_id, f"runs {before.run_id} and {run.run_id}")
        for run in stored.runs:
            if not seconds(run.scheduled) <= min(seconds(run.started), seconds(run.resolved)):
                yield Violation("times of a run", task_id, f"run {run.run_id} began before it was scheduled")
            if run.started is not None and seconds(run.resolved) < seconds(run.started):
                yield Violation("times of a run", task_id, f"run {run.run_id} ended before it began")


def retries_explained(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """The retries used are those that the plan and the faults explain."""
    for task_id, planned, stored in _tasks(evidence):
        used = max(0, len(stored.runs) - 1)
        if stored.retries - stored.retries_left != used:
            detail = f"{stored.retries} retries, {stored.retries_left} left, {used} used"
            yield Violation("retries used", task_id, detail)
        reasons = Counter(str(run.reason_resolved) for run in stored.runs)
        most = KINDS[planned.kind].retries_used + (planned.reason == "intermittent-task")
        least = most if stored.reason == "completed" else 0
        if not least <= reasons["intermittent-task"] <= most:
            yield Violation(
                "retries used", task_id, f"{reasons['intermittent-task']} times intermittent-task"
            )
        for run in stored.runs:
            if not _explained_retry(task_id, run, excuses):
                detail = f"run {run.run_id} of {run.worker_id}: {run.reason_resolved} without a fault"
                yield Violation("retry not explained", task_id, detail)


def _explained_retry(task_id: str, run: Run, excuses: Excuses) -> bool:
    if run.reason_resolved == "claim-expired":
        return excuses.expiry(task_id, run)
    return run.reason_resolved != "worker-shutdown" or excuses.shutdown(run)


def resolved_within_claim(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """No worker resolves a run after its claim has ended, and no claim expires before its end."""
    for task_id, _, stored in _tasks(evidence):
        for run in stored.runs:
            late = seconds(run.resolved) - seconds(run.taken_until)
            if run.reason_resolved in _BY_WORKERS and late > excuses.lateness(run):
                yield Violation(
                    "resolved after claim", f"{task_id}/{run.run_id}", f"{late:.3f} s after its end"
                )
            if run.reason_resolved == "claim-expired" and not late >= 0:
                yield Violation("expired early", f"{task_id}/{run.run_id}", f"{-late:.3f} s before its end")


def dependencies_resolved_first(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """A task is scheduled when its dependencies are resolved."""
    for task_id, planned, stored in _tasks(evidence):
        if not stored.runs or stored.runs[0].reason_created == "exception":
            continue
        scheduled = seconds(stored.runs[0].scheduled)
        for each in planned.dependencies:
            ends = _ends(each, evidence.tasks.get(each), planned.requires, excuses)
            early = min((seconds(end.resolved) for end in ends), default=float("inf")) - scheduled
            if early > 0:
                yield Violation(
                    "scheduled early", task_id, f"{early:.3f} s before its dependency {each} was resolved"
                )


def _ends(task_id: str, required: StoredTask | None, requires: str, excuses: Excuses) -> list[Run]:
    """Return the runs of a dependency whose ends may have scheduled its dependents.

    For `all-resolved`, an earlier run than the last one may have done so. The Queue also takes the task for
    resolved if it handles an exception whose retry has been claimed already: by the record of an expired
    claim (a late reclaim, which is refused, leaves one) or by a repeated report. If the Queue's clock was
    wrong, the run that followed may even have ended before.
    """
    if required is None or not required.runs:
        return []
    *retried, last = required.runs
    if requires != "all-resolved":
        return [last]
    return [last, *(each for each in retried if _may_be_handled_late(task_id, each, excuses))]


def _may_be_handled_late(task_id: str, run: Run, excuses: Excuses) -> bool:
    return run.reason_resolved == "claim-expired" or excuses.repeated_report(task_id, run)


def artifacts_complete(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """A completed run has all its artifacts, with the right bytes, and its log."""
    del excuses
    for task_id, planned, stored in _tasks(evidence):
        if stored.reason not in {"completed", "failed"}:
            continue
        run_id = len(stored.runs) - 1
        subject = f"{task_id}/{run_id}"
        for name in (*LOGS, *(each.name for each in planned.artifacts)):
            found = evidence.artifacts.get(task_id, {}).get((run_id, name))
            if found is None or not found.present:
                yield Violation("artifact missing", subject, name)
            elif name not in LOGS and found.digest != planned_digest(planned, name):
                yield Violation("wrong bytes", subject, f"{name} ({found.storage_type})")
            elif found.storage_type == "s3" and found.digest is None:
                yield Violation("artifact missing", subject, f"{name}: there is no body")


def handlers_once(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """A run's handler is called once, by the worker that has claimed the run, and ends before the report."""
    del excuses
    by_run: defaultdict[tuple[str, int], list[HandlerEvent]] = defaultdict(list)
    for event in evidence.handlers:
        by_run[event.task_id, event.run_id].append(event)
    for task_id, _, stored in _tasks(evidence):
        for run in stored.runs:
            subject, events = f"{task_id}/{run.run_id}", by_run[task_id, run.run_id]
            if [each.event for each in events] not in ([], ["begin"], ["begin", "end"]):
                yield Violation(
                    "handler called again", subject, ", ".join(f"{e.event} {e.worker}" for e in events)
                )
            if any(each.worker != run.worker_id for each in events):
                yield Violation("handler of another worker", subject, f"claimed by {run.worker_id}")
            ended = [each.t for each in events if each.event == "end"]
            if run.reason_resolved == "completed" and not (
                ended and ended[0] <= seconds(run.resolved) + 0.002
            ):
                yield Violation("completed too early", subject, "its handler had not ended")


def nothing_left(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """No process, directory, file, socket or thread is left."""
    del excuses
    for each in evidence.leftovers:
        yield Violation("left behind", each, "")
