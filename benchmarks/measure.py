"""Ratios within one run: the candidates take turns, so that a slow moment of the machine hits all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 7


@dataclass(frozen=True)
class Row:
    """One figure: what was compared, the ratio of the medians, and what it should be."""

    what: str
    against: str
    ratio: float
    goal: str
    reached: bool

    def __str__(self) -> str:
        mark = "ok  " if self.reached else "MISS"
        return f"{mark} {self.what:<44} {self.against:<34} {self.ratio:8.2f}   {self.goal}"


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = ROUNDS,
    before: Callable[[], object] = lambda: None,
) -> float:
    """The time of `ours` as a multiple of that of `theirs`: the median over pairs taken in turn.

    `before` is called before each of them, and takes no part in the time.
    """

    def timed(work: Callable[[], object]) -> float:
        before()
        return seconds(work)

    timed(ours)
    timed(theirs)
    return statistics.median(timed(ours) / timed(theirs) for _ in range(rounds))


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def at_most(what: str, against: str, ratio: float, limit: float) -> Row:
    """A row whose ratio should be small."""
    return Row(what, against, ratio, f"at most {limit}", ratio <= limit)


def at_least(what: str, against: str, ratio: float, limit: float) -> Row:
    """A row whose ratio should be large."""
    return Row(what, against, ratio, f"at least {limit}", ratio >= limit)
