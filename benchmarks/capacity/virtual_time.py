"""An event loop whose time passes only while all tasks sleep: a day takes only the time of its events."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_EPOCH = 1_800_000_000.0
"""The time of the wall clock when a simulation begins, in seconds since the epoch."""


class _NoWait(selectors.DefaultSelector):
    """A selector that moves the time instead of waiting."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            message = "nothing is scheduled: the simulation would never end"
            raise RuntimeError(message)
        self.elapsed += max(timeout, 0.0)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose `time` is the selector's."""

    def __init__(self) -> None:
        self._no_wait = _NoWait()
        super().__init__(self._no_wait)

    def time(self) -> float:
        return self._no_wait.elapsed


class VirtualClock:
    """The time of the running loop, as a `taskqueue_client.clock.Clock`."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return _EPOCH + self.monotonic()

    def monotonic(self) -> float:
        """Seconds since the simulation began."""
        return asyncio.get_running_loop().time()

    def sleep(self, seconds: float) -> None:
        """Raise an error: while it blocks, nothing else could run."""
        message = f"a simulation cannot block for {seconds} s"
        raise RuntimeError(message)

    async def sleep_async(self, seconds: float) -> None:
        """Suspend this coroutine."""
        await asyncio.sleep(seconds)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in virtual time, and return what it returns."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main())
