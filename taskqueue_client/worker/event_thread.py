"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar, TypeVarTuple

from .inbox import Inbox

log = logging.getLogger("taskqueue_client.worker")

T = TypeVar("T")
Args = TypeVarTuple("Args")


class EventThread:
    """Runs what other threads hand to it, until it is stopped.

    It is a daemon: where user code holds its loop for ever, the process can still end.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        self.loop = started.result()
        self._inbox = Inbox(self.loop)

    @property
    def ident(self) -> int | None:
        """The thread's, for `sys._current_frames`."""
        return self._thread.ident

    def call(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Call `function` there soon; nothing happens if the thread has ended."""
        self._inbox.call(function, *args)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self, timeout: float | None = None) -> bool:
        """Cancel what still runs there, and wait for the thread; tell whether it has ended."""
        self._is_stopping = True
        self.call(self.loop.stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            loop.call_soon(started.set_result, loop)
            self._run_until_stopped(loop)

    def _run_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        """A `sys.exit` in a task that user code has started is not the end of all the others."""
        while not self._is_stopping:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                log.exception("in the thread %s, a task wanted to end the process", self._thread.name)
