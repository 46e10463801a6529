"""Artifacts: their records, and the endpoints that create, read and list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from taskqueue_client.local import messages, times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import each, queue
from taskqueue_client.local.refusal import Refusal, conflict, existing, refuse
from taskqueue_client.slugid import slugid

from .core import Core, Json
from .pages import decode_index, encode_index, page_of
from .store import sort_key
from .task_records import Run, Task, find_task, get_task

_RUN = "/task/<taskId>/runs/<runId>"
_CREATE = "queue:create-artifact:<taskId>/<runId>"
_GET = each("name", "names", "queue:get-artifact:<name>")

_DRIFT = 15 * times.MINUTE
_GRACE = 25 * times.MINUTE  # how long a worker may still add artifacts to a run that ended by exception
_PUT_URL_SECONDS = 45 * 60
_UPLOAD_LIFE = 24 * times.HOUR
_DOWNLOAD_LIFE = times.HOUR
_MAX_NAME = 1024  # the limit in the schemas of responses and messages
_MAX_LENGTH = 2**63 - 1  # of the service's database
_DETAILS = {
    "s3": ("contentLength",),
    "object": ("contentLength",),
    "reference": ("url",),
    "link": ("artifact",),
    "error": ("reason", "message"),
}
"""The fields of a request that are stored, by storage type."""
_MUST_MATCH = {"s3": (), "reference": (), "link": ("artifact",), "error": ("reason", "message")}
"""The fields in which an artifact must equal an earlier one of its name; objects cannot be replaced."""


@queue("POST", f"{_RUN}/artifacts/<name>", _CREATE, schema="post-artifact-request")
def create_artifact(core: Core, caller: Caller, task_id: str, run_id: int, name: str, body: Json) -> Json:
    """Record an artifact; return what its storage type needs for the upload."""
    artifact = _new_artifact(task_id, run_id, name, body)
    task, run = _claimed_run(core, caller, artifact)
    with core.transition() as now:
        _check_state(run, now)
        if old := find_artifact(core, task_id, run_id, name):
            artifact = _replacement(old, artifact)
        if artifact.storage_type == "object":
            artifact.details["uploadId"] = upload_id = slugid()
            terms = (artifact.object_name, task.project_id, upload_id, artifact.expires)
            core.storage.objects.lock_upload(*terms)
        save_artifact(core, artifact)
        if artifact.storage_type not in {"s3", "object"}:
            core.send(messages.artifact_created, task, run, artifact.shown())
    return _response(core, task, run, artifact)


@queue("PUT", f"{_RUN}/artifacts/<name>", _CREATE, schema="finish-artifact-request")
def finish_artifact(core: Core, task_id: str, run_id: int, name: str, body: Json) -> None:
    """Make an object artifact readable, after the upload of its data; may be repeated."""
    artifact = existing(find_artifact(core, task_id, run_id, name), "Artifact not found")
    task = get_task(core.store, task_id)
    run = task.run(run_id)
    if artifact.storage_type != "object":
        rule = "only artifacts of storage type `object` are finished"
        refuse("InputError", f"{rule}, not of `{artifact.storage_type}`")
    if not artifact.present:
        if artifact.details["uploadId"] != body["uploadId"]:
            refuse("InputError", "Incorrect uploadId")
        if not core.storage.objects.is_finished(artifact.object_name):
            refuse("InputError", "Object storing artifact data does not exist")
    with core.transition():
        artifact.present = True
        save_artifact(core, artifact)
        core.send(messages.artifact_created, task, run, artifact.shown())


def _claimed_run(core: Core, caller: Caller, artifact: ArtifactRecord) -> tuple[Task, Run]:
    """Return the task and the run that the artifact is for, which must have been claimed."""
    if artifact.expires < core.now() - _DRIFT:
        refuse("InputError", "`expires` must be in the future")
    task = find_task(core.store, artifact.task_id)
    if task is None:
        refuse("InputError", "Task not found")
    if artifact.run_id >= len(task.runs):
        refuse("InputError", "Run not found")
    run = task.runs[artifact.run_id]
    if run.worker is None:
        refuse("InputError", "The run was never claimed, so it cannot have artifacts")
    caller.require(runId=artifact.run_id)
    if artifact.expires > task.expires:
        refuse("InputError", "`expires` of an artifact cannot be after `expires` of its task")
    return task, run


def _response(core: Core, task: Task, run: Run, artifact: ArtifactRecord) -> Json:
    if artifact.storage_type == "s3":
        return {
            "storageType": "s3",
            "contentType": artifact.content_type,
            "expires": times.text(core.now() + _PUT_URL_SECONDS * times.SECOND),
            "putUrl": core.storage.put_url(artifact.key, _PUT_URL_SECONDS),
        }
    if artifact.storage_type == "object":
        return {
            "storageType": "object",
            "name": artifact.object_name,
            "projectId": task.project_id,
            "uploadId": artifact.details["uploadId"],
            "expires": times.text(artifact.expires),
            "credentials": _upload_credentials(core, task, run, artifact),
        }
    return {"storageType": artifact.storage_type}


def _upload_credentials(core: Core, task: Task, run: Run, artifact: ArtifactRecord) -> Json:
    client_id = f"artifact-upload/{task.task_id}/{run.run_id}/on/{run.worker_group}/{run.worker_id}"
    now = core.now()
    scopes = [f"object:upload:{task.project_id}:{artifact.object_name}"]
    return core.issue_credentials(client_id, scopes, now, min(artifact.expires, now + _UPLOAD_LIFE))


def _new_artifact(task_id: str, run_id: int, name: str, body: Json) -> ArtifactRecord:
    if len(name) > _MAX_NAME:
        refuse("InputError", f"the name of an artifact must not be longer than {_MAX_NAME} characters")
    if body.get("contentLength", 0) > _MAX_LENGTH:
        refuse("InputError", f"`contentLength` must be at most {_MAX_LENGTH}, not {body['contentLength']}")
    kind: str = body["storageType"]
    details = {key: body[key] for key in _DETAILS[kind] if key in body}
    content_type: str = body.get("contentType") or "application/binary"
    expires = times.parse(body["expires"], "expires")
    return ArtifactRecord(task_id, run_id, name, kind, content_type, expires, kind != "object", details)


def _check_state(run: Run, now: int) -> None:
    recent = run.state == "exception" and now < times.parse(str(run.resolved), "resolved") + _GRACE
    if run.state != "running" and not recent:
        conflict(f"Run {run.run_id} is not running: artifacts cannot be added to it any more.")


def _replacement(old: ArtifactRecord, new: ArtifactRecord) -> ArtifactRecord:
    if old.storage_type == new.storage_type == "object":
        conflict(f"Object artifact `{old.name}` exists and cannot be created again")
    if new.expires < old.expires or not _is_compatible(old, new):
        conflict(
            f"Artifact `{old.name}` exists with other properties: only `expires` can be extended,"
            " and the url of a reference changed"
        )
    details = {key: value for key, value in new.details.items() if key != "contentLength"}
    if "contentLength" in old.details:
        details["contentLength"] = old.details["contentLength"]
    return msgspec.structs.replace(new, content_type=old.content_type, details=details)


def _is_compatible(old: ArtifactRecord, new: ArtifactRecord) -> bool:
    if (old.storage_type, new.storage_type) == ("reference", "link"):
        return True
    if old.storage_type != new.storage_type or new.storage_type not in _MUST_MATCH:
        return False
    same_type = new.storage_type == "link" or old.content_type == new.content_type
    return same_type and all(old.details[key] == new.details[key] for key in _MUST_MATCH[new.storage_type])


_MAX_RUN_ID = 1000  # larger than that of any run; SQLite refuses numbers above 2**63


class ArtifactRecord(msgspec.Struct):
    """A row of `artifacts`.

    `details` depends on the storage type: `url` of a reference, `artifact` of a link, `reason` and
    `message` of an error, `uploadId` of an object, and optionally `contentLength` of both kinds with data.
    """

    task_id: str
    run_id: int
    name: str
    storage_type: str
    content_type: str
    expires: int
    present: int
    details: Json

    @property
    def key(self) -> str:
        """The key of its data in a bucket."""
        return f"{self.task_id}/{self.run_id}/{self.name}"

    @property
    def object_name(self) -> str:
        """The name of its object in the object service."""
        return f"t/{self.key}"

    def shown(self) -> Json:
        """Return the artifact as messages have it."""
        return {
            "storageType": self.storage_type,
            "name": self.name,
            "expires": times.text(self.expires),
            "contentType": self.content_type,
        }

    def listed(self) -> Json:
        """Return the artifact as listArtifacts and artifactInfo have it."""
        length = self.details.get("contentLength")
        return self.shown() if length is None else {**self.shown(), "contentLength": length}


COLUMNS = ", ".join(ArtifactRecord.__struct_fields__)


def artifact_of(row: tuple[Any, ...]) -> ArtifactRecord:
    """Return the artifact in a row of `COLUMNS`."""
    *plain, details = row
    fields: list[Any] = [*plain, msgspec.json.decode(details)]
    return ArtifactRecord(*fields)


def find_artifact(core: Core, task_id: str, run_id: int, name: str) -> ArtifactRecord | None:
    """Return an artifact by its name; None if it does not exist."""
    sql = f"SELECT {COLUMNS} FROM artifacts WHERE task_id = ? AND run_id = ? AND sort_key = ?"  # noqa: S608 - constants
    row = core.store.row(sql, task_id, min(run_id, _MAX_RUN_ID), sort_key(name))
    return artifact_of(row) if row else None


def save_artifact(core: Core, artifact: ArtifactRecord) -> None:
    """Write a new or changed artifact, within a transition."""
    *plain, details = msgspec.structs.astuple(artifact)
    row = (sort_key(artifact.name), *plain, msgspec.json.encode(details))
    core.store.insert(f"artifacts (sort_key, {COLUMNS})", *row, verb="INSERT OR REPLACE")


@dataclass(frozen=True, slots=True)
class Redirect:
    """A response 303 to the `url` of the content."""

    url: str
    storage_type: str


@dataclass(frozen=True, slots=True)
class ErrorContent:
    """The content of an artifact of the type `error`: a response 424 with the worker's reason."""

    reason: str
    message: str


@queue("GET", f"{_RUN}/artifacts/<name>", _GET)
def get_artifact(core: Core, caller: Caller, task_id: str, run_id: int, name: str) -> Redirect | ErrorContent:
    """Return where an artifact's content is, after following links."""
    artifact = _followed(core, caller, task_id, run_id, name)
    if artifact.storage_type == "error":
        return ErrorContent(artifact.details["reason"], artifact.details["message"])
    return Redirect(_url(core, artifact), artifact.storage_type)


@queue("GET", "/task/<taskId>/artifacts/<name>", _GET)
def get_latest_artifact(core: Core, caller: Caller, task_id: str, name: str) -> Redirect | ErrorContent:
    """Return what `get_artifact` returns, for the latest run."""
    caller.require(names=[name])
    return get_artifact(core, caller, task_id, _latest_run_id(core, task_id), name)


@queue("GET", f"{_RUN}/artifact-content/<name>", _GET)
def artifact(core: Core, caller: Caller, task_id: str, run_id: int, name: str) -> Json:
    """Return what is needed to download an artifact, after following links."""
    artifact = _followed(core, caller, task_id, run_id, name)
    return {"storageType": artifact.storage_type, **_content(core, artifact)}


@queue("GET", "/task/<taskId>/artifact-content/<name>", _GET)
def latest_artifact(core: Core, caller: Caller, task_id: str, name: str) -> Json:
    """Return what `artifact` returns, for the latest run, which is looked up before scopes are checked."""
    return artifact(core, caller, task_id, _latest_run_id(core, task_id), name)


@queue("GET", f"{_RUN}/artifact-info/<name>", "queue:list-artifacts:<taskId>:<runId>")
def artifact_info(core: Core, task_id: str, run_id: int, name: str) -> Json:
    """Return an artifact's record; links are not followed."""
    return _present(core, task_id, run_id, name).listed()


@queue("GET", "/task/<taskId>/artifact-info/<name>", "queue:list-artifacts:<taskId>")
def latest_artifact_info(core: Core, task_id: str, name: str) -> Json:
    """Return what `artifact_info` returns, for the latest run."""
    return artifact_info(core, task_id, _latest_run_id(core, task_id), name)


@queue("GET", f"{_RUN}/artifacts", "queue:list-artifacts:<taskId>:<runId>")
def list_artifacts(core: Core, task_id: str, run_id: int, token: str | None, limit: int) -> Json:
    """Return a page of a run's artifacts, by name, including unfinished ones."""
    _task_with_runs(core, task_id).run(run_id)
    return _list(core, task_id, run_id, token, limit)


@queue("GET", "/task/<taskId>/artifacts", "queue:list-artifacts:<taskId>")
def list_latest_artifacts(core: Core, task_id: str, token: str | None, limit: int) -> Json:
    """Return what `list_artifacts` returns, for the latest run."""
    return _list(core, task_id, _latest_run_id(core, task_id), token, limit)


def _list(core: Core, task_id: str, run_id: int, token: str | None, limit: int) -> Json:
    last_task, last_run, last_name = decode_index(token, tuple[str, int, str]) or ("", 0, "")
    last, listed = (sort_key(last_task), last_run), (sort_key(task_id), run_id)
    after = sort_key(last_name) if last == listed else ""
    count = 0 if last > listed else limit + 1
    sql = (
        f"SELECT {COLUMNS} FROM artifacts WHERE task_id = ? AND run_id = ? AND sort_key > ?"  # noqa: S608 - constants
        " ORDER BY sort_key LIMIT ?"
    )
    artifacts = [artifact_of(row) for row in core.store.rows(sql, task_id, run_id, after, count)]

    def token_after(last: ArtifactRecord) -> str:
        return encode_index(task_id, run_id, last.name)

    return page_of("artifacts", artifacts, limit, ArtifactRecord.listed, token_after)


def _task_with_runs(core: Core, task_id: str) -> Task:
    task = get_task(core.store, task_id)
    if not task.runs:
        refuse("ResourceNotFound", f"Task `{task_id}` has no runs.")
    return task


def _latest_run_id(core: Core, task_id: str) -> int:
    return len(_task_with_runs(core, task_id).runs) - 1


def _present(core: Core, task_id: str, run_id: int, name: str) -> ArtifactRecord:
    artifact = find_artifact(core, task_id, run_id, name)
    if artifact is None or not artifact.present:
        refuse("ResourceNotFound", "Artifact not found")
    return artifact


def _followed(core: Core, caller: Caller, task_id: str, run_id: int, name: str) -> ArtifactRecord:
    names = [name]
    while True:
        caller.require(names=list(names))
        artifact = _present(core, task_id, run_id, names[-1])
        if artifact.expires < core.now():
            refuse("ResourceExpired", f"Artifact `{artifact.name}` has expired")
        if artifact.storage_type != "link":
            return artifact
        target: str = artifact.details["artifact"]
        if target in names:
            refuse("InputError", f"artifact `{target}` is a link that leads back to itself")
        names.append(target)


def _url(core: Core, artifact: ArtifactRecord) -> str:
    if artifact.storage_type == "s3":
        return core.storage.get_url(artifact.key)
    if artifact.storage_type == "object":
        try:
            return core.storage.objects.simple_url(artifact.object_name)
        except Refusal as refusal:  # its code is not one of the Queue
            refuse("ResourceNotFound", refusal.message)
    return str(artifact.details["url"])


def _content(core: Core, artifact: ArtifactRecord) -> Json:
    if artifact.storage_type == "error":
        return {key: artifact.details[key] for key in ("reason", "message")}
    if artifact.storage_type == "object":
        return {"name": artifact.object_name, "credentials": _download_credentials(core, artifact)}
    return {"url": _url(core, artifact)}


def _download_credentials(core: Core, artifact: ArtifactRecord) -> Json:
    now = core.now()
    scopes = [f"object:download:{artifact.object_name}"]
    return core.issue_credentials(f"artifact-download/{artifact.key}", scopes, now, now + _DOWNLOAD_LIFE)
