"""A run that this worker has claimed, and its lease, shared by the keeper and the rest of the worker.

The states of a run:

    CLAIMED ──resolve──▶ RESOLVING ──confirmed──▶ RESOLVED
       │                     │
       └──────── lost ───────┴──────────────────▶ LOST

The keeper stops reclaiming when resolving begins. A reclaim that is refused after that changes nothing:
the run may be resolved because this worker has just reported it. Only a refused report, or the end of the
lease, loses a run that is being resolved.

The length of a lease is the difference of two times of the service's clock; everything else is measured on
the local monotonic clock. So a wrong local clock does no harm, not even if it is set while a run is claimed.
The rules are fractions of the length: a lease of 5 s is handled like one of 20 minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from taskqueue_client._client_base import ClientBase
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import CallFailed
from taskqueue_client.models import TaskClaim
from taskqueue_client.models._base import prepare
from taskqueue_client.worker.outcomes import ClaimLost, LossReason
from taskqueue_client.worker.tracing import NO_TRACING, RunTrace
from taskqueue_client.worker.worker_log import LoggedRun

RECLAIM_BETWEEN = (0.5, 0.7)
"""The fraction of a lease after which the run is reclaimed is random in this range. Of 20 minutes, at
least 6 are left for retries; runs that were claimed together are not all reclaimed at the same time."""

RETRY_FIRST = 0.25
RETRY_GROWTH = 4.0
RETRY_LEAST = 0.05
RETRY_MOST = 300.0
"""Seconds between attempts to reclaim, report or upload: four times as long after each failure, and at most a
third of the time that is left, so that short leases get several attempts as well. The waits grow with the
outage, because after it all runs that have waited make their requests (`docs/capacity.md`)."""

ATTEMPT_MOST = 30.0
ATTEMPT_LEAST = 0.5
"""Timeout of one attempt in seconds: a third of the time that is left, within these bounds, so that there is
time for another attempt if a connection hangs."""


class ClaimState(Enum):
    """The state of a claimed run."""

    CLAIMED = "claimed"
    RESOLVING = "resolving"
    RESOLVED = "resolved"
    LOST = "lost"


class ClaimEvent(Enum):
    """An event in the life of a claimed run."""

    RESOLVE = "resolve"
    """The outcome is known, and is about to be reported."""
    CONFIRMED = "confirmed"
    """The Queue has resolved the run as reported."""
    RECLAIM_REFUSED = "reclaim-refused"
    """The Queue refused a reclaim, or its status says that the run is resolved."""
    REPORT_REFUSED = "report-refused"
    """The Queue refused the report: the run is resolved in another way."""
    LEASE_ENDED = "lease-ended"
    """The lease ended before a reclaim or report succeeded: another worker may have the task by now."""


_NEXT: Mapping[tuple[ClaimState, ClaimEvent], ClaimState] = {
    (ClaimState.CLAIMED, ClaimEvent.RESOLVE): ClaimState.RESOLVING,
    (ClaimState.CLAIMED, ClaimEvent.RECLAIM_REFUSED): ClaimState.LOST,
    (ClaimState.CLAIMED, ClaimEvent.LEASE_ENDED): ClaimState.LOST,
    (ClaimState.RESOLVING, ClaimEvent.CONFIRMED): ClaimState.RESOLVED,
    (ClaimState.RESOLVING, ClaimEvent.REPORT_REFUSED): ClaimState.LOST,
    (ClaimState.RESOLVING, ClaimEvent.LEASE_ENDED): ClaimState.LOST,
}
"""Every other event changes nothing: it comes too late."""


class Reclaimed(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of a `TaskReclaim` that a lease needs.

    The status is not read: one that this version cannot decode would fail all reclaims until the lease ends.
    """

    taken_until: datetime
    credentials: Credentials


prepare(Reclaimed)


@dataclass(frozen=True, slots=True)
class Lease:
    """The time for which a claim is valid.

    Attributes:
        length: Seconds that the service granted.
        ends: The end of the lease on the local monotonic clock.
    """

    length: float
    ends: float

    @classmethod
    def of_claim(cls, claim: TaskClaim, received: float) -> Lease:
        """Return the lease of a claim. It begins when the response was received, after the long poll."""
        started = [run.started for run in claim.status.runs if run.run_id == claim.run_id and run.started]
        length = _seconds(claim.taken_until, *started, *_issued(claim.credentials))
        return cls(length, received + length)

    def reclaimed(self, reclaim: Reclaimed, requested: float) -> Lease:
        """Return the lease after a reclaim that was requested at `requested`.

        It is never longer than the lease before, as the service grants the same length each time: the
        `start` of credentials may be before the reclaim, and would make the lease too long.
        """
        granted = _seconds(reclaim.taken_until, *_issued(reclaim.credentials))
        length = min(granted, self.length) if granted else self.length
        return Lease(length, requested + length)

    def left(self, now: float) -> float:
        """Return the seconds until the lease ends; 0 after its end."""
        return max(self.ends - now, 0.0)

    def reclaim_at(self, chance: float) -> float:
        """Return when to reclaim the run, on the monotonic clock; `chance` is random, from 0 to 1."""
        earliest, latest = RECLAIM_BETWEEN
        held = earliest + (latest - earliest) * chance
        return self.ends - self.length * (1 - held)


def retry_in(failures: int, left: float, chance: float) -> float:
    """Return the seconds to wait before the next attempt to reclaim, report or upload.

    Args:
        failures: The number of attempts that failed in a row, 1 or more.
        left: Seconds until the lease ends, or for how long an upload is retried.
        chance: Random, from 0 to 1; varies the wait by up to a half.
    """
    grown = RETRY_FIRST * RETRY_GROWTH ** min(failures - 1, 16)
    return max(min(grown, left / 3, RETRY_MOST) * (0.5 + chance), RETRY_LEAST)


def attempt_timeout(left: float) -> float:
    """Return the timeout of one attempt in seconds, when `left` seconds of the lease are left."""
    return min(max(left / 3, ATTEMPT_LEAST), ATTEMPT_MOST)


def cause_of(error: Exception) -> str:
    """Return why an attempt failed, for the log: a timeout and a lack of memory have no message."""
    return str(error) or ("no response in time" if isinstance(error, TimeoutError) else type(error).__name__)


class _Validity(msgspec.Struct):
    """The start of a certificate's validity, in milliseconds since the epoch."""

    start: int


def _issued(credentials: Credentials) -> list[datetime]:
    """Return when the service issued the credentials of a claim, on its clock.

    Empty if the certificate is missing or unreadable: then calls with it fail, but the lease still works.
    """
    if credentials.certificate is None:
        return []
    try:
        start = msgspec.json.decode(credentials.certificate, type=_Validity).start
        return [datetime.fromtimestamp(start / 1000, UTC)]
    except (msgspec.MsgspecError, ValueError, OverflowError, OSError):
        return []


def _seconds(taken_until: datetime, *server_times: datetime) -> float:
    """Return the seconds from the latest of the service's times to the end of a lease; 0 without any."""
    latest = max(server_times, default=taken_until)
    return max((taken_until - latest).total_seconds(), 0.0)


C = TypeVar("C", bound=ClientBase[Any])


class ClaimedRun(LoggedRun):
    """A claimed run. Safe to use from any thread.

    Attributes:
        claim: The claim, as the Queue sent it.
        credentials: The credentials of the claim, or of the last reclaim.
        lease: How long the claim lasts.
        trace: The span of the run.
        outage: Seconds for which the Queue could not be reached shortly before the claim; 0: it could.
        lost: Why this worker has lost the claim; None as long as it has the claim.
    """

    __slots__ = (
        "_client", "_lock", "_queue", "_watchers", "_when_lost", "claim", "credentials", "lease", "lost",
        "outage", "run_id", "state", "task_id", "trace",
    )  # fmt: skip

    def __init__(
        self,
        claim: TaskClaim,
        lease: Lease,
        queue: AsyncQueue,
        trace: RunTrace | None = None,
        outage: float = 0.0,
    ) -> None:
        self.claim = claim
        self.trace = trace or NO_TRACING.begin_run(claim)
        self.task_id = claim.status.task_id
        self.run_id = claim.run_id
        self.lease = lease
        self.outage = outage
        self.state = ClaimState.CLAIMED
        self.credentials = claim.credentials
        self._watchers: list[Callable[[Credentials], object]] = []
        self._client = queue
        self._queue: AsyncQueue | None = None
        self.lost: ClaimLost | None = None
        self._when_lost: Callable[[ClaimLost], object] | None = None
        self._lock = threading.Lock()

    @property
    def queue(self) -> AsyncQueue:
        """The keeper's client for the run. It makes one attempt per call: the keeper retries."""
        if self._queue is None:  # many runs end before their first reclaim
            self._queue = self.client(self._client)
        return self._queue

    @property
    def has_claim(self) -> bool:
        """Whether this worker still has the claim."""
        return self.state in {ClaimState.CLAIMED, ClaimState.RESOLVING}

    def __str__(self) -> str:
        return f"{self.task_id}/{self.run_id}"

    def watch_credentials(self, tell: Callable[[Credentials], object]) -> None:
        """Call `tell` with the current credentials, and later with each that replaces them."""
        with self._lock:
            tell(self.credentials)  # first: if `tell` raises, it is not called again
            self._watchers.append(tell)

    def forget_watcher(self, tell: Callable[[Credentials], object]) -> None:
        """Call `tell` with no further credentials."""
        with self._lock:
            if tell in self._watchers:
                self._watchers.remove(tell)

    def client(self, client: C, authorized_scopes: tuple[str, ...] | None = None) -> C:
        """Return a copy of a client that always signs with the current credentials.

        It is restricted to `authorized_scopes`, unless they are None.
        """
        follower = client.with_credentials(None)
        self.watch_credentials(partial(_sign_with, follower, authorized_scopes))
        return follower

    def use_credentials(self, credentials: Credentials) -> None:
        """Use other credentials from now on, also for the next attempts of calls in progress."""
        with self._lock:
            self.credentials = credentials
            for tell in self._watchers:
                tell(credentials)

    def when_lost(self, callback: Callable[[ClaimLost], object]) -> None:
        """Call `callback` when the claim is lost, in the thread that notices; at once if it already is."""
        with self._lock:
            lost = self.lost
            if self.has_claim:
                self._when_lost = callback
        if lost is not None:
            callback(lost)

    def apply(self, event: ClaimEvent, why: str = "", reason: LossReason = LossReason.OTHER) -> bool:
        """Apply an event; return whether it changed the state.

        If the event loses the claim, `why` is the cause in words, and `reason` the cause as metrics count it.
        """
        with self._lock:
            before, self.state = self.state, _NEXT.get((self.state, event), self.state)
            if self.state is before:
                return False
            if self.has_claim:
                return True
            callback, self._when_lost = self._when_lost, None  # the callback refers to the run: free both
            if self.state is not ClaimState.LOST:
                return True
            lost = self.lost = ClaimLost(f"claim on {self} lost: {why}", reason=reason)
        if callback is not None:
            callback(lost)
        return True


def _sign_with(client: ClientBase[Any], scopes: tuple[str, ...] | None, credentials: Credentials) -> None:
    client.credentials = credentials if scopes is None else credentials.restricted_to(scopes)


ReclaimResult = Literal["reclaimed", "failed", "refused"]
"""How an attempt to reclaim a run ended; after `refused`, the claim is lost."""


class KeeperEvents(Protocol):
    """Receives the keeper's events, in the keeper's thread; its methods must not block."""

    def claimed(self, task_queue_id: str, runs: list[ClaimedRun]) -> None:
        """A claim request to a task queue returned; `runs` is empty if there was no work."""
        ...

    def claim_failed(self, task_queue_id: str, error: CallFailed) -> None:
        """A claim request to a task queue failed; another one follows unless `claiming_refused` is called."""
        ...

    def claiming_refused(self, error: CallFailed) -> None:
        """The Queue refused the worker's first claim request; no other one follows."""
        ...

    def reclaim_began(self, late: float) -> None:
        """The reclaim of a run began, `late` seconds after it was due."""
        ...

    def reclaim_ended(self, result: ReclaimResult) -> None:
        """An attempt to reclaim a run ended. After `failed`, another one follows while the lease lasts."""
        ...
