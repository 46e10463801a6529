"""Creating a task is safe to repeat, also when the first response is lost."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import pytest

from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.definitions import TaskDefinition, task_definition
from taskqueue_client.errors import (
    Attempted,
    InsufficientScopes,
    InvalidDefinition,
    Refused,
    RequestConflict,
)
from tests.protocol.calls_contract import SLUGID

DEFINITION = task_definition("p/w", {"a": 1}, name="n", owner="o", source="https://example.com")
STORED: dict[str, Any] = {
    "provisionerId": "p",
    "workerType": "w",
    "schedulerId": "-",
    "projectId": "none",
    "taskGroupId": SLUGID,
    "dependencies": [],
    "requires": "all-completed",
    "routes": [],
    "priority": "lowest",
    "retries": 5,
    "scopes": [],
    "tags": {},
    "extra": {},
    **DEFINITION,
}


def conflict(*, outcome_unknown: bool) -> RequestConflict:
    attempted = Attempted("createTask", "PUT", "https://tc.example.com", 2, 1.0, outcome_unknown)
    return RequestConflict(attempted, Refused(409, "RequestConflict"))


def after_conflict(*, outcome_unknown: bool) -> tuple[Generator[Call[Any], Any, object], Call[Any]]:
    """Return the conversation, and its next step after a conflict."""
    steps = calls.create_task(SLUGID, DEFINITION)
    assert next(steps).endpoint == "createTask"
    return steps, steps.throw(conflict(outcome_unknown=outcome_unknown))


def test_the_definition_is_sent_as_it_was_given() -> None:
    assert next(calls.create_task(SLUGID, DEFINITION)).body is DEFINITION


def test_the_definition_is_checked_by_the_queues_time_before_it_is_sent() -> None:
    faulty: TaskDefinition = {**DEFINITION, "retries": 50}
    check = next(calls.create_task(SLUGID, faulty)).check
    assert check is not None
    with pytest.raises(InvalidDefinition, match=r"\$\.retries"):
        check(math.nan)


def test_a_conflict_at_the_first_attempt_is_an_error() -> None:
    with pytest.raises(RequestConflict):
        after_conflict(outcome_unknown=False)


def test_after_a_lost_response_an_equal_stored_definition_is_success() -> None:
    steps, call = after_conflict(outcome_unknown=True)
    assert call == calls.task(SLUGID)
    assert steps.send(STORED) == calls.status(SLUGID)
    with pytest.raises(StopIteration) as done:
        steps.send("the status")
    assert done.value.value == "the status"


def test_after_a_lost_response_another_stored_definition_is_a_conflict() -> None:
    steps, _ = after_conflict(outcome_unknown=True)
    with pytest.raises(RequestConflict):
        steps.send({**STORED, "payload": {"a": 2}})


def test_where_the_stored_definition_cannot_be_read_it_is_a_conflict_and_says_why() -> None:
    steps, call = after_conflict(outcome_unknown=True)
    refused = InsufficientScopes(Attempted(call.endpoint, call.method, ""), Refused(403))
    with pytest.raises(RequestConflict) as raised:
        steps.throw(refused)
    assert raised.value.__cause__ is refused
