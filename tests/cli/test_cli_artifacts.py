"""`taskqueue artifacts`: what a task left behind, listed and fetched."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.definitions import from_now
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Answer, SlowDownload
from tests.cli.command import run, run_json
from tests.cli.terminal import on_a_terminal

Running = tuple[str, Queue]


def upload(running: Running, **contents: bytes) -> str:
    """Upload public artifacts by their names; gives the task's id."""
    task_id, run_client = running
    for name, content in contents.items():
        run_client.upload_artifact(
            task_id, 0, f"public/{name}", content, expires=from_now("1 hour"), storage="object"
        )
    return task_id


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("deployment")
def test_list_shows_name_type_and_storage_of_each(running: Running) -> None:
    task_id = upload(running, a=b"1", b=b"22")
    rows = [line.split()[0] for line in run("artifacts", "list", task_id).stdout.splitlines()[1:]]
    assert rows == ["public/a", "public/b"]
    (first, _) = run_json("artifacts", "list", task_id, "--run", "0")
    assert first["name"] == "public/a"
    assert first["storageType"] == "object"


@pytest.mark.usefixtures("deployment")
def test_get_fetches_what_is_named_below_the_folder(running: Running, folder: Path) -> None:
    task_id = upload(running, a=b"1", b=b"22")
    result = run("artifacts", "get", task_id, "public/b", "--to", "out")
    assert result.exit_code == ExitStatus.DONE
    assert result.stdout == "out/public/b (2 B; verified: sha256)\n"
    assert files_in(folder) == {"out/public/b": b"22"}


@pytest.mark.usefixtures("deployment")
def test_get_without_names_fetches_everything_several_at_once(running: Running, folder: Path) -> None:
    contents = {f"file-{number}": str(number).encode() for number in range(10)}
    task_id = upload(running, **contents)
    (*fetched,) = run_json("artifacts", "get", task_id, "--concurrency", "3")
    assert {each["name"] for each in fetched} == {f"public/{name}" for name in contents}
    assert files_in(folder) == {f"public/{name}": content for name, content in contents.items()}


@pytest.mark.usefixtures("deployment")
def test_one_that_is_missing_does_not_keep_the_others_back(running: Running, folder: Path) -> None:
    task_id = upload(running, a=b"1")
    result = run("artifacts", "get", task_id, "public/a", "public/nothing")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stderr.startswith("public/nothing: not found: ")
    assert files_in(folder) == {"public/a": b"1"}


@pytest.mark.parametrize("name", ["public/../../escaped", "/etc/escaped", "public//a", "public/./a"])
def test_no_name_leads_out_of_the_folder(
    running: Running, folder: Path, deployment: LocalQueue, name: str
) -> None:
    task_id, run_client = running
    run_client.create_artifact(
        task_id,
        0,
        name,
        {
            "storageType": "reference",
            "url": deployment.root_url,
            "contentType": "text/html",
            "expires": from_now("1 hour"),
        },
    )
    (outcome,) = run_json("artifacts", "get", task_id, name, "--to", "out")
    assert "must be a path within the folder" in outcome["error"]
    assert files_in(folder) == {}


def test_storage_that_refuses_is_an_error_of_the_one_artifact(
    running: Running, folder: Path, deployment: LocalQueue
) -> None:
    task_id = upload(running, a=b"1")
    deployment.faults.add(Answer("storage.get", status=403))
    result = run("artifacts", "get", task_id)
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert "403" in result.stderr
    assert files_in(folder) == {}


def test_ctrl_c_leaves_no_half_file(running: Running, folder: Path, deployment: LocalQueue) -> None:
    task_id = upload(running, big=bytes(3_000_000))
    deployment.faults.add(SlowDownload("storage.get", bytes_per_second=1_000_000))
    deployment.clock.hold()  # the first second's bytes come, and no more
    with on_a_terminal("artifacts", "get", task_id) as (process, terminal):
        terminal.read_until(lambda shown: re.search(r"0\.[1-9]/3\.0 MB", shown) is not None)
        assert len(files_in(folder)) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert terminal.read_all().rstrip().endswith("Interrupted.")
    assert files_in(folder) == {}


@pytest.mark.usefixtures("deployment")
def test_a_run_that_does_not_exist_is_a_refusal(running: Running) -> None:
    result = run("artifacts", "list", running[0], "--run", "7")
    assert result.exit_code == ExitStatus.REFUSED


@pytest.mark.usefixtures("deployment", "folder")
def test_an_error_artifact_says_why_there_is_no_file(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    run_client.create_error_artifact(
        task_id, 0, "public/x", "file-missing-on-worker", "nobody made it", expires=from_now("1 hour")
    )
    outcomes: list[Any] = run_json("artifacts", "get", task_id, "public/x")
    assert "nobody made it" in outcomes[0]["error"]
    assert queue.artifact_info(task_id, 0, "public/x").storage_type == "error"
