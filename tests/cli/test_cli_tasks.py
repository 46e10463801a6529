"""`status`, `watch`, `cancel`, `rerun` and `signed-url`: what a terminal shows of tasks, and does to them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from queue import SimpleQueue
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from taskqueue_client import Queue, slugid, temporary_credentials
from taskqueue_client.cli import status
from taskqueue_client.cli.arguments import duration
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.cli.output import runs_table
from taskqueue_client.clock import MovableClock
from taskqueue_client.credentials import expires_at
from taskqueue_client.errors import ApiError, ServerError
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Delay, Drop, Respond
from taskqueue_client.models import TaskAndStatus, TaskState
from tests.cli.command import COMMAND, ENDING, run, run_json, running
from tests.cli.terminal import on_a_terminal
from tests.cli.test_cli_doctor import become
from tests.worker.queue_world import until

pytestmark = pytest.mark.usefixtures("deployment")

Create = Callable[..., str]


@pytest.fixture
def create(queue: Queue, task_factory: Any) -> Create:
    """A function that creates a task of proj/linux with a name, and returns its id."""

    def create_task(name: str, **keys: Any) -> str:
        task_id = slugid()
        definition = task_factory(taskQueueId="proj/linux", **keys)
        definition["metadata"]["name"] = name
        queue.create_task(task_id, definition)
        return task_id

    return create_task


@pytest.fixture
def group(create: Create) -> str:
    """A group of two tasks, of which `second` needs `first`."""
    group_id = slugid()
    first = create("first", taskGroupId=group_id)
    create("second", taskGroupId=group_id, dependencies=[first])
    return group_id


def test_status_shows_a_task_with_its_runs(create: Create, worker: Any) -> None:
    task_id = create("compile")
    with worker(compile="malformed-payload"):
        pass
    output = run("status", task_id).stdout
    assert f"compile ({task_id})" in output
    assert output.splitlines()[-1].split()[:4] == ["0", "exception", "malformed-payload", "g/w"]


def test_status_shows_a_group_as_a_table_without_truncation(create: Create) -> None:
    group_id, name = slugid(), "x" * 255
    ids = [create(name, taskGroupId=group_id), create("[red]b", taskGroupId=group_id)]
    output = run("status", "--group", group_id).stdout
    assert all(task_id in output for task_id in ids)
    assert name in output
    assert "[red]b" in output


def test_a_name_cannot_control_the_terminal(create: Create) -> None:
    task_id = create("a\x1b[2Jb\t\u202ec")
    assert "a\ufffd[2Jb \ufffdc" in run("status", task_id).stdout
    assert "\x1b" not in run("status", task_id, task_id).stdout


def test_a_name_cannot_control_the_terminal_in_json_either(create: Create) -> None:
    name = "a\x1b[2Jb\x9b2Jc\x7f\u0085ü→"
    task_id = create(name)
    printed = run("status", task_id, "--json").stdout
    assert json.loads(printed)["task"]["metadata"]["name"] == name
    assert not set(printed) & {"\x1b", "\x9b", "\x7f", "\x85"}
    assert "ü→" in printed


def test_status_as_json_is_definition_and_status_as_the_queue_has_them(create: Create, queue: Queue) -> None:
    task_id = create("compile")
    (printed,) = run_json("status", task_id)
    assert printed["task"] == queue.task(task_id)
    assert printed["status"]["taskId"] == task_id
    assert printed["status"]["runs"][0]["reasonCreated"] == "scheduled"


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_status_shows_the_tasks_that_exist_and_names_the_others(create: Create, option: list[str]) -> None:
    known, unknown = create("compile"), [slugid(), slugid()]
    result = run("status", unknown[0], known, unknown[1], *option)
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert known in result.stdout
    assert [line.partition(": not found: ")[0] for line in result.stderr.splitlines()] == [
        f"Error: {each}" for each in unknown
    ]


def test_status_of_unknown_tasks_prints_no_table() -> None:
    result = run("status", slugid(), slugid())
    assert (result.exit_code, result.stdout) == (ExitStatus.NOT_COMPLETED, "")


def test_status_names_the_failed_task_that_blocks_one_even_if_it_is_an_indirect_dependency(
    create: Create, worker: Any
) -> None:
    first = create("first")
    last = create("last", dependencies=[create("between", dependencies=[first])])
    assert "state     unscheduled, 5 retries left" in run("status", last).stdout
    with worker(first="failed"):
        pass
    state = f"state     unscheduled, blocked by {first} (first, failed), 5 retries left\n"
    assert state in run("status", last).stdout
    (line,) = (each for each in run("status", "--group", last).stdout.splitlines() if last in each)
    assert line.split() == ["last", last, "unscheduled", "blocked"]


def test_status_says_until_when_a_running_task_is_claimed(create: Create, queue: Queue) -> None:
    task_id = create("compile")
    run_ = queue.claim_task(task_id, 0, worker_group="tests", worker_id="w").status.runs[0]
    assert run_.taken_until is not None
    state = f"state     running, claimed until {run_.taken_until:%Y-%m-%d %H:%M:%S} UTC, 5 retries left\n"
    assert state in run("status", task_id).stdout
    queue.report_completed(task_id, 0)
    assert "state     completed, 5 retries left\n" in run("status", task_id).stdout


def test_status_names_three_of_the_tasks_that_block_one(create: Create, queue: Queue) -> None:
    failed = [create(name) for name in "abcde"]
    completed = create("completed")
    last = create("last", dependencies=[completed, *failed])
    for each in failed:
        queue.cancel_task(each)
    queue.claim_task(completed, 0, worker_group="tests", worker_id="w")
    queue.report_completed(completed, 0)
    (state,) = re.findall("^state .*", run("status", last).stdout, re.MULTILINE)
    a, b, c, *_ = failed
    expected = f"{a} (a, exception), {b} (b, exception), {c} (c, exception) and 2 more"
    assert state == f"state     unscheduled, blocked by {expected}, 5 retries left"


class CountedList(list[str]):
    reads = 0

    def __iter__(self) -> Iterator[str]:
        self.reads += len(self)
        return super().__iter__()


def test_each_dependency_of_a_blocked_task_is_looked_at_a_few_times(create: Create, queue: Queue) -> None:
    """Looking at all dependencies for each of them would take a minute if there are ten thousand."""
    failed = [create(name) for name in "abcdefghijklmnopqrst"]
    last = create("last", dependencies=failed)
    for each in failed:
        queue.cancel_task(each)
    members = [
        TaskAndStatus(task=queue.task(each), status=queue.status(each).status) for each in (last, *failed)
    ]
    members[0].task["dependencies"] = dependencies = CountedList(failed)
    assert status.blockers(members).endswith(f"{failed[2]} (c, exception) and 17 more")
    assert dependencies.reads < 5 * len(failed)


def test_status_counts_one_retry_that_is_left(create: Create) -> None:
    assert "state     pending, 1 retry left\n" in run("status", create("careful", retries=1)).stdout


def test_watch_prints_each_change_of_a_group_and_exits_with_0(group: str, worker: Any) -> None:
    with worker(first="completed", second="completed"):
        result = run("watch", "--group", group, "--interval", "0.02")
    assert result.exit_code == ExitStatus.DONE
    assert {line.split(maxsplit=1)[1] for line in result.stdout.splitlines()} >= {
        "first completed",
        "second completed",
    }


def test_watch_ends_when_all_remaining_tasks_are_blocked(group: str, worker: Any) -> None:
    with worker(first="malformed-payload"):
        result = run("watch", "--group", group, "--interval", "0.02")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    last_two = {line.split(maxsplit=1)[1] for line in result.stdout.splitlines()[-2:]}
    assert last_two == {"first exception malformed-payload", "second unscheduled blocked"}


def test_watch_ends_when_a_task_is_blocked_by_tasks_that_are_not_watched(
    create: Create, worker: Any, queue: Queue
) -> None:
    failed, unfinished = create("first"), create("other")
    between = create("between", dependencies=[failed])
    last = create("last", dependencies=[between, unfinished])
    with worker(first="failed"):
        result = run("watch", last, "--interval", "0.02")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert {line.split()[0] for line in result.stdout.splitlines()} == {last}
    assert result.stdout.splitlines()[-1] == f"{last} last unscheduled blocked"
    assert queue.status(unfinished).status.state is TaskState.PENDING


def test_watch_follows_a_task_whose_dependencies_its_credentials_may_not_read(
    create: Create, local_queue: LocalQueue, queue: Queue
) -> None:
    failed = create("first")
    last = create("last", dependencies=[failed])
    queue.cancel_task(failed)
    members = [TaskAndStatus(task=queue.task(last), status=queue.status(last).status)]
    assert [each.status.task_id for each in status.blocking(queue, members)] == [failed]
    local_queue.faults.add(Respond("queue.statuses", status=403))
    assert status.blocking(queue, members) == []


def test_watch_of_a_group_ends_when_its_tasks_are_blocked_by_one_of_another_group(
    create: Create, worker: Any
) -> None:
    last = create("last", dependencies=[create("first")])
    with worker(first="failed"):
        result = run("watch", "--group", last, "--interval", "0.02")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stdout.splitlines()[-1] == f"{last} last unscheduled blocked"


def test_watch_of_a_group_without_tasks_is_not_a_success(create: Create) -> None:
    group_id = slugid()
    with pytest.raises(ApiError):  # the Queue keeps the group of the refused task
        create("first", taskGroupId=group_id, dependencies=[slugid()])
    result = run("watch", "--group", group_id)
    assert (result.exit_code, result.stdout) == (ExitStatus.REFUSED, "")
    assert result.stderr == f"Error: task group {group_id} has no tasks\n"


def test_watch_follows_a_single_task(create: Create, worker: Any) -> None:
    task_id = create("compile")
    with worker(compile="failed"):
        result = run("watch", task_id, "--interval", "0.02")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stdout.splitlines()[-1] == f"{task_id} compile failed"


def test_watch_as_json_is_a_status_in_each_line(create: Create, worker: Any) -> None:
    task_id = create("compile")
    with worker(compile="completed"):
        pass
    assert [(line["name"], line["state"]) for line in run_json("watch", task_id)] == [
        ("compile", "completed")
    ]


def test_watch_as_json_says_that_a_task_is_blocked(create: Create, worker: Any) -> None:
    failed = create("first")
    last = create("last", dependencies=[failed])
    with worker(first="failed"):
        pass
    lines = run_json("watch", failed, last)
    assert [(line["name"], line["blocked"]) for line in lines] == [("first", False), ("last", True)]


def hasty() -> Queue:
    return Queue.from_env().with_options(attempts=1)


def test_watch_waits_out_an_outage_and_says_so_once(
    create: Create, local_queue: LocalQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "connect", hasty)
    task_id, faults = create("compile"), local_queue.faults
    faults.add(Delay("queue.status", seconds=0))  # the first request succeeds
    faults.add(Respond("queue.status", status=503, times=2))
    faults.add(Respond("queue.status", status=404, html=True))

    def cancel() -> None:
        until(lambda: faults.waiting() == [])
        queue.cancel_task(task_id)

    canceling = threading.Thread(target=cancel)
    canceling.start()
    result = run("watch", task_id, "--interval", "0.02")
    canceling.join()
    assert result.stdout.splitlines() == [
        f"{task_id} compile pending",
        f"{task_id} compile exception canceled",
    ]
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{local_queue.root_url} is in trouble (HTTP 503")
    assert line.endswith("; retrying for an hour at most")


def test_the_note_about_an_outage_stands_above_the_table_of_a_terminal(
    create: Create, local_queue: LocalQueue
) -> None:
    task_id, faults = create("compile"), local_queue.faults
    faults.add(Delay("queue.status", seconds=0))
    faults.add(Respond("queue.status", status=503, times=99))
    with on_a_terminal("watch", task_id, columns=300) as (_, terminal):
        shown = terminal.read_until(lambda text: "retrying for an hour at most" in text)
    assert local_queue.root_url in shown
    assert f"1 pending{local_queue.root_url}" not in shown


def test_watch_ends_if_the_first_request_fails(
    create: Create, local_queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "connect", hasty)
    task_id = create("compile")
    local_queue.faults.add(Respond("queue.status", status=503))
    assert run("watch", task_id).exit_code == ExitStatus.NO_RESPONSE


def test_watch_ends_after_an_outage_of_more_than_an_hour(
    create: Create, local_queue: LocalQueue, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    task_id, clock = create("compile"), MovableClock(held=True)
    once = queue.with_options(attempts=1)
    look = status.PatientLook(lambda: [TaskAndStatus(task={}, status=once.status(task_id).status)], clock)
    known = look()
    for _ in range(2):  # each outage may take an hour
        local_queue.faults.add(Respond("queue.status", status=503, times=2))
        assert look() == known
        clock.advance(3600)
        assert look() == known
        assert look() == known
    local_queue.faults.add(Respond("queue.status", status=503, times=2))
    assert look() == known
    clock.advance(3601)
    with pytest.raises(ServerError):
        look()
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_watch_in_one_line(create: Create, number: signal.Signals) -> None:
    task_id = create("compile")
    with running("watch", task_id) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{task_id} compile pending\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (128 + number, "", "Interrupted.\n")


def test_nohup_lets_a_command_outlive_its_terminal(create: Create) -> None:
    task_id = create("compile")
    command = ["nohup", *COMMAND, "watch", task_id]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{task_id} compile pending\n"
        process.send_signal(signal.SIGHUP)
        run("cancel", task_id)
        assert process.stdout.readline() == f"{task_id} compile exception canceled\n"
        assert process.wait(60) == ExitStatus.NOT_COMPLETED


def test_a_signal_during_retrigger_names_the_task_that_may_have_been_created(
    create: Create, deployment: LocalQueue
) -> None:
    original = create("compile")
    created: SimpleQueue[str] = SimpleQueue()
    deployment.subscribe(lambda message: created.put(message.body["status"]["taskId"]))
    deployment.faults.add(Delay("queue.createTask", seconds=600, after=True))
    with running("retrigger", original) as process:
        copy = created.get(timeout=60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors == f"{copy}, a copy of {original}, may have been created\nInterrupted.\n"


def test_a_signal_names_the_tasks_that_a_command_has_left_out(create: Create, deployment: LocalQueue) -> None:
    first, second = create("first"), create("second")
    canceled: SimpleQueue[None] = SimpleQueue()
    deployment.subscribe(lambda _: canceled.put(None))
    deployment.faults.add(Delay("queue.cancelTask", seconds=600, after=True))
    with running("cancel", first, second) as process:
        canceled.get(timeout=60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors == f"interrupted at {first}; not tried: {second}\nInterrupted.\n"


def test_cancel_says_that_a_group_is_sealed_whose_tasks_it_could_not_cancel(
    group: str, deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing = [f"queue:seal-task-group:-/{group}"]
    become(monkeypatch, temporary_credentials(deployment.credentials, sealing))
    result = run("cancel", "--group", group)
    assert (result.exit_code, result.stdout) == (ExitStatus.REFUSED, "")
    sealed, error = result.stderr.splitlines()
    assert sealed == f"task group {group} is sealed: no task can be added to it"
    assert error.startswith(f"Error: client '{deployment.client_id}' is missing scope: ")


def test_a_closed_output_pipe_ends_watch_silently(create: Create) -> None:
    with running("watch", create("tests")) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == ExitStatus.NOT_COMPLETED


@pytest.mark.parametrize(("given", "seconds"), [("2.5", 2.5), ("90 seconds", 90), ("1h", 3600)])
def test_a_duration_of_the_command_line_is_seconds_or_text(given: str, seconds: float) -> None:
    assert duration()(given) == seconds


@pytest.mark.parametrize("interval", ["nan", "inf", "1e30", "0", "soon", "2 days", "-1 minute"])
def test_an_invalid_interval_is_refused_as_a_usage_error(create: Create, interval: str) -> None:
    result = run("watch", create("tests"), "--interval", interval)
    assert result.exit_code == ExitStatus.WRONG_USE
    assert f"--interval': {interval!r} is not valid; expected seconds, or whole" in result.stderr
    assert result.stdout == ""


def test_watch_draws_a_table_and_a_bar_on_a_terminal(create: Create, worker: Any) -> None:
    task_id = create("compile")
    with worker(compile="completed"):
        pass
    with on_a_terminal("watch", task_id) as (process, terminal):
        shown = terminal.read_all()
        assert process.wait(60) == ExitStatus.DONE
    assert task_id in shown
    assert "\x1b[32m━" in shown  # in 16 colors, too, a full bar does not look like an empty one
    assert "1/1" in shown
    assert "\x1b[?25h" in shown.splitlines()[-1]  # the cursor is back


@pytest.mark.parametrize("environment", [{"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
def test_watch_prints_lines_in_a_file_also_with_colors(
    create: Create, queue: Queue, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    task_id = create("compile")
    queue.cancel_task(task_id)
    assert run("watch", task_id).stdout == f"{task_id} compile exception canceled\n"


def test_watch_prints_lines_on_a_terminal_that_cannot_redraw(create: Create, queue: Queue) -> None:
    task_id = create("compile")
    queue.cancel_task(task_id)
    with on_a_terminal("watch", task_id, terminal_type="dumb") as (_, terminal):
        assert terminal.read_all() == f"{task_id} compile exception canceled\r\n"


def test_a_terminal_of_unknown_width_has_80_columns(create: Create) -> None:
    """A shell that has not asked for its size, such as one on a serial console, may have set COLUMNS to 0."""
    task_id = create("compile")
    with on_a_terminal("status", task_id, task_id, columns=0) as (_, terminal):
        heading, row, *_ = terminal.read_all().splitlines()
    assert "STATE" in heading
    assert row.split()[:3] == ["compile", task_id, "pending"]


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_cuts_off_names_but_neither_ids_nor_states(create: Create, width: int) -> None:
    task_id = create("mochitest " + "x" * 100)
    with on_a_terminal("status", task_id, task_id, columns=width) as (_, terminal):
        heading, row, *_ = terminal.read_all().splitlines()
    assert f"{task_id}  pending" in row
    assert row.startswith("moc")
    assert "STATE" in heading


def test_a_narrow_terminal_cuts_off_workers_but_not_reasons(queue: Queue, create: Create) -> None:
    task_id = create("compile")
    (claim,) = queue.claim_work("proj/linux", worker_group="g" * 38, worker_id="w" * 38).tasks
    queue.with_credentials(claim.credentials).report_exception(task_id, 0, "malformed-payload")
    with on_a_terminal("status", task_id, columns=80, terminal_type="dumb") as (_, terminal):
        row = terminal.read_all().splitlines()[-1]
    assert "exception  malformed-payload" in row
    assert "UTC" in row


def test_a_run_has_taken_as_long_as_the_service_s_clock_says(
    create: Create, queue: Queue, local_queue: LocalQueue
) -> None:
    """The clock of this machine is 10.5 minutes behind."""
    task_id = create("compile")
    queue.claim_work("proj/linux", worker_group="g", worker_id="w")
    local_queue.clock.advance(minutes=10, seconds=30)
    group = queue.status(task_id).status.task_group_id
    assert "  0:10:" in run("status", task_id).stdout
    assert "  0:10:" in run("status", "--group", group).stdout


def test_a_time_with_an_offset_is_shown_in_utc(create: Create, queue: Queue) -> None:
    known = queue.status(create("compile")).status
    there = timezone(timedelta(hours=5))
    run = replace(known.runs[0], scheduled=datetime(2026, 11, 22, 1, 30, 15, tzinfo=there))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(runs_table(replace(known, runs=[run]), queue.now()))
    assert "2026-11-21 20:30:15 UTC" in capture.get()


def test_a_small_terminal_shows_the_most_important_tasks(create: Create, queue: Queue, worker: Any) -> None:
    names = [f"task-{number}" for number in range(8)]
    ids = [create(name) for name in names]
    with worker(**{**dict.fromkeys(names, "completed"), "task-7": "failed"}):
        pass
    members = [TaskAndStatus(task=queue.task(each), status=queue.status(each).status) for each in ids]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(status.progress(members, frozenset(), lines=3, now=queue.now()))
    assert "task-7" in capture.get()
    assert capture.get().count("task-") == 3
    assert "8/8" in capture.get()
    assert "7 completed" in capture.get()


def test_cancel_ends_tasks(create: Create, queue: Queue) -> None:
    ids = [create("a"), create("b")]
    assert run("cancel", *ids).stdout.splitlines() == [f"{task_id} exception" for task_id in ids]
    assert {queue.status(task_id).status.state for task_id in ids} == {TaskState.EXCEPTION}


@pytest.mark.parametrize(
    "words", [["cancel"], ["rerun"], ["schedule"], ["priority", "low"], ["retrigger"]], ids=" ".join
)
def test_a_task_that_is_refused_does_not_keep_a_command_from_the_others(
    create: Create, words: list[str]
) -> None:
    unknown, known = slugid(), create("a")
    result = run(*words, unknown, known)
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stderr.startswith(f"Error: {unknown}: not found: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout.startswith(f"{known} ")


def test_a_command_for_several_tasks_ends_at_the_first_one_if_its_credentials_are_not_accepted(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "another")
    result = run("cancel", create("a"), create("b"))
    assert result.exit_code == ExitStatus.REFUSED
    assert len(result.stderr.splitlines()) == 1
    assert "not tried: " in result.stderr


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize(
    "fault", [Drop("queue.cancelTask", times=99), Respond("queue.cancelTask", status=500, times=99)], ids=str
)
def test_a_command_that_ends_before_its_last_task_names_the_task_and_those_that_it_has_not_tried(
    create: Create, local_queue: LocalQueue, fault: Drop | Respond
) -> None:
    first, second, third = create("a"), create("b"), create("c")
    local_queue.faults.add(fault)
    result = run("cancel", first, second, third)
    assert result.exit_code == ExitStatus.NO_RESPONSE
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {first}: ")
    assert line.endswith(f"; cancelTask may have taken effect; not tried: {second}, {third}")
    assert "not tried" not in run("cancel", first).stderr


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize(
    ("words", "endpoint"), [(["rerun"], "rerunTask"), (["cancel"], "cancelTask"), (["status"], "")], ids=str
)
def test_a_call_without_a_response_may_have_taken_effect(
    create: Create, local_queue: LocalQueue, words: list[str], endpoint: str
) -> None:
    local_queue.faults.add(Drop(f"queue.{endpoint or 'task'}", after=True, times=99))
    result = run(*words, create("a"))
    assert result.exit_code == ExitStatus.NO_RESPONSE
    assert result.stderr.endswith(f"; {endpoint} may have taken effect\n") is bool(endpoint)


@pytest.mark.usefixtures("without_pauses")
def test_a_copy_that_may_have_been_created_is_named(
    create: Create, queue: Queue, local_queue: LocalQueue
) -> None:
    original = create("a")
    local_queue.faults.add(Drop("queue.createTask", after=True, times=99))
    first, _ = run("retrigger", original).stderr.splitlines()
    copy = first.removesuffix(f", a copy of {original}, may have been created")
    assert queue.task(copy)["metadata"]["name"] == "a"


def test_retrigger_says_that_a_response_is_not_a_definition(create: Create, local_queue: LocalQueue) -> None:
    local_queue.faults.add(Respond("queue.task", status=200))
    result = run("retrigger", create("a"))
    assert result.exit_code == ExitStatus.NO_RESPONSE
    assert "responded to task with HTTP 200 and an unreadable response (no `created`)" in result.stderr


def test_cancel_ends_a_group(group: str) -> None:
    (response,) = run_json("cancel", "--group", group)
    assert response["cancelledCount"] == 2
    assert run("cancel", "--group", group).stdout == "0 of 2 tasks were canceled\n"


def test_status_of_a_group_ends_with_totals(group: str, create: Create) -> None:
    create("third", taskGroupId=group)
    lines = run("status", "--group", group).stdout.splitlines()
    assert len(lines) == 1 + 3 + 1
    assert lines[-1] == "3 tasks: 2 pending, 1 unscheduled"


def test_the_totals_of_status_say_how_many_tasks_are_blocked(create: Create, worker: Any) -> None:
    first = create("first")
    create("second", taskGroupId=first, dependencies=[first])
    create("other", taskGroupId=first, dependencies=[create("elsewhere")])
    assert run("status", "--group", first).stdout.endswith("\n3 tasks: 1 pending, 2 unscheduled\n")
    with worker(first="failed"):
        pass
    expected = "\n3 tasks: 1 failed, 2 unscheduled (1 blocked)\n"
    assert run("status", "--group", first).stdout.endswith(expected)
    selected = run("status", "--group", first, "--state", "failed").stdout
    assert selected.endswith(expected), "the totals count the whole group"


def test_status_of_a_group_of_one_task_ends_with_totals_too(create: Create) -> None:
    lines = run("status", "--group", create("only")).stdout.splitlines()
    assert len(lines) == 1 + 1 + 1
    assert lines[-1] == "1 task: 1 pending"


def test_status_shows_only_tasks_in_the_given_states(group: str) -> None:
    lines = run("status", "--group", group, "--state", "unscheduled").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "second", "2"]
    (member,) = run_json("status", "--group", group, "--state", "unscheduled")
    assert member["task"]["metadata"]["name"] == "second"
    assert run_json("status", "--group", group, "--state", "failed") == []


def test_retrigger_creates_a_copy_that_starts_at_once(group: str, create: Create, queue: Queue) -> None:
    original = create("again", taskGroupId=group, dependencies=[slugid_of(queue, group)], routes=["index.a"])
    (printed,) = run_json("retrigger", original)
    copy = queue.task(printed["newTaskId"])
    assert (copy["dependencies"], copy["routes"], copy["taskGroupId"]) == ([], [], group)
    assert printed["status"]["state"] == "pending"
    before = queue.task(original)
    assert copy["payload"] == before["payload"]
    assert copy["created"] > before["created"]
    assert length(copy, "deadline") == length(before, "deadline")
    assert length(copy, "expires") == length(before, "expires")


def test_an_exact_copy_keeps_dependencies_and_routes(group: str, create: Create, queue: Queue) -> None:
    dependencies = [slugid_of(queue, group)]
    original = create("again", taskGroupId=group, dependencies=dependencies, routes=["index.a"])
    line = run("retrigger", original, "--exact").stdout
    assert line.startswith(f"{original} ")
    assert line.endswith(" unscheduled\n")
    copy = queue.task(line.split()[1])
    assert (copy["dependencies"], copy["routes"]) == (dependencies, ["index.a"])


def slugid_of(queue: Queue, group: str) -> str:
    """The id of the first task of the group."""
    return next(queue.iter_task_group(group)).status.task_id


def length(task: dict[str, Any], key: str) -> timedelta:
    """The time from a task's creation to another of its dates."""
    return datetime.fromisoformat(task[key]) - datetime.fromisoformat(task["created"])


def test_schedule_starts_an_unscheduled_task(queue: Queue, task_factory: Any) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(dependencies=[task_id]))
    assert run("schedule", task_id).stdout == f"{task_id} pending\n"


def test_rerun_adds_a_run(create: Create, worker: Any) -> None:
    task_id = create("compile")
    with worker(compile="failed"):
        pass
    assert run("rerun", task_id).stdout == f"{task_id} pending, run 1\n"
    (response,) = run_json("rerun", task_id)
    assert len(response["runs"]) == 2


def test_priority_changes_tasks_and_groups(create: Create, queue: Queue) -> None:
    task_id = create("compile")
    assert run("priority", "high", task_id).stdout == f"{task_id} high\n"
    group_id = queue.status(task_id).status.task_group_id
    assert run("priority", "low", "--group", group_id).stdout == "tasks changed: 1\n"
    assert queue.status(task_id).status.priority == "low"


def test_quarantine_keeps_tasks_from_a_worker_for_some_hours(queue: Queue) -> None:
    worker = ("proj/linux", "rack", "w-1")
    expires = datetime.now(UTC) + timedelta(days=1)
    queue.declare_worker("proj/linux", worker_group="rack", worker_id="w-1", expires=expires)
    (document,) = run_json("quarantine", *worker, "--hours", "2", "--reason", "slow disk")
    assert datetime.fromisoformat(document["quarantineUntil"]) > datetime.now(UTC) + timedelta(hours=1)
    assert run("quarantine", *worker, "--hours", "0").stdout == "rack/w-1 is not in quarantine\n"


def test_a_quarantine_lasts_as_long_as_wanted_if_the_clock_of_this_machine_is_behind(
    queue: Queue, deployment: LocalQueue
) -> None:
    expires = datetime.now(UTC) + timedelta(days=1)
    queue.declare_worker("proj/linux", worker_group="rack", worker_id="w-1", expires=expires)
    deployment.clock.advance(hours=3)
    (document,) = run_json("quarantine", "proj/linux", "rack", "w-1", "--hours", "2")
    until = datetime.fromisoformat(document["quarantineUntil"])
    assert until.timestamp() == pytest.approx(deployment.clock.now() + 2 * 3600, abs=60)


def test_a_quarantine_of_not_a_number_of_hours_is_refused() -> None:
    result = run("quarantine", "proj/linux", "rack", "w-1", "--hours", "nan")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "nan is not in the range" in result.stderr


@pytest.mark.parametrize("words", [["cancel"], ["rerun"], ["retrigger"], ["schedule"], ["signed-url"]])
def test_commands_that_change_something_need_credentials(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKCLUSTER_CLIENT_ID")
    monkeypatch.delenv("TASKCLUSTER_ACCESS_TOKEN")
    result = run(*words, slugid(), *(["private/a.txt"] if words == ["signed-url"] else []))
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "set TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN" in result.stderr


def test_a_signed_url_gives_access_without_credentials(create: Create) -> None:
    task_id = create("compile")
    url = run("signed-url", task_id, "private/a.txt").stdout.strip()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url)
    with caught.value as refused:
        code = json.loads(refused.read())["code"]
    assert code == "ResourceNotFound"  # not AuthenticationFailed: the signature is valid


def test_a_signed_url_may_be_that_of_one_run(create: Create) -> None:
    task_id = create("compile")
    url = run("signed-url", task_id, "private/a.txt", "--run", "7").stdout.strip()
    assert f"/task/{task_id}/runs/7/artifacts/private%2Fa.txt?bewit=" in url


def test_a_proxy_cannot_sign_a_url(
    create: Create, deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = create("compile")
    monkeypatch.setenv("TASKCLUSTER_PROXY_URL", deployment.root_url)
    result = run("signed-url", task_id, "private/a.txt")
    assert result.exit_code == ExitStatus.WRONG_USE
    expected = "a proxy cannot sign URLs: set TASKCLUSTER_ROOT_URL and credentials"
    assert result.stderr == f"Error: {expected}, and unset TASKCLUSTER_PROXY_URL\n"


def test_a_refusal_that_is_not_about_credentials_is_shown_with_its_reason(
    create: Create, deployment: LocalQueue
) -> None:
    task_id = create("compile")
    deployment.clock.advance(hours=3)
    result = run("cancel", task_id)
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr.startswith("Error: refused: ")
    assert "deadline" in result.stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [("300", timedelta(minutes=5)), ("2 hours", timedelta(hours=2)), ("400 days", timedelta(days=400))],
)
def test_a_lifetime_is_seconds_or_text(create: Create, given: str, meant: timedelta) -> None:
    task_id, before = create("compile"), datetime.now(UTC)
    (document,) = run_json("signed-url", task_id, "private/a.txt", "--lifetime", given)
    left = datetime.fromisoformat(document["expires"]) - before
    assert meant - timedelta(seconds=1) <= left <= meant + timedelta(minutes=5)


def test_a_url_is_signed_by_the_clock_of_the_service(create: Create, deployment: LocalQueue) -> None:
    task_id = create("compile")
    deployment.clock.advance(hours=1)
    (document,) = run_json("signed-url", task_id, "private/a.txt")
    expires = datetime.fromisoformat(document["expires"]).timestamp()
    assert expires == pytest.approx(deployment.clock.now() + 15 * 60, abs=60)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(document["url"])
    with caught.value as refused:
        assert json.loads(refused.read())["code"] == "ResourceNotFound"  # so the URL has not expired


def test_a_url_that_expires_with_its_credentials_says_so(
    create: Create, deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = create("compile")
    credentials = temporary_credentials(deployment.credentials, ["*"], lifetime=timedelta(hours=1))
    become(monkeypatch, credentials)
    result = run("signed-url", task_id, "private/a.txt", "--lifetime", "2 hours", "--json")
    expires = datetime.fromisoformat(json.loads(result.stdout)["expires"])
    assert expires.timestamp() == pytest.approx(expires_at(credentials), abs=1)
    assert result.stderr.startswith("the URL expires with the credentials, at ")
    assert run("signed-url", task_id, "private/a.txt").stderr == ""


@pytest.mark.parametrize("lifetime", ["for ever", "-5 minutes", "0.3 minutes", "0 seconds", "0", "101 years"])
def test_a_lifetime_that_cannot_be_used_is_refused(create: Create, lifetime: str) -> None:
    result = run("signed-url", create("compile"), "private/a.txt", "--lifetime", lifetime)
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "'--lifetime'" in result.stderr
    assert (
        f"{lifetime!r} is not valid; expected seconds, or whole numbers with units such as '5 minutes', "
        "more than 0 and at most 100 years"
    ) in " ".join(result.stderr.split())
