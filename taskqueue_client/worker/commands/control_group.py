"""Control groups of Linux (version 2), one for the processes of each run."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

PROC = Path("/proc")


class ControlGroup:
    """A control group (version 2) below that of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls) -> ControlGroup | None:
        """Return a new one; None where this process may not create one, or has none itself."""
        try:
            path = _own_control_group()
            if path is not None:
                path /= f"taskqueue-{os.getpid()}-{time.monotonic_ns()}"
                path.mkdir()
        except OSError:
            return None
        return None if path is None else cls(path)

    def add(self, pid: int) -> None:
        """Put a process and its descendants into the group, unless they are gone, or may not be moved.

        A parent before its children: those that it starts afterwards are in the group.
        """
        pending = [pid]
        while pending:
            with suppress(OSError):
                each = pending.pop()
                (self.path / "cgroup.procs").write_bytes(b"%d" % each)
                if children := _children(each):
                    pending += children.difference(self.processes())

    def processes(self) -> list[int]:
        """Return the processes in the group, and in the groups that they have created below it."""
        with suppress(OSError):
            if b"populated 1" in (self.path / "cgroup.events").read_bytes():  # of those below, too
                files = self.path.rglob("cgroup.procs")
                return [int(pid) for each in files for pid in each.read_bytes().split()]
        return []

    def remove(self) -> None:
        """Remove the group with those below it, and kill what is left in them."""
        with suppress(OSError):
            self.path.rmdir()
            return
        with suppress(OSError):  # Linux before 5.14
            (self.path / "cgroup.kill").write_bytes(b"1")
        below = sorted(self.path.rglob("*/"), reverse=True)
        for each in (*below, self.path):
            with suppress(OSError):
                each.rmdir()


def check_proc(proc: Path) -> None:
    """Raise an OSError unless /proc shows this process: that of another PID namespace has other ids."""
    if (proc / "self").readlink().name != str(os.getpid()):
        raise FileNotFoundError(errno.ENOENT, "not mounted for this PID namespace", str(proc))


def _children(pid: int) -> set[int]:
    """Return the children of all threads of a process.

    Raises:
        OSError: The process is gone, or /proc shows other processes.
    """
    check_proc(PROC)
    files = (PROC / str(pid) / "task").glob("*/children")
    return {int(child) for each in files for child in each.read_bytes().split()}


@cache
def _own_control_group() -> Path | None:
    """The directory of this process's control group (version 2), where there is one. It stays the same."""
    mounted = _mounted_control_groups()
    own = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    if mounted is None or own is None or not Path(own).is_relative_to(mounted[0]):
        return None
    return mounted[1] / Path(own).relative_to(mounted[0])


def _mounted_control_groups() -> tuple[str, Path] | None:
    """Which part of the hierarchy (version 2) is mounted, and where."""
    for line in _lines("/proc/self/mountinfo"):
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            _, _, _, root, where, *_ = fields.split(" ")
            return root, Path(where)
    return None


def _lines(path: str) -> list[str]:
    """Return the lines of a file in `/proc`. Paths in it may have any bytes except a line feed."""
    return os.fsdecode(Path(path).read_bytes()).split("\n")
