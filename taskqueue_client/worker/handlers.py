"""Where handlers run: plain functions in a thread each, coroutines in one loop in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self, cast

from taskqueue_client.aio import AsyncQueue

from .blocked_loop import BlockedLoopWatch
from .event_thread import EventThread
from .handler_call import AwaitedCall, BlockingCall, HandlerCall
from .handler_threads import HandlerThreads
from .inbox import Inbox
from .task_run import TaskRun

log = logging.getLogger("taskqueue_client.worker")

TO_END = 5.0
"""Seconds that the handlers' loop has to end: a handler that holds it does not hold the worker."""


class Handlers:
    """Calls a worker's handler, whichever kind it is. Use it as an async context manager.

    Args:
        run_task: The handler.
        queue: The client of asynchronous handlers, closed in their loop.
        inbox: Of the loop that conducts runs.
    """

    def __init__(self, run_task: Callable[[TaskRun], object], queue: AsyncQueue, inbox: Inbox) -> None:
        self._inbox = inbox
        self._run_task = run_task
        self._queue = queue
        self._threads = HandlerThreads()
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
        """Start the handler."""
        name = f"run {task.task_id}/{task.run_id}"
        if self._thread is None:
            return BlockingCall(name, partial(self._run_task, task), self._threads, self._inbox)
        function = cast("Callable[[TaskRun], Coroutine[Any, Any, object]]", self._run_task)
        return AwaitedCall(name, partial(function, task), self._thread, self._inbox)

    def _stop(self, thread: EventThread) -> None:
        closing = thread.submit(self._queue.close())
        try:
            closing.result(TO_END)
        except TimeoutError:
            log.warning("a handler still holds the event loop of all handlers; it is left behind")
        else:
            thread.stop(TO_END)
