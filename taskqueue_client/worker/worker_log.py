"""The worker's own log: its logger, and handlers that wait neither for a lock nor for a reader.

The log has events of the worker and its runs. `commands/task_log.py` has the logs of tasks.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from taskqueue_client._arguments import printable


class RobustRecords(logging.Logger):
    """A logger that raises no errors of the record factory that the program has set."""

    def makeRecord(self, name: str, *args: Any, **options: Any) -> logging.LogRecord:  # noqa: N802 - its name
        """Make a record; if the factory fails, one of Python's own kind."""
        try:
            return super().makeRecord(name, *args, **options)
        except Exception:
            if logging.getLogRecordFactory() is logging.LogRecord:  # a bad `extra`, for example
                raise
            level, file, line, message, arguments, exc_info, *_ = args
            record = logging.LogRecord(name, level, file, line, message, arguments, exc_info)
            _note_failure("record factory", record)
            return record


def _note_failure(what: str, record: logging.LogRecord) -> None:
    """Write the error of a part of the program's logging to standard error.

    The message is left out: that of a task's log may have secrets, which are masked only later.
    """
    if logging.raiseExceptions:
        text = "a %s of the program's logging failed for a log record of %s, line %s"
        note = _note(record, text, what, record.pathname, record.lineno)
        note.exc_info = sys.exc_info()
        handler = log_handler()
        handler.setFormatter(LogFormatter())
        handler.handle(note)


class _Robust(RobustRecords):
    """A logger that raises no errors of handlers and filters.

    An error of a handler or filter of the program, as in an outage of a log service, would end the work on
    a run without a report, or the worker.
    """

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the handlers."""
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001 - whatever a handler of the program raises
            _note_failure("handler or filter", record)


class _StaysEnabled(_Robust):
    """A logger that cannot be disabled; its level still counts.

    `logging.config` disables the loggers that a new configuration omits. A handler that configures logging
    would silence the worker, for example about a shutdown or a lost claim.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name != "disabled":
            super().__setattr__(name, value)


class LoggedRun:
    """A run. Log records that have a run as an argument get the fields `task_id` and `run_id`."""

    __slots__ = ()

    task_id: str
    run_id: int


def _name_run(record: logging.LogRecord) -> bool:
    for each in record.args if isinstance(record.args, tuple) else ():
        if isinstance(each, LoggedRun):
            record.task_id, record.run_id = each.task_id, each.run_id
    return True


handled_run: ContextVar[tuple[str, int] | None] = ContextVar("handled run", default=None)
"""The task and run whose handler logs in this context; only their ids, because contexts outlive runs."""

log = logging.getLogger("taskqueue_client.worker")
log.addFilter(_name_run)
log.disabled = False  # the program may have asked for this logger before, and then configured logging
_clients = logging.getLogger("taskqueue_client")  # they log in the worker's threads
for _kind, _logger in ((_StaysEnabled, log), (_Robust, _clients)):
    # The class that a logger has, which the program may have set (`logging.setLoggerClass`), stays a base.
    _logger.__class__ = type("WorkerLogger", (_kind, type(_logger)), {})

PATIENCE = 1.0
"""Seconds to wait for the reader of standard error, which may be busy."""


def counted(count: int, noun: str) -> str:
    """Return a number with a noun, such as `1 run` or `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def log_handler() -> logging.Handler:
    """Return a handler that writes to standard error."""
    try:
        return StandardErrorLog(sys.stderr.fileno(), sys.stderr.encoding)
    except (AttributeError, OSError):  # it is closed, or no file; descriptor 2 may be another file by now
        return logging.StreamHandler()


class LogFormatter(logging.Formatter):
    """Formats records without control characters, and indents all lines of a record but the first.

    Errors contain text of tasks, which must not look like another record, or control the terminal.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        return "\n  ".join(map(printable, super().format(record).split("\n")))


@contextmanager
def logged_by_default() -> Generator[None]:
    """Write the worker's log to standard error unless the program configures `logging`.

    By default, Python would write only warnings, without a time. A level that the program has set is kept.
    Of several workers in one process, the first one writes for all, until it ends.
    """
    if _has_handlers():
        yield
        return
    handler = log_handler()
    handler.setFormatter(LogFormatter())
    handler.addFilter(lambda _: next(iter(_defaults)) is handler and not _has_handlers())  # for each record
    with _changing:
        _defaults[handler] = next(iter(_defaults.values()), log.level)
        log.addHandler(handler)
        if not _has_level():
            log.setLevel(logging.INFO)
    try:
        yield
    finally:
        with _changing:
            log.removeHandler(handler)
            level = _defaults.pop(handler)
            if not _defaults:
                log.setLevel(level)


_defaults: dict[logging.Handler, int] = {}
"""The handlers that `logged_by_default` has added, with the level that the logger had before."""

_changing = threading.Lock()


def _has_level() -> bool:
    """Return whether the program has set a level that counts for the worker's log."""
    package, root = logging.getLogger("taskqueue_client"), logging.getLogger()
    return bool(log.level or package.level or root.level != logging.WARNING)


def _has_handlers() -> bool:
    """Return whether the program has set where the worker's log is written, or that it is not written."""
    above = [*logging.getLogger("taskqueue_client").handlers, *logging.getLogger().handlers]
    return (
        logging.lastResort is None
        or any(each not in _defaults for each in log.handlers)
        or any(getattr(each, "shows_worker_log", True) for each in above)
    )


class UnlockedHandler(logging.Handler):
    """A handler without logging's lock."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the record if it passes the filters."""
        found: Any = self.filter(record)  # up to Python 3.11 a bool; since 3.12 a record or False
        if found:
            self.emit(record if found is True else found)
        return bool(found)


class StandardErrorLog(logging.Handler):
    """Writes log records, and drops them while nobody reads or the disk is full.

    Waiting would block the worker. After a dropped record, the reader is not waited for. When records can be
    written again, the number of dropped ones is logged first.
    """

    def __init__(self, file: int, encoding: str, patience: float = PATIENCE) -> None:
        super().__init__()
        self._file = file
        self._encoding = encoding
        self._patience = patience
        self._dropped = 0
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop it."""
        if self._dropped and self._write(self._note()):
            self._dropped = 0
        if self._dropped or not self._write(record):
            self._dropped += 1

    def _note(self) -> logging.LogRecord:
        text = "missing in this log, because nobody read standard error, or it failed: %s"
        lines = counted(self._dropped, "line")
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lines,), None)

    def _write(self, record: logging.LogRecord) -> bool:
        """Write a record; return whether all of it was written."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - as in logging's handlers: the program goes on
            line = self.format(note_of_unformattable(record, error))
        text = "\n" * self._is_cut + line + "\n"
        content = rest = memoryview(text.encode(self._encoding, "backslashreplace"))  # no copies
        until = time.monotonic() + (0 if self._dropped else self._patience)
        with suppress(OSError):  # the reader is gone, or the disk is full
            while rest and is_read(self._file, until):
                rest = rest[os.write(self._file, rest[: select.PIPE_BUF]) :]  # a longer write could block
        self._is_cut = bool(rest) and (self._is_cut or len(rest) < len(content))
        return not rest


def note_of_unformattable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """Return a record about a wrong one.

    `handleError` of logging would wait for the reader of standard error, does not write JSON, and shows the
    arguments, which may contain secrets.
    """
    text = "a log record of %s, line %s, cannot be formatted: %s: %s"
    return _note(record, text, record.pathname, record.lineno, type(error).__name__, error)


def _note(about: logging.LogRecord, text: str, *arguments: object) -> logging.LogRecord:
    """Return a record of Python's own kind, an error of the same logger and line."""
    return logging.LogRecord(
        about.name, logging.ERROR, about.pathname, about.lineno, text, arguments, exc_info=None
    )


def drop_unread_output() -> None:
    """Redirect standard output and error to /dev/null if nobody reads them; for the end of a worker.

    At the end of the process, Python writes what handlers have printed, and would wait for the reader.
    """
    for file in (1, 2):
        with suppress(OSError):  # it is closed
            if not is_read(file, time.monotonic() + PATIENCE):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, file)
                os.close(nothing)


def is_read(file: int, until: float) -> bool:
    """Return whether a file takes `select.PIPE_BUF` bytes, or fails at once; wait for that until a time."""
    poll = select.poll()  # a new one: a child that was forked during a wait could not use the same again
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(max(0, until - time.monotonic()) * 1000))
