"""What the keeper tells the rest of the worker."""

from __future__ import annotations

from typing import Protocol

from taskqueue_client.errors import CallFailed

from .held_run import HeldRun


class KeeperEvents(Protocol):
    """Whom the keeper tells, in its own thread: whoever is told must not wait there."""

    def claimed(self, runs: list[HeldRun]) -> None:
        """A claim call was answered; with no runs if there was nothing to do."""
        ...

    def claim_failed(self, error: CallFailed) -> None:
        """A claim call was refused or not answered; another one follows, unless `refused` does."""
        ...

    def refused(self, error: CallFailed) -> None:
        """The service's first word was that this worker may not claim: it makes no more calls."""
        ...

    def renewed(self, late: float) -> None:
        """A lease was renewed; `late` is how many seconds after its time the first try began."""
        ...

    def renewal_failed(self) -> None:
        """A try to renew a lease failed; another one follows while the lease lasts."""
        ...

    def renewal_refused(self) -> None:
        """The service refused to renew a lease: the run is not ours any more."""
        ...
