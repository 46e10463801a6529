"""The worker's log on standard error, read by somebody or not."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from io import StringIO

import pytest

from taskqueue_client.worker.worker_log import StandardErrorLog, log_handler
from taskqueue_client.worker.worker_runner import JsonFormatter

MISSING = "missing in this log, because nobody read standard error, or it failed: %s\n"


class Pipe:
    """A pipe with a log at its end."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self._log = StandardErrorLog(self.writing, "ascii", patience=0.01)

    def log(self, message: str, *arguments: object) -> None:
        self._log.handle(logging.makeLogRecord({"msg": message, "args": arguments}))

    def format_with(self, formatter: logging.Formatter) -> None:
        self._log.setFormatter(formatter)

    def fill(self) -> None:
        os.set_blocking(self.writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"x" * 4096)
        os.set_blocking(self.writing, True)

    @contextmanager
    def on_a_full_disk(self) -> Generator[None]:
        own = os.dup(self.writing)
        with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
            os.dup2(full.fileno(), self.writing)
        yield
        os.dup2(own, self.writing)
        os.close(own)

    def read(self) -> str:
        content = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self.reading, 65536):
                content += chunk
        return content.decode().lstrip("x")

    def close_reader(self) -> None:
        os.close(self.reading)
        self.reading = -1

    def close(self) -> None:
        os.close(self.writing)
        if self.reading >= 0:
            os.close(self.reading)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.mark.timeout(60)  # copying the rest of the record for each 4 kB would take minutes
def test_a_record_of_many_megabytes_is_written_at_once() -> None:
    with open("/dev/null", "wb") as null:  # noqa: PTH123 - a device
        written = StandardErrorLog(null.fileno(), "utf-8")
        written.handle(logging.makeLogRecord({"msg": "x" * 100_000_000}))


def test_lines_are_written_in_the_encoding_of_standard_error(pipe: Pipe) -> None:
    pipe.log("grüße \udcff")
    assert pipe.read() == "gr\\xfc\\xdfe \\udcff\n"


def test_a_line_of_json_is_valid_in_each_encoding_and_does_not_control_a_terminal() -> None:
    text = "grüße \U0001f600 \x1b[2J\x7f\x9b2J\u202eb\udcff"
    record = logging.makeLogRecord({"msg": text, "levelname": "INFO"})
    shown = JsonFormatter().format(record)
    assert shown.isascii()
    assert shown.isprintable()
    assert json.loads(shown)["message"] == text


@pytest.mark.parametrize("value", [uuid.UUID(int=7), float("nan"), b"x"])
def test_a_line_of_json_has_the_extra_fields_of_a_program_as_strings(value: object) -> None:
    record = logging.makeLogRecord({"msg": "built", "task_id": value, "run_id": 0})
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["task_id"], line["run_id"]) == ("built", str(value), 0)


def test_a_long_line_is_written_as_a_whole(pipe: Pipe) -> None:
    pipe.log("y" * 20_000)
    assert pipe.read() == "y" * 20_000 + "\n"


def test_lines_that_nobody_reads_are_dropped_and_counted(pipe: Pipe) -> None:
    pipe.fill()
    pipe.log("one")
    pipe.log("two")
    assert pipe.read() == ""
    pipe.log("three")
    pipe.log("four")
    assert pipe.read() == MISSING % "2 lines" + "three\nfour\n"


def test_a_line_that_does_not_fit_is_cut_and_the_next_one_begins_a_new_line(pipe: Pipe) -> None:
    pipe.log("y" * 200_000)
    assert set(pipe.read()) == {"y"}
    pipe.log("next")
    assert pipe.read() == "\n" + MISSING % "1 line" + "next\n"


def test_lines_for_which_the_disk_has_no_space_are_counted_as_well(pipe: Pipe) -> None:
    with pipe.on_a_full_disk():
        pipe.log("one")
    pipe.log("two")
    assert pipe.read() == MISSING % "1 line" + "two\n"


def test_a_reader_that_is_gone_is_not_an_error(pipe: Pipe) -> None:
    pipe.close_reader()
    pipe.log("one")


def test_a_message_that_cannot_be_formatted_is_replaced_by_a_line_that_says_so(pipe: Pipe) -> None:
    pipe.log("%d", "one")
    pipe.log("two")
    lines = pipe.read().splitlines()
    assert lines[0].endswith("cannot be formatted: TypeError: %d format: a real number is required, not str")
    assert lines[1:] == ["two"]


def test_a_line_about_a_message_that_cannot_be_formatted_is_json_as_well(pipe: Pipe) -> None:
    pipe.format_with(JsonFormatter("w1"))
    pipe.log("%d", "one")
    line = json.loads(pipe.read())
    assert "cannot be formatted: TypeError: %d format" in line["message"]
    assert (line["level"], line["worker_id"]) == ("ERROR", "w1")


def test_a_message_that_cannot_be_formatted_waits_for_no_reader() -> None:
    program = """
        import logging, os
        from contextlib import suppress
        from taskqueue_client.worker.worker_log import log_handler

        os.set_blocking(2, False)
        with suppress(BlockingIOError):
            while True:
                os.write(2, b"x" * 4096)
        os.set_blocking(2, True)
        logging.basicConfig(handlers=[log_handler()])
        logging.error("%d", "one")
        os._exit(7)
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-c", textwrap.dedent(program)]
    try:
        assert subprocess.run(command, check=False, stderr=writing, timeout=60).returncode == 7
    finally:
        os.close(reading)
        os.close(writing)


def test_a_closed_standard_error_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    logger = logging.getLogger("test_closed")
    logger.addHandler(log_handler())
    logger.warning("nobody sees it")


def test_a_standard_error_that_is_not_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    logger = logging.getLogger("test_no_file")
    logger.addHandler(log_handler())
    logger.warning("one")
    assert written.getvalue() == "one\n"


def test_the_logger_of_the_worker_has_the_class_that_the_program_has_chosen() -> None:
    program = """
import logging

class Named(logging.Logger):
    __slots__ = ("own",)

    def makeRecord(self, *args, **options):
        record = super().makeRecord(*args, **options)
        record.program = "builder"
        return record

logging.setLoggerClass(Named)
logging.basicConfig(format="%(program)s: %(message)s")
import taskqueue_client.worker
logging.getLogger("taskqueue_client.worker").warning("claim expired")
"""
    assert errors_of(program) == "builder: claim expired\n"


def test_the_worker_logs_though_the_program_has_disabled_existing_loggers_before_its_import() -> None:
    program = """
import logging, logging.config
log = logging.getLogger("taskqueue_client.worker")
logging.config.dictConfig({"version": 1})
import taskqueue_client.worker
log.warning("claim expired")
"""
    assert errors_of(program) == "claim expired\n"


@pytest.mark.parametrize("kind", ["Handler", "Filter"])
def test_a_log_handler_or_filter_that_raises_does_not_fail_the_worker(kind: str) -> None:
    program = f"""
import logging
from taskqueue_client.worker.worker_log import log

class Failing(logging.{kind}):
    def emit(self, record): raise ConnectionError("no log service")
    filter = emit

getattr(log, "add{kind}")(Failing())
log.warning("claim %s expired", 1)
logging.raiseExceptions = False
log.warning("claim %s expired", 2)
"""
    lines = errors_of(program).splitlines()
    failed = "a handler or filter of the program's logging failed for a log record of <string>, line"
    assert f"ERROR {failed} 10" in lines[0]
    assert lines[-1] == "  ConnectionError: no log service"
    assert sum(failed in each for each in lines) == 1


def test_a_record_factory_that_raises_does_not_fail_the_worker() -> None:
    program = """
import logging, os
from taskqueue_client.worker.worker_log import log

logging.setLogRecordFactory(lambda *args, **options: os.environ["NO_SUCH_VARIABLE"])
log.warning("claim %s expired", 1)
"""
    lines = errors_of(program).splitlines()
    failed = "a record factory of the program's logging failed for a log record of <string>, line 6"
    assert f"ERROR {failed}" in lines[0]
    assert "  KeyError: 'NO_SUCH_VARIABLE'" in lines
    assert lines[-1] == "claim 1 expired"


WORKER = """
import logging
from taskqueue_client import LocalQueue, Queue, WorkerLoop, slugid, task_definition

class Worker(WorkerLoop):
    def run_task(self, task):
        logging.getLogger("library").info("not shown")
        task.queue.ping()

def work(kind=Worker, **settings):
    about = {"name": "test", "owner": "me@example.com", "source": "https://example.com"}
    names = {"task_queue_id": "proj-demo/linux", "worker_group": "g", "worker_id": "w", "max_tasks": 1}
    with LocalQueue() as local, Queue(local.root_url, local.credentials) as queue:
        queue.create_task(slugid(), task_definition("proj-demo/linux", {}, **about))
        kind(root_url=local.root_url, credentials=local.credentials, **names, **settings).run()
"""


@pytest.mark.parametrize("capture", [False, True])
def test_run_logs_to_standard_error_if_the_program_does_not_configure_logging(*, capture: bool) -> None:
    shown = errors_of(f"{WORKER}work(capture_logging={capture})").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ", each) for each in shown), shown
    # The line about max_tasks precedes or follows the one about the begin of the run.
    others = [each for each in shown if not each.endswith(" no more claims: max_tasks is reached")]
    assert len(others) == len(shown) - 1
    events = [each.split(" INFO ")[1].partition(" ")[2] for each in others]
    assert events[0].startswith("g/w starts: taskqueue_client ")
    assert [" begins " in each for each in events[1:]] == [True, False, False]
    assert " ended: completed after " in events[2]
    assert events[3] == "worker has ended"


@pytest.mark.parametrize("name", ["taskqueue_client.worker", "taskqueue_client"])
def test_runs_are_reported_though_a_log_handler_raises(name: str) -> None:
    program = f"""{WORKER}
import time
from taskqueue_client.clock import MovableClock

class Failing(logging.Handler):
    def emit(self, record): raise ConnectionError("no log service")

logging.getLogger("{name}").addHandler(Failing())
logging.getLogger("{name}").setLevel(logging.INFO)
work(kind=type("Printing", (Worker,), {{"on_task_end": lambda self, end: print(end.outcome)}}),
     clock=MovableClock(time.time() - 900))  # differs from the Queue's
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=True, text=True, capture_output=True).stdout == "completed\n"


def test_runs_are_reported_though_the_record_factory_raises_and_their_secrets_are_not_shown() -> None:
    program = f"""{WORKER}
from taskqueue_client.worker import TaskFailed

def fail(*args, **options): raise LookupError("no request id")

class Failing(Worker):
    def run_task(self, task):
        logging.setLogRecordFactory(fail)
        task.register_secret("hunter2-hunter2")
        task.log.info("password hunter2-hunter2")
        raise TaskFailed("no source")

    def on_task_end(self, end): print(end.outcome)

work(kind=Failing)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=True, text=True, capture_output=True)
    assert ended.stdout == "failed\n"
    assert "LookupError: no request id" in ended.stderr
    assert "hunter2" not in ended.stderr


@pytest.mark.parametrize(
    "configuration",
    ["logging.basicConfig(level=logging.ERROR)", "logging.root.addHandler(logging.NullHandler())"],
)
def test_run_leaves_logging_as_the_program_configures_it(configuration: str) -> None:
    late = f"class Late(Worker):\n    def on_start(self):\n        {configuration}\n"
    assert errors_of(f"{WORKER}{configuration}\nwork()") == ""
    assert errors_of(f"{WORKER}{late}work(kind=Late)") == ""


@pytest.mark.parametrize("name", ["", "taskqueue_client", "taskqueue_client.worker"])
def test_run_leaves_the_levels_that_the_program_sets(name: str) -> None:
    level = f'logging.getLogger("{name}").setLevel(logging.'
    assert errors_of(f"{WORKER}{level}ERROR)\nwork()") == ""
    assert " INFO run " in errors_of(f"{WORKER}{level}DEBUG)\nwork()")


def test_run_writes_each_line_once_when_a_handler_configures_logging() -> None:
    configure = "logging.basicConfig(format='own %(message)s')"
    late = f"class Late(Worker):\n    def run_task(self, task):\n        {configure}\n"
    shown = errors_of(f"{WORKER}{late}work(kind=Late)").splitlines()
    assert [each for each in shown if " ended: " in each] == [shown[-2]]
    assert shown[-2].startswith("own run ")


def test_the_log_of_a_worker_goes_on_when_another_one_of_the_program_ends() -> None:
    program = """
from taskqueue_client.worker.worker_log import log, logged_by_default
first, second = logged_by_default(), logged_by_default()
first.__enter__()
second.__enter__()
log.info("both")
first.__exit__(None, None, None)
log.info("one")
second.__exit__(None, None, None)
log.info("none")
"""
    assert [each.rpartition(" ")[2] for each in errors_of(program).splitlines()] == ["both", "one"]


def test_run_takes_its_log_back_at_its_end() -> None:
    after = 'log = logging.getLogger("taskqueue_client.worker"); log.info("no"); log.warning("yes")'
    assert errors_of(f"{WORKER}work()\n{after}").splitlines()[-1] == "yes"


def errors_of(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    return run.stderr
