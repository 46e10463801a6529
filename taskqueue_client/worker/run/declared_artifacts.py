"""Artifacts that a handler has declared, to be uploaded when it has ended, and what a failed upload means."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from datetime import datetime
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from taskqueue_client._arguments import check_kind, check_path, mapping, new_name, text
from taskqueue_client._dates import moment_of
from taskqueue_client._protocol.retry import is_outage
from taskqueue_client._protocol.threads_and_tasks import NO_THREAD
from taskqueue_client.artifacts.artifact_errors import (
    SourceChanged,
    StorageFailed,
    StorageRefused,
    UploadAlreadyBegun,
)
from taskqueue_client.artifacts.chain_verification import CERTIFIED_LOG_NAME, CHAIN_NAME, SIGNATURE_NAME
from taskqueue_client.artifacts.content import LOG_LINK, LOG_NAME
from taskqueue_client.artifacts.many_uploads import files_in
from taskqueue_client.artifacts.sources import (
    SOURCES,
    Content,
    Source,
    TemporaryFileFailed,
    blocks_of,
    checked_block,
    open_source,
    warn_if_at_end,
)
from taskqueue_client.artifacts.transfers import open_real
from taskqueue_client.artifacts.uploading import UploadOptions, trouble_of_readers
from taskqueue_client.definitions import ErrorReason, StorageName
from taskqueue_client.errors import InvalidArgument, RequestConflict
from taskqueue_client.worker.claims.claimed_run import ClaimedRun
from taskqueue_client.worker.commands.task_log import TaskLog
from taskqueue_client.worker.commands.work_directory import path_inside
from taskqueue_client.worker.config import check_names
from taskqueue_client.worker.outcomes import (
    InternalError,
    Outcome,
    ResourceUnavailable,
    TaskFailed,
    thread_refused,
)

if TYPE_CHECKING:
    from .run_resources import SharedResources

_RESERVED = {
    **dict.fromkeys((LOG_NAME, LOG_LINK), "the task's log"),
    **dict.fromkeys((CHAIN_NAME, SIGNATURE_NAME, CERTIFIED_LOG_NAME), "the chain of trust"),
}


_WITHOUT_SURROGATES = re.compile(r"[^\ud800-\udfff]*")


class ArtifactOptions(TypedDict, total=False):
    """Options of a declared artifact; see `Queue.upload_artifact`.

    Attributes:
        content_type: The content type. Default: by the ending of the artifact's name.
        expires: The time until which the artifact is kept, also as `14 days`. Default, and at most: as long
            as the task.
        storage: `s3` or `object`. Default: the worker's setting `artifact_storage`.
        compress: Whether to store it as gzip. Default: only text of 1 kB and more.
        allow_outside: Upload files outside of the work directory too.
    """

    content_type: str | None
    expires: datetime | str | None
    storage: StorageName | None
    compress: bool | None
    allow_outside: bool


MACHINE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EIO}
"""An `OSError` with one of these is about the machine, not the file; `EFBIG` comes from a limit of writes."""


_OF_THE_TASK = {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP}
"""Errors of creating a file in a directory of the worker after a task has changed what is there."""


def _check_path(argument: str, path: str | os.PathLike[str], is_outside: object) -> None:
    """Refuse arguments that are wrong whatever is at the path."""
    check_kind("allow_outside", is_outside, bool)
    check_path(argument, path)


def _is_below(directory: Path, path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to something in the directory, unless there are symbolic links."""
    found = Path(os.path.normpath(directory / path))
    return found != directory and found.is_relative_to(directory)


@dataclass(frozen=True, slots=True)
class DeclaredArtifact:
    """An artifact to upload.

    Attributes:
        source: A path, or the content itself.
        directory: The directory that the path must not lead out of; None if it may lead anywhere.
        is_folder: Whether the path was declared as a directory, but was missing or could not be read as one.
    """

    name: str
    source: Path | bytes
    options: UploadOptions
    directory: Path | None = None
    is_folder: bool = False

    def open(self) -> Source:
        """Open the content.

        Raises:
            InvalidArgument: The path now leads out of the directory, or to something that is not a file.
            OSError: The file cannot be read, or the directory is a file.
        """
        if isinstance(self.source, bytes):
            return open_source(self.source)
        path = self.source if self.directory is None else path_inside(self.directory, self.source, "source")
        if self.is_folder and path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return open_source(path, os.open if self.directory is None else open_real)


@dataclass(eq=False, repr=False)
class DeclaredArtifacts:
    """The artifacts that one call of a run's handler has declared. Safe to use from any thread.

    Args:
        attempt: The number of the call.
        log: The task's log.

    Attributes:
        directory: Where content is stored that cannot be read later; None: nowhere.
        environment: What the run's chain of trust says about the environment of the call.
    """

    _run: ClaimedRun
    _shared: SharedResources
    _attempt: int
    _log: TaskLog
    directory: Path | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])
    _files: int = 0
    _is_final: bool = False
    _declared: dict[str, DeclaredArtifact] = field(default_factory=dict[str, DeclaredArtifact])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def final(self) -> list[DeclaredArtifact]:
        """Return the artifacts, in the order in which they were declared; no more can be declared."""
        with self._lock:
            self._is_final = True
            return [*self._declared.values()]

    def clear(self) -> Path | None:
        """Forget all artifacts, and take no more; return the directory to remove, if there is one."""
        with self._lock:
            self._is_final = True
            self._declared.clear()
            directory, self.directory = self.directory, None
        return directory

    def describe_environment(self, properties: Mapping[str, str]) -> None:
        """Add to `environment`, as `TaskRun.describe_environment` describes."""
        given = mapping("properties", properties)
        for each in (*given, *given.values()):
            text("properties", each, _WITHOUT_SURROGATES, "a dict of str without lone surrogates")
        with self._lock:
            self._check_open()
            self.environment.update(given)

    def declare(
        self, name: str, source: Content, work_directory: Callable[[], Path], options: ArtifactOptions
    ) -> None:
        """Declare an artifact, as `TaskRun.upload_artifact` describes."""
        _check_name(name)
        checked = self._checked(options)
        if isinstance(source, AsyncIterable):
            raise InvalidArgument("source", source, f"{SOURCES}; use `await upload_artifact_async`")
        if isinstance(source, (str, os.PathLike)):
            declared = _declared_file(name, source, work_directory(), checked, options)
        else:
            declared = DeclaredArtifact(name, self._stored(name, source), checked)
        self._add([declared])

    async def declare_async(self, name: str, source: AsyncIterable[bytes], options: ArtifactOptions) -> None:
        """Declare an artifact whose content comes from an asynchronous iterable, which is read now."""
        _check_name(name)
        checked = self._checked(options)
        with self._new_file(name) as file:
            async for block in source:
                await asyncio.to_thread(file.write, checked_block(block))
        self._add([DeclaredArtifact(name, Path(file.name), checked)])

    def declare_directory(
        self, prefix: str, directory: str | os.PathLike[str], work_directory: Path, options: ArtifactOptions
    ) -> list[str]:
        """Declare all files of a directory, as `TaskRun.upload_artifacts` describes."""
        is_outside = options.get("allow_outside", False)
        check_kind("prefix", prefix, str)
        links: list[Path] = []
        top, paths = _found_in(directory, work_directory, links, is_outside=is_outside)
        if prefix:
            new_name(prefix)
        checked = self._checked(options)
        inside = None if is_outside else work_directory
        found: list[DeclaredArtifact] = []
        refused: list[str] = []
        for path in paths:
            name = "/".join(filter(None, (prefix.rstrip("/"), *path.relative_to(top).parts))) or top.name
            try:
                _check_name(name)
            except InvalidArgument as error:
                refused.append(f"the file {str(path)!r} cannot be an artifact: {error}")
            else:
                found.append(DeclaredArtifact(name, path, checked, inside, is_folder=path == top))
        self._add(found)
        self._warn_of_what_is_left_out(os.fspath(directory), links, has_files=bool(paths))
        if refused:  # not by an InvalidArgument: it is the task, not the worker, that has made these files
            raise TaskFailed(refused[0] + _others(refused, "files with such names"))
        return [each.name for each in found if each.source != top]

    def _checked(self, options: ArtifactOptions) -> UploadOptions:
        check_names(options, ArtifactOptions.__optional_keys__)
        expires, now = options.get("expires"), self._shared.queue.now
        storage = options.get("storage")
        of_task = self._run.claim.status.expires
        if expires is not None and moment_of("expires", expires, now) < now():
            raise InvalidArgument("expires", expires, "a time that has not passed")
        return UploadOptions.checked(
            of_task if expires is None else expires,
            of_task,
            self._shared.config.artifact_storage if storage is None else storage,
            options.get("content_type"),
            options.get("compress"),
            now,
        )

    def _warn_of_what_is_left_out(self, directory: str, links: list[Path], *, has_files: bool) -> None:
        if links:
            self._log.logger.warning(
                "not uploaded: the files in %r, because it is a symbolic link to a directory%s",
                str(min(links)),
                _others(links, "such links"),
            )
        if not has_files:
            self._log.logger.warning("not uploaded: the directory %r has no files", directory)

    def _add(self, artifacts: Iterable[DeclaredArtifact]) -> None:
        added = {each.name: each for each in artifacts}
        with self._lock:
            self._check_open()
            replaced = [name for name in added if name in self._declared]
            self._declared.update(added)
        if replaced:
            message = "%s was declared again: the last declaration is uploaded%s"
            self._log.logger.info(message, replaced[0], _others(replaced, "such names"))
        troubles = [trouble_of_readers(name, each.options.storage) for name, each in added.items()]
        if troubles := [each for each in troubles if each]:
            self._log.logger.warning("%s%s", troubles[0], _others(troubles, "such names"))

    def _check_open(self) -> None:
        """Refuse what nobody would upload or remove any more, as of a thread that the handler left behind."""
        if self._is_final:
            raise InternalError(
                "the handler of this run has ended: it can declare no more artifacts and properties"
            )

    def _stored(self, name: str, source: object) -> Path | bytes:
        """Return content that can still be read when the handler has ended."""
        if isinstance(source, (bytes, bytearray, memoryview)):
            return bytes(cast("bytes", source))
        blocks = blocks_of(source)
        with self._new_file(name) as file:
            for block in blocks:
                file.write(checked_block(block))
            warn_if_at_end(name, source, file.tell(), self._log.logger)
        return Path(file.name)

    def _new_file(self, artifact: str) -> BufferedWriter:
        """Create a file for the content of an artifact.

        Exclusively: a task may have put something in its place. The content would be written to the target of
        a link, and the worker would wait for the reader of a FIFO for ever.
        """
        with self._lock:
            self._check_open()
            if self.directory is None:
                name = f"{self._run.task_id}-{self._run.run_id}-artifacts-{self._attempt}"
                self.directory = self._shared.directories.make(name)
            self._files += 1
            path = self.directory / str(self._files)
        try:
            return path.open("xb")
        except OSError as error:
            if error.errno not in _OF_THE_TASK:
                raise
            raise TaskFailed(f"{artifact} cannot be stored: {error}") from error


def _found_in(
    directory: str | os.PathLike[str], work_directory: Path, links: list[Path], *, is_outside: bool
) -> tuple[Path, list[Path]]:
    """Return the directory and its files; if the task has made it a link that leads out, only the link.

    Links to directories, which are not entered, are added to `links`.
    """
    _check_path("directory", directory, is_outside)
    try:
        top = path_inside(work_directory, directory, "directory", allow_outside=is_outside)
    except InvalidArgument:
        if not _is_below(work_directory, directory):
            raise
        link = work_directory / directory
        return link, [link]
    return top, _files_and_unreadable_folders_in(top, links)


def _files_and_unreadable_folders_in(top: Path, links: list[Path]) -> list[Path]:
    """Return the files below `top`, and the folders, also `top`, that are missing, unreadable or files.

    The upload of such a folder fails like that of a missing file, and creates an error artifact.

    Raises:
        OSError: One of `MACHINE_ERRORS`.
    """
    unreadable: list[Path] = []

    def note(error: OSError) -> None:
        if error.errno in MACHINE_ERRORS:
            raise error
        unreadable.append(Path(error.filename))

    return sorted([*files_in(top, note, links.append), *unreadable])


def _others(found: Sized, what: str) -> str:
    """Return the end of a message about one of several, which says how many others there are."""
    return f"; other {what}: {len(found) - 1}" if len(found) > 1 else ""


def _check_name(name: str) -> None:
    if new_name(name) in _RESERVED:
        raise InvalidArgument("name", name, f"any other name: this one is reserved for {_RESERVED[name]}")


def _declared_file(
    name: str,
    path: str | os.PathLike[str],
    work_directory: Path,
    checked: UploadOptions,
    options: ArtifactOptions,
) -> DeclaredArtifact:
    """Declare a file, which may be written later. Outside of the work directory, what exists must be a file.

    Inside, the task decides what is at the path, and only the upload checks it.
    """
    is_outside = options.get("allow_outside", False)
    _check_path("source", path, is_outside)
    if not _is_below(work_directory, path):
        absolute = path_inside(work_directory, path, "source", allow_outside=is_outside)
        if absolute.is_dir():
            raise InvalidArgument("source", os.fspath(path), "a file; `upload_artifacts` uploads a directory")
        if absolute.exists() and not absolute.is_file():
            raise InvalidArgument("source", os.fspath(path), "a regular file")
    # Not the real path: a link that leads elsewhere by the time of the upload is checked again.
    return DeclaredArtifact(name, work_directory / path, checked, None if is_outside else work_directory)


def outcome_of_failed_upload(name: str, error: Exception) -> Outcome:
    """Return the outcome of a run whose artifact could not be uploaded.

    - The file is missing, unreadable, not a file, was changed meanwhile, or is larger than storage allows; or
      the task has created another artifact with the name, with `task.queue` or through the proxy:
      `TaskFailed`, as it is the task's doing. The Queue also responds with a conflict if the run is resolved;
      then the report is refused as well.
    - Storage or the Queue cannot be reached, or is out of order, or its one response that says how to upload
      an object was lost: `ResourceUnavailable`.
    - Anything else, such as another refusal or a full disk: `InternalError`.
    """
    cause = thread_refused() if str(error) == NO_THREAD else str(error) or type(error).__name__
    message = f"{name} was not uploaded: {cause}"
    is_lost = isinstance(error, UploadAlreadyBegun)
    if is_lost or is_outage(error) or (isinstance(error, StorageFailed) and error.is_temporary):
        return ResourceUnavailable(message)
    if is_of_the_task(error) or isinstance(error, RequestConflict):
        return TaskFailed(message)
    outcome = InternalError(message)
    outcome.__cause__ = error.with_traceback(None)  # which holds the run
    return outcome


def with_failed_upload(error: BaseException | None, failure: Outcome | None) -> BaseException | None:
    """Return how a run ends after its uploads: a failure counts unless the task has failed anyway."""
    if failure is None or (isinstance(failure, TaskFailed) and isinstance(error, TaskFailed)):
        return error
    return failure


def _is_about_the_file(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno not in MACHINE_ERRORS and not isinstance(error, TemporaryFileFailed)
    is_source = isinstance(error, InvalidArgument) and error.argument == "source"
    return is_source or isinstance(error, SourceChanged)


def is_of_the_task(error: Exception) -> bool:
    """Return whether an upload failed because of what the task has made, and not of the worker or storage."""
    return _is_about_the_file(error) or (isinstance(error, StorageRefused) and error.is_too_large)


def error_reason(error: Exception) -> ErrorReason | None:
    """Return the reason of an error artifact; None if a later attempt to upload may succeed."""
    if _is_about_the_file(error):
        reasons: dict[type[Exception], ErrorReason] = {
            FileNotFoundError: "file-missing-on-worker",
            PermissionError: "file-not-readable-on-worker",
        }
        return reasons.get(type(error), "invalid-resource-on-worker")
    if isinstance(error, StorageRefused) and not error.is_temporary:
        return "too-large-file-on-worker" if error.is_too_large else "invalid-resource-on-worker"
    return None


_SEVERITY: tuple[type[Outcome], ...] = (TaskFailed, ResourceUnavailable, InternalError)


def worst(outcomes: Iterable[Outcome | None]) -> Outcome | None:
    """Return the most severe outcome by `_SEVERITY`; None if all uploads succeeded."""
    return max(filter(None, outcomes), key=lambda each: _SEVERITY.index(type(each)), default=None)
