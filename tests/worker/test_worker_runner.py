"""A worker that speaks the worker-runner protocol with the process that started it."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client import Credentials, temporary_credentials
from taskqueue_client.local.faults import Respond
from taskqueue_client.worker import worker_runner
from taskqueue_client.worker.outcomes import InternalError
from taskqueue_client.worker.worker_log import log
from taskqueue_client.worker.worker_runner import (
    CAPABILITIES,
    LONGEST_LINE,
    Ignored,
    Reply,
    RunnerLog,
    RunnerProtocol,
    Termination,
    WorkerRunner,
)
from tests.cli.command import COMMAND
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import worker_for

Message = dict[str, Any]


def line(kind: str, **body: object) -> bytes:
    return b"~" + json.dumps({"type": kind, **body}).encode() + b"\n"


WELCOME = line("welcome", capabilities=[*CAPABILITIES, "something-new"])
RENEWED = {"client-id": "renewed", "access-token": "s3cret"}


def agreed() -> RunnerProtocol:
    protocol = RunnerProtocol()
    protocol.feed(WELCOME)
    return protocol


@given(st.lists(st.integers(min_value=0, max_value=400)))
def test_bytes_mean_the_same_wherever_they_are_cut(cuts: list[int]) -> None:
    data = WELCOME + b"plain\n" + line("graceful-termination", **{"finish-tasks": True}) + b"\r\n\n"
    data += line("new-credentials", **RENEWED) + b"~{ cut"
    protocol, ends = RunnerProtocol(), [*sorted(cuts), len(data)]
    events = [
        each for begin, end in zip([0, *ends], ends, strict=False) for each in protocol.feed(data[begin:end])
    ]
    assert isinstance(events[0], Reply)
    assert events[1:] == [
        Ignored("a line of text: plain"),
        Termination(finish_tasks=True),
        Credentials("renewed", "s3cret"),
    ]


@given(st.binary())
def test_any_bytes_are_taken(data: bytes) -> None:
    assert all(isinstance(each, Ignored) for each in agreed().feed(data + b"\n"))


def test_hello_names_the_capabilities_of_both() -> None:
    (reply,) = RunnerProtocol().feed(line("welcome", capabilities=["log", "something-new", "shutdown"]))
    assert reply == Reply(line("hello", capabilities=["log", "shutdown"]))


def test_nothing_is_sent_before_the_welcome_or_beyond_what_was_agreed() -> None:
    protocol = RunnerProtocol()
    assert protocol.message("shutdown", {}) is None
    assert protocol.message("error-report", {"kind": "x"}) is None
    assert protocol.message("log", {}) is None
    (reply,) = protocol.feed(line("welcome", capabilities=["shutdown"]))
    assert reply == Reply(line("hello", capabilities=["shutdown"]) + line("shutdown"))
    assert protocol.message("log", {}) is None
    assert protocol.message("shutdown", {}) == line("shutdown")


def test_log_lines_before_the_welcome_are_not_sent_as_standard_error_has_them() -> None:
    protocol = RunnerProtocol()
    protocol.message("shutdown", {})
    protocol.message("log", {})
    (reply,) = protocol.feed(line("welcome", capabilities=["log", "shutdown"]))
    assert reply == Reply(line("hello", capabilities=["log", "shutdown"]) + line("shutdown"))


@pytest.mark.parametrize(
    "data",
    [
        b'~{"type": "new-credentials", "access-token": "s3cret"',
        b'noise ~{"type": "new-credentials", "access-token": "s3cret"}',
        b'~{"access-token": "s3cret"}',
        line("new-credentials", **{**RENEWED, "client-id": ""}),
        line("new-credentials", **{**RENEWED, "certificate": "s3cret"}),
        line("new-credentials", **{**RENEWED, "client-id": 5}),
        line("something", **RENEWED),
        line("welcome", capabilities=["s3cret"]),
        b"~{" * 5000 + b"}",
    ],
)
def test_a_line_that_cannot_be_used_is_described_without_its_secrets(data: bytes) -> None:
    (event,) = agreed().feed(data + b"\n")
    assert isinstance(event, Ignored)
    assert "s3cret" not in event.why


def test_a_message_of_a_type_that_was_not_agreed_upon_is_ignored() -> None:
    protocol = RunnerProtocol()
    assert isinstance(protocol.feed(line("graceful-termination"))[0], Ignored)
    protocol.feed(line("welcome", capabilities="log"))
    assert isinstance(protocol.feed(line("graceful-termination"))[0], Ignored)


@pytest.mark.parametrize("kind", ["log", "error-report", "shutdown"])
def test_a_message_that_only_a_worker_sends_is_ignored(kind: str) -> None:
    assert agreed().feed(line(kind, body={"a": "s3cret"})) == [
        Ignored(f"a message of type {kind!r}, which only a worker sends")
    ]


def test_a_line_that_is_too_long_is_refused_once_and_not_kept() -> None:
    protocol, piece = agreed(), b"x" * 65536
    tracemalloc.start()
    events = [event for _ in range(40 * 16) for event in protocol.feed(piece)]  # 40 MiB
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 3 * LONGEST_LINE
    assert events == [Ignored("a line of more than 1048576 bytes", logging.WARNING)]
    assert protocol.feed(b"its end\nplain\n") == [Ignored("a line of text: plain")]


@pytest.mark.parametrize("more", [0, 1])
def test_a_line_is_too_long_if_it_is_longer_than_the_limit(more: int) -> None:
    (event,) = agreed().feed(b"x" * (LONGEST_LINE + more) + b"\n")
    assert isinstance(event, Ignored)
    assert event.why.startswith("a line of more than" if more else "a line of text: xxx")


# With a real parent process

WORKER = """
import logging, os, subprocess, time
from pathlib import Path
from taskqueue_client import WorkerLoop

print("noise of an import")

class Runnable(WorkerLoop):
    def __init__(self, **settings):
        super().__init__(**settings)
        if "BROKEN" in os.environ:
            raise ValueError(f"no disk for {self.credentials.access_token}")

    def on_start(self):
        if "FAILS" in os.environ:
            logging.warning("starts to fail")
            raise ValueError(f"no disk for {self.credentials.access_token}")

    def run_task(self, task):
        print("noise of a handler")
        subprocess.run(["sh", "-c", "echo noise of a child; cat"], check=True)
        if "log" in task.payload:
            logging.getLogger("library").warning(task.payload["log"])
        if "error" in task.payload:
            task.register_secret("of the run")
            raise ValueError(task.payload["error"])
        if "child" in task.payload:
            if os.fork() == 0:
                logging.getLogger("library").warning("of the child")
                os._exit(0)
            os.wait()
        if "outlived_by_child" in task.payload and os.fork() == 0:
            while not Path(task.payload["outlived_by_child"]).exists():
                time.sleep(0.01)
            os._exit(0)
        if "until" in task.payload:
            while not Path(task.payload["until"]).exists():
                task.canceled.check()
                time.sleep(0.01)
"""


class Parent:
    """The parent of a worker process, which speaks the protocol over its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes], *, reads_errors: bool) -> None:
        self.process = process
        self.messages: list[Message] = []
        self.noise: list[bytes] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        reads = [self._read, self._read_errors] if reads_errors else [self._read]
        self._threads = [threading.Thread(target=each) for each in reads]
        for thread in self._threads:
            thread.start()

    @property
    def is_reading(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def send(self, data: bytes) -> Self:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()
        return self

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def of_type(self, kind: str) -> list[Message]:
        return [each for each in list(self.messages) if each["type"] == kind]

    def logged(self, text: str) -> bool:
        return any(text in each["body"]["textPayload"] for each in self.of_type("log"))

    def until_logged(self, text: str) -> None:
        until(lambda: self.logged(text))

    def ended(self) -> int:
        status = self.process.wait(WAIT)
        for thread in self._threads:
            thread.join(WAIT)
        assert self.noise == []
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for each in self.process.stdout:
            if each.startswith(b"~{"):
                self.messages.append(json.loads(each[1:]))
            else:
                self.noise.append(each)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(each.decode() for each in self.process.stderr)


Start = Callable[..., Any]


@pytest.fixture
def start(world: World, tmp_path: Path) -> Start:
    (tmp_path / "runnable.py").write_text(WORKER)

    @contextmanager
    def starting(
        *options: str,
        credentials: Credentials = world.local.credentials,
        reads_errors: bool = True,
        **variables: str,
    ) -> Generator[Parent]:
        environment = {
            **os.environ,
            "TASKCLUSTER_ROOT_URL": world.local.root_url,
            "TASKCLUSTER_CLIENT_ID": credentials.client_id,
            "TASKCLUSTER_ACCESS_TOKEN": credentials.access_token,
            "TASKCLUSTER_CERTIFICATE": credentials.certificate or "",
            "TASKQUEUE_TASK_QUEUE_ID": TASK_QUEUE_ID,
            "TASKQUEUE_WORKER_GROUP": "group",
            "TASKQUEUE_WORKER_ID": "worker",
            **variables,
        }
        command = [*COMMAND, "work", "runnable:Runnable", "--worker-runner", *options]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes) as process:  # type: ignore[call-overload] # the pipes
            try:
                yield Parent(process, reads_errors=reads_errors)
            finally:
                process.kill()

    return starting


def test_a_worker_that_ends_by_itself_asks_for_the_end_of_its_machine_and_prints_only_messages(
    world: World, start: Start
) -> None:
    task_id = world.create()
    with start("--max-tasks", "1") as parent:
        parent.send(WELCOME)
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"
    assert [each["type"] for each in parent.messages if each["type"] != "log"] == ["hello", "shutdown"]
    assert set(parent.messages[0]["capabilities"]) == CAPABILITIES
    (begins,) = [each["body"] for each in parent.of_type("log") if "begins" in each["body"]["textPayload"]]
    assert (begins["task_id"], begins["run_id"], begins["level"]) == (task_id, 0, "INFO")
    assert [each.strip() for each in parent.errors if "noise" in each] != []


def test_without_a_welcome_the_worker_works_and_logs_to_standard_error(world: World, start: Start) -> None:
    task_id = world.create()
    with start("--max-tasks", "1") as parent:
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"
    assert parent.messages == []
    assert "ended: completed" in "".join(parent.errors)


def test_a_worker_that_is_refused_does_not_ask_for_another_machine_which_would_be_refused_too(
    start: Start,
) -> None:
    with start(credentials=Credentials("nobody", "wrong")) as parent:
        parent.send(WELCOME)
        assert parent.ended() == 3
    (report,) = parent.of_type("error-report")
    assert report["title"] == "AuthenticationFailed"
    assert parent.of_type("shutdown") == []


def test_a_worker_says_at_max_idle_that_claim_requests_fail_and_asks_for_the_end_of_its_machine(
    world: World, start: Start
) -> None:
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=503, times=99))
    with start("--max-idle", "0.1") as parent:
        parent.send(WELCOME)
        assert parent.ended() == 1
    (report,) = parent.of_type("error-report")
    assert (report["title"], report["kind"]) == ("InternalServerError", "internal-error")
    assert "claimWork" in report["description"]
    assert len(parent.of_type("shutdown")) == 1


def test_runs_may_finish_if_the_runner_says_so(world: World, start: Start, tmp_path: Path) -> None:
    task_id = world.create({"until": str(tmp_path / "go")})
    with start() as parent:
        parent.send(WELCOME)
        parent.until_logged("begins")
        parent.send(line("graceful-termination", **{"finish-tasks": True}))
        parent.until_logged("no more claims; 1 run may go on without limit; ask again")
        parent.send(line("graceful-termination", **{"finish-tasks": True}))
        (tmp_path / "go").touch()
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"
    assert parent.of_type("shutdown") == []


@pytest.mark.parametrize("first", [[], [True], [False]], ids=str)
def test_runs_are_given_up_if_the_machine_is_about_to_end(
    world: World, start: Start, tmp_path: Path, first: list[bool]
) -> None:
    task_id = world.create({"until": str(tmp_path / "never")})
    with start() as parent:
        parent.send(WELCOME)
        parent.until_logged("begins")
        for finish in [*first, False]:
            parent.send(line("graceful-termination", **{"finish-tasks": finish}))
        assert parent.ended() == 0
    assert world.run(task_id).reason_resolved == "worker-shutdown"
    assert parent.logged("shutting down: no more claims; stopping 1 run; the worker ends within ")
    assert not parent.logged("stopping all runs now")
    assert parent.of_type("shutdown") == []


def test_credentials_are_replaced_without_a_restart(world: World, start: Start) -> None:
    good = world.local.credentials
    with start("--max-tasks", "1") as parent:
        parent.send(WELCOME)
        until(lambda: parent.of_type("hello"))
        until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)  # its claim request is open
        parent.send(line("new-credentials", **RENEWED))
        parent.until_logged("client renewed")
        world.local.clock.advance(seconds=21)
        parent.until_logged("cannot claim work")
        task_id = world.create()
        names = {"client-id": good.client_id, "access-token": good.access_token, "certificate": ""}
        parent.send(line("new-credentials", **names))
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"
    assert "s3cret" not in str(parent.messages) + str(parent.errors)


def test_an_idle_worker_says_that_its_credentials_expire_before_they_do(world: World, start: Start) -> None:
    short = temporary_credentials(world.local.credentials, ["*"], lifetime=timedelta(minutes=1, seconds=30))
    with start(credentials=short) as parent:
        parent.send(WELCOME)
        until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)  # its claim request is open
        world.local.clock.advance(seconds=21)
        parent.until_logged("own credentials expire in")
        parent.send(line("graceful-termination", **{"finish-tasks": False}))
        assert parent.ended() == 0


def test_an_internal_error_is_reported_to_the_runner_without_secrets(world: World, start: Start) -> None:
    token = world.local.credentials.access_token
    task_id = world.create({"error": f"oops {token} of the run"})
    with start("--max-tasks", "1") as parent:
        parent.send(WELCOME)
        assert parent.ended() == 0
    (report,) = parent.of_type("error-report")
    assert report == {
        "type": "error-report",
        "kind": "internal-error",
        "title": "ValueError",
        "description": "oops [masked] [masked]",
        "extra": {"taskId": task_id, "runId": 0},
    }


def test_a_report_of_an_error_is_no_longer_than_worker_manager_accepts(world: World, start: Start) -> None:
    world.create({"error": "x" * 10_241})
    with start("--max-tasks", "1") as parent:
        parent.send(WELCOME)
        assert parent.ended() == 0
    (report,) = parent.of_type("error-report")
    assert (report["title"], report["description"]) == ("ValueError", "x" * 10_240)


def test_an_error_of_on_start_is_reported_to_the_runner_without_secrets(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with start() as parent:
        until(lambda: "starts to fail" in "".join(parent.errors))  # before its welcome
        parent.send(WELCOME)
        assert parent.ended() == 1
    (report,) = parent.of_type("error-report")
    assert (report["title"], report["kind"]) == ("ValueError", "internal-error")
    assert report["description"].startswith("no disk for [masked]")


@pytest.mark.parametrize(
    ("variable", "value", "described"),
    [
        ("BROKEN", "1", "no disk for [masked]"),
        ("TASKQUEUE_CONCURRENCY", "none", "TASKQUEUE_CONCURRENCY: 'none' is not valid"),
        ("TASKCLUSTER_ROOT_URL", "", "TASKCLUSTER_ROOT_URL"),
    ],
)
def test_an_error_before_the_worker_runs_is_reported_to_the_runner(
    start: Start, variable: str, value: str, described: str
) -> None:
    with start(**{variable: value}) as parent:
        parent.send(WELCOME)
        assert parent.ended() in {1, 2}
    (report,) = parent.of_type("error-report")
    assert report["kind"] == "internal-error"
    assert described in report["description"]


def test_a_port_that_is_taken_is_reported_to_the_runner(start: Start) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        start("--metrics-port", str(taken.getsockname()[1])) as parent,
    ):
        parent.send(WELCOME)
        assert parent.ended() != 0
    (report,) = parent.of_type("error-report")
    assert "metrics_port" in report["description"]


def test_lines_that_are_cut_and_lines_that_are_garbage_do_no_harm(world: World, start: Start) -> None:
    task_id = world.create()
    with start("--max-tasks", "1") as parent:
        parent.send(b"\xff\xfe garbage\n~{}\n~{\n")
        for each in WELCOME:
            parent.send(bytes([each]))
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"
    assert parent.messages[0]["type"] == "hello"


def test_a_child_that_a_handler_forks_logs_to_standard_error(world: World, start: Start) -> None:
    task_id = world.create({"child": True})
    with start("--max-tasks", "1") as parent:
        parent.send(WELCOME)
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"
    assert "of the child" in "".join(parent.errors)


def test_the_runner_does_not_wait_for_a_child_that_outlives_the_worker(
    world: World, start: Start, tmp_path: Path
) -> None:
    world.create({"outlived_by_child": str(tmp_path / "end")})
    with start("--max-tasks", "1", reads_errors=False) as parent:
        parent.send(WELCOME)
        try:
            assert parent.ended() == 0
            assert not parent.is_reading
        finally:
            (tmp_path / "end").touch()


def test_a_worker_whose_runner_is_gone_finishes_its_runs_and_ends(
    world: World, start: Start, tmp_path: Path
) -> None:
    task_id = world.create({"until": str(tmp_path / "go")})
    with start() as parent:
        parent.send(WELCOME)
        parent.until_logged("begins")
        parent.close_input()
        parent.until_logged("worker-runner has closed its pipe")
        (tmp_path / "go").touch()
        assert parent.ended() == 0
    assert world.run(task_id).state == "completed"


def test_a_worker_whose_runner_is_gone_does_not_finish_runs_that_take_too_long(
    world: World, start: Start, tmp_path: Path
) -> None:
    task_id = world.create({"until": str(tmp_path / "never")})
    with start("--graceful-shutdown-timeout", "0") as parent:
        parent.send(WELCOME)
        parent.until_logged("begins")
        parent.send(line("graceful-termination", **{"finish-tasks": True}))
        parent.close_input()
        assert parent.ended() == 0
    assert world.run(task_id).reason_resolved == "worker-shutdown"


def test_a_worker_whose_runner_is_gone_before_it_starts_ends_without_an_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone(WorkerRunner):
        def start(self, *, on_closed: Callable[[], object], **_: object) -> None:
            on_closed()

    reading, writing = os.pipe()
    worker = worker_for(world, lambda _: None)
    worker.runner = Gone(reading, writing)
    worker.serve()
    os.close(reading)
    os.close(writing)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert not world.queue.list_workers(TASK_QUEUE_ID).workers


@pytest.mark.parametrize(("error", "asks"), [(OSError("the disk is gone"), True), (SystemExit(3), False)])
def test_a_worker_that_only_fails_asks_for_the_end_of_its_machine_and_one_that_a_hook_exits_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch, error: BaseException, *, asks: bool
) -> None:
    asked: list[bool] = []

    class Noting(WorkerRunner):
        def start(self, **_: object) -> None:
            """Neither read nor write."""

        def request_shutdown(self) -> None:
            asked.append(True)

    def fail(_: object) -> None:
        raise error

    world.create()
    worker = worker_for(world, fail if asks else lambda _: None, max_internal_errors=1)
    worker.runner = Noting(0, 1)
    if not asks:
        monkeypatch.setattr(worker, "on_task_end", fail)
    with pytest.raises((SystemExit, InternalError)):
        worker.serve()
    assert asked == [True] * asks


def test_log_lines_go_to_standard_error_once_the_runner_does_not_read(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    reading, to_worker = os.pipe()
    from_worker, writing = os.pipe()
    runner = WorkerRunner(reading, writing)
    runner.start(on_termination=print, on_credentials=print, on_closed=print)
    os.write(to_worker, WELCOME)
    until(lambda: runner.send_log({"textPayload": "first"}))
    runner.flush()
    os.close(from_worker)
    until(lambda: not runner.send_log({"textPayload": "more"}))
    RunnerLog(runner).handle(logging.makeLogRecord({"msg": "last"}))
    runner.flush()
    os.close(to_worker)
    assert "last" in capsys.readouterr().err
    assert 'not sent to worker-runner: ~{"type": "log", "body": {"textPayload": "more"}}' in caplog.text


@contextmanager
def welcomed(monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[RunnerLog, WorkerRunner, int]]:
    """Yield a log handler, the worker's side of the protocol, and the descriptor that a runner would read."""
    (reading, to_worker), (from_worker, writing) = os.pipe(), os.pipe()
    handler = RunnerLog(runner := WorkerRunner(reading, writing))
    monkeypatch.setattr(log, "handlers", [handler])
    runner.start(on_termination=print, on_credentials=print, on_closed=(closed := threading.Event()).set)
    os.write(to_worker, WELCOME)
    yield handler, runner, from_worker
    os.close(to_worker)
    assert closed.wait(WAIT)


@pytest.mark.parametrize("name", ["writer", "reader"])
def test_a_thread_that_could_not_be_started_is_started_by_the_next_run_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith(name):
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)

    (reading, to_worker), (from_worker, writing) = os.pipe(), os.pipe()
    runner, closed = WorkerRunner(reading, writing), threading.Event()
    begin = partial(runner.start, on_termination=print, on_credentials=print, on_closed=closed.set)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            begin()
    begin()
    os.write(to_worker, WELCOME)
    assert select.select([from_worker], [], [], WAIT)[0]
    assert os.read(from_worker, 2**16).startswith(b'~{"type": "hello"')
    os.close(to_worker)
    assert closed.wait(WAIT)


def test_lines_whose_runner_is_gone_are_written_before_the_end_of_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_runner, "TIME_TO_FLUSH", WAIT)
    with welcomed(monkeypatch) as (handler, runner, from_worker):
        until(lambda: runner.send_log({"textPayload": "first"}))
        runner.flush()
        handler.acquire()  # `logging.shutdown` takes this lock, too
        os.close(from_worker)
        handler.emit(logging.makeLogRecord({"msg": "last"}))
        handler.close()
        assert "last" in capsys.readouterr().err
        handler.release()


@pytest.mark.parametrize("most_waiting", [10_000, 3], ids=["with room", "without room"])
def test_what_a_runner_does_not_read_is_written_to_standard_error_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, most_waiting: int
) -> None:
    monkeypatch.setattr(worker_runner, "TIME_TO_FLUSH", 0.1)
    monkeypatch.setattr(worker_runner, "MOST_WAITING", most_waiting)
    with welcomed(monkeypatch) as (handler, runner, from_worker):
        until(lambda: runner.send_log({"textPayload": "first"}))
        for number in range(20):
            handler.handle(logging.makeLogRecord({"msg": f"line {number}:" + "x" * 100_000}))
        runner.flush()
        monkeypatch.setattr(worker_runner, "TIME_TO_FLUSH", WAIT * 10)  # closing must not wait for this again
        handler.close()
        os.set_blocking(from_worker, False)
        read, logged = os.read(from_worker, 2**20).decode(), capsys.readouterr().err
        assert [each for each in range(20) if f"line {each}:" not in read + logged] == []
        assert "line 0:" in read
        assert logged.count("worker-runner has not read") == 1


def test_a_message_that_a_runner_does_not_take_is_logged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with welcomed(monkeypatch) as (_, runner, from_worker):
        assert os.read(from_worker, 2**16).startswith(b'~{"type": "hello"')
        monkeypatch.setattr(worker_runner, "MOST_WAITING", 0)
        runner.request_shutdown()
        assert 'not sent to worker-runner: ~{"type": "shutdown"}' in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_log_that_neither_the_runner_nor_anybody_else_reads_does_not_hold_up_the_worker(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)  # if buffered, Python writes prints at the end
    task_id = world.create({"log": "y" * 100_000})
    with start("--max-tasks", "1", reads_errors=False) as parent:
        parent.send(line("welcome", capabilities=["shutdown"]))
        assert parent.process.wait(WAIT) == 0
    assert world.run(task_id).state == "completed"


def test_a_message_whose_arguments_do_not_fit_does_not_fail_the_code_that_logs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = logging.makeLogRecord({"msg": "%d files", "args": ("many",)})
    RunnerLog(WorkerRunner(0, 1)).handle(record)
    assert "Message: '%d files'" in capsys.readouterr().err


def test_a_message_that_cannot_be_formatted_is_replaced_by_a_line_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with welcomed(monkeypatch) as (handler, runner, from_worker):
        assert os.read(from_worker, 2**16).startswith(b'~{"type": "hello"')
        handler.handle(logging.makeLogRecord({"msg": "%d files", "args": ("many",)}))
        handler.handle(logging.makeLogRecord({"msg": "last"}))
        runner.flush()
        assert b"cannot be formatted: TypeError: %d format" in os.read(from_worker, 2**16)


def test_garbage_collection_may_log_while_a_message_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may call finalizers at any point. That of an asyncio task logs an error that nobody has seen."""

    class Collecting:
        def __str__(self) -> str:
            log.error("logged by a finalizer")
            return "collected"

    with welcomed(monkeypatch) as (_, runner, from_worker):
        assert os.read(from_worker, 2**16).startswith(b'~{"type": "hello"')
        report = partial(runner.report_error, "title", "description", {"value": Collecting()})
        reporting = threading.Thread(target=report, daemon=True)
        reporting.start()
        reporting.join(WAIT)
        assert not reporting.is_alive()
        runner.flush()
        sent = os.read(from_worker, 2**16)
        assert b"logged by a finalizer" in sent
        assert b'"value": "collected"' in sent


def test_a_connection_that_the_runner_resets_is_one_that_it_has_closed() -> None:
    """Reading is an error then, and not the end of a file."""
    theirs, own = socket.socketpair()
    with own:
        connection, closed = WorkerRunner(own.fileno(), own.fileno()), threading.Event()
        own.send(b"not read")
        theirs.close()
        connection.start(on_termination=lambda _: None, on_credentials=lambda _: None, on_closed=closed.set)
        assert closed.wait(WAIT)
