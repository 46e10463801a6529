"""The time limits of a worker's attempts at calls, and the limits of its uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from taskqueue_client import AsyncQueue
from taskqueue_client.local.faults import Delay, Respond
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimState, Lease
from taskqueue_client.worker.claims.reclaiming import Reclaiming
from taskqueue_client.worker.outcomes import InternalError
from taskqueue_client.worker.run import lifecycle
from taskqueue_client.worker.run.reporting import Reporter
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.passing_clock import PassingClock
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, Told, World, until
from tests.worker.worker_world import Working, artifact_names, work, worker_for

NEARLY_OVER = Lease(length=1200, ends=1.5)
"""A long lease of which 1.5 s are left: an attempt may take 0.5 s."""

CONCURRENT_UPLOADS = 16
"""Artifacts of one run that are uploaded at a time, beside its log."""

pytestmark = pytest.mark.usefixtures("held_clock")


async def limited(attempt: Awaitable[Any]) -> Any:
    """Await an attempt; fail if it has no shorter time limit than the client's."""
    async with asyncio.timeout(WAIT / 2):
        return await attempt


async def claimed(world: World, queue: AsyncQueue) -> ClaimedRun:
    world.create()
    response = await queue.claim_work(TASK_QUEUE_ID, worker_group="group", worker_id="worker")
    return ClaimedRun(response.tasks[0], NEARLY_OVER, queue)


async def test_a_reclaim_that_hangs_is_given_up_while_there_is_time_for_another(world: World) -> None:
    clock, told = PassingClock(), Told()
    world.local.faults.add(Delay(endpoint="queue.reclaimTask", seconds=3600))
    async with AsyncQueue(world.local.root_url, world.local.credentials, clock=clock) as queue:
        run = await claimed(world, queue)
        reclaims = Reclaiming(told, clock)
        assert isinstance(await limited(reclaims.reclaim_once(run)), TimeoutError)
        assert run.has_claim
        async with asyncio.timeout(WAIT):
            # On a busy machine, an attempt may take longer than 0.5 s, and fail.
            while await reclaims.reclaim_once(run) is not None:
                assert run.has_claim
    assert run.lease.left(clock.monotonic()) > 1000


async def test_a_report_that_hangs_is_given_up_while_there_is_time_for_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = PassingClock()
    world.local.faults.add(Delay(endpoint="queue.reportCompleted", seconds=3600))
    async with AsyncQueue(world.local.root_url, world.local.credentials, clock=clock) as queue:
        run = await claimed(world, queue)

        async def reclaim(_: ClaimedRun) -> None: ...

        reporter = Reporter(run, run.client(queue), reclaim, clock)
        assert await limited(reporter.report(ReasonResolved.COMPLETED)) is ClaimState.RESOLVED
    assert "no response in time" in caplog.text
    assert world.run(run.task_id).reason_resolved == "completed"


def test_uploads_after_a_report_end_before_the_queue_refuses_them(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert 20 * 60 < lifecycle.UPLOAD_WINDOW < 25 * 60
    monkeypatch.setattr(lifecycle, "UPLOAD_WINDOW", 0.1)
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=3600, times=9))

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", b"x")
        message = "broken"
        raise InternalError(message)

    work(world, handler)
    assert world.run(task_id).reason_resolved == "internal-error"
    assert f"not all artifacts of {task_id}/0 were uploaded in time" in caplog.text


def test_a_run_uploads_a_bounded_number_of_artifacts_at_a_time(world: World) -> None:
    most = 100
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=1, times=most))

    def handler(task: TaskRun) -> None:
        for number in range(40):
            task.upload_artifact(f"public/{number}", b"x")

    def begun() -> int:
        left: int = world.local.faults.waiting()[0]["times"]
        return most - left

    with Working(world, worker_for(world, handler, max_tasks=1)) as working:
        until(lambda: begun() >= CONCURRENT_UPLOADS)
        for _ in range(20):
            world.status(task_id)
        assert begun() <= CONCURRENT_UPLOADS + 1  # and the log
        world.local.clock.release()
        working.wait_for_end()
    assert len(artifact_names(world, task_id)) == 42


@pytest.mark.parametrize("names", [("missing", "there"), ("there", "missing")])
def test_an_outage_of_storage_counts_more_than_a_missing_file(world: World, names: tuple[str, str]) -> None:
    """So the task runs again, when storage works, and fails then because of the missing file."""

    task_id = world.create()
    world.local.faults.add(Respond(endpoint="storage.put", status=503))

    def handler(task: TaskRun) -> None:
        for name in names:
            path = task.work_directory / name
            if name == "there":
                path.write_bytes(b"x")
            task.upload_artifact(f"public/{name}", path)

    work(world, handler, upload_timeout=0)
    assert world.run(task_id).reason_resolved == "resource-unavailable"
