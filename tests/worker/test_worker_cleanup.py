"""A worker that has ended leaves no threads, processes, connections, descriptors or files."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client.local.faults import Delay
from taskqueue_client.worker import TaskEnd, TaskRun
from taskqueue_client.worker.claims.claimed_run import ClaimedRun
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.commands.task_log import TaskLog
from taskqueue_client.worker.commands.work_directory import WorkDirectories
from taskqueue_client.worker.run import lifecycle
from taskqueue_client.worker.threads import DaemonThreads, Job
from taskqueue_client.worker.worker_log import log
from tests.worker.queue_world import WAIT, World
from tests.worker.run_outcomes import OUTCOMES, reasons
from tests.worker.worker_world import work, worker_for

ROOT = Path(__file__).parents[2]


def test_a_handler_that_ends_after_its_worker_leaves_no_thread() -> None:
    threads = DaemonThreads()
    started, let_go = threading.Event(), threading.Event()
    used: list[threading.Thread] = []

    def handler() -> None:
        used.append(threading.current_thread())
        started.set()
        assert let_go.wait(WAIT)

    ended: list[BaseException | None] = []
    threads.start(Job("a run", handler, ended.append))
    assert started.wait(WAIT)
    threads.close()
    let_go.set()
    used[0].join(WAIT)
    assert ended == [None]
    assert not used[0].is_alive()


SCRIPT = """
    import ctypes, json, sys, threading  # ctypes first: its libffi may open a file
    from pathlib import Path
    import psutil
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop
    from tests.worker.run_outcomes import OUTCOMES

    def declare(task):
        task.log.info("about to end")
        (task.work_directory / "large").write_bytes(bytes(1_000_000))
        task.upload_artifact("public/large", "large")
        task.upload_artifact("public/small", b"x")

    class Blocking(WorkerLoop):
        def run_task(self, task):
            declare(task)
            task.run_command(["true"])
            task.queue.status(task.task_id)
            if task.payload["outcome"] == "canceled":
                print(task.task_id, flush=True)
                task.run_command(["sleep", "600"])
            OUTCOMES[task.payload["outcome"]][0](task)

    class Awaiting(WorkerLoop):
        async def run_task(self, task):
            declare(task)
            await task.run_command_async(["true"])
            await task.async_queue.status(task.task_id)
            if task.payload["outcome"] == "canceled":
                print(task.task_id, flush=True)
                await task.run_command_async(["sleep", "600"])
            if task.payload["outcome"] == "command":
                await task.run_command_async(["false"])
            OUTCOMES[task.payload["outcome"]][0](task)

    def held():
        process = psutil.Process()
        return {
            "threads": [each.name for each in threading.enumerate()],
            "processes": [each.name() for each in process.children(recursive=True)],
            "connections": len(process.net_connections("all")),
            "files": [each.path for each in process.open_files()],
            "descriptors": process.num_fds(),
        }

    kind, root_url, token, directory, count = sys.argv[1:]
    before = held()
    {"blocking": Blocking, "awaited": Awaiting}[kind](
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        root_url=root_url, credentials=Credentials("local", token), work_directory=Path(directory),
        cancellation_poll_interval=0.1, concurrency=3, max_tasks=int(count), metrics_port=0,
        termination_grace=0.1,
    ).run()
    for each in threading.enumerate():  # some end a moment after `run` has returned
        if each is not threading.main_thread():
            each.join(30)
    print(json.dumps([before, held()]))
"""


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_runs_of_every_outcome_leave_nothing(world: World, tmp_path: Path, kind: str) -> None:
    tasks = {outcome: world.create({"outcome": outcome}, retries=0) for outcome in [*OUTCOMES, "canceled"]}
    script = textwrap.dedent(SCRIPT)
    arguments = [kind, world.local.root_url, world.local.access_token, str(tmp_path), str(len(tasks))]
    with subprocess.Popen(
        [sys.executable, "-W", "always::ResourceWarning", "-c", script, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        world.queue.cancel_task(process.stdout.readline().strip())
        printed, warned = process.communicate(timeout=WAIT)
    before, after = json.loads(printed)
    assert after == before
    assert "ResourceWarning" not in warned
    assert list(tmp_path.iterdir()) == []
    ended = {outcome: reasons(world, task_id) for outcome, task_id in tasks.items()}
    assert ended == {outcome: each[2][:1] for outcome, each in OUTCOMES.items()} | {"canceled": ["canceled"]}


def test_a_log_that_cannot_be_removed_is_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: TaskLog) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "a.log")

    monkeypatch.setattr(TaskLog, "remove", refuse)
    task_id = world.create()
    work(world, lambda _: None)
    assert reasons(world, task_id) == ["completed"]
    problems = [each.getMessage() for each in caplog.records if each.levelno > logging.INFO]
    assert problems == [f"cannot remove a log of run {task_id}/0: [Errno 30] Read-only file system: 'a.log'"]


def test_a_slot_is_free_when_the_work_directory_of_its_last_run_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next run begins on a disk that the last one has filled."""
    order: list[str] = []
    remove, release = WorkDirectories.remove, Keeper.release_slot

    def removed(directories: WorkDirectories, path: Path) -> None:
        remove(directories, path)
        order.append("removed")

    def released(keeper: Keeper, run: ClaimedRun) -> None:
        order.append("released")
        release(keeper, run)

    monkeypatch.setattr(WorkDirectories, "remove", removed)
    monkeypatch.setattr(Keeper, "release_slot", released)
    world.create()
    work(world, lambda task: (task.work_directory / "file").touch())
    assert order == ["removed", "released"]


def test_the_log_says_that_a_slow_removal_keeps_the_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    remove, warning = WorkDirectories.remove, log.warning

    def remove_when_said(directories: WorkDirectories, path: Path) -> None:
        assert said.wait(WAIT)
        remove(directories, path)

    def say(message: str, *arguments: object) -> None:
        warning(message, *arguments)
        if message.endswith("it keeps its slot"):
            said.set()

    monkeypatch.setattr(lifecycle, "SLOW_REMOVAL", 0.01)
    monkeypatch.setattr(WorkDirectories, "remove", remove_when_said)
    monkeypatch.setattr(log, "warning", say)
    world.create()
    work(world, lambda task: (task.work_directory / "file").touch())
    assert said.is_set()


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_no_event_loop_waits_for_the_disk_to_remove_a_work_directory(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    directories, in_loop = list[Path](), list[bool]()
    remove = os.rmdir

    def noted(path: str | Path, **options: Any) -> None:
        if Path(path).name == directories[0].name:
            in_loop.append(asyncio._get_running_loop() is not None)
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", noted)
    world.create()
    if kind == "blocking":
        work(world, lambda task: directories.append(task.work_directory))
    else:

        async def awaited(task: TaskRun) -> None:
            directories.append(task.work_directory)

        work(world, awaited=awaited)
    assert in_loop == [False]
    assert not directories[0].exists()


@pytest.mark.parametrize("keep", [False, True])
def test_a_thread_that_a_handler_leaves_behind_has_a_work_directory_until_the_run_ends(
    world: World, tmp_path: Path, *, keep: bool
) -> None:
    directories = list[Path]()
    left_behind = list[threading.Thread]()
    world.create()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=60))

    def ask(task: TaskRun) -> None:
        try:
            world.until_struck()
            directories.append(task.work_directory)
        finally:
            world.local.clock.advance(60)

    def handler(task: TaskRun) -> None:
        directories.append(task.work_directory)
        left_behind.append(threading.Thread(target=ask, args=(task,)))
        left_behind[0].start()

    work(world, handler, work_directory=tmp_path, keep_work_directories=keep)
    left_behind[0].join(WAIT)
    first, second = directories
    assert first == second
    assert first.exists() == keep


def test_a_worker_that_a_hook_exits_leaves_no_keeper(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [world.create(), world.create()]
    both_started = threading.Barrier(len(tasks))

    def handler(task: TaskRun) -> None:
        both_started.wait(WAIT)
        if task.task_id != tasks[0]:
            task.canceled.wait(WAIT)

    def on_task_end(_: TaskEnd) -> None:
        sys.exit(7)

    worker = worker_for(world, handler, concurrency=2, graceful_shutdown_timeout=0)
    monkeypatch.setattr(worker, "on_task_end", on_task_end)
    with pytest.raises(SystemExit):
        worker.serve()
    assert "taskqueue keeper" not in {each.name for each in threading.enumerate()}
