"""`taskqueue log`: the log of a run, read as it is, or followed until the run is resolved.

Of a log that grows, only the new part is requested, and each line is written once.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import click
from msgspec.structs import replace

from taskqueue_client.artifacts import StorageFailed, StorageRefused, StreamInterrupted
from taskqueue_client.artifacts.content import LOG_LINK, LOG_NAME, BadGzip, Gunzip
from taskqueue_client.artifacts.sources import Block
from taskqueue_client.artifacts.storage import Incoming
from taskqueue_client.artifacts.transfers import Transfer
from taskqueue_client.artifacts.uploading import RunArtifact
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import ResourceNotFound, TaskQueueError
from taskqueue_client.models import ArtifactContent, RunState, StorageType, TaskState, TaskStatus

from .arguments import connect, run_option, task_argument
from .failures import ExitStatus, Failure, in_one_line
from .output import TerminalFilter, json_option, print_json
from .status import PatientLook, blockers_of, interval_option

LONG_POLL = 20
"""Seconds that a worker which streams its log may wait for new lines before it responds."""

COMPARED = 64
"""Old bytes that are requested with the new ones, to check that the log was not replaced."""

_GZIP_END = 10
"""Bytes at the end of a gzip stream that change when it grows: an empty block, checksum and length."""

_PARTIAL, _NOT_MODIFIED, _NO_SUCH_RANGE = 206, 304, 416


@click.command()
@task_argument
@run_option
@click.option("--name", default=LOG_LINK, show_default=True, help="The name of the log artifact.")
@click.option(
    "--follow/--no-follow", default=True, help="Wait for new lines of a running task.  [default: follow]"
)
@interval_option
@json_option
def command(
    task_id: str, run_id: int | None, name: str, interval: float, *, follow: bool, as_json: bool
) -> None:
    """Print the log of a task.

    While the task is pending or running, new lines are printed as its worker streams or uploads them, and
    standard error says what the command waits for. A task that is blocked, because a dependency failed, is
    not waited for. With --json, prints an object with `line` for each line.

    On a terminal, colors of the log are shown, and its other control sequences are removed. A pipe or file
    gets all bytes of the log.
    """
    with connect() as queue, _writer(as_json=as_json) as write:
        status = queue.status(task_id).status
        tell = partial(click.echo, err=True)
        log = FollowedLog(queue, task_id, _chosen_run(status, run_id), name, write, tell)
        log.print(interval if follow else None, SystemClock(), status)


def _chosen_run(status: TaskStatus, run_id: int | None) -> int:
    """Return the chosen run; by default the latest, or the first of a task without runs."""
    last = max(len(status.runs) - 1, 0)
    if run_id is not None and run_id > last:
        raise Failure(
            f"task {status.task_id} has no run {run_id}; its latest run is {last}", ExitStatus.REFUSED
        )
    return last if run_id is None else run_id


@contextmanager
def _writer(*, as_json: bool) -> Generator[Callable[[bytes], object]]:
    """Yield a function that writes a block of the log; end the output afterwards."""
    if as_json:
        lines = JsonLines()
        try:
            yield lines
        except (TaskQueueError, Failure):  # after Ctrl-C, printing may wait for a reader
            lines.close()  # the last line of a log that is cut off may say why
            raise
        lines.close()
    elif sys.stdout.isatty():
        terminal = TerminalFilter()
        try:
            yield lambda block: _write_bytes(terminal.filtered(block))
        finally:  # also after Ctrl-C
            _write_bytes(terminal.end())
    else:
        yield _write_bytes


def _write_bytes(block: bytes) -> None:
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


class JsonLines:
    """Prints bytes as JSON, one object per line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []  # in parts: a line may be as long as the log

    def __call__(self, block: bytes) -> None:
        """Print the lines that are complete after this block."""
        rest, *lines = self._decoder.decode(block).split("\n")
        self._line.append(rest)
        for line in lines:
            print_json({"line": "".join(self._line)})
            self._line = [line]

    def close(self) -> None:
        """Print the last line if the log does not end with a newline."""
        if rest := "".join([*self._line, self._decoder.decode(b"", final=True)]):
            print_json({"line": rest})


class FollowedLog:
    """A log that may still grow; each line is written once. `tell` gets texts about what is waited for."""

    def __init__(
        self,
        queue: Queue,
        task_id: str,
        run_id: int,
        name: str,
        write: Callable[[bytes], object],
        tell: Callable[[str], object],
    ) -> None:
        self._queue = queue
        self._task_id = task_id
        self._run_id = run_id
        self._which = f"run {run_id} of task {task_id}"
        self._name = name
        self._log = GrowingLog(LineWriter(write))
        self._tell = tell
        self._told = set[str]()
        self._has_log = False  # whether any part of a log was found
        self._is_live = False
        self._prefer = {"Prefer": f"wait={LONG_POLL}"}
        self._has_told_of_dead_stream = False

    def print(self, interval: float | None, clock: Clock, known: TaskStatus | None = None) -> None:
        """Write the log; with an interval in seconds, ask for more until the run is resolved.

        If the `known` status of the task says that the run is not resolved, an outage is waited out at once.
        """
        if interval is None:
            self._print_last()
            return
        unresolved = known if known is not None and self._is_unresolved(known) else None
        look = PatientLook(self._look, clock, unresolved)
        while self._is_unresolved(look()):
            clock.sleep(interval)

    def _look(self) -> TaskStatus:
        """Return the task's status, and write what is new in the log; all the rest if the run is resolved."""
        status = self._queue.status(self._task_id).status
        if self._is_unresolved(status):
            self._has_log = self._print_new() or self._has_log
            self._check_blocked(status)
            if not self._is_live:
                self._say(self._waiting_for(status))
            return status
        try:
            self._print_last()
        finally:  # also after an error: a killed worker may have left no log
            self._tell_of_retry(status)
        return status

    def _check_blocked(self, status: TaskStatus) -> None:
        is_waiting = status.state is TaskState.UNSCHEDULED
        if is_waiting and (blocked_by := blockers_of(self._queue, self._task_id)):
            message = f"task {self._task_id} is blocked by {blocked_by}"
            raise Failure(message, ExitStatus.NOT_COMPLETED)

    def _say(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            self._tell(words)

    def _is_unresolved(self, status: TaskStatus) -> bool:
        runs = status.runs
        return self._run_id >= len(runs) or runs[self._run_id].state in {RunState.PENDING, RunState.RUNNING}

    def _tell_of_retry(self, status: TaskStatus) -> None:
        if self._run_id + 1 < len(status.runs):
            ended, latest = status.runs[self._run_id], status.runs[-1]
            self._say(  # once, though the rest of the log is requested again and again in an outage
                f"run {ended.run_id} of task {self._task_id} has ended ({ended.reason_resolved}), and run "
                f"{latest.run_id} is {latest.state}; to follow it, run taskqueue log {self._task_id}"
            )

    def _waiting_for(self, status: TaskStatus) -> str:
        if self._run_id >= len(status.runs):
            return f"waiting: task {self._task_id} is {status.state}"
        run = status.runs[self._run_id]
        words = f"waiting: {self._which} is {run.state}"
        if run.state == RunState.PENDING:
            return f"{words} in the task queue {status.task_queue_id}"
        words = f"{words} on worker {run.worker_group}/{run.worker_id}"
        if self._has_log:
            return f"{words}, which uploads new lines now and then"
        return f"{words}, which has not uploaded a log yet"

    def _print_last(self) -> None:
        self._prefer = {}  # do not wait for new lines
        places = self._places()
        if not places:
            message = f"{self._which} ({self._state()}) has no artifact {self._name}"
            raise Failure(message, ExitStatus.REFUSED)
        name, content = places[-1]
        if name != self._name:
            self._say(f"{self._name} refers to the worker's stream; printing the uploaded {name}")
        try:
            self._print_whole(name, content)
        except (StorageFailed, StreamInterrupted) as error:
            if content.storage_type != StorageType.REFERENCE or name != LOG_LINK:
                raise
            message = f"the log of {self._which} was not uploaded, and its worker does not stream it any more"
            raise Failure(f"{message}: {in_one_line(error)}", ExitStatus.REFUSED) from error

    def _state(self) -> str:
        """Return why the run ended, or its state; that of the task if the task has no runs."""
        status = self._queue.status(self._task_id).status
        if self._run_id >= len(status.runs):
            return status.state
        run = status.runs[self._run_id]
        return run.reason_resolved or run.state

    def _places(self) -> list[tuple[str, ArtifactContent]]:
        """Return the artifacts with the log: the first is the best during the run, the last after the run.

        A worker that streams its log uploads it as well. After a worker was killed, `live.log` still refers
        to its stream, which has ended.
        """
        places: list[tuple[str, ArtifactContent]] = []
        with suppress(ResourceNotFound):
            places.append((self._name, self._artifact(self._name)))
            if self._name == LOG_LINK and places[0][1].storage_type == StorageType.REFERENCE:
                places.append((LOG_NAME, self._artifact(LOG_NAME)))
        return places

    def _artifact(self, name: str) -> ArtifactContent:
        """Return the artifact with the URL of its storage: a CDN may have cached that it did not exist."""
        content = self._queue.artifact(self._task_id, self._run_id, name)
        if content.storage_type != StorageType.S3:
            return content
        stored = RunArtifact(self._task_id, self._run_id, name).stored()
        return replace(content, url=self._queue.send(stored).url)

    def _print_whole(self, name: str, content: ArtifactContent) -> None:
        """Write the log to its end: request only the new part, or the whole log if that fails."""
        with suppress(StorageFailed, BadGzip):
            if self._take_new(content):
                self._log.finish()
                return
        self._write_all(name)

    def _write_all(self, name: str) -> None:
        self._log.write_all(self._queue.stream_artifact(self._task_id, name, run_id=self._run_id))

    def _print_new(self) -> bool:
        """Write new lines, as long as the worker streams them; return whether there is a log."""
        places = self._places()
        for name, content in places:
            try:
                if not self._take_new(content):
                    self._write_all(name)
            except BadGzip:  # another log has replaced this one
                self._log.begin_again()
            except (StorageFailed, StreamInterrupted) as error:  # not there yet, or the worker has ended
                self._is_live = False
                if len(places) > 1 and name == self._name:
                    self._tell_of_dead_stream(error)
                continue
            return True
        return self._log.received > 0

    def _tell_of_dead_stream(self, error: Exception) -> None:
        """Say once that only the uploaded log can be read."""
        if not self._has_told_of_dead_stream:
            self._has_told_of_dead_stream = True
            cause = in_one_line(error)
            self._tell(f"cannot read the worker's stream of the log, reading {LOG_NAME} instead: {cause}")

    def _take_new(self, content: ArtifactContent) -> bool:
        """Write what is new; return False if the artifact has no URL from which to request byte ranges."""
        if content.url is None:
            return False
        is_live = True
        while is_live:
            try:
                is_live = self._request(content.url)
            except StorageRefused as error:
                if error.status not in {_NO_SUCH_RANGE, _NOT_MODIFIED}:
                    raise
                if error.status == _NOT_MODIFIED or not self._log.received:  # or the log is empty
                    return True
                self._log.begin_again()  # the stored log is shorter: it is compressed now
        return True

    def _request(self, url: str) -> bool:
        """Make one request for what is new; return whether to make the next one at once.

        A stream without new lines is requested again only after a look at the run, which may have ended.
        """
        before = self._log.received
        headers = {**self._log.request_headers(), **self._prefer}
        with Transfer(self._queue).get(url, headers) as incoming:
            self._is_live = incoming.header("Preference-Applied") is not None
            if _is_page(incoming):
                raise StorageFailed("GET", url, "received a web page, which is not the log")
            if self._is_live:
                self._say(f"{self._which} is running; its worker streams the log")
            if self._log.take(incoming):
                return self._is_live and self._log.received > before
        self._log.begin_again()
        return True


def _is_page(incoming: Incoming) -> bool:
    """Return whether a response is a web page, as from the login page of a network, not a part of a log."""
    kind = incoming.header("Content-Type") or ""
    return kind.lower().startswith("text/html") and incoming.header("Content-Range") is None


class GrowingLog:
    """The received part of a log, by byte ranges of the stored content, which may be gzip.

    Attributes:
        received: The number of received bytes, without those that change when the log grows.
    """

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._etag: str | None = None
        self._begin(None)

    def _begin(self, encoding: str | None) -> None:
        self._encoding = encoding
        self._gunzip = None if encoding is None else Gunzip()
        self.received = 0
        self._compared = b""  # the last received bytes, requested again to compare them
        self._held = b""  # further received bytes, which may differ in a longer log: the end of gzip

    def begin_again(self) -> None:
        """Expect the log from its start, as another log has replaced it."""
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
        self._etag = None  # until the response is complete
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
            raise BadGzip("the end is missing")

    def write_all(self, blocks: Iterable[Block]) -> None:
        """Write what is new in the whole log, whose blocks are decoded already."""
        self.begin_again()
        for block in blocks:
            self._writer.write(bytes(block))

    def _continues(self, blocks: Iterator[Block]) -> bool:
        """Return whether a response begins with the old bytes; then write the first new ones."""
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


class LineWriter:
    """Writes a text that may begin again at its start; skips as many lines as were written before.

    Lines are counted, as the last upload of a log has the same lines as the uploads before, but shorter ones:
    only the last state of a progress bar is left.
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
        self._skipped_lines -= count
        return b"" if self._skipped_lines else block.split(b"\n", count)[-1]

    def _without_old_bytes(self, block: bytes) -> bytes:
        if not self._skipped_bytes or self._skipped_lines:
            return block
        newline = block.find(b"\n")
        count = min(self._skipped_bytes, len(block) if newline < 0 else newline)
        self._skipped_bytes = 0 if count == newline else self._skipped_bytes - count
        return block[count:]
