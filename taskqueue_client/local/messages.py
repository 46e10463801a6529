"""Messages of the Queue: exchanges, routing keys, CC routes and bodies.

The rules are those of Taskcluster's queue exchanges, version 1: a task message's routing key has ten
fields and a group message's four; a field without a value is `_`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXCHANGE_PREFIX = "exchange/taskcluster-queue/v1/"
EXCHANGES = (
    "task-defined",
    "task-pending",
    "task-running",
    "artifact-created",
    "task-completed",
    "task-failed",
    "task-exception",
    "task-group-resolved",
    "task-group-sealed",
    "task-priority-changed",
    "task-group-priority-changed",
)
"""The exchanges' names, without the prefix."""

_TASK_FIELDS = ("provisionerId", "workerType", "schedulerId", "taskGroupId")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, ready to be published.

    Attributes:
        exchange: Full name of the topic exchange.
        routing_key: The primary routing key.
        cc: Further routing keys, for the AMQP header `CC`.
        body: JSON object.
    """

    exchange: str
    routing_key: str
    cc: list[str]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunKey:
    """The part of a task message's routing key that says which run it is about.

    Attributes:
        run_id: None where the message is about the task as a whole.
        worker: Worker group and worker id; None where the run has no worker.
    """

    run_id: int | None = None
    worker: tuple[str, str] | None = field(default=None)

    def __str__(self) -> str:
        run_id = "_" if self.run_id is None else self.run_id
        return ".".join([str(run_id), *(self.worker or ("_", "_"))])


def task_message(
    exchange: str, status: Mapping[str, Any], routes: Sequence[str], key: RunKey, contents: Mapping[str, Any]
) -> Message:
    """A message about a task or one of its runs.

    Args:
        exchange: Name without prefix.
        status: The task's status, as the body shall have it.
        routes: The task's `routes`.
        key: Which run.
        contents: What the body holds beside `status` and `version`.
    """
    queue_and_group = ".".join([status[name] for name in _TASK_FIELDS])
    return Message(
        EXCHANGE_PREFIX + exchange,
        f"primary.{status['taskId']}.{key}.{queue_and_group}._",
        [f"route.{route}" for route in routes],
        {"status": status, **contents, "version": 1},
    )


def group_message(exchange: str, contents: Mapping[str, Any]) -> Message:
    """A message about a task group: `contents` holds `taskGroupId`, `schedulerId` and the rest."""
    key = f"primary.{contents['taskGroupId']}.{contents['schedulerId']}._"
    return Message(EXCHANGE_PREFIX + exchange, key, [], {**contents, "version": 1})
