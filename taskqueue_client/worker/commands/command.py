"""Commands of a task: run in their own process group, logged, and ended as a whole."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from typing import Literal, TypedDict, Unpack

from taskqueue_client._arguments import check_kind, check_path, encoded, seconds
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.config import check_names
from taskqueue_client.worker.outcomes import Canceled, InternalError, TaskFailed, thread_refused
from taskqueue_client.worker.threads import fulfill
from taskqueue_client.worker.tracing import NO_TRACING, Span, Tracing

from .command_process import CommandProcess, Ended
from .environment import CommandEnvironment
from .linux_processes import out_of_memory_kills
from .masking import masked_text
from .run_processes import Guardian, RunProcesses
from .task_log import Output, TaskLog

Command = Sequence[str | os.PathLike[str]] | str
"""A program and its arguments, or a str for the shell."""

_SHELL = "/bin/sh"

CAPTURE_LIMIT = 16 * 1024 * 1024
"""Bytes of each stream that `capture` keeps at most: larger output belongs in a file, not in memory."""

_WORKER_TROUBLE = {
    errno.EAGAIN: ": raise the limit of processes (`ulimit -u`, or that of the container)",
    errno.EMFILE: ": raise the limit of open files (`ulimit -n`)",
    errno.EFBIG: " for its input: raise the limit of the size of files (`ulimit -f`)",
    **dict.fromkeys((errno.ENOMEM, errno.ENFILE, errno.EIO, errno.ENOSPC, errno.EDQUOT), ""),
}
"""Errors of starting a command that are the worker's, not the task's, and what to do."""

_MAXRSS = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of `ru_maxrss`


class CommandOptions(TypedDict, total=False):
    """How a command is run.

    Attributes:
        env: Variables to add to the command's environment.
        pass_credentials: Allow credentials in `env`; default: False.
        shell: Let `/bin/sh` run the command, which is a str; default: False.
        cwd: The directory to run in, relative to the work directory; default: the work directory.
        input: What the command reads from its standard input; text is encoded as UTF-8. Default: nothing.
        capture: The output that the result contains, in addition to the log: `"stdout"`, `"stderr"` or, with
            True, both. At most 16 MiB each. Default: False.
        timeout: Seconds, or text such as `10 minutes`, after which the command is ended, and the task has
            failed. Default: no limit.
        check: Raise an error unless the exit code is 0; default: True.
        keep_children: Let processes that the command leaves behind outlive it, the run and the worker;
            default: False.
    """

    env: Mapping[str, str] | None
    pass_credentials: bool
    shell: bool
    cwd: str | os.PathLike[str] | None
    input: str | bytes | None
    capture: bool | Literal["stdout", "stderr"]
    timeout: float | str | None
    check: bool
    keep_children: bool


_SWITCHES = {"check", "keep_children", "pass_credentials", "shell"}

_TOLD_TO_END = {SIGTERM, SIGINT, SIGHUP}


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The resources of a run that its commands use.

    Attributes:
        canceled: Set when commands are to be ended.
        guardian: Ends commands if this process is killed.
        processes: All processes that commands start.
        variables: Variables that all commands get, such as `TASK_ID`.
        grace: Seconds between SIGTERM and SIGKILL.
        signaled: Gets a text such as `make: signal SIGTERM` if a signal not from the worker ends a command.
    """

    log: TaskLog
    canceled: Canceled
    guardian: Guardian
    processes: RunProcesses
    work_directory: Path
    environment: CommandEnvironment
    variables: Mapping[str, str]
    grace: float
    signaled: list[str]
    tracing: Tracing = NO_TRACING


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    Attributes:
        exit_code: None if a signal ended it.
        signal: The number of the signal that ended it, or None.
        duration: Seconds.
        user_time: Seconds of processor time, with that of the descendants that it has waited for.
        system_time: The same, spent in the kernel.
        peak_memory: Bytes: the largest resident size of any one of these processes. On Linux, a command that
            is smaller than the worker looks as large as the worker.
        stdout: The captured standard output, decoded as UTF-8; None if it was not captured. Bytes that are
            not UTF-8 are decoded as `os.fsdecode` does, so that names of files survive.
        stderr: The same for its standard error.
    """

    exit_code: int | None
    signal: int | None
    duration: float
    user_time: float
    system_time: float
    peak_memory: int
    stdout: str | None = field(default=None, repr=False)
    stderr: str | None = field(default=None, repr=False)

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

    Its arguments are not shown: they may contain secrets, which only the task's log masks.

    Attributes:
        program: The program, without its arguments.
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


class CommandOutputTooLarge(CommandFailed):
    """A command that was ended because it printed more than `capture` can keep."""

    def __str__(self) -> str:
        return (
            f"{self.program}: printed more than the {CAPTURE_LIMIT} bytes that capture can keep; "
            "let the command write large output to a file"
        )


class CommandNotStarted(TaskFailed):
    """A command that cannot be run: its program or directory is missing, or not executable.

    Attributes:
        program: The program.
        reason: The system's error.
    """

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program = program
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.program}: cannot be started: {self.reason}"


_OUT_OF_MEMORY = (
    "the kernel killed a process of this machine for lack of memory while %s ran: perhaps this command's"
)


class _Abandoned(Exception):
    """The coroutine that awaited the command was canceled."""


def run_command(
    command: Command, context: CommandContext, **options: Unpack[CommandOptions]
) -> CommandResult:
    """Run a command, and wait for its end, as `TaskRun.run_command` describes."""
    return _Run(command, context, options).result()


async def run_command_async(
    command: Command, context: CommandContext, **options: Unpack[CommandOptions]
) -> CommandResult:
    """Run a command as `run_command` does, without blocking the event loop.

    If the caller is canceled, the command is ended, and its end awaited.
    """
    run = _Run(command, context, options)
    ended = _start(run)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        run.abandoned.set()
        while not ended.done():
            with suppress(asyncio.CancelledError):  # one cancellation is enough
                await asyncio.wait([ended])
        ended.exception()  # otherwise asyncio logs that nobody has retrieved it
        raise
    finally:
        del ended  # it refers to the command's error, whose traceback refers to this frame


def _start(run: _Run) -> asyncio.Future[CommandResult]:
    """Start a command in a separate thread: the shared executor has few threads."""
    future: Future[CommandResult] = Future()
    name = f"command {run.program}"
    work = (fulfill, future, run.result)
    try:
        threading.Thread(target=copy_context().run, args=work, name=name, daemon=True).start()
    except RuntimeError as error:
        raise thread_refused() from error
    return asyncio.wrap_future(future)


class _Run:
    """One command, from its arguments to its result."""

    def __init__(self, command: Command, context: CommandContext, options: CommandOptions) -> None:
        _check_options(options)
        self._args = _arguments(command, shell=options.get("shell", False))
        self._shown = command if isinstance(command, str) else self._quoted(context)
        self._context = context
        cwd = options.get("cwd")
        if cwd is not None:
            check_path("cwd", cwd)
        self._cwd = context.work_directory / ("" if cwd is None else cwd)
        self._input = _encoded(options.get("input"))
        self._captured = _captured(options.get("capture", False))
        timeout = seconds("timeout", options.get("timeout"))
        self._timeout = math.inf if timeout is None else timeout
        self._check = options.get("check", True)
        self._keep_children = options.get("keep_children", False)
        self._env = self._environment(options)
        self._streams: dict[str, Output] = {}
        self._killed_before = math.nan
        self.program = self._args[0]
        self.abandoned = threading.Event()

    def _quoted(self, context: CommandContext) -> str:
        """Return the command for the log, masked before it is quoted: quoting changes some secrets."""
        return shlex.join(masked_text(each, context.log.secrets) for each in self._args)

    def _environment(self, options: CommandOptions) -> dict[str, str]:
        context = self._context
        mark = {} if self._keep_children else context.processes.variable
        return context.environment.of_command(
            options.get("env") or {},
            {**context.variables, **mark},
            pass_credentials=options.get("pass_credentials", False),
        )

    def result(self) -> CommandResult:
        self._context.canceled.check()
        tracing, name = self._context.tracing, Path(self.program).name
        with tracing.span(name, {"process.executable.name": name}, is_client=True) as span:
            self._env |= tracing.variables()
            return self._result_in(span)

    def _result_in(self, span: Span) -> CommandResult:
        context = self._context
        context.log.say(f"$ {self._shown}")
        if not self._keep_children:
            context.processes.watch()
        finished, ended = self._run(span)
        if ended is None:
            raise InternalError(f"{self.program}: cannot be killed")
        result = _result(ended, self._streams)
        context.log.say(f"{self.program}: {result}")
        if finished and result.exit_code != 0 and out_of_memory_kills() > self._killed_before:
            context.log.logger.warning(_OUT_OF_MEMORY, self.program)
        if finished and _was_told_to_end(result):
            context.signaled.append(f"{self.program}: {result.end}")
        if result.exit_code is not None:
            span.set("process.exit.code", result.exit_code)
        self._judge(result, finished=finished)
        return result

    def _run(self, span: Span) -> tuple[bool, Ended | None]:
        """Run the command; return whether it ended by itself, and how, or None if it cannot be killed."""
        context = self._context
        with ExitStack() as stack:
            for name in ("stdout", "stderr") if self._captured else ("stdout",):
                stream = Output(context.log, CAPTURE_LIMIT if name in self._captured else None)
                self._streams[name] = stack.enter_context(stream)
            stack.callback(context.processes.remove_left)
            with self._process() as process:
                self._killed_before = out_of_memory_kills()  # the command does not wait for this
                span.set("process.pid", process.pid)
                context.guardian.add(process.pid)
                stack.callback(context.guardian.remove, process.pid)
                if not self._keep_children:
                    context.processes.check_open()
                finished = self._follow(process)
        return finished, process.ended

    def _process(self) -> CommandProcess:
        try:
            with nullcontext() if self._keep_children else self._context.processes.entered():
                return CommandProcess(
                    self._args,
                    cwd=self._cwd,
                    env=self._env,
                    content=self._input,
                    stdout=self._streams["stdout"].write,
                    stderr=self._streams["stderr"].write if "stderr" in self._streams else None,
                    keep_children=self._keep_children,
                )
        except OSError as error:
            advice = _WORKER_TROUBLE.get(error.errno or 0)
            is_chosen = os.devnull in {self.program, str(self._cwd)}
            if advice is None and error.filename == os.devnull and not is_chosen:  # a task removed it
                advice = f": {os.devnull}"
            if advice is not None:
                raise InternalError(f"the worker cannot start commands: {error.strerror}{advice}") from error
            raise CommandNotStarted(self.program, self._reason(error)) from error

    def _reason(self, error: OSError) -> str:
        """Return why a program was not started. The system names the script if its interpreter is missing."""
        is_program = error.errno == errno.ENOENT and error.filename == self.program
        if is_program and os.sep in self.program and (self._cwd / self.program).exists():
            return "its interpreter does not exist, which the first line of the script names"
        return str(error)

    def _follow(self, process: CommandProcess) -> bool:
        """Wait for the end of the command, or end it; return whether it ended by itself."""
        deadline = time.monotonic() + self._timeout
        finished = process.wait(deadline, self._is_stopped)
        if process.end_tree(self._context.grace) and finished:
            self._context.log.logger.warning("ended processes that %s had left running", self.program)
        process.drain()
        return finished

    def _is_stopped(self) -> bool:
        return self.abandoned.is_set() or self._context.canceled.is_set() or self._is_too_large()

    def _is_too_large(self) -> bool:
        return any(each.is_too_large for each in self._streams.values())

    def _judge(self, result: CommandResult, *, finished: bool) -> None:
        if self.abandoned.is_set() and not finished:
            raise _Abandoned
        if not finished:
            self._context.canceled.check()
        if self._is_too_large():
            raise CommandOutputTooLarge(self.program, result)
        if not finished:
            raise CommandTimedOut(self.program, result)
        if self._check and result.exit_code != 0:
            raise CommandFailed(self.program, result)


def _was_told_to_end(result: CommandResult) -> bool:
    """Return whether SIGTERM, SIGINT or SIGHUP ended the command. Shells return its number plus 128."""
    return (result.signal or (result.exit_code or 0) - 128) in _TOLD_TO_END


def _check_options(options: Mapping[str, object]) -> None:
    """Refuse unknown options, such as a mistyped `timeout`, and switches that are not True or False."""
    check_names(options, CommandOptions.__optional_keys__)
    for name in sorted(_SWITCHES & options.keys()):
        check_kind(name, options[name], bool)


def _captured(capture: object) -> tuple[str, ...]:
    """Return the names of the streams to capture."""
    try:
        return _CAPTURES[capture]
    except (KeyError, TypeError):
        raise InvalidArgument("capture", capture, 'True, False, "stdout" or "stderr"') from None


_CAPTURES: Mapping[object, tuple[str, ...]] = {
    False: (),
    True: ("stdout", "stderr"),
    "stdout": ("stdout",),
    "stderr": ("stderr",),
}


def _encoded(given: object) -> bytes:
    if given is None:
        return b""
    if isinstance(given, str):
        return encoded("input", given)
    if isinstance(given, bytes):
        return given
    raise InvalidArgument("input", given, "a str or bytes", f"of type {type(given).__name__}")


def _arguments(command: Command, *, shell: bool) -> list[str]:
    """Return the program and its arguments as strings."""
    allowed = "a list of a program and its arguments; with shell=True, a str"
    check_kind("command", command, Iterable, allowed)
    if shell != isinstance(command, str) or isinstance(command, Mapping):
        raise InvalidArgument("command", command, allowed)
    parts = [_SHELL, "-c", command] if isinstance(command, str) else command
    name = "command" if shell else "command[{}]"
    for position, each in enumerate(parts):
        check_path(name.format(position), each)
    args = [os.fspath(each) for each in parts]
    if not args or not args[0]:
        raise InvalidArgument("command", command, "a program and its arguments")
    return args


def _result(ended: Ended, streams: Mapping[str, Output]) -> CommandResult:
    texts = {name: stream.text() for name, stream in streams.items()}
    return CommandResult(
        exit_code=ended.code if ended.code >= 0 else None,
        signal=-ended.code if ended.code < 0 else None,
        duration=ended.duration,
        user_time=ended.usage.ru_utime,
        system_time=ended.usage.ru_stime,
        peak_memory=ended.usage.ru_maxrss * _MAXRSS,
        stdout=texts.get("stdout"),
        stderr=texts.get("stderr"),
    )
