"""One call of a handler: in a thread of its own, or in the loop that handlers share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from .event_thread import EventThread
from .handler_threads import HandlerThreads, Job
from .inbox import Inbox


class HandlerCall(Protocol):
    """A handler at work.

    Attributes:
        ended: What it raised, or None, once it has ended; belongs to the loop that started it.
    """

    ended: asyncio.Future[BaseException | None]

    def interrupt(self) -> None:
        """Tell it to stop, where there is a way to."""


class _Reporting:
    """Brings what a handler raised to the loop that started it."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def _report(self, raised: BaseException | None) -> None:
        self._inbox.call(self.ended.set_result, raised)


def _check_done(returned: object) -> None:
    """A handler that returns work instead of doing it has not completed its task."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # not that it warns of it as never awaited
        message = f"run_task gave a {type(returned).__name__}, which nobody runs: is it to be `async def`?"
        raise TypeError(message)


def _raised_by(function: Callable[[], object]) -> BaseException | None:
    """What a handler raises. No method: a traceback holds this frame, and a call what was raised."""
    try:
        _check_done(function())
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is how its run ends
        return error
    return None


async def _raised_by_awaited(function: Callable[[], Coroutine[Any, Any, object]]) -> BaseException | None:
    """The same for a coroutine."""
    try:
        _check_done(await function())
    except BaseException as error:  # noqa: BLE001 - as above
        return error
    return None


class BlockingCall(_Reporting):
    """A handler in a thread.

    Args:
        name: Of the thread.
        function: What to call.
        threads: Where handlers run.
        inbox: Of the loop that starts it.
    """

    def __init__(
        self, name: str, function: Callable[[], object], threads: HandlerThreads, inbox: Inbox
    ) -> None:
        super().__init__(inbox)
        threads.start(Job(name, partial(_raised_by, function), self._report))

    def interrupt(self) -> None:
        """A thread cannot be made to stop: it looks at `TaskRun.cancelled`, as its commands do."""


class AwaitedCall(_Reporting):
    """A handler in the handlers' loop.

    Args:
        name: Of the task.
        function: Makes the coroutine.
        thread: Where handlers run.
        inbox: Of the loop that starts it.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[], Coroutine[Any, Any, object]],
        thread: EventThread,
        inbox: Inbox,
    ) -> None:
        super().__init__(inbox)
        self._name = name
        self._function = function
        self._thread = thread
        self._task: asyncio.Task[BaseException | None] | None = None
        thread.call(self._start)

    def interrupt(self) -> None:
        """Cancel it."""
        self._thread.call(self._cancel)

    def _start(self) -> None:
        self._task = asyncio.create_task(_raised_by_awaited(self._function), name=self._name)
        self._task.add_done_callback(self._has_ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _has_ended(self, task: asyncio.Task[BaseException | None]) -> None:
        """Also where it was cancelled before its first step, and nothing of it ran."""
        self._report(asyncio.CancelledError() if task.cancelled() else task.result())
