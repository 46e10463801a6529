"""A worker that can only fail stops claiming, instead of turning every task into `internal-error`."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import taskqueue_client
from taskqueue_client.testing import run_handler
from taskqueue_client.worker.loop import WorkerLoop
from taskqueue_client.worker.outcomes import InternalError, TaskFailed
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.threads import DaemonThreads
from tests.worker.queue_world import World, until
from tests.worker.worker_world import Working, log_of, work, worker_for


def out_of_descriptors(task: TaskRun) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), f"/tmp/{task.task_id}")


def states(world: World, created: list[str]) -> list[str]:
    return [str(world.status(each).state) for each in created]


def test_after_several_internal_errors_with_the_same_cause_the_worker_stops(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    created = [world.create() for _ in range(5)]
    worker = worker_for(world, out_of_descriptors, max_internal_errors=3)
    raises = pytest.raises(InternalError, match=r"3 internal errors in a row.*Too many open files")
    with caplog.at_level(logging.ERROR), Working(world, worker) as working, raises:
        working.wait_for_end()
    assert sorted(states(world, created)) == ["exception"] * 3 + ["pending"] * 2
    assert "Too many open files" in caplog.text
    assert "max_internal_errors" in caplog.text


@pytest.mark.parametrize("failure", ["other causes", "successes", "failed tasks"])
def test_another_end_of_a_run_begins_the_count_of_errors_anew(world: World, failure: str) -> None:
    def handler(task: TaskRun) -> None:
        if task.payload["number"] % 2:
            out_of_descriptors(task)
        if failure == "other causes":
            message = "something else"
            raise ValueError(message)
        if failure == "failed tasks":
            raise TaskFailed(failure)

    created = [world.create({"number": number}) for number in range(6)]
    work(world, handler, max_tasks=6, max_internal_errors=2)
    assert "pending" not in states(world, created)


def test_without_a_limit_it_goes_on(world: World) -> None:
    created = [world.create() for _ in range(7)]
    work(world, out_of_descriptors, max_tasks=7, max_internal_errors=0)
    assert states(world, created) == ["exception"] * 7


def test_a_machine_that_starts_no_more_threads_is_named_in_the_task_log_and_ends_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(DaemonThreads, "start", refuse)
    created = [world.create() for _ in range(3)]
    worker = worker_for(world, lambda _: None, max_internal_errors=2)
    with (
        Working(world, worker) as working,
        pytest.raises(InternalError, match=r"2 internal errors in a row.*can't start new thread"),
    ):
        working.wait_for_end()
    assert sorted(states(world, created)) == ["exception"] * 2 + ["pending"]
    log = log_of(world, next(each for each in created if world.status(each).state == "exception"))
    assert "InternalError: the worker cannot start a thread: raise the limit of processes" in log
    assert "Traceback" not in log


class Awaiting(WorkerLoop):
    """Runs a command, which needs a thread."""

    async def run_task(self, task: TaskRun) -> None:
        await task.run_command_async(["true"])


class Proxying(WorkerLoop):
    """Runs a command with a proxy, which needs a thread."""

    def run_task(self, task: TaskRun) -> None:
        task.run_command(["true"], proxy=True)


@pytest.mark.parametrize(("kind", "thread"), [(Awaiting, "command true"), (Proxying, "task proxy")])
def test_a_command_for_which_no_thread_can_be_started_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, kind: type[WorkerLoop], thread: str
) -> None:
    start = threading.Thread.start

    def start_others(self: threading.Thread) -> None:
        if self.name == thread:
            message = "can't start new thread"
            raise RuntimeError(message)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    result = run_handler(kind, {})
    assert result.outcome == "internal-error"
    assert "InternalError: the worker cannot start a thread: raise the limit of processes" in result.log
    assert "Traceback" not in result.log


def test_claimed_runs_may_end(world: World) -> None:
    long = world.create({"long": True})
    failing = [""]

    def handler(task: TaskRun) -> None:
        if task.payload.get("long"):
            until(lambda: failing[0] and world.status(failing[0]).state == "exception")
        else:
            out_of_descriptors(task)

    worker = worker_for(world, handler, concurrency=2, max_internal_errors=1)
    with Working(world, worker) as working:
        until(lambda: world.status(long).state == "running")
        failing[0] = world.create()
        with pytest.raises(InternalError):
            working.wait_for_end()
    assert world.status(long).state == "completed"


WORKER = """
from taskqueue_client.worker import WorkerLoop

class Idle(WorkerLoop):
    def run_task(self, task): pass
"""
SERVE = """
from idle import Idle
try:
    Idle(task_queue_id="a/b", worker_group="g", worker_id="w").serve()
except Exception as error:
    print(type(error).__name__, error, sep=": ")
"""
OPTIONS = ("--task-queue-id=a/b", "--worker-group=g", "--worker-id=w")


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("starts", ["serve", "command line"])
def test_a_worker_that_cannot_start_its_threads_says_which_limit_to_raise(
    world: World, tmp_path: Path, starts: str, others: int
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can start a worker of a user who has no other processes")
    (tmp_path / "idle.py").write_text(WORKER)
    command = (
        ("-c", SERVE) if starts == "serve" else ("-m", "taskqueue_client", "work", "idle:Idle", *OPTIONS)
    )
    reads = "+dac_override"  # Python may be in a directory of root
    user = ["setpriv", "--reuid=64000", "--regid=64000", "--clear-groups", f"--inh-caps={reads}"]
    limited = [*user, f"--ambient-caps={reads}", "prlimit", f"--nproc={1 + others}"]
    own = world.local.credentials
    done = subprocess.run(
        [*limited, sys.executable, *command],
        env={
            **os.environ,
            "TASKCLUSTER_ROOT_URL": world.local.root_url,
            "TASKCLUSTER_CLIENT_ID": own.client_id,
            "TASKCLUSTER_ACCESS_TOKEN": own.access_token,
            "PYTHONPATH": os.pathsep.join([str(Path(taskqueue_client.__file__).parents[1]), str(tmp_path)]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    limit = "raise the limit of processes (`ulimit -u`, or that of the container) or of memory (`ulimit -v`)"
    kind = "InternalError" if starts == "serve" else "Error"
    assert (done.stdout + done.stderr).splitlines()[
        -1
    ] == f"{kind}: the worker cannot start a thread: {limit}"
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if starts == "serve" else 1)
