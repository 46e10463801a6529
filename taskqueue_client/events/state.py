"""What a listener says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a listener stands with its broker."""

    CONNECTING = "connecting"
    """It connects, declares and binds."""
    LISTENING = "listening"
    """Messages come as they are published."""
    LAGGING = "lagging"
    """It listens, but the messages that wait at the broker grow more: they come faster than they go."""
    DISCONNECTED = "disconnected"
    """The connection ended, or could not be made; it is going to try again."""
    QUEUE_DELETED = "queue-deleted"
    """The queue was deleted, with what was waiting in it; it is going to be made again."""
    CLOSED = "closed"
    """It will not listen again."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """What `on_state` is told.

    Attributes:
        state: Where the listener stands now.
        reason: The error behind it, if there is one; it never shows the password.
        backlog: With `LISTENING` and `LAGGING`, how many messages wait at the broker.
        retry_in: With `DISCONNECTED` and `QUEUE_DELETED`, in how many seconds it tries again.
    """

    state: State
    reason: Exception | None = None
    backlog: int = 0
    retry_in: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which messages may have been missed, or were only delayed.

    Attributes:
        began: Seconds since the epoch, when the listener noticed that it was cut off.
        ended: Seconds since the epoch, when it listened again.
        queue_was_lost: What was published in between is gone: the queue is a new one. Otherwise the
            queue has kept the messages, and they come now.
    """

    began: float
    ended: float
    queue_was_lost: bool


@dataclass(slots=True)
class Counts:
    """What happened to messages since the listener was made.

    Attributes:
        received: Handed over, those counted below among them.
        unreadable: Handed over as `UnreadableMessage`.
        acknowledged: Dealt with.
        returned: Failed, and given back to the queue for another try.
        dropped: Failed too often, and dropped.
        duplicates: Not handed over, because the filter knew them.
        connections: How often it began to listen.
    """

    received: int = 0
    unreadable: int = 0
    acknowledged: int = 0
    returned: int = 0
    dropped: int = 0
    duplicates: int = 0
    connections: int = 0
