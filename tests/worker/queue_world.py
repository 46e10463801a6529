"""A local queue with some tasks in it, and a keeper that holds their runs."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import CallFailed
from taskqueue_client.local import LocalQueue
from taskqueue_client.models import Run, TaskStatus
from taskqueue_client.worker.claiming import WorkerIdentity
from taskqueue_client.worker.direct_queue import DirectQueue
from taskqueue_client.worker.event_thread import EventThread
from taskqueue_client.worker.held_run import HeldRun
from taskqueue_client.worker.keeper import Keeper, KeeperSettings
from taskqueue_client.worker.outcomes import Resolution
from taskqueue_client.worker.resolving import Resolver
from taskqueue_client.worker.run_state import State

TASK_QUEUE_ID = "test-provisioner/test-worker"
WAIT = 30.0
"""Seconds after which a test gives up on something that should have happened long before."""


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds."""
    give_up = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)


class World:
    """A local queue, a client of it with all scopes, and what it is easy to ask for here."""

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
        """Wait until requests have met the faults, but for some of them."""
        until(lambda: len(self.local.faults.waiting()) <= left)

    def until_changed(self, task_id: str, before: Run) -> None:
        """Wait until the first run differs from what it was."""
        until(lambda: self.run(task_id) != before)

    def close(self) -> None:
        self.queue.close()


class Told:
    """What a keeper tells, as queues that a test can wait on."""

    def __init__(self) -> None:
        self.claims: queue.Queue[list[HeldRun]] = queue.Queue()
        self.failures: queue.Queue[CallFailed] = queue.Queue()
        self.refusals: queue.Queue[CallFailed] = queue.Queue()
        self.renewals: queue.Queue[float] = queue.Queue()
        self.failed_renewals: queue.Queue[None] = queue.Queue()

    def claimed(self, runs: list[HeldRun]) -> None:
        self.claims.put(runs)

    def claim_failed(self, error: CallFailed) -> None:
        self.failures.put(error)

    def refused(self, error: CallFailed) -> None:
        self.refusals.put(error)

    def renewed(self, late: float) -> None:
        self.renewals.put(late)

    def renewal_failed(self) -> None:
        self.failed_renewals.put(None)

    def renewal_refused(self) -> None:
        """The run says so itself."""

    def runs(self, count: int) -> list[HeldRun]:
        """The next `count` runs that were claimed."""
        found: list[HeldRun] = []
        while len(found) < count:
            found += self.claims.get(timeout=WAIT)
        return found


class Keeping:
    """A keeper, and the loop of whoever waits for it."""

    def __init__(
        self, make_queue: Callable[[], AsyncQueue], settings: KeeperSettings, told: Told, clock: Clock
    ) -> None:
        self._waiting = EventThread("whoever waits")
        self._keeper = Keeper(make_queue, settings, told, clock)
        self._make_queue, self._clock = make_queue, clock
        self.hint_cancelled = self._keeper.hint_cancelled
        self.stop_claiming = self._keeper.stop_claiming
        self.let_go = self._keeper.let_go

    def claiming_ended(self) -> None:
        self._waiting.submit(self._keeper.claiming_ended()).result(WAIT)

    def resolve(self, held: HeldRun, resolution: Resolution) -> State:
        return self._waiting.submit(self._resolve(held, resolution)).result(WAIT)

    async def _resolve(self, held: HeldRun, resolution: Resolution) -> State:
        async with self._make_queue() as queue:
            client = held.credentials.client(queue)
            return await Resolver(held, client, self._keeper.renew, self._clock).resolve(resolution)

    def stop(self) -> None:
        self._keeper.stop()
        self._waiting.stop()


@contextmanager
def keeping(
    world: World,
    told: Told,
    *,
    concurrency: int = 1,
    max_tasks: int | None = None,
    poll: float = 3600.0,
    credentials: Credentials | None = None,
) -> Generator[Keeping]:
    """A keeper; its claim call is hung up at the end."""
    clock = SystemClock()
    keeping = Keeping(
        lambda: DirectQueue(world.local.root_url, credentials or world.local.credentials, clock=clock),
        KeeperSettings(WorkerIdentity(TASK_QUEUE_ID, "group", "worker"), concurrency, max_tasks, poll),
        told,
        clock,
    )
    try:
        yield keeping
    finally:
        keeping.stop()
