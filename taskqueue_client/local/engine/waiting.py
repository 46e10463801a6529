"""Long polls: the lines in which claimWork requests wait for tasks, one line per task queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskqueue_client.clock import Clock

Claims = TypeVar("Claims")


class Lines:
    """First come, first served: only the head of a line is woken, and wakes the next one as it leaves."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: defaultdict[str, deque[asyncio.Event]] = defaultdict(deque)

    def wake(self, task_queue_id: str) -> None:
        """Let the head of the line look for tasks."""
        if task_queue_id in self._lines:
            self._lines[task_queue_id][0].set()

    async def wait(
        self, task_queue_id: str, seconds: float, claim: Callable[[], list[Claims]]
    ) -> list[Claims]:
        """What `claim` gets as soon as it gets something and it is this request's turn; `[]` after `seconds`.

        Nothing is claimed for a request that is cancelled.
        """
        if task_queue_id not in self._lines and (claims := claim()):
            return claims
        turn = asyncio.Event()
        line = self._lines[task_queue_id]
        line.append(turn)
        timer = asyncio.create_task(self._clock.sleep_async(seconds), name=f"long poll of {task_queue_id}")
        timer.add_done_callback(lambda _: turn.set())
        try:
            return await self._until(turn, timer, claim)
        finally:
            timer.cancel()
            self._leave(task_queue_id, turn)

    async def _until(
        self, turn: asyncio.Event, timer: asyncio.Task[None], claim: Callable[[], list[Claims]]
    ) -> list[Claims]:
        while True:
            await turn.wait()
            turn.clear()
            claims = claim()
            if claims or timer.done():
                return claims

    def _leave(self, task_queue_id: str, turn: asyncio.Event) -> None:
        line = self._lines[task_queue_id]
        line.remove(turn)
        if line:
            line[0].set()
        else:
            del self._lines[task_queue_id]
