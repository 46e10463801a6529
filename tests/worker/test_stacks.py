"""The stacks of threads that block a worker, which several threads look at."""

from __future__ import annotations

import threading

import pytest

from taskqueue_client.worker import threads

WAIT = 60.0


class Collector:
    """Stands for `gc`. A second thread looks at a stack while the first one has turned collection off."""

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
            self.second.join(0.1)  # it has looked by then whether collection is on, unless it has to wait


def test_threads_that_look_at_stacks_together_leave_the_garbage_collector_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "gc", collector := Collector())
    threads.stack_of(0)
    collector.first_is_done.set()
    collector.second.join(WAIT)
    assert collector.is_on
