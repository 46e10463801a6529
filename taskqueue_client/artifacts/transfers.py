"""Base of uploads and downloads: the client's settings, retries, cleaning up, paths without links."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from taskqueue_client._arguments import check_callback
from taskqueue_client._protocol.conversation import AsyncClient, Call, Conversation, Pause, Work
from taskqueue_client._protocol.retry import Retries, RetryPolicy, retried
from taskqueue_client._transport.sync_connections import Cancellation
from taskqueue_client.clock import Clock
from taskqueue_client.definitions import StorageName
from taskqueue_client.errors import Attempted

from .artifact_errors import StorageFailed, StorageRefused, is_expiry
from .sources import Source
from .storage import MOST_REDIRECTS, UPLOADED, Incoming, Progress, Put, PutResponse, Storage, no_progress

R = TypeVar("R")

RENEWED_BEFORE = 300.0
"""A URL is not used in so many seconds before it expires, because clocks may differ by so much."""

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
"""Flags to open a folder on the way to a file: with O_PATH, also one that may not be listed."""

SKIP_CDN = {"x-taskcluster-skip-cdn": "1"}
"""The headers that request a URL of storage instead of a URL of a CDN, which may have an old copy."""

_MD5_LIMIT = 16 * 1024 * 1024
"""Up to this size in bytes, the ETag is compared with the MD5 sum of the body. For larger bodies, computing
the sum would take longer than sending."""

_MD5_ETAG = re.compile(r'"([0-9a-f]{32})"')


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The settings of a client that transfers use.

    Attributes:
        storage: The connections to storage services, which all copies of the client share.
        server_time: Returns the service's time, in seconds since the epoch.
        attempted: Returns the URL and endpoint of a call, for an error about the call.
        storage_type: The default storage type of uploads.
    """

    storage: Storage
    policy: RetryPolicy
    retries: Retries
    clock: Clock
    server_time: Callable[[], float]
    attempted: Callable[[Call[Any]], Attempted]
    storage_type: StorageName


class TransferClient(Protocol):
    """The properties and methods of a client that transfers use."""

    @property
    def _transfer_settings(self) -> TransferSettings: ...

    def _for_event_loop(self) -> AbstractAsyncContextManager[AsyncClient] | None: ...

    def now(self) -> datetime:
        """Return the service's time."""
        ...


def client_for_event_loop(client: TransferClient) -> AbstractAsyncContextManager[AsyncClient] | None:
    """Return a client for a new event loop; None if only the given one can send."""
    return client._for_event_loop()  # noqa: SLF001 - hidden from users  # pyright: ignore[reportPrivateUsage]


class Transfer:
    """One transfer of a client, or several that end together."""

    def __init__(self, client: TransferClient) -> None:
        self.settings = client._transfer_settings  # noqa: SLF001 - hidden from users  # pyright: ignore[reportPrivateUsage]
        self.storage = self.settings.storage
        self.cancellation = Cancellation()

    def work(self, run: Callable[[], R], run_async: Callable[[], Awaitable[R]] | None = None) -> Work[R]:
        """Return work for a transfer thread, which ends soon when the transfer is canceled."""
        return Work(run, self.cancellation.cancel, run_async, self.storage.threads)

    def get(
        self, url: str, headers: Mapping[str, str], most_redirects: int = MOST_REDIRECTS
    ) -> AbstractContextManager[Incoming]:
        """Read a URL, once."""
        return self.storage.get(url, headers, self.settings.policy, self.cancellation, most_redirects)

    def put(self, put: Put) -> Work[PutResponse]:
        """Return the work of one attempt at a PUT."""
        small = None if put.source.content is None else partial(self.storage.put_small, put)
        return self.work(partial(self.storage.put, put, self.cancellation), small)

    def releasing(self, release: Callable[[], object], steps: Conversation[R]) -> Conversation[R]:
        """Return the result of `steps`, and call `release` on a thread, also after an error."""
        try:
            result = yield from steps
        except GeneratorExit:  # the conversation was closed: nobody performs further steps
            release()
            raise
        except BaseException:
            yield from Work(release, threads=self.storage.threads)
            raise
        yield from Work(release, threads=self.storage.threads)
        return result

    def retried(
        self, attempt: Callable[[], Conversation[R]], may_retry: Callable[[BaseException], bool]
    ) -> Conversation[R]:
        """Return the result of the first attempt that succeeds."""
        try:
            return (yield from attempt())
        except Exception as error:
            if not may_retry(error):
                raise
            failures = [error]
        schedule = self.settings.retries.of_transfer(may_retry)
        return (yield from retried(attempt, failures, self._pause, schedule))

    def _pause(self, seconds: float) -> Conversation[None]:
        yield from Pause(seconds, self.settings.clock)


def reporter(progress: Callable[..., object] | None) -> Conversation[Callable[..., object]]:
    """Return a function that any thread may call: it calls `progress` in the caller's event loop, if any."""
    if progress is None:
        return no_progress
    check_callback("progress", progress)

    async def in_loop() -> Callable[..., object]:
        import asyncio  # noqa: PLC0415 - loaded already

        loop = asyncio.get_running_loop()
        return lambda *done: loop.call_soon_threadsafe(progress, *done)

    return (yield from Work(lambda: progress, run_async=in_loop))


@dataclass(frozen=True, slots=True)
class Target:
    """A signed URL for a body.

    Attributes:
        url: The URL, which is secret.
        headers: The headers to send, except `Content-Length`.
        expires: When the URL expires, in seconds since the epoch.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str]
    expires: float


def putting(
    transfer: Transfer,
    first: Target,
    renew: Callable[[], Conversation[Target]],
    body: Source,
    progress: Progress,
    has_arrived: Callable[[PutResponse], Conversation[bool]],
) -> Conversation[dict[str, str]]:
    """Upload a body to a signed URL, with retries; return its hashes in hex by algorithm.

    Each attempt sends the body from its start. `renew` requests another target when the URL of the first one
    has expired. `has_arrived` returns whether the body was stored, if the response to the upload does not
    prove it.
    """
    server_time, policy = transfer.settings.server_time, transfer.settings.policy
    algorithms = (*UPLOADED, "md5") if body.size <= _MD5_LIMIT else UPLOADED
    target: Target | None = first
    is_first = True

    def attempt() -> Conversation[dict[str, str]]:
        nonlocal target, is_first
        if target is None or (not is_first and server_time() >= target.expires - RENEWED_BEFORE):
            target = yield from renew()
        is_first = False
        put = Put(target.url, target.headers, body, algorithms, progress, policy)
        try:
            response = yield from transfer.put(put)
        except StorageRefused as error:
            if is_expiry(error, target.expires, server_time()):
                target = None
            raise
        verdict = _is_stored(response)
        if verdict is None:
            verdict = yield from has_arrived(response)
        if not verdict:
            raise StorageFailed("PUT", put.url, _not_stored(response))
        return {name: value for name, value in response.hashes.items() if name in UPLOADED}

    def may_retry(error: BaseException) -> bool:
        return isinstance(error, StorageFailed) and (error.is_temporary or target is None)

    return transfer.retried(attempt, may_retry)


def _is_stored(response: PutResponse) -> bool | None:
    """Return whether the response proves that the body was stored; None if it proves nothing.

    S3's ETag is the MD5 sum of the content of a PUT, unless S3 encrypts with a key of KMS or of the caller.
    A proxy, or the login page of a network, may respond with 200 without having stored anything.
    """
    etag = _MD5_ETAG.fullmatch(response.headers.get("ETag", ""))
    encryption = response.headers.get("x-amz-server-side-encryption", "AES256")
    is_customers = "x-amz-server-side-encryption-customer-algorithm" in response.headers
    if etag is None or "md5" not in response.hashes or encryption != "AES256" or is_customers:
        return None
    return etag[1] == response.hashes["md5"]


def _not_stored(response: PutResponse) -> str:
    etag = response.headers.get("ETag")
    if etag is None:
        return "the response is not that of a storage service: it has no ETag, and the content is not stored"
    return f"the stored content differs from the content sent: the ETag is {etag}"


def open_real(path: str, flags: int) -> int:
    """Open a file by an absolute path without symbolic links.

    A symbolic link that has taken the place of the file, or of a directory on the way to it, is not followed:
    a process that still runs may put one there to have a file published that the process cannot read.

    Raises:
        OSError: It cannot be opened, or there is such a link.
    """
    place, name = os.path.split(path)  # pathlib would take as long as the system calls
    try:
        folder = open_folder(place)
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        error.filename = path
        raise


def open_folder(path: str | Path, *, make: bool = False) -> int:
    """Open a directory by a path without symbolic links, following none, as `open_real` does.

    Args:
        path: The absolute path.
        make: Make the directories that are missing.

    Raises:
        OSError: It cannot be opened or made, or there is a symbolic link on the way.
    """
    folder = os.open("/", _FOLDER)
    try:
        for each in filter(None, str(path).split("/")):
            outer, folder = folder, _folder_in(folder, each, make=make)
            os.close(outer)
    except OSError as error:
        os.close(folder)
        error.filename = str(path)
        raise
    return folder


def _folder_in(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another download has made it
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)
