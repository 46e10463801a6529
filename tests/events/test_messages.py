"""Messages of both generations become structs, and unreadable ones an `UnreadableMessage`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskqueue_client import events
from taskqueue_client.events import EXCHANGES, Event, GroupRoutingKey, TaskRoutingKey, UnreadableMessage
from taskqueue_client.events.event import read_event
from taskqueue_client.models import TaskState
from taskqueue_client.models.messages import (
    ArtifactCreatedMessage,
    TaskExceptionMessage,
    TaskGroupPriorityChangedMessage,
    TaskGroupResolvedMessage,
    TaskMessage,
    TaskPriorityChangedMessage,
    TaskRunningMessage,
)
from tests.events.messages_published import body, key_of

BY_NAME = {exchange.name: exchange for exchange in EXCHANGES}
TASK = "Nb8VUDCcTNS02ceVc6xVCg"


def read(exchange: str, payload: dict[str, Any] | bytes, key: str, **headers: Any) -> Event:
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return read_event(f"exchange/taskcluster-queue/v1/{exchange}", key, raw, headers, redelivered=False)


def recorded(contract: Path) -> dict[str, dict[str, Any]]:
    files = (contract / "recorded").glob("exchange.*.json")
    return {file.name: json.loads(file.read_text()) for file in files}


def test_every_recorded_message_is_read_without_loss(contract: Path) -> None:
    examples = recorded(contract)
    assert len(examples) == 13
    for name, example in examples.items():
        event = read_event(
            example["exchange"],
            example["routingKey"],
            json.dumps(example["body"]).encode(),
            example["headers"],
            redelivered=False,
        )
        assert isinstance(event.message, BY_NAME[event.exchange].message_type), name
        assert event.routing_key is not None, name
        assert str(event.routing_key) == example["routingKey"], name
        assert [f"route.{route}" for route in event.routes] == example["headers"]["CC"], name
        assert _without_absent(msgspec.to_builtins(event.message)) == _times_in_utc(example["body"]), name


def _without_absent(value: Any) -> Any:
    """Return a plain value without the keys that are None, which were absent from the message."""
    if isinstance(value, dict):
        return {key: _without_absent(each) for key, each in value.items() if each is not None}  # pyright: ignore[reportUnknownVariableType] # JSON
    return [_without_absent(each) for each in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType] # JSON


def _times_in_utc(message: dict[str, Any]) -> Any:
    """The message with its times as msgspec writes them."""

    def written(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: written(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType] # JSON
        if isinstance(value, list):
            return [written(each) for each in value]  # pyright: ignore[reportUnknownVariableType] # JSON
        try:
            return msgspec.to_builtins(datetime.fromisoformat(value))
        except (TypeError, ValueError):
            return value

    return written(message)


@pytest.mark.parametrize(
    "exchange",
    [
        "task-defined",
        "task-pending",
        "task-running",
        "artifact-created",
        "task-completed",
        "task-failed",
        "task-exception",
    ],
)
def test_messages_of_older_queues_are_read(exchange: str) -> None:
    message = body(exchange, TASK)
    for key in ("taskQueueId", "projectId", "priority"):
        del message["status"][key]
    message.pop("task", None)
    event = read(exchange, message, key_of(message))
    assert isinstance(event.message, TaskMessage)
    assert event.message.task is None
    assert event.message.status.priority is None
    assert event.message.status.task_queue_id == "proj/linux"


def test_a_resolved_group_of_an_older_queue_has_only_its_identifiers() -> None:
    message = {"version": 1, "taskGroupId": TASK, "schedulerId": "s"}
    event = read("task-group-resolved", message, f"primary.{TASK}.s._")
    assert event.message == TaskGroupResolvedMessage(task_group_id=TASK, scheduler_id="s")
    assert event.routing_key == GroupRoutingKey(task_group_id=TASK, scheduler_id="s")


def test_an_exception_of_an_older_queue_for_a_task_that_never_ran_has_no_run() -> None:
    message = body("task-exception", TASK)
    for key in ("runId", "workerGroup", "workerId"):
        del message[key]
    message["status"]["runs"] = []
    event = read("task-exception", message, f"primary.{TASK}._._._.proj.linux.-.{TASK}._")
    assert isinstance(event.message, TaskExceptionMessage)
    assert (event.message.run_id, event.message.worker_id) == (None, None)


def test_an_artifact_of_a_removed_storage_type_is_read() -> None:
    message = body("artifact-created", TASK)
    message["artifact"]["storageType"] = "blob"
    event = read("artifact-created", message, key_of(message))
    assert isinstance(event.message, ArtifactCreatedMessage)
    assert event.message.artifact.storage_type == "blob"


def test_a_time_with_an_offset_is_read() -> None:
    message = body("task-running", TASK)
    event = read("task-running", message, key_of(message))
    assert isinstance(event.message, TaskRunningMessage)
    assert event.message.taken_until == datetime(2026, 11, 21, 10, 33, 19, 120_000, UTC)


def test_unknown_fields_of_newer_queues_are_ignored() -> None:
    message = body("task-completed", TASK) | {"news": {"of": "tomorrow"}}
    message["status"] |= {"more": 1, "state": "hibernating"}
    event = read("task-completed", message, key_of(message).removesuffix("_") + "more.words")
    assert isinstance(event.message, TaskMessage)
    assert event.message.status.state == "hibernating"
    assert isinstance(event.routing_key, TaskRoutingKey)
    assert event.routing_key.reserved == "more.words"


def test_priorities_are_read_with_their_names() -> None:
    message = {"version": 1, "status": body("task-pending", TASK)["status"]}
    changed = read(
        "task-priority-changed", message | {"oldPriority": "low", "newPriority": "high"}, key_of(message)
    ).message
    assert isinstance(changed, TaskPriorityChangedMessage)
    assert (changed.old_priority, changed.new_priority) == ("low", "high")
    group = {"version": 1, "taskGroupId": TASK, "schedulerId": "s", "newPriority": "high", "tasksAffected": 4}
    of_group = read("task-group-priority-changed", group, f"primary.{TASK}.s._").message
    assert isinstance(of_group, TaskGroupPriorityChangedMessage)
    assert of_group.tasks_affected == 4


def test_a_retried_run_does_not_read_as_a_resolved_task(contract: Path) -> None:
    example = recorded(contract)["exchange.task-exception.retried.json"]
    event = read("task-exception", example["body"], example["routingKey"])
    assert isinstance(event.message, TaskExceptionMessage)
    assert event.message.run_id == 0
    assert event.message.status.state is TaskState.PENDING


@pytest.mark.parametrize(
    "raw",
    [b"", b"not json", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 100_000, b'{"version": 1, "status": 7}'],
)
def test_an_unreadable_body_is_an_unreadable_message_with_the_reason(raw: bytes) -> None:
    key = key_of(body("task-completed", TASK))
    event = read("task-completed", raw, key, CC=["route.a"])
    assert isinstance(event.message, UnreadableMessage)
    assert (event.message.body, event.message.routing_key) == (raw, key)
    assert event.message.reason
    assert event.exchange == "task-completed"


def test_an_unreadable_routing_key_is_an_unreadable_message_with_the_reason() -> None:
    event = read("task-completed", body("task-completed", TASK), "primary.too.short")
    assert isinstance(event.message, UnreadableMessage)
    assert "routing_key: 'primary.too.short'" in event.message.reason


def test_a_message_of_another_exchange_is_an_unreadable_message() -> None:
    event = read_event("exchange/somebody/x", "k", b"{}", {}, redelivered=False)
    assert event == Event(
        "exchange/somebody/x", UnreadableMessage("the exchange is not one of the Queue's", b"{}", "k"), None
    )


@pytest.mark.parametrize(
    ("headers", "redelivered", "redeliveries"),
    [({}, False, 0), ({}, True, 1), ({"x-delivery-count": 0}, False, 0), ({"x-delivery-count": 3}, True, 3)],
)
def test_redeliveries_are_counted_as_far_as_the_type_of_queue_allows(
    headers: dict[str, Any], *, redelivered: bool, redeliveries: int
) -> None:
    message = body("task-pending", TASK)
    event = read_event(
        events.task_pending.full_name,
        key_of(message),
        json.dumps(message).encode(),
        headers,
        redelivered=redelivered,
    )
    assert event.redeliveries == redeliveries


def test_routes_of_an_event_are_without_their_prefix() -> None:
    message = body("task-pending", TASK)
    event = read("task-pending", message, key_of(message), CC=["route.index.a", "other", 5])
    assert event.routes == ("index.a",)


def test_unrelated_headers_are_ignored() -> None:
    message = body("task-pending", TASK)
    event = read("task-pending", message, key_of(message), CC=5, **{"x-delivery-count": "many"})
    assert (event.routes, event.redeliveries) == ((), 0)


def test_an_event_s_text_names_its_exchange_and_key() -> None:
    message = body("task-pending", TASK)
    assert str(read("task-pending", message, key_of(message))) == f"task-pending {key_of(message)}"
    assert str(read("task-pending", b"\xff", "odd.key")) == "task-pending odd.key"
