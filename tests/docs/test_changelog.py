"""`python .ci/changelog.py VERSION` makes a section of the change log from the fragments."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

release = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "changelog.py"))["release"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "changelog").mkdir()
    (tmp_path / "changelog" / "README.md").write_text("How to.\n")
    (tmp_path / "changelog" / "b.fixed.md").write_text("Fixed b.\n")
    (tmp_path / "changelog" / "a.added.md").write_text("Added a.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\nIntroduction.\n\nThere is no release yet.\n")
    return tmp_path


def test_the_fragments_become_a_section_sorted_by_kind(repository: Path) -> None:
    release(repository, "0.1.0", "2026-12-01")
    assert (repository / "CHANGELOG.md").read_text() == (
        "# Changes\n\nIntroduction.\n\n"
        "## 0.1.0 (2026-12-01)\n\n### Added\n\n- Added a.\n\n### Fixed\n\n- Fixed b.\n"
    )
    assert [path.name for path in (repository / "changelog").iterdir()] == ["README.md"]


def test_a_later_section_stands_before_the_older_ones(repository: Path) -> None:
    release(repository, "0.1.0", "2026-12-01")
    (repository / "changelog" / "c.security.md").write_text("Closed c.\n")
    release(repository, "0.2.0", "2027-01-01")
    text = (repository / "CHANGELOG.md").read_text()
    assert text.index("## 0.2.0 (2027-01-01)\n\n### Security\n\n- Closed c.") < text.index("\n## 0.1.0 ")


def test_a_version_is_released_once(repository: Path) -> None:
    release(repository, "0.1.0", "2026-12-01")
    with pytest.raises(SystemExit, match="has a section"):
        release(repository, "0.1.0", "2026-12-02")
