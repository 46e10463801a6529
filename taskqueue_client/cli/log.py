"""`taskqueue log`."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import click

from taskqueue_client.artifacts import StorageFailed, StorageRefused, StreamInterrupted
from taskqueue_client.artifacts.buffers import Block
from taskqueue_client.artifacts.cancellation import Cancellation
from taskqueue_client.artifacts.storage import Get, Incoming
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import ResourceNotFound
from taskqueue_client.models import RunState, TaskStatus

from .arguments import run_option, task_argument
from .connection import connect
from .failures import ExitStatus, Failure
from .output import json_option, print_json
from .watch import interval_option

_LOG = "public/logs/live.log"
_PARTIAL, _NOT_MODIFIED = 206, 304


@click.command()
@task_argument
@run_option
@click.option("--name", default=_LOG, show_default=True, help="The artifact that is the log.")
@click.option("--follow/--no-follow", default=True, help="Go on while the task runs.  [default: follow]")
@interval_option
@json_option
def command(
    task_id: str, run_id: int | None, name: str, interval: float, *, follow: bool, as_json: bool
) -> None:
    """Print the log of a task.

    While the task is pending or runs, what its worker has made known of the log is printed bit by bit. With
    --json, prints an object with `line` for each line.
    """
    write = JsonLines() if as_json else _write_bytes
    with connect() as queue:
        status = queue.status(task_id).status
        log = FollowedLog(queue, task_id, _chosen_run(status, run_id), name, write)
        log.print(interval if follow else None, SystemClock())
    if isinstance(write, JsonLines):
        write.close()


def _chosen_run(status: TaskStatus, run_id: int | None) -> int:
    """The run: the last one unless asked otherwise, the first one of a task that has none yet."""
    last = max(len(status.runs) - 1, 0)
    if run_id is not None and run_id > last:
        message = f"task {status.task_id} has no run {run_id}; its last is {last}"
        raise Failure(message, ExitStatus.REFUSED)
    return last if run_id is None else run_id


def _write_bytes(block: bytes) -> None:
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


class JsonLines:
    """Prints bytes as JSON, one object for each line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def __call__(self, block: bytes) -> None:
        """Print the lines that end in this block."""
        *lines, self._rest = (self._rest + self._decoder.decode(block)).split("\n")
        for line in lines:
            print_json({"line": line})

    def close(self) -> None:
        """Print what is left when the log does not end with the end of a line."""
        if rest := self._rest + self._decoder.decode(b"", final=True):
            print_json({"line": rest})


class FollowedLog:
    """A log that may still grow, of which each byte is written once.

    Args:
        queue: The client.
        task_id: The task.
        run_id: The run.
        name: The artifact.
        write: Where it goes.
    """

    def __init__(
        self, queue: Queue, task_id: str, run_id: int, name: str, write: Callable[[bytes], object]
    ) -> None:
        self._queue = queue
        self._artifact = (task_id, name, run_id)
        self._write = write
        self._written = 0
        self._etag: str | None = None

    def print(self, interval: float | None, clock: Clock) -> None:
        """Write the log; with an interval in seconds, look for more until the run is resolved.

        Raises:
            Failure: The run is over, and has no such log.
            CallFailed: The Queue refused, or did not answer.
            ArtifactError: The log did not arrive.
        """
        while True:
            is_last = interval is None or self._is_resolved()
            found = self._write_what_is_new(is_last=is_last)
            if is_last:
                if not found:
                    task_id, name, run_id = self._artifact
                    message = f"run {run_id} of task {task_id} has no artifact {name}"
                    raise Failure(message, ExitStatus.REFUSED)
                return
            clock.sleep(interval or 0)

    def _is_resolved(self) -> bool:
        task_id, _, run_id = self._artifact
        runs = self._queue.status(task_id).status.runs
        return run_id < len(runs) and runs[run_id].state not in {RunState.PENDING, RunState.RUNNING}

    def _write_what_is_new(self, *, is_last: bool) -> bool:
        """Whether there is a log."""
        task_id, name, run_id = self._artifact
        try:
            if not (self._written and self._write_rest()):
                self._write_from(0, self._queue.stream_artifact(task_id, name, run_id=run_id))
        except ResourceNotFound:
            return False
        except StreamInterrupted:
            self._etag = None  # what is missing is asked for again, even of a log that does not grow
            if is_last:
                raise
        return True

    def _write_rest(self) -> bool:
        """Write what comes after that which was written; whether the storage can give just that.

        A worker replaces its log by a longer one, which is another file to the storage: so its first byte is
        asked for first, to see whether there is another file, and whether its parts are parts of the log.
        """
        task_id, name, run_id = self._artifact
        url = self._queue.artifact(task_id, run_id, name).url
        if url is None:
            return False
        known = {"If-None-Match": self._etag} if self._etag else {}
        begin = self._written - 1  # a byte that is there, even if nothing is new
        try:
            with self._part(url, "0-0", known) as first:
                self._etag = first.header("ETag")
                if not _is_part_of_the_log(first):
                    return False
                list(first.blocks())  # so that the connection can be used again
            with self._part(url, f"{begin}-", {}) as rest:
                if not _is_part_of_the_log(rest):
                    return False
                self._write_from(begin, rest.blocks(is_impatient=True))
        except StorageFailed as error:
            return isinstance(error, StorageRefused) and error.status == _NOT_MODIFIED
        return True

    def _part(self, url: str, span: str, headers: Mapping[str, str]) -> AbstractContextManager[Incoming]:
        get = Get(url, {"Range": f"bytes={span}", **headers}, self._queue.transfer_settings.timeouts)
        return self._queue.storage.get(get, Cancellation())

    def _write_from(self, position: int, blocks: Iterable[Block]) -> None:
        """Write what is new of the log from this position on."""
        for block in blocks:
            self._write(bytes(block[max(self._written - position, 0) :]))
            position += len(block)
            self._written = max(self._written, position)


def _is_part_of_the_log(incoming: Incoming) -> bool:
    """Not if it is all of it, or a part of a compressed file."""
    return incoming.status == _PARTIAL and incoming.header("Content-Encoding") in {None, "", "identity"}
