"""One process of a command: started in its own session, its output copied, ended with its descendants."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack, suppress
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple, Self

from taskqueue_client.worker.outcomes import InternalError
from taskqueue_client.worker.worker_log import log

from . import linux_processes as linux

Write = Callable[[bytes], object]
"""Receives the output of a command in chunks."""

LOOK = 0.1
"""Seconds between checks whether to stop a command."""

CHUNK = 64 * 1024
"""Bytes to read at a time: the usual size of a pipe."""

FULL_PIPE = 1024 * 1024
"""Bytes that a pipe of an unprivileged user holds at most."""

BUSY = 2.0
"""Seconds for which the start of a program is retried."""

_MOMENTARY = {errno.ETXTBSY, errno.EAGAIN}
"""Errors that may be gone in a moment. ETXTBSY: the handler has written and closed the program, but a process
that another thread was starting has it open, too, until it executes its own program. EAGAIN: other runs have
started as many processes as the user or the container may have."""

_FORBIDDEN = (errno.EACCES, errno.ENOSYS, errno.EPERM)  # how sandboxes and old kernels refuse a system call

TICK = 0.02
"""Seconds between checks whether processes that got a signal are gone."""

GONE_WITHIN = 10.0
"""Seconds to wait for the end of a process after SIGKILL: a process may hang in the kernel for ever."""


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: Its exit code; the negative number of a signal that ended it.
        usage: Resources used by it and by those descendants that it waited for.
        duration: Seconds.
    """

    code: int
    usage: resource.struct_rusage
    duration: float


class CommandProcess:
    """A running command. Leaving the context ends all its processes. Used by one thread.

    `content` is its standard input. Its standard error goes to `stdout` by default. With `keep_children`, its
    children are not ended if it has ended by itself.

    Attributes:
        pid: Its process id, which is also the id of its process group and session.
        ended: How it ended; None as long as it runs.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        content: bytes,
        stdout: Write,
        stderr: Write | None = None,
        keep_children: bool = False,
    ) -> None:
        self.ended: Ended | None = None
        self._keep_children = keep_children
        self._started = time.monotonic()
        self._readers: dict[int, Write] = {}
        with ExitStack() as ends, ExitStack() as on_error:
            on_error.callback(self._close_pipes)
            end = self._new_pipe(stdout, ends)
            stdin: int | IO[bytes] = subprocess.DEVNULL
            if content:
                stdin = ends.enter_context(unnamed_file())
                stdin.write(content)
                stdin.seek(0)
            errors = end if stderr is None else self._new_pipe(stderr, ends)
            self._popen = _started(args, cwd, env, (stdin, end, errors))
            on_error.pop_all()
        self.pid = self._popen.pid
        self._tree = ProcessTree(self.pid)
        self._poll = select.poll()
        for each in self._readers:
            self._poll.register(each, select.POLLIN)
        self._handle = self._end_of_process()

    def _new_pipe(self, write: Write, ends: ExitStack) -> int:
        """Create a pipe whose content is passed to `write`; return the end for the command.

        `Popen` does not create it: before Python 3.11.4, it leaves its pipes open when descriptors run out.
        """
        start, end = os.pipe()
        self._readers[start] = write
        ends.callback(os.close, end)
        os.set_blocking(start, False)
        return end

    def _close_pipes(self) -> None:
        for each in self._readers:
            os.close(each)

    def wait(self, deadline: float, is_stopped: Callable[[], bool]) -> bool:
        """Copy output until the process ends; return False if `is_stopped` or the deadline came first.

        The deadline is on `time.monotonic`.
        """
        while not self._has_ended():
            left = deadline - time.monotonic()
            if left <= 0 or is_stopped():
                return False
            self._copy(min(left, LOOK))
        return True

    def end_tree(self, grace: float) -> bool:
        """Ask all processes of the tree to end, kill them after `grace` seconds; copy their output meanwhile.

        Return whether any have ended; zombies that their new parent has not reaped yet do not count.
        """
        if self._has_ended() and (self._keep_children or not self._tree.has_group()):
            return False
        return bool(end_processes(self._living, grace, lambda: self._copy(TICK)))

    def drain(self) -> None:
        """Copy the output so far, a full pipe at most: a process that left the tree may print forever."""
        for each in self._readers:
            left = FULL_PIPE
            while left > 0 and (count := self._read(each)):
                left -= count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end_tree(0)
        finally:
            self._unwatch()
            self._close_pipes()

    def _end_of_process(self) -> int | None:
        """Open a file descriptor that becomes readable when the process ends; None if the system has none."""
        with suppress(AttributeError, OSError):  # not Linux, or too old
            handle = os.pidfd_open(self.pid)
            self._poll.register(handle, select.POLLIN)
            return handle
        return None

    def _has_ended(self) -> bool:
        if self.ended is None:
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._popen.returncode = 1  # or subprocess warns that it still runs
                raise InternalError(
                    "this process ignores SIGCHLD, or waits for all children: exit codes are lost"
                ) from None
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.ended = Ended(code, usage, time.monotonic() - self._started)
                self._popen.returncode = code  # or subprocess waits for it again
                self._unwatch()
        return self.ended is not None

    def _unwatch(self) -> None:
        if self._handle is not None:
            self._poll.unregister(self._handle)
            os.close(self._handle)
            self._handle = None

    def _copy(self, seconds: float) -> None:
        """Wait up to `seconds` for output, and copy it."""
        for ready, _ in self._poll.poll(max(seconds, 0) * 1000):
            if ready in self._readers and not self._read(ready):
                self._poll.unregister(ready)  # all writers have closed the pipe

    def _read(self, pipe: int) -> int:
        with suppress(BlockingIOError):
            chunk = os.read(pipe, CHUNK)
            self._readers[pipe](chunk)
            return len(chunk)
        return 0

    def _living(self) -> list[int]:
        survivors = self._tree.survivors()
        return survivors if self._has_ended() or self.pid in survivors else [self.pid, *survivors]


def _started(
    args: Sequence[str], cwd: Path, env: Mapping[str, str], streams: tuple[int | IO[bytes], int, int]
) -> subprocess.Popen[bytes]:
    """Start a program; retry for `BUSY` seconds if that fails with a momentary error."""
    stdin, stdout, stderr = streams
    directory = os.fspath(cwd)  # a str, as errors show it
    until = time.monotonic() + BUSY
    while True:
        try:
            return subprocess.Popen(  # noqa: S603 - a worker is there to run commands
                args,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=directory,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno not in _MOMENTARY or time.monotonic() > until:
                raise
        time.sleep(TICK)


def unnamed_file() -> IO[bytes]:
    """Open a file without a name: in memory if the system can, as the content may be secret."""
    try:
        return os.fdopen(os.memfd_create("unnamed"), "w+b")
    except (AttributeError, OSError) as error:  # not Linux, or forbidden
        if isinstance(error, OSError) and error.errno not in _FORBIDDEN:
            raise
    return tempfile.TemporaryFile()


class ProcessTree:
    """A process that leads its session, and its descendants, even those that left the session.

    `survivors` finds the session, the group, processes that it has found before, and children of all these.
    A process that leaves the session and loses its parent between two calls is lost: see `RunProcesses`.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._known: set[tuple[int, int]] = set()

    def has_group(self) -> bool:
        """Return whether a process, if only a zombie, is in the leader's group. Faster than `survivors`."""
        try:
            os.killpg(self._leader, 0)
        except OSError as error:
            return isinstance(error, PermissionError)  # its processes run as another user
        return True

    def survivors(self) -> list[int]:
        """Return the ids of the processes that live, the oldest first, so that parents precede children.

        If /proc cannot be read, as on other systems or without a free file descriptor, the only id is that of
        the group, negative.
        """
        try:
            found = sorted(linux.living(), key=attrgetter("started", "pid"))
        except OSError:
            return [-self._leader] if self.has_group() else []
        tree = {
            each.pid
            for each in found
            if self._leader in (each.group, each.session) or (each.pid, each.started) in self._known
        }
        while children := {each.pid for each in found if each.parent in tree} - tree:
            tree |= children
        self._known = {(each.pid, each.started) for each in found if each.pid in tree}
        return [each.pid for each in found if each.pid in tree]


def never() -> bool:
    """Return False."""
    return False


def end_processes(
    living: Callable[[], list[int]],
    grace: float,
    wait: Callable[[], object],
    is_hurried: Callable[[], bool] = never,
) -> int:
    """Ask processes to end (SIGTERM), and kill those that are still there after `grace` seconds (SIGKILL).

    `living` returns the ids of those that are alive, parents before their children; `wait` waits a moment
    between two calls of `living`. If `is_hurried` returns True, `grace` ends. Return how many have ended.
    """
    asked, left = _signal(signal.SIGTERM, living, grace, wait, is_hurried)
    if left:
        killed, left = _signal(signal.SIGKILL, living, GONE_WITHIN, wait)
        asked |= killed
    if left:
        log.error("processes cannot be killed: %s", ", ".join(map(str, left)))
    return len(asked.difference(left))


def _signal(
    number: signal.Signals,
    living: Callable[[], list[int]],
    timeout: float,
    wait: Callable[[], object],
    is_hurried: Callable[[], bool] = never,
) -> tuple[set[int], list[int]]:
    """Send a signal to each process once; return the processes that got it, and those that still live.

    Parents get the signal before their children: a shell whose child ends first would run its next command.
    Children that a process starts after its SIGTERM get none while the process lives: they may clean up.
    """
    deadline = time.monotonic() + timeout
    told: set[int] = set()
    while (left := living()) and (not told or (time.monotonic() < deadline and not is_hurried())):
        new = [pid for pid in left if pid not in told]
        if told and number == signal.SIGTERM:
            new = [pid for pid in new if not _is_child(pid, left)]
        for pid in new:  # or the negative number of a group
            with suppress(ProcessLookupError, PermissionError):  # it is gone, or another user's
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # a stopped process gets SIGTERM only when it continues
        told.update(new)
        wait()
    return told, left


def _is_child(pid: int, parents: Container[int]) -> bool:
    """Return whether one of `parents` is the parent of the process."""
    try:
        return int(linux.stat(pid)[1]) in parents
    except OSError:  # it is gone, or there is no /proc
        return False
