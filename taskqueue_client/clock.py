"""Time as a seam: what the package waits on and reads the time from, so that a test can hold it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


class Clock(Protocol):
    """Where time comes from: all values are seconds."""

    def now(self) -> float:
        """Seconds since the epoch; jumps when somebody sets the machine's clock."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never jumps. Only differences mean something."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Let the event loop go on with other work."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.time()

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`."""
        import asyncio  # noqa: PLC0415 - costs 20 ms that the blocking client does not need

        await asyncio.sleep(seconds)


class MovableClock:
    """A clock for tests: it runs like the machine's until it is held, and can be moved forward.

    Whoever sleeps on it wakes as soon as it has been moved far enough. Safe to use from any thread.

    Args:
        start: The time to begin at, in seconds since the epoch; the machine's time when left out.
        held: Begin standing still.
    """

    def __init__(self, start: float | None = None, *, held: bool = False) -> None:
        self._moved = threading.Condition()
        self._epoch = time.time() if start is None else start
        self._offset = 0.0
        self._running_since: float | None = None if held else time.monotonic()
        self._async_sleepers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._after_move: list[Callable[[], object]] = []

    def now(self) -> float:
        """See `Clock.now`."""
        return self._epoch + self.monotonic()

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        with self._moved:
            if self._running_since is None:
                return self._offset
            return self._offset + time.monotonic() - self._running_since

    def hold(self) -> None:
        """Stand still from now on."""
        with self._moved:
            self._offset = self.monotonic()
            self._running_since = None

    def release(self) -> None:
        """Run again, from where the clock stands."""
        with self._moved:
            if self._running_since is None:
                self._running_since = time.monotonic()
        self._wake_sleepers()

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move forward at once, and return when everything registered with `after_move` has run.

        Raises:
            ValueError: The clock would go backwards.
        """
        step = seconds + 60 * (minutes + 60 * (hours + 24 * days))
        if step < 0:
            message = f"a clock moves forward only, not by {step} s"
            raise ValueError(message)
        with self._moved:
            self._offset += step
        self._wake_sleepers()
        for callback in list(self._after_move):
            callback()

    def after_move(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the end of each `advance`, in the thread that advances."""
        self._after_move.append(callback)

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        until = self.monotonic() + seconds
        with self._moved:
            while (left := until - self.monotonic()) > 0:
                self._moved.wait(None if self._running_since is None else left)

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`."""
        import asyncio  # noqa: PLC0415 - see SystemClock

        until = self.monotonic() + seconds
        moved = asyncio.Event()
        sleeper = (asyncio.get_running_loop(), moved)
        self._async_sleepers.add(sleeper)
        try:
            while (left := until - self.monotonic()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(moved.wait(), None if self._running_since is None else left)
                moved.clear()
        finally:
            self._async_sleepers.discard(sleeper)

    def _wake_sleepers(self) -> None:
        with self._moved:
            self._moved.notify_all()
        for loop, moved in list(self._async_sleepers):
            with suppress(RuntimeError):  # that loop was closed: nobody sleeps there any more
                loop.call_soon_threadsafe(moved.set)
