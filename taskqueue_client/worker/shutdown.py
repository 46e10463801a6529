"""The shutdown of a worker: its reasons, its steps and their times.

The reasons are signals, a termination notice, the end of the program, and errors.
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, ClassVar, TypeVar

from taskqueue_client import _arguments as arguments
from taskqueue_client._protocol.threads_and_tasks import NO_THREAD
from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed
from taskqueue_client.models import ReasonResolved

from .claims.claiming import Claiming
from .claims.keeper import Keeper
from .config import WorkerConfig
from .outcomes import InternalError, WorkerShutdown, text_of
from .run.handlers import children_ended
from .run.lifecycle import LiveRuns, TaskEnd
from .run.upload_retries import RetryClock
from .threads import stack_of
from .worker_log import counted, log

T = TypeVar("T")

_Handler = Callable[[int, FrameType | None], Any] | int | None

AT_ONCE = signal.SIGQUIT
"""The signal that stops all runs at once; they are still reported."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, AT_ONCE)

NOTICE_INTERVAL = 5.0
"""Seconds between calls of `termination_notice`, as cloud providers recommend."""

PROGRAM_INTERVAL = 0.25
"""Seconds between looks whether the program's main thread has ended."""

FIRST_RESPONSE_INTERVAL = 1.0
"""Seconds between looks whether the Queue has responded, so that its time is known."""

HOOK_PATIENCE = 10.0
"""Seconds that a hook may take if a signal has come; then it is interrupted. Until the hook ends, the worker
can neither report runs nor shut down."""

HOOK_WARNING = 5.0
"""Seconds that a hook has taken at the first warning about it. Hooks that make a request take less."""

HANDED_OVER_AFTER = 2.0
"""Seconds between the start of a shutdown and the first `worker-shutdown` report. Workers that are told to
shut down at the same moment have ended their claim requests by then (`claiming.PROMPT`), so none of them
claims a run that another one gives up: each such claim would use up one of the task's retries."""

SIGNALED_WITHIN = 1.0
"""Seconds within which a signal reaches all processes of a service, of which the worker is one."""

TO_REPORT = 20.0
"""Seconds, beyond `termination_grace`, that are kept for handlers to end, reports and logs."""

TO_REPORT_UNENDED = 5.0
"""Seconds before the end of a shutdown at which runs are reported whose handlers have not ended."""

HURRIED = 10.0
"""Seconds from a second request to shut down to the end of the worker; claims that it still has expire."""

_VARYING = re.compile(r"[\w-]{22}|\d+|/\S+")
"""Identifiers, numbers and paths, which differ between errors with the same cause."""


class HookInterrupted(BaseException):
    """A signal has interrupted a hook. Not an `Exception`, which the hook may catch to try again."""


class Hooks:
    """Calls hooks of a worker in the thread of its loop, one at a time."""

    def __init__(self) -> None:
        self._name = ""
        self._began = math.inf
        self._signal: int | None = None
        self._alarm_before: _Handler = None

    @contextmanager
    def watched(self) -> Generator[None]:
        """Log a warning about hooks that take long. A separate thread does it, as a log may block, too."""
        ended = threading.Event()
        watch = partial(self._watch, threading.get_ident(), ended)
        threading.Thread(target=watch, name="taskqueue hooks", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _watch(self, thread: int, ended: threading.Event) -> None:
        warned, limit = math.inf, HOOK_WARNING
        while not ended.wait(HOOK_WARNING / 2):
            began = self._began
            limit = limit if began == warned else HOOK_WARNING
            seconds = time.monotonic() - began
            if seconds >= limit:
                log.warning(
                    "%s has blocked the worker for %.0f s, and no run is reported meanwhile; its stack:\n%s",
                    *(self._name, seconds, stack_of(thread)),
                )
                warned, limit = began, 2 * seconds

    def call(self, name: str, hook: Callable[[], T]) -> T:
        """Call a hook, and return what it returns.

        Raises:
            HookInterrupted: A signal has come, and the hook has blocked the loop for `HOOK_PATIENCE` seconds.
            BaseException: The hook raised it.
        """
        self._name, self._began = name, time.monotonic()
        try:
            if self._signal is not None:
                self._interrupt_later(self._signal, HOOK_PATIENCE)
            with children_ended():
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
            self._began = math.inf  # here, too: this error may keep `call` from doing it
            name = signal.Signals(number).name
            raise HookInterrupted(f"{name}, when the hook had blocked the worker for {seconds:.0f} s")
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
def signals_handled(
    on_signal: Callable[[signal.Signals], None], hooks: Hooks, last: Hooks
) -> Generator[None]:
    """Call `on_signal` with each signal of `SIGNALS`, in the loop of this main thread.

    A hook that blocks the loop is interrupted. Signals that are ignored, such as SIGHUP under `nohup`, stay
    ignored. Afterwards, signals only interrupt the hooks of `last`: otherwise, they would end the process
    during the last steps of the worker.
    """
    loop = asyncio.get_running_loop()
    numbers = [*_SignalHandlers().handlers]
    if signal.SIGTERM not in numbers:  # then a supervisor, unlike a terminal, can only send SIGKILL
        log.warning("SIGTERM will not shut down the worker: the worker was started with SIGTERM ignored")
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
        signal.signal(number, hooks.interrupt)  # in place of asyncio's handler, which does nothing
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, last.interrupt)


@contextmanager
def signals_restored() -> Generator[None]:
    """Restore the handlers of `SIGNALS` at the end, and in children that are forked meanwhile."""
    before = _SignalHandlers()
    forget_in_children(before)
    try:
        yield
    finally:
        if not _SignalHandlers.are_never_restored:
            before.restore()


def keep_signal_handlers() -> None:
    """Keep a worker's handlers until the process ends: a signal would replace the worker's exit status."""
    _SignalHandlers.are_never_restored = True


class _SignalHandlers:
    """The handlers of `SIGNALS` before the worker's own, without those of ignored signals."""

    are_never_restored: ClassVar[bool] = False  # the worker's own handlers are not replaced by these

    def __init__(self) -> None:
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.handlers = {each: found for each, found in handlers.items() if found is not signal.SIG_IGN}

    def restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def forget(self) -> None:
        """See `Forked`: a signal to a forked child would reach the worker instead of ending the child.

        With asyncio's handlers, Python only writes to a socket, which the child shares with the worker.
        """
        signal.set_wakeup_fd(-1)
        self.restore()


async def program_ended() -> None:
    """Wait until the program's main thread has ended; for loops in other threads."""
    while threading.main_thread().is_alive():  # noqa: ASYNC110 - nothing sets an event at that moment
        await asyncio.sleep(PROGRAM_INTERVAL)


async def termination_noticed(ask: Callable[[], float | str | None], clock: Clock) -> float:
    """Wait for a termination notice; return the seconds that are left.

    The hook `ask` is called in a daemon thread, of the loop's `DaemonExecutor`: a hook that hangs does not
    keep the worker from ending. An error is logged unless the call before has failed for the same cause.
    """
    loop_thread = threading.get_ident()

    def asked() -> tuple[float | None, BaseException | None]:
        if threading.get_ident() == loop_thread:  # the executor could not start a thread
            return None, RuntimeError(NO_THREAD)
        try:
            with children_ended():
                return arguments.seconds("termination_notice", ask()), None
        except BaseException as error:  # noqa: BLE001 - in the loop, a SystemExit would end the worker
            return None, error

    logged = ""
    while True:
        left, error = await asyncio.to_thread(asked)
        if left is not None:
            return left
        cause = "" if error is None else _cause_of(error)
        if cause not in {"", logged}:
            log.error("termination_notice failed, retrying", exc_info=error)
        logged = cause
        await clock.sleep_async(NOTICE_INTERVAL)


async def first_response(queue: AsyncQueue, claiming: Claiming, clock: Clock) -> None:
    """Wait until the Queue has responded, or the first claim request has failed.

    Until then, an open claim request does not show that there is no work: it may still be connecting.
    """
    queue = queue.with_options(attempts=1)
    while not claiming.has_claimed and claiming.failure is None:
        try:
            await queue.ping()
        except CallFailed:
            await clock.sleep_async(FIRST_RESPONSE_INTERVAL)
        else:
            return


class RepeatedErrors:
    """Counts the internal errors in a row with the same cause; a limit of 0 allows any number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._cause = ""
        self._count = 0

    def too_many(self, end: TaskEnd) -> InternalError | None:
        """Count the end of a run; return the error that ends the worker at the limit, else None."""
        if end.outcome != ReasonResolved.INTERNAL_ERROR.value or end.error is None:
            self._count = 0
            return None
        cause = _cause_of(end.error)
        self._count = self._count + 1 if cause == self._cause else 1
        self._cause = cause
        if self._count != self._limit:
            return None
        errors = counted(self._count, "internal error")
        return InternalError(
            f"{errors} in a row with the same cause: {cause}; the worker claims no more tasks (setting "
            f"max_internal_errors)"
        )


def _cause_of(error: BaseException) -> str:
    """Return the cause of an error, without the parts that differ between tasks."""
    error = error.__cause__ or error
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__} {errno.errorcode.get(error.errno, error.errno)}: {error.strerror}"
    return f"{type(error).__name__}: {_VARYING.sub('…', text_of(error))}"


@dataclass(frozen=True, slots=True)
class ShutdownPlan:
    """The steps of a shutdown, in seconds from its start.

    Attributes:
        stop_runs: When runs that have not ended are stopped.
        abandon_handlers: When runs whose handlers have not ended are reported.
        end: When the worker ends, whatever hangs.
    """

    stop_runs: float
    abandon_handlers: float
    end: float

    @classmethod
    def of(cls, config: WorkerConfig, within: float | None, left: float | None) -> ShutdownPlan:
        """Return the plan of one shutdown.

        Runs may go on for `within` seconds; None: `graceful_shutdown_timeout`. The machine ends in `left`
        seconds; None: unknown.
        """
        grace = config.graceful_shutdown_timeout if within is None else within
        to_end = config.termination_grace + TO_REPORT
        end = grace + to_end if config.shutdown_timeout is None else config.shutdown_timeout
        end = end if left is None else min(left, end)
        return cls(
            stop_runs=min(grace, end - min(to_end, end / 2)),
            abandon_handlers=end - min(TO_REPORT_UNENDED, end / 4),
            end=end,
        )

    def of_runs(self, runs: str) -> str:
        """Return the log line about the open runs, which `runs` names, such as `2 runs`."""
        ask = "ask again (second signal, Ctrl-C) to stop the runs now"
        if self.end == math.inf:  # as worker-runner asks with `finish-tasks: true`
            return f"{runs} may go on without limit; {ask}"
        end = f"the worker ends within {self.end:.0f} s"
        if self.stop_runs == 0:
            return f"stopping {runs}; {end}"
        return f"{runs} may go on for {self.stop_runs:.1f} s, and {end}; {ask}"


class Shutdown:
    """The shutdown of a worker, in the loop that it is made in. It makes the waits of `retry_clock` shorter.

    Attributes:
        timed_out: A future that gets the reason when the worker has to end, whatever hangs.
    """

    def __init__(
        self, config: WorkerConfig, keeper: Keeper, runs: LiveRuns, clock: Clock, retry_clock: RetryClock
    ) -> None:
        self._was_requested = False
        self._asked = asyncio.Event()
        self.timed_out: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._retry_clock = retry_clock
        self._config = config
        self._keeper = keeper
        self._runs = runs
        self._clock = clock
        self._began = math.inf
        self._following: asyncio.Task[None] | None = None
        self._stop_at = self._end_at = math.inf

    @property
    def has_begun(self) -> bool:
        """Whether the shutdown has begun."""
        return self._began < math.inf

    @property
    def was_asked(self) -> bool:
        """Whether the worker was told to shut down; False if it has decided that itself."""
        return self._asked.is_set()

    def on_signal(self, number: signal.Signals) -> None:
        """Take a signal as a request to shut down, and `AT_ONCE` as two requests."""
        log.info("received %s", number.name)
        if number is AT_ONCE and not self._was_requested:
            self.request(0.0)
        self.request()

    def request(self, within: float | None = None) -> None:
        """Begin to shut down; on a second request, stop all runs at once.

        A shutdown that a termination notice, worker-runner or the worker has begun is not counted as one.
        """
        if self._was_requested:
            self._hurry()
        else:
            self._was_requested = True
            self.begin(within)

    def terminate(self, within: float | None) -> None:
        """Begin to shut down, as worker-runner asks."""
        log.warning("worker-runner has asked the worker to shut down")
        self.begin(within)

    def on_notice(self, left: float) -> None:
        """Begin: the machine ends in `left` seconds. If none are left, stop and report all runs at once."""
        log.warning("termination notice received: %.0f s left", left)
        if left > 0:
            self.begin(left=left)
        else:
            self.begin(0.0, HURRIED)

    def begin(self, within: float | None = None, left: float | None = None, *, asked: bool = True) -> None:
        """Begin to shut down; if that has begun, take its steps earlier, but not later.

        For `within` and `left`, see `ShutdownPlan.of`; `asked` is whether the worker was told to.
        """
        if asked:
            self._asked.set()
        if self.has_begun:
            self._bring_forward(within, left)
            return
        self._began = self._clock.monotonic()
        self._keeper.stop_claiming()
        self._follow(ShutdownPlan.of(self._config, within, left))

    async def until(self, finished: asyncio.Event) -> None:
        """Wait for the end of the worker. Ctrl-C in `serve`, which cancels this call, stops the runs."""
        try:
            await finished.wait()
        except asyncio.CancelledError:
            log.warning("interrupted: stopping the runs now")
            self.begin(0.0)
            await finished.wait()  # until they are reported, or until the next Ctrl-C
            raise

    async def is_asked(self) -> bool:
        """Return whether the worker was told to shut down, or is told within `SIGNALED_WITHIN` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SIGNALED_WITHIN):
                await self._asked.wait()
        return self.was_asked

    async def until_handed_over(self) -> None:
        """Wait until `HANDED_OVER_AFTER` has passed since the shutdown began."""
        passed = self._clock.monotonic() - self._began
        await self._clock.sleep_async(max(HANDED_OVER_AFTER - passed, 0))

    def _bring_forward(self, within: float | None, left: float | None) -> None:
        now = self._clock.monotonic()
        until_stop, until_end = max(self._stop_at - now, 0.0), self._end_at - now
        if within is None:
            within = self._config.graceful_shutdown_timeout if left is None else math.inf
        left = math.inf if left is None else left
        if within < until_stop or left < until_end:
            self._follow(ShutdownPlan.of(self._config, min(within, until_stop), min(left, until_end)))

    def _follow(self, plan: ShutdownPlan) -> None:
        if not self._runs.unresolved:
            log.info("shutting down: no more claims, and no runs to wait for")
        else:
            runs = counted(self._runs.unresolved, "run")
            log.info("shutting down: no more claims; %s", plan.of_runs(runs))
        self._retry_clock.hurry(plan.end)
        now = self._clock.monotonic()
        self._stop_at, self._end_at = now + plan.stop_runs, now + plan.end
        if self._following is not None:
            self._following.cancel()
        self._following = asyncio.create_task(self._take_steps(plan))

    async def _take_steps(self, plan: ShutdownPlan) -> None:
        sleep = self._clock.sleep_async
        await sleep(plan.stop_runs)
        self._stop_runs()
        await sleep(plan.abandon_handlers - plan.stop_runs)
        for each in self._runs:
            each.abandon_handler()
        await sleep(plan.end - plan.abandon_handlers)
        self._time_out(f"the shutdown timed out after {plan.end:.0f} s")

    def _stop_runs(self) -> None:
        for each in self._runs:
            each.stop(shutting_down())

    def _hurry(self) -> None:
        log.info("stopping all runs now: the worker ends within %.0f s", HURRIED)
        self._keeper.abort_claiming()
        self._retry_clock.hurry(HURRIED)
        self._stop_runs()
        for each in self._runs:
            each.hurry()
        words = f"the worker did not end within {HURRIED:.0f} s after the second request to shut down"
        asyncio.get_running_loop().call_later(HURRIED, self._time_out, words)
        self._stop_at = self._end_at = self._clock.monotonic()  # `begin` can bring nothing forward any more

    def _time_out(self, why: str) -> None:
        if self.timed_out.done():
            return
        for each in self._runs:
            each.give_up(why)
        self.timed_out.set_result(why)


def shutting_down() -> WorkerShutdown:
    """Return the reason to stop a run."""
    return WorkerShutdown("the worker is shutting down")
