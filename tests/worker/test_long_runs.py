"""Runs that take longer than leases, credentials and signed URLs: they keep their claims and are uploaded."""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from taskqueue_client import AsyncQueue, Credentials, RetryPolicy
from taskqueue_client.clock import Clock
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Delay, ExpireUrl
from taskqueue_client.worker import threads
from taskqueue_client.worker.claims.claimed_run import RECLAIM_BETWEEN
from taskqueue_client.worker.commands.work_directory import WorkDirectories
from taskqueue_client.worker.outcomes import IntermittentTask, InternalError
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.session import Session
from tests.worker.queue_world import WAIT, World, until
from tests.worker.run_outcomes import LOG
from tests.worker.worker_world import Working, artifact, artifact_names, worker_for


def test_a_handler_that_computes_for_ten_leases_keeps_its_claim_and_is_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leases are of two seconds, on a clock that moves only after a reclaim."""
    monkeypatch.setattr(threads, "BLOCKED_AFTER", 0.1)
    started, finish = threading.Event(), threading.Event()
    current_frames, collected_meanwhile = sys._current_frames, list[bool]()  # pyright: ignore[reportPrivateUsage]

    def note_collection() -> dict[int, FrameType]:
        collected_meanwhile.append(gc.isenabled())  # which could stop all threads, before Python 3.11.9
        return current_frames()

    monkeypatch.setattr(sys, "_current_frames", note_collection)

    async def compute_without_pause(task: TaskRun) -> None:
        del task
        started.set()
        while not finish.wait(0.001):
            sum(range(10_000))

    with LocalQueue(claim_timeout=2) as local, caplog.at_level(logging.WARNING):
        world, clock = World(local), local.clock
        clock.hold()
        task_id = world.create()
        worker = worker_for(world, awaited=compute_without_pause, max_tasks=1)
        worker.clock = clock
        with Working(world, worker) as working:
            assert started.wait(WAIT)
            end = clock.monotonic() + 10 * 2
            while clock.monotonic() < end:
                before = world.run(task_id)
                clock.advance(2 * max(RECLAIM_BETWEEN))
                world.until_changed(task_id, before)
            until(lambda: "blocked the event loop" in caplog.text)
            finish.set()
            working.wait_for_end()
        (run,) = world.status(task_id).runs
        world.close()
    assert run.reason_resolved == "completed"
    assert "compute_without_pause" in caplog.text
    assert set(collected_meanwhile) == {False}
    assert gc.isenabled()


def declare(task: TaskRun) -> None:
    task.upload_artifact("public/x", b"x" * 100_000)


def upload_at_once(task: TaskRun) -> None:
    content = io.BytesIO(b"x" * 100_000)
    task.queue.upload_artifact(task.task_id, task.run_id, "public/x", content, expires=task.expires)


async def upload_at_once_awaited(task: TaskRun) -> None:
    content = io.BytesIO(b"x" * 100_000)
    await task.async_queue.upload_artifact(
        task.task_id, task.run_id, "public/x", content, expires=task.expires
    )


@pytest.mark.parametrize("way", ["declared", "at once", "at once, awaited"])
def test_an_upload_may_take_longer_than_the_credentials_and_urls_it_began_with(
    world: World, way: str
) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=3000))
    world.local.faults.add(ExpireUrl())
    if way == "at once, awaited":
        worker = worker_for(world, awaited=upload_at_once_awaited, max_tasks=1)
    else:
        worker = worker_for(world, {"declared": declare, "at once": upload_at_once}[way], max_tasks=1)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        world.until_struck(left=1)
        for _ in range(4):
            before = world.run(task_id)
            world.local.clock.advance(seconds=850)
            world.until_changed(task_id, before)
        working.wait_for_end()
    assert world.run(task_id).reason_resolved == "completed"
    assert artifact(world, task_id, "public/x") == "x" * 100_000
    assert world.local.faults.waiting() == []


def test_storage_that_hangs_does_not_delay_the_reports_of_other_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if as many uploads as may run at a time wait for it, for longer than this test takes."""

    def patient_queue(_: Session, credentials: Credentials | None, clock: Clock) -> AsyncQueue:
        retry = RetryPolicy(read_timeout=2 * WAIT)
        return AsyncQueue(world.local.root_url, credentials, clock=clock, retry=retry)

    monkeypatch.setattr(Session, "_make_queue", patient_queue)
    world.local.faults.add(Delay(endpoint="storage.put", seconds=600, times=100))
    for _ in range(7):
        world.create({"artifacts": 16})

    def handler(task: TaskRun) -> None:
        for number in range(task.payload["artifacts"]):
            task.upload_artifact(f"public/{number}", b"x")
        if not task.payload["artifacts"]:
            message = "broken"
            raise InternalError(message)

    with Working(world, worker_for(world, handler, concurrency=8)):
        world.until_struck()
        task_id = world.create({"artifacts": 0})
        until(lambda: world.run(task_id).reason_resolved == "internal-error")
        world.local.clock.advance(seconds=600)


def test_two_thousand_artifacts_delay_no_reclaim(world: World) -> None:
    """They are uploaded during several leases, on a clock that moves only after a reclaim."""
    task_id, lease = world.create(), 1200
    world.local.clock.hold()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=3 * lease * max(RECLAIM_BETWEEN)))

    def handler(task: TaskRun) -> None:
        for number in range(2000):
            task.upload_artifact(f"public/{number}", b"x")

    worker = worker_for(world, handler, max_tasks=1)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        world.until_struck()
        for _ in range(3):
            before = world.run(task_id)
            world.local.clock.advance(lease * max(RECLAIM_BETWEEN))
            world.until_changed(task_id, before)
        working.wait_for_end()
    assert world.run(task_id).reason_resolved == "completed"
    assert len(artifact_names(world, task_id) - LOG) == 2000


def test_a_large_directory_that_is_removed_between_two_tries_delays_no_reclaim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The removal takes longer than several leases, on a clock that moves only after a reclaim."""
    remove = WorkDirectories.remove
    tries: list[TaskRun] = []

    def remove_slowly(directories: WorkDirectories, path: Path) -> None:
        for _ in range(3 if len(tries) == 1 else 0):
            before = world.run(task_id)
            clock.advance(1200 * max(RECLAIM_BETWEEN))
            world.until_changed(task_id, before)
        remove(directories, path)

    def handler(task: TaskRun) -> None:
        tries.append(task)
        task.log.info("in %s", task.work_directory)
        if len(tries) == 1:
            raise IntermittentTask

    monkeypatch.setattr(WorkDirectories, "remove", remove_slowly)
    with LocalQueue(claim_timeout=1200) as local:
        world, clock = World(local), local.clock
        clock.hold()
        task_id = world.create()
        worker = worker_for(world, handler, max_tasks=1, intermittent_attempts=2)
        worker.clock = clock
        with Working(world, worker) as working:
            working.wait_for_end()
        assert world.run(task_id).reason_resolved == "completed"
        world.close()
