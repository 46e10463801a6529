"""Takes in what a download gives, over as many attempts as it takes: decodes, hashes, counts, resumes."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager

from .buffers import Block
from .cancellation import Cancellation
from .compression import BadGzip, Gunzip
from .connections import Timeouts
from .destinations import Destination
from .errors import DownloadCorrupt, StorageFailed, StorageRefused
from .hashing import Hashes
from .storage import Get, Incoming, Progress, Storage

_PARTIAL = 206
_NO_SUCH_RANGE = 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Receiver:
    """What has come so far.

    Args:
        name: The artifact's.
        algorithms: The hashes to compute of the decoded content.
        destination: Where it goes.
        progress: Told the bytes that came and how many there are, both before decoding.
    """

    def __init__(
        self, name: str, algorithms: Collection[str], destination: Destination, progress: Progress
    ) -> None:
        self._name = name
        self._algorithms = algorithms
        self._destination = destination
        self._progress = progress
        self._etag: str | None = None
        self._total: int | None = None
        self.content_type: str | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._hashes = Hashes(self._algorithms)
        self._gunzip: Gunzip | None = None
        self._received = 0
        self.size = 0

    @property
    def hashes(self) -> dict[str, str]:
        """Of all that came, in hex by algorithm."""
        return self._hashes.hexdigests()

    def fetch(self, url: str, timeouts: Timeouts, storage: Storage, cancellation: Cancellation) -> None:
        """Make one attempt to get all of it, or the rest.

        Raises:
            StorageFailed: Something is missing; what came is kept.
            DownloadCorrupt: It cannot be decoded.
            ArtifactError: The destination does not take it.
            OSError: It cannot be written.
        """
        get = Get(url, {"Accept-Encoding": "gzip", **self._resume_headers()}, timeouts)
        with self._range_refused(url), storage.get(get, cancellation) as incoming:
            self._take_head(incoming, url)
            with self._hashes:
                for block in cancellation.checked(
                    incoming.blocks(is_impatient=self._destination.is_impatient)
                ):
                    self._take(block)
            self._check_part(incoming, url)
        if self._gunzip is not None and not self._gunzip.is_complete:
            raise DownloadCorrupt(self._name, "its gzip stream has no end")

    def _resume_headers(self) -> dict[str, str]:
        """Ask for the rest, if the server can tell that it is still the same file."""
        if not self._received or self._etag is None:
            return {}
        return {"Range": f"bytes={self._received}-", "If-Range": self._etag}

    @contextmanager
    def _range_refused(self, url: str) -> Generator[None]:
        """There is no rest where only the end mark of the last answer was missing: begin at the start."""
        try:
            yield
        except StorageRefused as error:
            if error.status != _NO_SUCH_RANGE:
                raise
            self._etag = None  # the next attempt begins at the start
            raise StorageFailed("GET", url, "the rest that it was asked for is not there") from error

    def _take_head(self, incoming: Incoming, url: str) -> None:
        if incoming.status == _PARTIAL:
            self._resume(incoming, url)
            return
        self._destination.restart()
        self._begin_anew()
        self._etag = _strong(incoming.header("ETag"))
        self.content_type = incoming.header("Content-Type")
        length = incoming.header("Content-Length")
        self._total = int(length) if length is not None and length.isdecimal() else None
        self._gunzip = _decoder(self._name, incoming.header("Content-Encoding"))

    def _resume(self, incoming: Incoming, url: str) -> None:
        found = _CONTENT_RANGE.fullmatch(incoming.header("Content-Range") or "")
        if found is None or int(found[1]) != self._received:
            self._etag = None  # the next attempt begins at the start
            raise StorageFailed("GET", url, "the server sent another part than it was asked for")
        if found[2] != "*":
            self._total = int(found[2])

    def _check_part(self, incoming: Incoming, url: str) -> None:
        """A server may send less than the rest that it was asked for (RFC 9110, 15.3.7)."""
        if incoming.status == _PARTIAL and self._total is not None and self._received < self._total:
            missing = self._total - self._received
            raise StorageFailed("GET", url, f"the server sent only a part: {missing} bytes are missing")

    def _take(self, block: Block) -> None:
        try:
            for piece in self._decoded(block):
                self._hashes.update(piece)
                self._destination.write(piece)
                self.size += len(piece)
        except BadGzip as error:
            raise DownloadCorrupt(self._name, f"it is no good gzip: {error}") from error
        self._received += len(block)
        self._progress(self._received, self._total)

    def _decoded(self, block: Block) -> Iterable[Block]:
        return (block,) if self._gunzip is None else self._gunzip.decode(block)


def _strong(etag: str | None) -> str | None:
    """An ETag that stands for exactly these bytes."""
    return etag if etag is not None and etag.startswith('"') else None


def _decoder(name: str, encoding: str | None) -> Gunzip | None:
    if encoding is None or encoding.lower() in {"", "identity"}:
        return None
    if encoding.lower() in {"gzip", "x-gzip"}:
        return Gunzip()
    raise DownloadCorrupt(name, f"its Content-Encoding is {encoding!r}, which is not known here")
