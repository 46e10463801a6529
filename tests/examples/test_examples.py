"""Each example does what it says, against a local queue."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.local import LocalQueue
from taskqueue_client.models import Run
from taskqueue_client.testing import TaskFactory

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"

Working = Callable[..., AbstractContextManager["subprocess.Popen[str]"]]
Create = Callable[..., str]


@pytest.fixture
def create(queue: Queue, task_factory: TaskFactory) -> Create:
    """Creates a task with a payload."""

    def create_task(task_queue_id: str, payload: dict[str, Any], **keys: Any) -> str:
        task_id = slugid()
        queue.create_task(task_id, task_factory(taskQueueId=task_queue_id, payload=payload, **keys))
        return task_id

    return create_task


def last_run(queue: Queue, task_id: str) -> Run:
    return queue.status(task_id).status.runs[-1]


def log_of(queue: Queue, task_id: str) -> str:
    return queue.download_artifact(task_id, "public/logs/live.log").content.decode()


def test_the_command_worker_runs_commands_and_keeps_files(
    working: Working, create: Create, queue: Queue
) -> None:
    payload = {"command": ["sh", "-c", "echo $WHAT > cake"], "env": {"WHAT": "crumbs"}}
    good = create("proj/commands", {**payload, "artifacts": {"public/cake": "cake"}})
    bad = create("proj/commands", {"command": ["sh", "-c", "exit 3"]})
    with working("examples.command_worker:CommandWorker", "proj/commands", "--max-tasks", "2"):
        pass
    assert last_run(queue, good).reason_resolved == "completed"
    assert queue.download_artifact(good, "public/cake").content == b"crumbs\n"
    assert last_run(queue, bad).reason_resolved == "failed"
    assert "exit code 3" in log_of(queue, bad)


def test_the_async_worker_checks_links(
    working: Working, create: Create, queue: Queue, deployment: LocalQueue
) -> None:
    ping, missing = f"{deployment.root_url}/api/queue/v1/ping", f"{deployment.root_url}/nothing/here"
    good = create("proj/links", {"urls": [ping]})
    bad = create("proj/links", {"urls": [ping, missing, "http://127.0.0.1:9/"]})
    malformed = create("proj/links", {"urls": ["gopher://example.com"]})
    with working("examples.async_worker:LinkChecker", "proj/links", "--max-tasks", "3", "--concurrency", "3"):
        pass
    reasons = [last_run(queue, each).reason_resolved for each in (good, bad, malformed)]
    assert reasons == ["completed", "failed", "malformed-payload"]
    report = json.loads(queue.download_artifact(bad, "public/links.json").content)
    assert report[missing] == "404 Not Found"
    assert f"2 of 3 links are broken: {missing}" in log_of(queue, bad)


def test_the_script_submits_a_graph_and_shows_the_sum(working: Working) -> None:
    with (
        working(
            "examples.command_worker:CommandWorker", "proj/words", "--max-tasks", "4", "--concurrency", "3"
        ),
        subprocess.Popen(
            [sys.executable, "-m", "examples.submit_graph", "proj/words"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as script,
    ):
        output, _ = script.communicate(timeout=120)
    assert script.returncode == 0
    assert "4 completed" in output
    assert re.search(r"\d+ \+ \d+ \+ \d+ = 34", output)


def test_a_cache_lasts_from_task_to_task_if_the_task_has_its_scope(
    working: Working, create: Create, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_CACHES", str(tmp_path))
    scopes = ["example-worker:cache:c*"]
    count = {"command": ["sh", "-c", "echo x >> it/log; wc -l < it/log"], "caches": {"cargo": "it"}}
    allowed = [create("proj/caches", count, scopes=scopes) for _ in range(2)]
    denied = create("proj/caches", {**count, "caches": {"pip": "it"}}, scopes=scopes)
    with working(
        "examples.cached_worker:CachedWorker", "proj/caches", "--max-tasks", "3", "--concurrency", "3"
    ):
        pass
    assert {last_run(queue, each).reason_resolved for each in allowed} == {"completed"}
    assert (tmp_path / "cargo" / "log").read_text() == "x\nx\n"
    assert last_run(queue, denied).reason_resolved == "malformed-payload"
    assert "needs the scopes example-worker:cache:pip" in log_of(queue, denied)
    assert not (tmp_path / "pip").exists()


def test_a_worker_that_is_told_to_leave_reports_it_and_removes_half_written_caches(
    working: Working,
    create: Create,
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EXAMPLE_CACHES", str(tmp_path / "caches"))
    monkeypatch.setenv("TASKQUEUE_GRACEFUL_SHUTDOWN_TIMEOUT", "0")
    begun = tmp_path / "begun"
    subprocess.run(["mkfifo", begun], check=True)
    command = ["sh", "-c", f"echo half > it/file; echo > {begun}; sleep 600"]
    task_id = create(
        "proj/caches",
        {"command": command, "caches": {"cargo": "it"}},
        scopes=["example-worker:cache:*"],
        retries=1,
    )
    with working("examples.cached_worker:CachedWorker", "proj/caches") as process:
        begun.read_text()  # blocks until the command is that far
        process.send_signal(signal.SIGTERM)
    first, second = queue.status(task_id).status.runs
    assert first.reason_resolved == "worker-shutdown"
    assert second.state == "pending"
    assert not (tmp_path / "caches" / "cargo").exists()


def test_the_example_s_own_tests_pass() -> None:
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "examples/test_command_worker.py"],
        cwd=ROOT,
        check=True,
        timeout=120,
    )


@pytest.mark.usefixtures("deployment")
def test_both_clients_do_each_step_of_the_move_alike() -> None:
    pytest.importorskip("taskcluster")
    answer = subprocess.run(
        [sys.executable, "-m", "examples.moving_from_taskcluster"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "queue.createTask(task_id, DEFINITION)" in answer.stdout
    assert "queue.create_task(task_id, DEFINITION)" in answer.stdout


def container_command() -> list[str]:
    """What the Dockerfile has the container run."""
    (line,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return list(json.loads(line))


def service() -> configparser.SectionProxy:
    """How systemd runs the worker."""
    unit = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment,method-assign] # as configparser's documentation says
    unit.read(DEPLOY / "taskqueue-worker.service")
    return unit["Service"]


@pytest.mark.parametrize("host", ["container", "service"])
def test_what_the_deployment_files_run_is_a_worker_that_works(
    host: str,
    create: Create,
    queue: Queue,
    deployment: LocalQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del deployment  # its variables are in the environment
    shutil.copy(ROOT / "examples" / "command_worker.py", tmp_path)
    shutil.copy(DEPLOY / "worker.yml", tmp_path)
    monkeypatch.setenv("TASKQUEUE_WORKER_ID", "one")
    monkeypatch.setenv("TASKQUEUE_METRICS_PORT", "0")
    monkeypatch.setenv("TASKQUEUE_MAX_TASKS", "1")
    command = container_command() if host == "container" else service()["ExecStart"].split()
    assert Path(command[0]).name == "taskqueue"
    task_id = create("proj/linux", {"command": ["true"]})
    subprocess.run(["taskqueue", *command[1:]], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert last_run(queue, task_id).reason_resolved == "completed"


def test_what_the_image_is_built_from_is_there() -> None:
    source = re.findall(r"/tmp/source/(\S+)", (DEPLOY / "Dockerfile").read_text())
    let_in = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert source
    assert [each for each in (*source, *let_in) if not (ROOT / each).exists()] == []
    assert {each.partition("/")[0] for each in source} <= set(let_in)


def test_hosts_grant_more_time_than_the_worker_takes_to_leave() -> None:
    import yaml

    settings = yaml.safe_load((DEPLOY / "worker.yml").read_text())
    needed = settings["graceful_shutdown_timeout"] + settings["termination_grace"]
    (stop,) = re.findall(r"--stop-timeout (\d+)", (DEPLOY / "Dockerfile").read_text())
    assert int(service()["TimeoutStopSec"]) > needed
    assert int(stop) > needed
    assert f"127.0.0.1:{settings['metrics_port']}/live" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here to check its unit")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "taskqueue-worker.service").read_text()
    unit = tmp_path / "taskqueue-worker.service"
    unit.write_text(text.replace("/opt/worker/venv/bin/taskqueue", sys.executable).replace("User=worker", ""))
    answer = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in answer.stderr.splitlines() if unit.name in line]
    assert complaints == []
