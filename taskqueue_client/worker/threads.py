"""Threads of a worker: daemon threads that call functions, and event loops that other threads can call.

Event loops are watched: for how long they are blocked, and by which code.
"""

from __future__ import annotations

import asyncio
import gc
import queue
import select
import selectors
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from selectors import DefaultSelector
from typing import Any, NamedTuple, ParamSpec, TypeVar, TypeVarTuple

from .worker_log import log

P = ParamSpec("P")
T = TypeVar("T")
Args = TypeVarTuple("Args")

BLOCKED_AFTER = 1.0
"""Seconds without a turn of the handlers' loop after which a warning is logged; each further warning comes
after twice as long. Runs are still reclaimed, but the other handlers stand still."""


def check_not_patched() -> None:
    """Raise a RuntimeError if gevent or eventlet has replaced modules that workers use: they would hang."""
    needed = (
        threading.get_ident, queue.SimpleQueue, select.select, selectors.DefaultSelector, subprocess.Popen,
    )  # fmt: skip
    for each in needed:
        library = each.__module__.partition(".")[0]
        if library in {"gevent", "eventlet"}:
            raise RuntimeError(
                f"{library} has replaced {each.__name__} in Python's standard library: workers need real "
                f"threads and processes; run them in a process that {library} has not patched"
            )


class Job(NamedTuple):
    """A function to call once on a thread.

    Attributes:
        name: The thread's name meanwhile.
        function: Returns the exception that it raised, or None.
        ended: Called with that exception when the thread is free again.
    """

    name: str
    function: Callable[[], BaseException | None]
    ended: Callable[[BaseException | None], object]


class DaemonThreads:
    """Gives each job a thread to itself, and uses the thread again afterwards.

    Starting a thread takes longer than everything else that a short run needs. The threads are daemons:
    a handler that never ends does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._closed = threading.Event()

    def start(self, job: Job) -> None:
        """Run a job on a thread.

        Raises:
            RuntimeError: The system starts no more threads, or the interpreter is shutting down.
        """
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _Thread(self._idle, self._closed)
        thread.jobs.put(job)

    def close(self) -> None:
        """End the idle threads; the others end after their job."""
        self._closed.set()
        while self._idle:
            thread = self._idle.pop()
            thread.jobs.put(None)
            thread.join()


class _Thread(threading.Thread):
    def __init__(self, idle: list[_Thread], closed: threading.Event) -> None:
        super().__init__(name="taskqueue thread", daemon=True)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = idle
        self._closed = closed
        self.start()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.name = job.name
            raised = job.function()
            self.name = "taskqueue thread"
            self._idle.append(self)  # before `ended`, which may lead to `close`
            job.ended(raised)
            del job, raised  # they refer to the run
            if self._closed.is_set():
                return


class DaemonExecutor(ThreadPoolExecutor):
    """An executor for event loops over `DaemonThreads`.

    When the program ends, Python waits for the threads of a plain `ThreadPoolExecutor`, so a name server or a
    file system that hangs would keep the process alive. Such an executor also refuses work from then on.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._daemons = DaemonThreads()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`; calls `fn` at once if no thread can be started."""
        future: Future[T] = Future()
        work: Callable[[], T] = partial(fn, *args, **kwargs)
        try:
            self._daemons.start(Job("taskqueue executor", partial(fulfill, future, work), _ignore))
        except RuntimeError:
            fulfill(future, work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        """End the idle threads; never wait for the others."""
        del wait, cancel_futures
        self._daemons.close()


def fulfill(future: Future[Any], work: Callable[[], Any]) -> None:
    """Set a future to what `work` returns or raises, unless the future was canceled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - the future has it
        future.set_exception(error)
    finally:
        del future  # it holds the error, whose traceback holds this frame


def _ignore(_: object) -> None:
    """Do nothing: `fulfill` has set the result."""


class WorkerEventLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop with an executor that is never waited for; see `DaemonExecutor`."""

    def __init__(self) -> None:
        selector = DefaultSelector()
        try:
            super().__init__(selector)
        except BaseException:
            selector.close()  # or each attempt that fails keeps a file descriptor open
            raise
        self.set_default_executor(DaemonExecutor())

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as in the base class
        """Do nothing: asyncio starts a thread here, which fails when the interpreter shuts down."""


class ThreadsafeCalls:
    """Calls from other threads to an event loop, in the order in which they were made.

    Waking a loop costs a system call, at which threads wait for each other. So the loop is woken once for
    all calls that come together. The calls have an empty context, without the callers' context variables:
    otherwise, all of them would have the variables of the caller that woke the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._context = Context()
        self._is_woken = False
        self._asked: float | None = None

    def call(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Have the loop call a function soon; nothing happens if the loop is closed."""
        self._calls.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._make_calls, context=self._context)

    def blocked_for(self, now: float) -> float:
        """Return for how many seconds a call to the loop has been pending; make one if none is."""
        asked = self._asked
        if asked is None:
            self._asked = now
            self.call(self._turn)
            return 0.0
        return now - asked

    def _turn(self) -> None:
        self._asked = None

    def forget(self) -> None:
        """Drop the calls that the loop has not made yet."""
        self._calls.clear()

    def _make_calls(self) -> None:
        self._is_woken = False  # before looking, so that a later call wakes the loop again
        while self._calls:
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - the other calls are made all the same
                context = {"message": f"a call of {function} failed", "exception": error}
                self._loop.call_exception_handler(context)


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


class EventThread:
    """An event loop in a separate thread, until `stop`.

    The thread is a daemon: user code that blocks the loop forever does not keep the process from ending.

    Raises:
        OSError: No file descriptor is free for the loop.
        RuntimeError: The system starts no more threads.
    """

    def __init__(self, name: str) -> None:
        self.loop = WorkerEventLoop()
        self._calls = ThreadsafeCalls(self.loop)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    @property
    def ident(self) -> int | None:
        """The thread's identifier, for `stack_of`."""
        return self._thread.ident

    def call(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Call `function` in the loop soon; nothing happens if the thread has ended."""
        self._calls.call(function, *args)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def begin(self, first: Coroutine[Any, Any, T]) -> T:
        """Run a first coroutine in the loop, and return its result; stop if it raises an error."""
        try:
            return self.submit(first).result()
        except BaseException:
            self.stop()
            raise

    def end(self, closing: Coroutine[Any, Any, object], timeout: float) -> bool:
        """Run a last coroutine in the loop, and stop; return whether each took less than `timeout` seconds.

        If the loop is blocked for longer, the thread ends when the loop is free again.
        """
        last = self.submit(closing)
        last.add_done_callback(lambda _: self.call(self._stop))
        try:
            last.result(timeout)
        except TimeoutError:
            return False
        return self.stop(timeout)

    def turned(self) -> threading.Event:
        """Return an event that the loop sets in its next turn; a blocked loop does not set it."""
        turned = threading.Event()
        self.call(turned.set)
        return turned

    def stop(self, timeout: float | None = None) -> bool:
        """Cancel what still runs in the loop, and wait for the thread; return whether it has ended."""
        self.call(self._stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _stop(self) -> None:
        if not self._is_stopping:  # a second `stop` would interrupt the tasks that the runner has canceled
            self._is_stopping = True
            self.loop.stop()

    def _run(self) -> None:
        """Run the loop until it is stopped. A `sys.exit` in a task of user code ends that task alone."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            loop = runner.get_loop()
            while not self._is_stopping:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    log.exception("a task in the thread %s tried to end the process", self._thread.name)


async def watch_loop(thread: EventThread) -> None:
    """Log a warning with the stack when handlers block the loop that they share. Runs in another loop."""
    while True:
        turned = asyncio.Event()
        thread.call(asyncio.get_running_loop().call_soon_threadsafe, turned.set)
        started, wait = time.monotonic(), BLOCKED_AFTER
        while not turned.is_set():
            try:
                async with asyncio.timeout(wait):
                    await turned.wait()
            except TimeoutError:
                log.warning(
                    "a handler has blocked the event loop that asynchronous handlers share for %.1f s; it "
                    "should await, or be a plain function; its stack:\n%s",
                    *(time.monotonic() - started, stack_of(thread.ident or 0)),
                )
                wait *= 2
        await asyncio.sleep(BLOCKED_AFTER)


_LOOKING = threading.Lock()
"""Held while the garbage collector is off: a second thread would find it off, and leave it off for good."""


def stack_of(thread: int) -> str:
    """Return what a thread is executing, as in a traceback, given its identifier (`threading.get_ident`).

    Garbage collection is off meanwhile: up to Python 3.11.8, it may stop all threads for good during this
    call (https://github.com/python/cpython/issues/106883).
    """
    with _LOOKING:
        collects = gc.isenabled()
        gc.disable()
        try:
            frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack  # pyright: ignore[reportPrivateUsage]
        finally:
            if collects:
                gc.enable()
    return "(the thread has ended)" if frame is None else "".join(traceback.format_stack(frame))
