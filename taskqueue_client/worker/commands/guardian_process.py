"""The guardian process, which kills the processes that a worker has started if the worker is killed.

It is run as a script. It imports no module of this package, and only those of Python that every start of it
imports: `signal` and `contextlib` would double the time in which it starts. It reads commands from standard
input: `+TARGET` adds a target, `-TARGET` removes it, and `.` ends the guardian. Each command ends with a NUL,
because a path may contain line breaks. A target is the number of a process group, the path of a control
group, or the beginning of an environment variable, `NAME=value`, which stands for all processes that have it.

The first argument is a target that counts unless the worker ends with `.`. The second one is a file
descriptor that becomes readable when the worker is gone, if the system has such descriptors. The end of the
input is not enough: a process that the worker has forked may hold it open. The worker starts it with the
signals blocked that would end it.
"""

from __future__ import annotations

import os
import select
import sys
import time

SIGKILL = 9

STARTING = 1.0
"""Seconds: a command that is being started shows its environment by then."""

SEARCH_TIMEOUT = 10.0
"""Seconds after which processes that keep appearing are left alone."""


def main() -> None:
    """Read commands until the worker is gone, then kill the targets that are left."""
    left = _left_behind()
    for group in filter(bytes.isdigit, left):
        _kill(-int(group))
    marks = tuple(each for each in left if not each.startswith(b"/") and b"=" in each)
    groups = [each for each in left if each.startswith(b"/")]
    start = time.monotonic()
    while marks and time.monotonic() < start + SEARCH_TIMEOUT:
        found = [*map(_kill_group, groups), _kill_marked(marks)]
        if not any(found) and time.monotonic() > start + STARTING:
            return
        time.sleep(0.01)


def _left_behind() -> list[bytes]:
    watched = [os.fsencode(sys.argv[1])]
    poll = select.poll()
    for each in (0, *map(int, sys.argv[2:])):
        poll.register(each, select.POLLIN)
    rest = b""
    while True:
        ready = dict(poll.poll())
        chunk = os.read(0, 65536) if 0 in ready else b""
        if not chunk:
            return watched
        *commands, rest = (rest + chunk).split(b"\0")
        for command in commands:
            if command == b".":
                return watched[1:]
            change = watched.append if command.startswith(b"+") else watched.remove
            change(command[1:])


def _kill_marked(marks: tuple[bytes, ...]) -> bool:
    """Kill processes with variables that begin so; return whether there were any. Linux only: /proc tells."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - pathlib is big
            return False  # it shows another PID namespace: with its ids, other processes would be killed
        pids = [each for each in os.listdir("/proc") if each.isdecimal()]  # noqa: PTH208 - as above
    except OSError:  # another system
        return False
    found = False
    for pid in pids:
        if any(each.startswith(marks) for each in _environment(pid)):
            found = True
            _kill(int(pid))  # at once: later, the number may be another process's
    return found


def _environment(pid: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:  # noqa: PTH123 - as above
            return environ.read().split(b"\0")
    except OSError:  # it is gone, or another user's
        return []


def _kill(pid: int) -> None:
    """Kill a process, or a group if `pid` is negative, unless it is gone or another user's."""
    try:
        os.kill(pid, SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill_group(path: bytes) -> bool:
    """Kill the processes of a control group, and remove it; return whether it is still there."""
    _kill_members(path)
    for directory, _, _ in os.walk(path, topdown=False):
        _remove(directory)
    return os.path.isdir(path)  # noqa: PTH112 - as above


def _kill_members(path: bytes) -> None:
    try:
        with open(path + b"/cgroup.kill", "wb") as kill:  # noqa: PTH123 - as above
            kill.write(b"1")
    except OSError:  # the group is gone, or Linux is older than 5.14
        return


def _remove(directory: bytes) -> None:
    try:
        os.rmdir(directory)  # noqa: PTH106 - as above
    except OSError:  # a process in it is still ending
        return


if __name__ == "__main__":
    main()
    os._exit(0)  # at once: the worker waits for the end
