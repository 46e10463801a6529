"""Uploads of a run's log while the run goes on, compressed as it grows, and at a bounded cost."""

from __future__ import annotations

import asyncio
import io
import struct
import threading
import zlib
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import uniform
from typing import Any

from taskqueue_client.artifacts.content import fast_zlib
from taskqueue_client.clock import Clock
from taskqueue_client.worker.commands.task_log import LogView, TaskLog, open_at_once
from taskqueue_client.worker.worker_log import counted, log

_BLOCK = 256 * 1024

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The header of gzip without a name and time (RFC 1952, 2.3)."""


@dataclass(eq=False, repr=False, slots=True)
class CompressedLog:
    """A log as one gzip stream that grows with it. Each byte of the log is compressed once.

    The bytes of one checkpoint are the beginning of those of the next, except for the last few bytes, which
    end the stream. So a reader of a checkpoint can request only the new bytes. Between checkpoints, there is
    no compressor in memory: the log may pause for hours, and each compressor takes more than 100 kB.

    Safe to use from any thread.

    Attributes:
        log: The log. The stream is in a file beside the log's.
        size: Bytes of the log that are in the stream.
        is_broken: Whether the stream could not be written, and is of no use any more.
    """

    log: TaskLog
    size: int = 0
    is_broken: bool = False
    _packed: int = 0
    _checksum: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def _path(self) -> Path:
        return self.log.path.with_name(f"{self.log.path.name}.gz")

    def checkpoint(self) -> LogView:
        """Compress what is new; return the whole stream, as a file that does not change. Close the file.

        Raises:
            OSError: The stream cannot be read, or could not be written, now or before.
        """
        with self._lock, closing(self.log.checkpoint()) as view:
            if self.is_broken:
                raise OSError(f"the compressed log {self._path} is incomplete")
            self._add(view)
            end = self._end(view.tail)
            return LogView(io.FileIO(self._path, opener=open_at_once), [(0, self._packed)], end)

    def _add(self, view: LogView) -> None:
        """Add the new bytes of the log, so that they can be read without what follows."""
        end = view.size - len(view.tail)
        if self._packed and self.size == end:
            return
        self.is_broken = True  # unless all goes well
        view.seek(self.size)
        compressor = _compressor()
        # Not "ab": if the task has removed the file, this would make one without the beginning.
        with open(self._path, "r+b" if self._packed else "wb", opener=open_at_once) as file:
            file.seek(self._packed)
            if not self._packed:
                file.write(_HEADER)
            while block := view.read(min(_BLOCK, end - self.size)):
                self.size += len(block)
                self._checksum = fast_zlib().crc32(block, self._checksum)
                file.write(compressor.compress(block))
            file.write(compressor.flush(zlib.Z_SYNC_FLUSH))
            self._packed = file.tell()
        self.is_broken = False

    def _end(self, tail: bytes) -> bytes:
        """Return the end of the stream: the last bytes of the log, compressed, and the checksum."""
        last = _compressor()
        checksum, size = fast_zlib().crc32(tail, self._checksum), self.size + len(tail)
        return bytes(last.compress(tail) + last.flush()) + struct.pack("<II", checksum, size % 2**32)

    def remove(self) -> None:
        """Remove the file. May be called again.

        Raises:
            OSError: It cannot be removed.
        """
        with self._lock:
            self.is_broken = True
            self._path.unlink(missing_ok=True)


def _compressor() -> Any:
    return fast_zlib().compressobj(wbits=-zlib.MAX_WBITS)  # without a header


FIRST_BETWEEN = (1.25, 10.0)
"""Seconds from the start of a run to its first checkpoint, unless the interval is shorter. The time is
random, as many runs may start at once; after a long outage, the latest time is the length of the outage. A
run of one second has no checkpoint."""

SLOWER = 1.5
"""The factor by which each interval is longer than the one before."""

SLOWEST = 6
"""The factor by which intervals are longer than the first one at most: 10 s become a minute."""

AT_ONCE = 2 * 1024 * 1024
"""Bytes that a run's checkpoints may send at any time…"""

PACE = 8 * 1024.0
"""… and bytes more for each second of the run. Checkpoints of a log of 100 MB that is written within some
minutes send about `AT_ONCE`, less than 0.3 of its final upload: the log grows faster than this budget."""

MOST = 16 * 1024 * 1024
"""Bytes that all checkpoints of a run send at most, unless the log is very large."""

SHARE = 0.3
"""A log is very large if this part of it is more than `MOST`. It is uploaded again when what was sent before
is at most this part of it."""


def first_after(interval: float, outage: float) -> float:
    """Return the seconds from the start of a run to its first checkpoint; see `LogCheckpoints.start`."""
    earliest, latest = FIRST_BETWEEN
    latest = max(min(latest, interval), outage)
    return uniform(min(earliest, latest), latest)  # noqa: S311 - spreads calls, keeps no secret


@dataclass(eq=False, repr=False, slots=True)
class LogCheckpoints:
    """The checkpoints of one run's log, in the loop that it is made in.

    Storage takes a new version of the log only as a whole. So each checkpoint is the log's gzip stream from
    its beginning, and it is uploaded only if all of them together stay within a budget, which grows with the
    time of the run. `docs/how-to/task-logs.md` has the arithmetic.

    Args:
        run: The run, for the worker's log.
        compressed: Returns the log as gzip; called at the first checkpoint.
        upload: Uploads the log so far.
    """

    _run: object
    _compressed: Callable[[], CompressedLog]
    _upload: Callable[[LogView], Awaitable[object]]
    _clock: Clock
    _started: float = field(init=False)
    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None
    _sent: int = 0
    _failures: int = 0  # since the last upload
    _uploaded: int = 0  # bytes of the log, before compression

    def __post_init__(self) -> None:
        self._started = self._clock.monotonic()

    def start(self, interval: float, outage: float = 0.0) -> None:
        """Upload the first checkpoint soon, and more from then on. Between them, there is only a timer.

        Args:
            interval: Seconds from the first checkpoint to the second.
            outage: Seconds for which the Queue could not be reached shortly before.
        """
        self._wait(first_after(interval, outage), interval, interval * SLOWEST)

    async def stop(self) -> None:
        """Upload no more; cancel the upload that is on its way."""
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None  # the canceled coroutine of the task refers to this object
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            # Otherwise, the task keeps its CancelledError, which since Python 3.14 refers to the task.
            with suppress(asyncio.CancelledError):
                if (error := task.exception()) is not None:
                    log.error("cannot checkpoint the log of run %s: %s", self._run, error, exc_info=error)

    def _wait(self, seconds: float, interval: float, longest: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._begin, interval, longest)

    def _begin(self, interval: float, longest: float) -> None:
        self._task = asyncio.create_task(self._run_once(interval, longest))

    async def _run_once(self, interval: float, longest: float) -> None:
        """Upload a checkpoint; schedule the next one in `interval` seconds, or more if intervals grow."""
        compressed, is_first = self._compressed(), not self._uploaded
        if await self._checkpoint(compressed) and not is_first:
            interval = min(interval * SLOWER, longest)
        if not compressed.is_broken:
            self._wait(interval, interval, longest)
        self._task = None  # a waiting run has no task, which takes 1 kB

    async def _checkpoint(self, compressed: CompressedLog) -> bool:
        """Upload a checkpoint if the log has grown and it is affordable; return whether it was uploaded."""
        if compressed.log.size <= self._uploaded:
            return False
        try:
            with closing(await asyncio.to_thread(compressed.checkpoint)) as view:
                if not self._is_affordable(view.size):
                    return False
                self._sent += view.size
                await self._upload(view)
        except Exception as error:  # noqa: BLE001 - the log is uploaded at the end, too
            self._note_failure(error)
            return False
        if self._failures:
            attempts = counted(self._failures, "failed attempt")
            log.info("uploaded a checkpoint of the log of run %s after %s", self._run, attempts)
            self._failures = 0
        self._uploaded = compressed.size
        return True

    def _note_failure(self, error: Exception) -> None:
        """Log the first of several failures: in an outage, each run would log one every few seconds."""
        self._failures += 1
        if self._failures == 1:
            log.warning("cannot upload a checkpoint of the log of run %s: %s", self._run, error)

    def _is_affordable(self, size: int) -> bool:
        """Return whether a checkpoint of so many bytes is within the budget."""
        earned = AT_ONCE + PACE * (self._clock.monotonic() - self._started)
        return self._sent + size <= min(earned, MOST) or max(self._sent, MOST) <= SHARE * size
