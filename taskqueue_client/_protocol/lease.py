"""The timing of claims: how long a claim lasts, when to reclaim the run, and when to retry.

No I/O. The length of a lease is the difference of two times of the service's clock; everything else is
measured on the local monotonic clock. So a wrong local clock does no harm, not even if it is set while a run
is claimed. The rules are fractions of the length: a lease of 5 s is handled like one of 20 minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from taskqueue_client.credentials import Credentials
from taskqueue_client.models import TaskClaim, TaskReclaim

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

    def reclaimed(self, reclaim: TaskReclaim, requested: float) -> Lease:
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


class _Validity(msgspec.Struct):
    """The start of a certificate's validity, in milliseconds since the epoch."""

    start: int


def _issued(credentials: Credentials) -> list[datetime]:
    """Return when the service issued the credentials of a claim, on its clock.

    Empty if the credentials do not say: calls with them fail with an error, the lease does not depend on it.
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
