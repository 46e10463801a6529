"""The guardian's own process. Imports next to nothing, and no module of this package: it is run as a script.

Its standard input says which process groups there are: `+<id>` and `-<id>`, a line each. Its argument is
a file descriptor that becomes readable when the worker is gone, where there is such a thing: the end of the
input alone does not tell, as a process that the worker has forked may hold it open.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Follow what the worker says until it is gone, then kill what it has left."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker, which may need a while
    for group in _left_behind():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _left_behind() -> set[int]:
    groups: set[int] = set()
    poll = select.poll()
    for each in (0, *map(int, sys.argv[1:])):
        poll.register(each, select.POLLIN)
    rest = b""
    while True:
        ready = dict(poll.poll())
        chunk = os.read(0, 65536) if 0 in ready else b""
        if not chunk:
            return groups
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            change = groups.add if line.startswith(b"+") else groups.discard
            change(int(line[1:]))


if __name__ == "__main__":
    main()
