"""The guardian process, which kills the processes that a worker has started if the worker is killed.

It is run as a script. It imports no module of this package, and only small ones of Python: `signal` and
`contextlib` would double the time in which it starts. Its arguments are

- the beginning of an environment variable, `NAME=value`, which all processes of the worker's runs have,
- the beginning of the paths of the worker's control groups; empty if it has none,
- the descriptor of a file with the process groups of running commands, each a number of `GROUP_SIZE` bytes,
- a descriptor that becomes readable when the worker is gone, if the system has such descriptors. The end of
  the standard input is not enough: a process that the worker has forked may hold it open.

A worker that ends in good order writes to the standard input the variables of the runs that have not ended,
then a full stop, each followed by a NUL. It starts the guardian with SIGTERM, SIGINT and SIGHUP blocked.
"""

from __future__ import annotations

import os
import select
import sys
import time

SIGKILL = 9

GROUP_SIZE = 8

STARTING = 1.0
"""Seconds to search at least: a command that is just being started shows its environment by then."""

KILLED_WITHIN = 1.0
"""Seconds for which the processes of a control group are killed until none is left."""

SEARCH_TIMEOUT = 10.0
"""Seconds to search at most, if new processes keep appearing."""


def main() -> None:
    """Wait until the worker is gone, then kill the processes that its runs have left."""
    worker = os.getppid()
    marked, control_groups, groups, *gone = sys.argv[1:]
    marks = _marks_at_the_end(os.fsencode(marked), [0, *map(int, gone)])
    for group in _groups(int(groups)):
        _kill(-group)
    start = time.monotonic()
    while marks and time.monotonic() < start + SEARCH_TIMEOUT:
        found = [*(_kill_group(each, worker) for each in _paths(control_groups)), _kill_marked(marks)]
        if not any(found) and time.monotonic() > start + STARTING:
            return
        time.sleep(0.01)


def _marks_at_the_end(marked: bytes, handles: list[int]) -> tuple[bytes, ...]:
    """Wait until the worker is gone; return the variables of the processes to kill."""
    poll = select.poll()
    for each in handles:
        poll.register(each, select.POLLIN)
    said = b"\0"
    while not said.endswith(b"\0.\0"):
        ready = dict(poll.poll())
        chunk = os.read(0, 65536) if 0 in ready else b""
        if not chunk:
            return (marked,)
        said += chunk
    return tuple(said.split(b"\0")[1:-2])


def _groups(handle: int) -> list[int]:
    """Return the process groups of the commands that were running."""
    content = os.pread(handle, os.fstat(handle).st_size, 0)
    places = range(0, len(content), GROUP_SIZE)
    found = [int.from_bytes(content[each : each + GROUP_SIZE], "little") for each in places]
    return [each for each in found if each > 1]  # 0 is a free place; killing -1 would kill all processes


def _paths(beginning: str) -> list[str]:
    """Return the paths that have this beginning."""
    directory, name = os.path.split(beginning)
    try:
        return [f"{directory}/{each}" for each in os.listdir(directory) if each.startswith(name)]  # noqa: PTH208 - pathlib is big
    except OSError:  # this system has no control groups
        return []


def _kill_marked(marks: tuple[bytes, ...]) -> bool:
    """Kill processes that have a variable that begins with one of `marks`; return whether there were any.

    Only Linux shows the variables of other processes, in /proc.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - as above
            return False  # /proc of another PID namespace: its ids stand for other processes here
        pids = [each for each in os.listdir("/proc") if each.isdecimal()]  # noqa: PTH208 - as above
    except OSError:  # not Linux: there is no /proc
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


def _kill_group(path: str, worker: int) -> bool:
    """Kill the processes of a control group, and remove it; return whether it is still there.

    A thread of the worker, which may be in it for the moment, is left alone.
    """
    end = time.monotonic() + KILLED_WITHIN
    while _kill_members(path, worker) and time.monotonic() < end:
        pass  # no pause: they may be starting others all the time
    for directory, _, _ in os.walk(path, topdown=False):
        _remove(directory)
    return os.path.isdir(path)  # noqa: PTH112 - as above


def _kill_members(path: str, worker: int) -> bool:
    """Kill the processes of a control group; return whether there were any."""
    found = False
    try:
        for directory, _, _ in os.walk(path):
            with open(f"{directory}/cgroup.threads", "rb") as threads:  # noqa: PTH123 - as above
                for thread in filter(None, map(int, threads)):  # 0: in a PID namespace that cannot be seen
                    if not os.path.isdir(f"/proc/{worker}/task/{thread}"):  # noqa: PTH112 - as above
                        found = True
                        _kill(thread)  # and with it its process
    except OSError:  # the group is gone
        return found
    return found


def _remove(directory: str) -> None:
    try:
        os.rmdir(directory)  # noqa: PTH106 - as above
    except OSError:  # a process in it is still ending
        return


if __name__ == "__main__":
    main()
    os._exit(0)  # at once: the worker waits for the end
