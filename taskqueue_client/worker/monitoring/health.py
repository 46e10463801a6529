"""The health of a worker: whether it takes work, and whether it should be restarted."""

from __future__ import annotations

from dataclasses import dataclass

READY_WITHIN = 60.0
"""Seconds from one response to a claim request to the next. A request takes 20 s when there is no work, and
three in a row do not fail by chance. Also seconds for which the worker's event loop may be blocked."""

LIVE_WITHIN = 600.0
"""The same, after which the worker should be restarted: the worker, and not the Queue, may be what hangs."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """The state of a worker. Times are in seconds.

    Attributes:
        has_claimed: The Queue has responded to a claim request, with or without work.
        since_claim: How long a claim request has been due without a response: since the last response,
            since the worker has had free slots again, or since it started. None while none is due, as all
            slots are taken or the worker is shutting down.
        is_shutting_down: The shutdown has begun.
        claimed: How many runs are claimed.
        lease_left: What is left of the lease that ends first; negative if it has ended; None without a run.
        stuck: How many slots are held by handlers that do not stop, though their runs have ended.
        slots: How many slots there are: the setting `concurrency`.
        blocked: For how long the worker's event loop has been blocked, by a hook or a log handler that waits.
    """

    has_claimed: bool
    since_claim: float | None
    is_shutting_down: bool
    claimed: int
    lease_left: float | None
    stuck: int
    slots: int
    blocked: float


def live_problems(vitals: Vitals) -> list[str]:
    """Return why a worker should be restarted; an empty list if it should not."""
    problems: list[str] = []
    if vitals.since_claim is not None and vitals.since_claim > LIVE_WITHIN:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    if vitals.lease_left is not None and vitals.lease_left < 0:
        problems.append(f"a lease ended {-vitals.lease_left:.0f} s ago, and its run is still being worked on")
    if vitals.stuck >= vitals.slots:
        problems.append("handlers of runs that have ended do not stop, and hold all slots")
    if vitals.blocked > LIVE_WITHIN:
        problems.append(_blocked(vitals))
    return problems


def _blocked(vitals: Vitals) -> str:
    return f"a hook, or the reader of the worker's log, has blocked the worker for {vitals.blocked:.0f} s"


def ready_problems(vitals: Vitals) -> list[str]:
    """Return why a worker does not take work; an empty list if it does."""
    problems = live_problems(vitals)
    if vitals.is_shutting_down:
        problems.append("the worker is shutting down")
    if not vitals.has_claimed:
        problems.append("no response to a claim request yet")
    elif vitals.since_claim is not None and READY_WITHIN < vitals.since_claim <= LIVE_WITHIN:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    if READY_WITHIN < vitals.blocked <= LIVE_WITHIN:
        problems.append(_blocked(vitals))
    return problems
