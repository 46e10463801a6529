"""Uploads and reports are retried for as long as the claim can be reclaimed; some runs end before."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from taskqueue_client.errors import ErrorArtifact
from taskqueue_client.local.faults import AnyFault, Drop, Respond
from taskqueue_client.worker.commands.task_log import KEPT_IN_MEMORY, TaskLog
from taskqueue_client.worker.outcomes import MalformedPayload
from taskqueue_client.worker.run.declared_artifacts import DeclaredArtifact
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import WAIT, World, iso, until
from tests.worker.request_log import requests_noted
from tests.worker.run_outcomes import LOG, reasons
from tests.worker.worker_world import Working, artifact, artifact_names, log_of, worker_for

OFTEN = 1_000_000
REPORTS = ("/completed", "/failed", "/exception")

pytestmark = pytest.mark.usefixtures("held_clock")


def upload(task: TaskRun) -> None:
    task.upload_artifact("public/x", b"x" * 10_000, storage=task.payload.get("storage", "s3"))


def working(
    world: World, handler: Callable[[TaskRun], object] = upload, *, upload_timeout: float = 900.0
) -> Working:
    """Return a worker on the queue's clock, for one run."""
    worker = worker_for(
        world, handler, max_tasks=1, upload_timeout=upload_timeout, cancellation_poll_interval=20
    )
    worker.clock = world.local.clock
    return Working(world, worker)


def pass_time(world: World, seconds: float) -> None:
    """Move the clock in steps of 5 s, so that there are many retries meanwhile."""
    end = world.local.clock.monotonic() + seconds

    def moved() -> bool:
        world.local.clock.advance(seconds=5)
        return world.local.clock.monotonic() >= end

    until(moved)


def let_end(world: World, running: Working) -> None:
    """Move the clock, by about one wait between retries at a time, until the worker has ended."""
    while running.is_alive(within=0.2):
        world.local.clock.advance(seconds=40)
    running.wait_for_end()


def let_reclaim(world: World, task_id: str) -> None:
    """Move the clock until the run is reclaimed: a wait between reports may begin after a move."""
    before = world.run(task_id).taken_until

    def reclaimed() -> bool:
        world.local.clock.advance(seconds=5)
        return world.run(task_id).taken_until != before

    until(reclaimed)


def until_struck_first(world: World) -> None:
    until(lambda: world.local.faults.waiting()[0]["times"] < OFTEN)


def seconds_taken(world: World, task_id: str) -> float:
    run = world.run(task_id)
    assert run.started is not None
    assert run.resolved is not None
    return (run.resolved - run.started).total_seconds()


OUTAGES: dict[str, AnyFault] = {
    "storage responds with errors": Respond("storage.put", OFTEN, status=503),
    "storage closes connections": Drop("storage.put", OFTEN),
    "the Queue responds with errors": Respond("queue.createArtifact", OFTEN, status=503, html=True),
    "the Queue closes connections": Drop("queue.createArtifact", OFTEN),
    "a load balancer redirects": Respond("queue.createArtifact", OFTEN, status=302, html=True),
    "a network responds with its login page": Respond("queue.createArtifact", OFTEN, status=200, html=True),
}


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("storage", ["s3", "object"])
def test_an_outage_of_ten_minutes_costs_ten_minutes_and_not_the_run(
    world: World, outage: str, storage: str
) -> None:
    task_id = world.create({"storage": storage})
    world.local.faults.add(OUTAGES[outage])
    with working(world) as running:
        until_struck_first(world)
        pass_time(world, 600)
        world.local.faults.clear()
        let_end(world, running)
    assert reasons(world, task_id) == ["completed"]
    assert seconds_taken(world, task_id) >= 600
    assert world.queue.download_artifact(task_id, "public/x").content == b"x" * 10_000
    assert "the handler succeeded" in log_of(world, task_id)


@pytest.mark.parametrize("endpoint", ["queue.reportCompleted", "queue.createArtifact", "storage.put"])
def test_uploads_and_reports_that_wait_after_an_outage_are_made_before_the_worker_ends(
    world: World, endpoint: str
) -> None:
    """The clock moves by at most 40 s: without the shutdown, the next attempt would come after a minute.

    If an attempt under way at the shutdown fails, the next one follows after a third of the time left.
    """
    task_id = world.create()
    world.local.faults.add(Respond(endpoint, OFTEN, status=503))
    with requests_noted(world.local) as requests, working(world) as running:
        until_struck_first(world)
        pass_time(world, 300)
        world.local.faults.clear()
        failed, steps = len(requests), [1.0] * 40
        running.worker.shutdown()

        def completed() -> bool:
            world.local.clock.advance(seconds=steps.pop() if steps else 0)
            return world.status(task_id).state == "completed"

        until(completed)
        running.wait_for_end()
    assert failed < len(requests)
    assert world.queue.download_artifact(task_id, "public/x").content == b"x" * 10_000


def test_a_report_is_retried_for_longer_than_a_lease_as_the_run_is_reclaimed(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Respond("queue.reportCompleted", OFTEN, status=503))
    with working(world) as running:
        until_struck_first(world)
        for _ in range(3):
            world.local.clock.advance(seconds=700)
            let_reclaim(world, task_id)
        world.local.faults.clear()
        let_end(world, running)
    assert reasons(world, task_id) == ["completed"]
    assert seconds_taken(world, task_id) >= 2100


def test_an_upload_is_given_up_after_the_upload_timeout_and_the_run_s_other_uploads_with_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """So a hundred artifacts, sixteen at a time, do not take seven times the timeout."""
    task_id = world.create()
    world.local.faults.add(Respond("storage.put", OFTEN, status=503))

    def handler(task: TaskRun) -> None:
        for number in range(100):
            task.upload_artifact(f"public/{number}", b"x")

    def warnings_after_a_second() -> int:
        world.local.clock.advance(seconds=1)
        return caplog.text.count(f"of {task_id}/0, retrying for up to 2")

    with working(world, handler, upload_timeout=300) as running:
        until_struck_first(world)
        pass_time(world, 200)
        assert world.status(task_id).state == "running"
        pass_time(world, 200)
        until(lambda: world.status(task_id).state != "running")
        until(lambda: warnings_after_a_second() == 2)  # one before the report, one after it
        world.local.faults.clear()
        let_end(world, running)
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert seconds_taken(world, task_id) <= 600
    assert artifact(world, task_id, "public/99") == "x"  # uploaded after the report
    assert warnings_after_a_second() == 2


def _deadline_in(world: World, **delta: float) -> str:
    return iso(datetime.fromtimestamp(world.local.clock.now(), UTC) + timedelta(**delta))


def test_of_a_run_that_is_canceled_during_an_outage_nothing_is_uploaded_or_reported(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Respond("storage.put", OFTEN, status=503))
    with requests_noted(world.local) as requests, working(world) as running:
        until_struck_first(world)
        world.queue.cancel_task(task_id)
        pass_time(world, 60)
        running.wait_for_end()
    assert reasons(world, task_id) == ["canceled"]
    assert {each.status for each in requests if each.method == "PUT" and "/storage/" in each.path} == {503}
    assert not [each for each in requests if each.path.endswith(REPORTS)]


def test_of_a_run_whose_deadline_passes_nothing_is_uploaded_or_reported(world: World) -> None:
    task_id = world.create(deadline=_deadline_in(world, minutes=5))
    started = threading.Event()

    def handler(task: TaskRun) -> None:
        upload(task)
        started.set()
        assert task.canceled.wait(WAIT)

    with requests_noted(world.local) as requests, working(world, handler) as running:
        assert started.wait(WAIT)
        pass_time(world, 420)
        running.wait_for_end()
    assert reasons(world, task_id) == ["deadline-exceeded"]
    assert not [each for each in requests if each.method == "PUT" and "/storage/" in each.path]
    assert not [each for each in requests if each.path.endswith(REPORTS)]


def test_an_upload_is_given_up_before_the_deadline_so_that_the_run_is_still_reported(world: World) -> None:
    task_id = world.create(deadline=_deadline_in(world, minutes=5))
    world.local.faults.add(Respond("storage.put", OFTEN, status=503))
    with working(world) as running:
        until_struck_first(world)
        pass_time(world, 230)
        assert world.status(task_id).state == "running"
        world.local.clock.advance(seconds=41)
        until(lambda: world.status(task_id).state != "running")
        world.local.faults.clear()
        let_end(world, running)
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert "HTTP 503" in log_of(world, task_id)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), RuntimeError("can't start new thread")],
    ids=str,
)
def test_uploads_are_retried_while_no_thread_or_file_descriptor_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    refused = threading.Semaphore(0)

    def refuse(*_: object) -> None:
        refused.release()
        raise error

    def refused_later() -> bool:
        world.local.clock.advance(seconds=5)
        return refused.acquire(blocking=False)

    def handler(task: TaskRun) -> None:
        task.log.info("x" * KEPT_IN_MEMORY)
        task.upload_artifact("public/x", __file__, allow_outside=True)
        broken.setattr(TaskLog, "checkpoint", refuse)
        broken.setattr(DeclaredArtifact, "open", refuse)

    task_id = world.create()
    with monkeypatch.context() as broken, working(world, handler) as running:
        for _ in range(6):
            until(refused_later)
        broken.undo()
        let_end(world, running)
    assert reasons(world, task_id) == ["completed"]
    assert artifact_names(world, task_id) == {*LOG, "public/x"}
    assert "x" * KEPT_IN_MEMORY in log_of(world, task_id)


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (413, "failed", "too-large-file-on-worker"),
        (403, "internal-error", "invalid-resource-on-worker"),
    ],
)
def test_an_artifact_that_storage_refuses_for_good_gets_an_error_artifact_that_says_why(
    world: World, status: int, reason: str, error: str
) -> None:
    task_id = world.create()
    world.local.faults.add(Respond("storage.put", 2, status=status))  # for the artifact, and for the log
    with working(world) as running:
        let_end(world, running)
    assert reasons(world, task_id) == [reason]
    assert artifact_names(world, task_id) == {*LOG, "public/x", "public/x.error"}
    with pytest.raises(ErrorArtifact) as caught:
        world.queue.download_artifact(task_id, "public/x.error")
    assert caught.value.reason == error
    assert f"HTTP {status}" in caught.value.message
    assert "public/x was not uploaded: PUT http" in log_of(world, task_id)


@pytest.mark.parametrize(
    ("payload", "faults", "lines"),
    [
        ({}, [Respond("storage.put", 2, status=403)], 1),
        ({"artifact": "missing.txt"}, [], 0),  # the task's log and an error artifact say so
    ],
)
def test_a_log_that_storage_refuses_after_the_report_of_an_exception_is_named_in_the_worker_s_log(
    world: World, caplog: pytest.LogCaptureFixture, payload: dict[str, str], faults: list[Respond], lines: int
) -> None:
    def handler(task: TaskRun) -> None:
        for path in task.payload.values():
            task.upload_artifact("public/x", path)
        raise MalformedPayload(message)

    message = "no such branch"
    task_id = world.create(payload=payload)
    for each in faults:
        world.local.faults.add(each)
    with working(world, handler) as running:
        let_end(world, running)
    found = [each for each in caplog.messages if " after its report: " in each]
    assert len(found) == lines
    start = (
        f"an upload of run {task_id}/0 failed after its report: public/logs/live_backing.log was not uploaded"
    )
    assert all(each.startswith(f"{start}: PUT ") and "HTTP 403" in each for each in found)
    assert reasons(world, task_id) == ["malformed-payload"]


def test_the_first_retry_needs_no_free_file_descriptor() -> None:
    """An import needs one."""
    program = "import sys, taskqueue_client.worker; sys.exit('tenacity' not in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
