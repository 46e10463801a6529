"""reportCompleted, reportFailed, reportException, and the retry table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, WORKER, World, refused

if TYPE_CHECKING:
    pass

RETRIED = {"worker-shutdown": "retry", "intermittent-task": "task-retry"}
FINAL = ["malformed-payload", "resource-unavailable", "internal-error"]


def claimed(world: World) -> int:
    count: int = world.engine.task_queue_counts(QUEUE)["claimedTasks"]
    return count


def test_a_completed_run_completes_the_task(world: World) -> None:
    task_id = world.running()
    world.clock.advance(5)
    world.sent()
    status = world.engine.report_completed(world.caller, task_id, 0, {})["status"]
    assert status["state"] == "completed"
    run = status["runs"][0]
    assert (run["state"], run["reasonResolved"], run["resolved"]) == ("completed", "completed", world.now())
    assert "takenUntil" in run
    assert claimed(world) == 0
    first = world.messages[0]
    assert first.routing_key == f"primary.{task_id}.0.{GROUP}.{WORKER}.prov.wt.sched.{task_id}._"
    assert first.cc == ["route.a.route"]
    assert world.sent() == ["task-completed", "task-group-resolved"]


def test_success_false_in_the_body_means_failed(world: World) -> None:
    task_id = world.running()
    assert (
        world.engine.report_completed(world.caller, task_id, 0, {"success": False})["status"]["state"]
        == "failed"
    )


def test_a_failed_run_fails_the_task(world: World) -> None:
    task_id = world.running()
    world.sent()
    assert world.engine.report_failed(world.caller, task_id, 0)["status"]["state"] == "failed"
    assert world.sent() == ["task-failed", "task-group-resolved"]


def test_a_report_may_be_repeated_and_sends_its_message_again(world: World) -> None:
    task_id = world.running()
    first = world.engine.report_completed(world.caller, task_id, 0, {})
    world.sent()
    assert world.engine.report_completed(world.caller, task_id, 0, {}) == first
    assert world.sent()[0] == "task-completed"


def test_a_report_is_refused_for_what_is_missing_pending_or_resolved_otherwise(world: World) -> None:
    report = partial(world.engine.report_completed, world.caller)
    assert refused(report, slugid(), 0, {}).status == 404
    task_id = world.create()
    assert refused(report, task_id, 1, {}).status == 404
    refusal = refused(report, task_id, 0, {})
    assert refusal.status == 409
    assert refusal.message == f"Run 0 of task `{task_id}` is not running or completed."
    world.claim(task_id)
    world.engine.report_failed(world.caller, task_id, 0)
    assert refused(report, task_id, 0, {}).status == 409


def test_an_older_run_cannot_be_reported_again(world: World) -> None:
    task_id = world.completed()
    world.rerun(task_id)
    assert refused(world.engine.report_completed, world.caller, task_id, 0, {}).status == 409


def test_reports_work_after_the_deadline_until_the_resolver_has_acted() -> None:
    world = World(deadline_delay=60, claim_timeout=3 * HOUR)
    task_id = world.running()
    world.clock.advance(2 * HOUR + 59)
    assert world.engine.report_completed(world.caller, task_id, 0, {})["status"]["state"] == "completed"
    world.close()


@pytest.mark.parametrize("reason", RETRIED)
def test_some_exceptions_are_retried(world: World, reason: str) -> None:
    task_id = world.running()
    world.sent()
    status = world.fail(task_id, reason)
    assert (status["state"], status["retriesLeft"]) == ("pending", 4)
    assert status["runs"][0]["reasonResolved"] == reason
    assert status["runs"][1] == {
        "runId": 1,
        "state": "pending",
        "reasonCreated": RETRIED[reason],
        "scheduled": world.now(),
    }
    exception, pending = world.taken()
    assert exception.body["runId"] == 0
    assert exception.body["status"] == pending.body["status"] == status
    assert pending.body["runId"] == 1


@pytest.mark.parametrize("reason", RETRIED)
def test_an_exception_that_would_be_retried_ends_a_task_without_retries_left(
    world: World, reason: str
) -> None:
    task_id = world.running(retries=0)
    world.sent()
    status = world.fail(task_id, reason)
    assert (status["state"], status["retriesLeft"], len(status["runs"])) == ("exception", 0, 1)
    assert world.sent() == ["task-exception", "task-group-resolved"]


@pytest.mark.parametrize("reason", FINAL)
def test_other_exceptions_end_the_task(world: World, reason: str) -> None:
    task_id = world.running()
    world.sent()
    status = world.fail(task_id, reason)
    assert (status["state"], status["retriesLeft"], len(status["runs"])) == ("exception", 5, 1)
    assert world.sent() == ["task-exception", "task-group-resolved"]


def test_an_exception_may_be_repeated_with_the_same_reason_only(world: World) -> None:
    task_id = world.running()
    first = world.fail(task_id, "worker-shutdown")
    world.sent()
    assert world.fail(task_id, "worker-shutdown") == first
    assert world.sent() == ["task-exception", "task-pending"]
    with pytest.raises(Refusal) as caught:
        world.fail(task_id, "internal-error")
    assert caught.value.status == 409


def test_an_exception_cannot_be_repeated_two_runs_later(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "worker-shutdown")
    world.claim(task_id, 1)
    world.fail(task_id, "worker-shutdown")
    world.fail(task_id, "worker-shutdown", run_id=1)
    assert refused(world.fail, task_id, "worker-shutdown").status == 409


def test_a_repeat_after_the_retry_was_claimed_counts_the_task_as_resolved(world: World) -> None:
    task_id = world.running()
    dependent = world.create(dependencies=[task_id], requires="all-resolved")
    world.fail(task_id, "worker-shutdown")
    world.claim(task_id, 1)
    assert world.status(dependent)["state"] == "unscheduled"
    world.fail(task_id, "worker-shutdown")
    assert world.status(dependent)["state"] == "pending"
    body = {"newPriority": "high"}
    assert refused(world.engine.change_task_priority, world.caller, task_id, body).status == 409


def test_a_retried_run_counts_as_claimed_until_its_claim_expires(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "worker-shutdown")
    assert claimed(world) == 1
    world.clock.advance(1200)
    assert claimed(world) == 0
    assert len(world.status(task_id)["runs"]) == 2


def test_a_final_exception_of_run_0_drops_its_claim(world: World) -> None:
    world.fail(world.running(), "internal-error")
    assert claimed(world) == 0


def test_a_later_run_that_a_final_exception_has_ended_still_counts_as_claimed(world: World) -> None:
    task_id = world.running(retries=0)
    world.fail(task_id, "internal-error")
    world.rerun(task_id)
    world.claim(task_id, 1)
    world.fail(task_id, "internal-error", run_id=1)
    assert claimed(world) == 1


def test_a_final_exception_of_a_later_run_drops_the_claim_of_run_0(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "worker-shutdown")
    world.claim(task_id, 1)
    assert claimed(world) == 2
    world.fail(task_id, "malformed-payload", run_id=1)
    assert claimed(world) == 1
    (left,) = world.engine.list_claimed_tasks(QUEUE, None, 1000)["tasks"]
    assert left["runId"] == 1


def test_a_pending_run_cannot_end_with_an_exception(world: World) -> None:
    assert refused(world.fail, world.create(), "worker-shutdown").status == 409
