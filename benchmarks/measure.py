"""Ratios within one run: the candidates take turns, so that a slow moment of the machine hits all."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.inputs import Inputs, input_sets

ROUNDS = 7

SPIN = 500_000
"""Turns of the fixed loop that shows how noisy the machine is."""


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        what: What was measured.
        against: What it was compared with.
        now: The figure, mostly a ratio of medians.
        goal: What the figure should be.
        reached: Whether the goal is reached.
        before: What the figure was before the work on speed began; None: not known.
        points: For a plot of how a cost grows: numbers, and the cost at each of them.
    """

    what: str
    against: str
    now: float
    goal: str
    reached: bool
    before: float | None = None
    points: tuple[tuple[float, float], ...] = ()

    def __str__(self) -> str:
        before = "" if self.before is None else f"{self.before:g}"
        return f"{self.mark:<6} {self.what:<50} {self.against:<34} {before:>6} {self.now:9.2f}   {self.goal}"

    @property
    def mark(self) -> str:
        """Whether the goal is reached, for people; rows without a goal show what is possible."""
        return ("ok" if self.reached else "MISSED") if self.goal else ""


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = ROUNDS,
    before: Callable[[], object] = lambda: None,
    measure: Callable[[Callable[[], object]], float] | None = None,
) -> float:
    """The time of `ours` as a multiple of that of `theirs`: the median over pairs taken in turn.

    Args:
        ours: The one candidate.
        theirs: The other one.
        rounds: The number of pairs.
        before: Called before each run of a candidate; not measured.
        measure: Returns what a candidate takes; by default `seconds`.
    """

    def timed(work: Callable[[], object]) -> float:
        before()
        return (measure or seconds)(work)

    timed(ours)
    timed(theirs)
    return statistics.median(timed(ours) / timed(theirs) for _ in range(rounds))


def speeds(theirs: Callable[[], object], *candidates: Callable[[], object]) -> list[float]:
    """How many times the speed of `theirs` each candidate has: medians of rounds in which all take turns."""
    rounds = [[seconds(work) for work in (theirs, *candidates)] for _ in range(1 + ROUNDS)]
    relative = [[slow / each for each in fast] for slow, *fast in rounds[1:]]  # the first one warms up
    return [statistics.median(each) for each in zip(*relative, strict=True)]


def worst(measure: Callable[[Inputs], float]) -> float:
    """The largest figure of all sets of inputs."""
    return max(measure(inputs) for inputs in input_sets())


def slowest(measure: Callable[[Inputs], float]) -> float:
    """The smallest speed of all sets of inputs."""
    return min(measure(inputs) for inputs in input_sets())


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_seconds(work: Callable[[], object]) -> float:
    """How much processor time `work` takes in this process; other processes disturb it less."""
    started = time.process_time()
    work()
    return time.process_time() - started


def at_most(what: str, against: str, now: float, limit: float, before: float | None = None) -> Row:
    """A row whose figure should be small."""
    return Row(what, against, now, f"at most {limit:g}", now <= limit, before)


def at_least(what: str, against: str, now: float, limit: float, before: float | None = None) -> Row:
    """A row whose figure should be large."""
    return Row(what, against, now, f"at least {limit:g}", now >= limit, before)


def possible(what: str, against: str, now: float) -> Row:
    """A row without a goal that shows the floor: the figure of the same library with the least code."""
    return Row(what, against, now, "", reached=True)


def growth(what: str, of: str, points: Iterable[tuple[float, float]], limit: float) -> Row:
    """A row about the slope of a cost: 0 is constant, 1 is in proportion to the number.

    Args:
        what: The cost and its unit.
        of: The number that grows.
        points: Numbers, and the cost at each of them.
        limit: The largest slope that reaches the goal.
    """
    found = tuple(points)
    slope = _slope([(math.log10(x), math.log10(y)) for x, y in found])
    return Row(what, of, slope, f"slope at most {limit:g}", slope <= limit, None, found)


def _slope(points: list[tuple[float, float]]) -> float:
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def spin() -> list[float]:
    """How long a fixed loop takes, five times."""

    def turns() -> None:
        for _ in range(SPIN):
            pass

    return [seconds(turns) for _ in range(5)]


def spread(times: list[float]) -> float:
    """How much longer the slowest of some runs of the same work took than the fastest: 0.1 is 10 %."""
    return max(times) / min(times) - 1


@contextmanager
def folder_in_memory(size: int) -> Generator[Path]:
    """A temporary folder, in memory if `size` bytes fit, so that the disk is not what is measured."""
    in_memory = Path("/dev/shm")
    place = in_memory if in_memory.is_dir() and shutil.disk_usage(in_memory).free > size else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)
