"""Artifacts, and how to upload and download their content, in S3 or in the object service."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ._base import Credentials, Model, OpenEnum, Page


class StorageType(OpenEnum):
    """Where the content of an artifact is stored."""

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
    """How to upload the content of a new artifact.

    `s3`: PUT it to `put_url`, with `content_type`, until `expires`.
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
    """The URL of an artifact's content, for a plain GET; links have been followed."""

    storage_type: StorageType
    url: str


class ArtifactContent(Model, frozen=True, kw_only=True):
    """How to fetch the content of an artifact; links have been followed.

    `s3` and `reference`: from `url`.
    `object`: from the object service as `name`, with `credentials`.
    `error`: there is no content; `reason` and `message` say why.
    """

    storage_type: StorageType
    url: str | None = None
    name: str | None = None
    credentials: Credentials | None = None
    reason: str | None = None
    message: str | None = None


class ArtifactsPage(Page, frozen=True, kw_only=True):
    """Artifacts in the order of their names, including those whose upload is not finished."""

    artifacts: list[Artifact]


class PutUrl(Model, frozen=True, kw_only=True):
    """Where to PUT the data, with exactly these headers, until `expires`."""

    url: str
    expires: datetime
    headers: dict[str, str]


class UploadMethod(Model, frozen=True, kw_only=True):
    """How to upload: with `data_inline` the service has the data already, else PUT it to `put_url`.

    Neither is set if no method was proposed, or none of the proposed methods is possible.
    """

    data_inline: bool = False
    put_url: PutUrl | None = None


class CreateUploadResponse(Model, frozen=True, kw_only=True):
    """An upload that has begun, with the method chosen by the service."""

    project_id: str
    upload_id: str
    expires: datetime
    upload_method: UploadMethod


class DownloadMethod(OpenEnum):
    """The download methods of the object service."""

    GET_URL = "getUrl"
    SIMPLE = "simple"


class StartDownloadResponse(Model, frozen=True, kw_only=True):
    """The URL of the data, for a GET. Only the method `getUrl` has `expires` and hashes."""

    method: DownloadMethod
    url: str
    expires: datetime | None = None
    hashes: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class ObjectMetadata(Model, frozen=True, kw_only=True):
    """An object without its data; `hashes` maps an algorithm to lower-case hex."""

    project_id: str
    expires: datetime
    hashes: dict[str, str]


class Redirect(Model, frozen=True):
    """A redirect that is not followed: `url` is the `Location` header of the response."""

    url: str
