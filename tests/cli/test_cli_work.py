"""`taskqueue work`: a worker's class, run as a process."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from tests.cli.command import run, running

WORKER = """
from taskqueue_client import WorkerLoop

class Greeter(WorkerLoop):
    def run_task(self, task):
        task.log.info("hello %s", task.payload["name"])

class NoWorker:
    pass
"""
CONFIG = "task_queue_id: proj/linux\nworker_group: tests\nworker_id: one\n"


@pytest.fixture
def files(folder: Path) -> None:
    (folder / "greeting.py").write_text(WORKER)
    (folder / "worker.yml").write_text(CONFIG)
    (folder / "broken.py").write_text("import no_such_module\n")


@pytest.mark.usefixtures("deployment", "files")
def test_a_class_in_the_directory_works_as_the_file_says(queue: Queue, task_factory: Any) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload={"name": "you"}))
    with running(
        "work", "greeting:Greeter", "--config", "worker.yml", "--max-tasks", "1", "--json"
    ) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.DONE
    assert {json.loads(line)["level"] for line in errors.splitlines()} == {"INFO"}
    run_of_task = queue.status(task_id).status.runs[0]
    assert (run_of_task.state, run_of_task.worker_id) == ("completed", "one")
    assert b"hello you" in queue.download_artifact(task_id, "public/logs/live.log").content


@pytest.mark.usefixtures("deployment", "files")
def test_a_signal_has_it_leave_in_an_orderly_way(queue: Queue, task_factory: Any) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload={"name": "you"}))
    with running("work", "greeting:Greeter", "--config", "worker.yml") as process:
        assert process.stderr is not None
        while "has ended: completed" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # hurry: a claim call may be under way
        process.communicate(timeout=60)
    assert process.returncode == ExitStatus.DONE


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("greeting", "'greeting' is no worker: write MODULE:CLASS"),
        (".greeting:Greeter", "'.greeting:Greeter' is no worker: write MODULE:CLASS"),
        ("taskqueue_client.worker:WorkerLoop", "'WorkerLoop' in taskqueue_client.worker lacks run_task"),
        ("nothing:Greeter", "cannot import 'nothing': No module named 'nothing'"),
        ("broken:Greeter", "cannot import 'broken': No module named 'no_such_module'"),
        ("greeting:Missing", "'Missing' in greeting is no subclass of WorkerLoop"),
        ("greeting:NoWorker", "'NoWorker' in greeting is no subclass of WorkerLoop"),
    ],
)
def test_what_is_no_worker_is_refused_in_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = run("work", name, "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr.startswith(f"Error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("deployment", "files")
def test_a_wrong_setting_is_named_with_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "worker.yml").write_text(CONFIG + "concurrency: many\n")
    result = run("work", "greeting:Greeter", "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "concurrency in worker.yml: 'many'" in result.stderr


@pytest.mark.usefixtures("deployment", "files")
def test_a_setting_that_is_missing_is_named_with_the_places_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = run("work", "greeting:Greeter")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr.startswith("Error: task_queue_id is not set: ")
    assert "TASKQUEUE_TASK_QUEUE_ID" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("deployment", "files")
def test_without_credentials_the_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKCLUSTER_CLIENT_ID")
    monkeypatch.delenv("TASKCLUSTER_ACCESS_TOKEN")
    result = run("work", "greeting:Greeter", "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "set TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN" in result.stderr


@pytest.mark.usefixtures("deployment", "files")
def test_a_token_that_is_not_accepted_ends_it_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "not-the-token")
    with running("work", "greeting:Greeter", "--config", "worker.yml") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.REFUSED
    assert "the credentials are not accepted" in errors.splitlines()[-1]
    assert "not-the-token" not in errors
