"""The log of one run: what its handler says and what its commands print."""

from __future__ import annotations

import io
import logging
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from taskqueue_client._dates import timestamp
from taskqueue_client.clock import Clock

from .masking import Masking, Secrets, masked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger("taskqueue_client.worker")


KEPT_IN_MEMORY = 16 * 1024
"""Bytes: making and removing a file takes longer than all else that a short log needs."""


class TaskLog:
    """Lines that begin with the time, as `2026-11-21T09:20:53.649Z `. Secrets are masked.

    They are kept in memory as long as they are few, and in a file from then on.

    Everything but newlines is written as it comes, in whatever encoding. Writers take turns by the line:
    where one comes in before another one's line has ended, the line is broken. Safe to use from any thread.

    If the file cannot be written, nothing is raised: the error is kept, what comes is dropped until the
    file can be written again, and a line tells how much is missing. After `remove`, everything is dropped.

    Args:
        path: The file; replaced if there is one.
        clock: Where the times come from.
        kept_in_memory: How many bytes are not worth a file.

    Attributes:
        path: The file.
        error: Why something is missing; None as long as nothing is.
    """

    def __init__(self, path: Path, clock: Clock, kept_in_memory: int = KEPT_IN_MEMORY) -> None:
        self.path = path
        self.error: OSError | None = None
        self._logger: logging.Logger | None = None
        self._clock = clock
        self._secrets = Secrets()
        self._lock = threading.RLock()  # the garbage collector may call what logs here, at any point
        self._is_writing = False
        self._put_off: deque[tuple[object, bytes]] = deque()
        self._kept_in_memory = kept_in_memory
        self._memory: io.BytesIO | None = io.BytesIO()  # None once there is a file
        self._file: io.BytesIO | io.FileIO = self._memory
        self._size = 0
        self._whole_lines = 0  # the size at the end of the last line that is complete
        self._writer: object = None  # whose line is incomplete
        self._missing = 0

    @property
    def logger(self) -> logging.Logger:
        """Takes messages of every level.

        Has no part in the process's tree of loggers, so that nothing that it is told is shown elsewhere.
        """
        return self._logger or self._kept(_logger_of(self))

    def _kept(self, made: logging.Logger) -> logging.Logger:
        """`made`: the logger from now on, unless another thread was first. After `remove`, none is kept."""
        with self._lock:
            if self._logger is None and not self._file.closed:
                self._logger = made
            return self._logger or made

    def register_secret(self, secret: str) -> None:
        """Mask a text from now on, and each of its lines of 8 characters and more.

        What was written before stays. Only the text as it is given is found, not what it looks like in
        base64 or as part of a URL.

        Raises:
            InvalidArgument: It is empty.
        """
        self._secrets.add(secret)

    def output(self) -> Output:
        """A stream of its own for what a command prints."""
        return Output(self, self._secrets)

    def checkpoint(self) -> io.BytesIO | LogPrefix:
        """The complete lines so far, as a file that does not change. Close it.

        Raises:
            OSError: It cannot be read.
        """
        with self._lock:
            if self._memory is None:
                return LogPrefix(self.path, self._whole_lines)
            return io.BytesIO(self._memory.getvalue()[: self._whole_lines])

    def remove(self) -> None:
        """Write nothing more, and remove the file. May be called again.

        Raises:
            OSError: It cannot be removed.
        """
        with self._lock:
            self._logger = None  # it refers to this log: whoever has it may go on
            self._file.close()
            if self._memory is None:
                self.path.unlink(missing_ok=True)

    def append(self, writer: object, text: bytes) -> None:
        """Write what `writer` has to say: masked already, and not necessarily whole lines."""
        with self._lock:
            if text and not self._file.closed:
                self._put_off.append((writer, text))
                self._write_all()

    def say(self, message: str) -> None:
        """`logger.info`, for what the worker itself has to say: a logger takes longer than the rest."""
        self.append_message(f"INFO {message}")

    def append_message(self, message: str) -> None:
        """Write whole lines."""
        self.append(self, masked(message.encode(errors="backslashreplace") + b"\n", self._secrets))

    def _write_all(self) -> None:
        if self._is_writing:
            return  # a finalizer logs in the middle of a line: it is next
        self._is_writing = True
        try:
            while self._put_off:
                self._write(*self._put_off.popleft())
        finally:
            self._is_writing = False

    def _write(self, writer: object, text: bytes) -> None:
        stamp = timestamp(datetime.fromtimestamp(self._clock.now(), UTC)).encode() + b" "
        start = b""
        if self._missing:
            start = b"\n%b[%d bytes are missing here: %b]\n" % (
                stamp,
                self._missing,
                str(self.error).encode(),
            )
            self._writer = None
        if self._writer is not writer:
            start += stamp if self._writer is None else b"\n" + stamp
        ended = text.endswith(b"\n")
        lines = text[:-1] if ended else text
        if self._put(start + lines.replace(b"\n", b"\n" + stamp) + (b"\n" if ended else b"")):
            self._writer = None if ended else writer

    def _put(self, written: bytes) -> bool:
        """Write bytes to the file; tell whether all of them are there."""
        rest = memoryview(written)
        before = self._size
        try:
            if self._memory is not None and before + len(rest) > self._kept_in_memory:
                self._file = _file_with(self.path, self._memory.getvalue())
                self._memory = None
            while rest:
                count = self._file.write(rest)
                self._size += count
                rest = rest[count:]
        except OSError as error:
            self._fail(error, len(rest))
        else:
            self._missing = 0
        if newline := written.rfind(b"\n", 0, self._size - before) + 1:
            self._whole_lines = before + newline
        return not rest

    def _fail(self, error: OSError, dropped: int) -> None:
        if self.error is None:
            log.error("the task log %s is not complete: %s", self.path, error)
            self.error = error
        self._missing += dropped


def _logger_of(task_log: TaskLog) -> logging.Logger:
    logger = logging.Logger("taskqueue_client.task")  # noqa: LOG001 - a registered one would stay for ever
    logger.addHandler(_Handler(task_log))
    return logger


def _file_with(path: Path, content: bytes) -> io.FileIO:
    """A new file that holds all of the content, or none at all."""
    file = path.open("wb", buffering=0)
    try:
        while content:
            content = content[file.write(content) :]
    except BaseException:
        file.close()
        path.unlink(missing_ok=True)
        raise
    return file


class Output:
    """What one command prints, on its way to the log. Used by one thread at a time.

    Args:
        task_log: Where it goes.
        secrets: What to mask.
    """

    def __init__(self, task_log: TaskLog, secrets: Secrets) -> None:
        self._log = task_log
        self._masking = Masking(secrets)

    def write(self, chunk: bytes) -> None:
        """Write bytes, wherever they were cut."""
        self._log.append(self, self._masking.feed(chunk))

    def close(self) -> None:
        """Write what was held back, as it could have been the beginning of a secret."""
        self._log.append(self, self._masking.flush())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LogPrefix(io.RawIOBase):
    """The beginning of a file that grows, read as if it were all.

    Args:
        path: The file.
        size: How many bytes to read of it.
    """

    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self._size = size

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """See `io.RawIOBase.readinto`."""
        left = max(self._size - self._file.tell(), 0)
        return self._file.readinto(memoryview(buffer).cast("B")[:left])

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase.seek`."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
        return self._file.seek(start + offset)

    def tell(self) -> int:
        """See `io.IOBase.tell`."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class _Handler(logging.Handler):
    """Brings what a logger is told to the log."""

    def __init__(self, task_log: TaskLog) -> None:
        super().__init__()
        self._log = task_log
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
        except Exception:  # noqa: BLE001 - arguments that don't fit their message; logging has a way to say so
            self.handleError(record)
        else:
            self._log.append_message(message)
