"""Claims that are kept whatever a handler does, and uploads that outlive the credentials they began with."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Delay, ExpireUrl
from taskqueue_client.worker.task_run import TaskRun
from tests.worker.queue_world import WAIT, World
from tests.worker.worker_world import Working, artifact, work, worker_for


@pytest.fixture
def world() -> Iterator[World]:
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()


@pytest.fixture
def short() -> Iterator[World]:
    """A queue with claims of one second."""
    with LocalQueue(claim_timeout=1) as local:
        world = World(local)
        yield world
        world.close()


def test_a_handler_that_computes_for_ten_leases_keeps_its_claim_and_is_shown(
    short: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = short.create()

    async def compute_without_pause(task: TaskRun) -> None:
        del task
        until = time.monotonic() + 10
        while time.monotonic() < until:
            sum(range(1000))

    with caplog.at_level(logging.WARNING):
        work(short, awaited=compute_without_pause)
    (run,) = short.status(task_id).runs
    assert run.reason_resolved == "completed"
    assert "blocked the event loop" in caplog.text
    assert "compute_without_pause" in caplog.text


def test_an_upload_may_take_longer_than_the_credentials_and_urls_it_began_with(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=3000))
    world.local.faults.add(ExpireUrl())

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", b"x" * 100_000)

    worker = worker_for(world, handler, max_tasks=1)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        world.until_struck(left=1)
        for _ in range(4):
            before = world.run(task_id)
            world.local.clock.advance(seconds=850)
            world.until_changed(task_id, before)
        working.left()
    assert world.run(task_id).reason_resolved == "completed"
    assert artifact(world, task_id, "public/x") == "x" * 100_000
    assert world.local.faults.waiting() == []


SCRIPT = """
    import sys
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop

    class Uploader(WorkerLoop):
        def run_task(self, task):
            task.upload_artifact("public/x", b"x")

    root_url, token = sys.argv[1:]
    Uploader(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        root_url=root_url, credentials=Credentials("local", token), max_tasks=1,
    ).run()
"""


@pytest.mark.parametrize("endpoint", ["queue.createArtifact", "storage.put", "queue.reportCompleted"])
def test_a_worker_that_is_killed_at_any_stage_leaves_the_task_to_be_tried_again(
    world: World, endpoint: str
) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint=endpoint, seconds=600))
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), world.local.root_url, world.local.access_token]
    with subprocess.Popen(command) as process:
        world.until_struck()
        process.kill()
        process.wait(WAIT)
    world.local.clock.advance(seconds=1201)
    assert [str(run.reason_resolved) for run in world.status(task_id).runs] == ["claim-expired", "None"]
