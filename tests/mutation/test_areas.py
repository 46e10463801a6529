"""The areas of the mutants name modules and tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.areas import AREAS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("area", AREAS.values(), ids=AREAS)
def test_the_modules_and_tests_of_an_area_exist(area: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    modules, tests = area
    assert [each for each in modules if not (ROOT / "taskqueue_client" / each).is_file()] == []
    assert [each for each in tests if not exists(each)] == []


def exists(test: str) -> bool:
    path, *names = test.split("::")
    return (ROOT / path).is_dir() or all(f" {each}" in (ROOT / path).read_text() for each in names)
