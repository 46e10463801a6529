"""Changes that the server has confirmed survive kill -9 at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any

import taskcluster

from taskqueue_client import slugid

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

_COMMAND = [sys.executable, "-m", "taskqueue_client", "local", "--json"]
_CLIENT = {"clientId": "local", "accessToken": "of-the-crash-test"}
_ROUNDS = 5
_WORKERS = 3


@contextmanager
def _server(db: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a server in a separate process, and kill it at the end; yield the process and its root URL."""
    environment = {**os.environ, "TASKQUEUE_LOCAL_ACCESS_TOKEN": _CLIENT["accessToken"]}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*_COMMAND, "--db", str(db)], env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["TASKCLUSTER_ROOT_URL"]
        finally:
            process.kill()


class _Worker:
    """Creates, claims and resolves tasks of its own task queue, and records what the server confirmed."""

    def __init__(self, number: int) -> None:
        self.task_queue_id = f"crash/worker-{number}"
        self.seen: dict[str, dict[str, Any]] = {}
        """The status of each task in the last response."""
        self.artifacts: dict[str, list[str]] = {}
        """The names of the confirmed artifacts of each run, by `TASK/RUN`."""
        self.in_doubt: set[str] = set()
        """The tasks that the last call may have changed, if it had no response."""

    def run(self, root_url: str, acknowledged: Callable[[], None]) -> None:
        """Work until the server is killed."""
        self._queue = _client(root_url)
        self._acknowledged = acknowledged
        try:
            while True:
                self._work()
        except taskcluster.exceptions.TaskclusterConnectionError:
            pass

    def _work(self) -> None:
        for task_id in [slugid() for _ in range(random.randint(1, 3))]:
            self._change(task_id, self._queue.createTask, _definition(self.task_queue_id))
            if random.random() < 0.1:
                self._change(task_id, self._queue.cancelTask)
                self._change(task_id, self._queue.rerunTask)
        for task_id, run_id in self._claim():
            self._change(task_id, self._queue.reclaimTask, str(run_id))
            self._add_artifact(task_id)
            self._resolve(task_id, str(run_id))

    def _call(self, task_ids: set[str], method: Callable[..., Any], *args: Any) -> Any:
        self.in_doubt = task_ids
        response = method(*args)
        self._acknowledged()
        return response

    def _change(self, task_id: str, method: Callable[..., Any], *args: Any) -> None:
        self.seen[task_id] = self._call({task_id}, method, task_id, *args)["status"]
        self.in_doubt = set()

    def _claim(self) -> list[tuple[str, int]]:
        waiting = {task_id for task_id, status in self.seen.items() if status["state"] == "pending"}
        body = {"workerGroup": "g", "workerId": "w", "tasks": 2}
        claims = self._call(waiting, self._queue.claimWork, self.task_queue_id, body)["tasks"]
        self.seen |= {claim["status"]["taskId"]: claim["status"] for claim in claims}
        self.in_doubt = set()
        return [(claim["status"]["taskId"], claim["runId"]) for claim in claims]

    def _add_artifact(self, task_id: str) -> None:
        name = f"public/{slugid()}"
        expires = self.seen[task_id]["expires"]
        about = {"storageType": "reference", "expires": expires, "contentType": "a/b", "url": "https://x.org"}
        run_id = str(self.seen[task_id]["runs"][-1]["runId"])
        self._call({task_id}, self._queue.createArtifact, task_id, run_id, name, about)
        self.artifacts.setdefault(f"{task_id}/{run_id}", []).append(name)
        self.in_doubt = set()

    def _resolve(self, task_id: str, run_id: str) -> None:
        end = random.choice(["reportCompleted", "reportFailed", "reportException"])
        reason = [{"reason": "worker-shutdown"}] if end == "reportException" else []
        self._change(task_id, getattr(self._queue, end), run_id, *reason)

    def check(self, root_url: str) -> None:
        """Compare what was confirmed with what the restarted server has."""
        queue = _client(root_url)
        for task_id in self.in_doubt | self.seen.keys():
            status = _status(queue, task_id)
            if task_id in self.in_doubt:  # no response has said whether the change was made
                self.seen |= {task_id: status} if status else {}
            else:
                assert status == self.seen[task_id]
        self.in_doubt = set()
        self._check_artifacts(queue)
        self._check_lists(queue)

    def _check_artifacts(self, queue: Any) -> None:
        for run, names in self.artifacts.items():
            listed = queue.listArtifacts(*run.split("/"))["artifacts"]
            assert {artifact["name"] for artifact in listed} >= set(names)

    def _check_lists(self, queue: Any) -> None:
        """Check that each change was made as a whole: the lists of the task queue agree with the tasks."""
        states = Counter(status["state"] for status in self.seen.values())
        pending = queue.listPendingTasks(self.task_queue_id)["tasks"]
        assert {entry["taskId"] for entry in pending} == self._in_state("pending")
        assert len(pending) == states["pending"]
        claimed = queue.listClaimedTasks(self.task_queue_id)["tasks"]
        assert {entry["taskId"] for entry in claimed} >= self._in_state("running")

    def _in_state(self, state: str) -> set[str]:
        return {task_id for task_id, status in self.seen.items() if status["state"] == state}


def _definition(task_queue_id: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "taskQueueId": task_queue_id,
        "created": now.isoformat(),
        "deadline": (now + timedelta(hours=1)).isoformat(),
        "payload": {},
        "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.org"},
    }


def _client(root_url: str) -> Any:
    return taskcluster.Queue({"rootUrl": root_url, "credentials": _CLIENT, "maxRetries": 0})


def _status(queue: Any, task_id: str) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = queue.status(task_id)["status"]
    except taskcluster.exceptions.TaskclusterRestFailure as error:
        if error.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise
    return status


def _killer(process: subprocess.Popen[str], after: int) -> Callable[[], None]:
    """Return a function to call after each response: it kills the server after `after` responses."""
    responses = count(1)

    def acknowledged() -> None:
        if next(responses) == after:
            process.kill()

    return acknowledged


def test_no_confirmed_change_is_lost_when_the_server_is_killed_again_and_again(tmp_path: Path) -> None:
    workers = [_Worker(number) for number in range(_WORKERS)]
    for round_ in range(_ROUNDS):
        with _server(tmp_path / "tasks.sqlite") as (process, root_url):
            for worker in workers:
                worker.check(root_url)
            acknowledged = _killer(process, after=30 + 11 * round_)
            with ThreadPoolExecutor(_WORKERS) as threads:
                ended = [threads.submit(worker.run, root_url, acknowledged) for worker in workers]
            assert [future.exception() for future in ended] == [None] * _WORKERS
            assert process.wait() == -signal.SIGKILL
    with _server(tmp_path / "tasks.sqlite") as (_, root_url):
        for worker in workers:
            worker.check(root_url)
    assert all(len(worker.seen) > _ROUNDS for worker in workers)
