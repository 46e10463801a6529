"""Commands do not outlive their worker, even if it is killed: a small process sees to that."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

log = logging.getLogger("taskqueue_client.worker")

_SCRIPT = Path(__file__).with_name("guardian_process.py")


class Guardian:
    """Kills process groups when this process ends without doing so, as by `kill -9`.

    What has left its group is not killed. Where its own process cannot be started, a warning says so, and
    commands run without it. Close it. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have the process ready, so that a command need not wait unwatched until it is."""
        with self._lock:
            if self._process is None:
                self._start()

    @contextmanager
    def watching(self, mark: Mapping[str, str]) -> Generator[Callable[[int], None]]:
        """Have a command killed that is started within, if this process ends meanwhile.

        Gives a function that is to be told its process group. Until then, nobody knows which it is, and all
        processes with the variables of `mark` in their environment are killed.
        """
        watched = "\0".join(f"{name}={value}" for name, value in mark.items())

        def watch(group: int) -> None:
            nonlocal watched
            self._change(add=str(group), remove=watched)
            watched = str(group)

        self._change(add=watched)
        try:
            yield watch
        finally:
            self._change(remove=watched)

    def _change(self, *, add: str | None = None, remove: str | None = None) -> None:
        told = ""
        with self._lock:
            if add is not None:
                self._watched.append(add)
                told += f"+{add}\n"
            if remove is not None:
                self._watched.remove(remove)
                told += f"-{remove}\n"
            self._tell(told)

    def close(self) -> None:
        """End the process. May be called again."""
        with self._lock:
            self._end()

    def _tell(self, lines: str) -> None:
        try:
            if self._process is not None:
                _write(self._process, lines)
                return
        except BrokenPipeError:
            self._end()  # somebody killed it
        if self._watched:
            self._start()

    def _start(self) -> None:
        try:
            self._process = _started()
            _write(self._process, "".join(f"+{watched}\n" for watched in self._watched))
        except OSError as error:
            log.warning("commands would outlive this worker if it was killed: no guardian: %s", error)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):
                _write(process, ".\n")  # a child that a handler has forked may hold its input open
            process.stdin.close()
            process.wait()


def _started() -> subprocess.Popen[bytes]:
    # -I: nothing that a user has set up; -S: no site-packages
    command = [sys.executable, "-I", "-S", str(_SCRIPT)]
    with ExitStack() as opened:
        handles: list[int] = []
        if hasattr(os, "pidfd_open"):  # opened here, as this process may be gone when the other one is up
            handles = [os.pidfd_open(os.getpid())]
            opened.callback(os.close, handles[0])
        return subprocess.Popen(  # noqa: S603 - this file's neighbour
            [*command, *map(str, handles)],
            bufsize=0,
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            pass_fds=handles,
        )


def _write(process: subprocess.Popen[bytes], lines: str) -> None:
    if process.stdin is not None:
        process.stdin.write(lines.encode())
