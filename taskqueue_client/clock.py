"""Clocks: the source of time and waiting for the whole package, so that tests can control both."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clock", "MovableClock", "MovableMachineClock", "SystemClock"]


@runtime_checkable
class Clock(Protocol):
    """The source of time; all values are in seconds."""

    def now(self) -> float:
        """Return the seconds since the epoch; jumps when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment; never jumps. Only differences are meaningful."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Suspend this coroutine for `seconds`; the event loop runs others."""
        ...


class SystemClock:
    """The machine's clock; see `Clock`."""

    monotonic = staticmethod(time.monotonic)  # libraries that freeze the time do not look into classes

    def now(self) -> float:
        """See `Clock.now`. Looks up `time.time` each time, which a test may have replaced."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`."""
        import asyncio  # noqa: PLC0415 - costs 20 ms that the synchronous client does not need

        await asyncio.sleep(seconds)


class MovableClock:
    """A clock for tests: runs like the machine's clock until it is held, and can be moved forward.

    A sleep on this clock ends as soon as the clock has moved far enough. Safe to use from any thread.

    Args:
        start: The initial time, in seconds since the epoch; default: the machine's time.
        held: Whether the clock is held from the start.

    Raises:
        TypeError: `start` is not a number.
    """

    def __init__(self, start: float | None = None, *, held: bool = False) -> None:
        if start is not None and not isinstance(start, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] # any type
            raise TypeError(
                f"start: {start!r} is not valid; expected seconds since the epoch (datetime.timestamp())"
            )
        self._moved = threading.Condition()
        self._epoch = time.time() if start is None else start
        self._offset = 0.0
        self._running_since: float | None = None if held else SystemClock.monotonic()
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
            return self._offset + SystemClock.monotonic() - self._running_since

    @property
    def is_held(self) -> bool:
        """Whether the clock is held."""
        return self._running_since is None

    def hold(self) -> None:
        """Stop the clock until `release`; `advance` still moves it."""
        with self._moved:
            self._offset = self.monotonic()
            self._running_since = None

    def release(self) -> None:
        """Let the clock run again, from its current time."""
        with self._moved:
            if self._running_since is None:
                self._running_since = SystemClock.monotonic()
        self._wake_sleepers()

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move the clock forward, and return after all `after_move` callbacks have run.

        Raises:
            ValueError: The sum is negative or not finite.
            TypeError: An argument is not a number.
        """
        try:
            step = float(seconds + 60 * (minutes + 60 * (hours + 24 * days)))
        except OverflowError:
            step = math.inf
        except TypeError:
            given = (seconds, minutes, hours, days)
            allowed = "numbers, such as advance(60) or advance(minutes=1)"
            raise TypeError(f"advance: {given!r} is not valid; expected {allowed}") from None
        if not 0 <= step < math.inf:
            raise ValueError(f"advance: {step} s is not valid; expected 0 or more: the clock cannot go back")
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
                    async with asyncio.timeout(None if self._running_since is None else left):
                        await moved.wait()
                moved.clear()
        finally:
            self._async_sleepers.discard(sleeper)

    def _wake_sleepers(self) -> None:
        with self._moved:
            self._moved.notify_all()
        for loop, moved in list(self._async_sleepers):
            with suppress(RuntimeError):  # that loop is closed, so no coroutine of it waits
                loop.call_soon_threadsafe(moved.set)


class MovableMachineClock(MovableClock):
    """A movable clock that also follows jumps of the machine's clock, such as after a laptop's sleep."""

    def __init__(self) -> None:
        super().__init__()
        self._start = _jumped()
        self._jump_before_hold = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        return super().now() + self._jump()

    def hold(self) -> None:
        """See `MovableClock.hold`."""
        self._jump_before_hold = self._jump()
        super().hold()

    def release(self) -> None:
        """See `MovableClock.release`. Jumps of the machine's clock during the hold do not count."""
        self._start = _jumped() - self._jump()
        super().release()

    def _jump(self) -> float:
        """Return by how many seconds the machine's clock has jumped, without jumps during a hold."""
        return self._jump_before_hold if self.is_held else _jumped() - self._start


def _jumped() -> float:
    """Return a value that only changes when the machine's clock is set or the machine sleeps."""
    return time.time() - time.monotonic()
