"""The floor of the local queue: bare aiohttp.web and sqlite3, which execute the same statements.

The schema and the statements are those of the local queue; a test compares them. Nothing else is done: no
signature is verified, nothing is checked, and the dates of the responses are constant.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from benchmarks.worker_queue import FAR_FUTURE, credentials
from taskqueue_client.local.engine.store import Store, sort_key

WORKER = ("prov/wt", "wg", "w1")
NOW = 1_795_000_000_000
LATER = 4_000_000_000_000
"""Milliseconds since the epoch; `FAR_FUTURE` in the responses."""

_TASK = (
    "SELECT task_id, task_queue_id, scheduler_id, project_id, task_group_id, priority, deadline, expires, "
    "retries, retries_left, claimed_by_id, ever_resolved, runs, definition FROM tasks WHERE task_id = ?"
)
_NEW_TASK = (
    "INSERT INTO tasks (sort_key, task_id, task_queue_id, scheduler_id, project_id, task_group_id, priority, "
    "deadline, expires, retries, retries_left, claimed_by_id, ever_resolved, runs, definition) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_NEW_PENDING = (
    "INSERT INTO pending (task_queue_id, priority, inserted, expires, task_id, run_id) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_CHANGED_RUN = "UPDATE tasks SET runs = ?, retries_left = ?, claimed_by_id = ? WHERE task_id = ?"
_WORKER = (
    "SELECT task_queue_id, worker_group, worker_id, quarantine_until, expires, first_claim, "
    "last_date_active, recent_tasks, quarantine_details FROM workers "
    "WHERE task_queue_id = ? AND worker_group = ? AND worker_id = ?"
)
_PENDING = (
    "SELECT task_id, run_id FROM pending WHERE task_queue_id = ? AND expires > ? "
    "ORDER BY priority DESC, seq LIMIT ?"
)
NEXT_DUE = (
    "SELECT min(moment) FROM (SELECT min(taken_until) AS moment FROM claims UNION ALL "
    "SELECT min(inserted) FROM resolved UNION ALL SELECT min(deadline) + ? FROM tasks WHERE deadline_open)"
)
NEXT_RESOLVED = (
    "SELECT seq, task_id, task_group_id, resolution FROM resolved WHERE inserted <= ? ORDER BY seq LIMIT 1"
)
_DEPENDENT = (
    "required = ? AND satisfied = 0 AND (requires = 'all-resolved' OR ? = 'completed') AND expires >= ?"
)


class BareQueue:
    """Creates tasks, hands them out one by one, and takes the reports.

    Args:
        path: The database.
    """

    def __init__(self, path: str) -> None:
        self._store = Store(path)
        self._execute = self._store.connection.execute

    async def close(self, _: web.Application) -> None:
        """Close the database."""
        self._store.close()

    async def create(self, request: web.Request) -> web.Response:
        """See `createTask`."""
        task_id, definition = request.match_info["task_id"], json.loads(await request.read())
        queue, group, scheduler = (definition[key] for key in ("taskQueueId", "taskGroupId", "schedulerId"))
        runs = [{"runId": 0, "state": "pending", "reasonCreated": "scheduled", "scheduled": FAR_FUTURE}]
        row = (sort_key(task_id), task_id, queue, scheduler, "none", group, 1, LATER, LATER, 5, 5, 0, 0)
        self._execute("BEGIN IMMEDIATE")
        self._execute(
            "INSERT OR IGNORE INTO task_groups VALUES (?, ?, ?, ?)", (group, scheduler, LATER, None)
        )
        self._execute(_TASK, (task_id,)).fetchone()
        self._execute(_NEW_TASK, (*row, _encoded(runs), _encoded(definition)))
        self._execute(_NEW_PENDING, (queue, 1, NOW, LATER, task_id, 0))
        self._execute("COMMIT")
        self._execute(NEXT_DUE, (0,)).fetchone()
        return web.json_response({"status": _status(task_id, queue, scheduler, group, runs)})

    async def claim(self, request: web.Request) -> web.Response:
        """See `claimWork`, for one task that is pending."""
        asked = json.loads(await request.read())
        self._execute(_WORKER, WORKER).fetchone()
        task_id, run_id = self._execute(_PENDING, (WORKER[0], NOW, asked["tasks"])).fetchone()
        self._execute("BEGIN IMMEDIATE")
        _, queue, scheduler, _, group, *_, definition = self._execute(_TASK, (task_id,)).fetchone()
        runs = [{**_RUN, "state": "running"}]
        self._execute(
            "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)",
            (task_id, run_id, LATER, *WORKER, NOW),
        )
        self._execute(_CHANGED_RUN, (_encoded(runs), 5, 0, task_id))
        self._execute("DELETE FROM pending WHERE task_id = ? AND run_id = ?", (task_id, run_id))
        self._execute(_WORKER, WORKER).fetchone()
        recent = _encoded([{"taskId": task_id, "runId": run_id}] * 20)
        worker = (*WORKER, NOW, LATER, NOW, NOW, recent, b"[]")
        self._execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", worker)
        self._execute("COMMIT")
        self._execute(NEXT_DUE, (0,)).fetchone()
        about = {"runId": run_id, "workerGroup": "wg", "workerId": "w1", "takenUntil": FAR_FUTURE}
        status = _status(task_id, queue, scheduler, group, runs)
        task = {**json.loads(definition), "provisionerId": "prov", "workerType": "wt", "projectId": "none"}
        own = credentials(NOW / 1000, 1200)
        return web.json_response({"tasks": [{**about, "status": status, "task": task, "credentials": own}]})

    async def report(self, request: web.Request) -> web.Response:
        """See `reportCompleted`; the dependency resolver follows, as in the local queue."""
        task_id, run_id = request.match_info["task_id"], int(request.match_info["run_id"])
        self._execute("BEGIN IMMEDIATE")
        _, queue, scheduler, _, group, *_ = self._execute(_TASK, (task_id,)).fetchone()
        runs = [{**_RUN, "state": "completed", "reasonResolved": "completed", "resolved": FAR_FUTURE}]
        self._execute(_CHANGED_RUN, (_encoded(runs), 5, 0, task_id))
        self._execute("DELETE FROM claims WHERE task_id = ? AND run_id = ?", (task_id, run_id))
        self._execute(
            "INSERT INTO resolved (task_id, task_group_id, resolution, inserted) VALUES (?, ?, ?, ?)",
            (task_id, group, "completed", NOW),
        )
        self._execute("COMMIT")
        self._resolve()
        return web.json_response({"status": _status(task_id, queue, scheduler, group, runs)})

    def _resolve(self) -> None:
        seq, task_id, group, resolution = self._execute(NEXT_RESOLVED, (NOW,)).fetchone()
        self._execute("BEGIN IMMEDIATE")
        self._execute("DELETE FROM resolved WHERE seq = ?", (seq,))
        which = (task_id, resolution, NOW)
        self._execute(
            f"SELECT dependent FROM dependencies WHERE {_DEPENDENT} ORDER BY sort_key(dependent)", which
        ).fetchall()
        self._execute(f"UPDATE dependencies SET satisfied = 1 WHERE {_DEPENDENT}", which)
        self._execute("UPDATE tasks SET ever_resolved = 1 WHERE task_id = ?", (task_id,))
        self._execute(
            "SELECT 1 FROM tasks WHERE task_group_id = ? AND ever_resolved = 0 LIMIT 1", (group,)
        ).fetchone()
        self._execute(
            "SELECT scheduler_id, expires, sealed FROM task_groups WHERE task_group_id = ?", (group,)
        ).fetchone()
        self._execute("COMMIT")
        self._execute(NEXT_RESOLVED, (NOW,)).fetchone()


_RUN = {
    "runId": 0,
    "reasonCreated": "scheduled",
    "scheduled": FAR_FUTURE,
    "started": FAR_FUTURE,
    "takenUntil": FAR_FUTURE,
    "workerGroup": "wg",
    "workerId": "w1",
}


def _encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _status(task_id: str, queue: str, scheduler: str, group: str, runs: list[dict[str, Any]]) -> object:
    provisioner, _, worker_type = queue.partition("/")
    return {
        "taskId": task_id,
        "provisionerId": provisioner,
        "workerType": worker_type,
        "taskQueueId": queue,
        "schedulerId": scheduler,
        "projectId": "none",
        "taskGroupId": group,
        "priority": "lowest",
        "deadline": FAR_FUTURE,
        "expires": FAR_FUTURE,
        "retriesLeft": 5,
        "state": runs[-1]["state"],
        "runs": runs,
    }


def application(path: str) -> web.Application:
    """Return the server; `path` is its database."""
    queue, app = BareQueue(path), web.Application(client_max_size=2**25)
    app.on_cleanup.append(queue.close)
    app.router.add_put("/api/queue/v1/task/{task_id}", queue.create)
    app.router.add_post("/api/queue/v1/claim-work/{task_queue_id}", queue.claim)
    app.router.add_post("/api/queue/v1/task/{task_id}/runs/{run_id}/completed", queue.report)
    return app


@contextmanager
def bare_queue() -> Generator[tuple[str, int]]:
    """Yield URL and process id of a bare queue in a separate process, with its database in memory."""
    command = [sys.executable, "-m", "benchmarks.bare_queue"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.kill()


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        web.run_app(application(":memory:"), sock=listener, access_log=None, print=None)


if __name__ == "__main__":
    main()
