"""The process of the guardian, which kills what a worker has started once the worker is gone.

It is run as a script, so it imports little, and no module of this package. It reads commands from standard
input, one per line: `+TARGET` adds a target, `-TARGET` removes it, and `.` ends the guardian. A target is the
number of a process group, an environment variable as `NAME=value`, which stands for all processes that have
it, or the path of a control group. The argument is a file descriptor that becomes readable when the worker is
gone, if the system has such descriptors. The end of the input is not enough: a process that the worker has
forked may hold it open.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

STARTING = 1.0
"""Seconds: a command that is being started shows its environment by then."""

PATIENCE = 10.0
"""Seconds after which processes that keep appearing are left alone."""


def main() -> None:
    """Read commands until the worker is gone, then kill the targets that are left."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # for the worker, which may take a while to end
    left = _left_behind()
    for group in filter(bytes.isdigit, left):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)
    marks = {each for each in left if not each.startswith(b"/") and b"=" in each}
    groups = [each for each in left if each.startswith(b"/")]
    start = time.monotonic()
    while marks and time.monotonic() < start + PATIENCE:
        found = [*map(_kill_group, groups), _kill_marked(marks)]
        if not any(found) and time.monotonic() > start + STARTING:
            return
        time.sleep(0.01)


def _left_behind() -> list[bytes]:
    watched: list[bytes] = []
    poll = select.poll()
    for each in (0, *map(int, sys.argv[1:])):
        poll.register(each, select.POLLIN)
    rest = b""
    while True:
        ready = dict(poll.poll())
        chunk = os.read(0, 65536) if 0 in ready else b""
        if not chunk:
            return watched
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line == b".":
                return watched
            change = watched.append if line.startswith(b"+") else watched.remove
            change(line[1:])


def _kill_marked(marks: set[bytes]) -> bool:
    """Kill processes with certain variables; return whether there were any. Linux only: /proc tells."""
    found = False
    with suppress(OSError):  # another system
        for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - pathlib is big
            with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:  # noqa: PTH123 - as above
                if not marks.isdisjoint(environ.read().split(b"\0")):
                    found = True
                    os.kill(int(pid), signal.SIGKILL)
    return found


def _kill_group(path: bytes) -> bool:
    """Kill the processes of a control group, and remove it; return whether it is still there."""
    with suppress(OSError), open(path + b"/cgroup.kill", "wb") as kill:  # noqa: PTH123 - as above
        kill.write(b"1")
    for directory, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            os.rmdir(directory)  # noqa: PTH106 - as above
    return os.path.isdir(path)  # noqa: PTH112 - as above


if __name__ == "__main__":
    main()
