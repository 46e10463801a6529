"""Messages consumed and acknowledged per second: typed by an `AsyncListener`, and bare by aio-pika.

Both read the same number of messages of the same kind, with the same prefetch, from a queue that ends
with its connection, in turns. RabbitMQ is at `PULSE_URL` or on this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import aio_pika
import aiormq
from pamqp.commands import Basic

from benchmarks.measure import ROUNDS, Row, at_most
from taskqueue_client import events
from taskqueue_client.models.messages import TaskCompletedMessage
from taskqueue_client.slugid import slugid

URL = os.environ.get("PULSE_URL", "amqp://guest:guest@127.0.0.1:5672/")
PREFETCH = 200
MESSAGES = 5_000
AT_ONCE = 1_000
EXCHANGE = events.task_completed.full_name
NOW = "2026-11-21T10:13:18.865Z"


def message(worker_type: str) -> tuple[str, bytes]:
    """Return a routing key and a body as the Queue sends them for a task with one run."""
    task_id = slugid()
    run = {
        "runId": 0,
        "state": "completed",
        "reasonCreated": "scheduled",
        "reasonResolved": "completed",
        "workerGroup": "group",
        "workerId": "worker",
        "takenUntil": NOW,
        "scheduled": NOW,
        "started": NOW,
        "resolved": NOW,
    }
    status = {
        "taskId": task_id,
        "provisionerId": "benchmark",
        "workerType": worker_type,
        "taskQueueId": f"benchmark/{worker_type}",
        "schedulerId": "-",
        "projectId": "none",
        "taskGroupId": task_id,
        "priority": "lowest",
        "deadline": NOW,
        "expires": NOW,
        "retriesLeft": 5,
        "state": "completed",
        "runs": [run],
    }
    body = {
        "version": 1,
        "status": status,
        "runId": 0,
        "workerGroup": "group",
        "workerId": "worker",
        "task": {"tags": {"kind": "benchmark"}},
    }
    key = f"primary.{task_id}.0.group.worker.benchmark.{worker_type}.-.{task_id}._"
    return key, json.dumps(body).encode()


async def publish(worker_type: str, count: int) -> None:
    connection = await aiormq.connect(URL)
    channel = await connection.channel()
    await channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
    for start in range(0, count, AT_ONCE):
        sending = [
            channel.basic_publish(
                body,
                exchange=EXCHANGE,
                routing_key=key,
                properties=Basic.Properties(
                    content_type="application/json",
                    content_encoding="utf-8",
                    delivery_mode=2,
                    headers={"CC": []},
                ),
            )
            for key, body in (message(worker_type) for _ in range(min(AT_ONCE, count - start)))
        ]
        await asyncio.gather(*sending)
    await connection.close()


async def with_listener(worker_type: str, fill: Callable[[], Awaitable[None]], count: int) -> float:
    """Seconds from the first message to the last acknowledgement."""
    settings = events.PulseSettings.from_url(URL)
    bindings = [events.task_completed(task_queue_id=f"benchmark/{worker_type}")]
    async with events.AsyncListener(settings, bindings, prefetch=PREFETCH) as listener:
        await fill()
        began = time.perf_counter()
        for _ in range(count):
            event = await anext(listener)
            assert isinstance(event.message, TaskCompletedMessage)
    return time.perf_counter() - began


async def with_aio_pika(worker_type: str, fill: Callable[[], Awaitable[None]], count: int) -> float:
    """Seconds from the first message to the last acknowledgement."""
    async with await aio_pika.connect(URL) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(exclusive=True, auto_delete=True)
        await queue.bind(EXCHANGE, f"primary.*.*.*.*.benchmark.{worker_type}.*.*.#")
        async with queue.iterator() as iterator:
            await fill()
            began = time.perf_counter()
            for _ in range(count):
                delivered = await anext(iterator)
                body = json.loads(delivered.body)
                assert body["status"]["state"] == "completed"
                await delivered.ack()
            await channel.close()
        return time.perf_counter() - began


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def compare() -> float:
    """Return the listener's time as a multiple of aio-pika's."""
    await publish("none", 0)  # declares the exchange
    ratios: list[float] = []
    for _ in range(ROUNDS):
        took = [
            await way(kind := f"w{slugid()}", partial(publish, kind, MESSAGES), MESSAGES) for way in _WAYS
        ]
        ratios.append(took[0] / took[1])
    return statistics.median(ratios)


_WAYS = (with_listener, with_aio_pika)


async def memory() -> float:
    """Return how many MB the process grew from the 2nd to the 10th batch of messages of one listener."""
    settings = events.PulseSettings.from_url(URL)
    worker_type = f"w{slugid()}"
    bindings = [events.task_completed(task_queue_id=f"benchmark/{worker_type}")]
    sizes: list[int] = []
    async with events.AsyncListener(
        settings, bindings, prefetch=PREFETCH, duplicates=events.DuplicateFilter(1_000)
    ) as listener:
        for _ in range(10):
            await publish(worker_type, MESSAGES)
            for _ in range(MESSAGES):
                await anext(listener)
            sizes.append(resident())
    return (sizes[-1] - sizes[1]) / 1e6


def rows() -> Iterator[Row]:
    yield at_most("messages consumed, typed, time", "aio-pika and json", asyncio.run(compare()), 1.2)
    yield at_most(f"memory after {8 * MESSAGES} more messages, MB more", "", asyncio.run(memory()), 5)
