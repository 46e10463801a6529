"""A warning, with the stack, when handlers hold up the loop that they share."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback

from .event_thread import EventThread

log = logging.getLogger("taskqueue_client.worker")

BLOCKED_AFTER = 1.0
"""Seconds without a turn of the loop. Runs keep their claims, but other handlers stand still meanwhile."""


class BlockedLoopWatch:
    """Looks from another loop whether a thread's loop still turns.

    Args:
        thread: The thread to watch.
        blocked_after: Seconds without a turn before the first warning; each further one takes twice as long.
    """

    def __init__(self, thread: EventThread, blocked_after: float = BLOCKED_AFTER) -> None:
        self._thread = thread
        self._blocked_after = blocked_after

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._turn()
            await asyncio.sleep(self._blocked_after)

    async def _turn(self) -> None:
        """Wait for one turn of the watched loop, and complain as long as it does not come."""
        turned = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._thread.call(loop.call_soon_threadsafe, turned.set)
        started, patience = time.monotonic(), self._blocked_after
        while not turned.is_set():
            try:
                await asyncio.wait_for(turned.wait(), patience)
            except TimeoutError:
                self._warn(time.monotonic() - started)
                patience *= 2

    def _warn(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the documented way to another thread's stack  # pyright: ignore[reportPrivateUsage]
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"
        log.warning(
            "a handler has blocked the event loop of all handlers for %.1f s; it should await, or be a "
            "plain function; it is here:\n%s",
            seconds,
            stack,
        )
