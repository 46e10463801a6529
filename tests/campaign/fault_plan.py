"""The faults of a campaign, and when each strikes. A pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple


class Rate(NamedTuple):
    """How often a kind of fault strikes.

    Attributes:
        per_minute: How often, on average.
        shortest: How long the fault lasts at least, in leases.
        longest: How long the fault lasts at most, in leases.
        target: What the fault strikes; `worker` for any of the workers.
    """

    per_minute: float
    shortest: float
    longest: float
    target: str


RATES = {
    "worker killed": Rate(6, 0, 0.3, "worker"),
    "worker terminated": Rate(1.5, 0, 0.1, "worker"),
    "worker stopped": Rate(2, 0.1, 1.6, "worker"),
    "worker clock set": Rate(3, 0, 0, "worker"),
    "worker disk full": Rate(1.2, 0.1, 0.5, "worker"),
    "queue killed": Rate(1.6, 0, 0.3, "queue"),
    "queue stopped": Rate(0.8, 0.05, 0.4, "queue"),
    "queue clock wrong": Rate(0.5, 0.2, 1, "queue"),
    "queue disk full": Rate(0.6, 0.1, 0.4, "queue"),
    "network cut": Rate(1, 0, 0.3, "network"),
    "storage outage": Rate(0.8, 0.1, 0.5, "storage"),
    "broker cut": Rate(3, 0, 0.2, "broker"),
    "broker silent": Rate(0.5, 0.1, 0.5, "broker"),
}
"""How often each kind of fault strikes; the proxy chooses the faults of single exchanges itself."""


_QUEUE_KILLED = 0.6
"""The part of a campaign, from its start, in which the queue is killed."""


class PlannedFault(NamedTuple):
    """A fault that will strike.

    Attributes:
        at: Seconds after the start.
        kind: A key of `RATES`.
        target: The worker's slot, or what the fault strikes.
        seconds: How long it lasts.
        amount: A random number from -1 to 1, such as for the direction and size of a clock step.
    """

    at: float
    kind: str
    target: str
    seconds: float
    amount: float


def planned_faults(seed: int, *, seconds: float, lease: float, slots: Sequence[str]) -> list[PlannedFault]:
    """Return the faults of a campaign in their order.

    Args:
        seed: Two calls with the same arguments return the same faults.
        seconds: For how long faults begin.
        lease: How long a claim lasts, in seconds.
        slots: The workers. The last worker is never ended, and the queue is not killed in the last part of
            the campaign, so that their memory can be watched.
    """
    rng = random.Random(f"faults {seed}")
    faults: list[PlannedFault] = []
    for kind, rate in RATES.items():
        count = max(1, round(rate.per_minute * seconds / 60))
        faults += [_fault(rng, kind, rate, seconds, lease, slots) for _ in range(count)]
    return sorted(faults)


def _fault(
    rng: random.Random, kind: str, rate: Rate, seconds: float, lease: float, slots: Sequence[str]
) -> PlannedFault:
    may_end = slots[:-1] if kind in {"worker killed", "worker terminated"} else slots
    target = rng.choice(may_end) if rate.target == "worker" else rate.target
    length = lease * rng.uniform(rate.shortest, rate.longest)
    at = rng.uniform(0, seconds if kind != "queue killed" else _QUEUE_KILLED * seconds)
    return PlannedFault(round(at, 3), kind, target, round(length, 3), round(rng.uniform(-1, 1), 3))
