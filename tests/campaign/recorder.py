"""The listener of a campaign: receives all messages about its tasks, over a connection that faults cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from taskqueue_client.events import (
    AsyncListener,
    Binding,
    Event,
    PulseSettings,
    artifact_created,
    task_completed,
    task_defined,
    task_exception,
    task_failed,
    task_pending,
    task_running,
)
from taskqueue_client.models.messages import ArtifactCreatedMessage, TaskMessage

from .evidence import ReceivedMessage

_EXCHANGES: tuple[Callable[..., Binding], ...] = (
    task_defined,
    task_pending,
    task_running,
    artifact_created,
    task_completed,
    task_failed,
    task_exception,
)
RESOLVED = frozenset({"task-completed", "task-failed", "task-exception"})
"""The exchanges of messages about resolved runs."""

_QUIET = 5.0
"""Seconds without a message after which none is expected: a listener reconnects within that time."""


class Recorder:
    """Records messages until it is told that there will be no more.

    Args:
        settings: The broker, by the address at which faults cut the connection.
        task_queue_id: The task queue of the tasks.
        queue: The name of a durable queue.
        noted: Called with each message that was recorded.

    Attributes:
        messages: The messages in the order of their delivery; repeated deliveries are repeated here.
        unreadable: The messages that could not be decoded.
        ready: Set when the queue and its bindings exist: messages from then on are recorded.
    """

    def __init__(
        self,
        settings: PulseSettings,
        task_queue_id: str,
        queue: str,
        noted: Callable[[ReceivedMessage], object],
    ) -> None:
        self.messages: list[ReceivedMessage] = []
        self.unreadable: list[str] = []
        self.ready = asyncio.Event()
        self._noted = noted
        self._last = False
        bindings = [exchange(task_queue_id=task_queue_id) for exchange in _EXCHANGES]
        self.listener = AsyncListener(settings, bindings, queue=queue, wait_initial=0.1, wait_max=2)

    async def run(self) -> None:
        """Record messages until `finish` was called and no more arrive."""
        async with self.listener as listener:
            self.ready.set()
            while True:
                event = await listener.get(timeout=_QUIET if self._last else 1)
                if event is not None:
                    self._record(event)
                elif self._last:
                    return

    def finish(self) -> None:
        """Let `run` end after the last message."""
        self._last = True

    def _record(self, event: Event) -> None:
        if not isinstance(event.message, TaskMessage):
            self.unreadable.append(str(event))
            return
        message = event.message
        artifact = message.artifact.name if isinstance(message, ArtifactCreatedMessage) else None
        run_id = cast("int | None", getattr(message, "run_id", None))
        status = message.status
        received = ReceivedMessage(
            event.exchange, status.task_id, run_id, str(status.state), status.runs, artifact
        )
        self.messages.append(received)
        self._noted(received)
