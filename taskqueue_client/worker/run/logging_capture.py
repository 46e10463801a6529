"""Messages that handlers, and the libraries that they use, log: written to the logs of their tasks."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from taskqueue_client.worker.commands.task_log import UnlockedHandler
from taskqueue_client.worker.worker_log import log

from .task_run import TaskRun

_current: ContextVar[tuple[LoggingCapture, logging.Logger] | None] = ContextVar("task log", default=None)
"""The capture that takes messages of this thread or asyncio task, and the log of its task."""


class LoggingCapture(UnlockedHandler):
    """Writes what is logged inside of handlers to their tasks' logs, too, from `open` to `close`.

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
        """Pass what is logged inside of a handler of this worker.

        What the worker logs is not about the task, and may be about the task's log itself.
        """
        current = _current.get()
        is_of_worker = record.name == log.name or record.name.startswith(f"{log.name}.")
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

    def open(self) -> None:
        """Begin to take what any logger passes on."""
        logging.getLogger().addHandler(self)

    def close(self) -> None:
        """Take nothing any more."""
        logging.getLogger().removeHandler(self)
        super().close()
