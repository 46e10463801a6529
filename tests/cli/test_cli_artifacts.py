"""`taskqueue artifacts`: lists and downloads the artifacts of a task."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.definitions import from_now
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Delay, Respond, SlowDownload
from tests.artifacts.raw_server import RawResponse, RawServer
from tests.artifacts.test_download_servers import serve
from tests.cli.command import ENDING, run, run_json
from tests.cli.command import running as command_running
from tests.cli.terminal import on_a_terminal
from tests.worker.queue_world import until

Running = tuple[str, Queue]


def upload(running: Running, **contents: bytes) -> str:
    """Upload public artifacts by their names; return the task's id."""
    task_id, run_client = running
    for name, content in contents.items():
        run_client.upload_artifact(
            task_id, 0, f"public/{name}", content, expires=from_now("1 hour"), storage="object"
        )
    return task_id


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("deployment")
def test_artifacts_list_shows_name_type_and_storage_of_each_artifact(running: Running) -> None:
    task_id = upload(running, a=b"1", b=b"22")
    rows = [line.split()[0] for line in run("artifacts", "list", task_id).stdout.splitlines()[1:]]
    assert rows == ["public/a", "public/b"]
    (first, _) = run_json("artifacts", "list", task_id, "--run", "0")
    assert first["name"] == "public/a"
    assert first["storageType"] == "object"


@pytest.mark.usefixtures("deployment")
def test_artifacts_get_downloads_the_named_artifacts_below_the_folder(running: Running, folder: Path) -> None:
    task_id = upload(running, a=b"1", b=b"22")
    result = run("artifacts", "get", task_id, "public/b", "--to", "out")
    assert result.exit_code == ExitStatus.DONE
    assert result.stdout == "out/public/b (2 B; verified: sha256)\n"
    assert files_in(folder) == {"out/public/b": b"22"}


@pytest.mark.usefixtures("deployment", "folder")
def test_json_has_the_path_of_a_folder_whose_name_is_not_text(running: Running) -> None:
    task_id = upload(running, a=b"1")
    result = run("artifacts", "get", task_id, "public/a", "nothing\udcff", "--to", "out\udcff", "--json")
    got, missing = map(json.loads, result.stdout.splitlines())
    assert (result.exit_code, got["path"]) == (ExitStatus.NOT_COMPLETED, "out\udcff/public/a")
    assert Path(got["path"]).read_bytes() == b"1"
    assert (missing["name"], missing.keys()) == ("nothing\udcff", {"name", "error"})


@pytest.mark.usefixtures("deployment")
def test_artifacts_get_without_names_downloads_all_artifacts_concurrently(
    running: Running, folder: Path
) -> None:
    contents = {f"file-{number}": str(number).encode() for number in range(10)}
    task_id = upload(running, **contents)
    (*fetched,) = run_json("artifacts", "get", task_id, "--concurrency", "3")
    assert {each["name"] for each in fetched} == {f"public/{name}" for name in contents}
    assert files_in(folder) == {f"public/{name}": content for name, content in contents.items()}


@pytest.mark.usefixtures("deployment")
def test_a_missing_artifact_does_not_prevent_other_downloads(running: Running, folder: Path) -> None:
    task_id = upload(running, a=b"1")
    result = run("artifacts", "get", task_id, "public/a", "public/nothing")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stderr.startswith("public/nothing: not found: ")
    assert files_in(folder) == {"public/a": b"1"}


@pytest.mark.usefixtures("deployment")
def test_a_missing_artifact_leaves_no_empty_folder(running: Running, folder: Path) -> None:
    task_id = upload(running, a=b"1")
    result = run("artifacts", "get", task_id, "public/deep/nothing", "--to", "new/folder")
    assert result.stderr.startswith("public/deep/nothing: not found: ")
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("name", ["public/../../escaped", "/etc/escaped", "public//a", "public/./a"])
def test_no_artifact_is_written_outside_of_the_folder(
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
    assert "expected a path within the folder" in outcome["error"]
    assert outcome["error"].endswith("; another folder is given with --to")  # as cp has it as an argument
    assert files_in(folder) == {}


def test_a_refusal_of_storage_fails_only_that_artifact(
    running: Running, folder: Path, deployment: LocalQueue
) -> None:
    task_id = upload(running, a=b"1")
    deployment.faults.add(Respond("storage.get", status=403))
    result = run("artifacts", "get", task_id)
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert "403" in result.stderr
    assert files_in(folder) == {}


def test_artifacts_of_two_runs_are_not_mixed(
    running: Running, folder: Path, deployment: LocalQueue, queue: Queue
) -> None:
    task_id = upload(running, a=b"of run 0", b=b"of run 0")
    running[1].report_completed(task_id, 0)
    deployment.clock.hold()
    deployment.faults.add(Delay("storage.get", seconds=1))
    with command_running(
        "artifacts", "get", task_id, "public/a", "public/b", "--concurrency", "1"
    ) as process:
        until(lambda: deployment.faults.waiting() == [])  # the first download has begun
        queue.rerun_task(task_id)
        (claim,) = queue.claim_work("proj/linux", worker_group="g", worker_id="w").tasks
        rerun = queue.with_credentials(claim.credentials)
        for name in ("public/a", "public/b"):
            rerun.upload_artifact(task_id, 1, name, b"of run 1", expires=from_now("1 hour"))
        deployment.clock.advance(1)
        assert process.wait(60) == ExitStatus.DONE
    assert files_in(folder) == {"public/a": b"of run 0", "public/b": b"of run 0"}


@pytest.mark.usefixtures("deployment")
def test_a_task_without_a_run_has_no_artifacts(queue: Queue, task_factory: Any, folder: Path) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(dependencies=[task_id]))
    result = run("artifacts", "get", task_id)
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr == f"Error: task {task_id} has no run\n"
    assert files_in(folder) == {}


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("name", ["public/[/b]", "public/[link=x]a[/link]"])
def test_the_progress_bar_shows_a_name_as_it_is(running: Running, folder: Path, name: str) -> None:
    """Not as markup of rich, which would make links, or fail."""
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, name, b"1", expires=from_now("1 hour"), storage="object")
    with on_a_terminal("artifacts", "get", task_id, columns=200) as (process, terminal):
        bars, _ = terminal.read_all().split("\n", 1)
        assert process.wait(60) == ExitStatus.DONE
    assert name in bars
    assert files_in(folder) == {name: b"1"}


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_leaves_complete_files_and_names_them(
    running: Running, folder: Path, deployment: LocalQueue, number: signal.Signals
) -> None:
    task_id = upload(running, small=b"1", big=bytes(3_000_000))
    deployment.faults.add(SlowDownload("storage.get", bytes_per_second=1_000_000, times=2))
    deployment.clock.hold()  # only the bytes of the first second are sent
    names = ("public/small", "public/big")
    with on_a_terminal("artifacts", "get", task_id, *names, "--concurrency", "1") as (process, terminal):
        terminal.read_until(lambda shown: re.search(r"(0\.[1-9]|1\.0)/3\.0 MB", shown) is not None)
        assert len(files_in(folder)) == 2
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        *_, complete, interrupted = terminal.read_all().splitlines()
        assert complete.endswith("complete: public/small")
        assert interrupted.endswith("Interrupted.")
    assert files_in(folder) == {"public/small": b"1"}


@pytest.mark.usefixtures("deployment")
def test_artifacts_of_an_unknown_run_exit_with_the_status_of_a_refusal(running: Running) -> None:
    result = run("artifacts", "list", running[0], "--run", "7")
    assert result.exit_code == ExitStatus.REFUSED


@pytest.mark.usefixtures("deployment", "folder")
def test_getting_an_error_artifact_prints_its_reason(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    run_client.create_error_artifact(
        task_id, 0, "public/x", "file-missing-on-worker", "nobody made it", expires=from_now("1 hour")
    )
    outcomes: list[Any] = run_json("artifacts", "get", task_id, "public/x")
    assert "nobody made it" in outcomes[0]["error"]
    assert queue.artifact_info(task_id, 0, "public/x").storage_type == "error"


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize(
    "part", ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\nall that there is"], ids=["head", "length"]
)
def test_an_incomplete_response_is_an_error_and_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    with RawServer() as server:
        serve(server, RawResponse(raw=part.encode()))
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", server.url)
        result = run("artifacts", "get", slugid(), "public/a", "--run", "0")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert "incomplete" in result.stderr
    assert result.stdout == ""
    assert files_in(folder) == {}


@pytest.mark.usefixtures("deployment", "folder")
def test_a_task_without_artifacts_to_get_is_named(running: Running) -> None:
    result = run("artifacts", "get", running[0])
    assert result.exit_code == ExitStatus.DONE
    assert result.stderr == f"task {running[0]} has no artifacts with content\n"
