"""claimWork, claimTask and reclaimTask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import announce, times
from taskqueue_client.local.engine.credentials import run_credentials
from taskqueue_client.local.engine.records import Run, Task, get_task, save_runs
from taskqueue_client.local.engine.transitions import hold, start
from taskqueue_client.local.refusal import Caller, conflict

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core
    from taskqueue_client.local.engine.waiting import Lines
    from taskqueue_client.local.engine.workers import Workers

Worker = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claims:
    """The endpoints by which workers get runs and keep them."""

    core: Core
    workers: Workers
    lines: Lines

    async def claim_work(self, caller: Caller, task_queue_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Claim up to `tasks` pending runs, the most urgent and then the oldest first.

        Waits up to 20 s for the first one. May be cancelled: then nothing is claimed. A worker in
        quarantine waits as long and gets nothing.
        """
        worker = body["workerGroup"], body["workerId"]
        caller.require(taskQueueId=task_queue_id, workerGroup=worker[0], workerId=worker[1])
        seconds = self.core.settings.long_poll
        if self.workers.seen(task_queue_id, worker):
            await self.core.clock.sleep_async(seconds)
            return {"tasks": []}

        def claim() -> list[dict[str, Any]]:
            return self._claim_pending(task_queue_id, worker, int(body["tasks"]))

        return {"tasks": await self.lines.wait(task_queue_id, seconds, claim)}

    def claim_task(self, caller: Caller, task_id: str, run_id: int, body: dict[str, Any]) -> dict[str, Any]:
        """Claim one run; the worker that holds it so may repeat the call."""
        task = get_task(self.core.store, task_id)
        worker = body["workerGroup"], body["workerId"]
        provisioner_id, worker_type = task.task_queue_id.split("/")
        caller.require(
            provisionerId=provisioner_id, workerType=worker_type, workerGroup=worker[0], workerId=worker[1]
        )
        with self.core.transition() as now:
            _check_deadline(task, now)
            if self.workers.seen_by_claim_task(task.task_queue_id, worker, now):
                message = f"Worker `{'/'.join(worker)}` is in quarantine: it cannot claim tasks."
                raise conflict(message)
            run = task.run(run_id)
            taken_until = self._claim_by_id(task, run, worker, now)
            self.workers.add_recent_tasks(task.task_queue_id, worker, [(task_id, run_id)])
            self._send_running(task, run, taken_until)
        return self._claim(task, run, taken_until)

    def reclaim_task(self, task_id: str, run_id: int) -> dict[str, Any]:
        """Hold a claimed run for another claim timeout from now on."""
        task = get_task(self.core.store, task_id)
        run = task.run(run_id)
        with self.core.transition() as now:
            _check_deadline(task, now)
            if run.worker is None:
                message = f"Run {run_id} of task `{task_id}` was never claimed."
                raise conflict(message)
            taken_until = hold(self.core, task, run, run.worker, now)
            if run.state != "running":
                message = f"Run {run_id} of task `{task_id}` is resolved, or is not the latest run."
                raise conflict(message)
            run.taken_until = times.text(taken_until)
            save_runs(self.core.store, task)
        return {
            "status": task.status(),
            "runId": run_id,
            **_worker(run),
            "takenUntil": times.text(taken_until),
            "credentials": run_credentials(self.core, task, run, taken_until),
        }

    def _claim_pending(self, task_queue_id: str, worker: Worker, count: int) -> list[dict[str, Any]]:
        """Claim what there is, all of it in one transaction."""
        waiting = self.core.store.rows(
            "SELECT task_id, run_id FROM pending WHERE task_queue_id = ? AND expires > ?"
            " ORDER BY priority DESC, seq LIMIT ?",
            task_queue_id,
            self.core.now(),
            count,
        )
        if not waiting:
            return []
        with self.core.transition() as now:
            started = [self._start(task_id, run_id, worker, now) for task_id, run_id in waiting]
            self.workers.add_recent_tasks(
                task_queue_id, worker, [(task.task_id, run.run_id) for task, run, _ in started]
            )
        return [self._claim(*each) for each in started]

    def _start(self, task_id: str, run_id: int, worker: Worker, now: int) -> tuple[Task, Run, int]:
        task = get_task(self.core.store, task_id)
        run = task.run(run_id)
        task.claimed_by_id = False
        taken_until = start(self.core, task, run, worker, now)
        self._send_running(task, run, taken_until)
        return task, run, taken_until

    def _claim_by_id(self, task: Task, run: Run, worker: Worker, now: int) -> int:
        """When the worker's claim of this run ends; an earlier claim of its own stays as it was."""
        if run.state == "running" and run.worker == worker and task.claimed_by_id:
            return times.parse(str(run.taken_until), "takenUntil")
        if run.state != "pending":
            message = (
                f"Run {run.run_id} of task `{task.task_id}` is not pending, or is held by another claim."
            )
            raise conflict(message)
        task.claimed_by_id = True
        return start(self.core, task, run, worker, now)

    def _send_running(self, task: Task, run: Run, taken_until: int) -> None:
        self.core.send(announce.running, task, run, times.database_text(taken_until))

    def _claim(self, task: Task, run: Run, taken_until: int) -> dict[str, Any]:
        return {
            "status": task.status(),
            "runId": run.run_id,
            **_worker(run),
            "takenUntil": times.database_text(taken_until),
            "task": task.definition(),
            "credentials": run_credentials(self.core, task, run, taken_until),
        }


def _worker(run: Run) -> dict[str, str | None]:
    return {"workerGroup": run.worker_group, "workerId": run.worker_id}


def _check_deadline(task: Task, now: int) -> None:
    if task.deadline <= now:
        message = f"Task `{task.task_id}` is past its deadline: it can be neither claimed nor reclaimed."
        raise conflict(message)
