"""Whether, and why, a run should stop."""

from __future__ import annotations

import threading

from .outcomes import Outcome


class Cancelled(threading.Event):
    """Set when a handler should stop: wait for it, look at it, or `check` it.

    Attributes:
        reason: Why; None until it is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason: Outcome | None = None

    def cancel(self, reason: Outcome) -> None:
        """Set it; the first reason stays."""
        if self.reason is None:
            self.reason = reason
        self.set()

    def check(self) -> None:
        """Go on, or raise the reason to stop.

        Raises:
            ClaimLost: The run is not ours any more.
            WorkerShutdown: The worker leaves.
            TaskFailed: It has taken longer than `max_run_time`.
        """
        if self.reason is not None:
            raise type(self.reason)(*self.reason.args)
