"""One session with the broker: connect, declare, consume, close.

This module uses aiormq, the layer below aio-pika: aio-pika's reconnecting classes do not report that the
queue was deleted, nor when messages may have been lost.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import aiormq
import msgspec
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] # a bare tuple
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.connection import TransportFactory
from pamqp.commands import Basic, Queue
from pamqp.exceptions import PAMQPException, UnmarshalingException
from yarl import URL

from taskqueue_client._protocol.threads_and_tasks import is_canceled
from taskqueue_client._transport.connection_errors import reason
from taskqueue_client.errors import BrokerLost, BrokerRefused, QueueDeleted
from taskqueue_client.slugid import slugid

from .event import Event, read_event
from .settings import Plan, PulseSettings

CLOSING: Final = 5.0
"""Seconds for the last acknowledgments; the broker returns unacknowledged messages to the queue."""

_NEXT_ADDRESS: Final = 0.25
"""Seconds after which the broker's next address is tried as well."""

_REFUSALS: Final = (
    aiormq.AuthenticationError,
    aiormq.ProbableAuthenticationError,
    aiormq.ChannelAccessRefused,
    aiormq.ChannelLockedResource,
    aiormq.ChannelNotFoundEntity,
    aiormq.ChannelPreconditionFailed,
)
_NOT_ALLOWED: Final = 530
"""AMQP's reply code for a virtual host that does not exist or that the user may not use."""
_LOSSES: Final = (aiormq.AMQPError, PAMQPException, OSError, RuntimeError)
"""The errors of aiormq for an ended connection; RuntimeError if it was closed before the call."""


class _AnyAddress(TransportFactory):
    """Connects to the address of the broker that responds first (RFC 8305).

    aiormq tries them one after the other: one that does not respond, such as an IPv6 address without a route,
    takes all the time for connecting. asyncio's own option leaks a socket if canceled, and uvloop lacks it.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def create(self, url: URL, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of a new connection."""
        loop, server = asyncio.get_running_loop(), url.host if self._tls else None
        try:
            found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
            connected = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS)
            return await asyncio.open_connection(sock=connected, ssl=self._tls, server_hostname=server)
        except OSError as error:
            raise aiormq.AMQPConnectionError(*error.args) from error


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, and the session that acknowledges or rejects it."""

    session: BrokerSession
    tag: int
    event: Event

    def again(self) -> Delivery:
        """Return the delivery that the broker would make after a rejection."""
        event = msgspec.structs.replace(self.event, redeliveries=self.event.redeliveries + 1)
        return Delivery(self.session, self.tag, event)


class BrokerSession:
    """A connection with a queue and a consumer.

    Attributes:
        ended: A future; its result is the reason why the session ended.
        backlog_at_start: The number of messages in the queue at the start.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        channel: AbstractChannel,
        plan: Plan,
        on_deletion: Callable[[], object],
    ) -> None:
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.queue = plan.queue or f"queue/{plan.settings.user}/{slugid()}"
        self.backlog_at_start = 0
        self._plan = plan
        self._on_deletion = on_deletion
        self._connection = connection
        self._channel = channel
        self._verdicts: asyncio.Queue[tuple[int, bool, bool]] = asyncio.Queue()
        self._settling = asyncio.create_task(self._settle(), name=f"settle {self.queue}")
        channel.closing.add_done_callback(self._on_closing)  # pyright: ignore[reportUnknownMemberType] # a bare Future
        channel.on_consumer_cancel_callbacks.add(self._on_cancel)

    @classmethod
    async def open(
        cls,
        plan: Plan,
        deliver: Callable[[Delivery], None],
        on_deletion: Callable[[], object],
        *,
        resumes: bool,
    ) -> Self:
        """Connect, declare, bind and consume.

        `deliver` is called with each message, in order. With `resumes`, a durable queue is expected to exist.
        `on_deletion` is called if the queue does not exist any more, also if the session cannot be opened.
        """
        tls = plan.settings.ssl_context()
        connection = aiormq.Connection(_url(plan.settings), context=tls, transport_factory=_AnyAddress(tls))
        with broker_errors(plan.settings):
            try:
                await connection.connect()  # pyright: ignore[reportUnknownMemberType] # a Callable[..., T]
                return await cls._start(connection, plan, deliver, on_deletion, resumes=resumes)
            except BaseException:  # a cancellation may come when aiormq's own task has just connected
                await connection.close()
                raise

    @classmethod
    async def _start(
        cls,
        connection: AbstractConnection,
        plan: Plan,
        deliver: Callable[[Delivery], None],
        on_deletion: Callable[[], object],
        *,
        resumes: bool,
    ) -> Self:
        exists = resumes and plan.queue is not None and await _exists(connection, plan.queue)
        if resumes and not exists:
            on_deletion()  # now: the next session finds the queue if this one fails after declaring it
        session = cls(connection, await connection.channel(publisher_confirms=False), plan, on_deletion)
        try:
            session.backlog_at_start = await session._declare(plan, exists=exists)
            await session._consume(plan.prefetch, deliver)
        except BaseException:
            session._settling.cancel()
            raise
        return session

    async def _declare(self, plan: Plan, *, exists: bool) -> int:
        if plan.queue is None:
            declared = await self._channel.queue_declare(self.queue, exclusive=True, auto_delete=True)
        elif exists:  # it may just be deleted: declaring it anew would hide that its messages are lost
            declared = await self._look_up()
        else:
            quorum: dict[str, Any] = {"x-queue-type": "quorum"}
            declared = await self._channel.queue_declare(self.queue, durable=True, arguments=quorum)
        await self._bind(self._channel)
        return declared.message_count or 0

    async def _look_up(self) -> Queue.DeclareOk:
        try:
            return await self._channel.queue_declare(self.queue, passive=True)
        except aiormq.ChannelNotFoundEntity as error:
            raise QueueDeleted(f"{self.queue} was deleted") from error

    async def _bind(self, channel: AbstractChannel) -> None:
        for binding in self._plan.bindings:
            await channel.queue_bind(self.queue, binding.exchange, binding.routing_key_pattern)

    async def bind_again(self) -> None:
        """Bind again: a binding ends without a notice if its exchange is deleted, or if somebody removes it.

        Uses a separate channel, which the broker closes if it refuses: the consumer's channel stays open.

        Raises:
            BrokerRefused: An exchange does not exist, or the user may not bind any more.
            BrokerLost: The connection has ended.
        """
        with broker_errors(None):
            channel = await self._connection.channel(publisher_confirms=False)
            await self._bind(channel)
            await channel.close()

    async def _consume(self, prefetch: int, deliver: Callable[[Delivery], None]) -> None:
        async def on_message(message: DeliveredMessage) -> None:
            deliver(Delivery(self, message.delivery_tag or 0, _event(message)))

        await self._channel.basic_qos(prefetch_count=prefetch)
        await self._channel.basic_consume(self.queue, on_message)

    @staticmethod
    def lost_bindings(reason: Exception) -> bool:
        """Return whether a session ended because the queue, or an exchange and its bindings, do not exist."""
        return isinstance(reason.__cause__, aiormq.ChannelNotFoundEntity)

    async def check(self) -> int:
        """Return the number of messages in the queue, without those that were delivered.

        Raises:
            QueueDeleted: The queue does not exist.
            BrokerLost: The queue has no consumer.
        """
        with broker_errors(None):
            declared = await self._look_up()
            if not declared.consumer_count:  # for example, the queue exists and has no leader
                raise BrokerLost(f"{self.queue} delivers nothing: the broker has lost its consumers")
        return declared.message_count or 0

    def acknowledge(self, tag: int) -> None:
        """Acknowledge a message; after the session's end, do nothing: the broker delivers it again."""
        self._verdicts.put_nowait((tag, True, False))

    def reject(self, tag: int, *, requeue: bool) -> None:
        self._verdicts.put_nowait((tag, False, requeue))

    async def _settle(self) -> None:
        """Send acknowledgments in a separate task: aiormq may block forever if the connection ends."""
        while True:
            tag, acknowledged, requeue = await self._verdicts.get()
            try:
                with broker_errors(None):
                    if acknowledged:
                        await self._channel.basic_ack(tag, wait=False)
                    else:
                        await self._channel.basic_nack(tag, requeue=requeue, wait=False)
            except (BrokerLost, BrokerRefused) as error:
                self._end(BrokerLost(f"a message could not be acknowledged: {error}"))
                return
            self._verdicts.task_done()

    async def close(self) -> None:
        """Close after sending all acknowledgments; other messages return to the queue. Never raises."""
        try:
            async with asyncio.timeout(CLOSING):
                if not self.ended.done():
                    await self._verdicts.join()
                    with broker_errors(None):
                        await self._channel.close()  # sent after the acknowledgments, unlike connection.close
        except (TimeoutError, BrokerLost, BrokerRefused) as error:
            self._end(error)
        finally:
            self._settling.cancel()
            await self._disconnect()

    async def _disconnect(self) -> None:
        """Close the connection, even if the broker does not respond: it may respond again later."""
        with suppress(TimeoutError):  # the connection is being closed nevertheless
            async with asyncio.timeout(CLOSING):
                await self._connection.close()

    def _end(self, reason: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    def _on_cancel(self, _: Basic.Cancel) -> None:
        self._on_deletion()  # the supervisor may see another reason, such as a failed check, first
        self._end(QueueDeleted(f"{self.queue} was deleted"))

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if isinstance(error, asyncio.CancelledError):  # how aiormq ends a connection without heartbeats
            error = TimeoutError("the broker sent no heartbeat")
        end = f"the connection ended: {_message(error)}" if error else "the connection ended"
        # The broker sends it again with each new connection, unless the queue ended with this one.
        if error and self._plan.queue and isinstance(error.__cause__, UnmarshalingException):
            end += f"; {self.queue} has a message that cannot be decoded: delete the queue to remove it"
        self._end(BrokerLost(end))


@contextmanager
def broker_errors(settings: PulseSettings | None) -> Generator[None]:
    """Raise the errors of aiormq as BrokerRefused or BrokerLost."""
    where = "" if settings is None else f"{settings}: "
    try:
        yield
    except (*_REFUSALS, *_LOSSES) as error:
        raise (BrokerRefused if _is_refusal(error) else BrokerLost)(where + _message(error)) from error
    except asyncio.CancelledError as error:
        if is_canceled():
            raise
        message = f"{where}the connection ended"  # aiormq cancels waiting callers then
        raise BrokerLost(message) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        message = f"{where}the connection ended"  # what aiormq raises if the end follows a whole frame
        raise BrokerLost(message) from error


def _is_refusal(error: BaseException) -> bool:
    """Return whether no retry can help, as with an untrusted certificate or an unknown virtual host."""
    is_refused = isinstance(error, _REFUSALS) or error.args[:1] == (_NOT_ALLOWED,)
    is_untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
    return is_refused or is_untrusted or _is_about_vhost(error)


def _is_about_vhost(error: BaseException) -> bool:
    """Return whether opening the virtual host failed: aiormq 7 hides the broker's response."""
    return isinstance(error, aiormq.InvalidFrameError) and "Connection.OpenOk" in str(error)


async def _exists(connection: AbstractConnection, queue: str) -> bool:
    """Return whether a queue exists. Uses a separate channel: the broker closes it if there is no queue."""
    channel = await connection.channel(publisher_confirms=False)
    try:
        await channel.queue_declare(queue, passive=True)
    except aiormq.ChannelNotFoundEntity:
        return False
    await channel.close()
    return True


def _event(message: DeliveredMessage) -> Event:
    properties = message.header.properties
    return read_event(
        message.exchange or "",
        message.routing_key or "",
        message.body,
        properties.headers or {},
        redelivered=bool(message.redelivered),
    )


def _url(settings: PulseSettings) -> URL:
    return URL.build(
        scheme=settings.scheme,
        user=settings.user,
        password=settings.password,
        host=settings.host,
        port=settings.effective_port,
        path="/" + settings.vhost,
        query={"heartbeat": str(settings.heartbeat)},
    )


def _message(error: BaseException) -> str:
    if _is_about_vhost(error):
        return "the virtual host does not exist, is not open to the user, or has too many connections"
    if isinstance(error, aiormq.ChannelInvalidStateError):
        return "the channel was closed"
    if isinstance(error.__cause__, EOFError):
        return "the broker closed the connection"
    if isinstance(error.__cause__, OSError):
        return reason(error.__cause__)
    said = ", ".join(str(each) for each in error.args) or type(error).__name__
    if "inequivalent arg" in said:  # another library, such as kombu, has declared the queue in its own way
        said += "; use another name for the queue, or delete it first"
    return said
