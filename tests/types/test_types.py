"""The type checkers accept what users write, and reject what would not work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MYPY = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-incremental"]
PYRIGHT = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]


def complaints(checker: list[str], name: str, folder: Path) -> set[int]:
    """The lines of a file that a checker has an error for; copied, as the project leaves it out."""
    copied = shutil.copy(HERE / name, folder / name)
    ran = subprocess.run(
        [*checker, copied], capture_output=True, text=True, cwd=ROOT, check=False, timeout=300
    )
    assert ran.stderr == "" or "error" not in ran.stderr
    found = re.findall(rf"{re.escape(name)}:(\d+)(?::\d+)?(?: -|:) error", ran.stdout)
    assert found or not ran.returncode, ran.stdout
    return {int(line) for line in found}


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_what_users_write_is_accepted(checker: list[str], tmp_path: Path) -> None:
    assert complaints(checker, "accepted.py", tmp_path) == set()


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_every_marked_line_is_rejected(checker: list[str], tmp_path: Path) -> None:
    lines = (HERE / "rejected.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "  # no: " in line}
    assert complaints(checker, "rejected.py", tmp_path) == marked
