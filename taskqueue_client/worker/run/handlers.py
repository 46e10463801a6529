"""Calls of a worker's handler: plain functions in a thread each, coroutines in one loop in another thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Self, cast

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.worker.monitoring.blocked_loops import BlockedLoopWatch
from taskqueue_client.worker.threads import DaemonThreads, EventThread, Job, ThreadsafeCalls
from taskqueue_client.worker.worker_log import log

from .task_run import TaskRun, check_awaited

TO_END = 2.0
"""Seconds that the handlers' loop has to end: a handler that blocks it does not hold the worker."""


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
