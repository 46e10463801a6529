"""Calling an exchange returns a binding."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from taskqueue_client import events
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import Binding, GroupExchange, TaskExchange
from taskqueue_client.models.messages import TaskGroupMessage, TaskMessage

TASK = "Y9IplizWTj-eOJfHEC71Rw"
PREFIX = "exchange/taskcluster-queue/v1/"


class Pool(str, Enum):  # noqa: UP042 - `str` of a StrEnum's member is its value, so that nothing can go wrong
    LINUX = "linux"
    ROUTE = "index.linux.#"


@pytest.mark.parametrize(
    ("exchange", "name"),
    [
        (events.task_defined, "task-defined"),
        (events.task_pending, "task-pending"),
        (events.task_running, "task-running"),
        (events.artifact_created, "artifact-created"),
        (events.task_completed, "task-completed"),
        (events.task_failed, "task-failed"),
        (events.task_exception, "task-exception"),
        (events.task_priority_changed, "task-priority-changed"),
    ],
)
def test_a_binding_to_a_task_exchange_matches_the_given_fields_and_any_other_value(
    exchange: TaskExchange[TaskMessage], name: str
) -> None:
    assert exchange() == Binding(PREFIX + name, "primary.*.*.*.*.*.*.*.*.#")
    assert exchange(task_id=TASK).routing_key_pattern == f"primary.{TASK}.*.*.*.*.*.*.*.#"
    assert exchange(run_id=0).routing_key_pattern == "primary.*.0.*.*.*.*.*.*.#"
    assert exchange(worker_group="g", worker_id="w").routing_key_pattern == "primary.*.*.g.w.*.*.*.*.#"
    assert exchange(task_queue_id="proj/linux").routing_key_pattern == "primary.*.*.*.*.proj.linux.*.*.#"
    assert exchange(provisioner_id="proj").routing_key_pattern == "primary.*.*.*.*.proj.*.*.*.#"
    assert exchange(worker_type="linux").routing_key_pattern == "primary.*.*.*.*.*.linux.*.*.#"
    assert exchange(scheduler_id="-").routing_key_pattern == "primary.*.*.*.*.*.*.-.*.#"
    assert exchange(task_group_id=TASK).routing_key_pattern == f"primary.*.*.*.*.*.*.*.{TASK}.#"
    assert exchange(worker_type=Pool.LINUX).routing_key_pattern == "primary.*.*.*.*.*.linux.*.*.#"


@pytest.mark.parametrize(
    ("exchange", "name"),
    [
        (events.task_group_resolved, "task-group-resolved"),
        (events.task_group_sealed, "task-group-sealed"),
        (events.task_group_priority_changed, "task-group-priority-changed"),
    ],
)
def test_a_binding_to_a_group_exchange_matches_the_given_fields_and_any_other_value(
    exchange: GroupExchange[TaskGroupMessage], name: str
) -> None:
    assert exchange() == Binding(PREFIX + name, "primary.*.*.#")
    assert exchange(task_group_id=TASK, scheduler_id="s").routing_key_pattern == f"primary.{TASK}.s.#"


@pytest.mark.parametrize("value", ["a.b", "", "#", "*", "a*", "a b", "a/b", b"x", "x" * 39, True, 5])
def test_an_invalid_field_of_a_binding_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="worker_group: "):
        events.task_running(worker_group=value)


@pytest.mark.parametrize("task_queue_id", ["linux", "/linux", "proj/", "", "proj/linux/x", ("a", "b")])
def test_a_task_queue_id_has_two_parts(task_queue_id: Any) -> None:
    with pytest.raises(InvalidArgument, match="task_queue_id: "):
        events.task_pending(task_queue_id=task_queue_id)


def test_a_task_queue_id_together_with_its_parts_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="given together with provisioner_id or worker_type"):
        events.task_pending(task_queue_id="proj/linux", worker_type="linux")


def test_for_route_binds_to_all_task_exchanges() -> None:
    bindings = events.for_route("index.my.thing.#")
    assert [each.exchange for each in bindings] == [each.full_name for each in events.TASK_EXCHANGES]
    assert {each.routing_key_pattern for each in bindings} == {"route.index.my.thing.#"}


def test_for_route_binds_to_the_value_of_a_member_of_an_enumeration() -> None:
    assert {each.routing_key_pattern for each in events.for_route(Pool.ROUTE)} == {"route.index.linux.#"}


def test_a_queue_has_the_name_that_is_the_value_of_a_member_of_an_enumeration() -> None:
    settings = events.PulseSettings(host="localhost", user="worker", password="secret")
    listener = events.AsyncListener(settings, [events.task_completed()], queue=Pool.LINUX)
    assert listener.queue == "queue/worker/linux"


def test_for_route_binds_to_the_given_exchanges_only() -> None:
    (binding,) = events.for_route("a", [events.task_completed])
    assert binding == Binding(PREFIX + "task-completed", "route.a")


@pytest.mark.parametrize("route", ["", "a..b", ".a", "x" * 250, "\ud800", ["a"], None])
def test_an_invalid_route_is_refused(route: Any) -> None:
    with pytest.raises(InvalidArgument, match="route: "):
        events.for_route(route)


def test_a_route_with_the_prefix_of_its_routing_key_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"without the prefix 'route\.'"):
        events.for_route("route.index.my.thing")


def test_for_task_binds_to_all_task_exchanges() -> None:
    bindings = events.for_task(TASK)
    assert len(bindings) == 8
    assert {each.routing_key_pattern for each in bindings} == {f"primary.{TASK}.*.*.*.*.*.*.*.#"}


def test_for_group_binds_to_all_exchanges() -> None:
    bindings = events.for_group(TASK)
    assert [each.exchange for each in bindings] == [each.full_name for each in events.EXCHANGES]
    assert {each.routing_key_pattern for each in bindings} == {
        f"primary.*.*.*.*.*.*.*.{TASK}.#",
        f"primary.{TASK}.*.#",
    }


@pytest.mark.parametrize("given", ["t", "", None, 5, "x" * 22, ["Y9IplizWTj-eOJfHEC71Rw"]])
def test_an_id_that_no_task_or_group_has_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"task_id: .* expected a slugid of 22 characters"):
        events.for_task(given)
    with pytest.raises(InvalidArgument, match=r"task_group_id: .* expected a slugid of 22 characters"):
        events.for_group(given)


@pytest.mark.parametrize("given", ["t", "", 5, "x" * 22])
def test_a_binding_to_an_id_that_no_task_or_group_has_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"task_id: .* expected a slugid of 22 characters"):
        events.task_completed(task_id=given)
    with pytest.raises(InvalidArgument, match=r"task_group_id: .* expected a slugid of 22 characters"):
        events.task_completed(task_group_id=given)
    with pytest.raises(InvalidArgument, match=r"task_group_id: .* expected a slugid of 22 characters"):
        events.task_group_resolved(task_group_id=given)


@pytest.mark.parametrize("given", [-1, True, "0", "last", 1000])
def test_a_binding_to_a_run_that_no_task_has_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"run_id: .* expected a whole number, 0 to 999"):
        events.task_completed(run_id=given)
