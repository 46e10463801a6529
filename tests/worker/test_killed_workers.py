"""A worker that is killed, at each stage of a run: its processes end, and the run is retried once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import requests

from taskqueue_client.cli.log import FollowedLog
from taskqueue_client.clock import SystemClock
from taskqueue_client.local.faults import Delay
from taskqueue_client.models import StorageType
from tests.worker.queue_world import WAIT, World, until
from tests.worker.run_outcomes import reasons
from tests.worker.running_commands import Fifo, in_shell, wait_until_gone
from tests.worker.worker_world import artifact_names, log_of

SCRIPT = """
    import logging, sys
    from pathlib import Path
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop, outcomes

    class Gate(logging.Handler):
        def emit(self, record):
            if record.getMessage().partition(" (")[0].endswith(" begins"):
                print("begins", flush=True)
                sys.stdin.read()

    class Worker(WorkerLoop):
        def run_task(self, task):
            task.upload_artifact("public/x", b"x")
            if "command" in task.payload:
                task.run_command(["bash", "-c", task.payload["command"]])
            if "log" in task.payload:
                task.log.info("%s", task.payload["log"])
            if "wait" in task.payload:
                print("waits", flush=True)
                sys.stdin.read()
            if "exception" in task.payload:
                raise outcomes.InternalError("oops")

    root_url, token, directory, stage = sys.argv[1:]
    if stage == "gate":
        logger = logging.getLogger("taskqueue_client.worker")
        logger.addHandler(Gate())
        logger.setLevel(logging.INFO)
    Worker(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        work_directory=Path(directory), log_checkpoint_interval=0.05,
        root_url=root_url, credentials=Credentials("local", token), max_tasks=1, live_log=stage == "live",
    ).run()
"""


@contextmanager
def worker_to_kill(world: World, directory: Path, stage: str = "") -> Generator[IO[str]]:
    """Start a worker in a separate process; yield its standard output; kill it at the end of the block."""
    script = textwrap.dedent(SCRIPT)
    arguments = [world.local.root_url, world.local.access_token, str(directory), stage]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            process.kill()
            process.wait(WAIT)


LIVE, BACKING = "public/logs/live.log", "public/logs/live_backing.log"
AGAIN = ["claim-expired", "None"]


@pytest.mark.parametrize(
    "endpoint", ["queue.createArtifact", "storage.put", "queue.reportCompleted", "queue.reportException"]
)
def test_while_a_request_is_on_its_way(world: World, tmp_path: Path, endpoint: str) -> None:
    task_id = world.create({"exception": True} if endpoint == "queue.reportException" else {})
    world.local.faults.add(Delay(endpoint=endpoint, seconds=600))
    with worker_to_kill(world, tmp_path):
        world.until_struck()
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == AGAIN


def test_while_the_response_of_a_claim_is_on_its_way(world: World, tmp_path: Path) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=600, after=True))
    with worker_to_kill(world, tmp_path):
        until(lambda: world.run(task_id).state == "running")
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == AGAIN


def test_between_the_claim_and_the_handler(world: World, tmp_path: Path) -> None:
    task_id = world.create()
    with worker_to_kill(world, tmp_path, "gate") as printed:
        assert printed.readline() == "begins\n"
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == AGAIN
    assert artifact_names(world, task_id) == set()


@pytest.mark.parametrize("child", ["sleep 600", "setsid sleep 600"])
def test_while_a_command_runs(world: World, tmp_path: Path, child: str) -> None:
    fifo = Fifo(tmp_path)
    task_id = world.create({"command": f"{child} & echo $$ $! > {fifo.word}; wait"})
    with worker_to_kill(world, tmp_path / "work"):
        pids = fifo.numbers()
    for pid in pids:
        wait_until_gone(pid)
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == AGAIN


def test_the_log_that_was_uploaded_is_there(world: World, tmp_path: Path) -> None:
    task_id = world.create({"log": "the last words", "wait": True})
    with worker_to_kill(world, tmp_path):
        until(lambda: "public/logs/live.log" in artifact_names(world, task_id))
        url = world.queue.artifact(task_id, 0, "public/logs/live.log").url
        until(lambda: "the last words" in requests.get(str(url), timeout=WAIT).text)
    assert "the last words" in log_of(world, task_id)
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == AGAIN
    assert "the last words" in log_of(world, task_id)


class ClaimExpires(SystemClock):
    """Lets the claim of a run expire instead of waiting."""

    def __init__(self, world: World) -> None:
        self._world = world

    def sleep(self, seconds: float) -> None:
        del seconds
        self._world.local.clock.advance(seconds=1201)


def test_a_follower_of_a_streamed_log_says_that_its_worker_is_gone_and_prints_what_was_uploaded(
    world: World, tmp_path: Path
) -> None:
    task_id = world.create({"log": "the last words", "wait": True})
    with worker_to_kill(world, tmp_path, "live") as printed:
        assert printed.readline() == "waits\n"
        until(lambda: BACKING in artifact_names(world, task_id) and has_last_words(world, task_id))
        assert world.queue.artifact(task_id, 0, LIVE).storage_type == StorageType.REFERENCE
    written: list[bytes] = []
    told: list[str] = []
    FollowedLog(world.queue, task_id, 0, LIVE, written.append, told.append).print(1.0, ClaimExpires(world))
    assert b"".join(written).count(b"the last words") == 1
    assert told[0].startswith(f"cannot read the worker's stream of the log, reading {BACKING} instead: ")
    assert told[-2] == f"{LIVE} refers to the worker's stream; printing the uploaded {BACKING}"
    assert told[-1].startswith(f"run 0 of task {task_id} has ended (claim-expired), and run 1 is pending")
    assert reasons(world, task_id) == AGAIN


def has_last_words(world: World, task_id: str) -> bool:
    url = world.queue.artifact(task_id, 0, BACKING).url
    return "the last words" in requests.get(str(url), timeout=WAIT).text


@pytest.mark.parametrize("name", ["work", "two\nlines", os.fsdecode(b"not UTF-8: \xff")], ids=ascii)
def test_after_a_command_that_has_left_a_daemon(world: World, tmp_path: Path, name: str) -> None:
    ready = tmp_path / "ready"
    word = in_shell(ready)
    daemon = f"(setsid sh -c 'echo $$ > {word}; exec sleep 600' >/dev/null &)"
    world.create({"command": f"{daemon}; until [ -s {word} ]; do :; done", "wait": True})
    with worker_to_kill(world, tmp_path / name) as printed:
        assert printed.readline() == "waits\n"
    wait_until_gone(int(ready.read_text()))


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [("queue.reportCompleted", "completed"), ("queue.reportException", "internal-error")],
)
def test_a_run_that_was_reported_stays_resolved(
    world: World, tmp_path: Path, endpoint: str, reason: str
) -> None:
    task_id = world.create({} if reason == "completed" else {"exception": True})
    world.local.faults.add(Delay(endpoint=endpoint, seconds=600, after=True))
    with worker_to_kill(world, tmp_path):
        until(lambda: world.run(task_id).reason_resolved is not None)
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == [reason]
