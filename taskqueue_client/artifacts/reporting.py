"""What became of many uploads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taskqueue_client.errors import InvalidArgument

from .naming import checked_name
from .sources import Content
from .uploading import UploadResult

Contents = Mapping[str, Content] | str | os.PathLike[str]
"""Content by the artifact's name, or a folder, in which the name is the path from there."""


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """What became of one artifact.

    Attributes:
        name: Its name.
        result: What was uploaded, or None.
        error: Why that failed, or None.
    """

    name: str
    result: UploadResult | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class UploadReport:
    """What became of each artifact, in the order in which they were given.

    Attributes:
        outcomes: One for each of them.
    """

    outcomes: tuple[UploadOutcome, ...]

    @property
    def failed(self) -> tuple[UploadOutcome, ...]:
        """Those with an error."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)

    @property
    def is_complete(self) -> bool:
        """Whether all of them were uploaded."""
        return not self.failed


Listed = tuple[str, Content | InvalidArgument]
"""A name with its content, or with the reason why that is not uploaded."""


def listed(contents: Contents) -> list[Listed]:
    """All that is to be uploaded. Folders that are links are not entered.

    Raises:
        InvalidArgument: It is neither a mapping nor a folder.
        OSError: A folder cannot be read.
    """
    if isinstance(contents, Mapping):
        return [_checked(name, content) for name, content in contents.items()]
    folder = Path(contents)
    if not folder.is_dir():
        raise InvalidArgument("artifacts", str(contents), "a mapping of names to contents, or a folder")
    return [_checked(path.relative_to(folder).as_posix(), _inside(path, folder)) for path in _files(folder)]


def _checked(name: str, content: Content | InvalidArgument) -> Listed:
    try:
        checked_name(name)
    except InvalidArgument as error:
        return name, error
    return name, content


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for parent, _, names in os.walk(folder, onerror=_raise):
        found.extend(Path(parent, name) for name in names)
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _inside(path: Path, folder: Path) -> Path | InvalidArgument:
    """A link out of the folder would give away files that the task may not read."""
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        return InvalidArgument("source", str(path), "no link that leads out of the folder")
    return path
