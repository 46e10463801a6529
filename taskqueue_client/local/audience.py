"""Who listens to the queue's messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskqueue_client.local.messages import Message

_log = logging.getLogger(__name__)


class Audience:
    """All who are handed each message; it is falsy while there is nobody to make messages for."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Message], object]] = []

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[[Message], object]) -> None:
        """Hand each message to `listener` from now on."""
        self._listeners.append(listener)

    def remove(self, listener: Callable[[Message], object]) -> None:
        """Hand it no more of them."""
        self._listeners.remove(listener)

    def publish(self, message: Message) -> None:
        """Hand a message to everybody."""
        for listener in list(self._listeners):
            try:
                listener(message)
            except Exception:  # noqa: BLE001 - one listener's error is not another's, and not the caller's of the API
                _log.exception("a subscriber failed with a message on %s", message.exchange)
