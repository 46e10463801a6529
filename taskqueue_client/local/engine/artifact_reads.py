"""Reading artifacts: their content, following links, and lists of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine.artifact_records import COLUMNS, Artifact, artifact_of, find_artifact
from taskqueue_client.local.engine.collation import sort_key
from taskqueue_client.local.engine.credentials import download_credentials
from taskqueue_client.local.engine.paging import decode_index, encode_index, page_of, page_size
from taskqueue_client.local.engine.records import Task, get_task
from taskqueue_client.local.refusal import Caller, Refusal, bad_input, not_found

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core


@dataclass(frozen=True, slots=True)
class Redirect:
    """The content is elsewhere: 303 to `url`."""

    url: str
    storage_type: str


@dataclass(frozen=True, slots=True)
class ErrorArtifact:
    """There is no content, and the worker said why: 424."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ArtifactReads:
    """The endpoints by which artifacts are found and downloaded."""

    core: Core

    def get_artifact(
        self,
        caller: Caller,
        task_id: str,
        run_id: int,
        name: str,
        skip_cdn: bool = False,  # noqa: FBT001, FBT002 - a header of the request
    ) -> Redirect | ErrorArtifact:
        """Where an artifact's content is, links being followed.

        Raises:
            Refusal: `InsufficientScopes` for the artifact or one that it links to; `ResourceNotFound`;
                `ResourceExpired`; `InputError`: links in a circle.
        """
        artifact = self._followed(caller, task_id, run_id, name)
        if artifact.storage_type == "error":
            return ErrorArtifact(artifact.details["reason"], artifact.details["message"])
        return Redirect(self._url(artifact, skip_cdn=skip_cdn), artifact.storage_type)

    def get_latest_artifact(
        self,
        caller: Caller,
        task_id: str,
        name: str,
        skip_cdn: bool = False,  # noqa: FBT001, FBT002 - a header of the request
    ) -> Redirect | ErrorArtifact:
        """The same of the latest run."""
        caller.require(names=[name])
        return self.get_artifact(caller, task_id, self._latest_run_id(task_id), name, skip_cdn)

    def artifact(self, caller: Caller, task_id: str, run_id: int, name: str) -> dict[str, Any]:
        """What is needed to download an artifact, links being followed; raises as `get_artifact` does."""
        artifact = self._followed(caller, task_id, run_id, name)
        return {"storageType": artifact.storage_type, **self._content(artifact)}

    def latest_artifact(self, caller: Caller, task_id: str, name: str) -> dict[str, Any]:
        """The same of the latest run, which is looked for before any scope is checked."""
        return self.artifact(caller, task_id, self._latest_run_id(task_id), name)

    def artifact_info(self, task_id: str, run_id: int, name: str) -> dict[str, Any]:
        """An artifact's record; links are not followed.

        Raises:
            Refusal: `ResourceNotFound`: there is none, or its upload is not finished.
        """
        return self._present(task_id, run_id, name).listed()

    def latest_artifact_info(self, task_id: str, name: str) -> dict[str, Any]:
        """The same of the latest run."""
        return self.artifact_info(task_id, self._latest_run_id(task_id), name)

    def list_artifacts(
        self, task_id: str, run_id: int, continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of a run's artifacts, by name; unfinished ones are among them."""
        self._task_with_runs(task_id).run(run_id)
        return self._list(task_id, run_id, continuation_token, limit)

    def list_latest_artifacts(
        self, task_id: str, continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """The same of the latest run."""
        return self._list(task_id, self._latest_run_id(task_id), continuation_token, limit)

    def _list(self, task_id: str, run_id: int, token: str | None, limit: int) -> dict[str, Any]:
        size = page_size(limit)
        _, _, last = decode_index(token, tuple[str, int, str]) or (task_id, run_id, "")
        rows = self.core.store.rows(
            f"SELECT {COLUMNS} FROM artifacts WHERE task_id = ? AND run_id = ? AND sort_key > ?"  # noqa: S608 - constants
            " ORDER BY sort_key LIMIT ?",
            task_id,
            run_id,
            sort_key(last) if last else "",
            size + 1,
        )

        def item(row: tuple[Any, ...]) -> dict[str, Any]:
            return artifact_of(row).listed()

        def next_token(row: tuple[Any, ...]) -> str:
            return encode_index(task_id, run_id, artifact_of(row).name)

        return page_of("artifacts", rows, size, item, next_token)

    def _task_with_runs(self, task_id: str) -> Task:
        task = get_task(self.core.store, task_id)
        if not task.runs:
            message = f"Task `{task_id}` has no runs."
            raise not_found(message)
        return task

    def _latest_run_id(self, task_id: str) -> int:
        return len(self._task_with_runs(task_id).runs) - 1

    def _present(self, task_id: str, run_id: int, name: str) -> Artifact:
        artifact = find_artifact(self.core, task_id, run_id, name)
        if artifact is None or not artifact.present:
            message = "Artifact not found"
            raise not_found(message)
        return artifact

    def _followed(self, caller: Caller, task_id: str, run_id: int, name: str) -> Artifact:
        names = [name]
        while True:
            caller.require(names=list(names))
            artifact = self._present(task_id, run_id, names[-1])
            if artifact.expires < self.core.now():
                code, message = "ResourceExpired", f"Artifact `{artifact.name}` has expired"
                raise Refusal(code, message)
            if artifact.storage_type != "link":
                return artifact
            target: str = artifact.details["artifact"]
            if target in names:
                message = f"artifact `{target}` is a link that leads back to itself"
                raise bad_input(message)
            names.append(target)

    def _url(self, artifact: Artifact, *, skip_cdn: bool = False) -> str:
        if artifact.storage_type == "s3":
            return self.core.storage.get_url(artifact.name, artifact.key, skip_cdn)
        if artifact.storage_type == "object":
            return self.core.storage.object_url(artifact.object_name)
        url: str = artifact.details["url"]
        return url

    def _content(self, artifact: Artifact) -> dict[str, Any]:
        if artifact.storage_type == "error":
            return {key: artifact.details[key] for key in ("reason", "message")}
        if artifact.storage_type == "object":
            name = artifact.object_name
            return {"name": name, "credentials": download_credentials(self.core, artifact.key, name)}
        return {"url": self._url(artifact)}
