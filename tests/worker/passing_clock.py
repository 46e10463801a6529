"""A clock for tests that check when something is attempted, without waiting."""

from __future__ import annotations

import asyncio
import time


class PassingClock:
    """A clock on which time passes only in sleeps, and each sleep ends at once.

    Requests take no time on it, so the moments between sleeps are exactly those of the requests.

    Attributes:
        sleeps: How long each sleep was, in seconds.
    """

    def __init__(self) -> None:
        self._started = time.time()
        self._passed = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        """See `Clock.now`. Stands still: signatures stay valid, as the service has the machine's time."""
        return self._started

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._passed

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self._passed += seconds
        self.sleeps.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`."""
        self.sleep(seconds)
        await asyncio.sleep(0)
