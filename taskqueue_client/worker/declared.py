"""Artifacts that a handler has declared, until they go up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict

from taskqueue_client.artifacts.naming import checked_name
from taskqueue_client.errors import InvalidArgument

Content = str | PathLike[str] | bytes
"""A path or bytes: what can still be read when the handler has ended."""

LOG_NAME = "public/logs/live_backing.log"
LOG_LINK = "public/logs/live.log"
"""Where everybody looks for a task's log; the link is what user interfaces open."""


class ArtifactOptions(TypedDict, total=False):
    """What may be said about a declared artifact; see `Queue.upload_artifact`."""

    content_type: str
    expires: datetime | str
    storage: Literal["s3", "object"]
    compress: bool | None


@dataclass(frozen=True, slots=True)
class Declared:
    """An artifact that is to go up.

    Attributes:
        name: Its name.
        source: An absolute path, or the content itself.
        options: As they were given.
    """

    name: str
    source: Path | bytes
    options: ArtifactOptions


def declared(name: str, source: Path | bytes, options: ArtifactOptions) -> Declared:
    """An artifact under a name that it may have.

    Raises:
        InvalidArgument: It may not.
    """
    if name in {LOG_NAME, LOG_LINK}:
        raise InvalidArgument("name", name, "another name: this is where the task's log goes")
    return Declared(checked_name(name), source, options)
