"""What is uploaded: opened once, of known length, read from its start again for each attempt.

Small content is read into memory at once. A file is read in blocks; whether it was changed meanwhile
shows in its size, its time of modification and its inode. Whatever cannot be read twice goes into a
temporary file first (in `TMPDIR`), so that memory stays bounded.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import BinaryIO, NamedTuple, Protocol, cast

from taskqueue_client.errors import InvalidArgument

from .buffers import BLOCK, Block, blocks_in_turn
from .errors import SourceChanged

SyncContent = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
"""What can be uploaded: a path (also as a `str`), bytes, a binary file, or an iterable of bytes."""

Content = SyncContent | AsyncIterable[bytes]
"""The same for the awaited client, which takes an asynchronous iterable as well."""

SMALL = 64 * 1024
"""Bytes up to which content is kept in memory, and sent in one piece."""


class SeekableFile(Protocol):
    """What content is read from."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a position."""
        ...

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a buffer, or a part of it; 0 at the end, None if nothing is there now."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class _Stamp(NamedTuple):
    """What changes when a file is changed or replaced."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Source:
    """Opened content. Close it.

    Args:
        name: What to call it in errors.
        file: A seekable file, positioned anywhere.
        start: Where the content begins in the file.
        size: The content's length in bytes.
        first_stamp: What marks the content as it was when its size was measured.
        stamp: The same for now; None where nobody else can change it.
        owned: Close the file with the source.
        content: All of it, if it is small and at hand.
    """

    def __init__(
        self,
        name: str,
        file: SeekableFile,
        *,
        start: int = 0,
        size: int,
        first_stamp: _Stamp | None = None,
        stamp: Callable[[], _Stamp] | None = None,
        owned: bool = True,
        content: bytes | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self.start = start
        self._file = file
        self._stamp = stamp
        self._first_stamp = first_stamp
        self._owned = owned
        self.content = content
        """All of it, if it is small."""
        if content is None and size <= SMALL:
            self.content = b"".join(bytes(block) for block in self._read(repeat(memoryview(bytearray(size)))))
            self.close()

    @property
    def plain_file(self) -> io.FileIO | None:
        """The file, if it is one on a disk and its content is not in memory."""
        file = self._file
        is_plain = self.content is None and isinstance(getattr(file, "raw", file), io.FileIO)
        return cast("io.FileIO", file) if is_plain else None

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """The content from `start` on. The last block comes only if nothing was changed until then.

        A block is good until some more have come; see `blocks_in_turn`.

        Raises:
            SourceChanged: It was.
            OSError: It cannot be read.
        """
        if self.content is not None:
            return iter((self.content[start:],))
        return self._read(blocks_in_turn(), start)

    def _read(self, buffers: Iterator[memoryview], start: int = 0) -> Iterator[memoryview]:
        self._file.seek(self.start + start)
        left = self.size - start
        while left:
            buffer = next(buffers)[:left]
            count = self._file.readinto(buffer) or 0
            left -= count
            if not count or (not left and not self._is_unchanged()):
                raise SourceChanged(self.name)
            yield buffer[:count]

    def _is_unchanged(self) -> bool:
        try:
            return self._stamp is None or self._stamp() == self._first_stamp
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file, if it is the source's own."""
        if self._owned:
            self._file.close()


def open_source(content: SyncContent) -> Source:
    """Open what is to be uploaded.

    Raises:
        InvalidArgument: It is nothing that can be uploaded.
        OSError: It cannot be read, or the temporary file cannot be written.
    """
    if isinstance(content, (str, os.PathLike)):
        return _of_path(os.fsdecode(content))
    if isinstance(content, (bytes, bytearray, memoryview)):
        size = memoryview(content).nbytes
        small = bytes(content) if size <= SMALL else None
        return Source("bytes", io.BytesIO(content), size=size, content=small)
    return _of_object(content)


def _of_object(content: object) -> Source:
    """What the caller passed may be anything, whatever its type is said to be."""
    if hasattr(content, "read") and not isinstance(content, io.TextIOBase):
        file = cast("io.BufferedReader", content)
        return _of_file(file) if hasattr(content, "readinto") else spooled(_blocks_of(file))
    if isinstance(content, Iterable) and not isinstance(content, io.TextIOBase):
        return spooled(cast("Iterable[bytes]", content))
    raise InvalidArgument("source", content, "a path, bytes, a file in binary mode or an iterable of bytes")


def _of_path(path: str) -> Source:
    try:
        file = io.FileIO(path, opener=_without_waiting)
    except IsADirectoryError:
        raise InvalidArgument("source", path, "a file, not a folder") from None
    try:
        return _of_opened(path, file)
    except BaseException:
        file.close()
        raise


def _of_opened(path: str, file: io.FileIO) -> Source:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument("source", path, "a regular file")
    stamp = _Stamp.of(status)
    return Source(path, file, size=stamp.size, first_stamp=stamp, stamp=partial(_stamp_of_path, path))


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe, too, without waiting for its writer; it is refused then."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _blocks_of(file: io.BufferedReader) -> Iterator[bytes]:
    return iter(lambda: file.read(BLOCK), b"")


def _of_file(file: io.BufferedReader) -> Source:
    """A file that belongs to the caller, from where it stands to its end."""
    name = str(getattr(file, "name", "the file"))
    stamp = _stamper_of(file)
    try:
        start = file.tell()
        file.seek(0, io.SEEK_END)  # writes out what the file has buffered, which changes its stamp
        first_stamp = None if stamp is None else stamp()
        size = file.seek(0, io.SEEK_END) - start
        file.seek(start)
    except (OSError, ValueError, AttributeError):  # a pipe, a compressed file: cannot go to its end
        return spooled(_blocks_of(file))
    size = max(size, 0)
    return Source(name, file, start=start, size=size, first_stamp=first_stamp, stamp=stamp, owned=False)


def _stamp_of_path(path: str) -> _Stamp:
    return _Stamp.of(os.stat(path))  # noqa: PTH116 - called for every small file


def _stamper_of(file: io.BufferedReader) -> Callable[[], _Stamp] | None:
    """Only of plain files: the descriptor of others is of something else, or there is none."""
    raw = getattr(file, "raw", file)
    return (lambda: _Stamp.of(os.fstat(raw.fileno()))) if isinstance(raw, io.FileIO) else None


class Spool:
    """A temporary file without a name that becomes a source."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - the source closes it

    def write(self, block: object) -> None:
        """Add a block.

        Raises:
            InvalidArgument: It is not bytes.
            OSError: The disk is full.
        """
        if not isinstance(block, (bytes, bytearray, memoryview)):
            raise InvalidArgument("source", block, "an iterable of bytes")
        self.file.write(cast("bytes", block))

    def source(self) -> Source:
        """What was written; the spool must not be used any more."""
        return Source("the temporary file", self.file, size=self.file.tell())

    def close(self) -> None:
        """Give the temporary file up."""
        self.file.close()


def spooled(blocks: Iterable[bytes]) -> Source:
    """The blocks, in a temporary file.

    Raises:
        InvalidArgument: A block is not bytes.
        OSError: The disk is full.
    """
    spool = Spool()
    try:
        for block in blocks:
            spool.write(block)
        return spool.source()
    except BaseException:
        spool.close()
        raise
