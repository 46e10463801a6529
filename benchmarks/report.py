"""The table of all figures, for a terminal and for the documentation, and the plots of how costs grow."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import msgspec

from benchmarks.measure import Row

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
"""Where the figures, the table and the plots are kept; `docs/benchmarks.md` shows them."""

_FIGURES = FOLDER / "figures.json"
_WIDTH, _HEIGHT, _MARGIN = 480, 260, 56


@dataclass(frozen=True)
class Result:
    """The results of one part of the benchmarks.

    Attributes:
        rows: Its rows, up to an error.
        noise: The spread of the fixed loop that was run right before and after it; see `measure.spread`.
        machine: The machine, in words.
        error: Why there are no more rows; empty if the part has ended well.
    """

    rows: list[Row]
    noise: float
    machine: str
    error: str = ""


def machine() -> str:
    """Describe this machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    system = f"{platform.system()} {platform.release()}"
    return (
        f"{model or platform.machine()}, {os.cpu_count()} cores, {system}, Python {platform.python_version()}"
    )


def load() -> dict[str, Result]:
    """Return the results that are kept, by part."""
    return msgspec.json.decode(_FIGURES.read_bytes(), type=dict[str, Result]) if _FIGURES.is_file() else {}


def save(results: Mapping[str, Result]) -> None:
    """Keep results, and write the table and the plots of all of them."""
    FOLDER.mkdir(exist_ok=True)
    _FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    (FOLDER / "table.md").write_text(markdown(results))
    plotted = {name: row for name, each in results.items() for row in each.rows if row.points}
    for name, row in plotted.items():
        (FOLDER / f"{name}.svg").write_text(plot(row))
    pictures = [f"![{row.what}](benchmarks/{name}.svg)" for name, row in plotted.items()]
    (FOLDER / "plots.md").write_text("\n\n".join([*pictures, ""]))


def markdown(results: Mapping[str, Result]) -> str:
    """Return the table, with a line about each machine."""
    lines = [
        "| part | what | against | before | now | goal | | noise |",
        "|---|---|---|---:|---:|---|---|---:|",
        *(line for name, each in results.items() for line in _lines_of(name, each)),
        "",
        *(f"Measured on {each}." for each in sorted({result.machine for result in results.values()})),
    ]
    return "\n".join([*lines, ""])


def _lines_of(name: str, result: Result) -> Iterable[str]:
    for row in result.rows:
        before = "" if row.before is None else f"{row.before:g}"
        mark = f"**{row.mark}**" if row.mark == "MISSED" else row.mark
        cells = (f"`{name}`", row.what, row.against, before, f"{row.now:.3g}", row.goal, mark)
        yield f"| {' | '.join(cells)} | {result.noise:.0%} |"
    if result.error:
        yield f"| `{name}` | **FAILED** | {result.error} | | | | | {result.noise:.0%} |"


def plot(row: Row) -> str:
    """Return a picture of how a cost grows, both axes logarithmic."""
    across = _scale([x for x, _ in row.points], _MARGIN, _WIDTH - 20)
    up = _scale([y for _, y in row.points], _HEIGHT - _MARGIN, 44, least_decades=1.0)
    dots = [(across(x), up(y)) for x, y in row.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    title = f"{row.what}, slope {row.now:.2f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text { font: 12px sans-serif; fill: #333 }</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(_MARGIN, 24, title, anchor="start"),
        _text(_WIDTH // 2, _HEIGHT - 12, row.against),
        *(_text(across(x), _HEIGHT - _MARGIN + 18, _short(x)) for x, _ in row.points),
        *(_text(x, y - 10, f"{cost:.3g}") for (x, y), (_, cost) in zip(dots, row.points, strict=True)),
        f'<path d="M{_MARGIN} 40V{_HEIGHT - _MARGIN}H{_WIDTH - 20}" fill="none" stroke="#666"/>',
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#06c"/>' for x, y in dots),
        "</svg>",
    ]
    return "\n".join([*parts, ""])


def _scale(
    values: list[float], start: float, end: float, least_decades: float = 0.0
) -> Callable[[float], float]:
    """Return the function from a value to its place on an axis.

    An axis has at least `least_decades`, so that noise does not look like growth.
    """
    low, high = math.log10(min(values)), math.log10(max(values))
    missing = max(least_decades - (high - low), 0)
    low, high = low - missing / 2, high + missing / 2

    def place(value: float) -> float:
        return start + (end - start) * (math.log10(value) - low) / ((high - low) or 1)

    return place


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(number: float) -> str:
    thousands = (("M", 1e6), ("k", 1e3))
    return next((f"{number / size:g}{unit}" for unit, size in thousands if number >= size), f"{number:g}")
