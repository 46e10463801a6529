"""The log of a run: messages of its handler and output of its commands."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Self

from taskqueue_client._dates import timestamp
from taskqueue_client.clock import Clock
from taskqueue_client.slugid import slugid
from taskqueue_client.worker.worker_log import RobustRecords, UnlockedHandler, log, note_of_unformattable

from .masking import Masking, Secrets, masked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

KEPT_IN_MEMORY = 16 * 1024
"""Bytes up to which a log is kept in memory: creating and removing a file is the slowest part of a log."""

STAMP = len("2026-11-21T09:20:53.649Z ")
"""Bytes of the time at the beginning of a line."""

LONG_LINE = 8 * 1024
"""Bytes from which on a checkpoint shows an incomplete line, too: some programs never end a line."""

MOST_SHORTENED = 100_000
"""Lines at most that the finished log shortens to their last state: their offsets take 17 MB of memory."""

_PROGRESS = re.compile(rb"\r(?!\n)")


class TaskLog:
    """Lines that begin with the time, such as `2026-11-21T09:20:53.649Z `. Secrets are masked.

    A short log is kept in memory, a longer one in a file.

    Bytes are written as they are, whatever their encoding. If a writer writes while the line of another
    writer is incomplete, a newline ends that line. Safe to use from any thread.

    If the file cannot be written, nothing is raised: the error is kept, and output is dropped until the file
    can be written again. A line tells how much is missing; readers get that line even if there is no room for
    it in the file. After `remove`, everything is dropped. An existing file is replaced.

    Args:
        kept_in_memory: Bytes up to which there is no file.
        before_file: Called before the file is created; may raise an OSError.

    Attributes:
        error: Why bytes are missing; None if no bytes are.
        lost: The number of missing bytes.
        secrets: The texts to mask; `Secrets.add` adds one.
        has_progress: Whether there are lines with several states, such as those of progress bars.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        secrets: Secrets | None = None,
        *,
        kept_in_memory: int = KEPT_IN_MEMORY,
        before_file: Callable[[], object] | None = None,
    ) -> None:
        self._path = os.fspath(path)  # a Path takes 0.2 kB more of each run
        self._before_file = before_file
        self.error: OSError | None = None
        self.lost = 0
        self.secrets = Secrets(secrets)
        self.has_progress = False
        self._logger: logging.Logger | None = None
        self._process = os.getpid()
        self._clock = clock
        self._lock = threading.RLock()  # a finalizer may log here at any point
        self._is_writing = False
        self._put_off: list[tuple[object, bytes]] = []  # not a deque, which takes 700 bytes for each run
        self._kept_in_memory = kept_in_memory
        self._file: io.BytesIO | io.FileIO = io.BytesIO()
        self._size = 0
        self._whole_lines = 0  # the size at the end of the last line that is complete
        self._writer: object = None  # whose last line is incomplete
        self._missing = 0  # missing bytes that the file does not mention yet

    @property
    def path(self) -> Path:
        """The path of the file, if there is one."""
        return Path(self._path)

    @property
    def logger(self) -> logging.Logger:
        """A logger that takes messages of every level.

        It is not part of the process's tree of loggers, so that its messages appear nowhere else.
        """
        return self._logger or self._kept(_logger_of(self))

    def _kept(self, made: logging.Logger) -> logging.Logger:
        """Store and return `made`, unless another thread was first. After `remove`, only return it."""
        with self._lock:
            if self._logger is None and not self._file.closed:
                self._logger = made
            return self._logger or made

    @property
    def size(self) -> int:
        """Bytes of a checkpoint made now: the complete lines, and the beginning of a long incomplete one."""
        with self._lock:
            return self._whole_lines if self._size - self._whole_lines < LONG_LINE else self._size

    def checkpoint(self) -> LogView:
        """Return the first `size` bytes of the log as a file that does not change. Close it.

        Each checkpoint begins with the previous checkpoint without its `tail`.

        Raises:
            OSError: The log cannot be read.
        """
        with self._lock:
            return self._view([(0, self.size)])

    def finished(self) -> LogView:
        """Return the log so far as a file, with only the last state of each line. Slow if `has_progress`.

        A state of a line ends in a carriage return, as progress bars print it: the next state overwrites it.
        After `MOST_SHORTENED` lines with several states, further lines keep all their states.

        Raises:
            OSError: The log cannot be read.
        """
        with self._lock:
            size = self.size
            view = self._view([(0, size)])
        if not self.has_progress:
            return view
        spans = _last_states(view, size)
        with self._lock:
            return self._view(spans)

    def _view(self, spans: list[tuple[int, int]]) -> LogView:
        """Return parts of the log and, if bytes are missing after them, a line that says how many."""
        written = self._file
        file: io.FileIO | io.BytesIO
        if isinstance(written, io.BytesIO):
            file = io.BytesIO(written.getvalue())
        else:  # not by its path: a task, or a cleaner of temporary files, may have removed the file
            file = io.FileIO(os.dup(written.fileno()))
        if not self._missing:
            return LogView(file, spans, b"")
        end = spans[-1][1]
        missing = self._missing + self._size - end  # also the beginning of a cut line
        newline = b"" if end == self._whole_lines else b"\n"
        return LogView(file, spans, newline + self._missing_line(self._stamp(), missing))

    def _missing_line(self, stamp: bytes, count: int) -> bytes:
        return b"%b[%d bytes are missing here: %b]\n" % (stamp, count, str(self.error).encode())

    def _stamp(self) -> bytes:
        return timestamp(datetime.fromtimestamp(self._clock.now(), UTC)).encode() + b" "

    def remove(self) -> None:
        """Write nothing more, and remove the file. May be called again.

        Raises:
            OSError: The file cannot be removed.
        """
        with self._lock:
            self._logger = None  # the logger refers to this log: a reference cycle
            self._file.close()
            if not isinstance(self._file, io.BytesIO):
                self.path.unlink(missing_ok=True)

    def append(self, writer: object, text: bytes) -> None:
        """Write text that is masked already. It may end within a line.

        A forked child writes to standard error: the log's lock, size and memory are its parent's.
        """
        if os.getpid() != self._process:
            os.write(2, text)
            return
        with self._lock:
            if text and not self._file.closed:
                self._put_off.append((writer, text))
                self._write_all()

    def say(self, message: str) -> None:
        """Write an `INFO` message of the worker itself; a logger takes longer."""
        self.append_message(f"INFO {message}")

    def append_message(self, message: str) -> None:
        """Write a message, with secrets masked, and end its line."""
        self.append(self, masked(message.encode(errors="backslashreplace") + b"\n", self.secrets))

    def _write_all(self) -> None:
        if self._is_writing:
            return  # a finalizer logs while this thread writes: its message is next
        self._is_writing = True
        try:
            while self._put_off:
                self._write(*self._put_off.pop(0))
        finally:
            self._is_writing = False

    def _write(self, writer: object, text: bytes) -> None:
        stamp = self._stamp()
        told = b""
        if self._missing:
            told = b"\n" + self._missing_line(stamp, self._missing)
            self._writer = None
        start = b""
        if self._writer is not writer:
            start = stamp if self._writer is None else b"\n" + stamp
        self.has_progress = self.has_progress or _PROGRESS.search(text) is not None
        ended = text.endswith(b"\n")
        lines = text[:-1] if ended else text
        if self._put(told, start + lines.replace(b"\n", b"\n" + stamp) + (b"\n" if ended else b"")):
            self._writer = None if ended else writer

    def _put(self, told: bytes, text: bytes) -> bool:
        """Write the line about missing bytes, then a text; return whether both were written."""
        written = told + text
        rest = memoryview(written)
        before = self._size
        try:
            if isinstance(self._file, io.BytesIO) and before + len(rest) > self._kept_in_memory:
                if self._before_file is not None:
                    self._before_file()
                self._file = _file_with(self.path, self._file.getvalue())
            while rest:
                count = self._file.write(rest)
                self._size += count
                rest = rest[count:]
        except OSError as error:
            self._fail(error, min(len(rest), len(text)))
        else:
            self._missing = 0
        if newline := written.rfind(b"\n", 0, self._size - before) + 1:
            self._whole_lines = before + newline
        return not rest

    def _fail(self, error: OSError, dropped: int) -> None:
        if self.error is None:
            log.error("the task log %s is cut: %s", self.path, error)
            self.error = error
        self._missing += dropped
        self.lost += dropped


def _logger_of(task_log: TaskLog) -> logging.Logger:
    logger = _RunLogger("taskqueue_client.task")
    logger.addHandler(_Handler(task_log))
    return logger


class _RunLogger(RobustRecords):
    """A logger outside of the process's tree, in which it would stay for ever."""

    def getChild(self, suffix: str) -> Self:  # noqa: N802 - its name
        """Return a child outside of the tree: in the tree, its messages would not reach the task's log."""
        child = type(self)(f"{self.name}.{suffix}")
        child.parent = self
        return child

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - its name
        """Look at the levels each time: `setLevel` clears the cache only of loggers in the process's tree."""
        return not self.disabled and level > self.manager.disable and level >= self.getEffectiveLevel()


def open_at_once(path: str, flags: int) -> int:
    """Open a file of a log, as the opener of `open` does.

    A task may have put something in its place. A link is not followed, and a FIFO not waited for: the worker
    would wait for the other end for ever.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _file_with(path: Path, content: bytes) -> io.FileIO:
    """Create a file that holds all of the content, or no file at all."""
    try:
        path.unlink(missing_ok=True)  # also a link or a FIFO of a task
    except (IsADirectoryError, PermissionError):  # a directory of a task; the error depends on the system
        path.rename(f"{path}.{slugid()}")  # it is removed with the worker's directory
    file = path.open("x+b", buffering=0)
    try:
        while content:
            content = content[file.write(content) :]
    except BaseException:
        file.close()
        path.unlink(missing_ok=True)
        raise
    return file


class Output:
    """Writes the output of one command to the log and, if captured, to memory. Used by one thread at a time.

    Args:
        captured: Bytes to keep in memory at most; None: the output goes only to the log.

    Attributes:
        is_too_large: Whether there were more bytes than `captured`.
    """

    def __init__(self, task_log: TaskLog, captured: int | None = None) -> None:
        self._log = task_log
        self._masking = Masking(task_log.secrets)
        self._most = captured
        self._content = bytearray()
        self.is_too_large = False

    def write(self, chunk: bytes) -> None:
        """Write a chunk, which may be cut anywhere."""
        self._log.append(self, self._masking.feed(chunk))
        if self._most is not None and not self.is_too_large:
            self._content += chunk
            self.is_too_large = len(self._content) > self._most

    def text(self) -> str | None:
        """Return the captured output, or None; bytes that are not UTF-8 become what `os.fsdecode` returns."""
        return None if self._most is None else self._content.decode(errors="surrogateescape")

    def close(self) -> None:
        """Write what was held back as the possible beginning of a secret."""
        self._log.append(self, self._masking.flush())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LogView(io.RawIOBase):
    """A read-only file that consists of parts of another file, which may grow, and of a text after them.

    `spans` has the start and the end of each part, in their order. Closing the view closes the other file.

    Attributes:
        tail: The text after the parts.
        size: Bytes of the parts and the text.
    """

    def __init__(self, file: io.FileIO | io.BytesIO, spans: Sequence[tuple[int, int]], tail: bytes) -> None:
        super().__init__()
        self._file = file
        self._spans = spans
        self._starts = [0, *accumulate(end - start for start, end in spans)]  # in the view
        self.tail = tail
        self._at = 0
        self.size = self._starts[-1] + len(tail)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """See `io.RawIOBase.readinto`."""
        wanted = memoryview(buffer).cast("B")
        index = bisect_right(self._starts, self._at) - 1
        if index < len(self._spans):
            start, end = self._spans[index]
            start += self._at - self._starts[index]
            count = self._read_at(start, wanted[: end - start])
        else:
            rest = self.tail[self._at - self._starts[-1] :][: len(wanted)]
            wanted[: len(rest)] = rest
            count = len(rest)
        self._at += count
        return count

    def _read_at(self, start: int, buffer: memoryview) -> int:
        """Read from an offset; a real file keeps its position, which the writer and other views share."""
        if isinstance(self._file, io.FileIO):
            return os.preadv(self._file.fileno(), [buffer], start)
        self._file.seek(start)
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase.seek`."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        return self._at

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def _last_states(view: LogView, size: int) -> list[tuple[int, int]]:
    """Return the spans of a log without the states of lines that later states have overwritten."""
    spans: list[tuple[int, int]] = []
    kept = at = 0
    first = last = STAMP  # where the line's first and last state begin
    is_overwritten = False  # the text so far ends in a carriage return
    for piece in iter(partial(io.BufferedReader(view).readline, _PIECE), b""):
        shown = len(piece.rstrip(b"\r\n"))
        overwritten = piece.rfind(b"\r", 0, shown)
        if overwritten >= 0 or (is_overwritten and shown):
            last = at + overwritten + 1
        is_overwritten = piece.endswith(b"\r")
        at += len(piece)
        if piece.endswith(b"\n"):
            if last > first and len(spans) < MOST_SHORTENED:
                spans.append((kept, first))
                kept = last
            first = last = at + STAMP
    return [*spans, (kept, size)]


_PIECE = 1024 * 1024  # bytes of a long line that are read at a time


class _Handler(UnlockedHandler):
    """Writes a logger's messages to the task log.

    It takes only the lock of the task log, an RLock: a finalizer may log while its thread has the lock.
    """

    def __init__(self, task_log: TaskLog) -> None:
        super().__init__()
        self._log = task_log
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
        except Exception as error:  # noqa: BLE001 - `handleError` would show arguments without masking
            message = self.format(note_of_unformattable(record, error))
        self._log.append_message(message)
