"""Reading the stacks of threads that block a worker, from several threads at a time."""

from __future__ import annotations

import threading

import pytest

from taskqueue_client.worker import threads

WAIT = 60.0


class Collector:
    """Stands in for `gc`: a second thread reads a stack while the first one has turned collection off."""

    def __init__(self) -> None:
        self.is_on = True
        self.first_is_done = threading.Event()
        self.second = threading.Thread(target=threads.stack_of, args=[0])

    def isenabled(self) -> bool:
        return self.is_on

    def enable(self) -> None:
        self.is_on = True

    def disable(self) -> None:
        if threading.current_thread() is self.second:
            assert self.first_is_done.wait(WAIT)
        self.is_on = False
        if threading.current_thread() is not self.second:
            self.second.start()
            self.second.join(0.1)  # time to check whether collection is on, unless a lock makes it wait


def test_threads_that_look_at_stacks_together_leave_the_garbage_collector_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "gc", collector := Collector())
    threads.stack_of(0)
    collector.first_is_done.set()
    collector.second.join(WAIT)
    assert collector.is_on
