"""Polls for canceled runs: one call for all claimed runs, with a random interval each time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.worker.claims.cancellation import JITTER
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import WAIT, World, until
from tests.worker.request_log import Request, requests_noted
from tests.worker.worker_world import Working, worker_for

A_LITTLE = 0.001
"""Seconds that are added so that a moment is reached despite rounding errors of sums."""

pytestmark = pytest.mark.usefixtures("held_clock")


class Diary:
    """The queue's clock for a worker; notes when the worker will next poll for canceled runs.

    Args:
        clock: The queue's clock.
        interval: Seconds between polls: a sleep of about this length counts as one.
    """

    def __init__(self, clock: MovableClock, interval: float) -> None:
        self.now, self.monotonic, self.sleep = clock.now, clock.monotonic, clock.sleep
        self._clock = clock
        self._interval = interval
        self.looks: list[float] = []

    async def sleep_async(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        if 0.7 < seconds / self._interval < 1.3:
            self.looks.append(due)
        while (left := due - self.monotonic()) > 0:  # the clock may have moved since `due` was noted
            await self._clock.sleep_async(left)


@pytest.fixture
def requests(world: World) -> Iterator[list[Request]]:
    with requests_noted(world.local) as requests:
        yield requests


def looks(requests: list[Request]) -> list[float]:
    """Return when the queue responded to requests for statuses."""
    return [each.moment for each in requests if each.path == "/api/queue/v1/tasks/status"]


class Holders:
    """Handlers that run until they are asked to stop, or the test sets `finish`."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.finish = threading.Event()
        self.told: set[str] = set()

    def run(self, task: TaskRun) -> None:
        self.begun.release()
        while not self.finish.is_set():
            if task.canceled.wait(0.01):
                self.told.add(task.task_id)
                task.canceled.check()

    def until_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT)


@pytest.fixture
def holders() -> Iterator[Holders]:
    holders = Holders()
    yield holders
    holders.finish.set()


def test_workers_that_were_set_up_alike_do_not_look_at_the_same_moments(
    world: World, requests: list[Request], holders: Holders
) -> None:
    clock = world.local.clock
    diaries = [Diary(clock, 100) for _ in range(2)]
    with ExitStack() as stack:
        for number, diary in enumerate(diaries):
            world.create()
            worker = worker_for(
                world, holders.run, worker_id=f"worker-{number}", max_tasks=1, cancellation_poll_interval=100
            )
            worker.clock = diary
            stack.enter_context(Working(world, worker))
        stack.callback(holders.finish.set)
        holders.until_begun(2)
        for number in range(1, 11):
            until(lambda: all(diary.looks for diary in diaries))
            clock.advance(min(diary.looks[-1] for diary in diaries) + A_LITTLE - clock.monotonic())
            until(lambda: len(looks(requests)) >= number)  # noqa: B023 - called in this turn only
            until(lambda: all(diary.looks[-1] > clock.monotonic() for diary in diaries))
        looked = looks(requests)  # before `Working` ends, which moves the clock
        planned = [list(diary.looks) for diary in diaries]  # for the same reason
    assert len(set(looked)) == len(looked) == 10
    for moments in planned:
        for before, after in pairwise(moments):
            assert 100 * (1 - JITTER) <= after - before <= 100 * (1 + JITTER) + 2 * A_LITTLE


def test_one_call_is_about_all_runs(world: World, requests: list[Request], holders: Holders) -> None:
    clock = world.local.clock
    tasks = [world.create() for _ in range(3)]
    diary = Diary(clock, 100)
    worker = worker_for(world, holders.run, concurrency=3, max_tasks=3, cancellation_poll_interval=100)
    worker.clock = diary
    with Working(world, worker):
        holders.until_begun(3)
        for task_id in tasks[:2]:
            world.queue.cancel_task(task_id)
        clock.advance(diary.looks[0] + A_LITTLE - clock.monotonic())
        until(lambda: len(holders.told) == 2)
        until(lambda: len(diary.looks) == 2)  # it sleeps until its second poll
        until(lambda: looks(requests))
        assert len(looks(requests)) == 1
        holders.finish.set()
    assert holders.told == set(tasks[:2])


@pytest.mark.parametrize("interval", [2.0, 300.0])
def test_a_cancellation_is_noticed_before_the_interval_is_over(
    world: World, requests: list[Request], holders: Holders, interval: float
) -> None:
    task_id = world.create()
    worker = worker_for(world, holders.run, max_tasks=1, cancellation_poll_interval=interval)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        holders.until_begun(1)
        world.queue.cancel_task(task_id)
        world.local.clock.advance(interval * (1 + JITTER) + A_LITTLE)
        working.wait_for_end()
    assert holders.told == {task_id}
    until(lambda: looks(requests))  # the worker may read the response before the queue logs the request


def test_a_canceled_run_is_noticed_while_the_worker_runs_the_rerun_of_its_task(
    world: World, holders: Holders
) -> None:
    task_id = world.create()
    told: set[int] = set()

    def handler(task: TaskRun) -> None:
        try:
            holders.run(task)
        finally:
            if task.canceled.is_set():
                told.add(task.run_id)

    worker = worker_for(world, handler, concurrency=2, max_tasks=2, cancellation_poll_interval=100)
    worker.clock = world.local.clock
    with Working(world, worker):
        holders.until_begun(1)
        world.queue.cancel_task(task_id)
        world.queue.rerun_task(task_id)
        holders.until_begun(1)
        world.local.clock.advance(100 * (1 + JITTER) + A_LITTLE)
        until(lambda: told)
        holders.finish.set()
    assert told == {0}
