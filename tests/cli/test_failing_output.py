"""Commands whose standard output fails: one line says so, and no id of a new task is lost."""

from __future__ import annotations

import fcntl
import json
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, from_now, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.cli.output import print_change
from taskqueue_client.models import TaskState
from tests.cli.command import COMMAND, ENDING
from tests.cli.command import running as running_command

pytestmark = pytest.mark.usefixtures("deployment")

FAILED = "Error: cannot write to standard output: No space left on device"


def on_a_full_disk(*arguments: str) -> tuple[int, list[str]]:
    """Run a command with its output on a full disk; return its status and lines of standard error."""
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    return ended.returncode, ended.stderr.splitlines()


def without_a_reader(*arguments: str) -> tuple[int, list[str]]:
    """Run a command whose output nobody reads any more; return its status and lines of standard error."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        lines = process.stderr.read().splitlines()
        return process.wait(timeout=60), lines


@pytest.fixture
def file(folder: Path, definition: dict[str, Any]) -> str:
    definition["metadata"]["name"] = "tests"
    (folder / "task.json").write_text(json.dumps(definition))
    return "task.json"


READING = [["--version"], ["--help"], ["submit", "--help"], ["doctor"], ["submit", "task.json", "--dry-run"]]


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_command_that_cannot_write_its_output_says_so_in_one_line(arguments: Sequence[str]) -> None:
    assert on_a_full_disk(*arguments) == (ExitStatus.NOT_COMPLETED, [FAILED])


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_command_whose_reader_has_ended_ends_without_a_message(arguments: Sequence[str]) -> None:
    assert without_a_reader(*arguments) == (ExitStatus.NOT_COMPLETED, [])


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["status", "fN1SbArXTPSVFNUvaOlinQ"], ExitStatus.REFUSED),
        (["work", "nothing:Nothing"], ExitStatus.WRONG_USE),
        (["status"], ExitStatus.WRONG_USE),
    ],
)
@pytest.mark.parametrize("reader", ["/dev/full", "a pipe without a reader"])
def test_the_status_is_the_same_if_standard_error_fails(
    arguments: Sequence[str], status: ExitStatus, reader: str
) -> None:
    if reader == "/dev/full":
        with Path(reader).open("wb") as full:
            ended = subprocess.run([*COMMAND, *arguments], stderr=full, timeout=60, check=False)
        assert ended.returncode == status
        return
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(timeout=60) == status


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_script_for_a_shell_that_cannot_be_written_ends_as_other_output_does(
    monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_TASKQUEUE_COMPLETE", f"{shell}_source")
    assert on_a_full_disk() == (ExitStatus.NOT_COMPLETED, [FAILED])
    assert without_a_reader() == (ExitStatus.NOT_COMPLETED, [])


PRINTING = """
import os
os.set_blocking(1, False)
try:
    while True:
        os.write(1, bytes(4096))
except BlockingIOError:
    os.set_blocking(1, True)
print("what nobody reads")
"""


def test_a_worker_ends_also_if_nobody_reads_its_standard_output(folder: Path) -> None:
    (folder / "printing.py").write_text(PRINTING)
    with subprocess.Popen([*COMMAND, "work", "printing:Nothing"], stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=20) == ExitStatus.WRONG_USE  # less than LINGERING
        finally:
            process.kill()


PIPE_SIZE = 4096


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_a_command_whose_output_nobody_reads(
    folder: Path, definition: dict[str, Any], number: signal.Signals
) -> None:
    task = {**definition, "payload": {"text": "x" * (PIPE_SIZE // 2)}}  # two of them do not fit into the pipe
    (folder / "graph.json").write_text(json.dumps({"tasks": {"a": task, "b": task}}))
    with running_command("submit", "graph.json", "--dry-run") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        select.select([process.stdout], [], [])  # the first one is written
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            pass  # the command does not wait yet to write the second one
        process.send_signal(number)
        assert (process.wait(timeout=60), process.stderr.read()) == (128 + number, "Interrupted.\n")


def test_ctrl_c_ends_a_command_whose_modules_are_still_imported_without_a_traceback(folder: Path) -> None:
    (folder / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    ended = subprocess.run([*COMMAND, "work"], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, "Interrupted.\n")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_log_that_cannot_be_written_is_not_taken_for_one_that_cannot_be_read(
    running: tuple[str, Queue], options: Sequence[str]
) -> None:
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, "public/logs/live.log", b"line\n", expires=from_now("1 hour"))
    run_client.report_completed(task_id, 0)
    assert on_a_full_disk("log", task_id, *options) == (ExitStatus.NOT_COMPLETED, [FAILED])


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(("lost", "last"), [(on_a_full_disk, [FAILED]), (without_a_reader, [])])
def test_the_ids_of_new_tasks_are_on_standard_error_if_standard_output_fails(
    file: str,
    queue: Queue,
    lost: Callable[..., tuple[int, list[str]]],
    last: Sequence[str],
    options: Sequence[str],
) -> None:
    status, (group, task, *rest) = lost("submit", file, *options)
    task_id = group.removeprefix("group ")
    assert (status, task, rest) == (ExitStatus.NOT_COMPLETED, f"{task_id} task", last)
    assert queue.status(task_id).status.state is TaskState.PENDING


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["cancel"], "TASK exception"),
        (["cancel", "--group"], "1 of 1 tasks were canceled"),
        (["priority", "high"], "TASK high"),
        (["priority", "high", "--group"], "tasks changed: 1"),
        (["schedule"], "TASK pending"),
    ],
)
def test_what_a_command_has_changed_is_on_standard_error_if_standard_output_fails(
    queue: Queue, task_factory: Any, command: Sequence[str], said: str
) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory())
    expected = [said.replace("TASK", task_id), FAILED]
    assert on_a_full_disk(*command, task_id) == (ExitStatus.NOT_COMPLETED, expected)


def test_the_id_of_a_copy_is_on_standard_error_if_standard_output_fails(
    queue: Queue, task_factory: Any
) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory())
    status, (line, *rest) = on_a_full_disk("retrigger", task_id)
    original, copy, state = line.split()
    assert (status, original, state, rest) == (ExitStatus.NOT_COMPLETED, task_id, "pending", [FAILED])
    assert queue.status(copy).status.state is TaskState.PENDING


@pytest.mark.parametrize(
    "command", [["cancel"], ["priority", "high"], ["schedule"], ["retrigger"]], ids=" ".join
)
@pytest.mark.parametrize(("lost", "last"), [(on_a_full_disk, [FAILED]), (without_a_reader, [])])
def test_all_tasks_are_changed_also_if_standard_output_fails_at_the_first(
    queue: Queue,
    task_factory: Any,
    lost: Callable[..., tuple[int, list[str]]],
    last: Sequence[str],
    command: Sequence[str],
) -> None:
    task_ids = [slugid() for _ in range(3)]
    for task_id in task_ids:
        queue.create_task(task_id, task_factory())
    status, lines = lost(*command, *task_ids)
    changed, rest = lines[:3], lines[3:]
    assert (status, [line.split()[0] for line in changed], rest) == (1, task_ids, last)


class _UnreadOutput(StringIO):
    """Standard output that nobody reads, until the user presses Ctrl-C."""

    def flush(self) -> None:
        raise KeyboardInterrupt


def test_what_a_command_has_changed_is_on_standard_error_if_printing_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", _UnreadOutput())
    with pytest.raises(KeyboardInterrupt):
        print_change({}, "group G", as_json=False)
    assert capsys.readouterr().err == "group G\n"


def test_the_first_line_of_submit_is_enough_for_a_reader(file: str) -> None:
    command = ["bash", "-o", "pipefail", "-c", '"$@" | head -n 1', "bash", *COMMAND, "submit", file]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout[:6], ended.stderr) == ("group ", "")
