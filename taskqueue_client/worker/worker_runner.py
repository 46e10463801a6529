"""The worker-runner protocol: messages between a worker and the process that started it (`start-worker`).

A message is a line `~{…}`, a JSON object with a `type`: on standard input to the worker, on standard output
to the runner. The runner says `welcome` with its capabilities; the worker sends `hello` with those that both
have. After that, messages of these capabilities are sent; none has a response. Other lines are plain text.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, cast

from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.credentials import Credentials, checked
from taskqueue_client.errors import InvalidArgument

from .worker_log import UnlockedHandler, handled_run, is_read, log, log_handler, note_of_unformattable

CAPABILITIES = frozenset({"error-report", "graceful-termination", "log", "new-credentials", "shutdown"})

MOST_WAITING = 10_000
"""The most messages that wait for a runner that reads slowly; further log lines go to standard error."""

MOST_HELD = 100
"""The most messages that wait for `welcome`; the oldest ones are dropped."""

LONGEST_LINE = 1024 * 1024
"""Bytes of a line from the runner at most; a message with credentials has a few thousand."""

LONGEST_TITLE = 128
LONGEST_DESCRIPTION = 10_240
"""Characters of an error report at most: worker-manager refuses longer ones, and the error would be lost."""

TIME_TO_FLUSH = 5.0
"""Seconds that a worker's end waits for a runner that does not read."""

_LOOK = 0.1  # seconds between looks whether a runner that does not read is still waited for

_SHOWN = 200  # characters of a line of plain text that are logged


@dataclass(frozen=True, slots=True)
class Reply:
    """Lines to send: `hello`, and the messages that waited for it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Termination:
    """`graceful-termination`: claim no more; running tasks may finish, or are stopped now."""

    finish_tasks: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """A line that asks for nothing, or for something impossible; `why` shows no secret."""

    why: str
    level: int = logging.INFO


RunnerEvent = Reply | Termination | Credentials | Ignored
"""What a line means; credentials, in `new-credentials`, are for the worker's own calls from now on."""


class RunnerProtocol:
    """The worker's side of the protocol, without I/O; not safe for several threads."""

    def __init__(self) -> None:
        self._partial = bytearray()  # an incomplete line; if it is too long, one byte more than is allowed
        self._agreed: frozenset[str] | None = None
        self._held: deque[tuple[str, bytes]] = deque(maxlen=MOST_HELD)

    def feed(self, data: bytes) -> list[RunnerEvent]:
        """Take bytes from the runner, cut anywhere; return what the complete lines mean."""
        first, *others = data.split(b"\n")
        events = self._extended(first)
        for piece in others:
            events += [*self._ended(), *self._extended(piece)]
        return events

    def _extended(self, piece: bytes) -> list[RunnerEvent]:
        room = LONGEST_LINE - len(self._partial)
        self._partial += piece[: room + 1]
        is_too_long = len(piece) > room >= 0  # and was not before: once for each line
        return [Ignored(f"a line of more than {LONGEST_LINE} bytes", logging.WARNING)] if is_too_long else []

    def _ended(self) -> list[RunnerEvent]:
        line, self._partial = self._partial, bytearray()
        stripped = bytes(line).strip()
        return [self._event(stripped)] if stripped and len(line) <= LONGEST_LINE else []

    def message(self, kind: str, body: Mapping[str, Any]) -> bytes | None:
        """Return the line to send; None if the runner cannot take it.

        Before `welcome`, a message other than `log` is stored, and becomes a part of the `Reply`.
        """
        line = _line(kind, body)
        if self._agreed is None and kind != "log":
            self._held.append((kind, line))
        return line if self._agreed is not None and kind in self._agreed else None

    @property
    def holds_report(self) -> bool:
        """Whether an error report waits for `welcome`."""
        return self._agreed is None and any(kind == "error-report" for kind, _ in self._held)

    def _event(self, line: bytes) -> RunnerEvent:
        message = _message_in(line)
        if message is None:
            return Ignored(_described(line))
        kind = message["type"]
        if kind == "welcome":
            return self._welcome(message)
        if self._agreed is None or kind not in self._agreed:
            return Ignored(f"a message of type {kind!r}, which was not agreed upon")
        if kind == "graceful-termination":
            return Termination(finish_tasks=message.get("finish-tasks") is True)
        if kind == "new-credentials":
            return _credentials_in(message)
        return Ignored(f"a message of type {kind!r}, which only a worker sends")

    def _welcome(self, message: Mapping[str, Any]) -> RunnerEvent:
        if self._agreed is not None:
            return Ignored("a second welcome")
        capabilities = message.get("capabilities")
        offered = cast("list[object]", capabilities) if isinstance(capabilities, list) else []
        self._agreed = frozenset(each for each in CAPABILITIES if each in offered)
        hello = _line("hello", {"capabilities": sorted(self._agreed)})
        return Reply(hello + b"".join(line for kind, line in self._held if kind in self._agreed))


def _line(kind: str, body: Mapping[str, Any]) -> bytes:
    return b"~" + json.dumps({"type": kind, **body}, default=str).encode() + b"\n"


def _message_in(line: bytes) -> dict[str, Any] | None:
    """Return the message that a line is; None for plain text."""
    if not (line.startswith(b"~{") and line.endswith(b"}")):
        return None
    try:
        found = json.loads(line[1:])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found.get("type"), str) else None


def _described(line: bytes) -> str:
    """Describe plain text; a broken message may contain an access token, and is not shown."""
    if b"~" in line or b"{" in line or b"access" in line:
        return f"a line of {len(line)} bytes, which is not a message"
    return f"a line of text: {line[:_SHOWN].decode(errors='replace')}"


def _credentials_in(message: Mapping[str, Any]) -> RunnerEvent:
    names = ("client-id", "access-token", "certificate")
    client_id, token, certificate = (message.get(name) or None for name in names)
    try:
        return checked(Credentials(client_id, token, certificate))  # type: ignore[arg-type] # checked
    except InvalidArgument as error:
        return Ignored(f"new credentials that cannot be used: {error}", logging.ERROR)


class WorkerRunner:
    """A worker's connection to the runner that started it; for `WorkerLoop(runner=…)`.

    Args:
        reading: A file descriptor of messages from the runner.
        writing: A file descriptor of messages to the runner. Nothing else may write to it.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._protocol = RunnerProtocol()
        self._lock = threading.RLock()  # a finalizer may log while a message is made
        self._outbox: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._is_broken = False
        self._welcomed = threading.Event()  # also set when the runner has closed its end
        self._writer: threading.Thread | None = None
        self._reader: threading.Thread | None = None
        forget_in_children(self)

    def forget(self) -> None:
        """Let go of the pipes: called in a child that a handler forks, which has no thread that writes.

        The runner waits until nobody has the worker's output open, and the child may outlive the worker.
        """
        self._lock = threading.RLock()
        self._is_broken = True
        with suppress(OSError):  # no file descriptor is free
            nothing = os.open(os.devnull, os.O_RDWR)
            for each in (self._reading, self._writing):
                os.dup2(nothing, each, inheritable=False)
            os.close(nothing)

    @classmethod
    def on_stdio(cls) -> Self:
        """Return a connection that owns standard input and output; call it before anything is printed.

        From now on, the output of this process and its children goes to standard error, and their standard
        input is empty.
        """
        sys.stdout.flush()
        reading, writing = os.dup(0), os.dup(1)
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return cls(reading, writing)

    def start(
        self,
        *,
        on_termination: Callable[[bool], object],
        on_credentials: Callable[[Credentials], object],
        on_closed: Callable[[], object],
    ) -> None:
        """Read and write in two daemon threads; called again, start only those that are missing.

        Args:
            on_termination: Called with whether running tasks may finish.
            on_credentials: Called with the worker's new credentials.
            on_closed: Called when the runner has closed its end.
        """

        def handle(event: RunnerEvent) -> None:
            match event:
                case Termination():
                    on_termination(event.finish_tasks)
                case Credentials():
                    on_credentials(event)
                case Ignored():
                    log.log(event.level, "ignored from worker-runner: %s", event.why)
                case Reply():
                    log.info("connected to worker-runner")

        if self._writer is None:
            self._writer = _started("writer", self._write)
        if self._reader is None:
            self._reader = _started("reader", partial(self._read, handle, on_closed))

    def send_log(self, body: Mapping[str, Any]) -> bool:
        """Send a log line; return whether the runner takes it. Its text is the body's `textPayload`."""
        return self._send("log", {"body": body})

    def report_error(self, title: str, description: str, extra: Mapping[str, Any]) -> None:
        """Have the runner report an internal error to worker-manager; of long texts, the beginning."""
        texts = {"title": title[:LONGEST_TITLE], "description": description[:LONGEST_DESCRIPTION]}
        self._send("error-report", {"kind": "internal-error", **texts, "extra": extra})

    def request_shutdown(self) -> None:
        """Ask the runner to remove this worker's machine: the worker has no more use for it."""
        self._send("shutdown", {})

    def flush(self) -> None:
        """Wait until all messages are written; log those that the runner has not read after 5 s.

        An error report waits for `welcome` as long: a worker may fail before it has read that.
        """
        if self._writer is None or not self._writer.is_alive():  # in a forked child, it is the parent's
            return
        with self._lock:
            waits_for_welcome = self._protocol.holds_report
        if waits_for_welcome:
            self._welcomed.wait(TIME_TO_FLUSH)
        written = threading.Event()
        self._outbox.put(written)
        if not written.wait(TIME_TO_FLUSH):
            self._is_broken = True
            log.warning("worker-runner has not read all messages after %.0f s: logging them", TIME_TO_FLUSH)
            written.wait(TIME_TO_FLUSH)

    def _send(self, kind: str, body: Mapping[str, Any]) -> bool:
        with self._lock:
            line = self._protocol.message(kind, body)
            is_taken = line is not None and self._enqueue(line)
        if line is not None and not is_taken and kind != "log":
            _log_unsent(line)
        return is_taken

    def _enqueue(self, line: bytes) -> bool:
        if self._is_broken or self._outbox.qsize() >= MOST_WAITING:
            return False
        self._outbox.put(line)
        return True

    def _read(self, handle: Callable[[RunnerEvent], None], on_closed: Callable[[], object]) -> None:
        while data := self._received():
            for event in self._events(data):
                handle(event)
        self._welcomed.set()
        log.warning("worker-runner has closed its pipe")
        on_closed()

    def _received(self) -> bytes:
        try:
            return os.read(self._reading, 65536)
        except OSError:
            return b""

    def _events(self, data: bytes) -> list[RunnerEvent]:
        with self._lock:
            events = self._protocol.feed(data)
            for event in events:
                if isinstance(event, Reply):  # with the lock: other messages must come after `hello`
                    self._enqueue(event.data)
                    self._welcomed.set()
            return events

    def _write(self) -> None:
        while True:
            item = self._outbox.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._write_line(item)

    def _write_line(self, line: bytes) -> None:
        rest = line
        try:
            while rest and not self._is_broken:
                if is_read(self._writing, time.monotonic() + _LOOK):
                    rest = rest[os.write(self._writing, rest[: select.PIPE_BUF]) :]  # more could block
        except OSError as error:
            self._is_broken = True
            log.warning("cannot write to worker-runner, logging to standard error: %s", error)
        if rest:
            _log_unsent(line)


def _started(name: str, work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"taskqueue runner {name}", daemon=True)
    thread.start()
    return thread


def _log_unsent(line: bytes) -> None:
    log.warning("not sent to worker-runner: %s", line.decode().rstrip())


class JsonFormatter(logging.Formatter):
    """Formats a log record as a line of JSON, with the worker, and the task and run that it is about."""

    def __init__(self, worker_id: str | None = None) -> None:
        super().__init__()
        self._worker_id = worker_id

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, in ASCII: without what controls a terminal, and valid in each encoding."""
        return json.dumps(self.document(record)).replace("\x7f", "\\u007f")

    def document(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the object of the line."""
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker_id is not None:
            document["worker_id"] = self._worker_id
        handled = handled_run.get() or (None, None)
        for name, of_handler in zip(("task_id", "run_id"), handled, strict=True):
            if (value := getattr(record, name, of_handler)) is not None:
                # A program may set it to anything in `extra`.
                document[name] = value if isinstance(value, str | int) else str(value)
        if record.exc_info:
            document["traceback"] = record.exc_text or self.formatException(record.exc_info)
        return document


class RunnerLog(UnlockedHandler):
    """Sends log records to the runner; writes them to standard error while the runner cannot take them.

    While nobody reads standard error either, records are dropped, and their number is logged afterwards.
    """

    # Without a lock: `logging.shutdown` would hold it while `close` waits for the writer thread, which logs.

    _json = JsonFormatter()

    def __init__(self, runner: WorkerRunner) -> None:
        super().__init__()
        self._runner = runner
        self._standard_error = log_handler()

    def emit(self, record: logging.LogRecord) -> None:
        """Send or write a record."""
        try:
            body = self._json.document(record)
        except Exception as error:  # noqa: BLE001 - as in logging's handlers: the program goes on
            body = self._json.document(note_of_unformattable(record, error))
        if not self._runner.send_log({"textPayload": body.pop("message"), **body}):
            self._standard_error.setFormatter(self.formatter)
            self._standard_error.handle(record)

    def close(self) -> None:
        """Send everything; called when the process ends."""
        self._runner.flush()
        super().close()
