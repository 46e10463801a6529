"""Task groups, and the lists of tasks."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import HOUR, QUEUE, Asker, refused

if TYPE_CHECKING:
    from tests.local.engine.engine_world import World

ALL = 1000


def group_of(world: World, size: int) -> list[str]:
    """Create a group of `size` tasks; return their ids, the first of which is that of the group, too."""
    group = world.create()
    return [group, *(world.create(taskGroupId=group) for _ in range(size - 1))]


def test_a_group_that_no_task_has_made_is_not_found(world: World) -> None:
    engine, nobody = world.engine, Asker(refuse=True)
    assert refused(engine.get_task_group, slugid()).status == 404
    assert refused(engine.list_task_group, slugid(), None, ALL).status == 404
    assert refused(engine.seal_task_group, nobody, slugid()).status == 404
    assert refused(engine.cancel_task_group, nobody, slugid()).status == 404
    assert refused(engine.change_task_group_priority, nobody, slugid(), {"newPriority": "low"}).status == 404


def test_sealing_again_keeps_the_first_time_and_sends_the_message_again(world: World) -> None:
    (group,) = group_of(world, 1)
    world.sent()
    first = world.engine.seal_task_group(world.caller, group)
    assert list(first) == ["taskGroupId", "schedulerId", "expires", "sealed"]
    assert first["sealed"] == world.now()
    world.clock.advance(1)
    assert world.engine.seal_task_group(world.caller, group) == first
    assert world.sent() == ["task-group-sealed"] * 2
    assert world.caller.asked[-1] == {"schedulerId": "sched", "taskGroupId": group}


def test_a_sealed_group_takes_no_task_but_its_tasks_go_on(world: World) -> None:
    (group,) = group_of(world, 1)
    world.engine.seal_task_group(world.caller, group)
    with pytest.raises(Refusal) as caught:
        world.create(taskGroupId=group)
    assert caught.value.status == 409
    world.claim(group)
    world.engine.report_completed(world.caller, group, 0, {})
    assert world.rerun(group)["state"] == "pending"


def test_the_text_about_a_sealed_group_is_the_services_as_programs_know_this_conflict_by_it(
    world: World,
) -> None:
    (group,) = group_of(world, 1)
    world.engine.seal_task_group(world.caller, group)
    refusal = refused(world.create, taskGroupId=group)
    assert refusal.message == f"Task group `{group}` is sealed and does not accept new tasks."


def test_only_a_sealed_group_can_be_canceled_and_that_is_checked_before_scopes(world: World) -> None:
    (group,) = group_of(world, 1)
    assert refused(world.engine.cancel_task_group, Asker(refuse=True), group).status == 409
    world.engine.seal_task_group(world.caller, group)
    assert refused(world.engine.cancel_task_group, Asker(refuse=True), group).status == 403


def test_canceling_a_group_ends_what_is_not_resolved(world: World) -> None:
    group, running, done = group_of(world, 3)
    blocked = world.create(taskGroupId=group, dependencies=[group])
    world.claim(running)
    world.claim(done)
    world.engine.report_completed(world.caller, done, 0, {})
    world.engine.seal_task_group(world.caller, group)
    world.sent()
    response = world.engine.cancel_task_group(world.caller, group)
    assert list(response) == ["taskGroupSize", "taskIds", "cancelledCount", "taskGroupId"]
    assert response["taskIds"] == [group, running, blocked]  # in the order of their creation
    assert (response["taskGroupSize"], response["cancelledCount"]) == (4, 3)
    messages = world.taken()
    exceptions = [message for message in messages if message.exchange.endswith("/task-exception")]
    assert [message.body["status"]["taskId"] for message in exceptions] == response["taskIds"]
    assert all("priority" not in message.body["status"] for message in exceptions)
    assert all(message.body["task"] == {"tags": {}} for message in exceptions)
    assert messages[-1].exchange.endswith("/task-group-resolved")
    assert world.engine.cancel_task_group(world.caller, group)["cancelledCount"] == 0
    assert world.engine.task_queue_counts(QUEUE).items() >= {"pendingTasks": 0, "claimedTasks": 0}.items()


def test_a_group_is_listed_in_the_databases_order_page_by_page(world: World) -> None:
    group = world.create("aeG" + slugid()[3:])
    for start in ("RoV", "cmA", "Iej", "f08"):
        world.create(start + slugid()[3:], taskGroupId=group)
    listed: list[str] = []
    token: str | None = None
    while True:
        page = world.engine.list_task_group(group, token, 2)
        listed += [task["status"]["taskId"][:3] for task in page["tasks"]]
        token = page.get("continuationToken")
        if token is None:
            break
    assert listed == ["aeG", "cmA", "f08", "Iej", "RoV"]


def test_a_groups_list_holds_its_record_and_definitions_with_status(world: World) -> None:
    (group,) = group_of(world, 1)
    response = world.engine.list_task_group(group, None, ALL)
    assert list(response) == ["taskGroupId", "schedulerId", "expires", "tasks"]
    assert response["tasks"] == [{"status": world.status(group), "task": world.engine.task(group)}]


def test_offset_tokens_are_those_of_the_service(world: World) -> None:
    tasks = group_of(world, 3)
    body = {"taskIds": tasks}
    first = world.engine.tasks(world.caller, body, None, 1)
    assert first["continuationToken"] == "qzxkXG8ZWa"
    second = world.engine.tasks(world.caller, body, "qzxkXG8ZWa", 1)
    assert second["continuationToken"] == "jGzmdv8vpK"
    third = world.engine.tasks(world.caller, body, "jGzmdv8vpK", 1)
    assert [page["tasks"][0]["taskId"] for page in (first, second, third)] == tasks
    assert "continuationToken" not in third


def test_tokens_of_wrong_characters_are_refused_and_others_start_over(world: World) -> None:
    (group,) = group_of(world, 1)
    assert refused(world.engine.list_task_group, group, "a-b", ALL).code == "InputError"
    assert len(world.engine.list_task_group(group, "abcdef", ALL)["tasks"]) == 1
    assert len(world.engine.list_task_group(group, "z" * 500, ALL)["tasks"]) == 1


def test_a_limit_of_zero_gives_nothing_and_no_token(world: World) -> None:
    (group,) = group_of(world, 1)
    assert world.engine.tasks(world.caller, {"taskIds": [group]}, None, 0) == {"tasks": []}
    assert world.engine.list_task_group(group, None, 0)["tasks"] == []
    assert world.engine.list_pending_tasks(QUEUE, None, 0) == {"tasks": []}


def test_tasks_and_statuses_leave_out_what_does_not_exist(world: World) -> None:
    (task_id,) = group_of(world, 1)
    body = {"taskIds": [slugid(), task_id, "rubbish", task_id]}
    world.caller.asked.clear()
    assert world.engine.tasks(world.caller, body, None, ALL) == {
        "tasks": [{"taskId": task_id, "task": world.engine.task(task_id)}]
    }
    assert world.engine.statuses(world.caller, body, None, ALL) == {
        "statuses": [{"taskId": task_id, "status": world.status(task_id)}]
    }
    assert world.caller.asked == [body, body]


def test_dependents_are_listed_until_they_expire(world: World) -> None:
    assert refused(world.engine.list_dependent_tasks, slugid(), None, ALL).status == 404
    required = world.create()
    dependent = world.create(dependencies=[required], expires=world.now(3 * HOUR))
    response = world.engine.list_dependent_tasks(required, None, ALL)
    assert list(response) == ["taskId", "tasks"]
    assert [task["status"]["taskId"] for task in response["tasks"]] == [dependent]
    world.clock.advance(3 * HOUR)
    assert world.engine.list_dependent_tasks(required, None, ALL)["tasks"] == []


def test_a_page_of_dependents_reads_the_definitions_of_no_others(world: World) -> None:
    """Sorting all definitions for each page would take minutes for some ten thousand dependents."""
    required = world.create()
    first = world.create("A" + slugid()[1:], dependencies=[required])
    world.create("Z" + slugid()[1:], dependencies=[required], payload={"large": "x" * 100_000})
    world.store.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
    page = world.engine.list_dependent_tasks(required, None, 1)
    assert [task["status"]["taskId"] for task in page["tasks"]] == [first]
    assert "continuationToken" in page


def test_a_missing_task_is_not_found(world: World) -> None:
    task_id = slugid()
    assert refused(world.engine.task, task_id).status == 404
    message = f"`{task_id}` does not correspond to a task that exists.\nAre you sure this task exists?"
    assert refused(world.engine.status, task_id).message == message
