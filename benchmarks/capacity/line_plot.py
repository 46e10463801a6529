"""Small line plots as SVG, for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 30, 40
COLORS = ("#2350b8", "#b3261e", "#1b6e3c", "#855600")

Points = Sequence[tuple[float, float]]


def write_plot(
    path: Path,
    title: str,
    lines: Mapping[str, Points],
    *,
    x_ticks: Mapping[float, str],
    y_ticks: Mapping[float, str],
    scale: Callable[[float], float] = lambda value: value,
) -> None:
    """Write a plot.

    Args:
        path: The SVG file.
        title: What is shown, with units.
        lines: The points of each line, by its name.
        x_ticks: The labels below the plot. The first and the last one are its borders.
        y_ticks: The same for the left side.
        scale: What is applied to all values, such as `math.log10`.
    """
    across = _axis(x_ticks, LEFT, WIDTH - RIGHT, scale)
    up = _axis(y_ticks, HEIGHT - BOTTOM, TOP, scale)
    parts = [f'<text x="{LEFT}" y="16" fill="#555">{escape(title)}</text>']
    for value, label in y_ticks.items():
        y = f"{up(value):.0f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ccc"/>')
        parts.append(_label(LEFT - 6, up(value) + 4, label, "end"))
    parts += [
        _label(across(value), HEIGHT - BOTTOM + 18, label, "middle") for value, label in x_ticks.items()
    ]
    for number, ((name, points), color) in enumerate(zip(lines.items(), COLORS, strict=False)):
        drawn = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{drawn}"/>')
        parts.append(_label(WIDTH - RIGHT, TOP + 14 + 16 * number, name, "end", color))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'style="background:#fff" font-family="sans-serif" font-size="12"'
    path.write_text("\n".join([f"{head} {style}>", f"<title>{escape(title)}</title>", *parts, "</svg>", ""]))


def _axis(
    ticks: Mapping[float, str], begin: float, end: float, scale: Callable[[float], float]
) -> Callable[[float], float]:
    """Return where a value is on an axis from `begin` to `end`; values beyond the ticks are at its ends."""
    lowest, highest = scale(min(ticks)), scale(max(ticks))

    def place(value: float) -> float:
        part = (scale(value) - lowest) / (highest - lowest)
        return begin + min(max(part, 0.0), 1.0) * (end - begin)

    return place


def _label(x: float, y: float, text: str, anchor: str, color: str = "#555") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'
