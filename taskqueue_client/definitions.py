"""What the Queue is asked, as the plain dicts of its own schemas; and helpers to write a task definition.

The keys are the wire's, in camelCase, so that a dict from YAML or from another generator is as good.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Required, TypedDict, Unpack, cast

import msgspec

from ._dates import a_year_after, instant, normalised, timestamp
from .errors import InvalidArgument
from .models import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

PriorityName = Priority | Literal["highest", "very-high", "high", "medium", "low", "very-low", "lowest"]

Requires = Literal["all-completed", "all-resolved"]
"""When a task is scheduled: when all its dependencies are completed, or when they are resolved anyhow."""


class TaskMetadata(TypedDict):
    """What people are told about a task; `source` is a URL of what it was made from."""

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
    """An artifact whose content goes to S3, or what stands for it."""

    storageType: Literal["s3"]
    expires: str
    contentType: str
    contentLength: NotRequired[int]


class ObjectArtifactRequest(TypedDict):
    """An artifact whose content goes to the object service.

    Do not give `contentLength`: the Queue accepts it, and then fails to finish the artifact.
    """

    storageType: Literal["object"]
    expires: str
    contentType: str
    contentLength: NotRequired[int]


class ReferenceArtifactRequest(TypedDict):
    """An artifact that is somewhere else."""

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
    """An artifact that says why there is none."""

    storageType: Literal["error"]
    expires: str
    reason: Literal[
        "file-missing-on-worker",
        "invalid-resource-on-worker",
        "too-large-file-on-worker",
        "file-not-readable-on-worker",
    ]
    message: str


CreateArtifactRequest = (
    S3ArtifactRequest
    | ObjectArtifactRequest
    | ReferenceArtifactRequest
    | LinkArtifactRequest
    | ErrorArtifactRequest
)


class DataInline(TypedDict):
    """Data that travels within the request: base64, at most 10926 characters of it."""

    contentType: str
    objectData: str


class PutUrlProposal(TypedDict):
    """Data that is to be sent to a URL: its type, and its length in bytes."""

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


_UNITS = {
    "years": (r"y(?:ears?)?", timedelta(days=365)),
    "months": (r"mo(?:nths?)?", timedelta(days=30)),
    "weeks": (r"w(?:eeks?)?", timedelta(weeks=1)),
    "days": (r"d(?:ays?)?", timedelta(days=1)),
    "hours": (r"h(?:ours?)?", timedelta(hours=1)),
    "minutes": (r"m(?:in(?:utes?)?)?", timedelta(minutes=1)),
    "seconds": (r"s(?:ec(?:onds?)?)?", timedelta(seconds=1)),
}
"""As the official clients have them: a year has 365 days here, and a month 30."""

_OFFSET = re.compile(
    r"\s*(?P<past>-?)\s*\+?"
    + "".join(rf"(?:\s*(?P<{unit}>\d+)\s*{spelling})?" for unit, (spelling, _) in _UNITS.items())
    + r"\s*"
)


def from_now(offset: str, reference: datetime | str | None = None) -> str:
    """A moment by its distance from now, as the text that task definitions hold.

    >>> from_now("2 hours 30 minutes", "2026-11-21T10:00:00Z")
    '2026-11-21T12:30:00.000Z'
    >>> from_now("-1 day", "2026-11-21T10:00:00Z")
    '2026-11-20T10:00:00.000Z'

    Args:
        offset: Numbers with their units, largest first: `1 year 2 months`, `3w`, `2h30m`. A minus sign
            before all of it goes back in time. A year has 365 days and a month 30.
        reference: The moment to start from; now, when left out.

    Raises:
        InvalidArgument: The offset or the reference cannot be read, or it is too far away.
    """
    return _shifted("offset", offset, _moment("reference", reference))


def _shifted(argument: str, offset: str, start: datetime) -> str:
    try:
        distance = _distance(offset)
        if distance is None:
            raise InvalidArgument(
                argument, offset, "numbers with units, largest first, like '1 day 12 hours'"
            )
        return timestamp(start + distance)
    except OverflowError:
        raise InvalidArgument(argument, offset, "a moment between the years 1 and 9999") from None


@lru_cache(maxsize=64)  # a program uses the same few for all of its tasks
def _distance(offset: str) -> timedelta | None:
    """How far an offset goes, backwards if it says so; None if it cannot be read."""
    found = _OFFSET.fullmatch(offset)
    if found is None:
        return None
    distance = sum((int(found[unit] or 0) * length for unit, (_, length) in _UNITS.items()), timedelta())
    return -distance if found["past"] else distance


def _moment(argument: str, given: datetime | str | None) -> datetime:
    """A moment that may be given as text, and that is now if it is not given."""
    if given is None:
        return datetime.now(UTC)
    moment = instant(given) if isinstance(given, str) else given
    if moment is None or moment.tzinfo is None:
        raise InvalidArgument(argument, given, "a date-time with a time zone")
    return moment


def task_definition(
    task_queue_id: str,
    payload: dict[str, Any],
    *,
    name: str,
    owner: str,
    source: str,
    description: str = "",
    deadline: str = "1 day",
    expires: str = "1 year",
    created: datetime | str | None = None,
    **options: Unpack[TaskOptions],
) -> TaskDefinition:
    """A task definition with `created`, `deadline`, `expires` and `metadata` filled in.

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
        task_queue_id: Where the task is to run.
        payload: What to run: free, as far as the Queue is concerned.
        name: The task's name.
        owner: Whom to ask about it; an e-mail address, usually.
        source: A URL of what the task was made from.
        description: Markdown.
        deadline: How long after `created` the task must be resolved, as in `from_now`.
        expires: How long after `created` the task is kept, as in `from_now`.
        created: When the task was made; now, when left out.
        options: Any other keys of the definition.

    Raises:
        InvalidArgument: `deadline`, `expires` or `created` cannot be read.
    """
    start = _moment("created", created)
    definition: TaskDefinition = {
        "taskQueueId": task_queue_id,
        "created": timestamp(start),
        "deadline": _shifted("deadline", deadline, start),
        "expires": _shifted("expires", expires, start),
        "payload": payload,
        "metadata": {"name": name, "description": description, "owner": owner, "source": source},
    }
    return cast("TaskDefinition", {**definition, **options})


_DATES = ("created", "deadline", "expires")


def same_definition(given: TaskDefinition, task_id: str, stored: Mapping[str, Any]) -> bool:
    """Whether the Queue would store `given` as the definition that it has `stored` for `task_id`.

    Compares as the Queue does when a task is created again: after its defaults are filled in, and with
    dates in UTC to the millisecond. A date without zone is taken for UTC.
    """
    document = msgspec.json.decode(msgspec.json.encode(given))
    return _same(_as_stored(document, task_id), dict(stored))


def _as_stored(given: dict[str, Any], task_id: str) -> dict[str, Any]:
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
    """All three names of the task queue; the pair is overwritten by `taskQueueId`."""
    task_queue_id = given.get("taskQueueId") or f"{given.get('provisionerId')}/{given.get('workerType')}"
    provisioner_id, _, worker_type = task_queue_id.partition("/")
    return {"taskQueueId": task_queue_id, "provisionerId": provisioner_id, "workerType": worker_type}


def _same(one: object, other: object) -> bool:
    """Whether two JSON values are the same; Python has 1 == True, JSON has not."""
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(one, list) and isinstance(other, list):
        left, right = cast("list[object]", one), cast("list[object]", other)
        return len(left) == len(right) and all(map(_same, left, right))
    return isinstance(one, bool) == isinstance(other, bool) and one == other
