"""Request bodies as plain dicts, and helpers to write a task definition.

The keys are those of the Queue's schemas, in camelCase, so a dict from YAML or from another generator works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, Required, TypedDict, Unpack, cast

import msgspec

from ._arguments import as_json, mapping
from ._dates import a_year_after, epoch_seconds, instant, moment_of, normalised, shifted, timestamp
from .models import Priority

__all__ = [
    "AcceptedDownloadMethods", "CreateArtifactRequest", "DataInline", "ErrorArtifactRequest", "ErrorReason",
    "LinkArtifactRequest", "ObjectArtifactRequest", "PriorityName", "ProposedUploadMethods",
    "PutUrlProposal", "ReferenceArtifactRequest", "Requires", "S3ArtifactRequest", "StorageName",
    "TaskDefinition", "TaskMetadata", "TaskOptions", "from_now", "task_definition",
]  # fmt: skip

PriorityName = Priority | Literal["highest", "very-high", "high", "medium", "low", "very-low", "lowest"]
"""The priority of a task, as a value of `Priority` or as text."""

StorageName = Literal["s3", "object"]
"""The storage of artifacts: S3, or the object service."""

Requires = Literal["all-completed", "all-resolved"]
"""When a task is scheduled: when all its dependencies are completed, or are resolved in any way."""

ErrorReason = Literal[
    "file-missing-on-worker",
    "invalid-resource-on-worker",
    "too-large-file-on-worker",
    "file-not-readable-on-worker",
]
"""Why the content of an artifact is missing."""


class TaskMetadata(TypedDict):
    """Information about a task for people; `source` is the URL of the task's source."""

    name: str
    description: str
    owner: str
    source: str


class TaskOptions(TypedDict, total=False):
    """The keys of a task definition that the Queue has a default for."""

    schedulerId: str
    projectId: str
    taskGroupId: str
    dependencies: list[str]
    requires: Requires
    routes: list[str]
    priority: PriorityName
    retries: int
    scopes: list[str]
    tags: dict[str, str]
    extra: dict[str, Any]


class TaskDefinition(TaskOptions, total=False):
    """A task as `create_task` takes it.

    Either `taskQueueId` or the old pair `provisionerId` and `workerType` names the task queue. Without
    `expires`, the task is kept for a year after its deadline.

    In `payload` and `extra`, some values that JSON lacks are sent as text: bytes in base64, dates and
    durations in the forms of ISO 8601, decimals and UUIDs as they are printed. Members of enumerations are
    sent as their values, dataclasses as objects, and tuples and sets as lists. The members of a set, and the
    keys of a dict, are sorted, so that each process sends the same. Only sets of sets may differ.
    """

    taskQueueId: str
    provisionerId: str
    workerType: str
    created: Required[str]
    deadline: Required[str]
    expires: str
    payload: Required[dict[str, Any]]
    metadata: Required[TaskMetadata]


class S3ArtifactRequest(TypedDict):
    """An artifact whose content is stored in S3."""

    storageType: Literal["s3"]
    expires: str
    contentType: str
    contentLength: NotRequired[int]


class ObjectArtifactRequest(TypedDict):
    """An artifact whose content is stored by the object service.

    Do not give `contentLength`: the Queue accepts it, and then fails to finish the artifact.
    """

    storageType: Literal["object"]
    expires: str
    contentType: str
    contentLength: NotRequired[int]


class ReferenceArtifactRequest(TypedDict):
    """An artifact whose content is at a URL."""

    storageType: Literal["reference"]
    expires: str
    contentType: str
    url: str


class LinkArtifactRequest(TypedDict):
    """Another name for the artifact `artifact` of the same run."""

    storageType: Literal["link"]
    expires: str
    artifact: str
    contentType: NotRequired[str]


class ErrorArtifactRequest(TypedDict):
    """An artifact without content: `reason` and `message` say why the content is missing."""

    storageType: Literal["error"]
    expires: str
    reason: ErrorReason
    message: str


CreateArtifactRequest = (
    S3ArtifactRequest
    | ObjectArtifactRequest
    | ReferenceArtifactRequest
    | LinkArtifactRequest
    | ErrorArtifactRequest
)
"""The request of `create_artifact`, one type for each storage type."""


class DataInline(TypedDict):
    """Data within the request: base64, at most 10926 characters."""

    contentType: str
    objectData: str


class PutUrlProposal(TypedDict):
    """Data to PUT to a URL: its type, and its length in bytes."""

    contentType: str
    contentLength: int


class ProposedUploadMethods(TypedDict, total=False):
    """The ways in which the caller can upload; the object service prefers `dataInline`."""

    dataInline: DataInline
    putUrl: PutUrlProposal


class AcceptedDownloadMethods(TypedDict, total=False):
    """The ways in which the caller can download; the object service prefers `getUrl`."""

    getUrl: Literal[True]
    simple: Literal[True]


def from_now(offset: str, reference: datetime | str | None = None) -> str:
    """Return the time at a distance from now, as text in the form of task definitions.

    >>> from_now("2 hours 30 minutes", "2026-11-21T10:00:00Z")
    '2026-11-21T12:30:00.000Z'
    >>> from_now("-1 day", "2026-11-21T10:00:00Z")
    '2026-11-20T10:00:00.000Z'

    Args:
        offset: Whole numbers with units, largest first: `1 year 2 months`, `3w`, `2h30m`. A minus sign
            before the first number goes back in time. A year has 365 days and a month 30.
        reference: The time to start from; default: now.

    Raises:
        InvalidArgument: `offset` or `reference` cannot be parsed, or the result is out of range.
    """
    start = datetime.now(UTC) if reference is None else moment_of("reference", reference)
    return timestamp(shifted("offset", offset, start))


def task_definition(
    task_queue_id: str,
    payload: Mapping[str, Any],
    *,
    name: str,
    owner: str,
    source: str,
    description: str = "",
    deadline: datetime | str = "1 day",
    expires: datetime | str = "1 year",
    created: datetime | str | None = None,
    **options: Unpack[TaskOptions],
) -> TaskDefinition:
    """Return a task definition with `created`, `deadline`, `expires` and `metadata` filled in.

    >>> definition = task_definition(
    ...     "project/ci",
    ...     {"command": ["make", "test"]},
    ...     name="tests",
    ...     owner="me@example.com",
    ...     source="https://example.com/repository",
    ...     deadline="2 hours",
    ...     retries=1,
    ... )

    Args:
        task_queue_id: The task queue that the task is submitted to.
        payload: Input of the worker; the Queue does not check it.
        name: The task's name.
        owner: The e-mail address of the person responsible for the task.
        source: The URL of the task's source, such as a commit.
        description: A description in Markdown.
        deadline: When the task must be resolved: a time, or a distance from `created` as in `from_now`.
        expires: When the task expires, in the same forms.
        created: When the task is created; default: now. `queue.now()` is right even if this machine's
            clock is wrong: the Queue refuses a `created` that is off by more than 15 minutes.
        options: Any other keys of the definition.

    Raises:
        InvalidArgument: `deadline`, `expires` or `created` cannot be parsed, or `payload` is not a dict.
    """
    start = datetime.now(UTC) if created is None else moment_of("created", created)
    definition: TaskDefinition = {
        "taskQueueId": task_queue_id,
        "created": timestamp(start),
        "deadline": timestamp(moment_of("deadline", deadline, lambda: start)),
        "expires": timestamp(moment_of("expires", expires, lambda: start)),
        "payload": mapping("payload", payload),
        "metadata": {"name": name, "description": description, "owner": owner, "source": source},
    }
    return cast("TaskDefinition", {**definition, **options})


_DATES = ("created", "deadline", "expires")


_OLDEST = 14 * 60
"""Age of `created`, in seconds, from which on the time of the call is sent instead: the Queue accepts 15
minutes. A decision task whose claim expired is run again after 20."""


def up_to_date(definition: TaskDefinition, now: datetime) -> TaskDefinition:
    """Return the definition with a `created` that the Queue accepts."""
    seconds = epoch_seconds(definition["created"])
    if seconds is None or now.timestamp() - seconds < _OLDEST:
        return definition
    return {**definition, "created": timestamp(now)}


def same_definition(given: TaskDefinition, task_id: str, stored: Mapping[str, Any]) -> bool:
    """Return whether the Queue would store `given` as the definition that it has `stored` for `task_id`.

    Compares as the Queue does when a task is created again: after the defaults are filled in, and with
    dates in UTC to the millisecond. A date without a time zone is read as UTC. All numbers become doubles.
    """
    document = msgspec.json.decode(as_json(given))
    return _canonical(_as_stored(document, task_id)) == _canonical(stored)


def _as_stored(given: dict[str, Any], task_id: str) -> dict[str, Any]:
    """Return a definition as the Queue stores it: with its defaults, and dates in UTC."""
    deadline = instant(normalised(given["deadline"]))
    defaults: dict[str, Any] = {
        "schedulerId": "-",
        "projectId": "none",
        "taskGroupId": task_id,
        "dependencies": [],
        "requires": "all-completed",
        "routes": [],
        "priority": "lowest",
        "retries": 5,
        "expires": timestamp(a_year_after(deadline)) if deadline else None,
        "scopes": [],
        "tags": {},
        "extra": {},
    }
    dates: dict[str, str] = {key: normalised(given[key]) for key in _DATES if key in given}
    return {**defaults, **given, **dates, **_task_queue(given)}


def _task_queue(given: dict[str, Any]) -> dict[str, str]:
    """Return the three names of the task queue; `taskQueueId` takes precedence over the pair."""
    task_queue_id = given.get("taskQueueId") or f"{given.get('provisionerId')}/{given.get('workerType')}"
    provisioner_id, _, worker_type = task_queue_id.partition("/")
    return {"taskQueueId": task_queue_id, "provisionerId": provisioner_id, "workerType": worker_type}


def _canonical(document: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal documents. Python's `==` would not do: 1 == True."""
    doubles = json.loads(json.dumps(document), parse_int=_double, parse_float=_double)
    return json.dumps(doubles, sort_keys=True)


def _double(text: str) -> float:
    return float(text) + 0.0  # makes 0.0 of -0.0: the Queue has only one zero
