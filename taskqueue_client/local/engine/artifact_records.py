"""Records of artifacts: what was promised or uploaded for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from taskqueue_client.local.engine import times
from taskqueue_client.local.engine.collation import sort_key

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core

COLUMNS = "task_id, run_id, name, storage_type, content_type, expires, present, details"
_MAX_RUN_ID = 1000  # no run has a higher number, and the database's numbers end somewhere


class Artifact(msgspec.Struct):
    """A row of `artifacts`.

    `details` depends on the storage type: `url` of a reference, `artifact` of a link, `reason` and
    `message` of an error, `uploadId` of an object, perhaps `contentLength` of both kinds with data.
    """

    task_id: str
    run_id: int
    name: str
    storage_type: str
    content_type: str
    expires: int
    present: int
    details: dict[str, Any]

    @property
    def key(self) -> str:
        """Where its data is kept in a bucket."""
        return f"{self.task_id}/{self.run_id}/{self.name}"

    @property
    def object_name(self) -> str:
        """What the object service knows it by."""
        return f"t/{self.key}"

    def shown(self) -> dict[str, Any]:
        """The artifact as messages have it."""
        return {
            "storageType": self.storage_type,
            "name": self.name,
            "expires": times.text(self.expires),
            "contentType": self.content_type,
        }

    def listed(self) -> dict[str, Any]:
        """The artifact as lists and infos have it."""
        length = self.details.get("contentLength")
        return self.shown() if length is None else {**self.shown(), "contentLength": length}


def artifact_of(row: tuple[Any, ...]) -> Artifact:
    """The artifact in a row of `COLUMNS`."""
    *plain, details = row
    fields: list[Any] = [*plain, msgspec.json.decode(details)]
    return Artifact(*fields)


def find_artifact(core: Core, task_id: str, run_id: int, name: str) -> Artifact | None:
    """An artifact by its name, if there is one."""
    row = core.store.row(
        f"SELECT {COLUMNS} FROM artifacts WHERE task_id = ? AND run_id = ? AND sort_key = ?",  # noqa: S608 - constants
        task_id,
        min(run_id, _MAX_RUN_ID),
        sort_key(name),
    )
    return artifact_of(row) if row else None


def save_artifact(core: Core, artifact: Artifact) -> None:
    """Write a new or changed artifact, within a transition."""
    core.store.change(
        f"INSERT OR REPLACE INTO artifacts ({COLUMNS}, sort_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants
        artifact.task_id,
        artifact.run_id,
        artifact.name,
        artifact.storage_type,
        artifact.content_type,
        artifact.expires,
        artifact.present,
        msgspec.json.encode(artifact.details),
        sort_key(artifact.name),
    )
