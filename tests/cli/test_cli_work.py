"""`taskqueue work`: a worker's class, run as a process."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.worker import WorkerConfig
from tests.cli.command import run, running
from tests.servers import listening, want_a_password

WORKER = """
import atexit, logging, os, signal
from dataclasses import dataclass
from taskqueue_client import WorkerLoop

@dataclass
class Own:
    greeting: str = "hi"

class Hooked(WorkerLoop):
    settings_type = Own

    def on_start(self):
        config = self.config
        print("starts", self.settings.greeting, config.keep_work_directories, config.pass_environment)

    def run_task(self, task):
        task.payload["name"]

    def on_task_end(self, end):
        print(end.task_id, end.run_id, end.outcome, type(end.error).__name__, end.seconds > 0)
        raise ValueError("a hook that fails")

    def on_stop(self):
        print("stops")

class Greeter(WorkerLoop):
    def run_task(self, task):
        task.log.info("hello %s", task.payload["name"])

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

class Signaled(Greeter):
    def on_stop(self):
        for number in SIGNALS:
            atexit.register(os.kill, os.getpid(), number)

class SignaledAfterwards(Greeter):
    def run(self):
        super().run()
        for number in SIGNALS:
            os.kill(os.getpid(), number)

class SignaledInHook(Greeter):
    def on_stop(self):
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        logging.getLogger(__name__).info("cleaned up")

class Runner(WorkerLoop):
    def run_task(self, task):
        task.run_command(task.payload["command"])

class NoWorker:
    pass

class Needing(Greeter):
    def __init__(self, compiler, **settings):
        super().__init__(**settings)

class Settingless(Greeter):
    def __init__(self, **settings):
        self.own = settings

class Narrow(Greeter):
    def __init__(self, config_file):
        super().__init__(config_file=config_file)
"""
RULE = "in greeting must take **settings, and need no other argument"
CONFIG = "task_queue_id: proj/linux\nworker_group: tests\nworker_id: one\n"


@contextmanager
def blocked_signals(signals: set[signal.Signals]) -> Generator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def files(folder: Path) -> None:
    (folder / "greeting.py").write_text(WORKER)
    (folder / "worker.yml").write_text(CONFIG)
    (folder / "broken.py").write_text("import no_such_module\n")
    (folder / "unfinished.py").write_text("class Greeter(\n")


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize("log_format", [["--json"], ["--log-format", "json"]])
def test_work_runs_a_class_of_the_directory_with_the_settings_of_the_file(
    queue: Queue, task_factory: Any, log_format: list[str]
) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload={"name": "you"}))
    with running(
        "work", "greeting:Greeter", "--config", "worker.yml", "--max-tasks", "1", *log_format
    ) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.DONE
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {(line["level"], line["worker_id"]) for line in lines} == {("INFO", "one")}
    run_of_task = queue.status(task_id).status.runs[0]
    assert (run_of_task.state, run_of_task.worker_id) == ("completed", "one")
    assert b"hello you" in queue.download_artifact(task_id, "public/logs/live.log").content


@pytest.mark.usefixtures("deployment", "files")
def test_a_task_neither_forges_lines_of_the_worker_s_log_nor_controls_a_terminal(
    queue: Queue, task_factory: Any
) -> None:
    task_id = slugid()
    payload = {"command": ["x\n2026-11-28 09:00:00,000 INFO forged \x1b[2J\r\x9bx"]}
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload=payload))
    with running("work", "greeting:Runner", "--config", "worker.yml", "--max-tasks", "1") as process:
        _, errors = process.communicate(timeout=60)
    lines = errors.split("\n")
    assert any(each.startswith("  ") for each in lines)
    assert [each for each in lines if not each.startswith("  ") and " forged " in each] == []
    assert all(each.isprintable() for each in lines)


@pytest.mark.usefixtures("deployment", "files")
def test_a_worker_whose_parent_ignores_the_end_of_children_has_their_exit_codes(
    queue: Queue, task_factory: Any
) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload={"command": ["true"]}))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # child processes inherit this
    try:
        with running("work", "greeting:Runner", "--config", "worker.yml", "--max-tasks", "1") as process:
            process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert queue.status(task_id).status.state == "completed"


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize("blocked", [set[signal.Signals](), {signal.SIGINT, signal.SIGTERM}])
def test_a_signal_shuts_the_worker_down_gracefully(
    queue: Queue, task_factory: Any, blocked: set[signal.Signals]
) -> None:
    """Also if the parent has blocked the signal: child processes inherit this."""
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload={"name": "you"}))
    with blocked_signals(blocked), running("work", "greeting:Greeter", "--config", "worker.yml") as process:
        assert process.stderr is not None
        while "ended: completed" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # a second signal: don't wait for the end of a claim call
        process.communicate(timeout=60)
    assert process.returncode == ExitStatus.DONE


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("Signaled", "worker has ended"),
        ("SignaledAfterwards", "worker has ended"),
        ("SignaledInHook", "cleaned up"),
    ],
)
def test_signals_that_come_when_the_worker_has_ended_leave_the_status_as_it_is(name: str, last: str) -> None:
    with running("work", f"greeting:{name}", "--config", "worker.yml", "--max-idle", "0.1") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.DONE
    assert errors.splitlines()[-1].endswith(last)


@pytest.mark.usefixtures("deployment", "files")
def test_the_error_about_the_files_of_prometheus_client_names_their_variable(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The image of a web application may set it: the start of that application creates the directory."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder / "none"))
    with running("work", "greeting:Greeter", "--config", "worker.yml") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.WRONG_USE
    assert errors.startswith("Error: PROMETHEUS_MULTIPROC_DIR: [Errno 2] No such file or directory: ")
    assert errors.endswith("; expected a directory to write metrics to\n")


@pytest.mark.usefixtures("deployment", "files")
def test_a_worker_whose_log_nobody_reads_goes_on(queue: Queue, task_factory: Any) -> None:
    for _ in range(30):
        queue.create_task(slugid(), task_factory(taskQueueId="proj/linux", payload={"name": "you"}))
    with running("work", "greeting:Greeter", "--config", "worker.yml", "--max-tasks", "30") as process:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        assert process.wait(60) == ExitStatus.DONE
    assert queue.task_queue_counts("proj/linux").pending_tasks == 0


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("greeting", "'greeting' is not a worker; expected MODULE:CLASS"),
        (".greeting:Greeter", "'.greeting:Greeter' is not a worker; expected MODULE:CLASS"),
        ("greeting.py:Greeter", "'greeting.py:Greeter' is not a worker; expected MODULE:CLASS, such as my_"),
        ("taskqueue_client.worker:WorkerLoop", "'WorkerLoop' in taskqueue_client.worker lacks run_task"),
        ("nothing:Greeter", "cannot import 'nothing': No module named 'nothing'"),
        ("broken:Greeter", "cannot import 'broken': No module named 'no_such_module'"),
        ("unfinished:Greeter", "cannot import 'unfinished': "),
        ("greeting:Missing", "'Missing' in greeting does not exist"),
        ("greeting:Settingless", "Settingless.__init__ must call super().__init__(…) with the settings"),
        ("greeting:NoWorker", "'NoWorker' in greeting is not a subclass of WorkerLoop"),
        ("greeting:Needing", f"the __init__ of 'Needing' {RULE}: missing a required argument: 'compiler'"),
        ("greeting:Narrow", f"the __init__ of 'Narrow' {RULE}: got an unexpected keyword argument "),
    ],
)
def test_an_argument_that_is_not_a_worker_class_is_refused_in_one_line(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = run("work", name, "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr.startswith(f"Error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("deployment")
def test_a_current_directory_that_was_removed_is_refused_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = run("work", "greeting:Greeter")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "the current directory, in which modules are searched, was removed" in result.stderr


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
    assert result.stderr.startswith("Error: task_queue_id: not set; expected ")
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
def test_a_refused_token_ends_work_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "not-the-token")
    with running("work", "greeting:Greeter", "--config", "worker.yml") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.REFUSED
    assert "the credentials are not accepted" in errors.splitlines()[-1]
    assert "not-the-token" not in errors


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize(
    ("token", "more", "status", "message", "worker_id"),
    [
        ("not-the-token", "", ExitStatus.REFUSED, "the credentials are not accepted", "one"),
        ("", "concurrency: many\n", ExitStatus.WRONG_USE, "concurrency in worker.yml: 'many'", None),
    ],
)
def test_with_json_the_error_that_ends_the_worker_is_json_as_well(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    token: str,
    more: str,
    status: ExitStatus,
    message: str,
    worker_id: str | None,
) -> None:
    if token:
        monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", token)
    (folder / "worker.yml").write_text(CONFIG + more)
    with running("work", "greeting:Greeter", "--config", "worker.yml", "--json") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    last = [json.loads(line) for line in errors.splitlines()][-1]
    assert (last["level"], last.get("worker_id")) == ("ERROR", worker_id)
    assert message in last["message"]


@pytest.mark.usefixtures("deployment", "files")
def test_a_proxy_that_refuses_the_password_ends_work_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", "https://tc.example.com")
    with listening(want_a_password) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:hidden@127.0.0.1:{port}")
        with running("work", "greeting:Greeter", "--config", "worker.yml") as process:
            _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.REFUSED
    problem = f"the proxy http://127.0.0.1:{port} refuses the user and password in HTTPS_PROXY: correct them"
    assert errors.splitlines()[-1] == f"Error: cannot reach https://tc.example.com: {problem}"
    assert "hidden" not in errors


@pytest.mark.usefixtures("deployment", "files")
def test_a_worker_that_gives_up_after_internal_errors_may_be_restarted(
    folder: Path, queue: Queue, task_factory: Any
) -> None:
    (folder / "worker.yml").write_text(CONFIG + "max_internal_errors: 1\n")
    queue.create_task(slugid(), task_factory(taskQueueId="proj/linux", payload={}))
    with running("work", "greeting:Greeter", "--config", "worker.yml") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.NOT_COMPLETED
    assert errors.splitlines()[-1].startswith("Error: 1 internal error in a row ")


UNLUCKY = """
import socket
from taskqueue_client import Queue, WorkerLoop

def connect():
    socket.create_connection(("127.0.0.1", 1))

class Worker(WorkerLoop):
    def run_task(self, task):
        pass
"""


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("connect()", "Error: cannot import 'unlucky': [Errno "),
        ("    def __init__(self, **_):\n        connect()", "Error: [Errno "),
        (
            "    def on_start(self):\n        Queue('http://127.0.0.1:1').with_options(attempts=1).ping()",
            "Error: cannot reach http://127.0.0.1:1",
        ),
    ],
    ids=["import", "init", "on_start"],
)
def test_a_worker_that_cannot_reach_what_it_needs_may_be_restarted(
    code: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "unlucky", raising=False)
    (folder / "unlucky.py").write_text(UNLUCKY + code)
    result = run("work", "unlucky:Worker", "--config", "worker.yml")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stderr.startswith(message)
    assert "Connection refused" in result.stderr


START = """
from taskqueue_client import Queue, WorkerLoop

class Worker(WorkerLoop):
    def on_start(self):
        match self.config.concurrency:
            case 1: open("secrets.json")
            case 2: {}["SHOP_TOKEN"]
            case 3: Queue.from_env().status("SHOP_TOKEN")

    def run_task(self, task):
        pass
"""


@pytest.mark.usefixtures("deployment", "files")
@pytest.mark.parametrize("log", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    ("concurrency", "error", "status"),
    [
        ("1", "No such file or directory: 'secrets.json'", ExitStatus.NOT_COMPLETED),
        ("2", "KeyError: 'SHOP_TOKEN'", ExitStatus.NOT_COMPLETED),
        ("3", "task_id: 'SHOP_TOKEN' is not valid", ExitStatus.WRONG_USE),
    ],
)
def test_an_error_of_on_start_names_the_hook_and_is_json_with_json(
    log: tuple[str, ...], concurrency: str, error: str, status: ExitStatus, folder: Path
) -> None:
    (folder / "start.py").write_text(START)
    options = ("--config", "worker.yml", "--concurrency", concurrency)
    with running("work", "start:Worker", *options, *log) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    if log:
        [line] = map(json.loads, errors.splitlines())
        assert error in line["message"]
        errors = line["message"] + line.get("traceback", "")
    assert error in errors
    assert "raised by Worker.on_start" in errors


@pytest.mark.usefixtures("deployment", "files")
def test_hooks_are_called_with_the_workers_own_settings_and_every_setting_is_an_option(
    folder: Path, queue: Queue, task_factory: Any
) -> None:
    (folder / "worker.yml").write_text(CONFIG + "worker: {custom: {greeting: hello}}\n")
    good, bad = slugid(), slugid()
    for task_id, payload in ((good, {"name": "you"}), (bad, {})):
        queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload=payload))
    options = ["--keep-work-directories", "--pass-environment", "CC,CXX", "--max-tasks", "2"]
    with running("work", "greeting:Hooked", "--config", "worker.yml", *options) as process:
        output, errors = process.communicate(timeout=60)
    first, *ends, last = output.splitlines()
    assert (first, last) == ("starts hello True ('CC', 'CXX')", "stops")
    assert sorted(ends) == sorted(
        [f"{good} 0 completed NoneType True", f"{bad} 0 internal-error KeyError True"]
    )
    assert errors.count("on_task_end failed") == 2


def test_every_setting_is_an_option_with_its_meaning() -> None:
    described = run("work", "--help").stdout
    options = [f"--{each.name.replace('_', '-')}" for each in fields(WorkerConfig)]
    assert [option for option in options if option not in described] == []


def test_the_help_of_pass_environment_is_not_written_in_python() -> None:
    described = " ".join(run("work", "--help").stdout.split())
    assert "so a single * passes all others." in described
    assert "stands for any characters; default: an empty list)" in described
    assert "()" not in described


@pytest.mark.usefixtures("deployment", "files")
def test_a_wrong_option_or_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = run("work", "greeting:Greeter", "--config", "worker.yml", "--concurrency", "many")
    assert (result.exit_code, result.stderr[:27]) == (ExitStatus.WRONG_USE, "Error: concurrency: 'many' ")
    monkeypatch.setenv("TASKQUEUE_CONCURENCY", "5")
    result = run("work", "greeting:Greeter", "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "TASKQUEUE_CONCURRENCY" in result.stderr


@pytest.mark.usefixtures("deployment", "files")
def test_a_wrong_pulse_url_is_named_and_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PULSE_URL", "http://example.com")
    result = run("work", "greeting:Greeter", "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr.startswith("Error: PULSE_URL: ")


@pytest.mark.usefixtures("files", "deployment")
def test_a_missing_extra_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "taskqueue_client.events._broker_session", None)
    monkeypatch.setenv("PULSE_URL", "amqp://guest:guest@localhost/")
    result = run("work", "greeting:Greeter", "--config", "worker.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr == 'Error: listeners need aio-pika: pip install "taskqueue_client[events]"\n'


LEFT_BEHIND = """
import logging, time
from concurrent.futures import ThreadPoolExecutor
from taskqueue_client.__main__ import end_process_within

logging.basicConfig()
ThreadPoolExecutor(thread_name_prefix="forgotten").submit(time.sleep, 600)
end_process_within({seconds}, 3)
"""


def test_a_process_ends_although_a_handler_has_left_threads_running() -> None:
    command = [sys.executable, "-c", LEFT_BEHIND.format(seconds=0.1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "threads (forgotten_0), for child processes" in done.stderr


ENDED_BY_AN_EXCEPTION = """
import sys, threading, time
from taskqueue_client import __main__, cli

def fail(**_):
    threading.Thread(target=time.sleep, args=(600,), name="forgotten").start()
    raise RuntimeError("a hook that fails")

__main__.LINGERING, cli.taskqueue, sys.argv[1:] = 0.1, fail, ["work"]
__main__.main()
"""


def test_a_process_that_an_exception_ends_does_not_wait_for_threads_either() -> None:
    command = [sys.executable, "-c", ENDED_BY_AN_EXCEPTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitStatus.NOT_COMPLETED
    assert "threads (forgotten), for child processes" in done.stderr


def test_a_process_without_other_threads_ends_at_once_and_with_its_own_status() -> None:
    program = "from taskqueue_client.__main__ import end_process_within; end_process_within(600, 3)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
