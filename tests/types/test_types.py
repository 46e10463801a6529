"""The type checkers accept what users write, and reject what would not work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MYPY = [sys.executable, "-m", "mypy", "--no-error-summary"]
PYRIGHT = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
FILES = ("accepted.py", "rejected.py")
Complaints = dict[str, set[int]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            checker,
            id=checker[2],
            marks=pytest.mark.skipif(
                find_spec(checker[2]) is None,
                reason=f"{checker[2]} is not installed; the extra `lint` has it",
            ),
        )
        for checker in (MYPY, PYRIGHT)
    ],
)
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Complaints:
    """The lines with errors of a checker, by file; of copies, as the project excludes one of the files."""
    folder = tmp_path_factory.mktemp("types")
    copied = [shutil.copy(HERE / name, folder / name) for name in FILES]
    ran = subprocess.run(
        [*request.param, *copied], capture_output=True, text=True, cwd=ROOT, check=False, timeout=300
    )
    assert ran.stderr == "" or "error" not in ran.stderr
    lines = {
        name: {int(line) for line in re.findall(rf"{name}:(\d+)(?::\d+)?(?: -|:) error", ran.stdout)}
        for name in FILES
    }
    assert any(lines.values()), ran.stdout
    return lines


def test_the_code_that_users_write_passes_the_type_checkers(complaints: Complaints) -> None:
    assert complaints["accepted.py"] == set()


def test_every_marked_line_is_rejected(complaints: Complaints) -> None:
    lines = (HERE / "rejected.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "  # no: " in line}
    assert complaints["rejected.py"] == marked
