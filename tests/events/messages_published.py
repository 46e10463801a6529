"""The messages that a Queue publishes, and a publisher that sends them as the Queue does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection
from pamqp.commands import Basic

from taskqueue_client.events import EXCHANGES, Event, TaskRoutingKey
from taskqueue_client.models.messages import TaskMessage
from taskqueue_client.slugid import slugid

NOW = "2026-11-21T10:13:18.865Z"
_STATE_OF = {
    "task-defined": "unscheduled",
    "task-pending": "pending",
    "task-completed": "completed",
    "task-failed": "failed",
    "task-exception": "exception",
}


def status(task_id: str, state: str, *, pool: str = "proj/linux", runs: int = 1) -> dict[str, Any]:
    """A task's status with `runs` runs, the last of which has this state."""
    provisioner_id, worker_type = pool.split("/")
    last = [] if state == "unscheduled" else [_run(runs - 1, state)]
    return {
        "taskId": task_id,
        "provisionerId": provisioner_id,
        "workerType": worker_type,
        "taskQueueId": pool,
        "schedulerId": "-",
        "projectId": "none",
        "taskGroupId": task_id,
        "priority": "lowest",
        "deadline": NOW,
        "expires": NOW,
        "retriesLeft": 5,
        "state": state,
        "runs": [_run(run_id, "exception") for run_id in range(runs - 1)] + last,
    }


def _run(run_id: int, state: str) -> dict[str, Any]:
    run = {"runId": run_id, "state": state, "reasonCreated": "scheduled", "scheduled": NOW}
    if state != "pending":
        run |= {"workerGroup": "wg", "workerId": "w1", "takenUntil": NOW, "started": NOW}
    if state in {"completed", "failed", "exception"}:
        run |= {"resolved": NOW, "reasonResolved": "canceled" if state == "exception" else state}
    return run


def body(exchange: str, task_id: str, *, pool: str = "proj/linux", runs: int = 1) -> dict[str, Any]:
    """The body of a message about a task (`running` in `task-running` and `artifact-created`)."""
    state = _STATE_OF.get(exchange, "running")
    message: dict[str, Any] = {"version": 1, "status": status(task_id, state, pool=pool, runs=runs)}
    if exchange != "task-defined":
        message["runId"] = runs - 1
    if exchange not in {"task-defined", "task-pending"}:
        message |= {"workerGroup": "wg", "workerId": "w1"}
    if exchange == "task-running":
        message["takenUntil"] = "2026-11-21T10:33:19.12+00:00"
    if exchange == "artifact-created":
        artifact = {"storageType": "link", "name": "public/a", "expires": NOW, "contentType": "text/plain"}
        return {**message, "artifact": artifact}
    return {**message, "task": {"tags": {"kind": "test"}}}


def key_of(message: dict[str, Any]) -> str:
    """The routing key of a message about a task."""
    about = message["status"]
    key = TaskRoutingKey(
        task_id=about["taskId"],
        run_id=message.get("runId"),
        worker_group=message.get("workerGroup"),
        worker_id=message.get("workerId"),
        provisioner_id=about["provisionerId"],
        worker_type=about["workerType"],
        scheduler_id=about["schedulerId"],
        task_group_id=about["taskGroupId"],
    )
    return str(key)


class Publisher:
    """Publishes as the Queue does: to durable topic exchanges, persistent, confirmed."""

    def __init__(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        self.connection = connection
        self.channel = channel

    @classmethod
    async def connect(cls, url: str) -> Publisher:
        connection = await aiormq.connect(url)
        channel = await connection.channel()
        for exchange in EXCHANGES:
            await channel.exchange_declare(exchange.full_name, exchange_type="topic", durable=True)
        return cls(connection, channel)

    async def publish(
        self,
        exchange: str,
        payload: dict[str, Any] | bytes,
        key: str | None = None,
        routes: Sequence[str] = (),
    ) -> None:
        """Send one message and wait until the broker has it."""
        if key is None:
            assert isinstance(payload, dict)
            key = key_of(payload)
        await self.channel.basic_publish(
            payload if isinstance(payload, bytes) else json.dumps(payload).encode(),
            exchange=f"exchange/taskcluster-queue/v1/{exchange}",
            routing_key=key,
            properties=Basic.Properties(
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                headers={"CC": [f"route.{route}" for route in routes]},
            ),
        )

    async def complete(self, task_ids: Iterable[str], pool: str) -> None:
        """Send a message about each completed task, in this order; wait until the broker has all messages."""
        sending = [
            self.publish("task-completed", body("task-completed", each, pool=pool)) for each in task_ids
        ]
        await asyncio.gather(*sending)

    async def close(self) -> None:
        await self.connection.close()


def task_ids(count: int) -> list[str]:
    return [slugid() for _ in range(count)]


def task_of(event: Event) -> str:
    """The task that a message is about."""
    assert isinstance(event.message, TaskMessage)
    return event.message.status.task_id
