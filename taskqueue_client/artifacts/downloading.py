"""The download of one artifact of any storage type, with verification of its hashes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path

from msgspec.structs import replace

from taskqueue_client import _arguments as arguments
from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call, CallAs, Conversation
from taskqueue_client.errors import Attempted, AuthenticationFailed, ErrorArtifact, Refused
from taskqueue_client.models import ArtifactContent, StorageType

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
from .compression import BadGzip, Gunzip
from .sources import Block, Hashes
from .storage import MOST_REDIRECTS, VERIFIABLE, Incoming, Progress
from .transfers import SKIP_CDN, Transfer, TransferClient

DEFAULT_CONTENT_TYPE = "application/binary"
"""The content type that the official clients assume if storage sends none."""

MOST_UNPACKED = 64 * 1024 * 1024
"""Bytes that gzip of any size may unpack to."""

MOST_UNPACKED_RATIO = 500
"""The largest allowed ratio of unpacked to packed bytes. The format allows 1032; logs reach 5 to 50."""

GOES_ON_AFTER = 16 * 1024 * 1024
"""Bytes after which the interruption of a request is not a failed attempt. So a network that interrupts each
connection after a while delays a large download, and does not make it impossible."""

_WITH_URL = frozenset({StorageType.S3, StorageType.REFERENCE})
ABSENT = frozenset({403, 404})
"""S3 responds with 403 where the reader may not list the bucket."""

_PARTIAL = 206
_NO_SUCH_RANGE = 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
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


class Destination(ABC):
    """Receiver of the decoded blocks of a download. All methods except `take` may block."""

    @abstractmethod
    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        """Receive the blocks of one attempt."""

    @abstractmethod
    def restart(self) -> None:
        """Prepare for the first block. Blocks that were received before are dropped: they come again."""

    def commit(self) -> None:  # noqa: B027 - there may be nothing to do
        """Keep the content: it is complete and verified."""

    def discard(self) -> None:  # noqa: B027 - as above
        """Remove the content, unless it was committed."""


class WrittenDestination(Destination):
    """Base class of destinations that write all blocks of an attempt on one thread."""

    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        """See `Destination`."""
        return (yield from transfer.work(lambda: self._write_all(pieces)))

    def _write_all(self, pieces: Generator[Block]) -> None:
        with closing(pieces):
            for piece in pieces:
                self.write(piece)

    @abstractmethod
    def write(self, block: Block) -> None:
        """Append a block."""


class MemoryDestination(WrittenDestination):
    """A buffer in memory."""

    def __init__(self) -> None:
        self._buffer = BytesIO()

    @property
    def content(self) -> bytes:
        """All blocks that were received."""
        return self._buffer.getvalue()

    def write(self, block: Block) -> None:
        """Append a block to the buffer."""
        self._buffer.write(block)

    def restart(self) -> None:
        """Empty the buffer."""
        self._buffer = BytesIO()


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
        """Get a URL of storage from the other endpoint, whose response has no hashes."""
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


class _Download:
    def __init__(
        self, transfer: Transfer, request: DownloadRequest, destination: Destination, progress: Progress
    ) -> None:
        self._transfer = transfer
        self._request = request
        self._destination = destination
        self._progress = progress
        self._location: Location | None = None
        self._skips_cdn = False

    def steps(self) -> Conversation[DownloadResult]:
        content = yield from self._content()
        self._location = location = yield from self._located(content)
        receiver = Receiver(self._request, location.hashes, self._destination, self._progress)
        attempt = partial(self._attempt, content, receiver)
        yield from self._transfer.retried(attempt, self._may_retry)
        return (yield from self._transfer.work(lambda: self._complete(content, receiver)))

    def _content(self) -> Conversation[ArtifactContent]:
        call = self._request.call()
        content = yield from call
        if content.storage_type == StorageType.ERROR:
            raise _error_artifact(call, self._transfer.settings.url(call), content)
        return content

    def _attempt(self, content: ArtifactContent, receiver: Receiver) -> Conversation[None]:
        """Make one attempt, which goes on after an interruption if it has brought much of the content."""
        while True:
            begun = receiver.received
            try:
                return (yield from self._request_rest(content, receiver))
            except StorageFailed as error:
                if receiver.received < begun + GOES_ON_AFTER or not receiver.resume_headers():
                    raise
                if not self._may_retry(error):
                    raise

    def _request_rest(self, content: ArtifactContent, receiver: Receiver) -> Conversation[None]:
        location = yield from self._fresh_location(content)
        pieces = receiver.pieces(location.url, self._transfer)
        try:
            yield from self._destination.take(pieces, self._transfer)
        except StorageRefused as error:
            if is_expiry(error, location.expires, self._transfer.settings.server_time()):
                self._location = None
            elif error.status in ABSENT and content.storage_type == StorageType.S3 and not self._skips_cdn:
                self._skips_cdn, self._location = True, None  # a CDN keeps responses from before the upload
            raise

    def _fresh_location(self, content: ArtifactContent) -> Conversation[Location]:
        now = self._transfer.settings.server_time()
        location = self._location
        if location is None or (location.expires is not None and now >= location.expires):
            if content.storage_type != StorageType.OBJECT:
                content = yield from self._content()
            location = self._location = yield from self._located_again(content)
        return location

    def _located_again(self, content: ArtifactContent) -> Conversation[Location]:
        """Get a fresh URL: an object's credentials expire after an hour, and its download may take longer."""
        try:
            return (yield from self._located(content))
        except AuthenticationFailed:
            return (yield from self._located((yield from self._content())))

    def _located(self, content: ArtifactContent) -> Conversation[Location]:
        """Return a URL of the content, a fresh one for each attempt."""
        if content.storage_type == StorageType.OBJECT and content.name is not None:
            if content.credentials is not None and not _CLIENT_ID.fullmatch(content.credentials.client_id):
                return (yield from self._request.located())  # the Queue derives them from the artifact's name
            call = calls.start_download(content.name, accept_download_methods={"getUrl": True})
            start = yield from CallAs(call, content.credentials)
            expires = None if start.expires is None else start.expires.timestamp()
            return Location(start.url, expires, start.hashes)
        if self._skips_cdn:
            return (yield from self._request.located())
        if content.storage_type in _WITH_URL and content.url is not None:
            return Location(content.url)
        raise NotOffered("artifact")

    def _may_retry(self, error: BaseException) -> bool:
        return isinstance(error, StorageFailed) and (error.is_temporary or self._location is None)

    def _complete(self, content: ArtifactContent, receiver: Receiver) -> DownloadResult:
        hashes = receiver.verified_hashes()
        self._destination.commit()
        return DownloadResult(
            name=self._request.name,
            storage_type=content.storage_type,
            content_type=receiver.content_type or DEFAULT_CONTENT_TYPE,
            size=receiver.size,
            hashes=hashes,
        )


def _error_artifact(call: Call[ArtifactContent], url: str, content: ArtifactContent) -> ErrorArtifact:
    """Return the error that the endpoint getArtifact would have caused."""
    said = {"reason": content.reason, "message": content.message}
    refused = Refused(status=424, message=content.message or "", document=said)
    return ErrorArtifact(Attempted(call.endpoint, call.method, url), refused)


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
        self._name = request.name
        self._max_bytes = request.max_bytes
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

        The stored hashes are those in the headers of the response. Those of an object do not count: its
        storage may have changed them together with the content.
        """
        self._expected = dict(stored if self._of_service is None else self._of_service)
        self._hashes = Hashes(VERIFIABLE & {*self._expected, *(self._request.signed or ())})
        self._gunzip: Gunzip | None = None
        self.received = 0
        self.size = 0

    def verified_hashes(self) -> dict[str, str]:
        """Return the hashes of the received content, after comparing them."""
        found, signed = self._hashes.hexdigests(), self._request.signed
        if _differ(self._expected, found) or (self._of_service is not None and not found):
            raise HashMismatch(self._name, self._expected, found)
        if signed is not None and _differ(signed, found):
            reason = f"{self._name!r} is not what was signed: received {found}, signed {dict(signed)}"
            raise ChainOfTrustError(self._request.task_id, reason)
        return found

    def pieces(self, url: str, transfer: Transfer) -> Generator[Block]:
        """Make one attempt, and return the decoded content, or the rest of it after a resume. Blocks."""
        headers = {"Accept-Encoding": "gzip", **self.resume_headers()}
        with self._range_refused(url), transfer.get(url, headers, self._most_redirects) as incoming:
            self._take_head(incoming, url)
            with self._hashes:
                for block in incoming.blocks():
                    transfer.cancellation.check()
                    yield from self._taken(block)
            self._check_part(incoming, url)
        if self._gunzip is not None and not self._gunzip.is_complete:
            raise DownloadCorrupt(self._name, "the gzip stream is truncated")

    def resume_headers(self) -> dict[str, str]:
        """Return the headers that request the rest, if an ETag lets the server compare the file."""
        if not self.received or self._etag is None:
            return {}
        return {"Range": f"bytes={self.received}-", "If-Range": self._etag}

    @contextmanager
    def _range_refused(self, url: str) -> Generator[None]:
        """Start over if the range is refused: only the end mark of the last response was missing."""
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
        self._etag = etag if etag.startswith('"') else None  # a strong one, which identifies the exact bytes
        self.content_type = incoming.header("Content-Type")
        length = incoming.header("Content-Length")
        self._total = int(length) if length is not None and length.isdecimal() else None
        self._gunzip = _decoder(self._name, incoming.header("Content-Encoding"))

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
        """Fail if a part is missing: a server may send less than the requested range (RFC 9110, 15.3.7)."""
        if incoming.status == _PARTIAL and self._total is not None and self.received < self._total:
            missing = self._total - self.received
            raise StorageFailed("GET", url, f"the response ends {missing} bytes too early")

    def _taken(self, block: Block) -> Iterator[Block]:
        received = self.received + len(block)
        try:
            for piece in (block,) if self._gunzip is None else self._gunzip.decode(block):
                self._check_size(received, self.size + len(piece))
                self._hashes.update(piece)
                yield piece
                self.size += len(piece)
        except BadGzip as error:
            raise DownloadCorrupt(self._name, f"the content is not valid gzip: {error}") from error
        self.received = received
        self._progress(self.received, self._total)

    def _check_size(self, received: int, size: int) -> None:
        limit = self._max_bytes
        if limit is None and self._gunzip is not None:
            limit = max(MOST_UNPACKED, MOST_UNPACKED_RATIO * received)
        if limit is not None and size > limit:
            raise DownloadTooLarge(self._name, received, size, limit)


def _differ(known: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return any(known.get(algorithm, value) != value for algorithm, value in found.items())


def _decoder(name: str, encoding: str | None) -> Gunzip | None:
    if encoding is None or encoding.lower() in {"", "identity"}:
        return None
    if encoding.lower() in {"gzip", "x-gzip"}:
        return Gunzip()
    raise DownloadCorrupt(name, f"unsupported Content-Encoding {encoding!r}; supported: gzip, identity")
