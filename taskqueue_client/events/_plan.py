"""What a listener declares at the broker, checked before there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from taskqueue_client.errors import InvalidArgument

from .exchanges import Binding
from .settings import PulseSettings

LONGEST_NAME: Final = 255
"""Bytes in the name of a queue, in AMQP."""
MOST_PREFETCHED: Final = 65_535
"""The largest prefetch that AMQP has a place for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every session of a listener declares.

    Attributes:
        settings: The broker.
        queue: The full name of a durable queue, or None for one that ends with its session.
        bindings: What goes into the queue.
        prefetch: The most messages that the broker hands out without hearing of them.
    """

    settings: PulseSettings
    queue: str | None
    bindings: Sequence[Binding]
    prefetch: int


def make_plan(
    settings: PulseSettings, bindings: Iterable[Binding | Iterable[Binding]], queue: str | None, prefetch: int
) -> Plan:
    """A plan that a broker can follow.

    Raises:
        InvalidArgument: There is no such binding, name or number.
    """
    flat = [one for each in bindings for one in ([each] if isinstance(each, Binding) else each)]
    if not flat:
        raise InvalidArgument("bindings", flat, "at least one")
    if not 1 <= prefetch <= MOST_PREFETCHED:
        raise InvalidArgument("prefetch", prefetch, f"1 to {MOST_PREFETCHED}")
    return Plan(settings, None if queue is None else _full_name(settings.user, queue), flat, prefetch)


def _full_name(user: str, queue: str) -> str:
    """The name by the rules of Pulse, which lets a user have only queues that begin so."""
    full_name = f"queue/{user}/{queue}"
    if not queue or queue.startswith("queue/") or len(full_name.encode()) > LONGEST_NAME:
        allowed = f"what follows queue/{user}/ in the queue's name, {LONGEST_NAME} bytes in all"
        raise InvalidArgument("queue", queue, allowed)
    return full_name
