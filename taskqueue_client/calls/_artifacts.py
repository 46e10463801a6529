"""Calls about artifacts, to the Queue and to the object service (storage type `object`).

They do not send or receive content: `taskqueue_client.artifacts` does. Calls to the object service need the
credentials and the object name that `create_artifact` or `artifact` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from types import NoneType

from taskqueue_client import _arguments as arguments
from taskqueue_client import models
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.paging import Pages
from taskqueue_client.definitions import AcceptedDownloadMethods, CreateArtifactRequest, ProposedUploadMethods

REDIRECTED = frozenset({303})
"""The statuses of responses that have the location of the content; the redirect is not followed."""


def create_artifact(
    task_id: str, run_id: int, name: str, request: CreateArtifactRequest
) -> Call[models.CreateArtifactResponse]:
    """Create an artifact, or extend the `expires` of an equal one.

    Safe to repeat, except for `object`: only the first response has the upload id.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have.

    Args:
        task_id: The task.
        run_id: The run, running or resolved as an exception in the last 25 minutes.
        name: Printable ASCII; artifacts whose names begin with `public/` are public.
        request: The storage type, `expires` (a date-time, or a distance like `14 days`), and the keys of the
            storage type.

    Raises:
        InputError: The task or run does not exist, the run was never claimed, or `expires` is past or after
            the task's `expires`.
        RequestConflict: The run is resolved, or a different artifact has this name.
    """
    path = _of_run(task_id, run_id, "artifacts", name)
    body = arguments.mapping("request", request)
    body["expires"] = arguments.moment("expires", body.get("expires"))
    return Call("createArtifact", "POST", path, models.CreateArtifactResponse, body=body)


def finish_artifact(task_id: str, run_id: int, name: str, *, upload_id: str) -> Call[None]:
    """Finish an `object` artifact after its upload, so that it can be read; the run may be resolved already.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The artifact does not exist.
        InputError: The artifact has another storage type or upload id, or is not uploaded.
    """
    body = {"uploadId": arguments.slugid("upload_id", upload_id)}
    return Call("finishArtifact", "PUT", _of_run(task_id, run_id, "artifacts", name), NoneType, body=body)


def get_artifact(task_id: str, run_id: int, name: str) -> Call[models.ArtifactLocation]:
    """Return the URL of an artifact's content, for a plain GET; links are followed.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: The artifact does not exist, or its upload is not finished.
        ResourceExpired: The artifact has expired.
        ErrorArtifact: The artifact has the storage type `error`.
        InputError: The artifact's links form a cycle.
    """
    path = _of_run(task_id, run_id, "artifacts", name)
    return Call("getArtifact", "GET", path, models.ArtifactLocation, accepts=REDIRECTED)


def get_latest_artifact(task_id: str, name: str) -> Call[models.ArtifactLocation]:
    """Return the URL of the content of an artifact of the task's last run, in any state of the run.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: The task, run or artifact does not exist, or its upload is not finished.
        ResourceExpired: The artifact has expired.
        ErrorArtifact: The artifact has the storage type `error`.
        InputError: The artifact's links form a cycle.
    """
    path = _of_latest(task_id, "artifacts", name)
    return Call("getLatestArtifact", "GET", path, models.ArtifactLocation, accepts=REDIRECTED)


def list_artifacts(
    task_id: str, run_id: int, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.ArtifactsPage]:
    """Return one page of the artifacts of a run, in the order of their names.

    Scopes: `queue:list-artifacts:<task_id>:<run_id>`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        ResourceNotFound: The task or run does not exist.
    """
    path = _of_run(task_id, run_id, "artifacts")
    query = arguments.page_query(continuation_token, limit)
    return Call("listArtifacts", "GET", path, models.ArtifactsPage, query)


def iter_artifacts(
    task_id: str, run_id: int, *, page_size: int | None = None
) -> Pages[models.ArtifactsPage, models.Artifact]:
    """Iterate over the artifacts of a run, requesting further pages; see `list_artifacts`."""
    first = list_artifacts(task_id, run_id, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.artifacts, attrgetter("name"))


def list_latest_artifacts(
    task_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.ArtifactsPage]:
    """Return one page of the artifacts of the task's last run, in the order of their names.

    Scopes: `queue:list-artifacts:<task_id>`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        ResourceNotFound: The task does not exist, or it has no run.
    """
    path = _of_latest(task_id, "artifacts")
    query = arguments.page_query(continuation_token, limit)
    return Call("listLatestArtifacts", "GET", path, models.ArtifactsPage, query)


def iter_latest_artifacts(
    task_id: str, *, page_size: int | None = None
) -> Pages[models.ArtifactsPage, models.Artifact]:
    """Iterate over the artifacts of a task's last run; see `list_latest_artifacts`."""
    first = list_latest_artifacts(task_id, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.artifacts, attrgetter("name"))


def artifact_info(task_id: str, run_id: int, name: str) -> Call[models.Artifact]:
    """Return an artifact without its content; links are not followed.

    Scopes: `queue:list-artifacts:<task_id>:<run_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task, run or artifact does not exist, or its upload is not finished.
    """
    return Call("artifactInfo", "GET", _of_run(task_id, run_id, "artifact-info", name), models.Artifact)


def latest_artifact_info(task_id: str, name: str) -> Call[models.Artifact]:
    """Return an artifact of the task's last run without its content; links are not followed.

    Scopes: `queue:list-artifacts:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task, run or artifact does not exist, or its upload is not finished.
    """
    return Call("latestArtifactInfo", "GET", _of_latest(task_id, "artifact-info", name), models.Artifact)


def artifact(task_id: str, run_id: int, name: str) -> Call[models.ArtifactContent]:
    """Return how to fetch the content of an artifact of any storage type; links are followed.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: The artifact does not exist, or its upload is not finished.
        ResourceExpired: The artifact has expired.
        InputError: The artifact's links form a cycle.
    """
    return Call("artifact", "GET", _of_run(task_id, run_id, "artifact-content", name), models.ArtifactContent)


def latest_artifact(task_id: str, name: str) -> Call[models.ArtifactContent]:
    """Return how to fetch the content of an artifact of the task's last run, in any state of the run.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: The task, run or artifact does not exist, or its upload is not finished.
        ResourceExpired: The artifact has expired.
        InputError: The artifact's links form a cycle.
    """
    path = _of_latest(task_id, "artifact-content", name)
    return Call("latestArtifact", "GET", path, models.ArtifactContent)


def _of_run(task_id: str, run_id: int, what: str, *name: str) -> str:
    task, run = arguments.slugid("task_id", task_id), arguments.number("run_id", run_id)
    return arguments.path("task", task, "runs", run, what, *map(arguments.name, name))


def _of_latest(task_id: str, what: str, *name: str) -> str:
    return arguments.path("task", arguments.slugid("task_id", task_id), what, *map(arguments.name, name))


def create_upload(
    name: str,
    *,
    project_id: str,
    upload_id: str,
    expires: datetime | str,
    proposed_upload_methods: ProposedUploadMethods,
    hashes: Mapping[str, str] | None = None,
) -> Call[models.CreateUploadResponse]:
    """Begin an upload, or request the upload methods of one that has begun.

    Scopes: `object:upload:<project_id>:<name>`. Safe to repeat with the same values.

    Args:
        name: The object's name.
        project_id: The project that the object belongs to.
        upload_id: The upload's id, a slugid.
        expires: When the object expires.
        proposed_upload_methods: How the caller can upload; an empty dict only begins the upload.
        hashes: Hashes of the data, lower-case hex by algorithm: `sha256` and `sha512`.

    Raises:
        NoMatchingBackend: The object service has no backend for an object of this name.
        RequestConflict: The object is finished, or its upload has begun with other values.
    """
    body: dict[str, object] = {
        **_upload(project_id, upload_id, hashes),
        "expires": arguments.moment("expires", expires),
        "proposedUploadMethods": proposed_upload_methods,
    }
    path = arguments.path("upload", arguments.name(name))
    return Call("object.createUpload", "PUT", path, models.CreateUploadResponse, body=body, service="object")


def finish_upload(
    name: str, *, project_id: str, upload_id: str, hashes: Mapping[str, str] | None = None
) -> Call[None]:
    """Finish an object after its upload, so that it can be read; it cannot change afterwards.

    Scopes: `object:upload:<project_id>:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: The object does not exist.
        InputError: The object belongs to another project.
        RequestConflict: The object has another upload id or other hashes.
    """
    path = arguments.path("finish-upload", arguments.name(name))
    body = _upload(project_id, upload_id, hashes)
    return Call("object.finishUpload", "POST", path, NoneType, body=body, service="object")


def start_download(
    name: str, *, accept_download_methods: AcceptedDownloadMethods
) -> Call[models.StartDownloadResponse]:
    """Return how to download an object.

    Scopes: `object:download:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: The object does not exist, or its upload is not finished.
        NoMatchingMethod: The object cannot be downloaded by any of these methods.
    """
    path = arguments.path("start-download", arguments.name(name))
    body = {"acceptDownloadMethods": accept_download_methods}
    response = models.StartDownloadResponse
    return Call("object.startDownload", "PUT", path, response, body=body, service="object")


def object_metadata(name: str) -> Call[models.ObjectMetadata]:
    """Return an object without its data (endpoint `object`).

    Scopes: `object:download:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: The object does not exist, or its upload is not finished.
    """
    path = arguments.path("metadata", arguments.name(name))
    return Call("object.object", "GET", path, models.ObjectMetadata, service="object")


def download_object(name: str) -> Call[models.Redirect]:
    """Return the URL of an object, for a plain GET (endpoint `download`).

    Scopes: `object:download:<name>`. Safe to repeat.

    Raises:
        ResourceNotFound: The object does not exist, or its upload is not finished.
        NoMatchingMethod: The object cannot be downloaded with a plain GET.
    """
    path = arguments.path("download", arguments.name(name))
    return Call("object.download", "GET", path, models.Redirect, service="object", accepts=REDIRECTED)


def _upload(project_id: str, upload_id: str, hashes: Mapping[str, str] | None) -> dict[str, object]:
    body: dict[str, object] = {
        "projectId": arguments.project_id(project_id),
        "uploadId": arguments.slugid("upload_id", upload_id),
    }
    return body if hashes is None else {**body, "hashes": arguments.mapping("hashes", hashes)}
