"""The processes of this machine, as Linux shows them in `/proc`, and control groups (version 2).

Functions about processes raise an OSError if there is no `/proc`, or no file descriptor is free. Only
cached functions use pathlib, which would double the time that each run with a command spends here.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from glob import escape, glob
from pathlib import Path
from typing import NamedTuple

from .guardian_process import KILLED_WITHIN

PROC = "/proc"
COUNTERS = f"{PROC}/vmstat"

GONE_OR_HIDDEN = (ProcessLookupError, FileNotFoundError, PermissionError)
"""Errors of reading about a process that is gone or belongs to another user, as threads of the kernel do."""

_THIS_THREAD = b"0"
"""What `cgroup.threads` takes for the thread that writes it."""

STARTING = 1.0
"""Seconds to wait for the environment of a process that is about to start a program."""


def heed_sigterm() -> None:
    """Let SIGTERM end this process also if it is the first one of a container.

    Linux keeps signals without a handler from such a process: after a SIGTERM while it starts, a worker would
    claim runs, and be killed with them.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if os.getpid() == 1 and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _: object) -> None:
    if os.getpid() == 1:
        sys.exit(128 + number)
    signal.signal(number, signal.SIG_DFL)  # a forked child ends at once, as that of any other process
    signal.raise_signal(number)


def check_proc() -> None:
    """Raise an OSError unless /proc shows this process: a /proc of another PID namespace does not."""
    if os.readlink(f"{PROC}/self") != str(os.getpid()):
        raise FileNotFoundError(errno.ENOENT, "not mounted for this PID namespace", str(PROC))


def _read(path: str) -> bytes:
    """Return the content of a file that the kernel makes, such as one in `/proc`."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on: the name before may hold anything."""
    return _read(f"{PROC}/{pid}/stat").rpartition(b")")[2].split()


class Process(NamedTuple):
    """A process that lives."""

    pid: int
    parent: int
    group: int
    session: int
    started: int  # distinguishes a process from a later one with the same pid


def living() -> Iterator[Process]:
    """Yield all processes except zombies and this process."""
    for pid in pids():
        with suppress(*GONE_OR_HIDDEN):
            fields = stat(pid)
            # A process whose first thread has ended looks like a zombie while its other threads run.
            if fields[0] not in b"ZX" or int(fields[17]) > 1:
                parent, group, session, started = map(int, (*fields[1:4], fields[19]))
                yield Process(pid, parent, group, session, started)


def environment(pid: int) -> bytes:
    """Return the environment of a process; wait while `execve` is replacing its program."""
    deadline = time.monotonic() + STARTING
    while not (found := _environment(pid)) and _has_more(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


def _environment(pid: int) -> bytes:
    """Return the environment as it is now; empty if a new process of this user hides it for the moment.

    `protect_process` hides this process, and its new children as well until `execve` is done.
    """
    try:
        return _read(f"{PROC}/{pid}/environ")
    except PermissionError:
        is_ours = b"\nUid:\t%d\t" % os.getuid() in _read(f"{PROC}/{pid}/status")
        if is_ours and _age(pid) < STARTING:
            return b""
        raise


def _age(pid: int) -> float:
    """Return the seconds since a process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat(pid)[19]) / os.sysconf("SC_CLK_TCK")


def _has_more(pid: int) -> bool:
    """Return whether a process has an environment, or will have one, although none was read.

    While `execve` replaces the program, its memory has no place for an environment yet. A file that was
    opened before shows the former memory, of which nothing is left. A zombie has no memory.
    """
    fields = stat(pid)
    size, start, end = fields[20], fields[47], fields[48]
    return size != b"0" and (end == b"0" or start != end)


class Listing:
    """The processes of this machine, and the look at /proc that found each first.

    The environments of older processes need not be read again. The inode of its directory distinguishes a
    process from a later one with the same pid.

    Attributes:
        looks: How often /proc was listed.
    """

    def __init__(self) -> None:
        self.looks = 0
        self._first_looks: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def look(self, first_look: int) -> set[int]:
        """List /proc; return the ids of the processes that `first_look` or a later look has found first."""
        check_proc()
        with self._lock:
            with os.scandir(PROC) as entries:
                listed = [(int(each.name), each.inode()) for each in entries if each.name.isdecimal()]
            self.looks += 1
            self._first_looks = {each: self._first_looks.get(each, self.looks) for each in listed}
            return {pid for (pid, _), look in self._first_looks.items() if look >= first_look}


listing = Listing()


def pids(first_look: int = 0) -> Iterator[int]:
    """Yield the ids of all processes except this one, and then of those that have started meanwhile.

    Otherwise a process that starts another one and ends, as daemons do, would hide both: the first is gone
    when it is looked at, the second was not listed yet. Processes that were listed before `first_look` are
    left out.
    """
    seen = {os.getpid()}
    while new := listing.look(first_look) - seen:
        yield from sorted(new)
        seen |= new


def out_of_memory_kills() -> float:
    """Return how many processes the kernel has killed for lack of memory since its start; NaN if unknown."""
    with suppress(OSError):
        count, *_ = _read(COUNTERS).partition(b"\noom_kill ")[2].split(b"\n")
        return float(count or math.nan)
    return math.nan


def _process_of(thread: bytes) -> int:
    """Return the process of a thread; 0 if it is gone, or in a PID namespace that cannot be seen."""
    with suppress(*GONE_OR_HIDDEN):
        return int(_read(f"{PROC}/{int(thread)}/status").partition(b"\nTgid:\t")[2].partition(b"\n")[0])
    return 0


class ControlGroup:
    """A threaded control group (version 2) below that of this process.

    A thread of this process can be in it by itself, and what it starts meanwhile is in the group from the
    first moment. Moving a process there would take 10 ms, for a grace period of the kernel (RCU), and miss
    the children that it has by then.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str) -> ControlGroup | None:
        """Return a new group; None if this process may not create one, or is in none itself."""
        path = path_of(name)
        if path is not None:
            with suppress(OSError):
                os.mkdir(path)
                with suppress(OSError):
                    _write(f"{path}/cgroup.type", b"threaded")
                    return cls(path)
                os.rmdir(path)
        return None

    @classmethod
    def existing(cls, beginning: str) -> list[ControlGroup]:
        """Return the groups below that of this process whose names have this beginning."""
        path = path_of(beginning)
        return [] if path is None else [cls(each) for each in glob(f"{escape(path)}*")]

    @contextmanager
    def entered(self) -> Generator[None]:
        """Put this thread into the group until the context ends, unless the group is gone."""
        with ExitStack() as stack:
            with suppress(OSError):
                # both open before the thread moves: it must come back if no file descriptor is free then
                back, there = (
                    stack.enter_context(open(f"{group}/cgroup.threads", "wb", buffering=0))
                    for group in (os.path.dirname(self.path), self.path)
                )
                there.write(_THIS_THREAD)
                stack.callback(back.write, _THIS_THREAD)
            yield

    def processes(self) -> list[int]:
        """Return the processes in the group, and in the groups that they have created below it.

        A thread of this process, which may be in it for the moment, does not count.
        """
        with suppress(OSError):
            if b"populated 1" in _read(f"{self.path}/cgroup.events"):  # also for groups below
                check_proc()
                groups = [group for group, _, _ in os.walk(self.path)]
                threads = [thread for group in groups for thread in _read(f"{group}/cgroup.threads").split()]
                return sorted({*map(_process_of, threads)} - {0, os.getpid()})
        return []

    def remove(self) -> bool:
        """Kill the processes that are left in the group; see `remove_empty`."""
        with suppress(OSError):
            os.rmdir(self.path)
            return True
        self._kill()
        return self.remove_empty()

    def remove_empty(self) -> bool:
        """Remove the group and those below it unless processes are left; return whether it is gone."""
        for group, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):
                os.rmdir(group)
        return not os.path.isdir(self.path)

    def _kill(self) -> None:
        """Kill the processes in the group, without a pause: they may be starting others all the time.

        The group is not frozen meanwhile: a thread of this process may be in it, and hold the interpreter.
        """
        deadline = time.monotonic() + KILLED_WITHIN
        while (found := self.processes()) and time.monotonic() < deadline:
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def path_of(name: str) -> str | None:
    """Return the path of a group `name` below that of this process; None if this process has no group."""
    with suppress(OSError):  # not Linux
        own = _own_control_group()
        return None if own is None else f"{own}/{name}"
    return None


@cache
def _own_control_group() -> Path | None:
    """Return the directory of this process's control group (version 2), or None. It stays the same."""
    mounted = _mounted_control_groups()
    own = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    if mounted is None or own is None or not Path(own).is_relative_to(mounted[0]):
        return None
    return mounted[1] / Path(own).relative_to(mounted[0])


def _mounted_control_groups() -> tuple[str, Path] | None:
    """Return which part of the hierarchy (version 2) is mounted, and where; None without a mount."""
    for line in _lines("/proc/self/mountinfo"):
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            _, _, _, root, where, *_ = fields.split(" ")
            return root, Path(where)
    return None


def _lines(path: str) -> list[str]:
    """Return the lines of a file in `/proc`. Paths in it may have any bytes except a line feed."""
    return os.fsdecode(Path(path).read_bytes()).split("\n")
