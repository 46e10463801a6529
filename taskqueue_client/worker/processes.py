"""The processes that came of a command: which there are, and how to send them signals.

On Linux, /proc tells; elsewhere, only the process group that the command was started in is known.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

TICK = 0.02
"""Seconds between looks whether processes that were killed are gone."""

PATIENCE = 10.0
"""Seconds that a process has to be gone after SIGKILL; one that hangs in the kernel is left alone then."""


class _Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    started: int  # with the pid, what tells a process from a later one with the same pid


class ProcessTree:
    """A process that leads its session, and its descendants, even those that left the session.

    Known are those in its session and group, and the children of those that are known. One that leaves the
    session and loses its parent before anybody looks is not: see `kill_marked`.

    Args:
        leader: The process id; also that of its session and group.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._known: set[tuple[int, int]] = set()

    def has_group(self) -> bool:
        """Whether anything, if only a zombie, is in the leader's group: quick to tell."""
        try:
            os.killpg(self._leader, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # they are there, and run as somebody else
            return True
        return True

    def survivors(self) -> list[int]:
        """The process ids of those that live, the oldest first, so that each comes before its children.

        That of the group, negative, where there is no /proc.
        """
        if not PROC.joinpath("self", "stat").exists():
            return [-self._leader] if self.has_group() else []
        found = sorted(_living(), key=_age)
        tree = {
            each.pid
            for each in found
            if self._leader in (each.group, each.session) or (each.pid, each.started) in self._known
        }
        while children := {each.pid for each in found if each.parent in tree} - tree:
            tree |= children
        self._known = {(each.pid, each.started) for each in found if each.pid in tree}
        return [each.pid for each in found if each.pid in tree]


def _age(process: _Process) -> tuple[int, int]:
    return process.started, process.pid


def send(number: signal.Signals, pid: int) -> None:
    """Send a signal to a process, or a group if `pid` is negative, unless it is gone or somebody else's."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_marked(variables: Mapping[str, str]) -> set[int]:
    """Kill all processes that were started with these variables, wherever they have gone since.

    Args:
        variables: Such as TASK_ID and RUN_ID with the values of a run.

    Returns:
        Those that live on after `PATIENCE`.
    """
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    deadline = time.monotonic() + PATIENCE
    while (found := set(_marked(wanted))) and time.monotonic() < deadline:
        for pid in found:
            send(signal.SIGKILL, pid)
        time.sleep(TICK)
    return found


def _marked(wanted: set[bytes]) -> Iterator[int]:
    for pid in _pids():
        with suppress(OSError):  # gone, or somebody else's
            if wanted.issubset((PROC / str(pid) / "environ").read_bytes().split(b"\0")):
                yield pid


def _living() -> Iterator[_Process]:
    for pid in _pids():
        with suppress(OSError):  # gone
            # the name, in parentheses, may hold anything
            status = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            if status[0] not in b"ZX":
                yield _Process(pid, int(status[1]), int(status[2]), int(status[3]), int(status[19]))


def _pids() -> Iterator[int]:
    if PROC.is_dir():
        own = os.getpid()
        found = (int(each.name) for each in PROC.iterdir() if each.name.isdecimal())
        yield from (pid for pid in found if pid != own)
