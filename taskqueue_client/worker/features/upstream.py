"""Downloads of other tasks' artifacts into the work directory of a run."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import posixpath
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, TypedDict, TypeVar, cast

import msgspec

from taskqueue_client import calls
from taskqueue_client._arguments import number, slugid
from taskqueue_client._protocol.conversation import Conversation, Together, Work
from taskqueue_client._protocol.retry import is_foreign
from taskqueue_client.artifacts.artifact_errors import (
    ChainOfTrustError,
    DownloadCorrupt,
    DownloadTooLarge,
    RedirectRefused,
    StorageFailed,
    StorageRefused,
)
from taskqueue_client.artifacts.chain_verification import ChainOfTrust, PublicKeys, verify_chain_of_trust
from taskqueue_client.artifacts.download_methods import checked_path, download_to
from taskqueue_client.artifacts.downloading import FILE, Destination, DownloadResult
from taskqueue_client.artifacts.transfers import TransferClient, open_folder
from taskqueue_client.errors import (
    ErrorArtifact,
    InsufficientScopes,
    InvalidArgument,
    ResourceExpired,
    ResourceNotFound,
)
from taskqueue_client.models import StorageType
from taskqueue_client.models._base import prepare
from taskqueue_client.worker.commands.work_directory import path_inside
from taskqueue_client.worker.outcomes import MalformedPayload, ResourceUnavailable
from taskqueue_client.worker.tracing import Tracing

R = TypeVar("R")

CONCURRENCY = 8
"""Artifacts that are downloaded at the same time."""

_MISSING = "optional artifact %s of task %s does not exist"


class UpstreamTask(msgspec.Struct, frozen=True, rename="camel"):
    """A task with artifacts to download, as `payload.upstreamArtifacts` of scriptworker lists them.

    Attributes:
        task_id: The task.
        task_type: The kind of task; passed on to `UpstreamArtifact`.
        paths: The artifacts' names, in which `*` stands for any text. Default: all artifacts of the latest
            run.
        formats: For example the formats to sign; passed on to `UpstreamArtifact`.
        optional: Leave out artifacts that do not exist.
    """

    task_id: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{22}$")]
    task_type: str = ""
    paths: tuple[str, ...] = ("*",)
    formats: tuple[str, ...] = ()
    optional: bool = False


prepare(UpstreamTask)

_KEYS = frozenset(UpstreamTask.__struct_encode_fields__)

_LIKENESS = 0.85
"""A key at least this similar to a known one is misspelled. `task` is not, and has 0.8 with `taskId`."""


class DownloadOptions(TypedDict, total=False):
    """Options of `TaskRun.download_artifact`.

    Attributes:
        to: A path, relative to the work directory, at which the file appears when it is complete; directories
            above it are created. Default: the content goes to memory.
        run_id: The run that has the artifact. Default: the latest one.
        max_bytes: As for `Queue.download_artifact`.
        verified_by: The keys or the chain of trust that must prove the content, as for
            `Queue.download_artifact`.
        allow_outside: Allow a path outside of the work directory.
    """

    to: str | os.PathLike[str] | None
    run_id: int | None
    max_bytes: int | None
    verified_by: PublicKeys | ChainOfTrust | None
    allow_outside: bool


class UpstreamOptions(TypedDict, total=False):
    """Options of `TaskRun.upstream_artifacts`.

    Attributes:
        to: A directory, relative to the work directory. Default: `upstream`.
        concurrency: How many artifacts are downloaded at the same time. Default: 8.
        allow_outside: Allow a directory outside of the work directory.
        verified_by: The public keys of the trusted workers, as for `Queue.verify_chain_of_trust`. Only
            artifacts in the chain of trust of each task are downloaded; `*` stands for their names.
    """

    to: str | os.PathLike[str]
    concurrency: int
    allow_outside: bool
    verified_by: str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class UpstreamArtifact:
    """A downloaded artifact of another task.

    Attributes:
        task_id: The task.
        name: The artifact's name.
        path: The file.
        task_type: As in the list of upstream artifacts.
        formats: As in the list of upstream artifacts.
        download: The result of the download, such as its size and the hashes that were compared.
    """

    task_id: str
    name: str
    path: Path
    task_type: str
    formats: tuple[str, ...]
    download: DownloadResult = field(repr=False)


def upstream_tasks(given: Any) -> list[UpstreamTask]:
    """Read a list of upstream artifacts.

    Unknown keys are ignored, as scripts of scriptworker have their own. A misspelled key is refused: with
    `path` instead of `paths`, all artifacts of the task would be downloaded.
    """
    try:
        listed = cast("list[Any]", given if isinstance(given, (str, dict)) else [*given])
        tasks = msgspec.convert(listed, list[UpstreamTask])
        _check_keys(listed)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise InvalidArgument(
            "upstream", cast("object", given), "a list of {taskId, paths, …}", str(error)
        ) from None
    return tasks


def _check_keys(listed: list[Mapping[str, Any]]) -> None:
    for index, entry in enumerate(listed):
        for key in sorted(entry.keys() - _KEYS):
            if closest := get_close_matches(key, _KEYS, n=1, cutoff=_LIKENESS):
                finding = f"unknown key {key!r}, the closest known one is {closest[0]!r} - at `$[{index}]`"
                raise msgspec.ValidationError(finding)


def upstream_of_payload(payload: Mapping[str, Any], allowed: Container[str]) -> list[UpstreamTask]:
    """Read `upstreamArtifacts` of a payload.

    It may name only tasks in `allowed`: the task's dependencies and the decision task of its group. Without
    this check, a payload could have a worker sign or publish the files of any task of the deployment.

    Raises:
        MalformedPayload: The list is missing or not valid, has a path that leads out of a directory, or names
            a task that is not in `allowed`.
    """
    try:
        tasks = upstream_tasks(payload["upstreamArtifacts"])
    except KeyError:
        raise MalformedPayload("the payload has no upstreamArtifacts") from None
    except InvalidArgument as error:
        raise MalformedPayload(f"payload.upstreamArtifacts: {error.finding}") from None
    for each in tasks:
        if each.task_id not in allowed:
            raise MalformedPayload(
                f"payload.upstreamArtifacts: {each.task_id} is not in the task's dependencies, and is not "
                "the decision task of its group"
            )
    for path in itertools.chain.from_iterable(each.paths for each in tasks):
        if path.startswith("/") or ".." in path.split("/"):
            raise MalformedPayload(
                f"payload.upstreamArtifacts: the path {path!r} leads out of the task's directory"
            )
    return tasks


_ABOUT_THE_PAYLOAD = (
    *(ResourceNotFound, ResourceExpired, ErrorArtifact, InsufficientScopes),
    *(ChainOfTrustError, DownloadCorrupt, DownloadTooLarge, StorageFailed),
)
"""The errors that any worker may get for the same list."""


def with_outcomes_of_the_task(steps: Conversation[R]) -> Conversation[R]:
    """Download the artifacts that the payload lists; raise errors that the list causes as task outcomes.

    Otherwise a few tasks with a wrong list would shut the worker down, as repeated internal errors do. An
    error response of a proxy in place of the service is not caused by the list, and neither is an outage of
    storage. But an upstream task chooses the server of a reference.
    """
    try:
        return (yield from steps)
    except _ABOUT_THE_PAYLOAD as error:
        if is_foreign(error) or (isinstance(error, StorageFailed) and not _is_caused_by_a_task(error)):
            raise
        is_refused = isinstance(error, (InsufficientScopes, ChainOfTrustError))
        outcome = MalformedPayload if is_refused else ResourceUnavailable
        raise outcome(f"payload.upstreamArtifacts: {error}") from error
    except InvalidArgument as error:
        if error.argument != "paths":
            raise
        raise ResourceUnavailable(f"payload.upstreamArtifacts: {error.finding}") from error


def _is_caused_by_a_task(error: StorageFailed) -> bool:
    is_absence = isinstance(error, StorageRefused) and error.is_absence
    return is_absence or error.of_reference or isinstance(error, RedirectRefused)


def downloading_upstream(
    client: TransferClient,
    directory: Path,
    tasks: Iterable[UpstreamTask],
    log: logging.Logger,
    tracing: Tracing,
    *,
    to: str | os.PathLike[str] = "upstream",
    concurrency: int = CONCURRENCY,
    allow_outside: bool = False,
    verified_by: str | Sequence[str] | None = None,
) -> Conversation[list[UpstreamArtifact]]:
    """Download artifacts to `directory`/`to`/TASK_ID/NAME, and return them in order, each once.

    An artifact that several entries name has the formats of all these entries, and is optional if it is
    optional in all of them.
    """
    number("concurrency", concurrency, least=1)
    top = path_inside(directory, to, "to", allow_outside=allow_outside)
    tasks = list(tasks)
    chains = (yield from _chains(client, tasks, verified_by, concurrency)) if verified_by is not None else {}
    runs = {} if chains else (yield from _latest_runs(tasks))  # a chain of trust names its run
    listings = {task_id: list(chain.artifacts) for task_id, chain in chains.items()}
    wanted: dict[tuple[str, str], UpstreamTask] = {}
    for task in tasks:
        for name in (yield from _names(task, runs.get(task.task_id), listings, log)):
            key = task.task_id, name
            wanted[key] = _joined(wanted[key], task) if key in wanted else task
    _check_files(wanted)
    downloads = (
        _download(client, task, runs.get(task.task_id), name, top, log, tracing, chains.get(task.task_id))
        for (_, name), task in wanted.items()
    )
    found = yield from Together(downloads, max(1, min(concurrency, len(wanted))))
    return [each for each in found if each is not None]


def _chains(
    client: TransferClient, tasks: Iterable[UpstreamTask], keys: str | Sequence[str], concurrency: int
) -> Conversation[dict[str, ChainOfTrust]]:
    """Verify the chain of trust of each task once; return the chains by task id."""
    task_ids = dict.fromkeys(each.task_id for each in tasks)
    verifying = (verify_chain_of_trust(client, each, keys) for each in task_ids)
    chains = yield from Together(verifying, max(1, min(concurrency, len(task_ids))))
    return {each.task_id: each for each in chains}


def _latest_runs(tasks: Iterable[UpstreamTask]) -> Conversation[dict[str, int]]:
    """Return the latest run by task id: a task may be rerun, and artifacts of two runs must not be mixed.

    Tasks that the Queue does not know are left out, and all tasks if the credentials may not read statuses.
    """
    task_ids = dict.fromkeys(slugid("task_id", each.task_id) for each in tasks)
    if not task_ids:
        return {}
    try:
        found = yield from calls.iter_statuses([*task_ids]).everything()
    except InsufficientScopes as error:
        if is_foreign(error):
            raise
        return {}
    return {each.task_id: each.status.runs[-1].run_id for each in found if each.status.runs}


def _joined(first: UpstreamTask, other: UpstreamTask) -> UpstreamTask:
    """Return one entry for an artifact that two entries name: with the formats of both."""
    return msgspec.structs.replace(
        first,
        formats=tuple(dict.fromkeys([*first.formats, *other.formats])),
        optional=first.optional and other.optional,
    )


def _check_files(wanted: Iterable[tuple[str, str]]) -> None:
    """Refuse artifacts of a task with the same path, as `a/b` and `a//b`: one would overwrite the other."""
    files: dict[tuple[str, str], str] = {}
    for task_id, name in wanted:
        other = files.setdefault((task_id, posixpath.normpath(name)), name)
        if other != name:
            finding = f"the artifact {name!r} of {task_id} cannot be a file: {other!r} is the same path"
            raise InvalidArgument("paths", name, "", finding)


def _names(
    task: UpstreamTask, run_id: int | None, listings: dict[str, list[str]], log: logging.Logger
) -> Conversation[Iterable[str]]:
    """Replace patterns by the names in `listings` that match them.

    With chains of trust, `listings` has the signed artifacts of all tasks. Otherwise, the artifacts of a task
    are listed and added when its first pattern needs them.
    """
    if task.task_id not in listings and any("*" in path for path in task.paths):
        listings[task.task_id] = yield from _listed(task.task_id, run_id)
    names: dict[str, None] = {}
    for path in dict.fromkeys(task.paths):
        is_pattern = "*" in path
        found = [each for each in listings[task.task_id] if matches(path, each)] if is_pattern else [path]
        if not found and task.optional:
            log.warning(_MISSING, path, task.task_id)
        elif not found and path != "*":
            raise InvalidArgument("paths", path, "", f"no artifact of {task.task_id} matches {path!r}")
        names |= dict.fromkeys(found)
    return names


def matches(path: str, name: str) -> bool:
    """Return whether a name matches a path, in which each `*` stands for any text; there is one at least.

    A regular expression could take years for a path of a payload, and would block the whole worker.
    """
    first, *middle, last = path.split("*")
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end) + len(part)
        if at < len(part):  # it was not found
            return False
    return at <= end and name.startswith(first) and name.endswith(last)


def _listed(task_id: str, run_id: int | None) -> Conversation[list[str]]:
    """Return the names of a run's artifacts that have content."""
    listing = (
        calls.iter_latest_artifacts(task_id) if run_id is None else calls.iter_artifacts(task_id, run_id)
    )
    artifacts = yield from listing.everything()
    return [each.name for each in artifacts if each.storage_type != StorageType.ERROR]


def _download(
    client: TransferClient,
    task: UpstreamTask,
    run_id: int | None,
    name: str,
    top: Path,
    log: logging.Logger,
    tracing: Tracing,
    chain: ChainOfTrust | None,
) -> Conversation[UpstreamArtifact | None]:
    if chain is not None and task.optional and name not in chain.artifacts:
        log.warning("optional artifact %s of task %s is not in the chain of trust", name, task.task_id)
        return None
    directory, task_id = top / task.task_id, task.task_id
    try:
        result = yield from downloading_to(
            client, directory, task_id, name, tracing, to=name, run_id=run_id, verified_by=chain
        )
    except (ResourceNotFound, ErrorArtifact):
        if not task.optional:
            raise
        log.warning(_MISSING, name, task.task_id)
        return None
    except (InvalidArgument, IsADirectoryError) as error:
        if isinstance(error, InvalidArgument) and error.argument != "to":
            raise
        # A task may have artifacts "a" and "a/b": no directory can have both as files.
        finding = f"the artifact {name!r} of {task_id} cannot be a file below {directory}: {error}"
        raise InvalidArgument("paths", name, "", finding) from error
    assert result.path is not None  # noqa: S101 - it has one as it was downloaded to a path
    return UpstreamArtifact(task.task_id, name, result.path, task.task_type, task.formats, result)


def downloading_to(
    client: TransferClient,
    directory: Path,
    task_id: str,
    name: str,
    tracing: Tracing,
    *,
    to: str | os.PathLike[str] | None = None,
    run_id: int | None = None,
    max_bytes: int | None = None,
    verified_by: PublicKeys | ChainOfTrust | None = None,
    allow_outside: bool = False,
) -> Conversation[DownloadResult]:
    """Download one artifact to a path relative to `directory`, creating its parents, or to memory."""
    path = None
    if to is not None:
        path = yield from Work(partial(_place, directory, to, allow_outside=allow_outside))
    attributes = {"artifact.filename": name, "taskqueue.artifact.task_id": task_id}
    with tracing.span("download artifact", attributes) as span:
        destination = Destination(path, None if allow_outside else open_folder)
        result = yield from download_to(
            client, task_id, name, destination, run_id=run_id, max_bytes=max_bytes, verified_by=verified_by
        )
        span.set("file.size", result.size)
    return result


def _place(directory: Path, to: str | os.PathLike[str], *, allow_outside: bool) -> Path:
    """Make the directories above a file, and return its path.

    A path at which there can be no file raises InvalidArgument: it may come from the payload.
    """
    path = path_inside(directory, checked_path(to), "to", allow_outside=allow_outside)
    try:
        _is_file(path)  # fails for a path that is too long, before thousands of directories are made
        if allow_outside:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            os.close(open_folder(path.parent, make=True))
        is_file = _is_file(path)  # again: the directory exists now, so a name that is too long fails
    except (OSError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in _IMPOSSIBLE:
            raise
        raise InvalidArgument("to", os.fspath(to), FILE, str(error)) from error
    if not is_file:
        raise InvalidArgument("to", os.fspath(to), FILE)
    return path


def _is_file(path: Path) -> bool:
    """Return whether there is a regular file at a path, or nothing.

    Raises:
        OSError: There can be no file at the path.
    """
    with suppress(FileNotFoundError):
        return S_ISREG(path.stat().st_mode)
    return True


_IMPOSSIBLE = {errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Error numbers of `mkdir` and `stat` that are due to the path."""
