"""createArtifact and finishArtifact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from taskqueue_client.local.engine import announce, times
from taskqueue_client.local.engine.artifact_records import Artifact, find_artifact, save_artifact
from taskqueue_client.local.engine.credentials import upload_credentials
from taskqueue_client.local.engine.jsonb import encode, normalised
from taskqueue_client.local.engine.records import Run, Task, find_task, get_task
from taskqueue_client.local.refusal import bad_input, conflict, not_found
from taskqueue_client.slugid import slugid

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core

_DRIFT = 15 * times.MINUTE
_GRACE = 25 * times.MINUTE  # how long a worker may still add artifacts to a run that ended by exception
_PUT_URL_LIFE = 45 * times.MINUTE
_MAX_NAME = 1024  # what the schemas of answers and messages can hold
_DEFAULT_TYPE = "application/binary"
_DETAILS = {
    "s3": ("contentLength",),
    "object": ("contentLength",),
    "reference": ("url",),
    "link": ("artifact",),
    "error": ("reason", "message"),
}
"""What of a request is kept, by storage type."""
_MUST_MATCH = {"s3": (), "reference": (), "link": ("artifact",), "error": ("reason", "message")}
"""What an artifact must have in common with an earlier one of its name; objects cannot be replaced."""


@dataclass(frozen=True, slots=True)
class ArtifactUploads:
    """The endpoints by which a worker adds artifacts to its run."""

    core: Core

    def create_artifact(self, task_id: str, run_id: int, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Record an artifact; answers what its storage type needs for the upload.

        Raises:
            Refusal: `InputError`: dates, or no such task or run; `RequestConflict`: the run's state, or
                an artifact of this name that the new one cannot replace.
        """
        artifact = _new_artifact(task_id, run_id, name, body)
        task, run = self._claimed_run(artifact)
        with self.core.transition() as now:
            _check_state(run, now)
            existing = find_artifact(self.core, task_id, run_id, name)
            if existing:
                artifact = _replacement(existing, artifact)
            if artifact.storage_type == "object":
                artifact.details["uploadId"] = self._lock_upload(task, artifact)
            save_artifact(self.core, artifact)
            if artifact.storage_type not in {"s3", "object"}:
                self.core.send(announce.artifact_created, task, run, artifact.shown())
        return self._answer(task, run, artifact)

    def finish_artifact(self, task_id: str, run_id: int, name: str, body: dict[str, Any]) -> None:
        """Let an object artifact be read, its data being there; may be repeated."""
        artifact = find_artifact(self.core, task_id, run_id, name)
        if artifact is None:
            message = "Artifact not found"
            raise not_found(message)
        task = get_task(self.core.store, task_id)
        run = task.run(run_id)
        if artifact.storage_type != "object":
            message = (
                f"only artifacts of storage type `object` are finished, not of `{artifact.storage_type}`"
            )
            raise bad_input(message)
        if not artifact.present:
            self._check_upload(artifact, body["uploadId"])
        with self.core.transition():
            artifact.present = True
            save_artifact(self.core, artifact)
            self.core.send(announce.artifact_created, task, run, artifact.shown())

    def _claimed_run(self, artifact: Artifact) -> tuple[Task, Run]:
        """The task and the run that the artifact is for, which must have been claimed."""
        if artifact.expires < self.core.now() - _DRIFT:
            message = "`expires` must be in the future"
            raise bad_input(message)
        task = find_task(self.core.store, artifact.task_id)
        if task is None:
            message = "Task not found"
            raise bad_input(message)
        if artifact.run_id >= len(task.runs):
            message = "Run not found"
            raise bad_input(message)
        run = task.runs[artifact.run_id]
        if run.worker is None:
            message = "The run was never claimed, so it cannot have artifacts"
            raise bad_input(message)
        if artifact.expires > task.expires:
            message = "`expires` of an artifact cannot be after `expires` of its task"
            raise bad_input(message)
        return task, run

    def _lock_upload(self, task: Task, artifact: Artifact) -> str:
        upload_id = slugid()
        self.core.storage.lock_upload(artifact.object_name, task.project_id, upload_id, artifact.expires)
        return upload_id

    def _check_upload(self, artifact: Artifact, upload_id: str) -> None:
        if artifact.details["uploadId"] != upload_id:
            message = "Incorrect uploadId"
            raise bad_input(message)
        if not self.core.storage.is_finished(artifact.object_name):
            message = "Object storing artifact data does not exist"
            raise bad_input(message)

    def _answer(self, task: Task, run: Run, artifact: Artifact) -> dict[str, Any]:
        if artifact.storage_type == "s3":
            return self._s3_answer(artifact)
        if artifact.storage_type == "object":
            return self._object_answer(task, run, artifact)
        return {"storageType": artifact.storage_type}

    def _s3_answer(self, artifact: Artifact) -> dict[str, Any]:
        expires = self.core.now() + _PUT_URL_LIFE
        url = self.core.storage.put_url(artifact.key, artifact.content_type, expires)
        return {
            "storageType": "s3",
            "contentType": artifact.content_type,
            "expires": times.text(expires),
            "putUrl": url,
        }

    def _object_answer(self, task: Task, run: Run, artifact: Artifact) -> dict[str, Any]:
        name = artifact.object_name
        return {
            "storageType": "object",
            "name": name,
            "projectId": task.project_id,
            "uploadId": artifact.details["uploadId"],
            "expires": times.text(artifact.expires),
            "credentials": upload_credentials(self.core, task, run, name, artifact.expires),
        }


def _new_artifact(task_id: str, run_id: int, name: str, body: dict[str, Any]) -> Artifact:
    if len(name) > _MAX_NAME:
        message = f"the name of an artifact must not be longer than {_MAX_NAME} characters"
        raise bad_input(message)
    storage_type: str = body["storageType"]
    details = {key: normalised(body[key]) for key in _DETAILS[storage_type] if key in body}
    content_type: str = body.get("contentType") or _DEFAULT_TYPE
    encode([content_type, details])
    return Artifact(
        task_id,
        run_id,
        name,
        storage_type,
        content_type,
        times.parse(body["expires"], "expires"),
        storage_type != "object",
        details,
    )


def _check_state(run: Run, now: int) -> None:
    recent = run.state == "exception" and now < times.parse(str(run.resolved), "resolved") + _GRACE
    if run.state != "running" and not recent:
        message = f"Run {run.run_id} is not running: artifacts cannot be added to it any more."
        raise conflict(message)


def _replacement(old: Artifact, new: Artifact) -> Artifact:
    """What becomes of an artifact that is created again.

    Raises:
        Refusal: `RequestConflict`: the artifacts are not compatible.
    """
    if new.expires < old.expires or not _is_compatible(old, new):
        message = (
            f"Artifact `{old.name}` exists with other properties: only `expires` can be extended,"
            " and the url of a reference changed"
        )
        raise conflict(message)
    details = {key: value for key, value in new.details.items() if key != "contentLength"}
    if "contentLength" in old.details:
        details["contentLength"] = old.details["contentLength"]
    return msgspec.structs.replace(new, content_type=old.content_type, details=details)


def _is_compatible(old: Artifact, new: Artifact) -> bool:
    if (old.storage_type, new.storage_type) == ("reference", "link"):
        return True
    if old.storage_type != new.storage_type or new.storage_type not in _MUST_MATCH:
        return False
    same_type = new.storage_type == "link" or old.content_type == new.content_type
    return same_type and all(old.details[key] == new.details[key] for key in _MUST_MATCH[new.storage_type])
