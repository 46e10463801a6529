"""Each transition of the local queue arrives over RabbitMQ, as the contract has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import msgspec
import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.definitions import from_now, task_definition
from taskqueue_client.events import EXCHANGES, AsyncListener, Event, PulseSettings, State, for_group, for_task
from taskqueue_client.events import wait_for_task as wait
from taskqueue_client.local import LocalQueue
from taskqueue_client.models import TaskState
from taskqueue_client.testing import event_of
from tests.local.contract_schemas import violations

WORKER: Any = {"worker_group": "wg", "worker_id": "w1"}
SCHEMAS = {"task-group-resolved": "task-group-changed", "task-group-sealed": "task-group-changed"}


@pytest.fixture
def queue(local: LocalQueue) -> Iterator[Queue]:
    with Queue(local.root_url, local.credentials) as queue:
        yield queue


def definition(**keys: Any) -> Any:
    return task_definition("prov/wt", {}, name="n", owner="o", source="https://example.com", **keys)


def live_eventful_lives(queue: Queue, ids: list[str], group: str) -> None:
    """Let four tasks go through every transition."""
    completed, failed, retried, canceled = ids
    for task_id in ids:
        queue.create_task(task_id, definition(taskGroupId=group, routes=["my.route"], tags={"a": "b"}))
    queue.change_task_priority(canceled, "high")
    queue.cancel_task(canceled)
    claims = {each.status.task_id: each for each in queue.claim_work("prov/wt", **WORKER, tasks=4).tasks}
    as_run = {task_id: queue.with_credentials(claims[task_id].credentials) for task_id in claims}
    as_run[completed].create_reference_artifact(
        completed, 0, "public/x", "http://x/", content_type="text/plain", expires=from_now("1 hour")
    )
    as_run[completed].report_completed(completed, 0)
    as_run[failed].report_failed(failed, 0)
    as_run[retried].report_exception(retried, 0, "worker-shutdown")
    queue.change_task_group_priority(group, "low")
    queue.seal_task_group(group)
    queue.cancel_task_group(group)


async def collect(listener: AsyncListener) -> list[Event]:
    """Return all events until the group is resolved, after its last task was canceled."""
    seen: list[Event] = []
    async for event in listener:
        seen.append(event)
        if event.exchange == "task-group-resolved":
            return seen
    return seen


async def test_messages_of_all_eleven_exchanges_are_received_as_typed_events(
    queue: Queue, settings: PulseSettings
) -> None:
    ids, group = [slugid() for _ in range(4)], slugid()
    bindings = [*for_group(group), *(binding for task_id in ids for binding in for_task(task_id))]
    async with AsyncListener(settings, bindings) as listener:
        assert listener.state is State.LISTENING
        live_eventful_lives(queue, ids, group)
        seen = await collect(listener)
    assert {event.exchange for event in seen} == {exchange.name for exchange in EXCHANGES}
    of_one = [event.exchange for event in seen if getattr(event.routing_key, "task_id", "") == ids[2]]
    assert of_one == [
        "task-defined",
        "task-pending",
        "task-running",
        "task-exception",
        "task-pending",
        "task-exception",
    ]
    assert all(event.routes == ("my.route",) for event in seen if not event.exchange.startswith("task-group"))


async def test_a_test_makes_the_events_of_a_listener_without_a_broker(
    local: LocalQueue, queue: Queue, settings: PulseSettings
) -> None:
    ids, group, made = [slugid() for _ in range(4)], slugid(), list[Event]()
    bindings = [*for_group(group), *(binding for task_id in ids for binding in for_task(task_id))]
    local.subscribe(lambda message: made.append(event_of(message)))
    async with AsyncListener(settings, bindings) as listener:
        live_eventful_lives(queue, ids, group)
        received = await collect(listener)
    assert made == received


async def test_bodies_and_properties_of_published_messages_are_those_of_the_service(
    queue: Queue, broker_url: str, contract: Path
) -> None:
    ids, group = [slugid() for _ in range(4)], slugid()
    connection = await aio_pika.connect(broker_url)
    async with connection:
        channel = await connection.channel()
        received = await channel.declare_queue(exclusive=True)
        for exchange in EXCHANGES:
            await channel.declare_exchange(exchange.full_name, "topic", durable=True)
            for pattern in (f"primary.{group}.#", *(f"primary.{task_id}.#" for task_id in ids)):
                await received.bind(exchange.full_name, pattern)
        live_eventful_lives(queue, ids, group)
        async with received.iterator() as messages:
            async for message in messages:
                name = (message.exchange or "").rpartition("/")[2]
                schema = f"queue/v1/{SCHEMAS.get(name, name)}-message"
                assert violations(contract, schema, msgspec.json.decode(message.body)) == [], name
                assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
                assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
                fields = (message.routing_key or "").split(".")
                assert len(fields) == (4 if name.startswith("task-group") else 10)
                await message.ack()
                if name == "task-group-resolved":
                    return


async def test_waiting_for_a_task_uses_its_messages(queue: Queue, settings: PulseSettings) -> None:
    task_id = slugid()
    queue.create_task(task_id, definition())
    async with AsyncListener(settings, for_task(task_id)) as listener:
        (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
        queue.with_credentials(claim.credentials).report_completed(task_id, 0)
        async for event in listener:
            if event.exchange == "task-completed":
                break
    assert wait(queue, task_id, timeout=10).state is TaskState.COMPLETED
