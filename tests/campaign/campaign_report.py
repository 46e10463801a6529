"""The report of a campaign: a table, and a time line as SVG."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from statistics import median
from typing import NamedTuple

from .campaign_run import Outcome
from .incidents import Incident
from .memory import slopes
from .violations import Violation

_WIDTH = 1000
_LEFT = 190
_ROW = 16
_COLORS = {
    "worker": "#3b6ea8",
    "queue": "#b5472f",
    "broker": "#7a4f9a",
    "storage": "#8a6d1f",
    "exchange": "#777777",
}


class Recovery(NamedTuple):
    """The time from a fault to the next successful reclaim.

    Attributes:
        incident: The fault.
        seconds: How long it took; None if no reclaim came after the fault.
    """

    incident: Incident
    seconds: float | None


def recoveries(incidents: Sequence[Incident], reclaims: Sequence[tuple[float, str]]) -> list[Recovery]:
    """Return the recoveries: for a fault of a worker by a reclaim of its slot, for others by any reclaim."""
    by_slot: defaultdict[str, list[float]] = defaultdict(list)
    for moment, worker in sorted(reclaims):
        by_slot[worker.partition("-")[0]].append(moment)
        by_slot[""].append(moment)
    found: list[Recovery] = []
    for each in incidents:
        if not each.kind.startswith("exchange") and each.kind != "claim not delivered":
            times = by_slot[each.target.partition("-")[0] if each.kind.startswith("worker") else ""]
            position = bisect_left(times, each.began)
            found.append(Recovery(each, times[position] - each.began if position < len(times) else None))
    return found


def table(outcome: Outcome, violations: Sequence[Violation], seed: int) -> str:
    """Return the report as text."""
    evidence = outcome.evidence
    runs = [run for task in evidence.tasks.values() for run in task.runs]
    retries = Counter(str(run.reason_resolved) for task in evidence.tasks.values() for run in task.runs[:-1])
    ends = Counter(task.reason for task in evidence.tasks.values())
    share = outcome.broken / max(1, outcome.exchanges)
    lines = [
        f"seed {seed}",
        f"{'tasks':<28}{len(evidence.tasks):>8}",
        *(f"  {reason:<26}{count:>8}" for reason, count in ends.most_common()),
        f"{'runs':<28}{len(runs):>8}",
        f"{'retries':<28}{sum(retries.values()):>8}",
        *(f"  {reason:<26}{count:>8}" for reason, count in retries.most_common()),
        f"{'messages':<28}{len(evidence.messages):>8}",
        f"{'exchanges':<28}{outcome.exchanges:>8}",
        f"{'exchanges with a fault':<28}{outcome.broken:>8}  {share:.1%}",
        *_fault_lines(outcome),
        *_memory_lines(outcome),
        f"{'violations':<28}{len(violations):>8}",
        *(f"  {each}" for each in violations),
    ]
    return "\n".join(lines) + "\n"


def _fault_lines(outcome: Outcome) -> Iterator[str]:
    incidents = outcome.evidence.incidents
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for each in recoveries(incidents, outcome.reclaims):
        by_kind[each.incident.kind] += [] if each.seconds is None else [each.seconds]
    yield f"{'fault':<28}{'count':>8}  recovery: median, longest (s to the next reclaim)"
    for kind, count in sorted(Counter(each.kind for each in incidents).items()):
        times = by_kind.get(kind)
        shown = f"  {median(times):.1f}  {max(times):.1f}" if times else ""
        yield f"  {kind:<26}{count:>8}{shown}"


def _memory_lines(outcome: Outcome) -> Iterator[str]:
    evidence = outcome.evidence
    for samples, what, unit in ((evidence.memory, "memory", "MB"), (evidence.objects, "objects", "objects")):
        for name, slope in sorted(slopes(samples).items()):
            last = [each.value for each in samples if each.process == name][-1]
            shown = f"{last:.0f} {unit}, slope {slope.per_hour:+.1f} {unit}/h over {slope.seconds:.0f} s"
            yield f"{f'{what} of {name}':<28}{shown}"


def time_line(outcome: Outcome, violations: Sequence[Violation], seed: int) -> str:
    """Return a time line of the faults, the reclaims and the resolved tasks, as SVG."""
    incidents = outcome.evidence.incidents
    kinds = sorted({each.kind for each in incidents})
    runs = [run for task in outcome.evidence.tasks.values() for run in task.runs]
    ends = [run.resolved.timestamp() for run in runs if run.resolved]
    reclaims = [moment for moment, _ in outcome.reclaims]
    last = max([outcome.began + 1, *ends, *reclaims, *(each.ended or each.began for each in incidents)])
    scale = (_WIDTH - _LEFT - 10) / (last - outcome.began)
    rows = [_row(number, kind, _marks(outcome, kind, scale)) for number, kind in enumerate(kinds)]
    for name, moments in (("successful reclaims", reclaims), ("resolved runs", ends)):
        rows.append(_row(len(rows), name, _bars(moments, outcome.began, last, scale)))
    height = 40 + _ROW * (len(rows) + 1)
    title = f"Fault campaign, seed {seed}: {len(ends)} runs, {len(violations)} violations"
    minutes = (
        f'<text x="{_LEFT + 60 * n * scale:.0f}" y="{height - 6}">{n} min</text>'
        for n in range(int((last - outcome.began) / 60) + 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="8" y="16" font-size="13">{escape(title)}</text>\n'
        + "\n".join([*rows, *minutes])
        + "\n</svg>\n"
    )


def _row(number: int, name: str, marks: str) -> str:
    y = 26 + _ROW * number
    return f'<g transform="translate(0 {y})"><text x="8" y="11">{escape(name)}</text>{marks}</g>'


def _marks(outcome: Outcome, kind: str, scale: float) -> str:
    color = next((color for name, color in _COLORS.items() if kind.startswith(name)), "#444444")
    return "".join(
        f'<rect x="{_LEFT + (each.began - outcome.began) * scale:.1f}" y="2" height="10" fill="{color}"'
        f' width="{max(1.0, ((each.ended or each.began) - each.began) * scale):.1f}"/>'
        for each in outcome.evidence.incidents
        if each.kind == kind
    )


def _bars(moments: Sequence[float], began: float, last: float, scale: float) -> str:
    """Return a bar for each two-hundredth of the time, as high as the number of moments in it."""
    width = (last - began) / 200
    counts = Counter(int((moment - began) / width) for moment in moments)
    most = max(counts.values(), default=1)
    return "".join(
        f'<rect x="{_LEFT + place * width * scale:.1f}" y="{13 - 12 * count / most:.1f}" fill="#2e7d4f"'
        f' width="{width * scale:.1f}" height="{12 * count / most:.1f}"/>'
        for place, count in sorted(counts.items())
    )
