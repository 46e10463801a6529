"""A local queue with some tasks in it, and a keeper that claims their runs."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client.clock import Clock, MovableClock, SystemClock
from taskqueue_client.errors import CallFailed
from taskqueue_client.local import LocalQueue
from taskqueue_client.models import ReasonResolved, Run, TaskStatus
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimState, ReclaimResult
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.config import WorkerConfig
from taskqueue_client.worker.run.reporting import Reporter
from taskqueue_client.worker.threads import EventThread

TASK_QUEUE_ID = "test-provisioner/test-worker"
WAIT = 90.0
"""Seconds after which a test fails if what it waits for has not happened."""


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; fail after `WAIT` seconds."""
    give_up = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < give_up, f"the condition did not hold within {WAIT:.0f} s"
        time.sleep(0.01)


class World:
    """A local queue, a client of it with all scopes, and short forms of frequent calls."""

    def __init__(self, local: LocalQueue) -> None:
        self.local = local
        self.queue = Queue(local.root_url, local.credentials)

    def create(self, payload: dict[str, Any] | None = None, **changes: Any) -> str:
        now = datetime.fromtimestamp(self.local.clock.now(), UTC)
        task_id = slugid()
        definition: Any = {
            "taskQueueId": TASK_QUEUE_ID,
            "created": iso(now),
            "deadline": iso(now + timedelta(hours=4)),
            "expires": iso(now + timedelta(days=1)),
            "payload": payload or {},
            "metadata": {
                "name": "test task",
                "description": "made by a test",
                "owner": "tester@example.com",
                "source": "https://example.com/source",
            },
            **changes,
        }
        self.queue.create_task(task_id, definition)
        return task_id

    def status(self, task_id: str) -> TaskStatus:
        return self.queue.status(task_id).status

    def run(self, task_id: str, run_id: int = 0) -> Run:
        return self.status(task_id).runs[run_id]

    def until_struck(self, left: int = 0) -> None:
        """Wait until requests have met all faults of the queue except `left` of them."""
        until(lambda: len(self.local.faults.waiting()) <= left)

    def until_changed(self, task_id: str, before: Run) -> None:
        """Wait until the first run of a task differs from `before`."""
        until(lambda: self.run(task_id) != before)

    def close(self) -> None:
        self.queue.close()


class QuickRetries:
    """The queue's held clock for a keeper: waits for retries move the clock, longer waits do not."""

    LONGEST_RETRY = 460.0
    LONGEST_LEASE = 1200.0

    def __init__(self, clock: MovableClock) -> None:
        clock.hold()
        self._clock = clock
        self._reclaim_at = 0.0
        self.now, self.monotonic, self.sleep = clock.now, clock.monotonic, clock.sleep

    async def sleep_async(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        if seconds < self.LONGEST_RETRY:
            await asyncio.to_thread(self._clock.advance, seconds)
        elif seconds < self.LONGEST_LEASE:
            self._reclaim_at = due
        while (left := due - self.monotonic()) > 0:
            await self._clock.sleep_async(left)

    def until_a_reclaim_is_planned(self) -> None:
        """Wait until the keeper waits for the time of a reclaim."""
        until(lambda: self._reclaim_at > self.monotonic())

    def let_a_reclaim_be_due(self) -> None:
        """Wait until the keeper waits for the time of a reclaim, and move to that time."""
        self.until_a_reclaim_is_planned()
        self._clock.advance(self._reclaim_at - self.monotonic() + 0.001)


class Told:
    """The events of a keeper, in queues and lists that a test can wait for.

    Attributes:
        asked: The task queue of each claim request that succeeded or failed.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.claims: queue.Queue[list[ClaimedRun]] = queue.Queue()
        self.failures: queue.Queue[CallFailed] = queue.Queue()
        self.refusals: queue.Queue[CallFailed] = queue.Queue()
        self.late: list[float] = []
        self.reclaims: queue.Queue[None] = queue.Queue()
        self.failed_reclaims: queue.Queue[None] = queue.Queue()
        self.refused_reclaims: queue.Queue[None] = queue.Queue()

    def claimed(self, task_queue_id: str, runs: list[ClaimedRun]) -> None:
        self.asked.append(task_queue_id)
        self.claims.put(runs)

    def claim_failed(self, task_queue_id: str, error: CallFailed) -> None:
        self.asked.append(task_queue_id)
        self.failures.put(error)

    def claiming_refused(self, error: CallFailed) -> None:
        self.refusals.put(error)

    def reclaim_began(self, late: float) -> None:
        self.late.append(late)

    def reclaim_ended(self, result: ReclaimResult) -> None:
        ended = {
            "reclaimed": self.reclaims,
            "failed": self.failed_reclaims,
            "refused": self.refused_reclaims,
        }
        ended[result].put(None)

    def runs(self, count: int) -> list[ClaimedRun]:
        """Wait for claimed runs; return them as soon as there are `count` or more."""
        found: list[ClaimedRun] = []
        while len(found) < count:
            found += self.claims.get(timeout=WAIT)
        return found


class RunningKeeper:
    """A keeper, and a separate event loop for calls that wait for it."""

    def __init__(
        self, make_queue: Callable[[], AsyncQueue], config: WorkerConfig, told: Told, clock: Clock
    ) -> None:
        self._waiting = EventThread("waits for the keeper")
        self._keeper = Keeper(make_queue, config, told, clock)
        self._make_queue, self._clock = make_queue, clock
        self.hint_canceled = self._keeper.hint_canceled
        self.stop_claiming = self._keeper.stop_claiming
        self.release_slot = self._keeper.release_slot
        self.use_credentials = self._keeper.use_credentials

    def claiming_ended(self) -> None:
        self._waiting.submit(self._keeper.claiming_ended()).result(WAIT)

    def resolve(self, held: ClaimedRun, reason: ReasonResolved) -> ClaimState:
        return self._waiting.submit(self._resolve(held, reason)).result(WAIT)

    async def _resolve(self, held: ClaimedRun, reason: ReasonResolved) -> ClaimState:
        async with self._make_queue() as queue:
            client = held.client(queue)
            return await Reporter(held, client, self._keeper.reclaim, self._clock).report(reason)

    def stop(self) -> None:
        self._keeper.stop()
        self._waiting.stop()


@contextmanager
def running_keeper(
    world: World,
    told: Told,
    *,
    concurrency: int = 1,
    max_tasks: int | None = None,
    poll: float = 3600.0,
    credentials: Credentials | None = None,
    clock: Clock | None = None,
) -> Generator[RunningKeeper]:
    """Yield a keeper, by default on the machine's clock; abort its claim request at the end."""
    clock = clock or SystemClock()
    keeper = RunningKeeper(
        lambda: AsyncQueue(world.local.root_url, credentials or world.local.credentials, clock=clock),
        WorkerConfig(
            task_queue_id=TASK_QUEUE_ID,
            worker_group="group",
            worker_id="worker",
            concurrency=concurrency,
            max_tasks=max_tasks,
            cancellation_poll_interval=poll,
        ),
        told,
        clock,
    )
    try:
        yield keeper
    finally:
        keeper.stop()
