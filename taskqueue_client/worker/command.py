"""Commands of a task: run in a process group of their own, logged, and ended as a whole."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TypedDict, Unpack

from taskqueue_client.errors import InvalidArgument

from .cancelled import Cancelled
from .guardian import Guardian
from .outcomes import InternalError, TaskFailed
from .process import CommandProcess, Ended
from .task_log import Output, TaskLog

Command = Sequence[str | os.PathLike[str]] | str
"""A program and its arguments; a text for the shell where that is asked for."""

_SHELL = "/bin/sh"

_WORKER_TROUBLE = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO}
"""Why a command cannot be started without any fault of the task's."""

_MAXRSS = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`."""


class CommandOptions(TypedDict, total=False):
    """How a command is run.

    Attributes:
        shell: Let `/bin/sh` run a text.
        cwd: The directory to run in, relative to the work directory; that one when left out.
        timeout: Seconds after which it is ended, and the task has failed.
        check: Raise an error unless the exit code is 0; on when left out.
    """

    shell: bool
    cwd: str | os.PathLike[str]
    timeout: float
    check: bool


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a run gives to its commands.

    Attributes:
        log: Where their output goes.
        cancelled: When they are to be ended.
        guardian: Ends them if this process is killed.
        work_directory: Where they run.
        env: All of their environment; see `environment.command_environment`.
        mark: The variables among them that no other run's processes have.
        grace: Seconds between asking them to end and killing them.
    """

    log: TaskLog
    cancelled: Cancelled
    guardian: Guardian
    work_directory: Path
    env: Mapping[str, str]
    mark: Mapping[str, str]
    grace: float


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    Attributes:
        exit_code: None if a signal ended it.
        signal: The number of the signal that ended it, or None.
        duration: Seconds.
        user_time: Seconds of processor time, with that of the descendants that it has waited for.
        system_time: The same, spent in the kernel.
        peak_memory: Bytes: the largest resident size of any one of these processes. Linux counts the
            worker's own size with it, so that a smaller command looks as large as the worker.
    """

    exit_code: int | None
    signal: int | None
    duration: float
    user_time: float
    system_time: float
    peak_memory: int

    def __str__(self) -> str:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS
        memory = f"{'at most ' if self.peak_memory <= own else ''}{self.peak_memory / 1e6:.0f} MB"
        return (
            f"{self.end} after {self.duration:.1f} s "
            f"(user {self.user_time:.2f} s, system {self.system_time:.2f} s, peak memory {memory})"
        )

    @property
    def end(self) -> str:
        """Exit code or signal, in words."""
        if self.signal is None:
            return f"exit code {self.exit_code}"
        with suppress(ValueError):  # a real-time signal has no name
            return f"signal {Signals(self.signal).name}"
        return f"signal {self.signal}"


class CommandFailed(TaskFailed):
    """A command that did not exit with 0.

    Its arguments are not shown: they may hold secrets, and only the task's log masks those.

    Attributes:
        program: What was run.
        result: How it ended.
    """

    def __init__(self, program: str, result: CommandResult) -> None:
        super().__init__(program, result)
        self.program = program
        self.result = result

    def __str__(self) -> str:
        return f"{self.program}: {self.result.end}"


class CommandTimedOut(CommandFailed):
    """A command that was ended because it took too long."""

    def __str__(self) -> str:
        return f"{self.program}: took longer than its time limit, ended after {self.result.duration:.1f} s"


class CommandNotStarted(TaskFailed):
    """A command that cannot be run: there is no such program, or it may not be run, or no such directory.

    Attributes:
        program: What was to be run.
        reason: Why it cannot.
    """

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program = program
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.program}: cannot be started: {self.reason}"


class _Abandoned(Exception):
    """Whoever awaited the command does not any more."""


def run_command(
    command: Command, context: CommandContext, **options: Unpack[CommandOptions]
) -> CommandResult:
    """Run a command, and wait for its end.

    It has no input. What it prints goes to the log as it comes. Processes that it leaves behind are ended
    with it, as far as they are in its process group.

    Args:
        command: A program and its arguments; a text with `shell`.
        context: What the run gives to its commands.
        **options: See `CommandOptions`.

    Raises:
        CommandFailed: The exit code is not 0, or a signal ended the command, unless `check` is off.
        CommandTimedOut: It took longer than `timeout`.
        CommandNotStarted: There is no such program, or it may not be run, or `cwd` is no directory.
        Outcome: The run is cancelled: what `Cancelled.check` raises.
        InternalError: It cannot be killed, or something else in this process waits for its children.
        OSError: The worker has no memory, processes or file descriptors left.
        InvalidArgument: The command is none.
    """
    return _Run(command, context, options).result()


async def run_command_async(
    command: Command, context: CommandContext, **options: Unpack[CommandOptions]
) -> CommandResult:
    """`run_command`, awaited. A command whose awaiting is cancelled is ended, and waited for."""
    run = _Run(command, context, options)
    ended = _begun(run)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        run.abandoned.set()
        while not ended.done():
            with suppress(asyncio.CancelledError):  # once is enough
                await asyncio.wait([ended])
        ended.exception()  # it has been seen
        raise
    finally:
        del ended  # it holds what the command raised, whose traceback holds this frame


def _begun(run: _Run) -> asyncio.Future[CommandResult]:
    """Start a command in a thread of its own, as the shared executor has but a few."""
    future: Future[CommandResult] = Future()
    name = f"command {run.program}"
    threading.Thread(target=_see_through, args=(run, future), name=name, daemon=True).start()
    return asyncio.wrap_future(future)


def _see_through(run: _Run, future: Future[CommandResult]) -> None:
    try:
        future.set_result(run.result())
    except BaseException as error:  # noqa: BLE001 - it is for whoever awaits
        future.set_exception(error)
    finally:
        del future  # as above


class _Run:
    """One command, from its arguments to its result."""

    def __init__(self, command: Command, context: CommandContext, options: CommandOptions) -> None:
        self._args = _arguments(command, shell=options.get("shell", False))
        self._shown = command if isinstance(command, str) else shlex.join(self._args)
        self._context = context
        self._cwd = context.work_directory / options.get("cwd", "")
        self._timeout = options.get("timeout")
        self._check = options.get("check", True)
        self.program = self._args[0]
        self.abandoned = threading.Event()

    def result(self) -> CommandResult:
        context = self._context
        context.cancelled.check()
        context.log.say(f"$ {self._shown}")
        context.guardian.start()
        with context.guardian.watching(context.mark) as watch, context.log.output() as output:
            with self._process(output) as process:
                watch(process.pid)
                finished = self._follow(process)
            ended = process.ended
        if ended is None:
            message = f"{self.program}: cannot be killed"
            raise InternalError(message)
        result = _result(ended)
        context.log.say(f"{self.program}: {result}")
        self._judge(result, finished=finished)
        return result

    def _process(self, output: Output) -> CommandProcess:
        try:
            return CommandProcess(self._args, cwd=self._cwd, env=self._context.env, output=output)
        except OSError as error:
            if error.errno in _WORKER_TROUBLE:
                raise
            raise CommandNotStarted(self.program, str(error)) from error

    def _follow(self, process: CommandProcess) -> bool:
        """See the command through; tell whether it came to an end of its own."""
        deadline = time.monotonic() + (float("inf") if self._timeout is None else self._timeout)
        finished = process.wait(deadline, self._is_stopped)
        if process.end_tree(self._context.grace) and finished:
            self._context.log.logger.warning("ended what %s had left running", self.program)
        process.drain()
        return finished

    def _is_stopped(self) -> bool:
        return self.abandoned.is_set() or self._context.cancelled.is_set()

    def _judge(self, result: CommandResult, *, finished: bool) -> None:
        if not finished:
            if self.abandoned.is_set():
                raise _Abandoned
            self._context.cancelled.check()
            raise CommandTimedOut(self.program, result)
        if self._check and result.exit_code != 0:
            raise CommandFailed(self.program, result)


def _arguments(command: Command, *, shell: bool) -> list[str]:
    """The program and its arguments, as the system takes them."""
    if shell != isinstance(command, str):
        raise InvalidArgument("command", command, "a list of texts; with shell=True, one text")
    args = [_SHELL, "-c", command] if isinstance(command, str) else [os.fspath(each) for each in command]
    if not args or not args[0] or any("\0" in each for each in args):
        raise InvalidArgument("command", command, "a program and its arguments, without NUL")
    return args


def _result(ended: Ended) -> CommandResult:
    return CommandResult(
        exit_code=ended.code if ended.code >= 0 else None,
        signal=-ended.code if ended.code < 0 else None,
        duration=ended.duration,
        user_time=ended.usage.ru_utime,
        system_time=ended.usage.ru_stime,
        peak_memory=ended.usage.ru_maxrss * _MAXRSS,
    )
