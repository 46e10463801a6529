"""A log artifact that grows: only its new part is requested, and each of its lines is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from .compression import BadGzip, Gunzip
from .sources import Block
from .storage import Incoming

LOG_NAME = "public/logs/live_backing.log"
LOG_LINK = "public/logs/live.log"
"""The names under which everybody looks for a task's log; user interfaces open the link."""

COMPARED = 64
"""Old bytes that are requested with the new ones, to see that they belong together."""

_GZIP_END = 10
"""Bytes at the end of a gzip stream that a longer one lacks there: an empty block, checksum and length."""

_PARTIAL = 206


class LineWriter:
    """Writes a text that may begin again at its start: what was written before is skipped, by lines.

    A worker's last upload of a log has the same lines as those before, but shorter ones: of a progress bar
    only the last state is left.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._lines = 0
        self._column = 0  # bytes of the line that has not ended
        self._has_states = False  # whether that line is one of a progress bar
        self._skipped_lines = 0
        self._skipped_bytes = 0

    def begin_again(self) -> None:
        """Expect the text from its start."""
        self._skipped_lines = self._lines
        self._skipped_bytes = 0 if self._has_states else self._column

    def write(self, block: bytes) -> None:
        """Write what is new in a block."""
        new = self._without_old_bytes(self._without_old_lines(block))
        if not new:
            return
        self._write(new)
        self._lines += new.count(b"\n")
        line = new[new.rfind(b"\n") + 1 :]
        is_continued = len(line) == len(new)
        self._column = len(line) + (self._column if is_continued else 0)
        self._has_states = b"\r" in line or (is_continued and self._has_states)

    def _without_old_lines(self, block: bytes) -> bytes:
        count = min(block.count(b"\n"), self._skipped_lines) if self._skipped_lines else 0
        at = 0
        for _ in range(count):
            at = block.index(b"\n", at) + 1
        self._skipped_lines -= count
        return b"" if self._skipped_lines else block[at:]

    def _without_old_bytes(self, block: bytes) -> bytes:
        if not self._skipped_bytes or self._skipped_lines:
            return block
        newline = block.find(b"\n")
        count = min(self._skipped_bytes, len(block) if newline < 0 else newline)
        self._skipped_bytes = 0 if count == newline else self._skipped_bytes - count
        return block[count:]


class GrowingLog:
    """The received part of a log, by byte ranges of the stored content, which may be gzip.

    Attributes:
        received: Received bytes that a longer log begins with, too.
    """

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._etag: str | None = None
        self._begin(None)

    def _begin(self, encoding: str | None) -> None:
        self._encoding = encoding
        self._gunzip = None if encoding is None else Gunzip()
        self.received = 0
        self._compared = b""  # the last of them
        self._held = b""  # what follows them

    def begin_again(self) -> None:
        """Expect the log from its start: it is another one."""
        self._etag = None
        self._begin(None)
        self._writer.begin_again()

    def request_headers(self) -> Mapping[str, str]:
        """Return the headers of a request for what is new."""
        known = {} if self._etag is None else {"If-None-Match": self._etag}
        begin = self.received - len(self._compared)
        return {"Range": f"bytes={begin}-", "Accept-Encoding": "gzip", **known}

    def take(self, incoming: Incoming) -> bool:
        """Write the new part of a response. Return False if it does not continue the earlier part."""
        encoding = incoming.header("Content-Encoding")
        encoding = None if encoding in {None, "", "identity"} else encoding
        if not self.received:
            self._begin(encoding)
        blocks = incoming.blocks()
        if incoming.status == _PARTIAL:
            if encoding != self._encoding or not self._continues(blocks):
                return False
        elif self.received:
            return False
        self._etag = None  # until all has come
        for block in blocks:
            self._add(bytes(block))
        self._etag = incoming.header("ETag")
        return True

    def finish(self) -> None:
        """Write what was held back: the log does not grow any more.

        Raises:
            BadGzip: The log is damaged, or its end is missing.
        """
        held, self._held = self._held, b""
        self._decode(held)
        if self._gunzip is not None and not self._gunzip.is_complete:
            message = "the end is missing"
            raise BadGzip(message)

    def write_all(self, blocks: Iterable[Block]) -> None:
        """Write what is new in all of the log, which is decoded already."""
        self.begin_again()
        for block in blocks:
            self._writer.write(bytes(block))

    def _continues(self, blocks: Iterator[Block]) -> bool:
        """Compare the old bytes at the beginning of a response, and take the first new ones."""
        begin = b""
        while len(begin) < len(self._compared) and (block := next(blocks, None)):
            begin += bytes(block)
        if not begin.startswith(self._compared):
            return False
        self._held = b""
        self._add(begin[len(self._compared) :])
        return True

    def _add(self, block: bytes) -> None:
        text = self._held + block
        cut = len(text) if self._gunzip is None else max(len(text) - _GZIP_END, 0)
        self._held = text[cut:]
        self._decode(text[:cut])

    def _decode(self, stored: bytes) -> None:
        self.received += len(stored)
        self._compared = (self._compared + stored)[-COMPARED:]
        for piece in (stored,) if self._gunzip is None else self._gunzip.decode(stored):
            self._writer.write(piece)
