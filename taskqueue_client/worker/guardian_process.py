"""The guardian's own process. Imports next to nothing, and no module of this package: it is run as a script.

Its standard input says what there is, `+<what>`, and what there is no more, `-<what>`, a line each, and ends
with a line `.`. It is a process group; or, as long as the worker does not know that of a command which it
starts, variables of the command's environment, as `NAME=value` with NULs between them. The argument is a file
descriptor that becomes readable when the worker is gone, where there is such a thing: the end of the input
alone does not tell, as a process that the worker has forked may hold it open.
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


def main() -> None:
    """Follow what the worker says until it is gone, then kill what it has left."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker, which may need a while
    left = _left_behind()
    for group in (int(each) for each in left if each.isdigit()):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    if marks := [set(each.split(b"\0")) for each in left if b"=" in each]:
        _kill_marked(marks)


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


def _kill_marked(marks: list[set[bytes]]) -> None:
    """Kill processes with certain variables: on Linux, as /proc tells of them."""
    deadline = time.monotonic() + STARTING
    while os.path.isdir("/proc/self") and time.monotonic() < deadline:  # noqa: PTH112 - pathlib is big
        for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - as above
            with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:  # noqa: PTH123 - as above
                variables = set(environ.read().split(b"\0"))
                if any(mark <= variables for mark in marks):
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
