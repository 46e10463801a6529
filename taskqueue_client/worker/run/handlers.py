"""Calls of a worker's handler: plain functions in a thread each, coroutines in one loop in another thread.

`LoggingCapture` writes what handlers, and the libraries that they use, log to the tasks' logs.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import logging
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import FrameType
from typing import Any, Self, cast

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.worker.commands.task_log import UnlockedHandler
from taskqueue_client.worker.event_thread import DaemonThreads, EventThread, Job, ThreadsafeCalls
from taskqueue_client.worker.task_run import TaskRun, check_awaited

log = logging.getLogger("taskqueue_client.worker")

TO_END = 2.0
"""Seconds that the handlers' loop has to end: a handler that blocks it does not hold the worker."""

BLOCKED_AFTER = 1.0
"""Seconds without a turn of the handlers' loop after which a warning is logged. Runs are still reclaimed, but
the other handlers stand still."""


class Handlers:
    """Calls a worker's handler, which is a plain or a coroutine function. An async context manager.

    Args:
        run_task: The handler.
        queue: The client of coroutine handlers, closed in their loop.
        calls: Calls to the loop of the runs.
    """

    def __init__(
        self, run_task: Callable[[TaskRun], object], queue: AsyncQueue, calls: ThreadsafeCalls
    ) -> None:
        self._calls = calls
        self._run_task = run_task
        self._queue = queue
        self._threads = DaemonThreads()
        self._thread: EventThread | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if inspect.iscoroutinefunction(self._run_task):
            self._thread = EventThread("taskqueue handlers")
            self._watch = asyncio.create_task(BlockedLoopWatch(self._thread).run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self._threads.close)
        if self._thread is not None:
            await asyncio.to_thread(self._stop, self._thread)

    def call(self, task: TaskRun) -> HandlerCall:
        """Start the handler for a run, with the context variables of the caller."""
        context = copy_context()
        name = f"run {task.task_id}/{task.run_id}"
        if self._thread is None:
            handler = partial(_call, self._run_task, task)
            return ThreadCall(name, partial(context.run, handler), self._threads, self._calls)
        function = cast("Callable[[TaskRun], Coroutine[Any, Any, object]]", self._run_task)
        handling = partial(_call_coroutine, function, task)
        return CoroutineCall(name, handling, self._thread, self._calls, context)

    def _stop(self, thread: EventThread) -> None:
        closing = thread.submit(self._queue.close())
        try:
            closing.result(TO_END)
        except TimeoutError:
            log.warning("a handler still blocks the event loop of all handlers; it is abandoned")
        else:
            thread.stop(TO_END)


class HandlerCall:
    """A call of a handler; a subclass starts it.

    Args:
        calls: Calls to the loop that starts the handler.

    Attributes:
        ended: What the handler raised, or None, once it has ended; belongs to that loop.
    """

    def __init__(self, calls: ThreadsafeCalls) -> None:
        self._calls = calls
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def interrupt(self) -> None:
        """Interrupt the handler. A thread cannot be interrupted: its handler looks at `TaskRun.canceled`."""

    def _end(self, raised: BaseException | None) -> None:
        self._calls.call(self.ended.set_result, raised)


def _check_done(returned: object) -> None:
    """Raise a TypeError if a handler returned work instead of doing it."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # or Python warns that it was never awaited
        message = (
            f"run_task returned a {type(returned).__name__} that was not run; declare run_task as `async def`"
        )
        raise TypeError(message)


def _call(run_task: Callable[[TaskRun], object], task: TaskRun) -> None:
    """Call a plain handler, and check that it has left no work behind."""
    _check_done(run_task(task))
    check_awaited(task)


async def _call_coroutine(run_task: Callable[[TaskRun], Coroutine[Any, Any, object]], task: TaskRun) -> None:
    """Call a coroutine handler, and check that it has left no work behind."""
    _check_done(await run_task(task))
    check_awaited(task)


def _raised_by(function: Callable[[], object]) -> BaseException | None:
    """Return what a handler raises.

    Not a method: the traceback refers to this frame, and a call to what was raised.
    """
    process = os.getpid()
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is how its run ends
        _end_child_of(process, error)
        return error
    _end_child_of(process, None)
    return None


async def _raised_by_coroutine(function: Callable[[], Coroutine[Any, Any, object]]) -> BaseException | None:
    """Return what a coroutine raises."""
    process = os.getpid()
    try:
        await function()
    except BaseException as error:  # noqa: BLE001 - as above
        _end_child_of(process, error)
        return error
    _end_child_of(process, None)
    return None


def _end_child_of(process: int, raised: BaseException | None) -> None:
    """End this process if it is a child that a handler has forked, and that has left the handler.

    It would go on as a second worker. Its exit code is that of its `sys.exit`; else 1.
    """
    if os.getpid() == process:
        return
    try:
        if raised is None:
            sys.stderr.write("a child that the handler has forked returned from it; end it with os._exit\n")
        elif not isinstance(raised, SystemExit):
            traceback.print_exception(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        code = raised.code if isinstance(raised, SystemExit) else 1
        os._exit(code if isinstance(code, int) else int(code is not None))


class ThreadCall(HandlerCall):
    """A call of a plain function in a thread.

    Args:
        name: The thread's name meanwhile.
        function: The handler.
        threads: The threads of handlers.
        calls: Calls to the loop that starts the handler.
    """

    def __init__(
        self, name: str, function: Callable[[], object], threads: DaemonThreads, calls: ThreadsafeCalls
    ) -> None:
        super().__init__(calls)
        threads.start(Job(name, partial(_raised_by, function), self._end))


class CoroutineCall(HandlerCall):
    """A call of a coroutine function in the handlers' loop.

    Args:
        name: The asyncio task's name.
        function: The handler.
        thread: The thread of the handlers' loop.
        calls: Calls to the loop that starts the handler.
        context: The context of the asyncio task.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[], Coroutine[Any, Any, object]],
        thread: EventThread,
        calls: ThreadsafeCalls,
        context: Context,
    ) -> None:
        super().__init__(calls)
        self._context = context
        self._name = name
        self._function = function
        self._thread = thread
        self._task: asyncio.Task[BaseException | None] | None = None
        thread.call(self._start)

    def interrupt(self) -> None:
        """Cancel the asyncio task."""
        self._thread.call(self._cancel)

    def _start(self) -> None:
        self._task = asyncio.create_task(
            _raised_by_coroutine(self._function), name=self._name, context=self._context
        )
        self._task.add_done_callback(self._has_ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _has_ended(self, task: asyncio.Task[BaseException | None]) -> None:
        """Called as well if the task was canceled before its first step."""
        self._end(asyncio.CancelledError() if task.cancelled() else task.result())


class BlockedLoopWatch:
    """Logs a warning with the stack when handlers block the loop that they share.

    It runs in another loop.

    Args:
        thread: The thread to watch.
        blocked_after: Seconds without a turn before the first warning; each further one takes twice as long.
    """

    def __init__(self, thread: EventThread, blocked_after: float = BLOCKED_AFTER) -> None:
        self._thread = thread
        self._blocked_after = blocked_after

    async def run(self) -> None:
        """Watch until canceled."""
        while True:
            await self._turn()
            await asyncio.sleep(self._blocked_after)

    async def _turn(self) -> None:
        """Wait for one turn of the watched loop, and log a warning as long as it does not come."""
        turned = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._thread.call(loop.call_soon_threadsafe, turned.set)
        started, patience = time.monotonic(), self._blocked_after
        while not turned.is_set():
            try:
                await asyncio.wait_for(turned.wait(), patience)
            except TimeoutError:
                self._warn(time.monotonic() - started)
                patience *= 2

    def _warn(self, seconds: float) -> None:
        frame = _frame_of(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"
        log.warning(
            "a handler has blocked the event loop of all handlers for %.1f s; it should await, or be a "
            "plain function; it is here:\n%s",
            seconds,
            stack,
        )


def _frame_of(thread: EventThread) -> FrameType | None:
    """Return what a thread is executing.

    Meanwhile there is no garbage collection: with one, the call may stop all threads for good, up to Python
    3.11.8 (https://github.com/python/cpython/issues/106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the documented way to another thread's stack  # pyright: ignore[reportPrivateUsage]
    finally:
        if collects:
            gc.enable()


_WORKER = "taskqueue_client.worker"
"""The logger of workers: what it logs is not about the task, and may be about the task's log itself."""

_current: ContextVar[tuple[LoggingCapture, logging.Logger] | None] = ContextVar("task log", default=None)
"""The capture that takes messages of this thread or asyncio task, and the log of its task."""


class LoggingCapture(UnlockedHandler):
    """Writes what is logged inside of handlers to their tasks' logs, too. A context manager.

    Which task a message belongs to is a context variable: it is known in the handler's thread or asyncio
    task, in tasks that this one creates, and in `asyncio.to_thread`.
    """

    def capturing(self, run_task: Callable[[TaskRun], Any]) -> Callable[[TaskRun], Any]:
        """Return a handler, a plain or a coroutine function, whose messages go to its task's log."""
        if inspect.iscoroutinefunction(run_task):

            async def run_async(task: TaskRun) -> object:
                with self._into(task.log):
                    return await cast("Awaitable[object]", run_task(task))

            return run_async

        def run(task: TaskRun) -> object:
            with self._into(task.log):
                return run_task(task)

        return run

    @contextmanager
    def _into(self, logger: logging.Logger) -> Generator[None]:
        token = _current.set((self, logger))
        try:
            yield
        finally:
            _current.reset(token)

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass what is logged inside of a handler of this worker."""
        current = _current.get()
        is_of_worker = record.name == _WORKER or record.name.startswith(f"{_WORKER}.")
        return current is not None and current[0] is self and not is_of_worker

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message with the name of its logger."""
        current = _current.get()
        if current is None:
            return
        named = copy.copy(record)
        try:
            named.msg, named.args = f"{record.name}: {record.getMessage()}", None
        except Exception:  # noqa: BLE001 - arguments that don't fit their message; logging reports those itself
            self.handleError(record)
        else:
            current[1].handle(named)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        self.close()
