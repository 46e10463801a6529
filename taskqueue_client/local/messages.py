"""Messages of the Queue, made from records of tasks and runs: exchanges, routing keys, CC routes, bodies.

The rules are those of Taskcluster's queue exchanges, version 1: a task message's routing key has ten
fields and a group message's four; a field without a value is `_`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskqueue_client.local.engine.task_records import Run, Task

_log = logging.getLogger(__name__)

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


def group_message(exchange: str, contents: Mapping[str, Any]) -> Message:
    """Return a message about a task group; `contents` has `taskGroupId`, `schedulerId` and the rest."""
    key = f"primary.{contents['taskGroupId']}.{contents['schedulerId']}._"
    return Message(EXCHANGE_PREFIX + exchange, key, [], {**contents, "version": 1})


class Audience:
    """The listeners that receive each message.

    Attributes:
        listeners: The receivers of messages. Without one, no messages are made.
        stores: Called with each message within the transaction that makes the change, to store it.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[Message], object]] = []
        self.stores: list[Callable[[Message], object]] = []

    def publish(self, message: Message) -> None:
        """Call all listeners with a message."""
        for listener in list(self.listeners):
            try:
                listener(message)
            except Exception:  # noqa: BLE001 - must not affect other listeners, or the caller of the API
                _log.exception("a subscriber failed to handle a message on %s", message.exchange)


def _task_message(
    exchange: str,
    task: Task,
    contents: Mapping[str, Any],
    run: Run | None = None,
    worker: tuple[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Message:
    """Return a message about a task, or about one of its runs.

    The routing key names `worker`, if given. `contents` are the members of the body besides `version` and
    `status`, which is by default the current one.
    """
    status = task.status() if status is None else status
    about = [task.task_id, "_" if run is None else str(run.run_id), *(worker or ("_", "_"))]
    return Message(
        EXCHANGE_PREFIX + exchange,
        ".".join(["primary", *about, *(status[name] for name in _TASK_FIELDS), "_"]),
        [f"route.{route}" for route in task.extract().routes],
        {"status": status, **contents, "version": 1},
    )


def defined(task: Task) -> Message:
    """Return the message about a new task, with its status before the first run."""
    before: dict[str, Any] = {"retriesLeft": task.retries, "state": "unscheduled", "runs": []}
    return _task_message("task-defined", task, _tags(task), status={**task.status(), **before})


def pending(task: Task, run: Run) -> Message:
    """Return the message about a run that waits for a worker."""
    return _task_message("task-pending", task, {**_tags(task), "runId": run.run_id}, run)


def running(task: Task, run: Run, taken_until: str) -> Message:
    """Return the message about a claimed run; `taken_until` is in the database's form."""
    contents = {"runId": run.run_id, **worker_of(run), "takenUntil": taken_until, **_tags(task)}
    return _task_message("task-running", task, contents, run, run.worker)


def resolved(task: Task, run: Run) -> Message:
    """Return the message about a run that is resolved."""
    contents = {"runId": run.run_id, **_tags(task), **worker_of(run)}
    return _task_message(f"task-{run.state}", task, contents, run, run.worker)


def missed_deadline(task: Task, run: Run) -> Message:
    """Return the message about a run that was resolved at the deadline; it does not name the worker."""
    return _task_message("task-exception", task, {"runId": run.run_id, **_tags(task)}, run)


def canceled_with_group(task: Task, run: Run) -> Message:
    """Return the message about a run that was canceled with its group; it has no priority and no tags."""
    status = task.status()
    del status["priority"]
    contents: dict[str, Any] = {"runId": run.run_id, "task": {"tags": {}}, **worker_of(run)}
    return _task_message("task-exception", task, contents, run, run.worker, status)


def priority_changed(task: Task, old_priority: str, new_priority: str) -> Message:
    """Return the message about a change of a task's priority."""
    contents = {"oldPriority": old_priority, "newPriority": new_priority}
    return _task_message("task-priority-changed", task, contents)


def artifact_created(task: Task, run: Run, artifact: dict[str, Any]) -> Message:
    """Return the message about a new artifact that can be read."""
    contents = {"artifact": artifact, **worker_of(run), "runId": run.run_id}
    return _task_message("artifact-created", task, contents, run, run.worker)


def _tags(task: Task) -> dict[str, Any]:
    return {"task": {"tags": task.extract().tags}}


def worker_of(run: Run) -> dict[str, str]:
    """Return the fields `workerGroup` and `workerId` of a run; none before a worker has claimed it."""
    worker = run.worker
    return {"workerGroup": worker[0], "workerId": worker[1]} if worker else {}
