"""Commands of a run, as a worker runs them: their environment, and the end of their processes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Credentials
from taskqueue_client.worker.commands.run_processes import RunProcesses
from taskqueue_client.worker.commands.task_log import KEPT_IN_MEMORY
from taskqueue_client.worker.outcomes import IntermittentTask, InternalError, TaskFailed
from taskqueue_client.worker.run.run_resources import RunResources
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import World
from tests.worker.run_outcomes import reasons
from tests.worker.running_commands import in_shell, wait_until_gone
from tests.worker.worker_world import Working, log_of, work, worker_for


def leave_daemon(task: TaskRun, file: Path, **options: Any) -> int:
    """Have a command leave a process in another session; return its process id."""
    word = in_shell(file)
    daemon = f"(setsid sh -c 'echo $$ > {word}; exec sleep 600' >/dev/null 2>&1 &)"
    task.run_command(f"{daemon}; until [ -s {word} ]; do :; done", shell=True, **options)
    return int(file.read_text())


def complete(_: TaskRun) -> None:
    pass


def fail(_: TaskRun) -> None:
    raise TaskFailed("no")


def end_with_an_exception(_: TaskRun) -> None:
    raise InternalError("oops")


def try_again(_: TaskRun) -> None:
    raise IntermittentTask("again")


@pytest.mark.parametrize("end", [complete, fail, end_with_an_exception, try_again])
def test_a_daemon_that_a_command_has_left_ends_with_the_run_in_every_outcome(
    world: World, tmp_path: Path, end: Callable[[TaskRun], None]
) -> None:
    pids: list[int] = []

    def handler(task: TaskRun) -> None:
        pids.append(leave_daemon(task, tmp_path / f"pid{len(pids)}"))
        task.run_command(["kill", "-0", str(pids[-1])])  # the daemon is still running during the next command
        end(task)

    task_id = world.create(retries=0)
    work(world, handler, intermittent_attempts=2)
    for pid in pids:
        wait_until_gone(pid)
    assert "WARNING ended processes that commands had left running: 1" in log_of(world, task_id)


def test_a_daemon_ends_with_a_run_that_was_canceled(world: World, tmp_path: Path) -> None:
    def handler(task: TaskRun) -> None:
        pids.append(leave_daemon(task, tmp_path / "pid"))
        world.queue.cancel_task(task.task_id)
        task.run_command(["sleep", "600"])

    pids: list[int] = []
    world.create()
    work(world, handler)
    wait_until_gone(pids[0])


def test_a_daemon_outlives_the_run_and_the_worker_on_request(world: World, tmp_path: Path) -> None:
    pids: list[int] = []
    task_id = world.create()
    work(world, lambda task: pids.append(leave_daemon(task, tmp_path / "pid", keep_children=True)))
    os.kill(pids[0], 9)  # the daemon was still running
    assert reasons(world, task_id) == ["completed"]


def test_every_command_gets_the_ids_of_its_run(world: World) -> None:
    told: list[str | None] = []
    directories: list[Path] = []
    names = ("TASK_ID", "RUN_ID", "TASK_GROUP_ID", "TASK_WORKDIR", "TASKCLUSTER_ROOT_URL")

    def handler(task: TaskRun) -> None:
        script = " ".join(f"${name}" for name in names)
        told.append(task.run_command(f"echo {script}", shell=True, capture=True).stdout)
        directories.append(task.work_directory)

    task_id = world.create()
    work(world, handler)
    group = world.status(task_id).task_group_id
    assert told == [f"{task_id} 0 {group} {directories[0]} {world.local.root_url}\n"]


def test_the_worker_s_own_access_token_is_masked_in_task_logs(world: World) -> None:
    token = world.local.credentials.access_token
    task_id = world.create()
    work(world, lambda task: task.log.info("token: %s", token))
    assert "token: [masked]" in log_of(world, task_id)


def test_an_access_token_that_replaces_it_during_a_run_is_masked(world: World) -> None:
    def handler(task: TaskRun) -> None:
        task.log.info("begun")
        working.worker.credentials = Credentials("new", "the-new-access-token")
        task.log.info("token: the-new-access-token")

    task_id = world.create()
    with Working(world, worker_for(world, handler, max_tasks=1)) as working:
        working.wait_for_end()
    assert "token: [masked]" in log_of(world, task_id)


def test_a_log_that_a_full_disk_has_cut_says_so_and_the_run_is_not_completed(
    world: World, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(task: TaskRun) -> None:
        task.run_command("seq 100; cat /dev/zero > filler || true", shell=True)
        task.run_command("seq -w 100000", shell=True)

    task_id = world.create()
    work(world, handler, work_directory=small_disk)
    lines = log_of(world, task_id).splitlines()
    assert any(line.endswith("Z 100") for line in lines)
    (cut,) = [line for line in lines if "bytes are missing" in line]  # short lines after it may fit
    assert "[Errno 28] No space left on device" in cut
    assert reasons(world, task_id) == ["internal-error"]
    assert "is cut: [Errno 28] No space left on device" in caplog.text


def test_a_log_that_goes_on_after_a_full_disk_says_where_it_was_cut(world: World, small_disk: Path) -> None:
    def handler(task: TaskRun) -> None:
        task.run_command("cat /dev/zero > filler || true", shell=True)
        task.run_command("seq -w 100000", shell=True)
        task.run_command(["rm", "filler"])
        task.log.info("there is space again")

    task_id = world.create()
    work(world, handler, work_directory=small_disk)
    log = log_of(world, task_id)
    assert "bytes are missing here: [Errno 28] No space left on device]" in log
    assert "INFO there is space again" in log
    assert reasons(world, task_id) == ["internal-error"]


def test_a_task_that_removes_the_directory_of_the_worker_keeps_its_log(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.log.info("x" * KEPT_IN_MEMORY)  # so that the log is in a file
        task.run_command('rm -r "$(dirname "$TASK_WORKDIR")"; echo gone', shell=True)

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    log = log_of(world, task_id)
    assert "x" * KEPT_IN_MEMORY in log
    assert "Z gone\n" in log


def test_the_log_is_complete_of_a_task_that_removes_the_worker_s_directory(
    world: World, tmp_path: Path
) -> None:
    """As by `rm -rf "$TMPDIR"/*`: the run must not end as internal-error, which counts against the worker."""

    def handler(task: TaskRun) -> None:
        task.run_command(["rm", "-r", str(task.work_directory.parent)])
        task.log.info("%s", "x" * 2 * KEPT_IN_MEMORY)

    task_id = world.create()
    work(world, handler, work_directory=tmp_path)
    assert reasons(world, task_id) == ["completed"]
    assert "x" * 2 * KEPT_IN_MEMORY in log_of(world, task_id)
    assert list(tmp_path.iterdir()) == []


def test_a_command_whose_work_directory_is_removed_meanwhile_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the end of the handler, if a thread that it has left behind runs the command."""

    def end(resources: RunResources, _: int) -> dict[str, str]:
        resources.clean_up_at_once()
        return {}

    monkeypatch.setattr(RunResources, "_proxy_variables", end)
    task_id = world.create()
    work(world, lambda task: task.run_command(["true"], proxy=True))
    assert reasons(world, task_id) == ["internal-error"]
    assert f"the handler of run {task_id}/0 has ended: no more commands can be run" in log_of(world, task_id)


def test_processes_that_cannot_be_ended_are_logged_and_the_run_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = RunProcesses.end

    def fail(*given: Any) -> int:
        end(*given)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc")

    def not_at_once(_: RunProcesses) -> bool:
        return False

    monkeypatch.setattr(RunProcesses, "end_at_once", not_at_once)
    monkeypatch.setattr(RunProcesses, "end", fail)
    task_id = world.create()
    work(world, lambda task: task.run_command(["true"]))
    monkeypatch.undo()
    assert reasons(world, task_id) == ["completed"]
    cause = "[Errno 24] Too many open files: '/proc'"
    assert f"processes of run {task_id}/0 continue until this worker ends: {cause}" in caplog.messages
