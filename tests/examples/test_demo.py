"""The demo shows the results, succeeds if they are those of the graph, and ends its processes."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from examples.demo import __main__ as demo
from examples.demo import report
from examples.demo.worker import PipelineWorker
from taskqueue_client import Queue, slugid
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.testing import TaskRunner
from tests.cli.terminal import Terminal
from tests.worker.running_commands import wait_until_gone

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.demo"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return what the demo prints without a terminal, in an environment with a proxy; and its directory."""
    folder = tmp_path_factory.mktemp("the [demo]")
    signed_in = {"TASKCLUSTER_CERTIFICATE": "{}", "TASKCLUSTER_PROXY_URL": "http://127.0.0.1:1"}
    proxy = {
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
        "NO_PROXY": "example.com",
    }
    completed = subprocess.run(
        [*COMMAND, folder],
        cwd=ROOT,
        env=os.environ | signed_in | proxy,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout, folder


def row(output: str, *cells: str) -> re.Match[str] | None:
    """Return the table's first row that begins with these cells, if any."""
    return re.search("│ " + r" +│ +".join(map(re.escape, cells)) + " ", output)


def test_it_shows_that_each_task_ended_as_the_graph_says(shown: tuple[str, Path]) -> None:
    output, _ = shown
    graph = yaml.safe_load((ROOT / "examples/demo/graph.yml").read_text())
    assert {task["extra"]["expected"] for task in graph["tasks"].values()} >= {"failed", "malformed-payload"}
    for name, task in graph["tasks"].items():
        assert re.search(rf"│ {name} .*│ {task['extra']['expected']} +│ yes │", output)


def test_the_readme_shows_what_it_prints(shown: tuple[str, Path]) -> None:
    table = re.compile(r"^│ (\w+) +│ (\w+) +│ ([\w-]+) +│ [\d.]+ s +│ ([\w-]+) +│ (\w+) +│$", re.MULTILINE)
    rows = table.findall((ROOT / "README.md").read_text())
    assert len(rows) == 5
    assert rows == table.findall(shown[0])


def test_the_artifacts_are_where_it_says_and_have_the_hash_that_it_shows(shown: tuple[str, Path]) -> None:
    output, folder = shown
    package = folder / "package" / "words.pyz"
    digest = hashlib.sha256(package.read_bytes()).hexdigest()[:16]
    assert row(output, "package", "public/words.pyz", str(package.stat().st_size), f"sha256:{digest}…")
    assert f" in {folder}/TASK," in output
    assert "words/cli.py" in zipfile.ZipFile(package).namelist()


def test_the_logs_are_where_it_says(shown: tuple[str, Path]) -> None:
    output, folder = shown
    for name in ("fetch", "lint", "test", "package", "publish"):
        assert (folder / name / "live_backing.log").stat().st_size > 0
    [shown_command] = re.findall(r"^ +(cat .*)$", output, re.MULTILINE)
    log = subprocess.run(shown_command, shell=True, capture_output=True, text=True, check=True)
    assert "let the user choose" in log.stdout
    assert "ended: completed" in (folder / "worker.log").read_text()


def test_it_draws_a_line_for_each_run_and_says_how_to_go_on(shown: tuple[str, Path]) -> None:
    output, _ = shown
    assert re.search(r"│ fetch/0 +│ .*█", output)
    assert "taskqueue work examples.demo.worker:PipelineWorker" in output


def test_the_live_table_shows_the_states_as_they_change(local_queue: LocalQueue) -> None:
    console = Console(force_terminal=True, width=120, height=50)
    with Queue(local_queue.root_url, local_queue.credentials) as queue, console.capture() as capture:
        group = demo.submitted(queue).task_group_id
        pending = list(queue.iter_task_group(group))
        queue.claim_work(demo.TASK_QUEUE, worker_group="demo", worker_id="one")
        report.show_progress(console, [pending, list(queue.iter_task_group(group))])
    assert re.findall(r"│ fetch +│ (\w+)", capture.get())[:2] == ["pending", "running"]


def test_the_live_table_judges_a_task_only_when_it_is_resolved(local_queue: LocalQueue) -> None:
    console = Console(force_terminal=True, width=120, height=50)
    with Queue(local_queue.root_url, local_queue.credentials) as queue, console.capture() as capture:
        group = demo.submitted(queue).task_group_id
        report.show_progress(console, [list(queue.iter_task_group(group))])
    assert "unscheduled" in capture.get()
    assert not re.search("NO|yes|not scheduled", capture.get())


@pytest.fixture(scope="module")
def shown_in_80_columns(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("a-directory-with-a-name-that-is-much-too-long-for-a-column")
    reader, terminal = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "50"}
    with subprocess.Popen(
        [*COMMAND, folder], cwd=ROOT, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        output = Terminal(reader).read_all()
        assert process.wait(120) == 0
    os.close(reader)
    return output


def test_on_a_terminal_the_cursor_comes_back(shown_in_80_columns: str) -> None:
    assert "\x1b[?25l" in shown_in_80_columns
    assert shown_in_80_columns.rindex("\x1b[?25h") > shown_in_80_columns.rindex("\x1b[?25l")


def test_80_columns_are_enough_for_names_hashes_paths_and_commands(shown_in_80_columns: str) -> None:
    output = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown_in_80_columns)
    assert row(output, "fetch", "public/logs/live_backing.log")
    assert re.search(r"│ public/words.pyz +│ +\d+ │ sha256:[0-9a-f]{16}… │", output)
    assert re.search(r"^ +cat '?/.+/lint/live_backing.log'?$", output.replace("\r", ""), re.MULTILINE)
    assert "--worker-group GROUP --worker-id ID" in output


def test_the_cursor_comes_back_if_ctrl_c_comes_while_the_live_table_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(force_terminal=True, width=120, height=50)

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with console.capture() as capture, pytest.raises(KeyboardInterrupt):
        report.show_progress(console, [])
    assert re.findall(r"\x1b\[\?25[hl]", capture.get()) == ["\x1b[?25l", "\x1b[?25h"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_process(tmp_path: Path, stop: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        worker = next(re.finditer(r"process (\d+)", line) for line in process.stdout if "process" in line)
        process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, "interrupted\n")
    wait_until_gone(int(next(worker)[1]))


def test_a_worker_that_does_not_shut_down_in_time_is_killed_before_the_demo_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_queue: LocalQueue
) -> None:
    monkeypatch.setattr(demo, "PATIENCE", 0.0)
    client = Client("demo-worker", slugid(), [])
    log = tmp_path / "worker.log"
    with (  # noqa: PT012 - the error must be raised in the inner block
        pytest.raises(KeyboardInterrupt),
        demo.worker_process(local_queue.root_url, client, 1, log) as process,
    ):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        vars(process)["_sigint_wait_secs"] = 0  # seconds that subprocess waits for the process after Ctrl-C
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGKILL


def test_a_task_that_ends_otherwise_than_the_graph_says_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = yaml.safe_load((ROOT / "examples/demo/graph.yml").read_text())
    graph["tasks"] = {"fetch": graph["tasks"]["fetch"], "lint": graph["tasks"]["lint"]}
    graph["tasks"]["lint"]["extra"]["expected"] = "completed"
    (tmp_path / "graph.yml").write_text(yaml.safe_dump(graph))
    monkeypatch.setattr(demo, "GRAPH", tmp_path / "graph.yml")
    assert demo.main(tmp_path) == 1
    assert re.search(r"│ lint .*│ NO ", capsys.readouterr().out)


def test_a_task_that_is_blocked_at_the_end_is_not_as_expected(local_queue: LocalQueue) -> None:
    console = Console(width=160)
    with Queue(local_queue.root_url, local_queue.credentials) as queue, console.capture() as capture:
        tasks = queue.iter_task_group(demo.submitted(queue).task_group_id)
        report.show(console, [report.Ended(each, []) for each in tasks])
    assert re.search(r"│ lint +│ unscheduled .*│ NO ", capture.get())


@pytest.mark.parametrize(
    ("sources", "outcome"),
    [("fN1SbArXTPSVFNUvaOlinQ", "resource-unavailable"), ("no-task-id", "malformed-payload")],
)
def test_sources_that_do_not_exist_are_not_an_error_of_the_worker(
    run_worker: TaskRunner, sources: str, outcome: str
) -> None:
    payload = {"sources": {"task": sources}, "command": ["true"]}
    assert run_worker(PipelineWorker, payload).outcome == outcome


def test_a_worker_that_cannot_start_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TASK_QUEUE", "no task queue")
    with pytest.raises(RuntimeError, match=r"the worker ended with status 2: see .*worker\.log"):
        demo.main(tmp_path)
