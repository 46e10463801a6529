"""A worker that is killed, at each stage of a run: nothing of it lives on, and the run comes back once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Delay
from tests.worker.queue_world import WAIT, World, until
from tests.worker.run_outcomes import reasons
from tests.worker.running_commands import Fifo, wait_until_gone
from tests.worker.worker_world import artifact_names


@pytest.fixture
def world() -> Iterator[World]:
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()


SCRIPT = """
    import logging, sys
    from pathlib import Path
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop, outcomes

    class Gate(logging.Handler):
        def emit(self, record):
            print("begins", flush=True)
            sys.stdin.read()

    class Worker(WorkerLoop):
        def run_task(self, task):
            task.upload_artifact("public/x", b"x")
            if "command" in task.payload:
                task.run_command(["bash", "-c", task.payload["command"]])
            if "exception" in task.payload:
                raise outcomes.InternalError("oops")

    root_url, token, directory, stage = sys.argv[1:]
    if stage == "gate":
        logger = logging.getLogger("taskqueue_client.worker")
        logger.addHandler(Gate())
        logger.setLevel(logging.INFO)
    Worker(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        work_directory=Path(directory),
        root_url=root_url, credentials=Credentials("local", token), max_tasks=1,
    ).run()
"""


@contextmanager
def worker_to_kill(world: World, directory: Path, stage: str = "") -> Generator[IO[str]]:
    """A worker in a process of its own, which is killed in the end; what it prints."""
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


def test_while_the_answer_of_a_claim_is_on_its_way(world: World, tmp_path: Path) -> None:
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


def test_while_a_command_runs(world: World, tmp_path: Path) -> None:
    fifo = Fifo(tmp_path)
    task_id = world.create({"command": f"sleep 600 & echo $$ $! > {fifo.path}; wait"})
    with worker_to_kill(world, tmp_path / "work"):
        pids = fifo.numbers()
    for pid in pids:
        wait_until_gone(pid)
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == AGAIN


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [("queue.reportCompleted", "completed"), ("queue.reportException", "internal-error")],
)
def test_what_was_reported_stays(world: World, tmp_path: Path, endpoint: str, reason: str) -> None:
    task_id = world.create({} if reason == "completed" else {"exception": True})
    world.local.faults.add(Delay(endpoint=endpoint, seconds=600, after=True))
    with worker_to_kill(world, tmp_path):
        until(lambda: world.run(task_id).reason_resolved is not None)
    world.local.clock.advance(seconds=1201)
    assert reasons(world, task_id) == [reason]
