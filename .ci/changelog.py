# ruff: noqa: INP001 - a script
"""Make a section of CHANGELOG.md from the fragments in changelog/: `python .ci/changelog.py 0.1.0`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
NO_RELEASE = "There is no release yet.\n"


def release(root: Path, version: str, date: str) -> str:
    """Add the section of a version before older ones, remove the fragments, and return the section."""
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text().replace(NO_RELEASE, "")
    if f"\n## {version} " in text:
        sys.exit(f"CHANGELOG.md has a section {version} already")
    fragments = sorted(path for path in (root / "changelog").glob("*.*.md"))
    section = f"## {version} ({date})\n\n" + "".join(_part(kind, fragments) for kind in KINDS)
    head, marker, older = text.partition("\n## ")
    changelog.write_text(f"{head.rstrip()}\n\n{section.rstrip()}\n{marker}{older}")
    for path in fragments:
        path.unlink()
    return section


def _part(kind: str, fragments: list[Path]) -> str:
    entries = [path.read_text().strip() for path in fragments if path.name.endswith(f".{kind}.md")]
    if not entries:
        return ""
    return f"### {kind.capitalize()}\n\n" + "".join(f"- {entry}\n" for entry in entries) + "\n"


if __name__ == "__main__":
    print(release(Path(__file__).parents[1], sys.argv[1], f"{datetime.now(UTC):%Y-%m-%d}"))  # noqa: T201
