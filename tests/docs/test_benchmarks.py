from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.__main__ import PARTS
from benchmarks.measure import Row, at_least, at_most, growth
from benchmarks.report import Result, markdown, plot

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def result(*rows: Row, error: str = "") -> Result:
    return Result([*rows], 0.04, "a machine", error)


def test_the_page_explains_each_part_of_the_table_in_its_order() -> None:
    assert re.findall(r"^`(\w+)`\n: ", PAGE.read_text(), re.MULTILINE) == [*PARTS]


def test_a_row_that_misses_its_goal_is_marked() -> None:
    rows = at_most("time", "curl", 0.95, 0.9, 1.4), at_least("speed", "curl", 3, 2.5)
    missed, good = markdown({"large": result(*rows)}).splitlines()[2:4]
    assert missed == "| `large` | time | curl | 1.4 | 0.95 | at most 0.9 | **MISSED** | 4% |"
    assert good == "| `large` | speed | curl |  | 3 | at least 2.5 | ok | 4% |"


def test_a_part_that_fails_is_in_the_table_with_the_rows_before() -> None:
    table = markdown({"large": result(at_most("time", "curl", 0.8, 0.9), error="took longer than 120 s")})
    assert "| time | curl |" in table
    assert "**FAILED** | took longer than 120 s |" in table


@pytest.mark.parametrize(("power", "reached"), [(0, True), (0.05, True), (1, False)])
def test_the_slope_is_the_power_with_which_a_cost_grows(power: float, *, reached: bool) -> None:
    row = growth("a claim, ms", "tasks", [(x, 2 * x**power) for x in (10, 100, 1000)], 0.1)
    assert row.now == pytest.approx(power)
    assert row.reached is reached
    assert f"slope {power:.2f}" in plot(row)


def test_rows_are_the_same_after_saving_and_loading() -> None:
    row = growth("a claim, ms", "tasks", [(10, 2.0), (100, 3.0)], 0.1)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row
