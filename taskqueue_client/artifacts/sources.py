"""The content of an upload, opened once and read from its start for each attempt; hashes of content.

Small content is read into memory. A file is read in blocks; a change of it is noticed by its size,
modification time and inode. Content that cannot be read twice is first written to a temporary file (in
`TMPDIR`), so that memory stays bounded.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
import tempfile
from collections.abc import AsyncIterable, Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from itertools import cycle, repeat
from queue import SimpleQueue
from sys import is_finalizing
from threading import Thread
from typing import BinaryIO, NamedTuple, Protocol, Self, cast

from taskqueue_client._arguments import check_path
from taskqueue_client.errors import InvalidArgument, shortened

from .artifact_errors import SourceChanged

Block = bytes | memoryview
"""A part of the content."""

BLOCK = 512 * 1024
"""Bytes that are read, hashed and sent at a time. Handing smaller blocks to the threads that hash costs too
much; larger ones do not fit into the processor's cache."""

AHEAD = 4
"""Blocks that may wait for a slow consumer, such as a thread that hashes."""


def blocks_in_turn() -> Iterator[memoryview]:
    """Return buffers for blocks, in turn: as many as may wait, and two that are in use."""
    made: list[memoryview] = []
    while len(made) < AHEAD + 2:
        made.append(memoryview(bytearray(BLOCK)))
        yield made[-1]
    yield from cycle(made)


SyncContent = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
"""Types that can be uploaded: a path (also as a `str`), bytes, a binary file, or an iterable of bytes."""

SOURCES = "a path, bytes, a file in binary mode or an iterable of bytes"

# A dict is data that nobody has serialized. An empty one, which has no element to refuse, would be stored.
_NOT_BYTES: tuple[type, ...] = (io.TextIOBase, Mapping)

Content = SyncContent | AsyncIterable[bytes]
"""Types that the asynchronous client can upload: asynchronous iterables, too."""

SMALL = 64 * 1024
"""Content of up to so many bytes is kept in memory, and sent as one block."""


class _Stamp(NamedTuple):
    """Properties of a file that change when it is modified or replaced."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(eq=False, repr=False)
class Source:
    """Opened content, to be closed by the caller.

    Attributes:
        name: The name to show in errors.
        file: A seekable file, at any position.
        start: The position in the file at which the content begins.
        first_stamp: The file's stamp when its size was measured.
        stamp: Returns the current stamp; None if nobody else can change the content.
        owned: Whether to close the file with the source.
        content: All of the content, if it is small and in memory.
        is_gzip: Whether the content is compressed already, and stored with the encoding `gzip`.
    """

    name: str
    file: io.RawIOBase | io.BufferedIOBase
    _: KW_ONLY
    size: int
    start: int = 0
    first_stamp: _Stamp | None = None
    stamp: Callable[[], _Stamp] | None = None
    owned: bool = True
    content: bytes | None = None
    is_gzip: bool = False

    def __post_init__(self) -> None:
        if self.content is None and self.size <= SMALL:
            buffer = memoryview(bytearray(self.size))
            self.content = b"".join(bytes(block) for block in self._read(repeat(buffer)))
            self.close()

    def blocks(self) -> Iterator[Block]:
        """Return the content from its start. The last block is returned only if the content is unchanged.

        The buffer of a block is reused after `AHEAD` + 2 blocks.
        """
        if self.content is not None:
            return iter((self.content,) if self.content else ())
        return self._read(blocks_in_turn())

    def _read(self, buffers: Iterator[memoryview]) -> Iterator[memoryview]:
        self.file.seek(self.start)
        left = self.size
        while left:
            buffer = next(buffers)[:left]
            left -= len(buffer)
            if not self._fill(buffer) or (not left and not self._is_unchanged()):
                raise SourceChanged(self.name)
            yield buffer

    def _fill(self, buffer: memoryview) -> bool:
        """Fill a buffer; return False if the file ends before. One call may read less than is left."""
        filled = 0
        while filled < len(buffer) and (count := self.file.readinto(buffer[filled:])):
            filled += count
        return filled == len(buffer)

    def _is_unchanged(self) -> bool:
        try:
            return self.stamp is None or self.stamp() == self.first_stamp
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file, if the source owns it."""
        if self.owned:
            self.file.close()


Opener = Callable[[str, int], int]
"""Opens a file, as the opener of `open` does."""


def open_source(content: SyncContent, opener: Opener = os.open) -> Source:
    """Open content for an upload.

    Args:
        content: The content, or the path of a file.
        opener: Opens the file of a path.
    """
    if isinstance(content, (str, os.PathLike)):
        return _of_path(os.fsdecode(content), opener)
    if isinstance(content, (bytes, bytearray, memoryview)):
        if not memoryview(content).c_contiguous:
            raise InvalidArgument("source", content, "a C-contiguous memoryview")
        size = memoryview(content).nbytes
        small = bytes(content) if size <= SMALL else None
        return Source("bytes", io.BytesIO(content), size=size, content=small)
    return _of_object(content)


def _of_object(content: object) -> Source:
    """Open content by its type at run time: the caller may have passed anything."""
    if hasattr(content, "readinto") and hasattr(content, "read"):
        file = cast("io.BufferedReader", content)
        if hasattr(file, "readable") and not file.readable():
            raise InvalidArgument("source", content, "a file opened for reading")
        return _of_file(file)
    return spooled(blocks_of(content))


def blocks_of(content: object) -> Iterable[bytes]:
    """Return the blocks of content that is neither a path nor bytes; `checked_block` checks each."""
    if not isinstance(content, _NOT_BYTES):
        if hasattr(content, "read"):
            file = cast("io.BufferedReader", content)
            return iter(lambda: file.read(BLOCK), b"")
        if isinstance(content, Iterable):
            return cast("Iterable[bytes]", content)
    raise InvalidArgument("source", content, SOURCES)


def checked_block(block: object) -> bytes:
    """Return a block, or raise InvalidArgument if it is not bytes."""
    if not isinstance(block, (bytes, bytearray, memoryview)):
        finding = f"it contains {shortened(repr(block))}, which is not bytes"
        raise InvalidArgument("source", block, SOURCES, finding)
    return cast("bytes", block)


def _of_path(path: str, opener: Opener) -> Source:
    check_path("source", path)
    try:
        # Without waiting for the writer of a pipe, so that a pipe can be refused.
        file = io.FileIO(path, opener=lambda path, flags: opener(path, flags | getattr(os, "O_NONBLOCK", 0)))
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
    if not stamp.size and file.read(1):  # such as files in /proc, whose size is not known before
        file.seek(0)
        with file:
            return spooled(blocks_of(file))
    return Source(path, file, size=stamp.size, first_stamp=stamp, stamp=lambda: _Stamp.of(os.stat(path)))  # noqa: PTH116 - called for every small file


def _of_file(file: io.BufferedReader) -> Source:
    """Return a source for the caller's file, from its current position to its end."""
    name = str(getattr(file, "name", "the file"))
    stamp = _stamper_of(file)
    try:
        start = file.tell()
        file.seek(0, io.SEEK_END)  # writes out what the file has buffered, which changes its stamp
        first_stamp = None if stamp is None else stamp()
        size = max(file.seek(0, io.SEEK_END) - start, 0)
        file.seek(start)
    except (OSError, ValueError, AttributeError):  # a pipe or a compressed file, which cannot seek to its end
        return spooled(blocks_of(file))
    return Source(name, file, start=start, size=size, first_stamp=first_stamp, stamp=stamp, owned=False)


def warn_if_at_end(name: str, file: object, size: int, log: logging.Logger) -> None:
    """Log a warning if an artifact is empty because its file was read or written to its end before."""
    with suppress(Exception):  # a pipe, or an iterable that is not a file: its `tell` may be anything
        if not size and cast("io.BufferedReader", file).tell():
            message = "artifact %r is empty: %r is at its end, and seek(0) returns to its start"
            log.warning(message, name, file)


def _stamper_of(file: io.BufferedReader) -> Callable[[], _Stamp] | None:
    """Return a function that stamps a plain file; None for others, such as compressed files.

    The descriptor of a compressed file has the size and time of the compressed content.
    """
    raw = getattr(file, "raw", file)
    return (lambda: _Stamp.of(os.fstat(raw.fileno()))) if isinstance(raw, io.FileIO) else None


class TemporaryFileFailed(OSError):
    """A temporary file cannot be created or written, for example because the disk is full."""


@contextmanager
def _naming_directory() -> Generator[None]:
    """Raise errors with the directory of temporary files, once that is known."""
    try:
        yield
    except OSError as error:
        what = f"cannot write a temporary file: {error.strerror or error}"
        raise TemporaryFileFailed(error.errno, what, tempfile.tempdir) from error


class Spool:
    """An unnamed temporary file to make a source of. Without `source`, the end of the context removes it."""

    def __init__(self) -> None:
        with _naming_directory():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - the source closes it
        self._is_source = False

    def write(self, block: object) -> None:
        """Append a block."""
        content = checked_block(block)
        with _naming_directory():
            self._file.write(content)

    def flush(self) -> None:
        """Write what is buffered."""
        with _naming_directory():
            self._file.flush()

    def source(self) -> Source:
        """Return a source of what was written. It owns the file: the spool must not be used afterwards."""
        self.flush()
        source = Source("the temporary file", self._file, size=self._file.tell())
        self._is_source = True
        return source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file, unless a source owns it."""
        if not self._is_source:
            with suppress(OSError):  # what is still buffered does not fit on the disk
                self._file.close()


def spooled(blocks: Iterable[bytes]) -> Source:
    """Write blocks to a temporary file, and return it as a source."""
    with Spool() as spool:
        for block in blocks:
            spool.write(block)
        return spool.source()


_BATCH = 256 * 1024
"""The least number of bytes that a thread gets at a time: handing over smaller blocks takes too long."""


class BlockThread:
    """Calls a function with the blocks of a stream, on a separate thread, in batches.

    Use it as a context manager, so that the thread ends. Content of less than a batch needs no thread. While
    no more threads can be started, the function is called on the thread that calls `put`.

    The queues are `SimpleQueue`s: a Ctrl-C while a `queue.Queue` is locked would leave it locked, and nobody
    could end the thread.

    Args:
        name: The name of the thread.
        take: The function. After it has failed, `put` and `finish` raise its error.
    """

    def __init__(self, name: str, take: Callable[[Block], object]) -> None:
        self._name = name
        self._take = take
        self._blocks: list[Block] = []  # fewer than a batch
        self._size = 0
        self._thread: Thread | None = None
        self._batches: SimpleQueue[Block | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        """Raise the function's error, also if the stream has failed: a resumed stream would lack blocks."""
        try:
            self.finish()
        except Exception:
            if raised is None or issubclass(raised, Exception):
                raise

    def put(self, block: Block) -> None:
        """Add a block. Waits while `AHEAD` batches wait."""
        self._blocks.append(block)
        self._size += len(block)
        if self._size < _BATCH:
            return
        if self._is_started():
            self._room.get()
            self._batches.put(self._batch())
        else:
            self._take_batch(self._batch())
        self._check()

    def finish(self) -> None:
        """Wait until the function has taken all blocks."""
        if self._thread is None:
            self._take_batch(self._batch())
        else:
            try:
                self._batches.put(self._batch())
            finally:  # also if Ctrl-C comes: the thread would wait for ever
                self._batches.put(None)
            self._thread.join()
            self._thread = None
        self._check()

    def _is_started(self) -> bool:
        """Start the thread unless it runs already; return whether it runs."""
        if is_finalizing():  # up to Python 3.11, `start` would wait for ever
            return False
        try:
            if self._thread is None:
                self._start()
        except RuntimeError:  # too many threads
            return False
        return True

    def _start(self) -> None:
        self._batches, self._room = SimpleQueue(), SimpleQueue()  # not those of a failed attempt
        for _ in range(AHEAD):
            self._room.put(None)
        self._thread = Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C, perhaps after the thread has begun, or too many threads
            self._batches.put(None)
            if not self._thread.is_alive():
                self._thread = None
            raise

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._room.put(None)
            self._take_batch(batch)

    def _batch(self) -> Block:
        blocks, self._blocks, self._size = self._blocks, [], 0
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _take_batch(self, batch: Block) -> None:
        if batch and self._error is None:
            try:
                self._take(batch)
            except BaseException as error:  # noqa: BLE001 - raised by `_check`
                self._error = error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


class Hashes:
    """Hashes of a stream by several algorithms, each computed on a separate thread.

    Use it as a context manager, so that the threads end.
    """

    def __init__(self, algorithms: Collection[str]) -> None:
        self._hashers = {algorithm: _hasher(algorithm) for algorithm in algorithms}
        self._threads: list[BlockThread] = []

    def __enter__(self) -> Self:
        self._threads = [
            BlockThread(f"artifact-{algorithm}", hasher.update) for algorithm, hasher in self._hashers.items()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def update(self, block: Block) -> None:
        """Add a block; see `BlockThread.put`."""
        for thread in self._threads:
            thread.put(block)

    def hexdigests(self) -> dict[str, str]:
        """Return the hashes of all blocks, in hex by algorithm. No block can be added afterwards."""
        self._finish()
        return {algorithm: hasher.hexdigest() for algorithm, hasher in self._hashers.items()}

    def _finish(self) -> None:
        with ExitStack() as ends:  # Ctrl-C while waiting for one thread must not keep the others from ending
            for thread in self._threads:
                ends.callback(thread.finish)


def hexdigests(algorithms: Collection[str], content: bytes) -> dict[str, str]:
    """Return the hashes of `content`, in lower-case hex by algorithm."""
    return {algorithm: _hasher(algorithm, content).hexdigest() for algorithm in algorithms}


def _hasher(algorithm: str, content: bytes = b"") -> _Hasher:
    """Begin a hash. MD5 is only compared with the ETag: FIPS mode refuses it for purposes of security."""
    return hashlib.new(algorithm, content, usedforsecurity=algorithm != "md5")


class _Hasher(Protocol):
    def update(self, block: Block, /) -> None: ...
    def hexdigest(self) -> str: ...
