"""The messages that count as duplicates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import DuplicateFilter, Event
from taskqueue_client.events.event import read_event
from tests.events.messages_published import body, key_of, task_ids

TASK, OTHER = "Nb8VUDCcTNS02ceVc6xVCg", "RJNzkKJ0RN6jGO5atasFDA"


def event(exchange: str, message: dict[str, Any], key: str | None = None) -> Event:
    full_name = f"exchange/taskcluster-queue/v1/{exchange}"
    return read_event(full_name, key or key_of(message), json.dumps(message).encode(), {}, redelivered=False)


@pytest.fixture
def knows_a_completed_task() -> DuplicateFilter:
    known = DuplicateFilter()
    known.remember(event("task-completed", body("task-completed", TASK)))
    return known


def test_a_message_with_the_same_exchange_task_run_and_state_is_a_duplicate(
    knows_a_completed_task: DuplicateFilter,
) -> None:
    again = body("task-completed", TASK) | {"task": {"tags": {"another": "body"}}}
    assert knows_a_completed_task.knows(event("task-completed", again))


@pytest.mark.parametrize(
    ("exchange", "task_id", "runs"),
    [("task-failed", TASK, 1), ("task-completed", OTHER, 1), ("task-completed", TASK, 2)],
)
def test_a_message_with_another_exchange_task_or_run_is_not_a_duplicate(
    knows_a_completed_task: DuplicateFilter, exchange: str, task_id: str, runs: int
) -> None:
    assert not knows_a_completed_task.knows(event(exchange, body(exchange, task_id, runs=runs)))


def test_exceptions_of_a_retried_run_and_of_the_resolved_task_are_not_duplicates() -> None:
    known = DuplicateFilter()
    retried = body("task-exception", TASK)
    retried["status"]["state"] = "pending"
    known.remember(event("task-exception", retried))
    assert not known.knows(event("task-exception", body("task-exception", TASK)))


def test_messages_about_different_artifacts_of_a_run_are_not_duplicates() -> None:
    known = DuplicateFilter()
    first, second = body("artifact-created", TASK), body("artifact-created", TASK)
    second["artifact"]["name"] = "public/b"
    known.remember(event("artifact-created", first))
    assert known.knows(event("artifact-created", first))
    assert not known.knows(event("artifact-created", second))


def test_messages_about_repeatable_changes_are_never_duplicates() -> None:
    known = DuplicateFilter()
    priority = {
        "version": 1,
        "status": body("task-pending", TASK)["status"],
        "oldPriority": "low",
        "newPriority": "high",
    }
    group = {"version": 1, "taskGroupId": TASK, "schedulerId": "-"}
    for one in (
        event("task-priority-changed", priority),
        event("task-group-resolved", group, f"primary.{TASK}.-._"),
        event("task-completed", {}, "primary.unreadable"),
    ):
        known.remember(one)
        assert not known.knows(one)


def test_a_full_duplicate_filter_drops_its_oldest_entry() -> None:
    known = DuplicateFilter(size=2)
    three = [event("task-completed", body("task-completed", each)) for each in task_ids(3)]
    for one in (three[0], three[1], three[0], three[2]):
        known.remember(one)
    assert [known.knows(one) for one in three] == [True, False, True]


def test_a_filter_that_could_remember_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="size: 0 is not valid; expected a whole number, 1 or more"):
        DuplicateFilter(size=0)
