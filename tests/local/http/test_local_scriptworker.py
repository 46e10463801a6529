"""The `scriptworker` package takes a task from the local queue, runs it and resolves it, as it is."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
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

_SCRIPT = 'echo "a line of the log"; cat "$0/current_task_info.json" > "$1/public/info.json"; exit "$2"'


def _config(local: LocalQueue, folder: Path, exit_code: int) -> Path:
    folders = {name: folder / name for name in ("work_dir", "log_dir", "artifact_dir")}
    folders["task_log_dir"] = folders["artifact_dir"] / "public" / "logs"
    for each in folders.values():
        each.mkdir(parents=True)
    script = [
        "sh",
        "-c",
        f'mkdir -p "$1/public"; {_SCRIPT}',
        folders["work_dir"],
        folders["artifact_dir"],
        exit_code,
    ]
    settings: dict[str, Any] = {
        **folders,
        "taskcluster_root_url": local.root_url,
        "provisioner_id": "test-provisioner",
        "worker_type": "test-worker",
        "worker_group": "group",
        "worker_id": "worker",
        "credentials": {"clientId": local.client_id, "accessToken": local.access_token},
        "task_script": [str(word) for word in script],
        "sign_chain_of_trust": False,
        "ed25519_private_key_path": "none",
        "poll_interval": 1,
    }
    path = folder / "scriptworker.json"
    path.write_text(json.dumps(settings, default=str))
    return path


@pytest.mark.parametrize(("exit_code", "outcome"), [(0, "completed"), (1, "failed"), (3, "exception")])
def test_scriptworker_runs_a_task(
    local_queue: LocalQueue, task_factory: TaskFactory, tmp_path: Path, exit_code: int, outcome: str
) -> None:
    wire, task_id, resolved = Wire(local_queue), slugid(), threading.Event()
    ends = {"task-completed", "task-failed", "task-exception"}

    def notice(message: Message) -> None:
        if message.exchange.rpartition("/")[2] in ends:
            resolved.set()

    local_queue.subscribe(notice)
    command = [
        sys.executable,
        "-c",
        "from scriptworker.worker import main; main()",
        str(_config(local_queue, tmp_path, exit_code)),
    ]
    log = tmp_path / "output"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as worker,
    ):
        task = task_factory(payload={"upstreamArtifacts": []}, scopes=[], dependencies=[])
        assert wire.json("PUT", f"{QUEUE}/task/{task_id}", task, key=wire.root).status == 200
        try:
            assert resolved.wait(60), log.read_text()
        finally:
            worker.send_signal(signal.SIGTERM)
    assert worker.returncode == 0, log.read_text()
    status = wire.send("GET", f"{QUEUE}/task/{task_id}/status").json["status"]
    assert (status["state"], len(status["runs"])) == (outcome, 1)
    assert status["runs"][0].get("reasonResolved") == ("malformed-payload" if exit_code == 3 else outcome)
    _check_artifacts(wire, task_id)


def _check_artifacts(wire: Wire, task_id: str) -> None:
    listed = wire.send("GET", f"{QUEUE}/task/{task_id}/artifacts").json["artifacts"]
    assert {artifact["name"] for artifact in listed} >= {"public/info.json", "public/logs/live_backing.log"}
    url = wire.send("GET", f"{QUEUE}/task/{task_id}/artifacts/public/info.json").headers["location"]
    info = wire.send("GET", url.removeprefix(wire.local.root_url))
    assert info.headers["content-encoding"] == "gzip"  # scriptworker packs text, and storage keeps it so
    assert json.loads(gzip.decompress(info.body)) == {"taskId": task_id, "runId": 0}
