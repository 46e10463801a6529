"""Each example does what it says, against a local queue."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from examples import moving_from_scriptworker
from examples.async_worker import LinkChecker
from examples.cached_worker import CachedWorker
from taskqueue_client import Queue, slugid
from taskqueue_client.local import LocalQueue
from taskqueue_client.models import Run
from taskqueue_client.testing import TaskFactory, run_handler
from tests.worker.running_commands import in_shell

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"

Working = Callable[..., AbstractContextManager["subprocess.Popen[str]"]]
Create = Callable[..., str]


@pytest.fixture
def create(queue: Queue, task_factory: TaskFactory) -> Create:
    """Return a function that creates a task with a payload, and returns the task's identifier."""

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


@pytest.fixture
def upstream(queue: Queue, create: Create) -> str:
    """Return the identifier of a completed task with an artifact."""
    task_id = create("proj/upstream", {})
    [claim] = queue.claim_work("proj/upstream", worker_group="tests", worker_id="upstream").tasks
    run = queue.with_credentials(claim.credentials)
    run.upload_artifact(task_id, 0, "public/app.zip", b"app", expires=claim.status.expires)
    run.report_completed(task_id, 0)
    return task_id


def test_a_script_of_scriptworker_runs_unchanged_and_its_exit_codes_are_outcomes(
    working: Working, create: Create, queue: Queue, upstream: str
) -> None:
    def script_task(channel: str, *names: str, depends: bool = True, **payload: int) -> str:
        return create(
            "proj/scripts",
            {"channel": channel, "upstreamArtifacts": [{"taskId": upstream, "paths": names}], **payload},
            scopes=["project:demo:publish:*"] if channel != "secret" else ["project:demo:publish:nightly"],
            dependencies=[upstream] if depends else [],
            retries=0,
        )

    expected = {
        script_task("nightly", "public/app.zip"): "completed",
        script_task("secret", "public/app.zip"): "malformed-payload",
        script_task("nightly", "public/app.zip", depends=False): "malformed-payload",
        script_task("nightly", "public/../../../outside"): "malformed-payload",
        script_task("nightly", "public/missing.zip"): "resource-unavailable",
        script_task("unknown"): "malformed-payload",
        script_task("busy"): "intermittent-task",
        script_task("slow", maxRunTime=1): "failed",
    }
    options = ["--max-tasks", str(len(expected)), "--concurrency", "4"]
    with working("examples.moving_from_scriptworker:ScriptWorker", "proj/scripts", *options):
        pass
    assert {each: last_run(queue, each).reason_resolved for each in expected} == expected
    completed, without_scope, *_ = expected
    sums = queue.download_artifact(completed, "public/SHA256SUMS").content.decode()
    assert sums == f"{hashlib.sha256(b'app').hexdigest()}  app.zip\n"
    assert "project:demo:publish:secret is missing" in log_of(queue, without_scope)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("exit 5", "internal-error"),
        ("exit 9", "failed"),
        ("kill -SEGV $$", "failed"),
        ("exit 241", "intermittent-task"),
        ("exit 245", "intermittent-task"),
    ],
)
def test_exit_codes_mean_what_they_mean_to_scriptworker(
    monkeypatch: pytest.MonkeyPatch, script: str, outcome: str
) -> None:
    monkeypatch.setattr(moving_from_scriptworker, "SCRIPT", ["sh", "-c", script])
    payload: dict[str, Any] = {"channel": "nightly", "upstreamArtifacts": []}
    scopes = ["project:demo:publish:*"]
    result = run_handler(moving_from_scriptworker.ScriptWorker, payload, scopes=scopes)
    assert result.outcome == outcome


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


@pytest.mark.usefixtures("deployment")
def test_the_script_fails_with_the_states_of_tasks_that_are_not_completed(queue: Queue) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.submit_graph", "proj/words"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdout is not None
        group = script.stdout.readline().split()[1]
        queue.seal_task_group(group)
        queue.cancel_task_group(group)
        output, errors = script.communicate(timeout=120)
    assert (script.returncode, errors) == (1, "")
    assert output.endswith("4 exception\n")


def test_tasks_that_have_the_scope_of_a_cache_share_it(
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


@pytest.mark.parametrize(
    "url", ["http://a..b/", f"http://{'a' * 64}.com/", "http://[::1", "http://127.0.0.1:9/"]
)
def test_a_link_that_cannot_be_requested_is_broken(url: str) -> None:
    result = run_handler(LinkChecker, {"urls": [url]})
    assert (result.outcome, str(result.error)) == ("failed", f"1 of 1 links are broken: {url}")


def test_two_caches_in_one_directory_make_a_payload_malformed_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CachedWorker, "caches", tmp_path)
    (tmp_path / "cargo").mkdir()
    payload = {"command": ["true"], "caches": {"cargo": "it", "pip": "it"}}
    result = run_handler(CachedWorker, payload, scopes=["example-worker:cache:*"])
    assert result.outcome == "malformed-payload"
    assert (tmp_path / "cargo").exists()


@pytest.mark.parametrize("caches", [{"c" * 300: "it"}, {"cargo": "i" * 300}])
def test_a_name_that_no_directory_can_have_makes_a_payload_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: dict[str, str]
) -> None:
    monkeypatch.setattr(CachedWorker, "caches", tmp_path)
    payload = {"command": ["true"], "caches": caches}
    result = run_handler(CachedWorker, payload, scopes=["example-worker:cache:*"])
    assert result.outcome == "malformed-payload"


def test_a_cache_that_cannot_be_removed_does_not_hide_why_the_task_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CachedWorker, "caches", tmp_path)
    payload = {"command": ["sh", "-c", 'rm -r "$(realpath it)"; exit 3'], "caches": {"cargo": "it"}}
    result = run_handler(CachedWorker, payload, scopes=["example-worker:cache:*"])
    assert (result.outcome, str(result.error)) == ("failed", "sh: exit code 3")
    assert "cache cargo cannot be removed: [Errno 2]" in result.log


CACHED = """
import fcntl, sys

from examples.cached_worker import CachedWorker
from taskqueue_client.testing import run_handler

lock = fcntl.flock


def noted(file, *arguments):
    try:
        lock(file, *arguments)
    except BlockingIOError:
        if str(getattr(file, "name", "")).endswith("/cargo.lock"):
            print("waits", flush=True)
        raise


fcntl.flock = noted
payload = {"command": ["sh", "-c", sys.argv[1]], "caches": {"cargo": "it"}}
print(run_handler(CachedWorker, payload, scopes=["example-worker:cache:*"]).outcome)
"""


def cached(command: str) -> subprocess.Popen[str]:
    """Start a process that runs a command with a cache."""
    return subprocess.Popen(
        [sys.executable, "-c", CACHED, command], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_what_a_killed_worker_has_left_in_a_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_CACHES", str(tmp_path))
    with cached("echo whole > it/file") as process:
        assert process.communicate(timeout=120)[0] == "completed\n"
    with cached("echo half > it/file; kill -9 $PPID") as process:
        assert process.wait(120) == -signal.SIGKILL
    with cached("! test -e it/file && echo new > it/file") as process:
        assert process.communicate(timeout=120)[0] == "completed\n"
    assert (tmp_path / "cargo" / "file").read_text() == "new\n"


def test_a_cache_is_used_by_one_worker_of_a_machine_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_CACHES", str(tmp_path / "caches"))
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    subprocess.run(["mkfifo", begun, go_on], check=True)
    with cached(f"echo > {in_shell(begun)}; cat {in_shell(go_on)}; echo first >> it/log") as first:
        begun.read_text()
        with cached("echo second >> it/log") as second:
            assert second.stdout is not None
            waits = second.stdout.readline()
            go_on.write_text("")
            assert second.wait(120) == first.wait(120) == 0
    assert waits == "waits\n"
    assert (tmp_path / "caches" / "cargo" / "log").read_text() == "first\nsecond\n"


def test_a_worker_that_shuts_down_reports_it_and_removes_incomplete_caches(
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
    command = ["sh", "-c", f"echo half > it/file; echo > {in_shell(begun)}; sleep 600"]
    task_id = create(
        "proj/caches",
        {"command": command, "caches": {"cargo": "it"}},
        scopes=["example-worker:cache:*"],
        retries=1,
    )
    with working("examples.cached_worker:CachedWorker", "proj/caches") as process:
        begun.read_text()  # blocks until the command has written to this FIFO
        process.send_signal(signal.SIGTERM)
    first, second = queue.status(task_id).status.runs
    assert first.reason_resolved == "worker-shutdown"
    assert second.state == "pending"
    assert not (tmp_path / "caches" / "cargo").exists()


def test_the_example_s_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "examples/test_command_worker.py"]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=120).returncode == 0


@pytest.mark.usefixtures("deployment")
def test_taskcluster_and_our_client_do_each_step_of_the_migration_alike() -> None:
    pytest.importorskip("taskcluster")
    completed = subprocess.run(
        [sys.executable, "-m", "examples.moving_from_taskcluster"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "queue.createTask(task_id, DEFINITION)" in completed.stdout
    assert "queue.create_task(task_id, DEFINITION)" in completed.stdout
