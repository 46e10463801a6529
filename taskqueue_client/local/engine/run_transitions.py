"""The changes of a run's state, each with its changes of other records."""

from __future__ import annotations

from taskqueue_client.local import messages, times

from .core import Core
from .task_records import Run, Task, save_runs

MAX_RUNS = 50

RETRIES = {"claim-expired": "retry", "worker-shutdown": "retry", "intermittent-task": "task-retry"}
"""The reasons of exceptions that are retried, with the `reasonCreated` of the retry."""


def add_run(core: Core, task: Task, reason: str, now: int) -> Run:
    """Add a pending run, last in the order of its priority."""
    run = append_run(task, reason, now)
    save_runs(core.store, task)
    enqueue(core, task, now)
    return run


def append_run(task: Task, reason: str, now: int) -> Run:
    """Add a pending run, without storing it."""
    run = Run(run_id=len(task.runs), state="pending", reason_created=reason, scheduled=times.text(now))
    task.runs.append(run)
    return run


def enqueue(core: Core, task: Task, now: int) -> None:
    """Make a task's new run the last pending one of its priority, unless its deadline has passed."""
    if task.deadline <= now:
        # A rerun is allowed in the millisecond of the deadline. The deadline's resolver may have run before.
        core.store.change("UPDATE tasks SET deadline_open = 1 WHERE task_id = ?", task.task_id)
        return
    row = (task.task_queue_id, task.priority, now, task.deadline, task.task_id, task.runs[-1].run_id)
    core.store.insert("pending (task_queue_id, priority, inserted, expires, task_id, run_id)", *row)
    core.note_pending(task.task_queue_id)


def cancel(core: Core, task: Task, reason: str, now: int) -> Run | None:
    """Resolve a task as an exception, and return its last run; None if it was resolved before.

    A task that was never scheduled gets a run that is resolved.
    """
    run = task.runs[-1] if task.runs else append_run(task, "exception", now)
    if run.is_resolved:
        return None
    finish(core, task, run, reason, now)
    return run


def start(core: Core, task: Task, run: Run, worker: tuple[str, str], now: int) -> int:
    """Give a pending run to a worker; return when its claim expires, in milliseconds."""
    taken_until = record_claim(core, task, run.run_id, worker, now)
    run.state = "running"
    run.worker_group, run.worker_id = worker
    run.taken_until = times.text(taken_until)
    run.started = times.text(now)
    save_runs(core.store, task)
    _leave_queue(core, task, run)
    return taken_until


def record_claim(
    core: Core, task: Task, run_id: int, worker: tuple[str, str], now: int, *, is_granted: bool = True
) -> int:
    """Write a claim record that starts now; return when the claim expires, in milliseconds.

    While the clock is held, two workers may claim in the same millisecond: a claim that may still be refused
    (`is_granted` is false) does not replace the record of the other worker.
    """
    taken_until = now + times.milliseconds(core.settings.claim_timeout)
    row = (task.task_id, run_id, taken_until, task.task_queue_id, *worker, now)
    core.store.insert("claims", *row, verb="INSERT OR REPLACE" if is_granted else "INSERT OR IGNORE")
    return taken_until


def finish(core: Core, task: Task, run: Run, reason: str, now: int) -> None:
    """Resolve a run: as `exception`, unless the reason is `completed` or `failed`."""
    was_pending = run.state == "pending"
    run.state = reason if reason in {"completed", "failed"} else "exception"
    run.reason_resolved, run.resolved = reason, times.text(now)
    save_runs(core.store, task)
    if was_pending:
        _leave_queue(core, task, run)


def finish_with_exception(core: Core, task: Task, run: Run, reason: str, now: int) -> None:
    """Resolve a run as an exception; add a retry if the reason and `retriesLeft` allow that."""
    finish(core, task, run, reason, now)
    if reason in RETRIES and task.retries_left > 0:
        task.retries_left -= 1
        add_run(core, task, RETRIES[reason], now)


def send_exception(core: Core, task: Task, run: Run) -> bool:
    """Send the message about a run's exception, and the one about its retry; return whether it is retried."""
    core.send(messages.resolved, task, run)
    last, is_retry = task.runs[-1], task.runs[-1].reason_created in RETRIES.values()
    is_retried = run.run_id == len(task.runs) - 2 and last.state == "pending" and is_retry
    if is_retried:
        core.send(messages.pending, task, last)
    return is_retried


def drop_claims(core: Core, task_id: str, run_id: int) -> None:
    """Forget all claims of a run."""
    core.store.change("DELETE FROM claims WHERE task_id = ? AND run_id = ?", task_id, run_id)


def note_resolution(core: Core, task: Task, resolution: str, now: int) -> None:
    """Store a task's resolution for the dependency resolver."""
    row = (task.task_id, task.task_group_id, resolution, now)
    core.store.insert("resolved (task_id, task_group_id, resolution, inserted)", *row)
    core.note_resolved()


def _leave_queue(core: Core, task: Task, run: Run) -> None:
    core.store.change("DELETE FROM pending WHERE task_id = ? AND run_id = ?", task.task_id, run.run_id)
