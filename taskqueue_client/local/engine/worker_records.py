"""Records of workers: when they were seen, what they ran last, and their quarantine."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from taskqueue_client.local import times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import each, queue
from taskqueue_client.local.refusal import refuse

from .core import Core, Json
from .pages import offset_page
from .task_queues import WORKER_TYPE, get_task_queue, touch_task_queue

_WORKER = "<provisionerId>/<workerType>/<workerGroup>/<workerId>"
_KEY = "task_queue_id = ? AND worker_group = ? AND worker_id = ?"
_NEVER = -10  # years: a worker that was never in quarantine has one that ended that long before its creation
_RECENT = 20
_INTERVAL = 30 * times.MINUTE  # at which the activity of workers and task queues is stored
_CLAIM_WORK_LIFE = times.DAY
_CLAIM_TASK_LIFE = 5 * times.DAY
_UNSPECIFIED = "[unspecified]"
_WORKER_TYPE = re.compile(r"[a-z]([-a-z0-9]{0,36}[a-z0-9])?")  # the limit in the schemas of responses

Worker = tuple[str, str]
"""The worker group and the worker id."""


class _WorkerRecord(msgspec.Struct):
    task_queue_id: str
    worker_group: str
    worker_id: str
    quarantine_until: int
    expires: int
    first_claim: int
    last_date_active: int
    recent_tasks: list[Json]
    quarantine_details: list[Json]

    def is_visible(self, now: int) -> bool:
        return self.expires > now or self.is_quarantined(now)

    def is_quarantined(self, now: int) -> bool:
        return self.quarantine_until > now

    def is_listed(self, now: int, *, quarantined: bool | None) -> bool:
        """Return whether `listWorkers` shows the worker: as in the service, also at its expiry time."""
        in_quarantine = self.quarantine_until >= now
        return (self.expires >= now or in_quarantine) and quarantined in {None, in_quarantine}

    def shown(self) -> Json:
        provisioner_id, worker_type = self.task_queue_id.split("/")
        return {
            "taskQueueId": self.task_queue_id,
            "workerGroup": self.worker_group,
            "workerId": self.worker_id,
            "quarantineUntil": times.text(self.quarantine_until),
            "expires": times.text(self.expires),
            "firstClaim": times.text(self.first_claim),
            "recentTasks": self.recent_tasks,
            "lastDateActive": times.text(self.last_date_active),
            "provisionerId": provisioner_id,
            "workerType": worker_type,
        }

    def listed(self, now: int) -> Json:
        shown: Json = {
            "workerGroup": self.worker_group,
            "workerId": self.worker_id,
            "firstClaim": times.text(self.first_claim),
            "lastDateActive": times.text(self.last_date_active),
        }
        if self.recent_tasks:
            shown["latestTask"] = self.recent_tasks[-1]
        if self.is_quarantined(now):
            shown["quarantineUntil"] = times.text(self.quarantine_until)
        return shown


_COLUMNS = ", ".join(_WorkerRecord.__struct_fields__)


@queue("GET", f"{WORKER_TYPE}/workers", "queue:list-workers:<provisionerId>/<workerType>")
def list_workers(
    core: Core,
    task_queue_id: str,
    token: str | None,
    limit: int,
    quarantined: bool | None,  # noqa: FBT001 - a query parameter
) -> Json:
    """Return a page of a task queue's workers; only those (not) in quarantine unless `quarantined` is None.

    The page is filtered after it was read, so a page with a token may be short or empty.
    """
    sql = (
        f"SELECT {_COLUMNS} FROM workers WHERE task_queue_id = ?"  # noqa: S608 - constants
        " ORDER BY sort_key(worker_group), sort_key(worker_id)"
    )
    now = core.now()
    response = offset_page(core, "workers", _worker_of, token, limit, sql, task_queue_id)
    response["workers"] = [
        worker.listed(now) for worker in response["workers"] if worker.is_listed(now, quarantined=quarantined)
    ]
    return response


@queue("GET", f"{WORKER_TYPE}/workers/<workerGroup>/<workerId>", f"queue:get-worker:{_WORKER}")
def get_worker(core: Core, task_queue_id: str, worker: Worker) -> Json:
    """Return one worker, whose task queue must not have expired either."""
    known = _find(core, task_queue_id, worker)
    if known is None or not known.is_visible(core.now()):
        _refuse_unknown(task_queue_id, worker)
    get_task_queue(core, task_queue_id)
    return known.shown()


@queue(
    "PUT",
    f"{WORKER_TYPE}/workers/<workerGroup>/<workerId>",
    {"AllOf": [f"queue:quarantine-worker:{_WORKER}"]},
    schema="quarantine-worker-request",
)
def quarantine_worker(core: Core, caller: Caller, task_queue_id: str, worker: Worker, body: Json) -> Json:
    """Quarantine a known worker, expired or not, until a date; a past date ends the quarantine."""
    until = times.parse(body["quarantineUntil"], "quarantineUntil")
    known = _find(core, task_queue_id, worker)
    if known is None:
        _refuse_unknown(task_queue_id, worker)
    with core.transition() as now:
        entry = {
            "clientId": caller.client_id,
            "updatedAt": times.text(now),
            "quarantineUntil": times.text(until),
            "quarantineInfo": body.get("quarantineInfo") or _UNSPECIFIED,
        }
        known.quarantine_until = until
        known.quarantine_details.append(entry)
        known.expires = max(known.expires, now + _CLAIM_WORK_LIFE)
        _save(core, known)
    return known.shown()


@queue(
    "PUT",
    f"{WORKER_TYPE}/<workerGroup>/<workerId>",
    each("property", "properties", f"queue:declare-worker:{_WORKER}#<property>"),
    schema="update-worker-request",
)
def declare_worker(core: Core, caller: Caller, task_queue_id: str, worker: Worker, body: Json) -> Json:
    """Create the records of a worker and its task queue, or let them expire later, at `expires`."""
    caller.require(properties=list(body))
    worker_type = task_queue_id.partition("/")[2]
    if not _WORKER_TYPE.fullmatch(worker_type):
        refuse("InputError", f"`{worker_type}` is not a worker type that a task can have")
    expires = times.parse(body["expires"], "expires")
    with core.transition() as now:
        known = _find(core, task_queue_id, worker)
        if expires <= now and not (known and known.is_visible(now)):
            refuse("InputError", "`expires` must be in the future")
        touch_task_queue(core, task_queue_id, expires, now)
        return _refresh(core, task_queue_id, worker, expires, now).shown()


def worker_seen(core: Core, task_queue_id: str, worker: Worker) -> bool:
    """Note that a worker requests tasks; return whether it is in quarantine."""
    now = core.seen[task_queue_id, *worker] = core.now()
    known = _find(core, task_queue_id, worker)
    is_queue_due = _is_due(core, task_queue_id, now)
    is_worker_due = _is_due(core, "/".join([task_queue_id, *worker]), now)
    if known is None or is_queue_due or is_worker_due:
        with core.transition() as now:
            if is_queue_due:
                touch_task_queue(core, task_queue_id, now + _CLAIM_WORK_LIFE, now)
            if known is None or is_worker_due:
                known = _refresh(core, task_queue_id, worker, now + _CLAIM_WORK_LIFE, now)
    return known.is_quarantined(now)


def worker_active(core: Core, task_queue_id: str, worker: Worker, now: int) -> None:
    """Record, within a transition, that a worker has reclaimed a run of the task queue."""
    core.seen[task_queue_id, *worker] = now
    if _is_due(core, task_queue_id, now):
        touch_task_queue(core, task_queue_id, now + _CLAIM_WORK_LIFE, now)
    if _is_due(core, "/".join([task_queue_id, *worker]), now):
        _refresh(core, task_queue_id, worker, now + _CLAIM_WORK_LIFE, now)


def seen_by_claim_task(core: Core, task_queue_id: str, worker: Worker, now: int) -> bool:
    """Note that a task queue is in use, within a transition; return whether the worker is in quarantine.

    As in the service, claimTask creates no record of a worker, and nothing is noted for one in quarantine.
    """
    core.seen[task_queue_id, *worker] = now
    known = _find(core, task_queue_id, worker)
    if known is not None and known.is_quarantined(now):
        return True
    if _is_due(core, task_queue_id, now):
        touch_task_queue(core, task_queue_id, now + _CLAIM_TASK_LIFE, now)
    return False


def add_recent_tasks(core: Core, task_queue_id: str, worker: Worker, runs: list[tuple[str, int]]) -> None:
    """Add runs to the recent tasks of a worker, within a transition; do nothing for an unknown worker."""
    known = _find(core, task_queue_id, worker)
    if known:
        known.recent_tasks += [{"runId": run_id, "taskId": task_id} for task_id, run_id in runs]
        _save(core, known)


def forget_removed(core: Core, now: int) -> None:
    """Forget when workers without a record were seen, and activity that was stored over 30 minutes ago."""
    recorded = core.store.rows("SELECT task_queue_id, worker_group, worker_id FROM workers")
    for worker in core.seen.keys() - set(recorded):
        del core.seen[worker]
    for key in [key for key, noted in core.noted.items() if noted <= now - _INTERVAL]:
        del core.noted[key]


def _is_due(core: Core, key: str, now: int) -> bool:
    """Return whether to store that a task queue or worker is active: once in 30 minutes at most."""
    noted = core.noted.get(key)
    if noted is not None and noted > now - _INTERVAL:
        return False
    core.noted[key] = now
    return True


def _refresh(core: Core, task_queue_id: str, worker: Worker, expires: int, now: int) -> _WorkerRecord:
    never = times.add_years(now, _NEVER)
    known = _find(core, task_queue_id, worker) or _WorkerRecord(
        task_queue_id, *worker, never, expires, now, now, [], []
    )
    known.expires = max(known.expires, expires)
    known.last_date_active = now
    _save(core, known)
    return known


def _find(core: Core, task_queue_id: str, worker: Worker) -> _WorkerRecord | None:
    row = core.store.row(f"SELECT {_COLUMNS} FROM workers WHERE {_KEY}", task_queue_id, *worker)  # noqa: S608 - constants
    return _worker_of(row) if row else None


def _save(core: Core, worker: _WorkerRecord) -> None:
    *plain, recent_tasks, quarantine_details = msgspec.structs.astuple(worker)
    encoded = map(msgspec.json.encode, (recent_tasks[-_RECENT:], quarantine_details))
    core.store.insert("workers", *plain, *encoded, verb="INSERT OR REPLACE")


def _refuse_unknown(task_queue_id: str, worker: Worker) -> NoReturn:
    refuse("ResourceNotFound", f"Worker `{'/'.join(worker)}` of task queue `{task_queue_id}` does not exist.")


def _worker_of(row: tuple[Any, ...]) -> _WorkerRecord:
    return _WorkerRecord(*row[:-2], *map(msgspec.json.decode, row[-2:]))
