"""Publishes the Queue's messages to RabbitMQ; needs aio-pika (the extra `events`).

Messages wait in an outbox in memory until the broker has confirmed them, so a broker that is away for
a while loses none and their order stays. After a lost confirmation a message is sent again: delivery
is at least once, as with the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from taskqueue_client.local.messages import EXCHANGE_PREFIX, EXCHANGES

try:
    import aio_pika
except ImportError as error:
    _MISSING = "messages to RabbitMQ need aio-pika: pip install 'taskqueue_client[events]'"
    raise ImportError(_MISSING) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aio_pika.abc import AbstractChannel, AbstractExchange

    from taskqueue_client.local.messages import Message

_CAPACITY = 100_000
"""Messages that may wait: some 100 MB, about a minute of the local queue's full speed."""

_BATCH = 100
"""Messages under way at once: enough to hide the wait for confirmations."""

_CONFIRM_SECONDS = 30
"""After which the service takes a message that was not confirmed for lost."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 15.0
_PATIENCE = 5.0
"""Seconds to wait for the broker at the start, and for the last messages at the end."""

_TROUBLE = (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError, OSError)
"""What a broker that is away raises, one way or the other; `TimeoutError` is an `OSError`."""

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A message in the outbox."""

    exchange: str
    routing_key: str
    cc: list[str]
    body: bytes


class AmqpPublisher:
    """Sends messages in the background while it is entered (`async with`).

    Entering it waits a few seconds for the broker, and goes on without: messages wait for it then.
    Leaving it waits a few seconds for messages that are not confirmed yet.

    Args:
        url: `amqp://` or `amqps://`, with user and password; never shown or logged.

    Raises:
        ValueError: It is no such URL.
    """

    lost: int = 0
    """How many messages found the outbox full."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"amqp", "amqps"} or not parts.hostname:
            message = "an AMQP URL is like amqp://user:password@host:5672/vhost"
            raise ValueError(message)
        self._url = url
        self._host = parts.hostname
        self._outbox: deque[_Waiting] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._connected = asyncio.Event()
        self._pause = _FIRST_PAUSE
        self._sender: asyncio.Task[None] | None = None

    def publish(self, message: Message) -> None:
        """Send a message as soon as possible. Belongs to the event loop's thread; never waits or fails."""
        if len(self._outbox) < _CAPACITY:
            body = msgspec.json.encode(message.body)
            self._outbox.append(_Waiting(message.exchange, message.routing_key, message.cc, body))
            self._emptied.clear()
            self._filled.set()
            return
        if not self.lost:
            _log.error("%d messages wait for RabbitMQ at %s; further ones are lost", _CAPACITY, self._host)
        self.lost += 1

    async def __aenter__(self) -> Self:
        self._emptied.set()
        self._sender = asyncio.create_task(self._send_always(), name="publisher of messages to RabbitMQ")
        await self._wait_for(self._connected)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wait_for(self._emptied)
        if self._outbox:
            _log.error("%d messages did not reach RabbitMQ at %s", len(self._outbox), self._host)
        if self._sender is not None:
            self._sender.cancel()
            with suppress(asyncio.CancelledError):
                await self._sender

    async def _wait_for(self, event: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), _PATIENCE)

    async def _send_always(self) -> None:
        while True:
            try:
                await self._send_while_connected()
            except _TROUBLE as error:
                _log.warning(
                    "RabbitMQ at %s is away (%s), %d messages wait",
                    self._host,
                    type(error).__name__,
                    len(self._outbox),
                )
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    async def _send_while_connected(self) -> None:
        async with await aio_pika.connect(self._url, timeout=_CONFIRM_SECONDS) as connection:
            channel = await connection.channel()
            exchanges = await _declare(channel)
            self._pause = _FIRST_PAUSE
            self._connected.set()
            while True:
                await self._filled.wait()
                await self._send_batch(exchanges)

    async def _send_batch(self, exchanges: Mapping[str, AbstractExchange]) -> None:
        """Send the oldest messages, and forget those that are confirmed: all up to the first failure."""
        batch = list(islice(self._outbox, _BATCH))
        sent = (_send(exchanges[waiting.exchange], waiting) for waiting in batch)
        for result in await asyncio.gather(*sent, return_exceptions=True):
            if result is not None:
                message = "a message was not confirmed"
                raise ConnectionError(message) from result
            self._outbox.popleft()
        if not self._outbox:
            self._filled.clear()
            self._emptied.set()


async def _declare(channel: AbstractChannel) -> dict[str, AbstractExchange]:
    """All exchanges of the Queue: consumers bind to them before the first message."""
    names = [EXCHANGE_PREFIX + name for name in EXCHANGES]
    return {
        name: await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        for name in names
    }


async def _send(exchange: AbstractExchange, waiting: _Waiting) -> None:
    """Publish one message, and wait until the broker has it. The order of calls is the order on the wire."""
    message = aio_pika.Message(
        waiting.body,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers={"CC": [*waiting.cc]},
    )
    await exchange.publish(message, waiting.routing_key, mandatory=False, timeout=_CONFIRM_SECONDS)
