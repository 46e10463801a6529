"""Calls to the object service, which stores the content of `object` artifacts.

They need the credentials that `create_artifact` or `artifact` gives. Names are as given there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import NoneType

from taskqueue_client._call import Call
from taskqueue_client.definitions import AcceptedDownloadMethods, ProposedUploadMethods
from taskqueue_client.models import CreateUploadResponse, ObjectMetadata, Redirect, StartDownloadResponse

from . import _arguments as arguments
from ._artifacts import REDIRECTED


def create_upload(
    name: str,
    *,
    project_id: str,
    upload_id: str,
    expires: datetime | str,
    proposed_upload_methods: ProposedUploadMethods,
    hashes: Mapping[str, str] | None = None,
) -> Call[CreateUploadResponse]:
    """Begin an upload, or ask again how to go on with it.

    Scopes: `object:upload:<project_id>:<name>`. Safe to repeat with the same values.

    Args:
        name: The object's name.
        project_id: The project that the object belongs to.
        upload_id: Names this upload: a slugid.
        expires: Until when the object is kept.
        proposed_upload_methods: How the caller can upload; none at all only begins the upload.
        hashes: Of the data: lower-case hex by algorithm, `sha256` and `sha512`.

    Raises:
        NoMatchingBackend: There is no place for an object of this name.
        RequestConflict: The object is finished, or its upload has begun with other values.
    """
    body: dict[str, object] = {
        **_upload(project_id, upload_id, hashes),
        "expires": arguments.moment("expires", expires),
        "proposedUploadMethods": proposed_upload_methods,
    }
    path = arguments.path("upload", arguments.name(name))
    return Call("object.createUpload", "PUT", path, CreateUploadResponse, body=body, service="object")


def finish_upload(
    name: str, *, project_id: str, upload_id: str, hashes: Mapping[str, str] | None = None
) -> Call[None]:
    """Make an object readable, after its upload; it never changes from then on.

    Scopes: `object:upload:<project_id>:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such object.
        InputError: It belongs to another project.
        RequestConflict: It has another upload id, or other hashes.
    """
    path = arguments.path("finish-upload", arguments.name(name))
    body = _upload(project_id, upload_id, hashes)
    return Call("object.finishUpload", "POST", path, NoneType, body=body, service="object")


def start_download(
    name: str, *, accept_download_methods: AcceptedDownloadMethods
) -> Call[StartDownloadResponse]:
    """How to download an object.

    Scopes: `object:download:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such object, or its upload is not finished.
        NoMatchingMethod: It cannot be downloaded in any of these ways.
    """
    path = arguments.path("start-download", arguments.name(name))
    body = {"acceptDownloadMethods": accept_download_methods}
    return Call("object.startDownload", "PUT", path, StartDownloadResponse, body=body, service="object")


def object_metadata(name: str) -> Call[ObjectMetadata]:
    """What is known about an object: the endpoint `object`.

    Scopes: `object:download:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such object, or its upload is not finished.
    """
    path = arguments.path("metadata", arguments.name(name))
    return Call("object.object", "GET", path, ObjectMetadata, service="object")


def download_object(name: str) -> Call[Redirect]:
    """Where an object can be downloaded with a plain GET: the endpoint `download`.

    Scopes: `object:download:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such object, or its upload is not finished.
        NoMatchingMethod: It cannot be downloaded in this way.
    """
    path = arguments.path("download", arguments.name(name))
    return Call("object.download", "GET", path, Redirect, service="object", accepts=REDIRECTED)


def _upload(project_id: str, upload_id: str, hashes: Mapping[str, str] | None) -> dict[str, object]:
    known = {} if hashes is None else {"hashes": dict(hashes)}
    return {"projectId": project_id, "uploadId": arguments.slugid("upload_id", upload_id), **known}
