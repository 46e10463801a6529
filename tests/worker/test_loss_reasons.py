"""The reasons that the worker's log and metrics give for the end of runs and lost claims."""

from __future__ import annotations

import errno
import logging
import re
import threading
import time

import pytest
import requests

from taskqueue_client import Credentials, calls
from taskqueue_client.artifacts.artifact_errors import SourceChanged, UploadAlreadyBegun
from taskqueue_client.clock import MovableClock
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Respond
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.claimed_run import ClaimState
from taskqueue_client.worker.features import proxy
from taskqueue_client.worker.outcomes import InternalError, ResourceUnavailable, TaskFailed
from taskqueue_client.worker.run.declared_artifacts import outcome_of_failed_upload
from taskqueue_client.worker.run.lifecycle import TaskEnd
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.worker_runner import JsonFormatter
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, Told, World, running_keeper, until
from tests.worker.request_log import requests_noted
from tests.worker.worker_world import Working, work, worker_for


def until_canceled(task: TaskRun) -> None:
    assert task.canceled.wait(WAIT)


def test_the_log_says_that_a_run_was_canceled(world: World, caplog: pytest.LogCaptureFixture) -> None:
    task_id = world.create()
    with Working(world, worker_for(world, until_canceled, max_tasks=1)) as working:
        until(lambda: world.status(task_id).state == "running")
        world.queue.cancel_task(task_id)
        working.wait_for_end()
    (line,) = [each for each in caplog.records if f"run {task_id}/0 ended" in each.getMessage()]
    assert line.levelno == logging.WARNING
    assert "lost (canceled)" in line.getMessage()


def test_the_log_says_why_a_lease_ended(caplog: pytest.LogCaptureFixture) -> None:
    clock = MovableClock(held=True)
    with LocalQueue() as local:
        world = World(local)
        task_id = world.create()
        local.faults.add(Respond(endpoint="queue.reclaimTask", status=503, times=1000))
        worker = worker_for(world, until_canceled, max_tasks=1)
        worker.clock = clock
        with Working(world, worker) as working:
            until(lambda: world.status(task_id).state == "running")

            def has_failed() -> bool:
                clock.advance(10)
                return "cannot reclaim" in caplog.text

            until(has_failed)
            clock.advance(1200)
            working.wait_for_end()
        world.close()
    assert f"claim on {task_id}/0 lost: its lease ended (1200.0 s); reclaim failed" in caplog.text
    assert "HTTP 503" in caplog.text
    assert "lost (lease-ended)" in caplog.text


def test_every_line_about_a_run_has_its_ids_in_json(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(task: TaskRun) -> None:
        with task.proxy() as url:
            assert requests.get(f"{url}/127.0.0.1:9/path", timeout=WAIT).status_code == 500

    monkeypatch.setattr(proxy, "ATTEMPTS", 1)
    world.local.faults.add(Respond(endpoint="queue.reportCompleted", status=503))
    task_id = world.create()
    with caplog.at_level(logging.INFO, "taskqueue_client.worker"):
        work(world, handler)
    lines = [JsonFormatter().document(each) for each in caplog.records if task_id in each.getMessage()]
    began, proxied, reported, ended = (str(each["message"]) for each in lines)
    assert began.startswith(f"run {task_id}/0 begins")
    assert proxied.startswith(f"proxy of {task_id}/0: GET https://127.0.0.1:9/path failed: ")
    assert reported.startswith(f"cannot report {task_id}/0 as completed, retrying: ")
    assert ended.startswith(f"run {task_id}/0 ended: completed")
    assert [(each.get("task_id"), each.get("run_id")) for each in lines] == [(task_id, 0)] * 4


@pytest.mark.parametrize(
    ("error", "level", "reason"),
    [
        (None, logging.INFO, "completed"),
        (TaskFailed("red"), logging.INFO, "failed"),
        (InternalError("broken"), logging.ERROR, "internal-error"),
    ],
)
def test_the_log_says_how_each_run_ended(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception | None, level: int, reason: str
) -> None:
    def handler(task: TaskRun) -> None:
        del task
        if error is not None:
            raise error

    task_id = world.create()
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "taskqueue_client.worker"):
        work(world, handler)
    (line,) = [each for each in caplog.records if f"run {task_id}/0 ended" in each.getMessage()]
    why = "" if error is None else f": {type(error).__name__}: {error}"
    expected = rf"run {task_id}/0 ended: {reason} after (\d+\.\d) s, 0 artifacts{why}"
    found = re.fullmatch(expected, line.getMessage())
    assert found is not None, line.getMessage()
    assert float(found[1]) < time.monotonic() - began + 0.1  # the log rounds
    assert line.levelno == level
    assert bool(line.exc_info) == (level == logging.ERROR)


@pytest.mark.parametrize(("error", "outcome"), [(None, "completed"), (TaskFailed("red"), "failed")])
def test_on_task_end_gets_the_outcome_of_each_run(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception | None, outcome: str
) -> None:
    def handler(task: TaskRun) -> None:
        del task
        if error is not None:
            raise error

    ends: list[TaskEnd] = []
    task_id = world.create()
    began = time.monotonic()
    worker = worker_for(world, handler, max_tasks=1)
    monkeypatch.setattr(worker, "on_task_end", ends.append)
    worker.serve()
    (end,) = ends
    assert (end.task_id, end.run_id, end.outcome, end.error) == (task_id, 0, outcome, error)
    assert 0 < end.seconds < time.monotonic() - began


@pytest.mark.parametrize("formatter", [logging.Formatter(), JsonFormatter()])
@pytest.mark.parametrize("kind", [TaskFailed, RuntimeError])
def test_the_log_says_it_without_secrets(
    world: World, caplog: pytest.LogCaptureFixture, kind: type[Exception], formatter: logging.Formatter
) -> None:
    tokens: list[str] = []

    def handler(task: TaskRun) -> None:
        task.register_secret("a registered secret")
        tokens.append(task.credentials.access_token)
        message = f"a registered secret and {tokens[0]} in an error"
        raise kind(message)

    task_id = world.create()
    with caplog.at_level(logging.INFO, "taskqueue_client.worker"):
        work(world, handler)
    (line,) = [each for each in caplog.records if f"run {task_id}/0 ended" in each.getMessage()]
    assert "[masked] and [masked] in an error" in formatter.format(line)
    for secret in ("a registered secret", tokens[0]):
        assert secret not in caplog.text + formatter.format(line)


def test_polling_without_the_scope_is_logged_once_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The worker's credentials have exactly the scopes that the document on worker interaction names."""
    scopes = [f"queue:claim-work:{TASK_QUEUE_ID}", "queue:worker-id:group/worker"]
    client = Client("worker", "the-secret-of-a-worker", scopes)
    polled = threading.Event()
    with LocalQueue(clients=[client], anonymous_scopes=[]) as local:
        world = World(local)
        world.create()
        worker = worker_for(world, lambda _: polled.wait(WAIT), max_tasks=1, cancellation_poll_interval=0.01)
        worker.credentials = Credentials("worker", "the-secret-of-a-worker")
        with requests_noted(local) as requests, Working(world, worker) as working:
            until(lambda: sum(each.path.endswith("/tasks/status") for each in requests) >= 5)
            polled.set()
            working.wait_for_end()
        world.close()
    lines = [each.getMessage() for each in caplog.records if "queue:status:" in each.getMessage()]
    assert len(lines) == 1
    assert "\n" not in lines[0]


def test_a_proxy_that_refuses_to_poll_is_not_taken_for_a_missing_scope(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskqueue_client.worker")
    world.local.faults.add(Respond(endpoint="queue.statuses", status=403, html=True, times=1000))
    world.create()
    polled = threading.Event()
    worker = worker_for(world, lambda _: polled.wait(WAIT), max_tasks=1, cancellation_poll_interval=0.01)
    with Working(world, worker) as working:
        until(lambda: "cannot poll for canceled runs, retrying: " in caplog.text)
        polled.set()
        working.wait_for_end()
    assert "queue:status:" not in caplog.text


@pytest.mark.parametrize(("used", "reclaims"), [(0.0, 0), (0.1, 1)])
def test_a_run_is_reclaimed_before_an_exception_unless_nearly_a_whole_lease_is_left(
    world: World, used: float, reclaims: int
) -> None:
    world.create()
    told = Told()
    with requests_noted(world.local) as requests, running_keeper(world, told) as keeper:
        (run,) = told.runs(1)
        run.lease = type(run.lease)(run.lease.length, run.lease.ends - used * run.lease.length)
        assert keeper.resolve(run, ReasonResolved.INTERNAL_ERROR) is ClaimState.RESOLVED
        until(lambda: any(each.path.endswith("/exception") for each in requests))
        assert sum(each.path.endswith("/reclaim") for each in requests) == reclaims


def test_a_failed_reclaim_right_before_the_report_of_an_exception_is_logged_and_the_run_is_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create()
    world.local.faults.add(Respond(endpoint="queue.reclaimTask", status=503, times=1000))
    told = Told()
    with running_keeper(world, told) as keeper:
        (run,) = told.runs(1)
        run.lease = type(run.lease)(run.lease.length, run.lease.ends - 0.1 * run.lease.length)
        assert keeper.resolve(run, ReasonResolved.INTERNAL_ERROR) is ClaimState.RESOLVED
    assert world.run(task_id).reason_resolved == "internal-error"
    (record,) = [each for each in caplog.records if "before its report" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"cannot reclaim {task_id}/0 before its report: reclaimTask (POST ")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        *((each, InternalError) for each in ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE", "EIO")),
        *((each, TaskFailed) for each in ("ENOENT", "EACCES", "EISDIR")),
    ],
)
def test_the_machine_s_trouble_with_a_file_is_not_the_task_s_failure(
    code: str, outcome: type[Exception]
) -> None:
    error = OSError(getattr(errno, code), code, "x")
    assert type(outcome_of_failed_upload("public/x", error)) is outcome


def test_an_error_without_a_text_is_named_as_the_cause_of_a_failed_upload() -> None:
    outcome = outcome_of_failed_upload("public/x", MemoryError())
    assert str(outcome) == "public/x was not uploaded: MemoryError"


def test_a_limit_of_threads_is_named_as_the_cause_of_a_failed_upload() -> None:
    outcome = outcome_of_failed_upload("public/x", RuntimeError("can't start new thread"))
    cause = "public/x was not uploaded: the worker cannot start a thread: raise the limit of processes"
    assert str(outcome).startswith(cause)


def test_a_lost_response_that_says_how_to_upload_is_not_a_bug_of_the_worker() -> None:
    outcome = outcome_of_failed_upload("public/x", UploadAlreadyBegun("public/x"))
    assert isinstance(outcome, ResourceUnavailable)


def test_a_file_that_changes_during_its_upload_is_the_task_s_doing() -> None:
    assert isinstance(outcome_of_failed_upload("public/x", SourceChanged("x")), TaskFailed)


def test_the_reason_resources_unavailable_is_sent_as_resource_unavailable() -> None:
    call = calls.report_exception("fN1SbArXTPSVFNUvaOlinQ", 0, "resources-unavailable")
    assert call.body == {"reason": "resource-unavailable"}
