"""The lease on a run: how long we hold it, when to renew it, and how to go on when that fails.

Pure. Only the length of a lease comes from the service, as the difference of two moments on its own
clock; everything else is counted on the local monotonic clock. So neither a wrong local clock nor one
that is set while a run is held matters, and a lease of 5 s is handled like one of 20 minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from taskqueue_client.models import Credentials, TaskClaim, TaskReclaim

RENEW_BETWEEN = (0.5, 0.7)
"""Parts of its length after which a lease is first renewed, drawn anew each time: of 20 minutes, at
least 6 are left for retries, and a thousand leases that were granted together fire apart."""

RETRY_FIRST = 0.25
RETRY_MOST = 30.0
RETRY_LEAST = 0.05
"""Seconds between tries to renew: they double from the first to the most, but never take more than a
quarter of what is left, so that short leases get several tries, too."""

ATTEMPT_MOST = 30.0
ATTEMPT_LEAST = 0.5
"""Seconds that one try may wait for its answer: a third of what is left within these bounds, so that a
connection that hangs leaves time for another."""


@dataclass(frozen=True, slots=True)
class Lease:
    """How long we hold a run.

    Attributes:
        length: Seconds, as the service granted it.
        ends: When it ends, on the local monotonic clock.
    """

    length: float
    ends: float

    @classmethod
    def of_claim(cls, claim: TaskClaim, received: float) -> Lease:
        """The lease that a claim gives, from when its answer came: the long poll before it is no part."""
        started = [run.started for run in claim.status.runs if run.run_id == claim.run_id and run.started]
        length = _seconds(claim.taken_until, *started, *_issued(claim.credentials))
        return cls(length, received + length)

    def renewed(self, reclaim: TaskReclaim, asked: float) -> Lease:
        """The lease after a renewal, from when it was asked for.

        Never longer than the one before, as the service gives all leases alike: credentials that are
        dated back must not make it look longer.
        """
        granted = _seconds(reclaim.taken_until, *_issued(reclaim.credentials))
        length = min(granted, self.length) if granted else self.length
        return Lease(length, asked + length)

    def left(self, now: float) -> float:
        """Seconds until it ends; 0 when it has."""
        return max(self.ends - now, 0.0)

    def renew_at(self, chance: float) -> float:
        """When to renew it first, on the monotonic clock; `chance` is random, from 0 to 1."""
        earliest, latest = RENEW_BETWEEN
        held = earliest + (latest - earliest) * chance
        return self.ends - self.length * (1 - held)


def retry_in(failures: int, left: float, chance: float) -> float:
    """Seconds to wait after so many failures in a row when `left` seconds are left.

    Args:
        failures: 1 or more.
        left: Of the lease.
        chance: Random, from 0 to 1; spreads the wait by a quarter to both sides.
    """
    doubled = RETRY_FIRST * 2.0 ** min(failures - 1, 16)
    return max(min(doubled, RETRY_MOST, left / 4) * (0.75 + chance / 2), RETRY_LEAST)


def attempt_timeout(left: float) -> float:
    """Seconds that one try may take when `left` seconds are left."""
    return min(max(left / 3, ATTEMPT_LEAST), ATTEMPT_MOST)


class _Validity(msgspec.Struct):
    """The part of a certificate that says when its credentials were made, in ms since the epoch."""

    start: int


def _issued(credentials: Credentials) -> list[datetime]:
    """When the service made the credentials of a claim: its own clock, at the time of its answer.

    Nothing where they do not say: a lease is not lost for that, and calls that need them will say so.
    """
    if credentials.certificate is None:
        return []
    try:
        start = msgspec.json.decode(credentials.certificate, type=_Validity).start
        return [datetime.fromtimestamp(start / 1000, UTC)]
    except (msgspec.MsgspecError, ValueError, OverflowError, OSError):
        return []


def _seconds(taken_until: datetime, *server_times: datetime) -> float:
    """From the latest of the service's own times to the end of a lease; 0 if it names none."""
    latest = max(server_times, default=taken_until)
    return max((taken_until - latest).total_seconds(), 0.0)
