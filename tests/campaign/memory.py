"""How the memory of the processes of a campaign grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import linear_regression, median
from typing import NamedTuple

from .evidence import Evidence
from .excuses import Excuses
from .fleet import Sample
from .violations import Violation

WARM_UP = 60.0
"""Seconds in which a process may grow: modules, connections, threads, caches."""

_SHORTEST = 120.0
"""Seconds for which a process must be watched after its warm-up, so that its slope means something."""

_MEGABYTES = 25.0
"""By how many MB the median may grow from the first to the last third: fragmentation, and runs under way."""

_OBJECTS = 20_000.0
"""By how much the median number of objects may grow: eight runs under way have a few thousand."""


class Slope(NamedTuple):
    """The growth of a process after it has warmed up.

    Attributes:
        per_hour: The growth in an hour, by linear regression.
        growth: The last third's median minus the first third's.
        seconds: How long the process was watched after it had warmed up.
    """

    per_hour: float
    growth: float
    seconds: float


def slopes(samples: list[Sample]) -> Mapping[str, Slope]:
    """Return the slopes of the processes that lived long enough."""
    by_process: defaultdict[str, list[Sample]] = defaultdict(list)
    for each in samples:
        by_process[each.process].append(each)
    return {name: _slope(found) for name, found in by_process.items() if _length(_warm(found)) >= _SHORTEST}


def growing(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """The memory of queue and workers does not grow."""
    del excuses
    measured = ((evidence.memory, _MEGABYTES, "MB"), (evidence.objects, _OBJECTS, "objects"))
    for samples, tolerated, unit in measured:
        for name, slope in slopes(samples).items():
            if slope.growth > tolerated:
                detail = f"{slope.growth:.0f} {unit} in {slope.seconds:.0f} s ({slope.per_hour:.0f} per hour)"
                yield Violation("memory grows", name, detail)


def _warm(samples: list[Sample]) -> list[Sample]:
    return [each for each in samples if each.t - samples[0].t >= WARM_UP]


def _length(samples: list[Sample]) -> float:
    return samples[-1].t - samples[0].t if samples else 0


def _slope(samples: list[Sample]) -> Slope:
    warm = _warm(samples)
    third = max(1, len(warm) // 3)
    slope = linear_regression([each.t for each in warm], [each.value for each in warm]).slope
    growth = median(each.value for each in warm[-third:]) - median(each.value for each in warm[:third])
    return Slope(3600 * slope, growth, _length(warm))
