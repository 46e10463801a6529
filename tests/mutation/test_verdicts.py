"""Which mutants count as noticed, and which do not count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.__main__ import EQUIVALENT, Mutant, judged, reported


def verdict_of(verdict: str, before: str = "x = 1", after: str = "x = 2") -> str:
    return judged(Mutant("x__mutmut_1", verdict), f"-    {before}\n+    {after}")


@pytest.mark.parametrize("verdict", ["killed", "segfault"])
def test_a_mutant_that_fails_a_test_or_ends_its_process_is_killed(verdict: str) -> None:
    assert verdict_of(verdict) == "killed"


@pytest.mark.parametrize("verdict", ["survived", "no tests"])
def test_a_mutant_that_no_test_fails_or_runs_has_survived(verdict: str) -> None:
    assert verdict_of(verdict) == "survived"


@pytest.mark.parametrize("verdict", ["not checked", "timeout", "suspicious"])
def test_a_mutant_without_a_verdict_was_not_tried(verdict: str) -> None:
    assert verdict_of(verdict) == "not tried"


@pytest.mark.parametrize(
    "after", ['say("XXit is lateXX", level)', 'say("IT IS LATE", level)'], ids=["marked", "upper case"]
)
def test_another_wording_of_a_sentence_does_not_count(after: str) -> None:
    assert verdict_of("survived", 'say("it is late", level)', after) == "wording"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('if span != "*":', 'if span != "XX*XX":'),
        ('get("sha256")', 'get("SHA256")'),
        ('say("it is late", "info")', 'say("it is late", "INFO")'),
        ('say(f"{x} is late")', 'say(f"{y} is late")'),
    ],
)
def test_another_name_or_value_counts(before: str, after: str) -> None:
    assert verdict_of("survived", before, after) == "survived"


def test_a_listed_mutant_is_equivalent() -> None:
    listed = EQUIVALENT[0]
    assert verdict_of("survived", listed["before"], listed["after"]) == "equivalent"


@pytest.mark.parametrize(
    ("counts", "enough"),
    [
        ({"killed": 19, "survived": 1}, True),
        ({"killed": 18, "survived": 1, "equivalent": 9, "wording": 9}, False),
        ({"killed": 20, "not tried": 1}, False),
        ({}, False),
    ],
)
def test_95_percent_of_the_killable_mutants_of_an_area_have_to_be_killed(
    counts: dict[str, int], *, enough: bool
) -> None:
    assert reported("area", Counter(counts), [], Path("mutmut.log")) is enough


def test_tried_mutants_are_shown_even_if_others_were_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    reported("area", Counter({"killed": 3, "survived": 1, "not tried": 2}), ["x\n-1\n+2"], Path("mutmut.log"))
    assert capsys.readouterr().out.splitlines() == [
        "area: 3 of 4 killed (75%), 0 equivalent, 0 of wording",
        "x",
        "-1",
        "+2",
        "area: not tried: 2 of 6; see mutmut.log",
    ]
