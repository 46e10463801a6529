"""scheduleTask, rerunTask, cancelTask and the priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, WORKER, Asker, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.local.engine.engine_world import World

MOVES = ("schedule_task", "rerun_task", "cancel_task")


def unscheduled(world: World) -> str:
    task_id = slugid()
    return world.create(task_id, dependencies=[task_id])


def resolved(world: World) -> str:
    return world.completed()


def move(world: World, name: str, task_id: str) -> dict[str, Any]:
    method: Callable[..., dict[str, Any]] = getattr(world.engine, name)
    status: dict[str, Any] = method(world.caller, task_id)["status"]
    return status


@pytest.mark.parametrize("name", MOVES)
def test_a_missing_task_is_not_found_before_scopes(world: World, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        getattr(world.engine, name)(Asker(refuse=True), slugid())
    assert caught.value.status == 404


@pytest.mark.parametrize("name", MOVES)
def test_scopes_are_checked_before_the_deadline(world: World, name: str) -> None:
    task_id = world.create()
    world.clock.advance(hours=3)
    with pytest.raises(Refusal) as caught:
        getattr(world.engine, name)(Asker(refuse=True), task_id)
    assert caught.value.status == 403


@pytest.mark.parametrize("name", MOVES)
def test_scopes_are_checked_with_the_values_of_the_task(world: World, name: str) -> None:
    task_id = world.create()
    asker = Asker()
    getattr(world.engine, name)(asker, task_id)
    assert (
        asker.asked[0].items()
        >= {"schedulerId": "sched", "taskGroupId": task_id, "projectId": "proj"}.items()
    )


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("make", [resolved, unscheduled])
def test_past_the_deadline_nothing_moves(world: World, name: str, make: Callable[[World], str]) -> None:
    task_id = make(world)
    world.clock.advance(2 * HOUR)
    before = world.status(task_id)
    world.clock.advance(0.001)
    with pytest.raises(Refusal) as caught:
        move(world, name, task_id)
    assert caught.value.status == 409
    assert world.status(task_id) == before


def test_schedule_makes_an_unscheduled_task_pending(world: World) -> None:
    task_id = unscheduled(world)
    world.sent()
    status = move(world, "schedule_task", task_id)
    assert (status["state"], status["runs"][0]["reasonCreated"]) == ("pending", "scheduled")
    assert world.sent() == ["task-pending"]


@pytest.mark.parametrize("state", ["pending", "running", "completed", "canceled"])
def test_schedule_does_not_change_other_tasks(world: World, state: str) -> None:
    task_id = world.create()
    if state in {"running", "completed"}:
        world.claim(task_id)
    if state == "completed":
        world.engine.report_completed(world.caller, task_id, 0, {})
    if state == "canceled":
        world.cancel(task_id)
    before = world.status(task_id)
    world.sent()
    assert move(world, "schedule_task", task_id) == before
    assert world.sent() == []


def test_rerun_of_an_unscheduled_task_ignores_its_dependencies(world: World) -> None:
    task_id = unscheduled(world)
    world.sent()
    status = world.rerun(task_id)
    assert (status["state"], status["runs"][0]["reasonCreated"]) == ("pending", "rerun")
    assert world.sent() == ["task-pending"]


def test_rerun_of_a_pending_task_repeats_its_message_only(world: World) -> None:
    task_id = world.create()
    before = world.status(task_id)
    world.sent()
    assert world.rerun(task_id) == before
    assert world.sent() == ["task-pending"]


def test_rerun_of_a_running_task_does_nothing(world: World) -> None:
    task_id = world.running()
    before = world.status(task_id)
    world.sent()
    assert world.rerun(task_id) == before
    assert world.sent() == []


def test_rerun_of_a_resolved_task_adds_a_run(world: World) -> None:
    task_id = resolved(world)
    world.sent()
    status = world.rerun(task_id)
    assert [run["state"] for run in status["runs"]] == ["completed", "pending"]
    assert status["runs"][1]["reasonCreated"] == "rerun"
    assert world.sent() == ["task-pending"]


def test_reruns_leave_fewer_retries_and_end_at_fifty_runs(world: World) -> None:
    task_id = world.create(retries=49)
    left = {}
    for run_id in range(50):
        left[run_id + 1] = world.status(task_id)["retriesLeft"]
        world.claim(task_id, run_id)
        world.engine.report_completed(world.caller, task_id, run_id, {})
        if run_id < 49:
            world.rerun(task_id)
    assert (left[2], left[11], left[50]) == (48, 39, 0)
    with pytest.raises(Refusal) as caught:
        world.rerun(task_id)
    assert caught.value.status == 409


def test_cancel_of_an_unscheduled_task_makes_a_run_that_is_over(world: World) -> None:
    task_id = unscheduled(world)
    world.sent()
    (run,) = world.cancel(task_id)["runs"]
    assert run == {
        "runId": 0,
        "state": "exception",
        "reasonCreated": "exception",
        "reasonResolved": "canceled",
        "scheduled": world.now(),
        "resolved": world.now(),
    }
    assert world.sent() == ["task-exception", "task-group-resolved"]


@pytest.mark.parametrize("claimed", [False, True])
def test_cancel_ends_a_pending_and_a_running_task(world: World, claimed: bool) -> None:  # noqa: FBT001 - a parameter
    task_id = world.create()
    if claimed:
        world.claim(task_id)
    world.sent()
    status = world.cancel(task_id)
    assert (status["state"], status["runs"][0]["reasonResolved"]) == ("exception", "canceled")
    assert status["retriesLeft"] == 5
    message = world.messages[0]
    assert ("workerGroup" in message.body) == claimed
    assert world.sent() == ["task-exception", "task-group-resolved"]
    assert world.engine.task_queue_counts(QUEUE).items() >= {"pendingTasks": 0, "claimedTasks": 0}.items()


def test_cancel_of_a_retried_task_ends_the_claim_of_its_last_run(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "worker-shutdown")
    world.claim(task_id, 1)
    world.clock.advance(1199)
    world.engine.reclaim_task(world.caller, task_id, 1)
    world.clock.advance(1199)  # the claim of run 0 has expired
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 1
    assert world.cancel(task_id)["runs"][1]["reasonResolved"] == "canceled"
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0


def test_cancel_again_repeats_its_message(world: World) -> None:
    task_id = world.create()
    first = world.cancel(task_id)
    world.sent()
    assert world.cancel(task_id) == first
    assert world.sent()[0] == "task-exception"


def test_cancel_again_drops_the_claim_records_that_refused_calls_have_left(world: World) -> None:
    """Each cancelTask of a canceled task resolves its run's claims, as the first one does."""
    task_id = world.running()
    world.cancel(task_id)
    refused(world.engine.reclaim_task, world.caller, task_id, 0)
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 1
    world.cancel(task_id)
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0


def test_cancel_of_a_completed_task_is_silent(world: World) -> None:
    task_id = resolved(world)
    before = world.status(task_id)
    world.sent()
    assert world.cancel(task_id) == before
    assert world.sent() == []


def test_a_canceled_task_can_be_rerun(world: World) -> None:
    task_id = world.create()
    world.cancel(task_id)
    assert world.rerun(task_id)["state"] == "pending"


def change_priority(world: World, task_id: str, priority: str) -> dict[str, Any]:
    response = world.engine.change_task_priority(world.caller, task_id, {"newPriority": priority})
    status: dict[str, Any] = response["status"]
    return status


async def test_a_changed_priority_shows_everywhere_and_counts_in_the_line(world: World) -> None:
    first, second = world.create(), world.create()
    world.sent()
    assert change_priority(world, second, "highest")["priority"] == "highest"
    (message,) = world.taken()
    assert (message.body["oldPriority"], message.body["newPriority"]) == ("low", "highest")
    assert message.routing_key == f"primary.{second}._._._.prov.wt.sched.{second}._"
    assert world.engine.task(second)["priority"] == "highest"
    claims = await world.claim_work(2)
    assert [claim["status"]["taskId"] for claim in claims] == [second, first]


def test_the_same_priority_again_is_a_conflict(world: World) -> None:
    with pytest.raises(Refusal) as caught:
        change_priority(world, world.create(), "low")
    assert caught.value.status == 409


def test_a_task_that_was_resolved_once_keeps_its_priority(world: World) -> None:
    task_id = resolved(world)
    world.rerun(task_id)
    with pytest.raises(Refusal) as caught:
        change_priority(world, task_id, "high")
    assert caught.value.status == 409


def test_a_priority_cannot_change_at_the_deadline(world: World) -> None:
    task_id = world.create()
    world.clock.advance(2 * HOUR)
    with pytest.raises(Refusal) as caught:
        change_priority(world, task_id, "high")
    assert caught.value.status == 409


def test_the_scopes_of_a_priority_change_name_the_task_and_its_queue(world: World) -> None:
    task_id = world.create()
    world.caller.asked.clear()
    change_priority(world, task_id, "high")
    assert world.caller.asked == [{"taskId": task_id, "taskQueueId": QUEUE}]


def test_a_groups_priority_changes_for_all_that_can_change(world: World) -> None:
    group = world.create()
    others = [world.create(taskGroupId=group) for _ in range(3)]
    already = world.create(taskGroupId=group, priority="high")
    world.cancel(others[0])
    world.sent()
    body = {"newPriority": "high"}
    response = world.engine.change_task_group_priority(world.caller, group, body)
    assert list(response) == ["taskGroupId", "schedulerId", "newPriority", "tasksAffected", "taskIds"]
    assert sorted(response["taskIds"]) == sorted([group, *others[1:]])
    assert already not in response["taskIds"]
    assert response["tasksAffected"] == 3
    (message,) = world.taken()
    assert message.routing_key == f"primary.{group}.sched._"
    assert "taskIds" not in message.body
    assert world.engine.change_task_group_priority(world.caller, group, body)["tasksAffected"] == 0
    assert world.sent() == ["task-group-priority-changed"]


def test_a_running_run_is_not_touched_by_a_new_priority(world: World) -> None:
    task_id = world.running()
    runs = world.status(task_id)["runs"]
    assert change_priority(world, task_id, "high")["runs"] == runs
    assert (runs[0]["workerGroup"], runs[0]["workerId"]) == (GROUP, WORKER)
