"""Control groups of Linux (version 2), one for the processes of each run.

Without pathlib, which would double the time that each run with a command spends here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from glob import escape, glob
from pathlib import Path

from .proc_filesystem import children, read


class ControlGroup:
    """A control group (version 2) below that of this process."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str) -> ControlGroup | None:
        """Return a new one; None where this process may not create one, or has none itself."""
        path = path_of(name)
        if path is not None:
            with suppress(OSError):
                os.mkdir(path)
                return cls(path)
        return None

    @classmethod
    def existing(cls, beginning: str) -> list[ControlGroup]:
        """Return the groups below that of this process whose names have this beginning."""
        path = path_of(beginning)
        return [] if path is None else [cls(each) for each in glob(f"{escape(path)}*")]

    def add(self, pid: int) -> None:
        """Put a process and its descendants into the group, unless they are gone, or may not be moved.

        A parent before its children: those that it starts afterwards are in the group.
        """
        pending = [pid]
        while pending:
            with suppress(OSError):
                each = pending.pop()
                self._write("cgroup.procs", b"%d" % each)
                if found := children(each):
                    pending += found.difference(self.processes())

    def processes(self) -> list[int]:
        """Return the processes in the group, and in the groups that they have created below it."""
        with suppress(OSError):
            if b"populated 1" in read(f"{self.path}/cgroup.events"):  # of those below, too
                groups = [group for group, _, _ in os.walk(self.path)]
                return [int(pid) for group in groups for pid in read(f"{group}/cgroup.procs").split()]
        return []

    def remove(self) -> None:
        """Remove the group with those below it, and kill what is left in them."""
        with suppress(OSError):
            os.rmdir(self.path)
            return
        with suppress(OSError):  # Linux before 5.14
            self._write("cgroup.kill", b"1")
        for group, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):
                os.rmdir(group)

    def _write(self, name: str, content: bytes) -> None:
        with open(f"{self.path}/{name}", "wb", buffering=0) as file:
            file.write(content)


def path_of(name: str) -> str | None:
    """The path of a control group with this name below that of this process; None if it has none itself."""
    with suppress(OSError):  # another system
        own = _own_control_group()
        return None if own is None else f"{own}/{name}"
    return None


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
