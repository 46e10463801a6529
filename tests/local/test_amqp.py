"""Messages to RabbitMQ: a real broker, and a line to it that can be cut."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aio_pika
import pytest
from yarl import URL

from taskqueue_client.local import amqp
from taskqueue_client.local.amqp import AmqpPublisher
from taskqueue_client.local.messages import EXCHANGE_PREFIX, EXCHANGES, Message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

BROKER = os.environ.get("PULSE_URL", "amqp://guest:guest@127.0.0.1:5672/")
DEFINED = EXCHANGE_PREFIX + "task-defined"


@pytest.fixture(autouse=True)
async def broker() -> None:
    """Without a broker there is nothing to test; TASKQUEUE_REQUIRE_BROKER=1 makes that a failure."""
    try:
        connection = await aio_pika.connect(BROKER, timeout=10)
    except OSError as error:
        if os.environ.get("TASKQUEUE_REQUIRE_BROKER") == "1":
            raise
        pytest.skip(f"no RabbitMQ: {type(error).__name__}")
    await connection.close()


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


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def line_to_broker() -> AsyncGenerator[tuple[Line, str]]:
    """A line, and the AMQP URL at its near end."""
    line = Line()
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    (_, port) = server.sockets[0].getsockname()
    try:
        yield line, str(URL(BROKER).with_host("127.0.0.1").with_port(port))
    finally:
        server.close()
        line.cut()
        await server.wait_closed()


@asynccontextmanager
async def listening(routing_key: str) -> AsyncGenerator[AbstractQueue]:
    """A queue bound to the exchange of defined tasks, on a connection of its own."""
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(DEFINED, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(f"queue/guest/{uuid4()}", exclusive=True)
        await queue.bind(DEFINED, routing_key)
        yield queue


async def next_message(queue: AbstractQueue) -> AbstractIncomingMessage:
    async with queue.iterator(no_ack=True, timeout=30) as messages:
        return await anext(messages)


async def bodies(queue: AbstractQueue, last: int) -> list[int]:
    """The numbers of all messages up to the `last` one, without those that came again."""
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
    async with AmqpPublisher(BROKER), await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        for name in EXCHANGES:
            await channel.declare_exchange(EXCHANGE_PREFIX + name, aio_pika.ExchangeType.TOPIC, durable=True)


async def test_a_message_has_the_properties_and_the_form_of_the_services(key: str, contract: Path) -> None:
    recorded: dict[str, Any] = json.loads((contract / "recorded/exchange.task-defined.json").read_text())
    route = f"route.{uuid4()}"
    async with AmqpPublisher(BROKER) as publisher, listening(route) as queue:
        body = recorded["body"]
        publisher.publish(Message(recorded["exchange"], key, [route], body))
        got = await next_message(queue)
    properties = recorded["properties"]
    assert got.content_type == properties["contentType"]
    assert got.content_encoding == properties["contentEncoding"]
    assert got.delivery_mode == properties["deliveryMode"]
    assert (got.routing_key, got.headers) == (key, {"CC": [route]})
    assert json.loads(got.body) == body


async def test_messages_arrive_in_the_order_in_which_they_were_published(key: str) -> None:
    async with AmqpPublisher(BROKER) as publisher, listening(key) as queue:
        for number in range(1000):
            publisher.publish(message(key, number))
        assert await bodies(queue, last=999) == list(range(1000))


async def test_a_message_is_what_it_was_when_it_was_published(key: str) -> None:
    changing = message(key, 1)
    async with AmqpPublisher(BROKER) as publisher, listening(key) as queue:
        publisher.publish(changing)
        changing.body["number"] = 2
        assert await bodies(queue, last=1) == [1]


async def test_leaving_waits_for_what_was_published(key: str) -> None:
    async with listening(key) as queue:
        async with AmqpPublisher(BROKER) as publisher:
            for number in range(500):
                publisher.publish(message(key, number))
        assert await bodies(queue, last=499) == list(range(500))


async def test_nothing_is_lost_and_the_order_stays_while_the_broker_is_away(key: str) -> None:
    async with line_to_broker() as (line, url), listening(key) as queue, AmqpPublisher(url) as publisher:
        for number in range(300):
            if number == 150:
                line.cut()
            publisher.publish(message(key, number))
            await asyncio.sleep(0)
        await asyncio.wait_for(line.refused.wait(), 30)
        line.mend()
        assert await bodies(queue, last=299) == list(range(300))


async def test_a_broker_that_comes_later_gets_everything(key: str, caplog: pytest.LogCaptureFixture) -> None:
    async with line_to_broker() as (line, url), listening(key) as queue:
        line.cut()
        publisher = AmqpPublisher(url)
        entering = asyncio.create_task(publisher.__aenter__())
        await asyncio.wait_for(line.refused.wait(), 30)
        publisher.publish(message(key, 7))
        line.mend()
        await entering
        assert await bodies(queue, last=7) == [7]
        await publisher.__aexit__()
    assert "RabbitMQ at 127.0.0.1" in caplog.text


async def test_a_start_without_a_broker_goes_on_and_the_end_says_what_was_not_sent(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    async with line_to_broker() as (line, url):
        line.cut()
        async with AmqpPublisher(url) as publisher:
            publisher.publish(message(key))
    assert "1 messages did not reach RabbitMQ at 127.0.0.1" in caplog.text


async def test_an_outbox_has_an_end_and_says_so_once(
    key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp, "_CAPACITY", 10)
    async with line_to_broker() as (line, url), listening(key) as queue:
        line.cut()
        publisher = AmqpPublisher(url)
        for number in range(15):
            publisher.publish(message(key, number))
        line.mend()
        async with publisher:
            assert await bodies(queue, last=9) == list(range(10))
    assert publisher.lost == 5
    assert caplog.text.count("10 messages wait for RabbitMQ at 127.0.0.1; further ones are lost") == 1


class Warned(logging.Handler):
    """Tells when something was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        del record
        self.event.set()


async def test_the_password_is_never_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    caplog.set_level(logging.DEBUG)
    url = str(URL(BROKER).with_user("nobody").with_password("hunter-2-secret"))
    warned = Warned()
    logging.getLogger(amqp.__name__).addHandler(warned)
    async with AmqpPublisher(url) as publisher:
        await asyncio.wait_for(warned.event.wait(), 30)
    logging.getLogger(amqp.__name__).removeHandler(warned)
    assert "RabbitMQ at" in caplog.text
    assert "hunter-2" not in caplog.text
    assert "hunter-2" not in repr(publisher)


@pytest.mark.parametrize("url", ["http://guest:hunter-2@host", "amqp://", "guest:hunter-2@host"])
async def test_what_is_no_amqp_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="an AMQP URL is like") as caught:
        AmqpPublisher(url)
    assert "hunter-2" not in str(caught.value)
