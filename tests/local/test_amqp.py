"""Messages to RabbitMQ: a real broker, and a connection to it that a test can cut."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import queue as queue_module
import sqlite3
import subprocess
import traceback
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aio_pika
import pytest
from yarl import URL

from taskqueue_client import Queue, slugid
from taskqueue_client._protocol import threads_and_tasks
from taskqueue_client.definitions import task_definition
from taskqueue_client.local import LocalQueue, amqp
from taskqueue_client.local.amqp import AmqpPublisher, Outbox, WorkerRemovals
from taskqueue_client.local.endpoints import camel_case
from taskqueue_client.local.engine import Store
from taskqueue_client.local.messages import EXCHANGE_PREFIX, EXCHANGES, Message
from tests.broker import BROKER, require_broker
from tests.cli.command import COMMAND

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
    from aiormq.abc import DeliveredMessage

DEFINED = EXCHANGE_PREFIX + "task-defined"
EXCHANGE_DECLARE = bytes([0, 40, 0, 10])
QUEUE_DECLARE = bytes([0, 50, 0, 10])
CONSUME_OK = bytes([0, 60, 0, 21])
"""The class and the method of `Basic.ConsumeOk`, as at the beginning of an AMQP frame."""


@pytest.fixture(autouse=True)
def broker() -> None:
    require_broker()


class Publisher(AmqpPublisher):
    """A publisher with its own outbox."""

    def __init__(self, url: str) -> None:
        self._store = Store(":memory:")
        try:
            super().__init__(url, Outbox(self._store))
        except ValueError:
            self._store.close()
            raise

    async def __aexit__(self, *raised: object) -> None:
        await super().__aexit__(*raised)
        self._store.close()

    def publish(self, message: Message) -> None:
        self.store(message)
        self.send_soon()


class Line:
    """A TCP line to the broker that a test can cut and mend."""

    def __init__(self) -> None:
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.refused = asyncio.Event()
        self.opened = asyncio.Event()

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            self.refused.set()
            return
        self.opened.set()
        broker = URL(BROKER)
        (from_broker, to_broker) = await asyncio.open_connection(broker.host, broker.port or 5672)
        self._writers |= {writer, to_broker}
        try:
            await asyncio.gather(copy(reader, to_broker), copy(from_broker, writer))
        finally:
            self._writers -= {writer, to_broker}


class SilentLine(Line):
    """A line whose first connection forwards nothing more once the client calls this AMQP method."""

    def __init__(self, method: bytes) -> None:
        super().__init__()
        self._method = method

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.opened.is_set():
            await super().carry(reader, writer)
            return
        self.opened.set()
        broker = URL(BROKER)
        (from_broker, to_broker) = await asyncio.open_connection(broker.host, broker.port or 5672)
        responses = asyncio.create_task(copy(from_broker, writer))
        while (data := await reader.read(65536)) and self._method not in data:
            to_broker.write(data)
        responses.cancel()
        await reader.read()  # until the client closes the connection
        to_broker.close()
        writer.close()


class ConsumerLine(Line):
    """A line that is cut whenever a consumer begins."""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker = URL(BROKER)
        (from_broker, to_broker) = await asyncio.open_connection(broker.host, broker.port or 5672)
        requests = asyncio.create_task(copy(reader, to_broker))
        while (data := await from_broker.read(65536)) and CONSUME_OK not in data:
            writer.write(data)
        requests.cancel()
        to_broker.close()
        writer.transport.abort()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def line_to_broker(line: Line | None = None) -> AsyncGenerator[tuple[Line, str]]:
    """Yield a line, and the AMQP URL of the broker through it."""
    line = line or Line()
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    (_, port) = server.sockets[0].getsockname()
    try:
        yield line, str(URL(BROKER).with_host("127.0.0.1").with_port(port))
    finally:
        server.close()
        line.cut()
        await server.wait_closed()
        await all_tasks_done()


async def all_tasks_done() -> None:
    """Wait for aiormq's tasks after a connection was cut: it warns if the loop is closed before they end."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


@asynccontextmanager
async def listening(routing_key: str) -> AsyncGenerator[AbstractQueue]:
    """A queue bound to the exchange of defined tasks, on a separate connection."""
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(DEFINED, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(f"queue/guest/{uuid4()}", exclusive=True)
        await queue.bind(DEFINED, routing_key)
        yield queue


async def next_message(queue: AbstractQueue) -> AbstractIncomingMessage:
    async with queue.iterator(no_ack=True, timeout=30) as messages:
        return await anext(messages)


async def next_delivered(queue: AbstractQueue) -> DeliveredMessage:
    """Return the next message as it was sent: aio-pika would add a priority of 0."""
    channel = await queue.channel.get_underlay_channel()
    delivered: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
    await channel.basic_consume(queue.name, delivered.put, no_ack=True)
    return await asyncio.wait_for(delivered.get(), timeout=30)


async def bodies(queue: AbstractQueue, last: int) -> list[int]:
    """Return the numbers of all messages up to the `last` one, without redelivered ones."""
    numbers: list[int] = []
    async with queue.iterator(no_ack=True, timeout=30) as messages:
        async for message in messages:
            number = json.loads(message.body)["number"]
            if number not in numbers:
                numbers.append(number)
            if number == last:
                return numbers
    return numbers


def message(key: str, number: int = 0, cc: list[str] | None = None) -> Message:
    return Message(DEFINED, key, cc or [], {"number": number, "version": 1})


@pytest.fixture
def key() -> str:
    """A routing key that no other test uses."""
    return f"primary.{uuid4().hex}"


async def test_all_exchanges_exist_as_durable_topic_exchanges_once_the_publisher_has_begun() -> None:
    async with Publisher(BROKER), await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        for name in (EXCHANGE_PREFIX + each for each in EXCHANGES):
            topic = aio_pika.ExchangeType.TOPIC  # the broker refuses a declaration with another type
            assert (await channel.declare_exchange(name, topic, durable=True)).name == name


async def test_a_message_has_the_properties_and_the_form_of_the_services(key: str, contract: Path) -> None:
    recorded: dict[str, Any] = json.loads((contract / "recorded/exchange.task-defined.json").read_text())
    route = f"route.{uuid4()}"
    async with Publisher(BROKER) as publisher, listening(route) as queue:
        body = recorded["body"]
        publisher.publish(Message(recorded["exchange"], key, [route], body))
        got = await next_delivered(queue)
    unset = (None, "")
    properties = {camel_case(name): value for name, value in got.header.properties if value not in unset}
    assert properties == {**recorded["properties"], "headers": {"CC": [route]}}
    assert got.routing_key == key
    assert json.loads(got.body) == body


async def test_messages_arrive_in_the_order_in_which_they_were_published(key: str) -> None:
    async with Publisher(BROKER) as publisher, listening(key) as queue:
        for number in range(1000):
            publisher.publish(message(key, number))
        assert await bodies(queue, last=999) == list(range(1000))


async def test_a_message_is_what_it_was_when_it_was_published(key: str) -> None:
    changing = message(key, 1)
    async with Publisher(BROKER) as publisher, listening(key) as queue:
        publisher.publish(changing)
        changing.body["number"] = 2
        assert await bodies(queue, last=1) == [1]


async def test_stopping_waits_for_published_messages(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 60)  # the machine may be busy
    async with listening(key) as queue:
        async with Publisher(BROKER) as publisher:
            for number in range(500):
                publisher.publish(message(key, number))
        assert await bodies(queue, last=499) == list(range(500))


async def test_nothing_is_lost_and_the_order_stays_while_the_broker_is_away(key: str) -> None:
    async with line_to_broker() as (line, url), listening(key) as queue, Publisher(url) as publisher:
        for number in range(300):
            if number == 150:
                line.cut()
            publisher.publish(message(key, number))
            await asyncio.sleep(0)
        await asyncio.wait_for(line.refused.wait(), 30)
        line.mend()
        assert await bodies(queue, last=299) == list(range(300))


async def test_messages_are_sent_after_a_bug_has_ended_a_connection_and_was_logged(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    oldest, bugs = Outbox.oldest, [RuntimeError("a bug")]

    def buggy(outbox: Outbox, count: int) -> list[amqp.StoredMessage]:
        if bugs:
            raise bugs.pop()
        return oldest(outbox, count)

    monkeypatch.setattr(Outbox, "oldest", buggy)
    async with Publisher(BROKER) as publisher, listening(key) as queue:
        publisher.publish(message(key, 1))
        assert await bodies(queue, last=1) == [1]
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("a bug"), sqlite3.OperationalError("the disk is full")])
async def test_pauses_grow_while_the_same_error_ends_each_connection(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pauses: list[float] = []
    enough, sleep = asyncio.Event(), asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds > 1:
            await sleep(seconds)  # until aiormq's next heartbeat
        pauses.append(seconds)
        if len(pauses) == 3:
            enough.set()
        await sleep(0)

    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(Outbox, "oldest", failing)
    monkeypatch.setattr(amqp, "_PATIENCE", 0)
    async with Publisher(BROKER) as publisher:
        monkeypatch.setattr(asyncio, "sleep", pause)
        publisher.send_soon()
        await asyncio.wait_for(enough.wait(), 30)
        monkeypatch.undo()
    assert pauses[:3] == [0.1, 0.2, 0.4]


async def test_a_publisher_without_messages_declares_its_exchanges_again_when_the_broker_comes_back() -> None:
    async with line_to_broker() as (line, url), Publisher(url) as publisher:
        publisher.connected.clear()
        line.cut()
        line.mend()
        assert await asyncio.wait_for(publisher.connected.wait(), 30)


async def test_a_broker_that_comes_later_gets_everything(key: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, amqp.__name__)
    async with line_to_broker() as (line, url), listening(key) as queue:
        line.cut()
        publisher = Publisher(url)
        entering = asyncio.create_task(publisher.__aenter__())
        await asyncio.wait_for(line.refused.wait(), 30)
        publisher.publish(message(key, 7))
        line.mend()
        await entering
        assert await bodies(queue, last=7) == [7]
        await publisher.__aexit__()
    assert "RabbitMQ at 127.0.0.1" in caplog.text
    assert "connected to RabbitMQ at 127.0.0.1 again" in caplog.messages


async def test_a_start_without_a_broker_goes_on_and_the_end_says_what_was_not_sent(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    async with line_to_broker() as (line, url):
        line.cut()
        async with Publisher(url) as publisher:
            publisher.publish(message(key))
    assert "shut down; messages not delivered to RabbitMQ at 127.0.0.1: 1" in caplog.text


async def test_messages_that_a_queue_with_a_file_has_not_delivered_are_delivered_after_its_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    db, task_ids = str(tmp_path / "queue.sqlite"), [slugid() for _ in range(3)]
    async with listening("primary.#.outbox-of-a-restart.#") as queue:
        async with LocalQueue(db=db, amqp_url="amqp://guest:guest@127.0.0.1:1") as local:  # nobody is there
            await asyncio.to_thread(_create_tasks, local, task_ids)
        monkeypatch.undo()
        async with LocalQueue(db=db, amqp_url=BROKER), queue.iterator(no_ack=True, timeout=30) as messages:
            delivered = [json.loads((await anext(messages)).body) for _ in task_ids]
        assert [each["status"]["taskId"] for each in delivered] == task_ids
    with closing(Store(db)) as store:
        assert len(Outbox(store)) == 0


async def test_connections_that_are_not_established_are_closed_before_the_garbage_collector_finds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []

    def note(connection: aio_pika.Connection) -> None:
        closed.append(connection.is_closed)

    monkeypatch.setattr(aio_pika.Connection, "__del__", note)
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    async with Publisher("amqp://guest:guest@127.0.0.1:1"):  # nobody is there
        pass
    gc.collect()
    assert closed
    assert all(closed)


def _create_tasks(local: LocalQueue, task_ids: list[str]) -> None:
    pool = "outbox-of-a-restart/w"
    definition = task_definition(pool, {}, name="t", owner="o@x.org", source="https://x.org")
    with Queue(local.root_url, local.credentials) as queue:
        for task_id in task_ids:
            queue.create_task(task_id, definition)


@pytest.fixture
def short_heartbeats(monkeypatch: pytest.MonkeyPatch) -> str:
    """The parameter of an AMQP URL with which a silent broker is noticed within 3 seconds."""
    monkeypatch.setattr("aiormq.Connection.HEARTBEAT_GRACE_MULTIPLIER", 1)
    return "?heartbeat=1"


async def test_messages_are_sent_after_a_broker_went_silent_while_exchanges_were_declared(
    key: str, short_heartbeats: str
) -> None:
    async with (
        line_to_broker(SilentLine(EXCHANGE_DECLARE)) as (_, url),
        listening(key) as queue,
        Publisher(url + short_heartbeats) as publisher,
    ):
        publisher.publish(message(key))
        assert await bodies(queue, last=0) == [0]


async def test_removals_are_consumed_after_a_broker_went_silent_while_their_queue_was_declared(
    short_heartbeats: str,
) -> None:
    name = f"queue/guest/{uuid4()}"
    async with line_to_broker(SilentLine(QUEUE_DECLARE)) as (_, url):
        async with WorkerRemovals(url + short_heartbeats, name, print) as removals:
            await asyncio.wait_for(removals.connected.wait(), 60)
        async with await aio_pika.connect(BROKER) as connection:
            await (await connection.channel()).queue_delete(name)


async def test_an_outbox_has_an_end_and_says_so_once(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp, "_CAPACITY", 10)
    async with line_to_broker() as (line, url), listening(key) as queue:
        line.cut()
        publisher = Publisher(url)
        for number in range(15):
            publisher.publish(message(key, number))
        line.mend()
        async with publisher:
            assert await bodies(queue, last=9) == list(range(10))
    assert publisher.lost == 5
    assert caplog.text.count("outbox full: 10 messages wait for RabbitMQ at 127.0.0.1") == 1


class Warned(logging.Handler):
    """A log handler that sets `event` when something was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        del record
        self.event.set()


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        (
            URL(BROKER).with_user("nobody").with_password("hunter-2-secret"),
            "ACCESS_REFUSED - Login was refused",
        ),
        (
            URL(BROKER).with_path("no-such-vhost"),
            "the virtual host does not exist, is not open to the user, or has too many connections",
        ),
    ],
)
async def test_a_refused_connection_is_logged_with_the_cause_and_without_the_password(
    url: URL, cause: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    caplog.set_level(logging.DEBUG)
    warned = Warned()
    logging.getLogger(amqp.__name__).addHandler(warned)
    async with Publisher(str(url)) as publisher:
        await asyncio.wait_for(warned.event.wait(), 30)
    logging.getLogger(amqp.__name__).removeHandler(warned)
    assert f"not connected to RabbitMQ at {url.host}: {cause}" in caplog.text
    assert "hunter-2" not in caplog.text
    assert "hunter-2" not in repr(publisher)


@pytest.mark.parametrize(
    "url",
    [
        *("http://guest:hunter-2@host", "amqp://", "guest:hunter-2@host", "amqp://guest:hunter-2/3@host"),
        *("amqp://guest:hunter-2@host:65536", "amqp://guest:hunter-2@[::1"),
    ],
)
async def test_a_text_that_is_not_an_amqp_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="not an AMQP URL; expected") as caught:
        Publisher(url)
    assert "hunter-2" not in "".join(traceback.format_exception(caught.value))


async def _send_removal(exchange: str, body: bytes, pool: str) -> None:
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        name = f"exchange/taskcluster-worker-manager/v1/{exchange}"
        manager = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        await manager.publish(aio_pika.Message(body), f"primary._.x.{pool.replace('/', '-')}.rack.one.x._")


def _running_task(local: LocalQueue, pool: str) -> str:
    task_id = slugid()
    now = datetime.now(UTC)
    definition = task_definition(pool, {}, name="t", owner="o@x.org", source="https://x.org", created=now)
    with Queue(local.root_url, local.credentials) as queue:
        queue.create_task(task_id, definition)
        queue.claim_task(task_id, 0, worker_group="rack", worker_id="one")
    return task_id


class _Exceptions:
    """The runs that ended with an exception, from the queue's messages."""

    def __init__(self, local: LocalQueue) -> None:
        self.reasons: queue_module.Queue[tuple[str, str]] = queue_module.Queue()
        local.subscribe(self._note)

    def _note(self, message: Message) -> None:
        if message.exchange.endswith("task-exception"):
            run = message.body["status"]["runs"][message.body["runId"]]
            self.reasons.put((message.body["status"]["taskId"], run["reasonResolved"]))

    async def next(self) -> tuple[str, str]:
        return await asyncio.to_thread(self.reasons.get, timeout=30)


@pytest.mark.parametrize("exchange", ["worker-stopped", "worker-removed"])
async def test_the_worker_managers_messages_end_the_runs_of_a_worker(exchange: str) -> None:
    pool = f"proj/w{uuid4().hex[:8]}"
    body = json.dumps(
        {"workerPoolId": pool, "workerGroup": "rack", "workerId": "one", "reason": "x"}
    ).encode()
    async with LocalQueue(amqp_url=BROKER) as local:
        exceptions = _Exceptions(local)
        await _consuming(local)
        task_id = await asyncio.to_thread(_running_task, local, pool)
        for sent in (b"not json", b"{}", body, body):  # the last one repeats a removal that was done
            await _send_removal(exchange, sent, pool)
        assert await exceptions.next() == (task_id, "worker-shutdown")
        with Queue(local.root_url, local.credentials) as client:
            states = [run.state for run in client.status(task_id).status.runs]
        assert states == ["exception", "pending"]


@pytest.mark.parametrize("body", [b"not json", b'{"workerPoolId": "\xff"}', b'{"reason": ' + b"[" * 100_000])
async def test_an_unreadable_message_of_the_worker_manager_does_not_stay_in_the_queue(body: bytes) -> None:
    pool = f"proj/w{uuid4().hex[:8]}"
    good = json.dumps({"workerPoolId": pool, "workerGroup": "rack", "workerId": "one"}).encode()
    async with LocalQueue(amqp_url=BROKER) as local:
        exceptions = _Exceptions(local)
        await _consuming(local)
        task_id = await asyncio.to_thread(_running_task, local, pool)
        for sent in (body, good):
            await _send_removal("worker-removed", sent, pool)
        assert await exceptions.next() == (task_id, "worker-shutdown")
        name = _removals(local)._queue_name
    async with await aio_pika.connect(BROKER) as connection:
        queue = await (await connection.channel()).get_queue(name)
        left: list[str] = []  # other tests use the exchange, too
        while (message := await queue.get(fail=False)) is not None:
            left.append(message.routing_key or "")
        await queue.delete(if_empty=False)
    assert not [key for key in left if pool.replace("/", "-") in key]


async def test_a_removal_that_fails_is_done_when_its_message_comes_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = f"proj/w{uuid4().hex[:8]}"
    body = json.dumps({"workerPoolId": pool, "workerGroup": "rack", "workerId": "one"}).encode()
    monkeypatch.setattr(amqp, "FIRST_PAUSE", 0.01)
    async with LocalQueue(amqp_url=BROKER) as local:
        exceptions, removals = _Exceptions(local), _removals(local)
        await _consuming(local)
        task_id = await asyncio.to_thread(_running_task, local, pool)
        remove = removals._remove

        def fail_once(of_pool: str, *_: str) -> None:
            if of_pool != pool:  # a worker of another test
                return
            removals._remove = remove
            raise sqlite3.OperationalError("database or disk is full")

        removals._remove = fail_once
        await _send_removal("worker-removed", body, pool)
        assert await exceptions.next() == (task_id, "worker-shutdown")
    assert f"cannot resolve the runs of worker rack/one of {pool}, retrying" in caplog.messages


async def test_removals_are_consumed_again_when_broker_and_queue_come_back(tmp_path: Path) -> None:
    pool, db = f"proj/w{uuid4().hex[:8]}", str(tmp_path / "queue.sqlite")
    body = json.dumps({"workerPoolId": pool, "workerGroup": "rack", "workerId": "one"}).encode()
    async with line_to_broker() as (line, url):
        async with LocalQueue(db=db, amqp_url=url) as local:
            await _consuming(local)
            task_id = await asyncio.to_thread(_running_task, local, pool)
            line.cut()
        await _send_removal("worker-removed", body, pool)  # it waits for the queue
        line.mend()
        async with LocalQueue(db=db, amqp_url=url) as local:
            exceptions = _Exceptions(local)
            await _consuming(local)
            with Queue(local.root_url, local.credentials) as client:
                first = client.status(task_id).status.runs[0]
            if first.state == "running":
                assert await exceptions.next() == (task_id, "worker-shutdown")
            else:
                assert first.reason_resolved == "worker-shutdown"


async def test_removals_are_consumed_again_when_their_queue_is_deleted() -> None:
    pool = f"proj/w{uuid4().hex[:8]}"
    body = json.dumps({"workerPoolId": pool, "workerGroup": "rack", "workerId": "one"}).encode()
    async with LocalQueue(amqp_url=BROKER) as local:
        exceptions = _Exceptions(local)
        await _consuming(local)
        task_id = await asyncio.to_thread(_running_task, local, pool)
        removals = _removals(local)
        removals.connected.clear()
        async with await aio_pika.connect(BROKER) as connection:
            await (await connection.channel()).queue_delete(removals._queue_name)
        await _consuming(local)
        await _send_removal("worker-removed", body, pool)
        assert await exceptions.next() == (task_id, "worker-shutdown")


def _removals(local: LocalQueue) -> Any:
    """The local queue's consumer of the worker manager's messages."""
    running: Any = local._running  # pyright: ignore[reportPrivateUsage] - no API gives the consumer
    return running.removals


async def _consuming(local: LocalQueue) -> None:
    """Return when the queue consumes the worker manager's messages."""
    loop: Any = local._loop  # pyright: ignore[reportPrivateUsage] - no API tells when it consumes
    waiting = asyncio.run_coroutine_threadsafe(_removals(local).connected.wait(), loop)
    assert await asyncio.wait_for(asyncio.wrap_future(waiting), 30)


def test_a_local_queue_stops_at_every_moment_of_its_connection_to_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads_and_tasks, "_PATIENCE", 0.1)  # aiormq may lose the first cancellation
    for number in range(30):
        monkeypatch.setattr(amqp, "_PATIENCE", number / 1000)
        with LocalQueue(amqp_url=BROKER):
            pass
    gc.collect()  # asyncio logs pending tasks that are destroyed
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


async def test_a_lost_connection_is_a_line_without_traceback_in_the_log_of_the_command() -> None:
    async with line_to_broker(ConsumerLine()) as (_, url):
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "local", "--amqp", url, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        lines = [await asyncio.wait_for(process.stderr.readline(), 60)]
        while b"not consuming worker-manager messages" not in lines[-1]:
            lines.append(await asyncio.wait_for(process.stderr.readline(), 60))
        process.terminate()
        rest = await process.stderr.read()
        assert await process.wait() == 0
    told = b"".join([*lines, rest]).decode()
    assert "reader exited" not in told
    assert "Traceback" not in told
