"""Worker processes that are shut down as a deployment does it: a fleet at once, and in containers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.request_log import requests_noted

WORKERS, RUNS = 4, 8
MODULE = """
from taskqueue_client import WorkerLoop

class Waiting(WorkerLoop):
    def run_task(self, task):
        task.canceled.wait()
        task.canceled.check()

class Commanding(WorkerLoop):
    def run_task(self, task):
        task.run_command(["sh", "-c", f"echo $$ > '{task.payload['pid']}'; {task.payload['script']}"])
"""


def start_worker(
    world: World, folder: Path, number: int, name: str = "Waiting", grace: int = 0
) -> subprocess.Popen[bytes]:
    """Start a worker with more slots than it needs, so that it always has a claim request open."""
    (folder / "waiting.py").write_text(MODULE)
    settings = {
        "task_queue_id": TASK_QUEUE_ID,
        "worker_group": "fleet",
        "worker_id": f"worker-{number}",
        "concurrency": str(RUNS + 1),
        "graceful_shutdown_timeout": str(grace),
    }
    variables = {f"TASKQUEUE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "taskqueue_client", "work", f"waiting:{name}"],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            **variables,
            "TASKCLUSTER_ROOT_URL": world.local.root_url,
            "TASKCLUSTER_CLIENT_ID": world.local.client_id,
            "TASKCLUSTER_ACCESS_TOKEN": world.local.access_token,
        },
    )


def test_worker_processes_that_drain_at_once_report_each_run_once(world: World, tmp_path: Path) -> None:
    tasks = [world.create(retries=5) for _ in range(WORKERS * RUNS)]
    with ExitStack() as stack, requests_noted(world.local) as made:
        workers = [stack.enter_context(start_worker(world, tmp_path, each)) for each in range(WORKERS)]
        for worker in workers:
            stack.callback(worker.kill)
        until(lambda: all(world.status(each).state == "running" for each in tasks))
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(WAIT) for worker in workers] == [0] * WORKERS
    for task_id in tasks:
        status = world.status(task_id)
        assert [str(run.reason_resolved) for run in status.runs] == ["worker-shutdown", "None"]
        assert status.retries_left == 4
    reports = Counter(each.path for each in made if each.path.endswith("/exception"))
    assert (len(reports), set(reports.values())) == (len(tasks), {1})


@pytest.mark.parametrize(
    ("script", "grace"),
    [("exec sleep 600", 0), ("exec sleep 600", 600), ("trap 'exit 143' TERM; sleep 600 & wait", 600)],
)
def test_a_run_whose_command_gets_the_signal_of_a_service_manager_too_is_reported_as_worker_shutdown(
    world: World, tmp_path: Path, script: str, grace: int
) -> None:
    pid = tmp_path / "pid"
    task_id = world.create({"pid": str(pid), "script": script}, retries=0)
    with start_worker(world, tmp_path, 0, "Commanding", grace) as worker:
        until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        worker.send_signal(signal.SIGSTOP)  # or the worker might end the command before the signal does
        worker.send_signal(signal.SIGTERM)
        os.kill(int(pid.read_text()), signal.SIGTERM)
        worker.send_signal(signal.SIGCONT)
        assert worker.wait(WAIT) == 0
    assert world.status(task_id).runs[0].reason_resolved == "worker-shutdown"


STOPPED = """
import os, signal
from taskqueue_client import WorkerLoop

def stop():
    signal.raise_signal(signal.SIGTERM)
    os._exit(3)  # the signal was lost

class Stopped(WorkerLoop):
    def on_start(self):
        stop()

    def run_task(self, task):
        pass
"""


@pytest.mark.parametrize(
    "command",
    [
        ["-c", f"{STOPPED}\nStopped().run()"],
        ["-m", "taskqueue_client", "work", "stopped:Stopped"],
        ["-m", "taskqueue_client", "work", "stopped_early:Stopped"],
    ],
    ids=["run", "work", "work, during the import"],
)
def test_the_first_process_of_a_container_ends_if_sigterm_comes_while_it_starts(
    tmp_path: Path, command: list[str]
) -> None:
    """Otherwise, `docker stop` kills it some seconds later, with the runs that it has claimed meanwhile."""
    (tmp_path / "stopped.py").write_text(STOPPED)
    (tmp_path / "stopped_early.py").write_text(f"{STOPPED}\nstop()")
    assert status_of_first_process(tmp_path, command) == 128 + signal.SIGTERM


def status_of_first_process(folder: Path, command: list[str]) -> int:
    """Run Python as the first process of a PID namespace."""
    first = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*first, "true"], check=False).returncode:
        pytest.skip("this user cannot make namespaces, in which a process is the first one")
    settings = {
        "TASKQUEUE_TASK_QUEUE_ID": TASK_QUEUE_ID,
        "TASKQUEUE_WORKER_GROUP": "g",
        "TASKQUEUE_WORKER_ID": "w",
        "TASKCLUSTER_ROOT_URL": "http://localhost:1",
        "TASKCLUSTER_CLIENT_ID": "c",
        "TASKCLUSTER_ACCESS_TOKEN": "t",
    }
    ended = subprocess.run(
        [*first, sys.executable, *command],
        cwd=folder,
        env={**os.environ, **settings},
        timeout=60,
        check=False,
    )
    return ended.returncode


FORKING = """
import os, signal
from taskqueue_client import WorkerLoop

class Forking(WorkerLoop):
    def on_start(self):
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(3)  # it would remove, for example, temporary directories of the worker
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + signal.SIGTERM)

    def run_task(self, task):
        pass

Forking().run()
"""


def test_sigterm_kills_a_forked_child_of_the_first_process_of_a_container(tmp_path: Path) -> None:
    assert status_of_first_process(tmp_path, ["-c", FORKING]) == 0
