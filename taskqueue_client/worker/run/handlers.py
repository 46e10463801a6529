"""Calls of a worker's handler: plain functions in a thread each, coroutines in one loop in another thread."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from subprocess import CompletedProcess
from typing import Any, NamedTuple, Self, TypeVar, cast

from taskqueue_client._arguments import some_of
from taskqueue_client.models import TaskState
from taskqueue_client.worker.commands.command import CommandResult
from taskqueue_client.worker.config import INTERVAL
from taskqueue_client.worker.outcomes import (
    RESOLUTIONS,
    IntermittentTask,
    InternalError,
    Outcome,
    leaves_of,
    outcome_for,
    outcome_of,
    summary_of,
    thread_refused,
)
from taskqueue_client.worker.payload import check_payload
from taskqueue_client.worker.threads import DaemonThreads, EventThread, Job, ThreadsafeCalls, watch_loop
from taskqueue_client.worker.worker_log import UnlockedHandler, handled_run, log, note_of_unformattable

from .run_resources import HandlerQueue, RunResources
from .task_run import TaskRun, UnawaitedCalls

T = TypeVar("T")

HANDLER_GRACE = 10.0
"""Seconds, beyond those that its commands get, for a handler to clean up after it was asked to stop."""

TO_END = 2.0
"""Seconds to wait for the end of the handlers' loop: a handler that blocks it does not hold the worker."""


class Handlers:
    """Calls a worker's handler, which is a plain or a coroutine function. An async context manager.

    Args:
        queue: The client of coroutine handlers, closed in their loop.
        calls: Calls to the loop of the runs.
        capture_logging: Whether what a handler logs goes to the task's log as well.
    """

    def __init__(
        self,
        run_task: Callable[[TaskRun], object],
        queue: HandlerQueue,
        calls: ThreadsafeCalls,
        *,
        capture_logging: bool,
    ) -> None:
        self._calls = calls
        self._capture = LoggingCapture() if capture_logging else None
        self._run_task = run_task
        self._queue = queue
        self._threads = DaemonThreads()
        self._thread: EventThread | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if inspect.iscoroutinefunction(self._run_task):
            self._thread = EventThread("taskqueue handlers")
            self._queue.loop = self._thread.loop
            self._thread.loop.set_task_factory(_noted_task)
            self._watch = asyncio.create_task(watch_loop(self._thread))
        if self._capture is not None:
            self._capture.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._watch is not None:
                self._watch.cancel()
            await asyncio.to_thread(self._threads.close)
            if self._thread is not None:
                await asyncio.to_thread(self._stop, self._thread)
        finally:
            if self._capture is not None:
                self._capture.close()

    def call(self, resources: RunResources) -> HandlerCall:
        """Start the handler for a run, with the context variables of the caller.

        Raises:
            InternalError: The system does not start another thread.
        """
        context = copy_context()
        context.run(handled_run.set, (resources.run.task_id, resources.run.run_id))
        if self._capture is not None:
            self._capture.open()  # again: a handler that replaces the configuration of logging removes it
            context.run(_current_log.set, (self._capture, resources.log.logger))
        name = f"run {resources.run}"
        if self._thread is None:
            handler = partial(_call, self._run_task, resources)
            try:
                return ThreadCall(name, partial(context.run, handler), self._threads, self._calls)
            except RuntimeError as error:
                raise thread_refused() from error
        function = cast("Callable[[TaskRun], Coroutine[Any, Any, object]]", self._run_task)
        return CoroutineCall(
            name, partial(_raised_by_coroutine, function, resources), self._thread, self._calls, context
        )

    def _stop(self, thread: EventThread) -> None:
        turned = thread.turned()
        if thread.end(self._queue.close_connections(), TO_END):
            return
        if not turned.is_set():
            log.warning("a handler still blocks the event loop of all handlers, not waiting any longer")
        else:
            log.warning(
                "a handler, or an asyncio task that it has created, has not ended %.0f s after it was "
                "canceled, not waiting any longer",
                TO_END,
            )


def _call(run_task: Callable[[TaskRun], object], resources: RunResources) -> None:
    calls = UnawaitedCalls()
    try:
        returned = run_task(TaskRun(resources, calls))
    finally:
        resources.clean_up_at_once()
    calls.check(returned)
    _warn_of_returned_failure(returned, resources)


def _raised_by(function: Callable[[], object]) -> BaseException | None:
    """Return what a handler raises.

    Not a method of `ThreadCall`, which refers to the error: the traceback refers to this frame, and so would
    refer to `self`, which is a reference cycle.
    """
    process = os.getpid()
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is how its run ends
        _end_child_of(process, error)
        return error
    _end_child_of(process, None)
    return None


_started: ContextVar[dict[asyncio.Task[Any], None]] = ContextVar("_started")
"""The asyncio tasks that the handler of this context has started, and that have not ended.

Not a set, which takes 0.2 kB of each run.
"""


def _noted_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    """Create an asyncio task, which is in `_started` until it ends. Python 3.11 lacks `Task.get_context`."""
    task = asyncio.Task(work, loop=loop, **options)
    if (started := _started.get(None)) is not None:
        started[task] = None
        task.add_done_callback(started.pop)
    return task


async def _raised_by_coroutine(
    run_task: Callable[[TaskRun], Coroutine[Any, Any, object]], resources: RunResources
) -> BaseException | None:
    """Return what a coroutine handler raises, or the error about work that it has left behind."""
    process = os.getpid()
    started: dict[asyncio.Task[Any], None] = {}
    _started.set(started)
    try:
        calls = UnawaitedCalls()
        returned = await run_task(TaskRun(resources, calls))
        calls.check(returned)
        _warn_of_returned_failure(returned, resources)
    except BaseException as error:  # noqa: BLE001 - as above
        _end_child_of(process, error)
        return error
    else:
        _end_child_of(process, None)
        return None
    finally:
        _warn_of_tasks(started, resources)


def _warn_of_tasks(left: Iterable[asyncio.Task[Any]], resources: RunResources) -> None:
    running = [each for each in left if not (each.done() or each.cancelling())]
    names = sorted(f"{each.get_name()} ({getattr(each.get_coro(), '__qualname__', '')})" for each in running)
    if names:
        resources.log.logger.warning(
            "run_task has ended, but not these asyncio tasks that it has started: %s", some_of(names, 5)
        )


_FAILURES = (*filter(None, RESOLUTIONS.values()), TaskState.EXCEPTION)
"""States and reasons that a handler may return, although it has to raise an outcome."""


def _warn_of_returned_failure(returned: object, resources: RunResources) -> None:
    """Warn if the handler returns something that looks like a failure: the task is completed all the same."""
    if isinstance(returned, CommandResult):
        is_failure = returned.exit_code != 0
    elif isinstance(returned, CompletedProcess):
        is_failure = returned.returncode != 0
    else:
        is_status = type(returned) is int and returned != 0
        is_name = isinstance(returned, str) and returned in _FAILURES
        kind = returned if type(returned) is type else type(returned)  # proxies may say that they are classes
        is_failure = returned is False or is_status or is_name or issubclass(kind, BaseException)
    if is_failure:
        resources.log.logger.warning(
            "what run_task returned has no effect: to fail the task, raise TaskFailed"
        )


@contextmanager
def children_ended() -> Generator[None]:
    """End children that a block forks, and that leave the block."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        _end_child_of(process, error)
        raise
    _end_child_of(process, None)


def _end_child_of(process: int, raised: BaseException | None) -> None:
    """End this process if it is a child that a handler or hook has forked, and that has left this method.

    Otherwise it would go on as a second worker. Its exit code is that of its `sys.exit`; else 1.
    """
    if os.getpid() == process:
        return
    try:
        if raised is None:
            sys.stderr.write("a forked child returned from the method that forked it; end it with os._exit\n")
        elif not isinstance(raised, SystemExit):
            traceback.print_exception(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        code = raised.code if isinstance(raised, SystemExit) else 1
        os._exit(code if isinstance(code, int) else int(code is not None))


class ThreadCall:
    """A call of a plain function in a thread.

    Attributes:
        ended: A future of the loop that makes the call: what the function raised, or None.
    """

    __slots__ = ("ended",)

    def __init__(
        self, name: str, function: Callable[[], object], threads: DaemonThreads, calls: ThreadsafeCalls
    ) -> None:
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def end(raised: BaseException | None) -> None:
            calls.call(self.ended.set_result, raised)

        threads.start(Job(name, partial(_raised_by, function), end))

    def interrupt(self) -> None:
        """Do nothing: a thread cannot be interrupted, and its handler looks at `TaskRun.canceled`."""


class CoroutineCall:
    """A call of a coroutine function in the handlers' loop; see `ThreadCall` for `ended`."""

    __slots__ = ("_calls", "_task", "_thread", "ended")

    def __init__(
        self,
        name: str,
        function: Callable[[], Coroutine[Any, Any, BaseException | None]],
        thread: EventThread,
        calls: ThreadsafeCalls,
        context: Context,
    ) -> None:
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._calls = calls
        self._thread = thread

        def start() -> None:
            self._task = asyncio.create_task(function(), name=name, context=context)
            self._task.add_done_callback(self._has_ended)

        thread.call(start)

    def interrupt(self) -> None:
        """Cancel the asyncio task."""
        self._thread.call(self._cancel)

    def _cancel(self) -> None:
        self._task.cancel()  # in the loop, after `start`

    def _has_ended(self, task: asyncio.Task[BaseException | None]) -> None:
        """Set `ended`. Called as well if the task was canceled before its first step."""
        raised = asyncio.CancelledError() if task.cancelled() else task.result()
        self._calls.call(self.ended.set_result, raised)


HandlerCall = ThreadCall | CoroutineCall


class TimeLimit(NamedTuple):
    """How long a run may take, and the setting or hook that says so."""

    seconds: float
    source: str


class Attempts:
    """Calls the handler of a run, again if the task asks for a retry, all within the run's time limit.

    Attributes:
        stopped: The first reason that was given to `stop`; None: there was none.
        call: The last call of the handler; None before the first.
    """

    def __init__(self, resources: RunResources, call_handler: Callable[[RunResources], HandlerCall]) -> None:
        self._resources = resources
        self._shared = resources.shared
        self._call_handler = call_handler
        self.stopped: Outcome | None = None
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._abandoned: asyncio.Future[None] | None = None
        self._reason: Outcome | None = None  # why the handler was asked to stop
        self._limit: TimeLimit | None = None
        self._over: asyncio.Task[None] | None = None  # ends when all attempts together have taken too long
        self.call: HandlerCall | None = None

    async def result(self) -> BaseException | None:
        """Check the payload, and call the handler; return what was raised in the end."""
        try:
            check_payload(self._shared.schema, self._resources.definition()["payload"])
            return await self._call_and_retry()
        except Exception as error:  # noqa: BLE001 - the error is how the run ends
            return self._outcome_of(error)

    def _outcome_of(self, raised: BaseException | None) -> BaseException | None:
        """See `outcome_of`. If a group of outcomes counts as its first one, log the others."""
        found = raised and outcome_of(raised, self._resources.definition()["payload"])
        if raised is not None and found is not raised:
            _, *others = leaves_of(raised)  # the log will end with the first one, which counts
            for each in others:
                self._resources.log.logger.error("%s", summary_of(each))
        return found

    def stop(self, reason: Outcome) -> bool:
        """Stop the handler, and all attempts; return whether that is new. The first reason counts."""
        self._cancel(reason)
        if self.stopped is not None:
            return False
        self.stopped = reason
        self._wake()
        return True

    def _cancel(self, reason: Outcome) -> None:
        self._reason = self._reason or reason
        self._resources.canceled.cancel(reason)

    def abandon(self) -> None:
        """Wait no longer for a handler that was asked to stop, nor for the end of its commands: kill them."""
        self._resources.is_hurried = True
        if self._abandoned is not None and not self._abandoned.done():
            self._abandoned.set_result(None)

    async def _call_and_retry(self) -> BaseException | None:
        left = self._shared.config.intermittent_attempts
        self._begin_limit()
        try:
            while True:
                with self._resources.tracing.span("attempt"):
                    raised = await self._attempt()
                left -= 1
                if not (left and isinstance(raised, IntermittentTask)) or self._is_over:
                    return raised
                self._resources.log.logger.warning(
                    "the task asks for a retry (attempts left: %d): %s", left, summary_of(raised)
                )
                await asyncio.to_thread(self._resources.start_over)
                if self.stopped is not None:
                    return self.stopped
        finally:
            if self._over is not None:
                self._over.cancel()
            if self._resources.has_commands:
                await asyncio.to_thread(self._resources.end_commands)

    def _own_time_limit(self) -> float | str | None:
        try:
            return self._shared.run_time_limit(TaskRun(self._resources, UnawaitedCalls()))
        except Exception:
            raise
        except BaseException as error:  # such as `sys.exit`: as in a handler, it ends the run, not the worker
            raise InternalError(f"run_time_limit raised {summary_of(error)}") from error

    def _begin_limit(self) -> None:
        """Begin the time limit: the shorter one of the setting `max_run_time` and the run's own, if any.

        Raises:
            InvalidArgument: The limit of the run is not more than 0 seconds.
        """
        most, own = self._shared.config.max_run_time, self._own_time_limit()
        limits = [] if most is None else [TimeLimit(most, "max_run_time")]
        if own is not None:
            limits.append(TimeLimit(INTERVAL.checked("run_time_limit", own), "run_time_limit"))
        if limits:
            self._limit = min(limits)
            self._over = asyncio.create_task(self._shared.clock.sleep_async(self._limit.seconds))
            self._over.add_done_callback(self._wake)

    @property
    def _is_over(self) -> bool:
        return self._over is not None and self._over.done()

    def _wake(self, _: object = None) -> None:
        """End the wait of an attempt: its handler has ended, or is to be stopped."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def _attempt(self) -> BaseException | None:
        self.call = call = self._call_handler(self._resources)
        # Not `asyncio.wait`, which takes 1 kB while the handler runs.
        self._woken = asyncio.get_running_loop().create_future()
        call.ended.add_done_callback(self._wake)
        if self.stopped is None and not self._is_over:
            await self._woken
        if self._limit is not None and self._is_over and not call.ended.done():
            outcome = outcome_for(self._shared.config.max_run_time_outcome)
            self._cancel(outcome(f"the run took longer than {self._limit.source}, {self._limit.seconds} s"))
        if not call.ended.done():
            await self._interrupt(call)
        # A reason to stop counts more than the handler's own end: `while not task.canceled.is_set()` returns.
        return self._reason or self._outcome_of(call.ended.result())

    async def _interrupt(self, call: HandlerCall) -> None:
        call.interrupt()
        grace = self._shared.config.termination_grace + HANDLER_GRACE
        asked = asyncio.get_running_loop().time()
        self._abandoned = abandoned = asyncio.get_running_loop().create_future()
        if self._resources.is_hurried:
            abandoned.set_result(None)
        await asyncio.wait([call.ended, abandoned], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not call.ended.done():
            seconds = asyncio.get_running_loop().time() - asked
            log.warning(
                "handler of %s is still running %.0f s after it was asked to stop; it keeps its slot",
                *(self._resources.run, seconds),
            )


_current_log: ContextVar[tuple[LoggingCapture, logging.Logger] | None] = ContextVar("task log", default=None)
"""The capture that takes messages of this thread or asyncio task, and the log of the run's task."""


class LoggingCapture(UnlockedHandler):
    """Writes what is logged inside of handlers to their tasks' logs, too, from `open` to `close`.

    Which task a message belongs to is a context variable: it is known in the handler's thread or asyncio
    task, in tasks that this one creates, and in `asyncio.to_thread`.
    """

    shows_worker_log = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message with the name of its logger, if it is from inside of a handler of this worker.

        What the worker logs is not about the task, and may be about the task's log itself.
        """
        current = _current_log.get()
        is_of_worker = record.name == log.name or record.name.startswith(f"{log.name}.")
        if current is None or current[0] is not self or is_of_worker:
            return
        named = copy.copy(record)
        try:
            named.msg, named.args = f"{record.name}: {record.getMessage()}", None
        except Exception as error:  # noqa: BLE001 - `handleError` would show arguments without masking
            named = note_of_unformattable(record, error)
        current[1].handle(named)

    def open(self) -> None:
        """Add this to the root logger; called for each run, as a handler may have removed it."""
        logging.getLogger().addHandler(self)

    def close(self) -> None:
        """Remove this from the root logger."""
        logging.getLogger().removeHandler(self)
        super().close()
