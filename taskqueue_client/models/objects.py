"""Answers of the object service, which stores the content of `object` artifacts."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ._base import Model, OpenEnum


class PutUrl(Model, frozen=True, kw_only=True):
    """Where to PUT the data, with exactly these headers, until `expires`."""

    url: str
    expires: datetime
    headers: dict[str, str]


class UploadMethod(Model, frozen=True, kw_only=True):
    """How to upload: not at all if `data_inline` was taken, else to `put_url`.

    Neither is set if no method was proposed, or none of those is possible.
    """

    data_inline: bool = False
    put_url: PutUrl | None = None


class CreateUploadResponse(Model, frozen=True, kw_only=True):
    """An upload that has begun."""

    project_id: str
    upload_id: str
    expires: datetime
    upload_method: UploadMethod


class DownloadMethod(OpenEnum):
    """How to download."""

    GET_URL = "getUrl"
    SIMPLE = "simple"


class StartDownloadResponse(Model, frozen=True, kw_only=True):
    """Where to GET the data. Only `getUrl` has an expiry, and hashes to compare the data with."""

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
    """A redirect that is not followed: `url` is the answer's `Location` header, not its body."""

    url: str
