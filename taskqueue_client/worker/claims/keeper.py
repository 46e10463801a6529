"""The keeper: a thread with its own event loop and connections, which claims and reclaims runs.

Runs are reclaimed here whatever handlers do, even if they block their own loop or thread for longer than a
lease. `Claiming` makes the claim requests; `Reclaiming` reclaims runs when they are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.config import WorkerConfig
from taskqueue_client.worker.threads import EventThread
from taskqueue_client.worker.tracing import NO_TRACING, Tracing
from taskqueue_client.worker.worker_log import log

from .cancellation import CancellationWatch
from .claimed_run import ClaimedRun, KeeperEvents, Lease
from .claiming import PROMPT, Claiming, QueueTaskSource, SourceContext, TaskSourceFactory
from .reclaiming import Reclaiming

TIME_TO_STOP = 5.0
"""Seconds after which a keeper that does not stop is left behind; its thread is a daemon."""


class Keeper:
    """Claims and reclaims runs. Its methods may be called from any thread.

    `make_queue` and `make_source` are called in the keeper's loop.

    Attributes:
        claiming: The loop of claim requests. Only its `has_claimed`, `failure`, `is_retrying` and
            `seconds_without_response` may be used from other threads.
    """

    def __init__(
        self,
        make_queue: Callable[[], AsyncQueue],
        config: WorkerConfig,
        events: KeeperEvents,
        clock: Clock,
        make_source: TaskSourceFactory = QueueTaskSource,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._tracing = tracing
        self._config = config
        self._events = events
        self._clock = clock
        self._ended: Future[None] | None = None
        self._thread = EventThread("taskqueue keeper")
        self._thread.begin(self._start(make_queue, make_source))

    def stop_claiming(self) -> None:
        """Make no more claim requests. Runs that an open request has claimed are still passed on."""
        self._thread.call(self.claiming.stop)

    def abort_claiming(self) -> None:
        """Abort an open claim request, too, `PROMPT` later: until then, it may return what it has claimed."""
        self._thread.call(lambda: self._thread.loop.call_later(PROMPT, self.claiming.abort))

    async def claiming_ended(self) -> None:
        """Wait until there are no more claim requests, and none is open. Raises the bug that ended them.

        Also returns when `stop` has left a task source behind that hangs.
        """
        self._ended = self._thread.submit(self.claiming.ended())
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait([ended])
        if not ended.cancelled():
            ended.result()

    async def reclaim(self, run: ClaimedRun) -> Exception | None:
        """Make one attempt to reclaim a run now; return the error if another attempt may succeed."""
        return await asyncio.wrap_future(self._thread.submit(self._reclaiming.reclaim_once(run)))

    def release_slot(self, run: ClaimedRun) -> None:
        """Free the slot of a run that has ended."""
        self._thread.call(self._reclaiming.drop, run)
        self._thread.call(self.claiming.release_slot)

    def use_credentials(self, credentials: Credentials) -> None:
        """Use other credentials for the worker's own calls from now on."""
        self._queue.credentials = credentials
        self._thread.call(self.claiming.retry_refused)

    def hint_canceled(self, task_id: str | None = None) -> None:
        """Poll the status of a task at once, if a run of it is claimed; None: of all claimed runs."""
        self._thread.call(self._cancellations.hint, task_id)

    def stop(self) -> None:
        """End the thread. Call it when claiming has ended and every run is resolved or lost."""
        try:
            self._thread.submit(self._stop()).result(TIME_TO_STOP)
        except TimeoutError:
            log.warning(
                "the thread that claims runs has not ended after %.0f s, not waiting any longer: does the "
                "task source hang? If it has just claimed runs, their claims expire",
                TIME_TO_STOP,
            )
        self._thread.stop(TIME_TO_STOP)
        if self._ended is not None:
            self._ended.cancel()

    async def _start(self, make_queue: Callable[[], AsyncQueue], make_source: TaskSourceFactory) -> None:
        config = self._config
        self._queue = make_queue()
        self._single = self._queue.with_options(attempts=1)
        polling = self._single.with_options(tracing=False)  # polls are many, and most find nothing
        self._reclaiming = Reclaiming(self._events, self._clock)
        self._cancellations = CancellationWatch(
            polling, self._reclaiming.runs, config.cancellation_poll_interval, self._clock
        )
        self._context = SourceContext(polling, config.identities[0], self._clock)
        self.claiming = Claiming(
            make_source(self._context),
            self._context,
            config.concurrency,
            config.max_tasks,
            granted=self._granted,
            events=self._events,
            tracing=self._tracing,
        )

    def _granted(self, claims: Sequence[TaskClaim]) -> None:
        now, outage = self._clock.monotonic(), self.claiming.outage()
        runs = [
            ClaimedRun(
                claim, Lease.of_claim(claim, now), self._single, self._tracing.begin_run(claim), outage
            )
            for claim in claims
        ]
        for run in runs:
            self._reclaiming.start(run)
        self._events.claimed(self._context.identity.task_queue_id, runs)

    async def _stop(self) -> None:
        await self.claiming.close()
        await self._cancellations.stop()
        await self._reclaiming.stop()
        await self._queue.close()
