"""Waiting for the end of threads and of tasks, also after a Ctrl-C and when the program ends.

Also `AsyncResult`, the type of the object that a call of an `async def` returns: for mypy a `Coroutine`, for
pyright a `CoroutineType`. A method that is not written as `async def` needs the same type: otherwise mypy
refuses the `async def` of a subclass that overrides it, or pyright refuses the object where a protocol has an
`async def`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from sys import is_finalizing
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

from taskqueue_client.errors import ClientUnusable

if TYPE_CHECKING:
    import asyncio
    from types import AsyncGeneratorType

# mypy treats MYPY as true. pyright uses the last import of the name, where other modules import it.
MYPY = False
if MYPY:
    from collections.abc import Coroutine as AsyncResult
else:
    from types import CoroutineType as AsyncResult

__all__ = [
    "NO_THREAD", "RAISE_LIMIT", "AsyncResult", "LoopEnd", "begin", "call_on_threads", "end_other_tasks",
    "end_tasks", "finalize_in_loop", "is_canceled", "running_loop",
]  # fmt: skip

NO_THREAD = "can't start new thread"
"""The text of Python's `RuntimeError` when the system does not start another thread."""

RAISE_LIMIT = (
    "raise the limit of processes (`ulimit -u`, or that of the container) or of memory (`ulimit -v`)"
)
"""Advice for that error, in which Python does not say which limit was reached. Threads take address space."""

_TICK = 0.01  # seconds between two checks whether threads have ended, after an error

_PATIENCE = 10.0  # seconds after which tasks are canceled again


def call_on_threads(work: Callable[[], None], count: int, stop: Callable[[], object]) -> None:
    """Call `work` on threads, with the context variables of the caller; wait for all, raise the first error.

    If no more threads can be started, it is called on fewer threads, or on this one. Python's executors start
    no threads once the main thread has ended: in functions of `atexit`, and in threads that still run. After
    an error on this thread, such as a Ctrl-C, `stop` makes the calls end soon.
    """
    threads: list[_Thread] = []
    try:
        while len(threads) < count and _is_started(work, threads):
            pass
        if not threads:
            work()
        for thread in threads:
            thread.join()
    except BaseException:
        stop()
        while any(thread.is_working for thread in threads):
            sleep(_TICK)  # no `join`: in Python 3.11, a thread seems to have ended after an error in `join`
        raise
    for thread in threads:
        thread.raise_error()


def _is_started(work: Callable[[], None], threads: list[_Thread]) -> bool:
    """Start one more thread; return False if that is not possible."""
    if is_finalizing():  # up to Python 3.11, `start` would wait for ever
        return False
    threads.append(_Thread(target=copy_context().run, args=(work,), name=f"conversations_{len(threads)}"))
    try:
        threads[-1].start()
    except RuntimeError:
        threads.pop()
        return False
    return True


class _Thread(Thread):
    """A thread that stores its error, which `raise_error` raises in another thread."""

    _error: BaseException | None = None
    _has_ended = False

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # noqa: BLE001 - see `raise_error`
            self._error = error
        finally:
            self._has_ended = True

    @property
    def is_working(self) -> bool:
        return self.ident is not None and not self._has_ended

    def raise_error(self) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # else a cycle: its traceback refers to this frame


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop; raise `ClientUnusable` if no event loop of asyncio runs, as in trio."""
    import asyncio  # noqa: PLC0415 - loaded already

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ClientUnusable(
            "an AsyncQueue needs an event loop of asyncio, and none runs: use a Queue, in a thread"
        ) from None


def finalize_in_loop(owner: object, close: Callable[..., object], *arguments: object) -> finalize[..., Any]:
    """Return a finalizer that calls `close` in the thread of the running event loop, if that still runs.

    Any thread may free the owner. asyncio's transports are not thread-safe: uvloop's would crash the process.
    """
    return finalize(owner, _call_in, running_loop(), close, *arguments)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    import asyncio  # noqa: PLC0415 - loaded already

    if loop.is_running() and loop is not asyncio._get_running_loop():  # noqa: SLF001 - documented for loops
        loop.call_soon_threadsafe(function, *arguments)
    else:
        function(*arguments)


class LoopEnd:
    """Calls a function when the running event loop ends, before it is closed.

    `asyncio.run` ends the asynchronous generators of its loop, as each loop does in `shutdown_asyncgens`.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._generator: AsyncGeneratorType[None, None] | None = None
        if not getattr(running_loop(), "_asyncgens_shutdown_called", False):  # asyncio would warn
            self._generator = cast("AsyncGeneratorType[None, None]", self._until_the_end(close))
            begin(self._generator.__anext__())

    @staticmethod
    async def _until_the_end(close: Callable[[], object]) -> AsyncGenerator[None]:
        try:
            yield
        except GeneratorExit:
            close()

    def forget(self) -> None:
        """Do not call the function any more, unless it is being called. The loop may be closed already."""
        if self._generator is not None and not self._generator.ag_running:
            begin(self._generator.__anext__())


def begin(step: Awaitable[object]) -> None:
    """Run an awaitable up to the point where it waits or ends, and do not wait for it."""
    waiting = step.__await__()
    with suppress(StopIteration, StopAsyncIteration):
        next(waiting)
    waiting.close()


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end; cancel them again if they do not end.

    Before Python 3.12, `asyncio.wait_for` may lose a cancellation that comes together with its result.
    """
    import asyncio  # noqa: PLC0415 - loaded already

    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_PATIENCE)


def is_canceled() -> bool:
    """Return whether this task, which has caught a `CancelledError`, was canceled.

    aiormq also raises a `CancelledError` in calls that wait for the broker when a connection ends.
    """
    import asyncio  # noqa: PLC0415 - loaded already

    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def end_other_tasks() -> None:
    """End all other tasks of the event loop, and tasks that begin meanwhile, before the loop is closed.

    `asyncio.run` does not wait for the latter: aiormq begins some if a connection breaks while it is opened.
    """
    import asyncio  # noqa: PLC0415 - loaded already

    own = asyncio.current_task()
    while others := [task for task in asyncio.all_tasks() if task is not own]:
        await end_tasks(*others)
