"""Events: messages as typed structs, a filter for duplicates, and the state of the listener."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

import msgspec

from taskqueue_client import _arguments as arguments
from taskqueue_client.models.messages import (
    ArtifactCreatedMessage,
    TaskGroupMessage,
    TaskMessage,
    TaskPriorityChangedMessage,
)

from .exchanges import EXCHANGES, GroupRoutingKey, RoutingKey, TaskExchange, TaskRoutingKey

_CC: Final = "route."
_BY_NAME: Final = {exchange.full_name: exchange for exchange in EXCHANGES}


class UnreadableMessage(msgspec.Struct, frozen=True):
    """A message whose body or routing key does not match its exchange.

    Attributes:
        reason: What is wrong with the message.
        body: The raw body.
        routing_key: The raw routing key.
    """

    reason: str
    body: bytes
    routing_key: str


class Event(msgspec.Struct, frozen=True):
    """One delivery of one message.

    Attributes:
        exchange: The short name of the exchange, such as `task-completed`; the full name if the
            exchange is not one of the Queue's.
        message: The message, as the struct of its exchange.
        routing_key: The fields of the routing key; None if the message is unreadable.
        routes: The routes of the task, without the prefix `route.` of their routing keys.
        redeliveries: How often the message was delivered before. Durable queues count deliveries;
            for other queues the value is 0 or 1.
    """

    exchange: str
    message: TaskMessage | TaskGroupMessage | UnreadableMessage
    routing_key: RoutingKey | None
    routes: tuple[str, ...] = ()
    redeliveries: int = 0

    def __str__(self) -> str:
        key = self.message.routing_key if isinstance(self.message, UnreadableMessage) else self.routing_key
        return f"{self.exchange} {key}"


def read_event(
    exchange: str, routing_key: str, body: bytes, headers: Mapping[str, Any], *, redelivered: bool
) -> Event:
    """Decode a delivery; a message that cannot be decoded becomes an `UnreadableMessage`.

    `exchange` is the full name. `headers` has `CC` and, from a quorum queue, `x-delivery-count`.
    """
    counted = headers.get("x-delivery-count")
    redeliveries = counted if isinstance(counted, int) else int(redelivered)
    known = _BY_NAME.get(exchange)
    if known is None:
        unreadable = UnreadableMessage("the exchange is not one of the Queue's", body, routing_key)
        return Event(exchange, unreadable, None, (), redeliveries)
    try:
        message = known.read(body)
        key = (TaskRoutingKey if isinstance(known, TaskExchange) else GroupRoutingKey).parse(routing_key)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        unreadable = UnreadableMessage(str(error), body, routing_key)
        return Event(known.name, unreadable, None, (), redeliveries)
    return Event(known.name, message, key, _routes(headers), redeliveries)


def _routes(headers: Mapping[str, Any]) -> tuple[str, ...]:
    cc: object = headers.get("CC")
    keys = cast("list[object]", cc) if isinstance(cc, list) else []
    return tuple(key.removeprefix(_CC) for key in keys if isinstance(key, str) and key.startswith(_CC))


class DuplicateFilter:
    """A memory of acknowledged events, by exchange, task, run, state and artifact.

    The Queue publishes a message again when a call is repeated, the broker delivers a message again
    when its acknowledgment was lost. Messages about task groups and about priorities always count as
    new: a repetition looks like a second change.

    Args:
        size: The number of events to remember; older events are forgotten.

    Raises:
        InvalidArgument: `size` is not a positive whole number.
    """

    def __init__(self, size: int = 10_000) -> None:
        arguments.number("size", size, least=1)
        self._size = size
        self._known: OrderedDict[Hashable, None] = OrderedDict()

    def knows(self, event: Event) -> bool:
        """Return whether an equal event was remembered."""
        return _identity(event) in self._known

    def remember(self, event: Event) -> None:
        """Treat equal events as duplicates from now on."""
        identity = _identity(event)
        if identity is None:
            return
        self._known[identity] = None
        self._known.move_to_end(identity)
        if len(self._known) > self._size:
            self._known.popitem(last=False)


def _identity(event: Event) -> Hashable:
    """Return a key that is equal for duplicates; None if duplicates cannot be recognized."""
    message, key = event.message, event.routing_key
    if not isinstance(message, TaskMessage) or not isinstance(key, TaskRoutingKey):
        return None
    if isinstance(message, TaskPriorityChangedMessage):
        return None
    artifact = message.artifact if isinstance(message, ArtifactCreatedMessage) else None
    return (event.exchange, key.task_id, key.run_id, str(message.status.state), artifact)


class State(StrEnum):
    """The state of a listener's connection."""

    CONNECTING = "connecting"
    """Connecting, declaring the queue and its bindings."""
    LISTENING = "listening"
    """Receiving messages as they are published."""
    LAGGING = "lagging"
    """Receiving messages, but slower than they are published: more and more wait at the broker."""
    DISCONNECTED = "disconnected"
    """The connection ended or could not be made; the listener is going to retry."""
    QUEUE_DELETED = "queue-deleted"
    """The queue was deleted with its messages; the listener is going to declare it again."""
    CLOSED = "closed"
    """Closed. A closed listener cannot be used again."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The argument of `on_state`.

    Attributes:
        state: The new state.
        reason: The error that caused the change, if any; it never shows the password.
        backlog: With `LISTENING` and `LAGGING`: the number of messages that wait at the broker.
        retry_in: With `DISCONNECTED` and `QUEUE_DELETED`: seconds until the next attempt.
    """

    state: State
    reason: Exception | None = None
    backlog: int = 0
    retry_in: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which messages may have been lost or delayed.

    Attributes:
        began: When the listener noticed that it was not connected or not bound, in seconds since the epoch.
        ended: When it was connected and bound again, in seconds since the epoch.
        queue_was_lost: True if the queue is a new one: the messages of this period are lost, and so are older
            messages that still waited in the old queue. Also true if an exchange did not exist: the bindings
            to it had ended. False if the queue kept the messages: they are delivered now.
    """

    began: float
    ended: float
    queue_was_lost: bool


@dataclass(slots=True)
class Counts:
    """Counters of a listener's messages since it was created.

    Attributes:
        received: Handed over to the program, also if they were returned to the queue or dropped afterwards.
        unreadable: Handed over as `UnreadableMessage`.
        acknowledged: Acknowledged.
        returned: Failed and returned to the queue.
        dropped: Failed too often and dropped.
        duplicates: Left out by the duplicate filter, and not handed over.
        connections: How often the listener was connected.
    """

    received: int = 0
    unreadable: int = 0
    acknowledged: int = 0
    returned: int = 0
    dropped: int = 0
    duplicates: int = 0
    connections: int = 0
