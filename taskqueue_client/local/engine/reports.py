"""reportCompleted, reportFailed and reportException."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import announce
from taskqueue_client.local.engine.records import get_task
from taskqueue_client.local.engine.transitions import (
    drop_claims,
    finish,
    finish_with_exception,
    put_resolved,
    send_exception,
)
from taskqueue_client.local.refusal import conflict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskqueue_client.local.engine.core import Core


@dataclass(frozen=True, slots=True)
class Reports:
    """The endpoints by which a worker resolves its run; each answers the task's status."""

    core: Core

    def report_completed(self, task_id: str, run_id: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """The run did what it should; a body with `success` false says that it failed."""
        return self._report(task_id, run_id, "failed" if body.get("success") is False else "completed")

    def report_failed(self, task_id: str, run_id: int) -> dict[str, Any]:
        """The run ended, and did not do what it should."""
        return self._report(task_id, run_id, "failed")

    def report_exception(self, task_id: str, run_id: int, body: dict[str, Any]) -> dict[str, Any]:
        """The run could not be brought to an end; `reason` decides whether it is retried."""
        reason: str = body["reason"]
        with self.core.transition() as now:
            task = get_task(self.core.store, task_id)
            run = task.run(run_id)
            repeated = run.state == "exception" and run.reason_resolved == reason
            if not (run.state == "running" or (repeated and run_id >= len(task.runs) - 2)):
                message = f"Run {run_id} of task `{task_id}` is not running, nor just resolved as `{reason}`."
                raise conflict(message)
            if not repeated:
                finish_with_exception(self.core, task, run, reason, now)
            if not send_exception(self.core, task, run):
                put_resolved(self.core, task, "exception", now)
                if run_id == 0:  # as in the service: records of later runs stay until their time
                    drop_claims(self.core, task, run)
        return {"status": task.status()}

    def _report(self, task_id: str, run_id: int, state: str) -> dict[str, Any]:
        with self.core.transition() as now:
            task = get_task(self.core.store, task_id)
            run = task.run(run_id)
            if run.state not in {"running", state}:
                message = f"Run {run_id} of task `{task_id}` is not running or {state}."
                raise conflict(message)
            if run_id != len(task.runs) - 1:
                message = f"Run {run_id} of task `{task_id}` is not the latest run."
                raise conflict(message)
            if run.state == "running":
                finish(self.core, task, run, state, now)
            drop_claims(self.core, task, run)
            put_resolved(self.core, task, state, now)
            self.core.send(announce.resolved, task, run)
        return {"status": task.status()}
