"""At-least-once made nearly once: a memory of the messages that were dealt with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from taskqueue_client.models.messages import ArtifactCreatedMessage, TaskMessage, TaskPriorityChangedMessage

from .event import Event
from .routing import TaskRoutingKey


class DuplicateFilter:
    """Remembers what was dealt with, by exchange, task, run and state (of artifacts, also which).

    The Queue sends a message again when a call is repeated, and the broker when an acknowledgement
    got lost. Messages about groups and changes of priority always count as new: nothing in them
    tells a repetition from the same thing happening again.

    Args:
        size: How many to remember; the oldest are forgotten.
    """

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._known: OrderedDict[Hashable, None] = OrderedDict()

    def knows(self, event: Event) -> bool:
        """Whether one like it was remembered."""
        return _identity(event) in self._known

    def remember(self, event: Event) -> None:
        """Take one like it for a duplicate from now on."""
        identity = _identity(event)
        if identity is None:
            return
        self._known[identity] = None
        self._known.move_to_end(identity)
        if len(self._known) > self._size:
            self._known.popitem(last=False)


def _identity(event: Event) -> Hashable:
    """What two messages about the same thing have in common; None if nothing tells."""
    message, key = event.message, event.routing_key
    if not isinstance(message, TaskMessage) or not isinstance(key, TaskRoutingKey):
        return None
    if isinstance(message, TaskPriorityChangedMessage):
        return None
    artifact = message.artifact if isinstance(message, ArtifactCreatedMessage) else None
    return (event.exchange, key.task_id, key.run_id, str(message.status.state), artifact)
