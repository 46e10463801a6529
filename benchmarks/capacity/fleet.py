"""Simulated workers: the package's own claiming, reclaiming, polling and reporting, without processes."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import tenacity

from taskqueue_client import calls
from taskqueue_client._protocol.retry import PolicyRetries, Retries, RetryPolicy
from taskqueue_client.errors import CallFailed
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker.claims.cancellation import CancellationWatch
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimState, Lease
from taskqueue_client.worker.claims.claiming import Claiming, QueueTaskSource, SourceContext
from taskqueue_client.worker.claims.reclaiming import Reclaiming
from taskqueue_client.worker.run.log_checkpoints import first_after
from taskqueue_client.worker.run.reporting import Reporter
from taskqueue_client.worker.run.upload_retries import RetryBudget, UploadRetries

from .deployment import Deployment, SimulatedQueue
from .virtual_time import VirtualClock

if TYPE_CHECKING:
    from taskqueue_client._protocol.conversation import Call
    from taskqueue_client.aio import AsyncQueue
    from taskqueue_client.models import TaskClaim

LOG, LINK = "public/logs/live_backing.log", "public/logs/live.log"
"""The artifacts of a run that declares none. A run has one checkpoint, as the log does not grow after it."""

UPLOAD_TIMEOUT = 900.0
"""The worker's setting `upload_timeout`, by default."""

CHECKPOINT_INTERVAL = 10.0
"""The worker's setting `log_checkpoint_interval`, by default."""

SPREAD = 1.0
"""The standard deviation of the logarithm of run durations, which are distributed log-normally."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a fleet does.

    Attributes:
        workers: The number of workers.
        concurrency: The runs that a worker works on at a time.
        duration: The mean duration of a run, in seconds.
        busy: The part of all slots that is in use.
        poll: Seconds between polls for canceled runs.
    """

    workers: int
    concurrency: int = 4
    duration: float = 600.0
    busy: float = 0.8
    poll: float = 5.0

    @property
    def tasks_per_second(self) -> float:
        """How many tasks become pending in a second."""
        return self.workers * self.concurrency * self.busy / self.duration

    def sample(self) -> float:
        """Return how long a run takes."""
        return random.lognormvariate(math.log(self.duration) - SPREAD**2 / 2, SPREAD)


@dataclass(slots=True)
class Fleet:
    """All workers of a deployment.

    Args:
        deployment: The Queue.
        load: What the workers do.

    Attributes:
        ended: How many runs ended, by state.
    """

    deployment: Deployment
    load: Load
    ended: Counter[ClaimState] = field(default_factory=Counter[ClaimState])
    workers: list[SimulatedWorker] = field(default_factory=list["SimulatedWorker"])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def boot(self, workers: int) -> None:
        """Start workers, all at once."""
        for _ in range(workers):
            self.workers.append(SimulatedWorker(self, f"w{len(self.workers)}"))

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine beside the others; an exception ends the simulation."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def submit(self) -> None:
        """Let tasks become pending, at random moments, for as long as the simulation runs."""
        while True:
            await asyncio.sleep(random.expovariate(self.load.tasks_per_second))
            self.deployment.create_tasks()


class SimulatedWorker:
    """One worker: what the keeper of a real one does, in the simulation's loop. See `Keeper`.

    Args:
        fleet: The fleet that the worker belongs to.
        worker_id: Its name.
    """

    def __init__(self, fleet: Fleet, worker_id: str) -> None:
        self._fleet = fleet
        self._clock = VirtualClock()
        self._queue = cast("AsyncQueue", SimulatedQueue(fleet.deployment))
        self._lives: dict[ClaimedRun, asyncio.Task[None]] = {}
        self._linked: set[ClaimedRun] = set()
        self._reclaiming = Reclaiming(self, self._clock)
        self.watch = CancellationWatch(self._queue, self._reclaiming.runs, fleet.load.poll, self._clock)
        context = SourceContext(self._queue, WorkerIdentity("p/w", "g", worker_id), self._clock)
        self._claiming = Claiming(
            QueueTaskSource(context),
            context,
            fleet.load.concurrency,
            None,
            granted=self._granted,
            events=self,
        )

    def terminate(self) -> None:
        """Stop claiming, and give up all runs, as after the notice of a spot termination."""
        self._claiming.abort()
        for run in self._reclaiming.runs():
            self._lives.pop(run).cancel()
            self._reclaiming.drop(run)
            self._fleet.begin(self._fleet.deployment.give_up(run.task_id))
        self._fleet.begin(self.watch.stop())

    def _granted(self, claims: Sequence[TaskClaim]) -> None:
        now = self._clock.monotonic()
        for claim in claims:
            lease = Lease.of_claim(claim, now)
            run = ClaimedRun(claim, lease, self._queue, outage=self._claiming.outage())
            self._reclaiming.start(run)
            self._lives[run] = self._fleet.begin(self._live(run))

    async def _live(self, run: ClaimedRun) -> None:
        lost = asyncio.get_running_loop().create_future()
        run.when_lost(lambda _: lost.set_result(None))
        await self._handle(run, lost)
        if run.has_claim:
            await self._upload_whole_log(run, lost)
        if run.has_claim:
            await Reporter(run, self._queue, self._reclaiming.reclaim_once, self._clock).report(
                ReasonResolved.COMPLETED
            )
        self._linked.discard(run)
        self._fleet.ended[run.state] += 1
        del self._lives[run]
        self._reclaiming.drop(run)
        self._claiming.release_slot()

    async def _handle(self, run: ClaimedRun, lost: asyncio.Future[None]) -> None:
        """Wait until the handler ends; upload the log so far when its first checkpoint is due."""
        duration = self._fleet.load.sample()
        first = first_after(CHECKPOINT_INTERVAL, run.outage)
        await asyncio.wait([lost], timeout=min(duration, first))
        if duration > first and run.has_claim:
            checkpoint = self._fleet.begin(self._upload_log(run, PolicyRetries(RetryPolicy())))
            await asyncio.wait([lost], timeout=duration - first)
            checkpoint.cancel()

    async def _upload_whole_log(self, run: ClaimedRun, lost: asyncio.Future[None]) -> None:
        """Upload the log after the handler, with the retries for that; give up if the claim is lost."""
        budget = RetryBudget(run, UPLOAD_TIMEOUT, timedelta(days=1), self._clock)
        upload = asyncio.create_task(self._upload_log(run, UploadRetries(budget, LOG)))
        await asyncio.wait([upload, lost], return_when=asyncio.FIRST_COMPLETED)
        if not upload.done():
            upload.cancel()
            return
        upload.result()

    async def _upload_log(self, run: ClaimedRun, retries: Retries) -> None:
        """Create the log, and the link to it unless there is one."""
        await self._create_artifact(run, LOG, retries)
        if run not in self._linked and await self._create_artifact(run, LINK, retries):
            self._linked.add(run)

    async def _create_artifact(self, run: ClaimedRun, name: str, retries: Retries) -> bool:
        """Return whether an artifact was created."""
        request: Any = {"storageType": "s3", "contentType": "text/plain", "expires": "2030-01-01T00:00:00Z"}
        try:
            await self._attempted(calls.create_artifact(run.task_id, run.run_id, name, request), retries)
        except CallFailed:
            return False
        return True

    async def _attempted(self, call: Call[Any], retries: Retries) -> None:
        """Make a call as the clients do, with their retries."""
        started = self._clock.monotonic()
        schedule = retries.of_call(call, lambda: self._clock.monotonic() - started)
        await tenacity.AsyncRetrying(reraise=True, **schedule)(self._queue.send, call)

    def claimed(self, task_queue_id: str, runs: list[ClaimedRun]) -> None:
        """See `KeeperEvents`."""

    def claim_failed(self, task_queue_id: str, error: CallFailed) -> None:
        """See `KeeperEvents`."""

    def claiming_refused(self, error: CallFailed) -> None:
        """See `KeeperEvents`."""

    def reclaim_began(self, late: float) -> None:
        """See `KeeperEvents`."""

    def reclaim_ended(self, result: str) -> None:
        """See `KeeperEvents`."""
