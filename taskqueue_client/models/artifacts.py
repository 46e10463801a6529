"""Artifacts: what is known about them, and how to store and fetch their content."""

from __future__ import annotations

from datetime import datetime

from ._base import Model, OpenEnum
from .credentials import Credentials


class StorageType(OpenEnum):
    """Where the content of an artifact is."""

    S3 = "s3"
    OBJECT = "object"
    REFERENCE = "reference"
    LINK = "link"
    ERROR = "error"


class Artifact(Model, frozen=True, kw_only=True):
    """An artifact without its content. Only `s3` and `object` may have a `content_length`, in bytes."""

    storage_type: StorageType
    name: str
    expires: datetime
    content_type: str
    content_length: int | None = None


class CreateArtifactResponse(Model, frozen=True, kw_only=True):
    """How to store the content of a new artifact.

    `s3`: send it to `put_url`, with `content_type`, until `expires`.
    `object`: upload it to the object service as `name`, with all other values unchanged.
    `reference`, `link` and `error` have no content and no other value.
    """

    storage_type: StorageType
    expires: datetime | None = None
    content_type: str | None = None
    put_url: str | None = None
    name: str | None = None
    project_id: str | None = None
    upload_id: str | None = None
    credentials: Credentials | None = None


class ArtifactLocation(Model, frozen=True, kw_only=True):
    """Where the content of an artifact can be fetched with a plain GET; links have been followed."""

    storage_type: StorageType
    url: str


class ArtifactContent(Model, frozen=True, kw_only=True):
    """How to fetch the content of an artifact; links have been followed.

    `s3` and `reference`: from `url`.
    `object`: from the object service as `name`, with `credentials`.
    `error`: there is none, and `reason` and `message` say why.
    """

    storage_type: StorageType
    url: str | None = None
    name: str | None = None
    credentials: Credentials | None = None
    reason: str | None = None
    message: str | None = None
