"""Task queues: their records, views by provisioner and worker type, and their pending and claimed tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

from taskqueue_client.local import times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import each, queue
from taskqueue_client.local.refusal import Refusal, existing

from .core import Core, Json
from .pages import decode_index, encode_index, offset_page, page_of
from .task_records import get_task, queue_names

WORKER_TYPE = "/provisioners/<provisionerId>/worker-types/<workerType>"
"""The route of a task queue, by the two halves of its id."""

_MOST_PROVISIONERS = 1000
_UNEXPIRED = "SELECT task_queue_id, expires, last_date_active FROM task_queues WHERE expires > ?"
_OF_PROVISIONER = (
    " AND task_queue_id > ? || '/' AND task_queue_id < ? || '0'"  # 0 is the next character after /
)
_PROVISIONERS = (
    "SELECT substr(task_queue_id, 1, instr(task_queue_id, '/') - 1) AS provisioner_id, max(expires),"
    " max(last_date_active) FROM task_queues WHERE expires > ?"
)


@queue("GET", "/task-queues", "queue:list-task-queues")
def list_task_queues(core: Core, token: str | None, limit: int) -> Json:
    """Return a page of the task queues that have not expired."""
    sql = _UNEXPIRED + " ORDER BY sort_key(task_queue_id)"
    return offset_page(core, "taskQueues", _task_queue, token, limit, sql, core.now())


@queue("GET", "/task-queues/<taskQueueId>", "queue:get-task-queue:<taskQueueId>", one_segment=True)
def get_task_queue(core: Core, task_queue_id: str) -> Json:
    """Return one task queue that has not expired."""
    return _task_queue(_find_task_queue(core, task_queue_id))


@queue("GET", "/provisioners/<provisionerId>/worker-types", "queue:list-worker-types:<provisionerId>")
def list_worker_types(core: Core, provisioner_id: str, token: str | None, limit: int) -> Json:
    """Return a page of a provisioner's task queues."""
    sql = _UNEXPIRED + _OF_PROVISIONER + " ORDER BY sort_key(task_queue_id)"
    values = (core.now(), provisioner_id, provisioner_id)
    return offset_page(core, "workerTypes", _worker_type, token, limit, sql, *values)


@queue("GET", WORKER_TYPE, "queue:get-worker-type:<provisionerId>/<workerType>")
def get_worker_type(core: Core, task_queue_id: str) -> Json:
    """Return one task queue, with the two halves of its id."""
    return _worker_type(_find_task_queue(core, task_queue_id))


@queue("GET", "/provisioners", "queue:list-provisioners")
def list_provisioners(core: Core, token: str | None, limit: int) -> Json:  # noqa: ARG001 - it may be given
    """Return the first provisioners, in the order of their first task queues; `limit` 0 stands for 1000.

    As in the service, there is no second page: a token is ignored.
    """
    sql = _PROVISIONERS + " GROUP BY 1 ORDER BY min(sort_key(task_queue_id)) LIMIT ?"
    rows = core.store.rows(sql, core.now(), limit or _MOST_PROVISIONERS)
    return {"provisioners": [_provisioner(row) for row in rows]}


@queue("GET", "/provisioners/<provisionerId>", "queue:get-provisioner:<provisionerId>")
def get_provisioner(core: Core, provisioner_id: str) -> Json:
    """Return one provisioner, with the latest expiry and activity of its task queues."""
    sql = _PROVISIONERS + _OF_PROVISIONER + " GROUP BY 1"
    row = core.store.row(sql, core.now(), provisioner_id, provisioner_id)
    return _provisioner(existing(row, f"Provisioner `{provisioner_id}` does not exist."))


def touch_task_queue(core: Core, task_queue_id: str, expires: int, now: int) -> None:
    """Record, within a transition, that a task queue is active; its expiry never becomes earlier."""
    sql = (
        "INSERT INTO task_queues VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
        " expires = max(expires, excluded.expires), last_date_active = excluded.last_date_active"
    )
    core.store.change(sql, task_queue_id, expires, now)


def _find_task_queue(core: Core, task_queue_id: str) -> tuple[Any, ...]:
    row = core.store.row(_UNEXPIRED + " AND task_queue_id = ?", core.now(), task_queue_id)
    return existing(row, f"Task queue `{task_queue_id}` does not exist.")


def _task_queue(row: tuple[Any, ...], id_name: str = "taskQueueId") -> Json:
    identifier, expires, last_date_active = row
    return {
        id_name: identifier,
        "expires": times.text(expires),
        "lastDateActive": times.text(last_date_active),
        "description": "",
        "stability": "experimental",
    }


def _worker_type(row: tuple[Any, ...]) -> Json:
    return {**_task_queue(row), **queue_names(row[0])}


def _provisioner(row: tuple[Any, ...]) -> Json:
    return _task_queue(row, "provisionerId")


_COUNT_SCOPES = ("queue:pending-count:<taskQueueId>", "queue:claimed-count:<taskQueueId>")
_PENDING = " FROM pending WHERE task_queue_id = ?"
_CLAIMABLE = f"{_PENDING} AND expires > ?"
_CLAIMED = " FROM claims JOIN tasks USING (task_id) WHERE claims.task_queue_id = ?"
_HELD = f"{_CLAIMED} AND taken_until > ?"
_LATEST_CLAIMS = (  # of claims in the same millisecond (the clock may be held), that of the later run
    "SELECT task_id, run_id, worker_group, worker_id, claimed, max(claimed * 1000 + min(run_id, 999))"
    f"{_CLAIMED} GROUP BY task_id"
)


@queue("GET", "/pending/<taskQueueId>", "queue:pending-count:<taskQueueId>")
def pending_tasks(core: Core, task_queue_id: str) -> Json:
    """Return the number of pending runs."""
    return {**queue_names(task_queue_id), "pendingTasks": _count(core, "*", _CLAIMABLE, task_queue_id)}


@queue("GET", "/task-queues/<taskQueueId>/counts", {"AllOf": [*_COUNT_SCOPES]})
def task_queue_counts(core: Core, task_queue_id: str) -> Json:
    """Return the numbers of pending runs, and of runs with a claim that has not expired."""
    claimed = _count(core, "DISTINCT task_id || '/' || run_id", _HELD, task_queue_id)
    return {**pending_tasks(core, task_queue_id), "claimedTasks": claimed}


@queue(
    "POST",
    "/task-queues/counts",
    each("taskQueueId", "taskQueueIds", *_COUNT_SCOPES),
    schema="task-queue-counts-request",
)
def task_queue_counts_batch(core: Core, caller: Caller, body: Json) -> Json:
    """Return the numbers of pending and of claimed runs of several task queues."""
    caller.require(taskQueueIds=body["taskQueueIds"])
    return {"taskQueueCounts": [task_queue_counts(core, each_id) for each_id in body["taskQueueIds"]]}


@queue("GET", "/task-queues/<taskQueueId>/pending", "queue:pending-list:<taskQueueId>")
def list_pending_tasks(core: Core, task_queue_id: str, token: str | None, limit: int) -> Json:
    """Return a page of the pending runs, the oldest first.

    As in the service, a task past its deadline is among them until a resolver handles it, and the task that
    ended the previous page is not listed again, even if it was retried.
    """
    inserted, last_id = decode_index(token, tuple[str, str]) or ("", "")
    last_seq = _last_seq(core, task_queue_id, _moment(inserted), last_id)
    sql = f"SELECT task_id, run_id, inserted {_PENDING} AND seq > ? AND task_id <> ? ORDER BY seq LIMIT ?"
    rows = core.store.rows(sql, task_queue_id, last_seq, last_id, limit + 1)
    return page_of("tasks", rows, limit, partial(_pending_task, core), _token)


@queue("GET", "/task-queues/<taskQueueId>/claimed", "queue:claimed-list:<taskQueueId>")
def list_claimed_tasks(core: Core, task_queue_id: str, token: str | None, limit: int) -> Json:
    """Return a page of the claimed tasks, by the time of their latest claim or reclaim.

    As in the service, a task whose claim has expired is among them until a resolver handles it, and the
    task that ended the previous page is not listed again, even if it was reclaimed.
    """
    claimed, last_id = decode_index(token, tuple[str, str]) or ("", "")
    sql = (
        f"SELECT task_id, run_id, worker_group, worker_id, claimed FROM ({_LATEST_CLAIMS})"  # noqa: S608 - constants
        " WHERE (claimed, task_id) > (?, ?) AND task_id <> ? ORDER BY claimed, task_id LIMIT ?"
    )
    rows = core.store.rows(sql, task_queue_id, _moment(claimed), last_id, last_id, limit + 1)
    return page_of("tasks", rows, limit, partial(_claimed_task, core), _token)


def _count(core: Core, what: str, of: str, task_queue_id: str) -> int:
    return int(core.store.value(f"SELECT count({what}) {of}", task_queue_id, core.now()))


def _last_seq(core: Core, task_queue_id: str, moment: int, task_id: str) -> int:
    """Return the `seq` of the previous page's last run; of the one before if that is not pending any more."""
    exact = "SELECT max(seq) FROM pending WHERE task_queue_id = ? AND inserted = ? AND task_id = ?"
    near = "SELECT max(seq) FROM pending WHERE task_queue_id = ? AND inserted < ?"
    key = (task_queue_id, moment)
    return core.store.value(exact, *key, task_id) or core.store.value(near, *key) or 0


def _pending_task(core: Core, row: tuple[Any, ...]) -> Json:
    task_id, run_id, inserted = row
    task = get_task(core.store, task_id).definition()
    return {"taskId": task_id, "runId": run_id, "task": task, "inserted": times.text(inserted)}


def _claimed_task(core: Core, row: tuple[Any, ...]) -> Json:
    task_id, run_id, worker_group, worker_id, claimed = row
    return {
        "taskId": task_id,
        "runId": run_id,
        "workerGroup": worker_group,
        "workerId": worker_id,
        "claimed": times.text(claimed),
        "task": get_task(core.store, task_id).definition(),
    }


def _token(row: tuple[Any, ...]) -> str:
    """Return the token of a page whose last row is `row`: it begins with a task id, and ends with a time."""
    return encode_index(times.text(row[-1]), row[0])


def _moment(text: str) -> int:
    try:
        return times.parse(text, "continuationToken")
    except Refusal:
        return 0
