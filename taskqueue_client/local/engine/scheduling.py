"""scheduleTask, rerunTask and cancelTask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import announce
from taskqueue_client.local.engine.records import Task, get_task
from taskqueue_client.local.engine.transitions import MAX_RUNS, add_run, cancel, drop_claims, put_resolved
from taskqueue_client.local.refusal import Caller, conflict

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The calls by which a scheduler moves a task; each answers the task's status."""

    core: Core

    def schedule_task(self, caller: Caller, task_id: str) -> dict[str, Any]:
        """Make an unscheduled task pending, whatever it depends on; others stay as they are."""
        task = self._authorized(caller, task_id)
        with self.core.transition() as now:
            _check_deadline(task, now)
            if not task.runs:
                self.core.send(announce.pending, task, add_run(self.core, task, "scheduled", now))
        return {"status": task.status()}

    def rerun_task(self, caller: Caller, task_id: str) -> dict[str, Any]:
        """Add a run to a task that is unscheduled or resolved; a pending run is announced once more."""
        task = self._authorized(caller, task_id)
        with self.core.transition() as now:
            _check_deadline(task, now)
            if not task.runs or task.runs[-1].is_resolved:
                self._add_rerun(task, now)
            if task.state == "pending":
                self.core.send(announce.pending, task, task.runs[-1])
        return {"status": task.status()}

    def cancel_task(self, caller: Caller, task_id: str) -> dict[str, Any]:
        """End a task that is not resolved; a cancellation is announced once more when repeated."""
        task = self._authorized(caller, task_id)
        with self.core.transition() as now:
            _check_deadline(task, now)
            if cancel(self.core, task, "canceled", now):
                drop_claims(self.core, task, task.runs[-1])
            if task.runs[-1].reason_resolved == "canceled":
                put_resolved(self.core, task, "exception", now)
                self.core.send(announce.resolved, task, task.runs[-1])
        return {"status": task.status()}

    def _authorized(self, caller: Caller, task_id: str) -> Task:
        task = get_task(self.core.store, task_id)
        caller.require(taskId=task_id, **task.scope_params())
        return task

    def _add_rerun(self, task: Task, now: int) -> None:
        if len(task.runs) >= MAX_RUNS:
            message = f"Task `{task.task_id}` has {MAX_RUNS} runs and cannot get another."
            raise conflict(message)
        task.retries_left = min(task.retries, MAX_RUNS - len(task.runs) - 1)
        add_run(self.core, task, "rerun", now)


def _check_deadline(task: Task, now: int) -> None:
    if task.deadline < now:
        message = (
            f"Task `{task.task_id}` is past its deadline: it can be neither scheduled, rerun nor canceled."
        )
        raise conflict(message)
