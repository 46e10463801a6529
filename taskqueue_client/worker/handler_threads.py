"""Threads for plain handlers: starting one takes longer than all else that a short run needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple


class Job(NamedTuple):
    """What a thread does once.

    Attributes:
        name: Of the thread meanwhile.
        function: What to call; gives what it raised.
        ended: Called with that when the thread is free again.
    """

    name: str
    function: Callable[[], BaseException | None]
    ended: Callable[[BaseException | None], object]


class HandlerThreads:
    """Gives each handler a thread to itself, and uses the thread again after it.

    They are daemons: a handler that never ends does not hold the process.
    """

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._closed = threading.Event()

    def start(self, job: Job) -> None:
        """Do it on a thread of its own. Not to be called from several threads at a time."""
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _Thread(self._idle, self._closed)
        thread.jobs.put(job)

    def close(self) -> None:
        """End the threads that are free; the others end when they are."""
        self._closed.set()
        while self._idle:
            thread = self._idle.pop()
            thread.jobs.put(None)
            thread.join()


class _Thread(threading.Thread):
    def __init__(self, idle: list[_Thread], closed: threading.Event) -> None:
        super().__init__(name="taskqueue handler", daemon=True)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = idle
        self._closed = closed
        self.start()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.name = job.name
            raised = job.function()
            self.name = "taskqueue handler"
            self._idle.append(self)  # before anybody hears of the end, and may close
            job.ended(raised)
            del job, raised  # they hold the run
            if self._closed.is_set():
                return
