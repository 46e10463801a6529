"""The download of one artifact of any storage type, with verification of its hashes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO, FileIO
from pathlib import Path

from msgspec.structs import replace

from taskqueue_client import _arguments as arguments
from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call, CallAs, Conversation
from taskqueue_client.errors import Attempted, AuthenticationFailed, ErrorArtifact, InvalidArgument, Refused
from taskqueue_client.models import ArtifactContent, StorageType
from taskqueue_client.slugid import slugid

from .artifact_errors import (
    ChainOfTrustError,
    DownloadCorrupt,
    DownloadTooLarge,
    HashMismatch,
    NotOffered,
    StorageFailed,
    StorageRefused,
    is_expiry,
)
from .content import BadGzip, Gunzip
from .sources import Block, BlockThread, Hashes
from .storage import MOST_REDIRECTS, VERIFIABLE, Incoming, Progress
from .transfers import SKIP_CDN, Transfer, TransferClient

DEFAULT_CONTENT_TYPE = "application/binary"
"""The content type that the official clients assume if storage sends none."""

MOST_UNPACKED = 64 * 1024 * 1024
"""The most bytes that gzip of any size may unpack to."""

MOST_UNPACKED_RATIO = 500
"""The largest allowed ratio of unpacked to packed bytes. The format allows 1032; logs reach 5 to 50."""

LONGER_AS_GZIP = 64 * 1024 * 1024
"""Bytes that gzip may have more than the limit of its content: it may have any number of empty parts."""

GOES_ON_AFTER = 16 * 1024 * 1024
"""Bytes after which the interruption of a request is not a failed attempt. So a network that interrupts each
connection after a while delays a large download, but does not make it impossible."""

FILE = "the path of a file, not of a folder, device or FIFO"
"""The allowed destinations, in words."""

_WITH_URL = frozenset({StorageType.S3, StorageType.REFERENCE})
_ABSENT = frozenset({403, 404})
"""S3 responds with 403 where the reader may not list the bucket, and so does a CDN in front of it."""

_PARTIAL = 206
_NO_SUCH_RANGE = 416
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)")
_CLIENT_ID = re.compile(r"[A-Za-z0-9!@/:.+|_-]+")


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A download that is complete and verified.

    Attributes:
        name: The artifact's name, as passed by the caller.
        storage_type: The storage type of the content, after following links.
        content_type: The content type that storage sent.
        size: Bytes after decoding.
        hashes: The hashes that were compared, in hex by algorithm: those of the object service, or the
            `sha256` that the uploader stored as metadata on S3. Empty if none is known.
        path: The file with the content, or None.
        content: The content of a download to memory, otherwise empty.
    """

    name: str
    storage_type: StorageType
    content_type: str
    size: int
    hashes: dict[str, str]
    path: Path | None = None
    content: bytes = field(default=b"", repr=False)


class Destination:
    """A file, or memory, that receives the decoded blocks of a download. Most methods may block.

    A file appears under its path only when it is complete. Until then the content is in a temporary file in
    the same folder. There is no fsync: after a loss of power the file may be incomplete.

    Args:
        path: The path; None for memory. An existing file is replaced, and a symbolic link, not the file that
            it leads to.
        open_folder: Opens the folder of the path, which is then not looked up again. Default: each step looks
            it up, and follows symbolic links.
    """

    def __init__(self, path: Path | None = None, open_folder: Callable[[Path], int] | None = None) -> None:
        self.path = path
        self._partial = path and path.with_name(f".{slugid()}.part")
        self._open_folder = open_folder
        self._folder: int | None = None
        self._file: FileIO | BytesIO | None = None

    @property
    def content(self) -> bytes:
        """All blocks that memory has received."""
        return self._file.getvalue() if isinstance(self._file, BytesIO) else b""

    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        """Receive the blocks of one attempt."""
        return (yield from transfer.work(lambda: self._write_all(pieces)))

    def _write_all(self, pieces: Generator[Block]) -> None:
        with closing(pieces), BlockThread("artifact-file", self._write) as writer:
            for piece in pieces:
                writer.put(piece)

    def _write(self, block: Block) -> None:
        assert self._file is not None  # noqa: S101 - `restart` was called before
        left = memoryview(block)
        with self._naming_path():
            while left:
                left = left[self._file.write(left) :]

    def restart(self) -> None:
        """Prepare for the first block. Blocks that were received before are dropped: they come again."""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
        elif self._partial is None or self.path is None:
            self._file = BytesIO()
        elif self.path.exists() and not self.path.is_file():
            raise InvalidArgument("to", str(self.path), FILE)
        else:
            with self._naming_path():
                if self._open_folder is not None:
                    self._folder = self._open_folder(self.path.parent)
                self._file = FileIO(self._partial, "x", opener=self._opened)

    def _opened(self, path: str, flags: int) -> int:
        return os.open(self._in_folder(path), flags, 0o666, dir_fd=self._folder)

    def _in_folder(self, path: str | Path) -> str | Path:
        """Return a path as system calls take it together with the folder's descriptor."""
        return path if self._folder is None else Path(path).name

    def commit(self) -> None:
        """Keep the content, as it is complete and verified: rename the temporary file to the path."""
        if self._partial is not None and self.path is not None and self._file is not None:
            self._file.close()
            with self._naming_path():
                os.replace(
                    self._in_folder(self._partial),
                    self._in_folder(self.path),
                    src_dir_fd=self._folder,
                    dst_dir_fd=self._folder,
                )
            self._file = None

    def discard(self) -> None:
        """Remove the temporary file, unless it was committed."""
        try:
            if self._partial is not None and self._file is not None:
                self._file.close()
                with suppress(FileNotFoundError), self._naming_path():
                    os.unlink(self._in_folder(self._partial), dir_fd=self._folder)
        finally:
            if self._folder is not None:
                os.close(self._folder)
                self._folder = None

    @contextmanager
    def _naming_path(self) -> Generator[None]:
        """Raise errors with the path: the caller does not know the temporary file."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None


@dataclass(frozen=True, slots=True)
class Location:
    """A URL of the content, which may expire.

    Attributes:
        expires: When the URL expires, in seconds since the epoch; None if unknown.
        hashes: The hashes that the object service has of the content; None for other storage.
    """

    url: str = field(repr=False)
    expires: float | None = None
    hashes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """An artifact to download, with its limits.

    Attributes:
        run_id: The run; None for the latest one.
        max_bytes: The largest allowed size in bytes, decoded; None for the limits of gzip only.
        signed: The hashes that the worker has signed; None if signatures are not verified.
    """

    task_id: str
    run_id: int | None
    name: str
    max_bytes: int | None
    signed: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            arguments.number("max_bytes", self.max_bytes)

    def call(self) -> Call[ArtifactContent]:
        """Return the call that gets a URL of the artifact."""
        if self.run_id is None:
            return calls.latest_artifact(self.task_id, self.name)
        return calls.artifact(self.task_id, self.run_id, self.name)

    def located(self) -> Conversation[Location]:
        """Get a URL of storage from the endpoint getArtifact, whose response has no hashes."""
        if self.run_id is None:
            call = calls.get_latest_artifact(self.task_id, self.name)
        else:
            call = calls.get_artifact(self.task_id, self.run_id, self.name)
        found = yield from replace(call, headers=SKIP_CDN)
        return Location(found.url)


def downloading(
    client: TransferClient, request: DownloadRequest, destination: Destination, progress: Progress
) -> Conversation[DownloadResult]:
    """Download one artifact."""
    transfer = Transfer(client)
    return transfer.releasing(
        destination.discard, _Download(transfer, request, destination, progress).steps()
    )


@dataclass(eq=False, repr=False)
class _Download:
    transfer: Transfer
    request: DownloadRequest
    destination: Destination
    progress: Progress
    location: Location | None = None
    skips_cdn: bool = False
    artifact: ArtifactContent = field(init=False)
    receiver: Receiver = field(init=False)

    def steps(self) -> Conversation[DownloadResult]:
        self.artifact = yield from self._content()
        self.location = location = yield from self._located(self.artifact)
        self.receiver = Receiver(self.request, location.hashes, self.destination, self.progress)
        try:
            yield from self.transfer.retried(self._attempt, self._may_retry)
        except StorageFailed as error:
            error.of_reference = self.artifact.storage_type == StorageType.REFERENCE
            raise
        return (yield from self.transfer.work(self._complete))

    def _content(self) -> Conversation[ArtifactContent]:
        call = self.request.call()
        content = yield from call
        if content.storage_type == StorageType.ERROR:
            raise _error_artifact(self.transfer.settings.attempted(call), content)
        return content

    def _attempt(self) -> Conversation[None]:
        """Make one attempt. It continues after an interruption if it has received much of the content."""
        while True:
            begun = self.receiver.received
            try:
                return (yield from self._request_rest())
            except StorageFailed as error:
                if self.receiver.received < begun + GOES_ON_AFTER or not self.receiver.resume_headers():
                    raise
                if not self._may_retry(error):
                    raise

    def _request_rest(self) -> Conversation[None]:
        location = yield from self._fresh_location()
        pieces = self.receiver.pieces(location.url, self.transfer)
        try:
            yield from self.destination.take(pieces, self.transfer)
        except StorageRefused as error:
            is_on_s3 = self.artifact.storage_type == StorageType.S3
            if is_expiry(error, location.expires, self.transfer.settings.server_time()):
                self.location = None
            elif error.status in _ABSENT and is_on_s3 and not self.skips_cdn:
                self.skips_cdn, self.location = True, None  # a CDN may have an older response
            raise

    def _fresh_location(self) -> Conversation[Location]:
        now = self.transfer.settings.server_time()
        location = self.location
        if location is None or (location.expires is not None and now >= location.expires):
            location = self.location = yield from self._located_again()
        return location

    def _located_again(self) -> Conversation[Location]:
        """Get a fresh URL: an object's credentials expire after an hour, and its download may take longer."""
        if self.artifact.storage_type == StorageType.OBJECT:
            with suppress(AuthenticationFailed):
                return (yield from self._located(self.artifact))
        return (yield from self._located((yield from self._content())))

    def _located(self, content: ArtifactContent) -> Conversation[Location]:
        """Return a fresh URL of the content."""
        if content.storage_type == StorageType.OBJECT and content.name is not None:
            if content.credentials is not None and not _CLIENT_ID.fullmatch(content.credentials.client_id):
                return (yield from self.request.located())  # the Queue makes client ids of artifact names
            call = calls.start_download(content.name, accept_download_methods={"getUrl": True})
            start = yield from CallAs(call, content.credentials)
            expires = None if start.expires is None else start.expires.timestamp()
            return Location(start.url, expires, start.hashes)
        if self.skips_cdn:
            return (yield from self.request.located())
        if content.storage_type in _WITH_URL and content.url is not None:
            return Location(content.url)
        raise NotOffered("artifact", content.storage_type)

    def _may_retry(self, error: BaseException) -> bool:
        return isinstance(error, StorageFailed) and (error.is_temporary or self.location is None)

    def _complete(self) -> DownloadResult:
        hashes = self.receiver.verified_hashes()
        self.destination.commit()
        return DownloadResult(
            name=self.request.name,
            storage_type=self.artifact.storage_type,
            content_type=self.receiver.content_type or DEFAULT_CONTENT_TYPE,
            size=self.receiver.size,
            hashes=hashes,
            path=self.destination.path,
            content=self.destination.content,
        )


def _error_artifact(attempted: Attempted, content: ArtifactContent) -> ErrorArtifact:
    """Return the error that the endpoint getArtifact would have caused."""
    said = {"reason": content.reason, "message": content.message}
    refused = Refused(status=424, message=content.message or "", document=said)
    return ErrorArtifact(attempted, refused)


class Receiver:
    """State of a download across its attempts: decodes, hashes and counts the content, and resumes."""

    def __init__(
        self,
        request: DownloadRequest,
        hashes: Mapping[str, str] | None,
        destination: Destination,
        progress: Progress,
    ) -> None:
        self._request = request
        self._of_service = hashes
        self._most_redirects = MOST_REDIRECTS if hashes is None else 0  # as the object service documents
        self._destination = destination
        self._progress = progress
        self._etag: str | None = None
        self._total: int | None = None
        self.content_type: str | None = None
        self._begin_anew({})

    def _begin_anew(self, stored: Mapping[str, str]) -> None:
        """Drop what was received.

        `stored` are the hashes in the headers of the response. They are ignored for an object: its storage
        may have changed them together with the content.
        """
        self._expected = dict(stored if self._of_service is None else self._of_service)
        self._hashes = Hashes(VERIFIABLE & {*self._expected, *(self._request.signed or ())})
        self.received = 0
        self.size = 0

    def verified_hashes(self) -> dict[str, str]:
        """Return the hashes of the received content, after comparing them."""
        found, signed = self._hashes.hexdigests(), self._request.signed
        if _differ(self._expected, found) or (self._of_service is not None and not found):
            raise HashMismatch(self._request.name, self._expected, found)
        if signed is not None and _differ(signed, found):
            reason = f"{self._request.name!r} is not what was signed: received {found}, signed {dict(signed)}"
            raise ChainOfTrustError(self._request.task_id, reason)
        return found

    def pieces(self, url: str, transfer: Transfer) -> Generator[Block]:
        """Make one attempt, and yield the decoded content, or the rest of it after a resume. Blocks."""
        headers = {"Accept-Encoding": "gzip", **self.resume_headers()}
        with self._range_refused(url), transfer.get(url, headers, self._most_redirects) as incoming:
            self._take_head(incoming, url)
            with self._hashes:
                for block in incoming.blocks():
                    transfer.cancellation.check()
                    yield from self._taken(block)
            self._check_part(incoming, url)
        if self._gunzip is not None and not self._gunzip.is_complete:
            raise DownloadCorrupt(self._request.name, "the gzip stream is truncated")

    def resume_headers(self) -> dict[str, str]:
        """Return the headers that request the rest; none without an ETag, which identifies the content."""
        if not self.received or self._etag is None:
            return {}
        return {"Range": f"bytes={self.received}-", "If-Range": self._etag}

    @contextmanager
    def _range_refused(self, url: str) -> Generator[None]:
        """Start over if the range is refused: of the last response, only the mark of its end was missing."""
        try:
            yield
        except StorageRefused as error:
            if error.status != _NO_SUCH_RANGE:
                raise
            raise self._not_resumed(url, "the server has no bytes after those received") from error

    def _take_head(self, incoming: Incoming, url: str) -> None:
        if incoming.status == _PARTIAL:
            self._resume(incoming, url)
            return
        self._destination.restart()
        sha256 = incoming.header("x-amz-meta-content-sha256")
        self._begin_anew({} if sha256 is None else {"sha256": sha256.lower()})
        etag = incoming.header("ETag") or ""
        self._etag = etag if etag.startswith('"') else None  # only a strong ETag identifies the exact bytes
        self.content_type = incoming.header("Content-Type")
        self._total = incoming.length
        self._gunzip = _decoder(self._request.name, incoming.header("Content-Encoding"))

    def _resume(self, incoming: Incoming, url: str) -> None:
        if not self.received:
            raise StorageFailed("GET", url, "HTTP 206, but all of the content was requested, not a part")
        span, etag = incoming.header("Content-Range") or "none", incoming.header("ETag") or self._etag
        found = _CONTENT_RANGE.fullmatch(span)
        if found is None or int(found[1]) != self.received:
            raise self._not_resumed(
                url, f"requested bytes from {self.received} on, received Content-Range: {span}"
            )
        total = self._total if found[2] == "*" else int(found[2])
        if etag != self._etag or self._total not in {None, total}:
            raise self._not_resumed(url, "the content was replaced while it was downloaded")
        self._total = total

    def _not_resumed(self, url: str, reason: str) -> StorageFailed:
        self._etag = None  # the next attempt begins at the start
        return StorageFailed("GET", url, reason)

    def _check_part(self, incoming: Incoming, url: str) -> None:
        """Fail if a part is missing: a server may send less than the requested range (RFC 9110, 15.3.7).

        A server that sends more than the range that it states may have sent another part.
        """
        if incoming.status != _PARTIAL or self._total is None:
            return
        if (missing := self._total - self.received) > 0:
            raise StorageFailed("GET", url, f"the response ends {missing} bytes too early")
        if missing < 0:
            raise self._not_resumed(url, f"the response ends {-missing} bytes after its Content-Range")

    def _taken(self, block: Block) -> Iterator[Block]:
        received = self.received + len(block)
        try:
            for piece in (block,) if self._gunzip is None else self._gunzip.decode(block):
                self._check_size(received, self.size + len(piece))
                self._hashes.update(piece)
                yield piece
                self.size += len(piece)
        except BadGzip as error:
            raise DownloadCorrupt(self._request.name, f"the content is not valid gzip: {error}") from error
        self.received = received
        self._progress(self.received, self._total)

    def _check_size(self, received: int, size: int) -> None:
        limit = self._request.max_bytes
        if limit is None and self._gunzip is not None:
            limit = max(MOST_UNPACKED, MOST_UNPACKED_RATIO * received)
        if limit is not None and (size > limit or received > limit + LONGER_AS_GZIP):
            raise DownloadTooLarge(self._request.name, received, max(size, received), limit)


def _differ(known: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return any(known.get(algorithm, value) != value for algorithm, value in found.items())


def _decoder(name: str, encoding: str | None) -> Gunzip | None:
    if encoding is None or encoding.lower() in {"", "identity"}:
        return None
    if encoding.lower() in {"gzip", "x-gzip"}:
        return Gunzip()
    raise DownloadCorrupt(name, f"unsupported Content-Encoding {encoding!r}; supported: gzip, identity")
