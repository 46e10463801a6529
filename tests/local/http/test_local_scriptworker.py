"""The `scriptworker` package takes a task from the local queue, runs it and resolves it, as it is."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client import slugid
from tests.local.local_http import QUEUE, Wire

if TYPE_CHECKING:
    from pathlib import Path

    from taskqueue_client.local import LocalQueue
    from taskqueue_client.local.messages import Message
    from taskqueue_client.testing import TaskFactory

pytest.importorskip("scriptworker", reason="the peer that is tested with is not installed")

_SCRIPT = """
mkdir -p "$1/public"
echo "a line of the log"
cat "$0/current_task_info.json" > "$1/public/info.json"
exit "$(tr -d ' ' < "$0/task.json" | sed -n 's/.*"exit":\\([0-9]*\\).*/\\1/p')"
"""

_OUTCOMES = {0: ("completed", "completed"), 1: ("failed", "failed"), 3: ("exception", "malformed-payload")}
"""State and reason of a task by the exit code of its script."""


def _config(local: LocalQueue, folder: Path) -> Path:
    folders = {name: folder / name for name in ("work_dir", "log_dir", "artifact_dir")}
    folders["task_log_dir"] = folders["artifact_dir"] / "public" / "logs"
    for each in folders.values():
        each.mkdir(parents=True)
    settings: dict[str, Any] = {
        **folders,
        "taskcluster_root_url": local.root_url,
        "provisioner_id": "test-provisioner",
        "worker_type": "test-worker",
        "worker_group": "group",
        "worker_id": "worker",
        "credentials": {"clientId": local.client_id, "accessToken": local.access_token},
        "task_script": ["sh", "-c", _SCRIPT, str(folders["work_dir"]), str(folders["artifact_dir"])],
        "sign_chain_of_trust": False,
        "ed25519_private_key_path": "none",
        "poll_interval": 1,
    }
    path = folder / "scriptworker.json"
    path.write_text(json.dumps(settings, default=str))
    return path


def test_scriptworker_runs_tasks(local_queue: LocalQueue, task_factory: TaskFactory, tmp_path: Path) -> None:
    wire, resolved = Wire(local_queue), Semaphore(0)
    tasks = {slugid(): exit_code for exit_code in _OUTCOMES}
    ends = {"task-completed", "task-failed", "task-exception"}

    def notice(message: Message) -> None:
        if message.exchange.rpartition("/")[2] in ends:
            resolved.release()

    local_queue.subscribe(notice)
    for task_id, exit_code in tasks.items():
        task = task_factory(payload={"upstreamArtifacts": [], "exit": exit_code}, scopes=[], dependencies=[])
        assert wire.json("PUT", f"{QUEUE}/task/{task_id}", task, key=wire.root).status == 200
    command = [
        sys.executable,
        "-c",
        "from scriptworker.worker import main; main()",
        str(_config(local_queue, tmp_path)),
    ]
    log = tmp_path / "output"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as worker,
    ):
        try:
            for _ in tasks:
                assert resolved.acquire(timeout=60), log.read_text()
        finally:
            worker.send_signal(signal.SIGTERM)
    assert worker.returncode == 0, log.read_text()
    for task_id, exit_code in tasks.items():
        status = wire.send("GET", f"{QUEUE}/task/{task_id}/status").json["status"]
        (run,) = status["runs"]
        assert (status["state"], run["reasonResolved"]) == _OUTCOMES[exit_code]
        _check_artifacts(wire, task_id)


def _check_artifacts(wire: Wire, task_id: str) -> None:
    listed = wire.send("GET", f"{QUEUE}/task/{task_id}/artifacts").json["artifacts"]
    assert {artifact["name"] for artifact in listed} >= {"public/info.json", "public/logs/live_backing.log"}
    url = wire.send("GET", f"{QUEUE}/task/{task_id}/artifacts/public/info.json").headers["location"]
    info = wire.send("GET", url.removeprefix(wire.local.root_url))
    assert info.headers["content-encoding"] == "gzip"  # scriptworker compresses text
    assert json.loads(gzip.decompress(info.body)) == {"taskId": task_id, "runId": 0}
