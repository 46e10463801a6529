"""The processes of a run: finding and ending all of them, also if the worker is killed.

On Linux, /proc and control groups list them. Elsewhere, only the process group of each command is known.
"""

from __future__ import annotations

import fcntl
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO

from taskqueue_client.worker.outcomes import InternalError
from taskqueue_client.worker.worker_log import log

from . import linux_processes as linux
from .command_process import TICK, end_processes, never, unnamed_file
from .guardian_process import GROUP_SIZE
from .linux_processes import ControlGroup, path_of

MARK = "TASKQUEUE_RUN"
"""The environment variable that marks the processes of a run: children inherit it from commands."""

GUARDIAN_ENDS_WITHIN = 15.0
"""Seconds that the guardian process gets to kill what is left and end; it searches for ten at most."""

_SCRIPT = Path(__file__).with_name("guardian_process.py")

_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables that Python may need to start. Others could be secrets, and commands could read them."""


class RunProcesses:
    """All processes that the commands of a run have started, directly or indirectly.

    They are found by `MARK` in their environment, which children inherit unless it is cleared. If this
    process may create a control group, they are also found by the group, which they cannot leave. If this
    process is killed, the guardian kills them: `mark` begins with the guardian's mark. No mark of another run
    on this machine begins with `mark`. Safe to use from any thread.

    Attributes:
        variable: The environment variable that marks the processes.
    """

    def __init__(self, mark: str, guardian: Guardian) -> None:
        self.variable = {MARK: mark}
        self._marked = f"{MARK}={mark}"
        self._guardian = guardian
        self._groups: list[ControlGroup] = []  # one, or none where this process may not create it
        self._is_watched = False
        self._has_ended = False
        self._lock = threading.Lock()
        self._first_look = 0

    def watch(self) -> None:
        """Prepare for the first process.

        Raises:
            InternalError: `end` was called: nothing would end the process.
        """
        with self._lock:
            self.check_open()
            if not self._is_watched:
                self._first_look = linux.listing.looks + 1
                self._guardian.begin_run(self._marked)
                group = ControlGroup.create(f"{self._guardian.control_groups}{time.monotonic_ns()}")
                self._groups = [] if group is None else [group]
                self._is_watched = True

    def entered(self) -> AbstractContextManager[None]:
        """Return a context in which this thread starts processes in the run's control group."""
        return self._groups[0].entered() if self._groups else nullcontext()

    def remove_left(self) -> None:
        """Remove the control group if `end` could not, as this thread was in it. Call it after `entered`."""
        if not self._is_watched:
            _remove(self._groups)

    def check_open(self) -> None:
        """Raise InternalError if `end` was called: a process that has just started was perhaps not found."""
        if self._has_ended:
            raise InternalError("the handler has ended: no more commands can be run")

    def end(self, grace: float, is_hurried: Callable[[], bool] = never) -> int:
        """End all processes, with `grace` seconds between SIGTERM and SIGKILL; return how many have ended.

        For `is_hurried`, see `end_processes`.

        If a thread of the handler is just starting a command, `check_open` refuses its process.

        Raises:
            OSError: No file descriptor is free to find them; they are killed when this process ends.
        """
        with self._lock:
            self._has_ended = True
        if not self._is_watched:
            return 0
        count = end_processes(self._living, grace, partial(time.sleep, TICK), is_hurried)
        self._unwatch()
        return count

    def end_at_once(self) -> bool:
        """Do what `end` does if no process is left; return False if some are left.

        Raises:
            OSError: As `end`.
        """
        with self._lock:
            self._has_ended = True
        if self._is_watched:
            if self._living():
                return False
            self._unwatch()
        return True

    def _living(self) -> list[int]:
        return _living(self._marked, self._groups, self._first_look)

    def _unwatch(self) -> None:
        with self._lock:  # the handler's thread and that of `end` may come here at the same time
            if self._is_watched:
                self._is_watched = False
                self._guardian.end_run(self._marked, _remove(self._groups))


def kill_marked(mark: str) -> None:
    """Kill the processes of a worker whose guardian had this mark, and was killed as well."""
    groups = ControlGroup.existing(_control_groups(mark))
    end_processes(partial(_living, f"{MARK}={mark}", groups), 0, partial(time.sleep, TICK))
    _remove(groups)


def _living(marked: str, groups: Sequence[ControlGroup], first_look: int = 0) -> list[int]:
    """Return the processes that `_marked` finds and those in the groups, parents before their children."""
    in_groups = (pid for group in groups for pid in group.processes())
    return sorted({*_marked(marked, first_look), *in_groups})


def _remove(groups: Sequence[ControlGroup]) -> list[ControlGroup]:
    """Remove groups; return those that are still there."""
    return [each for each in groups if not each.remove()]


def _control_groups(mark: str) -> str:
    """Return the beginning of the names of the control groups of a guardian with this mark.

    They follow from the mark, which the next worker in the same parent directory knows.
    """
    return f"taskqueue-{sha256(os.fsencode(mark)).hexdigest()[:16]}-"


def _marked(variable: str, first_look: int = 0) -> Iterator[int]:
    """Yield the ids of other processes with an environment variable that begins with this text, `NAME=value`.

    Not found are another user's processes, those that cleared their environment or let nobody read it, such
    as `ssh-agent`, and those that were listed before `first_look`.

    Raises:
        OSError: No file descriptor is free.
    """
    wanted = b"\0" + os.fsencode(variable)  # as in /proc/PID/environ
    with suppress(FileNotFoundError):  # not Linux: there is no /proc
        for pid in linux.pids(first_look):
            try:
                environment = linux.environment(pid)
            except linux.GONE_OR_HIDDEN:
                continue
            if wanted in b"\0" + environment:
                yield pid


class Guardian:
    """Kills processes that this process leaves behind, for example when it is ended by `kill -9`.

    It starts the guardian process. If that fails, a warning says so once, and commands run without it. Close
    it. Safe to use from any thread.

    The guardian process does nothing until this process ends. Then it reads the process groups of the running
    commands from a file that both share: messages would wake it up twice for each command.

    Args:
        mark: Processes whose `MARK` begins with this are killed if this process ends without `close`. So
            the guardian process needs no list of runs.

    Attributes:
        control_groups: The beginning of the names of the control groups whose processes are killed, too.
    """

    def __init__(self, mark: str) -> None:
        self.control_groups = _control_groups(mark)
        self._lock = threading.Lock()
        self._marked = f"{MARK}={mark}"
        self._groups: list[int] = []  # of the shared file; 0 is a free place
        self._file: IO[bytes] | None = None
        self._runs: list[str] = []
        self._left: list[ControlGroup] = []  # of ended runs, with processes that cannot be killed
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""

    def begin_run(self, marked: str) -> None:
        """Kill the processes with this environment variable, `NAME=value`, also at `close`."""
        with self._lock:
            self._runs.append(marked)
            self._start()
            self._remove_left()

    def end_run(self, marked: str, left: Sequence[ControlGroup] = ()) -> None:
        """Do not kill the processes of this run at `close`; remove the groups that it has left later."""
        with self._lock:
            self._runs.remove(marked)
            self._left += left

    def add(self, group: int) -> None:
        """Kill this process group if this process ends."""
        with self._lock:
            if 0 not in self._groups:
                self._groups.append(0)
            self._set(self._groups.index(0), group)
            self._start()

    def remove(self, group: int) -> None:
        """Do not kill this process group any more."""
        with self._lock:
            self._set(self._groups.index(group), 0)

    def close(self) -> None:
        """End the guardian process; it kills what is left of runs that are not ended. May be called again."""
        with self._lock:
            self._end()
            self._remove_left()

    def _remove_left(self) -> None:
        self._left = [each for each in self._left if not each.remove_empty()]

    def _set(self, place: int, group: int) -> None:
        self._groups[place] = group
        if self._file is not None:
            with self._warned("may outlive this worker if it is killed: their process groups are not stored"):
                os.pwrite(self._file.fileno(), _in_file(group), place * GROUP_SIZE)

    def _start(self) -> None:
        """Start the guardian process unless it runs: the first time, or after somebody has killed it."""
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        with self._warned("will outlive this worker if it is killed: no guardian process"):
            self._file = unnamed_file()
            self._file.write(b"".join(map(_in_file, self._groups)))
            self._file.flush()
            control_groups = path_of(self.control_groups) or ""
            self._process = _started(self._file, self._marked, control_groups)

    @contextmanager
    def _warned(self, what: str) -> Generator[None]:
        """Log an OSError of the block instead of raising it, but not the same one again."""
        try:
            yield
        except OSError as error:
            if self._failure != (failure := str(error)):
                log.warning("commands %s: %s", what, failure)
            self._failure = failure

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The last line is ".": the end of the input may not come, as a child that a handler has forked
            # may hold the pipe open.
            lines = "".join(f"{each}\0" for each in (*self._runs, "."))
            try:
                process.communicate(os.fsencode(lines), GUARDIAN_ENDS_WITHIN)
            except subprocess.TimeoutExpired:  # stopped, for example by SIGSTOP
                log.warning("the guardian process %d does not end: killing it", process.pid)
                process.kill()
                process.wait()
        if self._file is not None:
            self._file.close()
            self._file = None


def _in_file(group: int) -> bytes:
    return group.to_bytes(GROUP_SIZE, "little")


def _started(groups: IO[bytes], *arguments: str) -> subprocess.Popen[bytes]:
    if getattr(sys, "frozen", False) or not sys.executable:  # frozen: it would start this program again
        raise OSError("sys.executable is not a Python interpreter: this program is frozen, or embeds Python")
    # -I: without settings and packages of the user; -S: without site-packages
    command = [sys.executable, "-I", "-S", *_script(), *arguments]
    with ExitStack() as opened:
        # Not 0 to 2, which may be free here: they are the standard streams of the guardian process.
        handles = [fcntl.fcntl(groups, fcntl.F_DUPFD_CLOEXEC, 3)]
        opened.callback(os.close, handles[0])
        with suppress(AttributeError, OSError):  # not Linux, too old, or forbidden, as in some sandboxes
            # opened here: this process may be gone before the guardian process runs
            handles.append(os.pidfd_open(os.getpid()))
            opened.callback(os.close, handles[1])
        # The guardian process inherits the blocked signals, so none of them ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
        opened.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        return subprocess.Popen(  # noqa: S603 - this file's neighbor
            [*command, *map(str, handles)],
            bufsize=0,
            stdin=subprocess.PIPE,
            cwd="/",
            env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            start_new_session=True,
            pass_fds=handles,
        )


def _script() -> list[str]:
    """Return the arguments of Python that run the guardian, also if this package is in a zip file."""
    if _SCRIPT.is_file():
        return [str(_SCRIPT)]
    return ["-c", (pkgutil.get_data(__name__, _SCRIPT.name) or b"").decode()]
