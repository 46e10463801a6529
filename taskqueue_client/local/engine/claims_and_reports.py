"""claimWork, claimTask, reclaimTask, and the reports that resolve a run."""

from __future__ import annotations

from taskqueue_client.local import messages, times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import queue
from taskqueue_client.local.javascript_values import is_object
from taskqueue_client.local.refusal import conflict
from taskqueue_client.scopes import ScopeExpression

from .core import Core, Json
from .run_transitions import (
    drop_claims,
    finish,
    finish_with_exception,
    note_resolution,
    record_claim,
    send_exception,
    start,
)
from .task_records import Run, Task, get_task, save_runs
from .worker_records import Worker, add_recent_tasks, seen_by_claim_task, worker_active, worker_seen

_WORKER_ID = "queue:worker-id:<workerGroup>/<workerId>"
_CLAIM_WORK: ScopeExpression = {"AllOf": ["queue:claim-work:<taskQueueId>", _WORKER_ID]}
_CLAIM_TASK: ScopeExpression = {"AllOf": ["queue:claim-task:<provisionerId>/<workerType>", _WORKER_ID]}
_RESOLVE = "queue:resolve-task:<taskId>/<runId>"

_LONG_POLL = 20  # seconds


@queue("POST", "/claim-work/<taskQueueId>", _CLAIM_WORK, schema="claim-work-request")
async def claim_work(core: Core, caller: Caller, task_queue_id: str, body: Json) -> Json:
    """Claim up to `tasks` pending runs, by priority and then by age; wait up to 20 s for the first one.

    If the call is canceled, nothing is claimed. A worker in quarantine gets no run after 20 s.
    """
    worker = body["workerGroup"], body["workerId"]
    caller.require(taskQueueId=task_queue_id, workerGroup=worker[0], workerId=worker[1])
    if worker_seen(core, task_queue_id, worker):
        await core.clock.sleep_async(_LONG_POLL)
        return {"tasks": []}

    def claim() -> list[Json]:
        return claim_pending(core, task_queue_id, worker, int(body["tasks"]))

    return {"tasks": await core.long_polls.wait(task_queue_id, _LONG_POLL, claim)}


@queue("POST", "/task/<taskId>/runs/<runId>/claim", _CLAIM_TASK, schema="task-claim-request")
def claim_task(core: Core, caller: Caller, task_id: str, run_id: int, body: Json) -> Json:
    """Claim one run; the worker that has claimed it by this call may repeat the call."""
    task = get_task(core.store, task_id)
    worker = body["workerGroup"], body["workerId"]
    provisioner_id, worker_type = task.task_queue_id.split("/")
    caller.require(
        provisionerId=provisioner_id, workerType=worker_type, workerGroup=worker[0], workerId=worker[1]
    )
    return claim_run(core, task, run_id, worker)


def claim_run(core: Core, task: Task, run_id: int, worker: Worker) -> Json:
    """Claim one run for a worker whose scopes have been checked."""
    with core.transition() as now:
        _check_deadline(task, now)
        if seen_by_claim_task(core, task.task_queue_id, worker, now):
            conflict(f"Worker `{'/'.join(worker)}` is in quarantine: it cannot claim tasks.")
        # as in the service, the claim record stays, and counts, even if the call is refused below
        recorded = record_claim(core, task, run_id, worker, now, is_granted=False)
        run = task.run(run_id)
        taken_until = _claim_by_id(core, task, run, worker, now)
        add_recent_tasks(core, task.task_queue_id, worker, [(task.task_id, run_id)])
        core.send(messages.running, task, run, times.database_text(taken_until))
    return _claim(core, task, run, taken_until, recorded)


@queue("POST", "/task/<taskId>/runs/<runId>/reclaim", "queue:reclaim-task:<taskId>/<runId>")
def reclaim_task(core: Core, caller: Caller, task_id: str, run_id: int) -> Json:
    """Extend the claim on a run: it expires a claim timeout from now."""
    task = get_task(core.store, task_id)
    run = task.run(run_id)
    caller.require(runId=run_id)  # `01` in the URL is run 1 from here on
    with core.transition() as now:
        _check_deadline(task, now)
        if run.worker is None:
            conflict(f"Run {run_id} of task `{task_id}` was never claimed.")
        worker_active(core, task.task_queue_id, run.worker, now)
        taken_until = record_claim(core, task, run_id, run.worker, now)
        if run.state != "running":
            conflict(f"Run {run_id} of task `{task_id}` is resolved, or is not the latest run.")
        run.taken_until = times.text(taken_until)
        save_runs(core.store, task)
    return {
        "status": task.status(),
        "runId": run_id,
        **messages.worker_of(run),
        "takenUntil": times.text(taken_until),
        "credentials": _run_credentials(core, task, run, taken_until),
    }


def claim_pending(core: Core, task_queue_id: str, worker: Worker, count: int) -> list[Json]:
    """Claim up to `count` pending runs, all of them in one transaction."""
    pending = "SELECT task_id, run_id FROM pending WHERE task_queue_id = ? AND expires > ?"
    order = " ORDER BY priority DESC, seq LIMIT ?"
    waiting = core.store.rows(pending + order, task_queue_id, core.now(), count)
    if not waiting:
        return []
    with core.transition() as now:
        started = [_start(core, task_id, run_id, worker, now) for task_id, run_id in waiting]
        runs = [(task.task_id, run.run_id) for task, run, _ in started]
        add_recent_tasks(core, task_queue_id, worker, runs)
    return [_claim(core, *each, each[-1]) for each in started]


def _start(core: Core, task_id: str, run_id: int, worker: Worker, now: int) -> tuple[Task, Run, int]:
    task = get_task(core.store, task_id)
    run = task.run(run_id)
    task.claimed_by_id = False
    taken_until = start(core, task, run, worker, now)
    core.send(messages.running, task, run, times.database_text(taken_until))
    return task, run, taken_until


def _claim_by_id(core: Core, task: Task, run: Run, worker: Worker, now: int) -> int:
    """Claim a run, unless the worker has claimed it before; return when the claim expires."""
    if run.state == "running" and run.worker == worker and task.claimed_by_id:
        return times.parse(str(run.taken_until), "takenUntil")
    if run.state != "pending":
        conflict(
            f"Run {run.run_id} of task `{task.task_id}` is not pending, or is claimed by another worker."
        )
    task.claimed_by_id = True
    return start(core, task, run, worker, now)


def _claim(core: Core, task: Task, run: Run, taken_until: int, credentials_until: int) -> Json:
    """Return a claim for the response; a repeated claimTask gets new credentials and the old `takenUntil`."""
    return {
        "status": task.status(),
        "runId": run.run_id,
        **messages.worker_of(run),
        "takenUntil": times.database_text(taken_until),
        "task": task.definition(),
        "credentials": _run_credentials(core, task, run, credentials_until),
    }


def _run_credentials(core: Core, task: Task, run: Run, taken_until: int) -> Json:
    where = f"{task.task_id}/{run.run_id}"
    worker = f"{run.worker_group}/{run.worker_id}"
    client_id = f"task-client/{where}/on/{worker}/until/{times.seconds_text(taken_until)}"
    actions = ("reclaim-task", "resolve-task", "create-artifact")
    scopes = [f"queue:{action}:{where}" for action in actions] + task.extract().scopes
    return core.issue_credentials(client_id, scopes, core.now(), taken_until)


def _check_deadline(task: Task, now: int) -> None:
    if task.deadline <= now:
        conflict(f"Task `{task.task_id}` is past its deadline: it can be neither claimed nor reclaimed.")


@queue("POST", "/task/<taskId>/runs/<runId>/completed", _RESOLVE)
def report_completed(core: Core, caller: Caller, task_id: str, run_id: int, body: object) -> Json:
    """Resolve a run as completed, or as failed if the optional body has `success` false."""
    failed = is_object(body) and body.get("success") is False
    return _report(core, caller, task_id, run_id, "failed" if failed else "completed")


@queue("POST", "/task/<taskId>/runs/<runId>/failed", _RESOLVE)
def report_failed(core: Core, caller: Caller, task_id: str, run_id: int) -> Json:
    """Resolve a run as failed."""
    return _report(core, caller, task_id, run_id, "failed")


@queue("POST", "/task/<taskId>/runs/<runId>/exception", _RESOLVE, schema="task-exception-request")
def report_exception(core: Core, caller: Caller, task_id: str, run_id: int, body: Json) -> Json:
    """Resolve a run as an exception; its `reason` decides whether there is a retry."""
    reason: str = body["reason"]
    with core.transition() as now:
        task = get_task(core.store, task_id)
        run = task.run(run_id)
        caller.require(runId=run_id)
        repeated = run.state == "exception" and run.reason_resolved == reason
        if not (run.state == "running" or (repeated and run_id >= len(task.runs) - 2)):
            conflict(f"Run {run_id} of task `{task_id}` is not running, nor just resolved as `{reason}`.")
        if not repeated:
            finish_with_exception(core, task, run, reason, now)
        if not send_exception(core, task, run):
            note_resolution(core, task, "exception", now)
            drop_claims(core, task_id, 0)  # as in the service: claims of later runs stay until they expire
    return {"status": task.status()}


def _report(core: Core, caller: Caller, task_id: str, run_id: int, state: str) -> Json:
    with core.transition() as now:
        task = get_task(core.store, task_id)
        run = task.run(run_id)
        if run.state not in {"running", state}:
            conflict(f"Run {run_id} of task `{task_id}` is not running or {state}.")
        caller.require(runId=run_id)
        if run_id != len(task.runs) - 1:
            conflict(f"Run {run_id} of task `{task_id}` is not the latest run.")
        if run.state == "running":
            finish(core, task, run, state, now)
        drop_claims(core, task_id, run_id)
        note_resolution(core, task, state, now)
        core.send(messages.resolved, task, run)
    return {"status": task.status()}
