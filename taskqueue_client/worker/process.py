"""One process of a command: started in a session of its own, its output copied, its tree ended."""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from .outcomes import InternalError
from .processes import PATIENCE, TICK, ProcessTree, send
from .task_log import Output

log = logging.getLogger("taskqueue_client.worker")

LOOK = 0.1
"""Seconds between looks whether a command is to be stopped."""

CHUNK = 64 * 1024
"""Bytes that are read at a time: as many as a pipe holds."""

FULL_PIPE = 1024 * 1024
"""Bytes that a pipe can hold at most, unless its user is privileged."""


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: Its exit code; the negative number of a signal that ended it.
        usage: What it and those of its descendants used that it has waited for.
        duration: Seconds.
    """

    code: int
    usage: resource.struct_rusage
    duration: float


class CommandProcess:
    """A running command. Leaving the context ends what is left of it. Used by one thread.

    Args:
        args: The program and its arguments.
        cwd: The directory to run it in.
        env: All of its environment.
        output: Where what it prints goes, on both its streams.

    Attributes:
        pid: Its process id, and that of its process group and session.
        ended: How it ended; None as long as it runs.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: Output) -> None:
        self.ended: Ended | None = None
        self._output = output
        self._started = time.monotonic()
        self._printed, end = os.pipe()
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - a worker is there to run commands
                args,
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._printed)
            raise
        finally:
            os.close(end)
        os.set_blocking(self._printed, False)
        self.pid = self._popen.pid
        self._tree = ProcessTree(self.pid)
        self._poll = select.poll()
        self._poll.register(self._printed, select.POLLIN)
        self._handle = self._end_of_process()

    def wait(self, deadline: float, is_stopped: Callable[[], bool]) -> bool:
        """Copy what is printed until the process has ended; tell whether it has, as the wait may end before.

        Args:
            deadline: When to stop waiting, on `time.monotonic`.
            is_stopped: Whether to stop waiting.
        """
        while not self._has_ended():
            left = deadline - time.monotonic()
            if left <= 0 or is_stopped():
                return False
            self._copy(min(left, LOOK))
        return True

    def end_tree(self, grace: float) -> bool:
        """Ask all processes of the tree to end, and kill them if they don't; copy what they print meanwhile.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.

        Returns:
            Whether there were any.
        """
        if self._has_ended() and not self._tree.has_group():
            return False
        if left := self._signal(signal.SIGTERM, grace) and self._signal(signal.SIGKILL, PATIENCE):
            log.error("processes cannot be killed: %s", ", ".join(map(str, left)))
        return True

    def drain(self) -> None:
        """Copy what was printed until now; somebody who has left the tree may go on printing for ever."""
        left = FULL_PIPE
        while left > 0 and (count := self._read()):
            left -= count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end_tree(0)
        finally:
            self._unwatch()
            os.close(self._printed)

    def _end_of_process(self) -> int | None:
        """Something that becomes readable when the process ends, where there is such a thing."""
        with suppress(AttributeError, OSError):  # not Linux, or too old
            handle = os.pidfd_open(self.pid)
            self._poll.register(handle, select.POLLIN)
            return handle
        return None

    def _has_ended(self) -> bool:
        if self.ended is None:
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._popen.returncode = 1  # not that it warns of it as still running
                message = "this process ignores SIGCHLD, or waits for all children: exit codes are lost"
                raise InternalError(message) from None
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.ended = Ended(code, usage, time.monotonic() - self._started)
                self._popen.returncode = code  # it must not wait for it again
                self._unwatch()
        return self.ended is not None

    def _unwatch(self) -> None:
        if self._handle is not None:
            self._poll.unregister(self._handle)
            os.close(self._handle)
            self._handle = None

    def _copy(self, seconds: float) -> None:
        """Wait for something to be printed, but not for long, and copy it."""
        ready = dict(self._poll.poll(max(seconds, 0) * 1000))
        if self._printed in ready and not self._read():
            self._poll.unregister(self._printed)  # everybody has closed it

    def _read(self) -> int:
        with suppress(BlockingIOError):
            chunk = os.read(self._printed, CHUNK)
            self._output.write(chunk)
            return len(chunk)
        return 0

    def _signal(self, number: signal.Signals, patience: float) -> list[int]:
        """Send a signal to each process of the tree, once; those that live on after a while.

        A parent before its children: a shell whose child is gone before it has the signal goes on.
        """
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while (living := self._living()) and (time.monotonic() < deadline or not told):
            for pid in living:
                if pid not in told:
                    send(number, pid)
            told.update(living)
            self._copy(TICK)
        return living

    def _living(self) -> list[int]:
        survivors = self._tree.survivors()
        return survivors if self._has_ended() or self.pid in survivors else [self.pid, *survivors]
