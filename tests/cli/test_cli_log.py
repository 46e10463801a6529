"""`taskqueue log`: all of a log, once, also while it grows."""

from __future__ import annotations

import json

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.definitions import from_now
from taskqueue_client.testing import TaskFactory
from tests.cli.command import run, run_json
from tests.cli.command import running as running_command

pytestmark = pytest.mark.usefixtures("deployment")

Running = tuple[str, Queue]
LIVE = "public/logs/live.log"
EXPIRES = from_now("1 hour")


def write(running: Running, text: str) -> None:
    """Make the log so far known, as a worker does at a checkpoint."""
    task_id, run_client = running
    backing = "public/logs/live_backing.log"
    run_client.upload_artifact(task_id, 0, backing, text.encode(), expires=EXPIRES)
    run_client.create_link_artifact(task_id, 0, LIVE, backing, expires=EXPIRES)


def test_the_log_of_a_resolved_task_is_printed_byte_for_byte(running: Running) -> None:
    task_id, run_client = running
    write(running, "one\ntwo, without an end")
    run_client.report_completed(task_id, 0)
    result = run("log", task_id)
    assert result.exit_code == ExitStatus.DONE
    assert result.stdout_bytes == b"one\ntwo, without an end"


def test_a_log_that_grows_is_printed_bit_by_bit_until_the_run_is_resolved(running: Running) -> None:
    task_id, run_client = running
    with running_command("log", task_id, "--interval", "0.05") as process:
        assert process.stdout is not None
        write(running, "one\n")
        assert process.stdout.readline() == "one\n"
        write(running, "one\ntwo\n")
        assert process.stdout.readline() == "two\n"
        write(running, "one\ntwo\nthree\n")
        run_client.report_completed(task_id, 0)
        assert process.stdout.read() == "three\n"
        assert process.wait(60) == ExitStatus.DONE


def test_a_pending_task_s_log_is_waited_for(queue: Queue, task_factory: TaskFactory) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux"))
    with running_command("log", task_id, "--interval", "0.05") as process:
        (claim,) = queue.claim_work("proj/linux", worker_group="g", worker_id="w").tasks
        run_client = queue.with_credentials(claim.credentials)
        write((task_id, run_client), "begun\n")
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        run_client.report_failed(task_id, 0)
        assert process.wait(60) == ExitStatus.DONE


def test_without_following_what_is_there_is_printed(running: Running) -> None:
    write(running, "one\n")
    assert run("log", running[0], "--no-follow").stdout == "one\n"


def test_as_json_each_line_is_an_object(running: Running) -> None:
    write(running, "one\ntwo \N{SNOWMAN}")
    lines = run_json("log", running[0], "--no-follow")
    assert lines == [{"line": "one"}, {"line": "two \N{SNOWMAN}"}]
    assert json.loads(run("log", running[0], "--no-follow", "--json").stdout.splitlines()[0]) == lines[0]


def test_a_run_without_a_log_is_an_error_that_names_it(running: Running) -> None:
    task_id, run_client = running
    run_client.report_completed(task_id, 0)
    result = run("log", task_id)
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr == f"Error: run 0 of task {task_id} has no artifact {LIVE}\n"


def test_a_run_that_does_not_exist_is_an_error_that_names_the_last(running: Running) -> None:
    result = run("log", running[0], "--run", "3")
    assert result.exit_code == ExitStatus.REFUSED
    assert "has no run 3; its last is 0" in result.stderr
