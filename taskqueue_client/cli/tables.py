"""Tasks as tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.table import Table

from taskqueue_client.models import ReasonResolved, Run, TaskAndStatus, TaskState, TaskStatus

from .output import duration, new_table, printable

STYLES = {
    TaskState.COMPLETED: "green",
    TaskState.FAILED: "red",
    TaskState.EXCEPTION: "magenta",
    TaskState.RUNNING: "yellow",
}
"""The colour of a state."""


def tasks_table(members: Iterable[TaskAndStatus], blocked: Collection[str]) -> Table:
    """One row for each task.

    Args:
        members: The tasks.
        blocked: The ids of those that wait in vain.
    """
    table = new_table("NAME", "TASK ID", "STATE", "REASON", "RUN", "DURATION")
    for member in members:
        status = member.status
        run = last_run(status)
        table.add_row(
            printable(str(member.task["metadata"]["name"])),
            status.task_id,
            status.state,
            "blocked" if status.task_id in blocked else reason_of(run),
            "" if run is None else str(run.run_id),
            "" if run is None else duration(run.started, run.resolved),
            style=STYLES.get(status.state),
        )
    return table


def runs_table(status: TaskStatus) -> Table:
    """One row for each run of a task."""
    table = new_table("RUN", "STATE", "REASON", "WORKER", "SCHEDULED", "DURATION")
    for run in status.runs:
        table.add_row(
            str(run.run_id),
            run.state,
            reason_of(run),
            printable(f"{run.worker_group}/{run.worker_id}") if run.worker_id else "",
            f"{run.scheduled:%Y-%m-%d %H:%M:%S} UTC",
            duration(run.started, run.resolved),
            style=STYLES.get(TaskState(run.state)),
        )
    return table


def last_run(status: TaskStatus) -> Run | None:
    """The run that decides a task's state, if there is one."""
    return status.runs[-1] if status.runs else None


def reason_of(run: Run | None) -> str:
    """Why a run ended, if it did, and the state does not say so itself."""
    if run is None or run.reason_resolved in {None, ReasonResolved.COMPLETED, ReasonResolved.FAILED}:
        return ""
    return str(run.reason_resolved)
