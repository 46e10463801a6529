"""Uploads of many artifacts: what to upload, and the outcome of each."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic

from taskqueue_client import _arguments as arguments
from taskqueue_client._protocol.conversation import Conversation, Together
from taskqueue_client.definitions import StorageName
from taskqueue_client.errors import InvalidArgument

from .sources import Content, Source, open_source
from .storage import no_progress
from .transfers import Transfer, TransferClient, client_for_event_loop, open_real, reporter
from .uploading import RunArtifact, UploadOptions, UploadResult, uploading, warn_of_name

_log = logging.getLogger("taskqueue_client.artifacts")

_MOST_OPEN = 64
_MOST_IN_MEMORY = 4 * 1024 * 1024
_OPENING_TIMEOUT = 0.05
"""A thread that opens a content opens further ones, too, until so many files are open, so many bytes of small
files are in memory, or so many seconds have passed: a switch between threads costs as much as 4 kB sent."""

_MANY = 200  # for so many uploads, importing aiohttp and an event loop take less time than threads

CONCURRENCY = 16
"""The default number of simultaneous uploads."""

Contents = Mapping[str, Content] | str | os.PathLike[str]
"""Contents by the artifact's name, or a folder: then the names are the paths relative to it."""


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """The outcome of one upload.

    Attributes:
        name: The artifact's name.
        result: The uploaded artifact; None if the upload failed.
        error: The error of a failed upload, or None.
    """

    name: str
    result: UploadResult | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class UploadReport:
    """The outcomes of `upload_artifacts`.

    Attributes:
        outcomes: One outcome for each artifact, in the order of the arguments.
    """

    outcomes: tuple[UploadOutcome, ...]

    @property
    def failed(self) -> tuple[UploadOutcome, ...]:
        """The outcomes that have an error."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)

    @property
    def is_complete(self) -> bool:
        """Whether all artifacts were uploaded."""
        return not self.failed


Listed = tuple[str, Content | InvalidArgument | partial[Source]]
"""A name with its content, with a function that opens it, or with the reason why it is not uploaded."""


def listed(contents: Contents) -> list[Listed]:
    """Return the artifacts to upload. Links to folders are not entered; links that lead out are errors."""
    if isinstance(contents, Mapping):
        return [_checked(name, content) for name, content in contents.items()]
    allowed = "a mapping of names to contents, or a folder"
    arguments.check_kind("artifacts", contents, str | os.PathLike, allowed)
    folder = Path(contents)
    if not contents or not folder.is_dir():
        raise InvalidArgument("artifacts", str(contents), allowed)
    links: list[Path] = []
    top, depth = os.path.realpath(folder), len(folder.parts)
    found = [(path, _opening(path, top, depth)) for path in files_in(folder, on_link=links.append)]
    found += [
        (link, target) for link in links if isinstance(target := _opening(link, top, depth), InvalidArgument)
    ]
    if not found:
        _log.warning("nothing to upload: the folder %r has no files", str(folder))
    # `relative_to` takes five times as long as joining parts
    return [_checked("/".join(path.parts[depth:]), content) for path, content in sorted(found)]


def _checked(name: str, content: Content | InvalidArgument | partial[Source]) -> Listed:
    try:
        arguments.new_name(name)
    except InvalidArgument as error:
        return name, error
    return name, content


def _raise(error: OSError) -> None:
    raise error


def files_in(
    folder: Path,
    on_error: Callable[[OSError], None] = _raise,
    on_link: Callable[[Path], object] = lambda _: None,
) -> list[Path]:
    """Return all files below a folder, sorted; links to folders are passed to `on_link` and not entered."""
    found: list[Path] = []
    top = os.fspath(folder)
    waiting = [top]
    while waiting:  # not `os.walk`, which calls itself for each level before Python 3.12
        path = waiting.pop()
        if path != top and os.path.islink(path):  # noqa: PTH114 - `Path.is_symlink` raises an error if the path is too long
            on_link(Path(path))
            continue
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if _is_folder(entry):
                        waiting.append(entry.path)
                    else:
                        found.append(Path(entry))
        except OSError as error:
            on_error(error)
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, or to a path that may not be read
        return False


def _opening(path: Path, top: str, depth: int) -> partial[Source] | InvalidArgument:
    """Return how to open a file, or an error for a link out of the folder: a task may have no access there.

    `top` is the real path of the folder, whose own path has `depth` parts.
    """
    if not path.is_symlink():
        return partial(_open_inside, path, "/".join((top, *path.parts[depth:])))
    real = os.path.realpath(path)  # `Path.resolve` raises a RuntimeError for a link that leads to itself
    if Path(real).is_relative_to(top):
        return partial(_open_inside, path, real)
    finding = f"{path} is a symbolic link that leads out of the folder"
    return InvalidArgument("source", str(path), "a file in the folder", finding)


def _open_inside(path: Path, real: str) -> Source:
    """Open a file by its real path, which has no links unless somebody has replaced a part of it."""
    if os.open not in os.supports_dir_fd:  # Windows
        return open_source(path)
    return open_source(path, lambda _, flags: open_real(real, flags))


_Opened = Content | Source | Exception


class _Opener:
    """Opens several contents at a time, before their upload. May be used from many threads."""

    def __init__(self, every: list[Listed]) -> None:
        self._every = every
        self._lock = Lock()
        self._next = 0
        self._opened: dict[int, _Opened] = {}

    def is_open(self, position: int) -> bool:
        """Return whether the content at a position is open."""
        return position in self._opened

    def take(self, position: int) -> _Opened:
        """Return the open content at a position: None only if that is what the caller has passed."""
        return self._opened.pop(position)

    def open(self, position: int) -> _Opened:
        """Open the contents up to `position`, and some more; return the one at `position`. Blocks."""
        with self._lock:
            while position >= self._next:
                self._open_some()
            return self.take(position)

    def _open_some(self) -> None:
        files, in_memory, ends = 0, 0, monotonic() + _OPENING_TIMEOUT
        while self._next < len(self._every) and files < _MOST_OPEN and in_memory < _MOST_IN_MEMORY:
            opened = self._opened[self._next] = _opened(self._every[self._next][1])
            self._next += 1
            if isinstance(opened, Source):
                files += opened.content is None
                in_memory += len(opened.content or b"")
            if monotonic() >= ends:
                return

    def close(self) -> None:
        """Close the contents that were not uploaded."""
        with self._lock:
            for content in self._opened.values():
                if isinstance(content, Source):
                    content.close()
            self._opened.clear()


def _opened(content: Content | InvalidArgument | partial[Source]) -> _Opened:
    """Open the file at a path. Other contents are returned as they are, and opened by the upload."""
    if not isinstance(content, (str, os.PathLike, partial)):
        return content
    try:
        return content() if isinstance(content, partial) else open_source(content)
    except Exception as error:  # noqa: BLE001 - reported as an outcome
        return error


def _upload(
    transfer: Transfer,
    opener: _Opener,
    options: UploadOptions,
    report: Callable[..., object],
    position: int,
    artifact: RunArtifact,
) -> Conversation[UploadOutcome]:
    if opener.is_open(position):
        content = opener.take(position)
    else:
        content = yield from transfer.work(partial(opener.open, position))
    if isinstance(content, Exception):
        return UploadOutcome(artifact.name, error=content)
    warn_of_name(artifact.name, options.storage)
    # `put_small` looks for `no_progress`: then it need not let the event loop report progress
    progress = report if report is no_progress else partial(report, artifact.name)
    try:
        result = yield from uploading(transfer, artifact, content, options, progress)
    except Exception as error:  # noqa: BLE001 - reported as an outcome
        return UploadOutcome(artifact.name, error=error)
    return UploadOutcome(artifact.name, result)


def upload_artifacts(
    client: TransferClient,
    /,
    task_id: str,
    run_id: int,
    artifacts: Contents,
    *,
    expires: datetime | str,
    concurrency: int = CONCURRENCY,
    storage: StorageName | None = None,
    compress: bool | None = None,
    task_expires: datetime | None = None,
    progress: Callable[[str, int, int | None], object] | None = None,
) -> Conversation[UploadReport]:
    """Upload many artifacts. Each one is attempted, even if others fail.

    Args:
        client: The client.
        task_id: The task.
        run_id: The run.
        artifacts: Contents by name, or a folder: then the names are the paths relative to it. A symbolic link
            that leads out of the folder is not uploaded; its outcome is an error. A link to a folder
            within is not entered.
        expires: When the artifacts expire.
        concurrency: The number of simultaneous uploads; 16 by default.
        storage: As for `upload_artifact`.
        compress: As for `upload_artifact`.
        task_expires: As for `upload_artifact`.
        progress: Called with a name, its bytes sent and the total: from any thread by `Queue`, in the event
            loop by `AsyncQueue`.

    Returns:
        The result, or the error, of each artifact.

    Raises:
        InvalidArgument: The task, the run or an option is not valid. Problems of a single artifact are in the
            report.
        OSError: The folder cannot be read.
    """
    arguments.slugid("task_id", task_id)  # at once, and not once for each artifact
    arguments.number("run_id", run_id)
    report = yield from reporter(progress)
    transfer = Transfer(client)
    storage = transfer.settings.storage_type if storage is None else storage
    options = UploadOptions.checked(expires, task_expires, storage, None, compress, client.now)
    arguments.number("concurrency", concurrency, least=1)
    every = yield from transfer.work(lambda: listed(artifacts))
    opener = _Opener(every)
    upload = partial(_upload, transfer, opener, options, report)
    uploads = (
        upload(position, RunArtifact(task_id, run_id, name)) for position, (name, _) in enumerate(every)
    )
    # an event loop would accept asynchronous iterables, which `Queue` has to refuse
    are_many = len(every) >= _MANY and not any(isinstance(content, AsyncIterable) for _, content in every)
    in_loop = client_for_event_loop(client) if are_many else None
    together = iter(Together(uploads, max(1, min(concurrency, len(every))), in_loop))
    outcomes = yield from transfer.releasing(opener.close, together)
    return UploadReport(tuple(outcomes))
