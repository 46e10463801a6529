"""A delivery as the program sees it: typed, or handed over as unreadable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from taskqueue_client.models.messages import TaskGroupMessage, TaskMessage

from .exchanges import EXCHANGES
from .routing import RoutingKey

_CC: Final = "route."
_BY_NAME: Final = {exchange.full_name: exchange for exchange in EXCHANGES}


class UnreadableMessage(msgspec.Struct, frozen=True):
    """A message that is not what its exchange publishes.

    Attributes:
        reason: What is wrong with it.
        body: As it came.
        routing_key: As it came.
    """

    reason: str
    body: bytes
    routing_key: str


class Event(msgspec.Struct, frozen=True):
    """One delivery of one message.

    Attributes:
        exchange: The short name of the exchange, such as `task-completed`; of an exchange that is
            not the Queue's, the full name.
        message: The message, in the struct of its exchange.
        routing_key: Its fields; None if the message is unreadable.
        routes: The routes of the task, without the `route.` that their routing keys begin with.
        redeliveries: How often it came back to the queue before: a quorum queue counts, of other
            queues it is known only whether (1) or not (0).
    """

    exchange: str
    message: TaskMessage | TaskGroupMessage | UnreadableMessage
    routing_key: RoutingKey | None
    routes: tuple[str, ...] = ()
    redeliveries: int = 0

    def __str__(self) -> str:
        if isinstance(self.message, UnreadableMessage):
            return f"{self.exchange} {self.message.routing_key}"
        return f"{self.exchange} {self.routing_key.build()}" if self.routing_key else self.exchange


def read_event(
    exchange: str, routing_key: str, body: bytes, headers: Mapping[str, Any], *, redelivered: bool
) -> Event:
    """Read a delivery; whatever is wrong with it becomes an `UnreadableMessage`.

    Args:
        exchange: The full name of the exchange.
        routing_key: The key it was published with (never that of a route).
        body: Its content.
        headers: Its AMQP headers: `CC` and, from a quorum queue, `x-delivery-count`.
        redelivered: The broker's word for having tried to deliver it before.
    """
    counted = headers.get("x-delivery-count")
    redeliveries = counted if isinstance(counted, int) else int(redelivered)
    known = _BY_NAME.get(exchange)
    if known is None:
        unreadable = UnreadableMessage("the exchange is not one of the Queue's", body, routing_key)
        return Event(exchange, unreadable, None, (), redeliveries)
    try:
        message, key = known.read(body), known.parse_routing_key(routing_key)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        unreadable = UnreadableMessage(str(error), body, routing_key)
        return Event(known.name, unreadable, None, (), redeliveries)
    return Event(known.name, message, key, _routes(headers), redeliveries)


def _routes(headers: Mapping[str, Any]) -> tuple[str, ...]:
    cc: object = headers.get("CC")
    keys = cast("list[object]", cc) if isinstance(cc, list) else []
    return tuple(key.removeprefix(_CC) for key in keys if isinstance(key, str) and key.startswith(_CC))
