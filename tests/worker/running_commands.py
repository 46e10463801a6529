"""What the tests of commands share: a run's context, and ways to wait for processes without sleeping."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from taskqueue_client import slugid
from taskqueue_client.clock import SystemClock
from taskqueue_client.worker.cancelled import Cancelled
from taskqueue_client.worker.command import CommandContext
from taskqueue_client.worker.guardian import Guardian
from taskqueue_client.worker.task_log import TaskLog

WAIT_MS = 30_000
"""How long to wait for what must happen."""


@contextmanager
def context_in(directory: Path, env: Mapping[str, str] | None = None) -> Generator[CommandContext]:
    """A context as a run has it, with little patience."""
    guardian = Guardian()
    log = TaskLog(directory / "task.log", SystemClock(), kept_in_memory=0)
    work = directory / "work"
    work.mkdir()
    mark = {"TASK_ID": slugid(), "RUN_ID": "0"}
    try:
        yield CommandContext(
            log=log,
            cancelled=Cancelled(),
            guardian=guardian,
            work_directory=work,
            env={"PATH": os.environ["PATH"], **mark, **(env or {})},
            mark=mark,
            grace=30.0,
        )
    finally:
        guardian.close()
        log.remove()


def text_of(context: CommandContext) -> str:
    """The log so far."""
    path = context.log.path
    return path.read_text(errors="replace") if path.exists() else ""  # nothing was written yet


def printed_in(context: CommandContext) -> list[str]:
    """What was printed: without the times, and without the log's own lines."""
    lines = [line.partition(" ")[2] for line in text_of(context).splitlines()]
    return [line for line in lines if not line.startswith(("INFO", "WARNING"))]


class Fifo:
    """A named pipe through which a command tells something."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "fifo"
        os.mkfifo(self.path)

    def numbers(self) -> list[int]:
        """Wait for a line of numbers, such as process ids."""
        with self.path.open() as file:
            return [int(word) for word in file.readline().split()]


def wait_until_gone(pid: int) -> None:
    """Return when a process, which need not be a child, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(WAIT_MS), f"process {pid} lives on"
    finally:
        os.close(handle)


def open_descriptors() -> set[str]:
    """What this process has open. What earlier tests have left may go at any moment: compare with `<=`."""
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{each.name} {each.readlink()}")
        except FileNotFoundError:  # the directory itself
            continue
    return found


def wait_for_command_threads() -> None:
    """Return when the threads that ran awaited commands have ended."""
    for each in threading.enumerate():
        if each.name.startswith("command "):
            each.join(WAIT_MS / 1000)
            assert not each.is_alive()


def guardians() -> list[int]:
    """The process ids of this process's guardians: its children that lead a session, when no command runs."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            _, parent, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid() and session == process.name:
                found.append(int(process.name))
    return found
