"""createTask, by its table of steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client.local.http.request_bodies import parse
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import HOUR, Asker

if TYPE_CHECKING:
    from tests.local.engine.engine_world import World

MINUTE = 60
DAY = 24 * HOUR


def refused(world: World, task_id: str | None = None, **changes: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        world.create(task_id, **changes)
    return caught.value


def test_a_task_without_dependencies_is_pending_at_once(world: World) -> None:
    task_id = slugid()
    response = world.engine.create_task(world.caller, task_id, world.definition())
    assert response == {
        "status": {
            "taskId": task_id,
            "provisionerId": "prov",
            "workerType": "wt",
            "taskQueueId": "prov/wt",
            "schedulerId": "sched",
            "projectId": "proj",
            "taskGroupId": task_id,
            "priority": "low",
            "deadline": world.now(2 * HOUR),
            "expires": world.now(48 * HOUR),
            "retriesLeft": 5,
            "state": "pending",
            "runs": [
                {"runId": 0, "state": "pending", "reasonCreated": "scheduled", "scheduled": world.now()}
            ],
        }
    }
    assert world.sent() == ["task-defined", "task-pending"]


def test_a_definition_comes_back_with_all_fields_in_the_servers_order(world: World) -> None:
    task = world.engine.task(world.create())
    names = "provisionerId workerType taskQueueId schedulerId projectId taskGroupId dependencies requires"
    names += " routes priority retries created deadline expires scopes payload metadata tags extra"
    assert list(task) == names.split()


def test_free_form_keys_come_back_by_length_and_then_by_bytes(world: World) -> None:
    payload = {"bb": 1, "a": {"zz": [{"yy": 1, "x": 2}], "Z": 1}, "é": 2, "B": 3}
    task_id = world.create(payload=payload)
    task = world.engine.task(task_id)
    assert list(task["payload"]) == ["B", "a", "bb", "é"]
    assert list(task["payload"]["a"]) == ["Z", "zz"]
    assert list(task["payload"]["a"]["zz"][0]) == ["x", "yy"]
    assert list(task["metadata"]) == ["name", "owner", "source", "description"]


def test_numbers_are_kept_as_doubles(world: World) -> None:
    payload = {"a": 1.0, "b": 2**70, "c": 10**400, "d": 0.5, "e": True}
    task_id = world.create(payload=parse(json.dumps(payload)))
    assert world.engine.task(task_id)["payload"] == {
        "a": 1,
        "b": float(2**70),
        "c": None,
        "d": 0.5,
        "e": True,
    }


def test_large_whole_numbers_come_back_as_javascript_writes_them(world: World) -> None:
    payload = {"a": 1732212345678901234, "b": -(2**53) - 1, "c": 1e17, "d": 10**20, "e": 1e21}
    task_id = world.create(payload=parse(json.dumps(payload)))
    shown = world.engine.task(task_id)["payload"]
    written = [1732212345678901200, -(2**53), 10**17, 10**20, 1e21]
    assert [*map(repr, shown.values())] == [*map(repr, written)]
    rounded = parse(json.dumps({**payload, "a": 1732212345678901200}))
    assert world.create(task_id, payload=rounded) == task_id


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ({"provisionerId": "p", "workerType": "t"}, ("p", "t", "p/t")),
        ({"taskQueueId": "p/t"}, ("p", "t", "p/t")),
        ({"taskQueueId": "p/t", "provisionerId": "other"}, ("p", "t", "p/t")),
        ({"taskQueueId": "p/t", "provisionerId": "p", "workerType": "t"}, ("p", "t", "p/t")),
    ],
)
def test_the_missing_form_of_the_queue_id_is_filled_in(
    world: World, given: dict[str, str], completed: tuple[str, str, str]
) -> None:
    body = world.definition()
    del body["taskQueueId"]
    task_id = slugid()
    world.engine.create_task(world.caller, task_id, {**body, **given})
    task = world.engine.task(task_id)
    assert (task["provisionerId"], task["workerType"], task["taskQueueId"]) == completed


@pytest.mark.parametrize(
    "given",
    [
        {"provisionerId": "p", "workerType": "t", "taskQueueId": "p/other"},
        {"provisionerId": "p"},
        {"workerType": "t"},
        {},
    ],
)
def test_a_queue_id_that_is_missing_or_contradicts_itself_is_refused_before_scopes(
    world: World, given: dict[str, str]
) -> None:
    body = world.definition()
    del body["taskQueueId"]
    with pytest.raises(Refusal) as caught:
        world.engine.create_task(Asker(refuse=True), slugid(), {**body, **given})
    assert caught.value.code == "InputError"


def test_scopes_are_asked_for_the_task_and_each_priority_from_the_highest_down(world: World) -> None:
    world.create(priority="high")
    assert world.caller.asked == [
        {
            "scopes": ["some:scope"],
            "routes": ["a.route"],
            "projectId": "proj",
            "schedulerId": "sched",
            "provisionerId": "prov",
            "workerType": "wt",
            "priorities": ["highest", "very-high", "high"],
        }
    ]


def test_scopes_are_checked_before_dates(world: World) -> None:
    with pytest.raises(Refusal) as caught:
        world.engine.create_task(Asker(refuse=True), slugid(), world.definition(deadline=world.now(-DAY)))
    assert caught.value.code == "InsufficientScopes"


@pytest.mark.parametrize(
    ("created", "deadline", "expires"),
    [
        (-15 * MINUTE - 1, HOUR, DAY),
        (15 * MINUTE + 1, HOUR, DAY),
        (10, 9, DAY),
        (-20, -1, DAY),
        (0, 5 * DAY + 15 * MINUTE + 1, 9 * DAY),
        (0, HOUR, HOUR - 1),
    ],
)
def test_dates_out_of_bounds_are_refused(
    world: World, created: float, deadline: float, expires: float
) -> None:
    dates = {"created": world.now(created), "deadline": world.now(deadline), "expires": world.now(expires)}
    assert refused(world, **dates).code == "InputError"


@pytest.mark.parametrize(
    ("created", "deadline", "expires"),
    [
        (-15 * MINUTE, HOUR, DAY),
        (15 * MINUTE, HOUR, DAY),
        (10, 10, DAY),
        (-20, 0, DAY),
        (0, 5 * DAY + 15 * MINUTE, 9 * DAY),
        (0, HOUR, HOUR),
    ],
)
def test_dates_at_their_bounds_pass(world: World, created: float, deadline: float, expires: float) -> None:
    dates = {"created": world.now(created), "deadline": world.now(deadline), "expires": world.now(expires)}
    task = world.engine.task(world.create(**dates))
    assert {name: task[name] for name in dates} == dates


def test_expires_defaults_to_a_calendar_year_after_the_deadline(world: World) -> None:
    body = world.definition(deadline="2026-11-22T00:00:00Z")
    del body["expires"]
    task_id = slugid()
    world.engine.create_task(world.caller, task_id, body)
    assert world.engine.task(task_id)["expires"] == "2027-11-22T00:00:00.000Z"


def test_a_task_may_live_to_the_end_of_time(world: World) -> None:
    task_id = world.create(expires="9999-12-31T23:59:59.999Z")
    assert world.engine.get_task_group(task_id)["expires"] == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    "when", ["2026-11-21T25:00:00Z", "2026-02-30T00:00:00Z", "9999-12-31T23:59:59-14:00"]
)
def test_a_moment_that_does_not_exist_is_refused(world: World, when: str) -> None:
    assert refused(world, expires=when).code == "InputError"


def test_a_scope_that_ends_in_two_stars_is_refused(world: World) -> None:
    assert refused(world, scopes=["a", "b:**"]).code == "InputError"


def test_a_payload_that_is_nested_too_deep_is_refused(world: World) -> None:
    payload: dict[str, Any] = {}
    for _ in range(20_000):
        payload = {"a": payload}
    refusal = refused(world, payload=payload)
    assert refusal.code == "MalformedPayload"
    assert "nested deeper than Python can handle" in refusal.message


def test_a_group_keeps_its_scheduler(world: World) -> None:
    group = world.create()
    assert refused(world, taskGroupId=group, schedulerId="other").code == "RequestConflict"


def test_a_group_lasts_an_hour_longer_than_its_longest_task(world: World) -> None:
    group = world.create(expires=world.now(3 * HOUR))
    assert world.engine.get_task_group(group)["expires"] == world.now(4 * HOUR)
    world.create(taskGroupId=group, expires=world.now(4 * HOUR))
    assert world.engine.get_task_group(group)["expires"] == world.now(4 * HOUR)
    world.create(taskGroupId=group, expires=world.now(4 * HOUR + 1))
    assert world.engine.get_task_group(group)["expires"] == world.now(5 * HOUR + 1)


def test_a_create_that_fails_does_not_remove_the_group(world: World) -> None:
    group = slugid()
    task_id = slugid()
    assert refused(world, task_id, taskGroupId=group, dependencies=[slugid()]).code == "InputError"
    assert world.engine.get_task_group(group)["schedulerId"] == "sched"
    assert world.sent() == []
    assert world.create(task_id, taskGroupId=group) == task_id


def test_repeating_a_create_returns_the_current_status_and_sends_again(world: World) -> None:
    task_id = world.create()
    world.sent()
    world.create(task_id)
    assert world.sent() == ["task-defined", "task-pending"]
    world.claim(task_id)
    world.sent()
    world.create(task_id)
    (message,) = world.taken()
    assert message.body["status"]["state"] == "unscheduled"
    assert message.body["status"]["runs"] == []
    assert world.status(task_id)["state"] == "running"


def test_a_repeated_create_may_write_its_dates_and_order_its_keys_in_another_way(world: World) -> None:
    task_id = world.create(deadline="2026-11-22T08:00:00.123Z", payload={"a": 1, "b": {"c": 2, "d": 3}})
    again = {"deadline": "2026-11-22 09:00:00.123000+01:00", "payload": {"b": {"d": 3, "c": 2}, "a": 1}}
    world.create(task_id, **again)
    assert world.engine.task(task_id)["deadline"] == "2026-11-22T08:00:00.123Z"


@pytest.mark.parametrize(
    "change",
    [{"retries": 4}, {"routes": []}, {"priority": "high"}, {"payload": {}}, {"taskGroupId": slugid()}],
)
def test_another_definition_under_the_same_id_is_a_conflict(world: World, change: dict[str, Any]) -> None:
    task_id = world.create()
    assert refused(world, task_id, **change).code == "RequestConflict"


def test_a_changed_priority_counts_in_the_comparison(world: World) -> None:
    task_id = world.create()
    world.engine.change_task_priority(world.caller, task_id, {"newPriority": "high"})
    assert refused(world, task_id).code == "RequestConflict"
    world.create(task_id, priority="high")


def test_a_repeat_in_a_sealed_group_is_a_conflict(world: World) -> None:
    task_id = world.create()
    world.engine.seal_task_group(world.caller, task_id)
    assert refused(world, task_id).code == "RequestConflict"


def test_dependencies_must_exist_and_outlive_the_deadline(world: World) -> None:
    short = world.create(expires=world.now(2 * HOUR))
    missing = slugid()
    assert missing in refused(world, dependencies=[missing, short]).message
    assert short in refused(world, dependencies=[short], deadline=world.now(3 * HOUR)).message


def test_nothing_is_sent_at_the_deadline_of_a_task_that_was_refused_for_its_dependencies(
    world: World,
) -> None:
    refused(world, dependencies=[slugid()])
    world.clock.advance(3 * HOUR)
    assert world.sent() == []


def test_a_task_created_after_a_refusal_for_its_dependencies_is_resolved_at_its_own_deadline(
    world: World,
) -> None:
    task_id = slugid()
    refused(world, task_id, dependencies=[slugid()], deadline=world.now(HOUR))
    world.create(task_id, deadline=world.now(2 * HOUR))
    world.clock.advance(HOUR)
    assert world.status(task_id)["state"] == "pending"
    world.clock.advance(HOUR)
    assert world.status(task_id)["runs"][0]["reasonResolved"] == "deadline-exceeded"


def test_a_task_with_open_dependencies_is_unscheduled(world: World) -> None:
    required = world.create()
    world.sent()
    task_id = world.create(dependencies=[required])
    assert world.status(task_id)["state"] == "unscheduled"
    assert world.sent() == ["task-defined"]


def test_satisfied_dependencies_let_a_task_run_at_once(world: World) -> None:
    done = world.completed()
    failed = world.running()
    world.engine.report_failed(world.caller, failed, 0)
    assert world.status(world.create(dependencies=[done]))["state"] == "pending"
    assert world.status(world.create(dependencies=[done, failed]))["state"] == "unscheduled"
    assert world.status(world.create(dependencies=[failed], requires="all-resolved"))["state"] == "pending"


def test_a_task_that_depends_on_itself_waits(world: World) -> None:
    task_id = slugid()
    world.create(task_id, dependencies=[task_id])
    assert world.status(task_id)["state"] == "unscheduled"
    world.engine.schedule_task(world.caller, task_id)
    assert world.status(task_id)["state"] == "pending"


def test_keys_that_are_array_indices_come_first_and_in_numeric_order(world: World) -> None:
    keys = ["b", "10", "9", "aa", "01", "4294967295", "4294967294", "0", "-1"]
    task_id = world.create(payload={"nested": [dict.fromkeys(keys, 1)]})
    nested = world.engine.task(task_id)["payload"]["nested"][0]
    assert list(nested) == ["0", "9", "10", "4294967294", "b", "-1", "01", "aa", "4294967295"]
