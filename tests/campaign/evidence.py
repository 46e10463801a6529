"""The evidence that a campaign leaves behind, read from the queue's database, the disk and the messages."""

from __future__ import annotations

import gzip
import hashlib
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from taskqueue_client.models import Run

from .fleet import HandlerEvent, Sample
from .incidents import Incident
from .task_plan import PlannedTask

UNREADABLE = "unreadable"


class StoredTask(msgspec.Struct):
    """A task as the queue's database has it."""

    retries: int
    retries_left: int
    runs: list[Run]

    @property
    def state(self) -> str:
        return str(self.runs[-1].state) if self.runs else "unscheduled"

    @property
    def reason(self) -> str:
        return str(self.runs[-1].reason_resolved) if self.runs else "unscheduled"


class StoredArtifact(NamedTuple):
    """An artifact as the queue's database has it, and its body.

    Attributes:
        storage_type: `s3`, `object`, `link`, `error` or `reference`.
        present: Whether it can be downloaded.
        digest: The SHA-256 of its decompressed bytes; None without a body.
    """

    storage_type: str
    present: bool
    digest: str | None


class ReceivedMessage(NamedTuple):
    """A message as the listener has received it.

    Attributes:
        exchange: Its short name.
        task_id: The task.
        run_id: The run; None for `task-defined`.
        state: The task's state as the message has it.
        runs: The task's runs as the message has them.
        artifact: The name of the artifact that the message is about; None for other messages.
    """

    exchange: str
    task_id: str
    run_id: int | None
    state: str
    runs: list[Run]
    artifact: str | None = None


class Evidence(NamedTuple):
    """Everything that the checker looks at.

    Attributes:
        lease: How long a claim lasts, in seconds.
        planned: The tasks that were created.
        tasks: The tasks in the queue's database.
        artifacts: The artifacts in it, by task, then by run and name.
        messages: The messages, in the order in which they were received.
        handlers: The beginnings and ends of handlers.
        incidents: The faults, which explain deviations from the plan.
        memory: The memory of the processes, in MB.
        objects: How many objects the workers had.
        leftovers: Descriptions of what was left at the end and should not have been.
    """

    lease: float
    planned: Mapping[str, PlannedTask]
    tasks: Mapping[str, StoredTask]
    artifacts: Mapping[str, Mapping[tuple[int, str], StoredArtifact]]
    messages: list[ReceivedMessage]
    handlers: list[HandlerEvent]
    incidents: list[Incident]
    memory: list[Sample]
    objects: list[Sample]
    leftovers: list[str]


_decode_runs = msgspec.json.Decoder(list[Run]).decode


def read_tasks(database: Path) -> dict[str, StoredTask]:
    """Return all tasks in a queue's database, which no queue may have open."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT task_id, retries, retries_left, runs FROM tasks")
        return {
            task_id: StoredTask(retries, left, _decode_runs(runs)) for task_id, retries, left, runs in rows
        }


def read_artifacts(database: Path) -> Mapping[str, dict[tuple[int, str], StoredArtifact]]:
    """Return all artifacts in a queue's database, with the digests of their bodies."""
    with closing(sqlite3.connect(database)) as connection:
        bodies = {
            key: _digest(directory_of(database) / file, headers) for key, file, headers in _bodies(connection)
        }
        found: defaultdict[str, dict[tuple[int, str], StoredArtifact]] = defaultdict(dict)
        rows = connection.execute("SELECT task_id, run_id, name, storage_type, present FROM artifacts")
        for task_id, run_id, name, kind, present in rows:
            body = bodies.get(_body_key(kind, task_id, run_id, name))
            found[task_id][run_id, name] = StoredArtifact(kind, bool(present), body)
        return found


def unknown_files(database: Path) -> list[str]:
    """Return the files beside a database that belong to no artifact."""
    with closing(sqlite3.connect(database)) as connection:
        known = {file for _, file, _ in _bodies(connection)}
    return [str(path) for path in sorted(directory_of(database).iterdir()) if path.name not in known]


def directory_of(database: Path) -> Path:
    """Return where a queue keeps the bodies of artifacts."""
    return database.with_name(f"{database.name}.artifacts")


def _bodies(connection: sqlite3.Connection) -> Iterable[tuple[str, str, str]]:
    return connection.execute("SELECT key, file, headers FROM bodies").fetchall()


def _body_key(kind: str, task_id: str, run_id: int, name: str) -> str:
    prefix = "t/" if kind == "object" else ""
    return f"{prefix}{task_id}/{run_id}/{name}"


def _digest(path: Path, headers: str) -> str:
    """Return the SHA-256 of a body after decompression."""
    encoding = msgspec.json.decode(headers, type=dict[str, str]).get("Content-Encoding", "")
    digest = hashlib.sha256()
    try:
        with gzip.open(path) if encoding == "gzip" else path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return UNREADABLE
    return digest.hexdigest()


def planned_digest(task: PlannedTask, name: str) -> str:
    """Return the SHA-256 of a planned artifact."""
    digest = hashlib.sha256()
    for artifact in task.artifacts:
        if artifact.name == name:
            for piece in artifact.content(task.task_id):
                digest.update(piece)
    return digest.hexdigest()
