"""Event loops that are blocked: for how long, and by which code."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from taskqueue_client.worker.threads import EventThread, ThreadsafeCalls
from taskqueue_client.worker.worker_log import log

BLOCKED_AFTER = 1.0
"""Seconds without a turn of the handlers' loop after which a warning is logged. Runs are still reclaimed, but
the other handlers stand still."""


class LoopLag:
    """Measures for how long an event loop has been blocked. Safe to use from any thread."""

    def __init__(self, calls: ThreadsafeCalls, monotonic: Callable[[], float]) -> None:
        self._calls = calls
        self._monotonic = monotonic
        self._asked: float | None = None

    def blocked_for(self) -> float:
        """Return how many seconds a call to the loop has been pending; make one if none is."""
        now, asked = self._monotonic(), self._asked
        if asked is None:
            self._asked = now
            self._calls.call(self._turn)
            return 0.0
        return now - asked

    def _turn(self) -> None:
        self._asked = None


class BlockedLoopWatch:
    """Logs a warning with the stack when handlers block the loop that they share.

    It runs in another loop.

    Args:
        blocked_after: Seconds without a turn before the first warning; each further one takes twice as long.
    """

    def __init__(self, thread: EventThread, blocked_after: float = BLOCKED_AFTER) -> None:
        self._thread = thread
        self._blocked_after = blocked_after

    async def run(self) -> None:
        """Watch until canceled."""
        while True:
            await self._turn()
            await asyncio.sleep(self._blocked_after)

    async def _turn(self) -> None:
        """Wait for one turn of the watched loop, and log a warning as long as it does not come."""
        turned = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._thread.call(loop.call_soon_threadsafe, turned.set)
        started, wait = time.monotonic(), self._blocked_after
        while not turned.is_set():
            try:
                await asyncio.wait_for(turned.wait(), wait)
            except TimeoutError:
                self._warn(time.monotonic() - started)
                wait *= 2

    def _warn(self, seconds: float) -> None:
        frame = _frame_of(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"
        log.warning(
            "a handler has blocked the event loop of all handlers for %.1f s; it should await, or be a "
            "plain function; it is here:\n%s",
            seconds,
            stack,
        )


def _frame_of(thread: EventThread) -> FrameType | None:
    """Return what a thread is executing.

    Meanwhile there is no garbage collection: with one, the call may stop all threads for good, up to Python
    3.11.8 (https://github.com/python/cpython/issues/106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the documented way to another thread's stack  # pyright: ignore[reportPrivateUsage]
    finally:
        if collects:
            gc.enable()
