"""RabbitMQ: publishes the Queue's messages, consumes worker-manager's; needs aio-pika (extra `events`).

Messages wait in an outbox until the broker has confirmed them. So no message is lost while the broker cannot
be reached, or if a local queue with a database file is killed, and their order stays. If a confirmation is
lost, the message is sent again: delivery is at least once, as with the service.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from taskqueue_client._protocol.threads_and_tasks import end_tasks, is_canceled

from .engine import Store
from .messages import EXCHANGE_PREFIX, EXCHANGES, Message

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
    from aiormq.abc import AbstractChannel as UnderlayChannel

try:
    import aio_pika
    from pamqp.commands import Basic
except ImportError as error:
    raise ImportError("messages to RabbitMQ need aio-pika: pip install 'taskqueue_client[events]'") from error

_TABLE = """
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY,
    exchange TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    cc BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT
"""


class StoredMessage(NamedTuple):
    """A message in the outbox; `cc` and `body` are JSON. Messages are sent in the order of `seq`."""

    seq: int
    exchange: str
    routing_key: str
    cc: bytes
    body: bytes


class Outbox:
    """Stores messages until they are delivered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.change(_TABLE)

    def add(self, message: Message) -> None:
        """Store a message; later changes of its body have no effect."""
        cc, body = msgspec.json.encode(message.cc), msgspec.json.encode(message.body)
        row = (message.exchange, message.routing_key, cc, body)
        self._store.insert("outbox (exchange, routing_key, cc, body)", *row)

    def oldest(self, count: int) -> list[StoredMessage]:
        """Return the messages to send next, at most `count`."""
        rows = self._store.rows("SELECT * FROM outbox ORDER BY seq LIMIT ?", count)
        return [StoredMessage(*row) for row in rows]

    def remove_until(self, seq: int) -> None:
        """Remove the messages up to and including `seq`: they are delivered."""
        self._store.change("DELETE FROM outbox WHERE seq <= ?", seq)

    def __len__(self) -> int:
        return int(self._store.value("SELECT ifnull(max(seq) - min(seq) + 1, 0) FROM outbox"))


_CAPACITY = 100_000  # messages that may wait: some 100 MB, about a minute of the local queue's full speed
_BATCH = 100  # messages sent before the first is confirmed: enough to hide the wait for it

CONNECT_SECONDS = 30
"""Time limit for connecting and for a confirmation; the service, too, waits so long for a confirmation."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0
_PATIENCE = 5.0  # seconds to wait for the broker at the start, and for the last messages at the end

CONNECTION_ERRORS = (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError, OSError)
"""The exceptions that an unreachable broker causes; `TimeoutError` is an `OSError`."""

_log = logging.getLogger(__name__)


class _Link(ABC):
    """A connection to RabbitMQ that is restored after a loss, while its context (`async with`) is entered.

    Args:
        url: `amqp://` or `amqps://`, with user and password; never shown or logged.

    Attributes:
        connected: Set while the connection can be used.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._host = _host_in(url)
        self.connected = asyncio.Event()
        self._was_lost = False

    @abstractmethod
    async def _use(self, channel: AbstractChannel, lost: asyncio.Event) -> None:
        """Prepare the channel, call `_note_connected`, and work until channel or connection are `lost`."""

    @abstractmethod
    def _note_loss(self, error: Exception) -> None:
        """Log why the connection is lost."""

    def _note_connected(self) -> None:
        if self._was_lost:
            _log.info("connected to RabbitMQ at %s again", self._host)
        self.connected.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._stay_connected(), name=f"{type(self).__name__} at RabbitMQ")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._task)

    async def _stay_connected(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._connect()
            except (*CONNECTION_ERRORS, sqlite3.Error) as error:
                self._note_loss(error)
            except Exception:  # noqa: BLE001 - a bug; without a retry, no message would be sent any more
                _log.exception("the connection to RabbitMQ at %s failed, retrying", self._host)
            self.connected.clear()
            self._was_lost = True
            if time.monotonic() - began > LONGEST_PAUSE:  # else a full disk may end each connection at once
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> None:
        """Connect to the broker, and close the connection at the end, also if it was not established.

        Otherwise the garbage collector would close the connection, on any thread, without awaiting that.
        """
        lost = asyncio.Event()
        try:
            async with aio_pika.Connection(URL(self._url)) as connection:
                await connection.connect(timeout=CONNECT_SECONDS)
                channel = await connection.channel()
                channel.close_callbacks.add(lambda _channel, _error: lost.set())
                await self._use(channel, lost)
        except asyncio.CancelledError as error:
            if is_canceled():
                raise
            raise ConnectionError("the broker sent no heartbeat") from error


def _host_in(url: str) -> str:
    """Return the host of an AMQP URL. No error shows the port: it is the password if that contains a `/`."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in {"amqp", "amqps"} and parts.hostname and parts.port != 0:
            return parts.hostname
    expected = "amqp://user:password@host:5672/vhost, each part percent-encoded"
    raise ValueError(f"amqp_url: not an AMQP URL; expected {expected}")


def _cause(error: Exception) -> str:
    """Return why there is no connection. aiormq hides what the broker says about a virtual host."""
    if "Connection.OpenOk" in str(error):
        return "the virtual host does not exist, is not open to the user, or has too many connections"
    return str(error) or type(error).__name__


class AmqpPublisher(_Link):
    """Sends the messages of an outbox in the background.

    Entering the context waits a few seconds for a connection; without it, messages stay in the outbox.
    Leaving the context waits a few seconds until the last messages are confirmed.
    """

    lost: int = 0
    """The number of messages that were not stored because the outbox was full."""

    def __init__(self, url: str, outbox: Outbox) -> None:
        super().__init__(url)
        self._outbox = outbox
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def store(self, message: Message) -> None:
        """Store a message in the open transaction; the caller calls `send_soon` after the commit.

        Raises:
            sqlite3.Error: The disk is full: the transaction must not be committed.
        """
        if len(self._outbox) < _CAPACITY:
            self._outbox.add(message)
            return
        if not self.lost:
            _log.error(
                "outbox full: %d messages wait for RabbitMQ at %s, further messages are lost",
                _CAPACITY,
                self._host,
            )
        self.lost += 1

    def send_soon(self, _message: Message | None = None) -> None:
        """Wake the task that sends stored messages, on the event loop's thread; never waits or fails."""
        self._emptied.clear()
        self._filled.set()

    async def __aenter__(self) -> Self:
        if self._outbox:
            self.send_soon()
        else:
            self._emptied.set()
        await super().__aenter__()
        await _wait_for(self.connected)
        return self

    async def __aexit__(self, *_: object) -> None:
        await _wait_for(self._emptied)
        if self._outbox:
            _log.error(
                "shut down; messages not delivered to RabbitMQ at %s: %d", self._host, len(self._outbox)
            )
        await super().__aexit__()

    def _note_loss(self, error: Exception) -> None:
        if isinstance(error, sqlite3.Error):  # the disk is full: messages that were sent are sent again
            _log.warning("cannot remove delivered messages, retrying: %s", error)
            return
        _log.warning(
            "not connected to RabbitMQ at %s: %s; messages waiting: %d",
            self._host,
            _cause(error),
            len(self._outbox),
        )

    async def _use(self, channel: AbstractChannel, lost: asyncio.Event) -> None:
        # ends the wait below: only a new connection declares the exchanges, which the broker may have lost
        channel.close_callbacks.add(lambda _channel, _error: self._filled.set())
        await _declare(channel)
        underlay = await channel.get_underlay_channel()
        self._note_connected()
        while not lost.is_set():
            await self._filled.wait()
            await self._send_batch(underlay)

    async def _send_batch(self, channel: UnderlayChannel) -> None:
        """Send the oldest messages, and remove those that are confirmed, up to the first failure."""
        batch = self._outbox.oldest(_BATCH)
        sent = (_send(channel, stored) for stored in batch)
        results = await asyncio.gather(*sent, return_exceptions=True)
        failures = [place for place, result in enumerate(results) if result is not None]
        delivered = batch[: failures[0]] if failures else batch
        if delivered:
            self._outbox.remove_until(delivered[-1].seq)
        if failures:
            raise ConnectionError("a message was not confirmed") from results[failures[0]]
        if not self._outbox:
            self._filled.clear()
            self._emptied.set()


async def _wait_for(event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            await event.wait()


async def _declare(channel: AbstractChannel) -> None:
    """Declare all exchanges of the Queue: consumers bind to them before the first message."""
    for name in EXCHANGES:
        await channel.declare_exchange(EXCHANGE_PREFIX + name, aio_pika.ExchangeType.TOPIC, durable=True)


class _Properties(Basic.Properties):
    """The properties of a message, without the `message_id`: aiormq adds it, the service does not send it."""

    def marshal(self) -> bytes:
        """Return the bytes to send."""
        self.message_id = None
        return super().marshal()


async def _send(channel: UnderlayChannel, stored: StoredMessage) -> None:
    """Publish a message, and wait for its confirmation. Messages are sent in the order of the calls."""
    properties = _Properties(
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers={"CC": msgspec.json.decode(stored.cc)},
    )
    await channel.basic_publish(
        stored.body,
        exchange=stored.exchange,
        routing_key=stored.routing_key,
        properties=properties,
        timeout=CONNECT_SECONDS,
    )


_MANAGER_PREFIX = "exchange/taskcluster-worker-manager/v1/"
_MANAGER_EXCHANGES = ("worker-stopped", "worker-removed")
_PATTERN = "primary.*.*.*.*.*.*.#"
_KEPT_MS = 24 * 60 * 60 * 1000  # after so long without a consumer the broker deletes the queue


class _RemovedWorker(msgspec.Struct, rename="camel"):
    worker_pool_id: str
    worker_group: str
    worker_id: str


class WorkerRemovals(_Link):
    """Calls `remove` for each worker that worker-manager stops or removes, perhaps more than once.

    The AMQP queue is durable and keeps its name, so it collects messages while the local queue restarts.
    """

    def __init__(self, url: str, queue_name: str, remove: Callable[[str, str, str], object]) -> None:
        super().__init__(url)
        self._queue_name = queue_name
        self._remove = remove

    def _note_loss(self, error: Exception) -> None:
        _log.warning(
            "not consuming worker-manager messages: not connected to RabbitMQ at %s: %s",
            *(self._host, _cause(error)),
        )

    async def _use(self, channel: AbstractChannel, lost: asyncio.Event) -> None:
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(lambda _: lost.set())  # the queue was deleted
        queue = await self._declare(channel)
        await queue.consume(self._handle)
        self._note_connected()
        await lost.wait()
        _log.warning(
            "consumer of %s at RabbitMQ on %s ended: not consuming worker-manager messages",
            *(self._queue_name, self._host),
        )

    async def _declare(self, channel: Any) -> AbstractQueue:
        queue: AbstractQueue = await channel.declare_queue(
            self._queue_name, durable=True, arguments={"x-expires": _KEPT_MS}
        )
        for name in _MANAGER_EXCHANGES:
            await channel.declare_exchange(_MANAGER_PREFIX + name, aio_pika.ExchangeType.TOPIC, durable=True)
            await queue.bind(_MANAGER_PREFIX + name, _PATTERN)
        return queue

    async def _handle(self, message: AbstractIncomingMessage) -> None:
        try:
            gone = msgspec.json.decode(message.body, type=_RemovedWorker)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("ignored a worker-manager message on %s: %s", message.exchange, error)
            await message.ack()
            return
        try:
            self._remove(gone.worker_pool_id, gone.worker_group, gone.worker_id)
        except Exception:  # noqa: BLE001 - whatever it was, the message must not be lost
            worker = f"{gone.worker_group}/{gone.worker_id} of {gone.worker_pool_id}"
            _log.exception("cannot resolve the runs of worker %s, retrying", worker)
            await asyncio.sleep(FIRST_PAUSE)
            await message.nack(requeue=True)
        else:
            await message.ack()
