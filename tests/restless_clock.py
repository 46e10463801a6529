"""A clock that does not make tests wait."""

from __future__ import annotations

from taskqueue_client.clock import MovableClock


class RestlessClock(MovableClock):
    """A held clock: sleeping moves it at once, and is recorded.

    Attributes:
        slept: The seconds of each sleep.
    """

    def __init__(self) -> None:
        super().__init__(held=True)
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Advance by `seconds`."""
        self.slept.append(seconds)
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Advance by `seconds`."""
        self.sleep(seconds)
