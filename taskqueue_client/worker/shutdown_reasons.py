"""Reasons for which a worker shuts down: signals, a termination notice, the end of the program, errors."""

from __future__ import annotations

import asyncio
import errno
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.clock import Clock
from taskqueue_client.models import ReasonResolved

from .config import checked_time_left
from .outcomes import InternalError, text_of
from .run.handlers import ThreadCall
from .run.lifecycle import TaskEnd
from .threads import DaemonThreads, ThreadsafeCalls
from .worker_log import log

T = TypeVar("T")

_Handler = Callable[[int, FrameType | None], Any] | int | None

AT_ONCE = signal.SIGQUIT
"""The signal that stops all runs at once; they are still reported."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, AT_ONCE)

NOTICE_INTERVAL = 5.0
"""Seconds between calls of `termination_notice`: as often as cloud providers ask to look."""

PROGRAM_INTERVAL = 0.25
"""Seconds between looks whether the program's main thread has ended."""

HOOK_PATIENCE = 10.0
"""Seconds after which a hook is interrupted when a signal has come: it keeps the worker from reporting and
shutting down."""

_VARYING = re.compile(r"[\w-]{22}|\d+|/\S+")
"""Identifiers, numbers and paths, which differ between errors with the same cause."""


class HookInterrupted(BaseException):
    """A signal has interrupted a hook. Not an `Exception`, which the hook may catch to try again."""


class Hooks:
    """Calls hooks of a worker in the thread of its loop, one at a time."""

    def __init__(self) -> None:
        self._began = math.inf
        self._signal: int | None = None
        self._alarm_before: _Handler = None

    def call(self, hook: Callable[[], T]) -> T:
        """Call a hook, and return what it returns.

        Raises:
            HookInterrupted: A signal has come, and the hook has blocked the loop for `HOOK_PATIENCE` seconds.
            BaseException: The hook raised it.
        """
        self._began = time.monotonic()
        try:
            if self._signal is not None:
                self._interrupt_later(self._signal, HOOK_PATIENCE)
            return hook()
        finally:
            self._began = math.inf
            if self._alarm_before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._alarm_before)
                self._alarm_before = None

    def interrupt(self, number: int, frame: object) -> None:
        """Interrupt a hook that blocks the loop; a signal handler, which Python calls in the main thread."""
        del frame
        self._signal = number  # for hooks that begin later
        seconds = time.monotonic() - self._began
        if seconds >= HOOK_PATIENCE:
            self._began = math.inf  # now, as this may come when the hook has just returned
            name = signal.Signals(number).name
            message = f"{name}, when the hook had blocked the worker for {seconds:.0f} s"
            raise HookInterrupted(message)
        if seconds >= 0:
            self._interrupt_later(number, HOOK_PATIENCE - seconds)

    def _interrupt_later(self, number: int, seconds: float) -> None:
        """Set an alarm, unless the hook has set one itself. Only a signal interrupts a system call."""
        if not any(signal.getitimer(signal.ITIMER_REAL)):
            alarm = signal.signal(signal.SIGALRM, lambda _, frame: self.interrupt(number, frame))
            if self._alarm_before is None:
                self._alarm_before = alarm or signal.SIG_DFL
            signal.setitimer(signal.ITIMER_REAL, seconds)


@contextmanager
def signals_handled(on_signal: Callable[[signal.Signals], None], hooks: Hooks) -> Generator[None]:
    """Call `on_signal` with each signal of `SIGNALS`, in the loop of this main thread.

    A hook that blocks the loop is interrupted. Signals that are ignored, such as SIGHUP under `nohup`, stay
    ignored. The previous handlers are restored.
    """
    loop = asyncio.get_running_loop()
    before = _SignalHandlers()
    forget_in_children(before)
    for number in before.handlers:
        loop.add_signal_handler(number, on_signal, number)
        signal.signal(number, hooks.interrupt)  # in place of asyncio's, which does nothing
    try:
        yield
    finally:
        for number in before.handlers:
            loop.remove_signal_handler(number)
        before.restore()


class _SignalHandlers:
    """The handlers of `SIGNALS` before the worker's own, without those of ignored signals."""

    def __init__(self) -> None:
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.handlers = {each: found for each, found in handlers.items() if found is not signal.SIG_IGN}

    def restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def forget(self) -> None:
        """See `Forked`: a signal to a child that a handler forks would not end it, but reach the worker.

        asyncio's handlers do nothing but write to a socket, which the child shares with the worker's loop.
        """
        signal.set_wakeup_fd(-1)
        self.restore()


async def program_ended() -> None:
    """Wait until the program's main thread has ended; for loops in other threads."""
    while threading.main_thread().is_alive():  # noqa: ASYNC110 - nothing sets an event at that moment
        await asyncio.sleep(PROGRAM_INTERVAL)


async def termination_noticed(
    ask: Callable[[], float | None], threads: DaemonThreads, calls: ThreadsafeCalls, clock: Clock
) -> float:
    """Wait for a termination notice; return the seconds that are left.

    The hook `ask` is called in a daemon thread: one that hangs does not hold the worker.
    """
    while (left := await _notice(ask, threads, calls)) is None:
        await clock.sleep_async(NOTICE_INTERVAL)
    return left


async def _notice(
    ask: Callable[[], float | None], threads: DaemonThreads, calls: ThreadsafeCalls
) -> float | None:
    returned: list[float | None] = []

    def asked() -> None:
        returned.append(checked_time_left("termination_notice", ask()))

    try:
        call = ThreadCall("termination notice", asked, threads, calls)
    except RuntimeError as refusal:  # the system starts no more threads at the moment
        log.error("termination_notice cannot be called, retrying: %s", refusal)  # noqa: TRY400 - the error says it all
        return None
    await asyncio.wait([call.ended])
    if (error := call.ended.result()) is not None:
        log.error("termination_notice failed", exc_info=error)
    return returned[0] if returned else None


class RepeatedErrors:
    """Counts the internal errors in a row with the same cause.

    Args:
        limit: How many of them are too many; 0: no number is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._cause = ""
        self._count = 0

    def too_many(self, end: TaskEnd) -> InternalError | None:
        """Count the end of a run; return the reason to stop claiming if the limit is reached."""
        if end.outcome != ReasonResolved.INTERNAL_ERROR.value or end.error is None:
            self._count = 0
            return None
        cause = _cause_of(end.error)
        self._count = self._count + 1 if cause == self._cause else 1
        self._cause = cause
        if self._count != self._limit:
            return None
        return InternalError(
            f"{self._count} internal errors in a row with the same cause: {cause}; the worker claims no more "
            f"tasks (setting max_internal_errors)"
        )


def _cause_of(error: BaseException) -> str:
    """Return the cause in words that are the same for other tasks."""
    error = error.__cause__ or error
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__} {errno.errorcode.get(error.errno, error.errno)}: {error.strerror}"
    return f"{type(error).__name__}: {_VARYING.sub('…', text_of(error))}"
