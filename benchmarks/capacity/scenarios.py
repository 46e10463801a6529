"""What is simulated: a steady day, and what happens after outages, boots and terminations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from taskqueue_client.worker.claims import claiming, reclaiming
from taskqueue_client.worker.claims.claimed_run import ClaimState
from taskqueue_client.worker.run import reporting, upload_retries

from . import virtual_time
from .deployment import Deployment
from .fleet import Fleet, Load

WARM_UP = 2400
"""Seconds until the fleet is in a steady state: runs have begun at different times, and are reclaimed."""

BOOT = 600
"""Seconds over which the workers of a fleet boot."""

MEASURED = 1200
"""Seconds of the steady state that give the mean."""

AFTERWARDS = 900
"""Seconds that are looked at after an event."""

WINDOW = 10
"""Seconds over which a peak is measured: shorter ones show chance."""

CALM = 1.5
"""A fleet has calmed down when it makes at most this multiple of its mean requests."""

RECONNECT_MOST = 60.0
"""The longest wait of an event listener between two attempts to connect, by default."""


@dataclass(frozen=True, slots=True)
class Herd:
    """What an event did.

    Attributes:
        mean: Requests per second before it.
        peaks: The most requests per second after it as a multiple of the mean, in all and by kind.
        drained: Seconds until the fleet was calm again.
        lost: The part of the claimed runs whose claims were lost.
        curve: Requests per second, window by window, from a minute before the end of the event.
    """

    mean: float
    peaks: dict[str, float]
    drained: int
    lost: float
    curve: list[float]


def steady(load: Load, hours: float, seed: int = 1) -> dict[str, float]:
    """Return the requests per second by kind, in the steady state of `hours`."""

    async def main() -> dict[str, float]:
        fleet = _fleet(load, seed)
        await asyncio.sleep(WARM_UP + hours * 3600)
        counts = fleet.deployment.requests
        return {kind: _rate(counts[kind], WARM_UP, int(hours * 3600)) for kind in sorted(counts)}

    return virtual_time.run(main)


def no_event(load: Load, seed: int = 1) -> Herd:
    """Simulate no event: its peak is by chance alone."""

    async def event(_: Fleet) -> None:
        await asyncio.sleep(0)

    return _herd(load, event, seed)


def outage(load: Load, minutes: float, seed: int = 1) -> Herd:
    """Let the deployment refuse everything for some `minutes`."""

    async def event(fleet: Fleet) -> None:
        fleet.deployment.is_down = True
        await asyncio.sleep(60 * minutes)
        fleet.deployment.is_down = False

    return _herd(load, event, seed)


def broker_outage(load: Load, seed: int = 1) -> Herd:
    """Let all workers lose their broker for longer than the longest wait, and find it again."""

    async def event(fleet: Fleet) -> None:
        for worker in fleet.workers:  # each polls at once after a gap in the messages
            delay = RECONNECT_MOST * random.uniform(0, 1)
            asyncio.get_running_loop().call_later(delay, worker.watch.hint)

    return _herd(load, event, seed)


def mass_boot(load: Load, seed: int = 1) -> Herd:
    """Start as many workers again as there are, all at once, with a task for each slot waiting."""

    async def event(fleet: Fleet) -> None:
        fleet.deployment.create_tasks(load.workers * load.concurrency)
        fleet.boot(load.workers)

    return _herd(load, event, seed)


def spot_termination(load: Load, seed: int = 1) -> Herd:
    """End half of the workers at once; the others take their runs as slots become free."""

    async def event(fleet: Fleet) -> None:
        for worker in fleet.workers[: load.workers // 2]:
            worker.terminate()

    return _herd(load, event, seed)


@contextmanager
def former_policy() -> Generator[None]:
    """Use the former policy: waits double up to 30 s, varied by a quarter; first logs within 10 s."""

    def retry_in(failures: int, left: float, chance: float) -> float:
        doubled = 0.25 * 2.0 ** min(failures - 1, 16)
        return max(min(doubled, 30.0, left / 4) * (0.75 + chance / 2), 0.05)

    def outage(_: claiming.Claiming) -> float:
        return 0.0

    with ExitStack() as patches:
        for module in (reclaiming, reporting, upload_retries):
            patches.enter_context(patch.object(module, "retry_in", retry_in))
        patches.enter_context(patch.object(claiming.Claiming, "outage", outage))
        yield


def _fleet(load: Load, seed: int) -> Fleet:
    random.seed(seed)
    fleet = Fleet(Deployment(), load)
    fleet.begin(fleet.submit())
    for _ in range(load.workers):  # workers that boot together would keep their claim requests in step
        asyncio.get_running_loop().call_later(random.uniform(0, BOOT), fleet.boot, 1)
    return fleet


def _herd(load: Load, event: Callable[[Fleet], Coroutine[Any, Any, None]], seed: int) -> Herd:
    async def main() -> Herd:
        fleet = _fleet(load, seed)
        await asyncio.sleep(WARM_UP + MEASURED)
        await event(fleet)
        end = int(asyncio.get_running_loop().time())
        await asyncio.sleep(AFTERWARDS)
        return _measured(fleet, end)

    return virtual_time.run(main)


def _measured(fleet: Fleet, end: int) -> Herd:
    counts = dict(fleet.deployment.requests)
    every = {second for count in counts.values() for second in count}
    total = {second: sum(count[second] for count in counts.values()) for second in every}
    mean = _rate(total, WARM_UP, MEASURED)
    curve = [_rate(total, begin, WINDOW) for begin in range(end - 60, end + AFTERWARDS, WINDOW)]
    after = curve[6:]
    loud = [number for number, rate in enumerate(after) if rate > CALM * mean]
    lost = fleet.ended[ClaimState.LOST]
    return Herd(
        mean=mean,
        peaks={"all": max(after) / mean}
        | {kind: _peak(count, end) for kind, count in sorted(counts.items())},
        drained=(loud[-1] + 1) * WINDOW if loud else 0,
        lost=lost / max(lost + fleet.ended[ClaimState.RESOLVED], 1),
        curve=curve,
    )


def _peak(count: dict[int, int], end: int) -> float:
    mean = _rate(count, WARM_UP, MEASURED)
    rates = [_rate(count, begin, WINDOW) for begin in range(end, end + AFTERWARDS, WINDOW)]
    return max(rates) / mean if mean else 0.0


def _rate(count: dict[int, int], begin: int, seconds: int) -> float:
    return sum(count.get(begin + second, 0) for second in range(seconds)) / seconds
