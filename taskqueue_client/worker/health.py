"""Whether a worker is well, from its claim calls and its leases."""

from __future__ import annotations

from dataclasses import dataclass

READY_WITHIN = 60.0
"""Seconds from one answered claim call to the next: a call takes 20 when there is nothing to do, and three of
them in a row don't fail by chance."""

LIVE_WITHIN = 600.0
"""The same, after which the worker should be restarted: it, and not the Queue, may be what hangs."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """How a worker is at the moment. Times are in seconds.

    Attributes:
        has_claimed: A claim call was answered, if only with nothing.
        since_claim: How long claim calls have been due without an answer: since the last answer, since the
            worker has had free slots again, or since it began. None while none is due, as all slots are
            taken or the worker is leaving.
        is_leaving: The shutdown has begun.
        held: How many runs are held.
        lease_left: How long the lease that ends first goes on; negative if it is over; None without any.
    """

    has_claimed: bool
    since_claim: float | None
    is_leaving: bool
    held: int
    lease_left: float | None


def live_problems(vitals: Vitals) -> list[str]:
    """Why a worker should be restarted; nothing if it should not."""
    problems: list[str] = []
    if vitals.since_claim is not None and vitals.since_claim > LIVE_WITHIN:
        problems.append(f"no claim call was answered for {vitals.since_claim:.0f} s")
    if vitals.lease_left is not None and vitals.lease_left < 0:
        problems.append(f"a lease has been over for {-vitals.lease_left:.0f} s, and its run is still held")
    return problems


def ready_problems(vitals: Vitals) -> list[str]:
    """Why a worker does not take work; nothing if it does."""
    problems = live_problems(vitals)
    if vitals.is_leaving:
        problems.append("the worker is leaving")
    if not vitals.has_claimed:
        problems.append("no claim call was answered yet")
    elif vitals.since_claim is not None and READY_WITHIN < vitals.since_claim <= LIVE_WITHIN:
        problems.append(f"no claim call was answered for {vitals.since_claim:.0f} s")
    return problems
