"""Helpers for the tests of commands: a run's context, and ways to wait for processes without sleeping."""

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from taskqueue_client import slugid
from taskqueue_client.clock import SystemClock
from taskqueue_client.worker.commands.command import CommandContext
from taskqueue_client.worker.commands.environment import CommandEnvironment
from taskqueue_client.worker.commands.run_processes import Guardian, RunProcesses
from taskqueue_client.worker.commands.task_log import TaskLog
from taskqueue_client.worker.outcomes import Canceled

WAIT_MS = 30_000
"""Milliseconds after which a test fails if what it waits for has not happened."""


@contextmanager
def context_in(
    directory: Path, env: Mapping[str, str] | None = None, *, pass_environment: Sequence[str] = ()
) -> Generator[CommandContext]:
    """Yield what commands need of a run. `env` are variables that every command gets."""
    guardian = Guardian(f"{directory}/")
    log = TaskLog(directory / "task.log", SystemClock(), kept_in_memory=0)
    work = directory / "work"
    work.mkdir()
    processes = RunProcesses(f"{directory}/{slugid()}", guardian)
    try:
        yield CommandContext(
            log=log,
            canceled=Canceled(),
            guardian=guardian,
            processes=processes,
            work_directory=work,
            environment=CommandEnvironment(pass_environment),
            variables={"TASK_ID": slugid(), "RUN_ID": "0", **(env or {})},
            grace=30.0,
            signaled=[],
        )
    finally:
        processes.end(0)
        guardian.close()
        log.remove()


def text_of(context: CommandContext) -> str:
    """Return the log so far."""
    path = context.log.path
    return path.read_text(errors="replace") if path.exists() else ""  # the file is made at the first write


def printed_in(context: CommandContext) -> list[str]:
    """Return the output of commands in the log, without times and without the worker's own lines."""
    lines = [line.partition(" ")[2] for line in text_of(context).splitlines()]
    return [line for line in lines if not line.startswith(("INFO", "WARNING"))]


def in_shell(path: Path) -> str:
    """Return a path escaped for a shell, also within quotes for another shell: TMPDIR may have spaces."""
    return re.sub(r"([^\w/.-])", r"\\\1", str(path))


class Fifo:
    """A named pipe through which a command reports numbers. `word` is its path, escaped for a script."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "fifo"
        self.word = in_shell(self.path)
        os.mkfifo(self.path)

    def numbers(self) -> list[int]:
        """Wait for a line of numbers, such as process ids.

        Raises:
            AssertionError: Nobody has written a line.
        """
        pipe = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return [int(word) for word in self._line(pipe).split()]
        finally:
            os.close(pipe)

    def _line(self, pipe: int) -> bytes:
        line = b""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while not line.endswith(b"\n"):
            assert poll.poll(WAIT_MS), f"nobody wrote a line to {self.path} within {WAIT_MS / 1000:.0f} s"
            byte = os.read(pipe, 1)
            assert byte, f"{self.path} was closed after {line!r}, before the end of a line"
            line += byte
        return line


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended, which need not be a child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(WAIT_MS), f"process {pid} is still running"
    finally:
        os.close(handle)


def open_descriptors() -> set[str]:
    """Return the open files of this process. Compare by `<=`: files of earlier tests may close meanwhile."""
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{each.name} {each.readlink()}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def wait_for_command_threads() -> None:
    """Wait until the threads that ran awaited commands have ended."""
    for each in threading.enumerate():
        if each.name.startswith("command "):
            each.join(WAIT_MS / 1000)
            assert not each.is_alive()


def guardians() -> list[int]:
    """Return the pids of this process's guardians: its children that lead a session, if no command runs."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended meanwhile
            _, parent, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid() and session == process.name:
                found.append(int(process.name))
    return found
