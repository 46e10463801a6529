"""Calls about artifacts. The content itself travels elsewhere; see `taskqueue_client.artifacts`."""

from __future__ import annotations

from types import NoneType

from taskqueue_client._call import Call
from taskqueue_client._paging import Pages
from taskqueue_client.definitions import CreateArtifactRequest
from taskqueue_client.models import (
    Artifact,
    ArtifactContent,
    ArtifactLocation,
    ArtifactsPage,
    CreateArtifactResponse,
)

from . import _arguments as arguments

REDIRECTED = frozenset({303})
"""The status of an answer that says where the content is; it is read, and not followed."""


def create_artifact(
    task_id: str, run_id: int, name: str, request: CreateArtifactRequest
) -> Call[CreateArtifactResponse]:
    """Create an artifact, or extend the `expires` of an equal one.

    Safe to repeat, except for `object`: the upload id is in the first answer only.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have.

    Args:
        task_id: The task.
        run_id: The run, running or resolved as an exception in the last 25 minutes.
        name: Printable ASCII; names that begin with `public/` are for everybody.
        request: The storage type, `expires`, and what goes with the storage type.

    Raises:
        InputError: There is no such task or run, or `expires` is past or after the task's.
        RequestConflict: The run is not running, or an artifact that differs has the name.
    """
    return Call(
        "createArtifact", "POST", _of_run(task_id, run_id, name), CreateArtifactResponse, body=request
    )


def finish_artifact(task_id: str, run_id: int, name: str, *, upload_id: str) -> Call[None]:
    """Make an `object` artifact readable, after its upload; the run may be resolved by then.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such artifact.
        InputError: It is of another storage type, has another upload id, or is not uploaded.
    """
    body = {"uploadId": arguments.slugid("upload_id", upload_id)}
    return Call("finishArtifact", "PUT", _of_run(task_id, run_id, name), NoneType, body=body)


def get_artifact(task_id: str, run_id: int, name: str) -> Call[ArtifactLocation]:
    """Where the content of an artifact can be fetched with a plain GET; links are followed.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such artifact, or its upload is not finished.
        ResourceExpired: It has expired.
        ErrorArtifact: It is of the storage type `error`.
        InputError: Its links go in a circle.
    """
    path = _of_run(task_id, run_id, name)
    return Call("getArtifact", "GET", path, ArtifactLocation, accepts=REDIRECTED)


def get_latest_artifact(task_id: str, name: str) -> Call[ArtifactLocation]:
    """`get_artifact` of the task's last run, whatever its state.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task, run or artifact, or its upload is not finished.
        ResourceExpired: It has expired.
        ErrorArtifact: It is of the storage type `error`.
        InputError: Its links go in a circle.
    """
    path = _of_latest(task_id, "artifacts", name)
    return Call("getLatestArtifact", "GET", path, ArtifactLocation, accepts=REDIRECTED)


def list_artifacts(
    task_id: str, run_id: int, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[ArtifactsPage]:
    """One page of the artifacts of a run, in the order of their names.

    Scopes: `queue:list-artifacts:<task_id>:<run_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task or run.
    """
    path = arguments.path("task", *_run(task_id, run_id), "artifacts")
    query = arguments.page_query(continuation_token, limit)
    return Call("listArtifacts", "GET", path, ArtifactsPage, query)


def iter_artifacts(
    task_id: str, run_id: int, *, page_size: int | None = None
) -> Pages[ArtifactsPage, Artifact]:
    """The artifacts of a run, page after page; see `list_artifacts`."""
    return Pages(list_artifacts(task_id, run_id, limit=page_size), lambda page: page.artifacts)


def list_latest_artifacts(
    task_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[ArtifactsPage]:
    """One page of the artifacts of the task's last run, in the order of their names.

    Scopes: `queue:list-artifacts:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task, or it has no run.
    """
    path = arguments.path("task", arguments.slugid("task_id", task_id), "artifacts")
    query = arguments.page_query(continuation_token, limit)
    return Call("listLatestArtifacts", "GET", path, ArtifactsPage, query)


def iter_latest_artifacts(task_id: str, *, page_size: int | None = None) -> Pages[ArtifactsPage, Artifact]:
    """The artifacts of the task's last run, page after page; see `list_latest_artifacts`."""
    return Pages(list_latest_artifacts(task_id, limit=page_size), lambda page: page.artifacts)


def artifact_info(task_id: str, run_id: int, name: str) -> Call[Artifact]:
    """What is known about an artifact; links are not followed.

    Scopes: `queue:list-artifacts:<task_id>:<run_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task, run or artifact, or its upload is not finished.
    """
    return Call("artifactInfo", "GET", _of_run(task_id, run_id, name, "artifact-info"), Artifact)


def latest_artifact_info(task_id: str, name: str) -> Call[Artifact]:
    """`artifact_info` of the task's last run.

    Scopes: `queue:list-artifacts:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task, run or artifact, or its upload is not finished.
    """
    return Call("latestArtifactInfo", "GET", _of_latest(task_id, "artifact-info", name), Artifact)


def artifact(task_id: str, run_id: int, name: str) -> Call[ArtifactContent]:
    """How the content of an artifact can be fetched, whatever its storage type; links are followed.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such artifact, or its upload is not finished.
        ResourceExpired: It has expired.
        InputError: Its links go in a circle.
    """
    return Call("artifact", "GET", _of_run(task_id, run_id, name, "artifact-content"), ArtifactContent)


def latest_artifact(task_id: str, name: str) -> Call[ArtifactContent]:
    """`artifact` of the task's last run, whatever its state.

    Scopes: `queue:get-artifact:<name>`, also for each link's target. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task, run or artifact, or its upload is not finished.
        ResourceExpired: It has expired.
        InputError: Its links go in a circle.
    """
    return Call("latestArtifact", "GET", _of_latest(task_id, "artifact-content", name), ArtifactContent)


def _run(task_id: str, run_id: int) -> tuple[str, str, int]:
    return arguments.slugid("task_id", task_id), "runs", arguments.number("run_id", run_id)


def _of_run(task_id: str, run_id: int, name: str, what: str = "artifacts") -> str:
    return arguments.path("task", *_run(task_id, run_id), what, arguments.name(name))


def _of_latest(task_id: str, what: str, name: str) -> str:
    return arguments.path("task", arguments.slugid("task_id", task_id), what, arguments.name(name))
