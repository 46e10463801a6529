"""The worker's log on standard error."""

from __future__ import annotations

import logging
import os
import select
import sys
from contextlib import suppress

PATIENCE = 1.0
"""Seconds to wait for the reader of standard error, which may be busy."""


def log_handler() -> logging.Handler:
    """Return a handler that writes to standard error."""
    try:
        return StandardErrorLog(sys.stderr.fileno(), sys.stderr.encoding)
    except (AttributeError, OSError):  # it is closed, or no file; its number may be another file's by now
        return logging.StreamHandler()


class StandardErrorLog(logging.Handler):
    """Writes log records, and drops them while nobody reads: a handler that waits would block the worker.

    How many were dropped is logged when somebody reads again.

    Args:
        file: The file descriptor to write to.
        encoding: The encoding of the text.
        patience: Seconds to wait for the reader before a record is dropped; the next ones are not waited for.
    """

    def __init__(self, file: int, encoding: str, patience: float = PATIENCE) -> None:
        super().__init__()
        self._file = file
        self._encoding = encoding
        self._patience = patience
        self._dropped = 0
        self._is_cut = False
        self._poll = select.poll()
        self._poll.register(file, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop it."""
        if self._dropped and self._write(self._note()):
            self._dropped = 0
        if self._dropped or not self._write(record):
            self._dropped += 1

    def _note(self) -> logging.LogRecord:
        text = "%d lines of this log are missing: nobody read standard error"
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (self._dropped,), None)

    def _write(self, record: logging.LogRecord) -> bool:
        """Write a record; return whether all of it was written."""
        try:
            text = "\n" * self._is_cut + self.format(record) + "\n"
        except Exception:  # noqa: BLE001 - as in logging's handlers: the program goes on after a bad message
            self.handleError(record)
            return True
        content = rest = text.encode(self._encoding, "backslashreplace")
        with suppress(OSError):  # the reader is gone, or the disk is full
            while rest and self._is_read():
                rest = rest[os.write(self._file, rest[: select.PIPE_BUF]) :]  # no more would surely fit
        self._is_cut = bool(rest) and (self._is_cut or len(rest) < len(content))
        return not rest

    def _is_read(self) -> bool:
        return bool(self._poll.poll(0 if self._dropped else self._patience * 1000))
