"""The keeper: a thread with its own event loop and connections, which claims and reclaims runs.

Runs are reclaimed here whatever handlers do, even if they block their own loop or thread for longer than a
lease. `Claiming` asks the worker's task source for as many runs as it has free slots.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import random

from taskqueue_client import errors
from taskqueue_client._protocol.retry import asked_to_wait, is_temporary
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.config import WorkerConfig
from taskqueue_client.worker.monitoring.tracing import NO_TRACING, Tracing
from taskqueue_client.worker.threads import EventThread
from taskqueue_client.worker.worker_log import log

from .cancellation import CancellationWatch
from .claimed_run import ClaimedRun, KeeperEvents, Lease
from .reclaiming import Reclaiming
from .task_source import PROMPT, QueueTaskSource, SourceContext, TaskSource, TaskSourceFactory

MOST_CLAIMED = 32
"""Runs that the Queue hands out in one response at most."""

BACKOFF_FIRST = 1.0
BACKOFF_MOST = 60.0
"""Seconds between claim requests that fail; they double, and are spread by half to both sides."""

RETRY_AFTER_MOST = 3600.0
"""Seconds that a `Retry-After` header counts at most: a mistaken one would end claiming for good."""

BETWEEN_EMPTY = 1.0
"""Seconds from the start of a claim request that found nothing to the next one: the Queue's own long poll
takes longer, but a proxy may respond at once."""

CUT_AFTER = 5.0
"""Seconds after which a proxy's error is taken for the end of its patience with the long poll. This is no
outage, and happens as long as there is no work: with pauses that double, new tasks would wait."""

CUT_STATUSES = frozenset({502, 503, 504})
"""What proxies respond then: Apache httpd 502, Varnish 503, nginx and most others 504."""

OUTAGE_MOST = 180.0
"""Seconds after an outage in which a worker remembers it at most: see `Claiming.outage`."""


class Claiming:
    """Claims work in a loop, until `stop`.

    Args:
        context: The arguments that the source was made with.
        free: The number of free slots at first.
        claimable: How many runs may be claimed in all; None: no limit.
        granted: Called with the claims that each call of the source returns.
        events: Is told about failures.
        tracing: Makes the spans of claims.

    Attributes:
        has_claimed: The Queue has responded to a claim request, with or without work.
    """

    def __init__(
        self,
        source: TaskSource,
        context: SourceContext,
        free: int,
        claimable: int | None,
        *,
        granted: Callable[[Sequence[TaskClaim]], None],
        events: KeeperEvents,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._source = source
        self._context = context
        self._tracing = tracing
        self._free = free
        self._claimable = math.inf if claimable is None else claimable
        self._released = asyncio.Event()
        self._granted = granted
        self._events = events
        self._clock = context.clock
        self._is_open = False
        self._stopping = False
        self._is_refused = False
        self._failures = 0
        self._refused_wait: asyncio.Task[None] | None = None  # ends as soon as there are other credentials
        self.has_claimed = False
        self._due_since: float | None = None
        self._recovered = -math.inf
        self._outage = 0.0
        self._task = asyncio.create_task(self._run(), name="claiming")

    def release_slot(self) -> None:
        """Note that a run has ended."""
        self._free += 1
        self._released.set()

    def stop(self) -> None:
        """Claim no more; what an open call of the source may have claimed is still handed over."""
        if self._stopping:
            return
        self._stopping = True
        if self._is_open:
            self._source.stop()
        else:
            self._task.cancel()

    def retry_refused(self) -> None:
        """End the wait that follows a refusal of the credentials, as there are others now."""
        if self._refused_wait is not None:
            self._failures = 0
            self._refused_wait.cancel()

    def abort(self) -> None:
        """Stop at once. Runs that an open request has just claimed return when their claims expire."""
        self._stopping = True
        self._task.cancel()

    def seconds_without_response(self) -> float | None:
        """Return for how many seconds a claim has been due without a response; None while none is due.

        May be called from any thread.
        """
        since = self._due_since
        return None if since is None or self._stopping else self._clock.monotonic() - since

    def outage(self) -> float:
        """Return how long claim requests failed before, in seconds; 0 if that was longer ago than it lasted.

        A fleet starts many runs together after an outage, which should not all make requests at once.
        """
        return self._outage if self._clock.monotonic() - self._recovered < self._outage else 0.0

    async def ended(self) -> None:
        """Wait for the end of the loop.

        Raises:
            Exception: A bug has ended the loop.
        """
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """Stop at once, and close the task source."""
        self.abort()
        await asyncio.wait([self._task])
        try:
            await self._source.close()
        except Exception:
            log.exception("the task source failed to close")

    async def _run(self) -> None:
        while not self._stopping and self._claimable > 0:
            count = await self._room()
            started = self._clock.monotonic()
            self._due_since = started if self._due_since is None else self._due_since
            left = started + await self._claim(count) - self._clock.monotonic()
            if left > 0 and not self._stopping:
                await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        if not self._is_refused:
            await self._clock.sleep_async(seconds)
            return
        self._refused_wait = asyncio.create_task(self._clock.sleep_async(seconds))
        try:
            await asyncio.wait([self._refused_wait])
        finally:
            self._refused_wait.cancel()
            self._refused_wait = None

    async def _room(self) -> int:
        """Wait for a free slot; return how many runs a request may ask for then."""
        while self._free <= 0:
            self._released.clear()
            await self._released.wait()
        return int(min(self._free, self._claimable, MOST_CLAIMED))

    async def _claim(self, count: int) -> float:
        """Call the source once; return how many seconds after the start of the call the next may follow."""
        self._is_open = True
        began = time.time_ns()
        try:
            claims = await self._source.claim(count)
        except errors.CallFailed as error:
            self._tracing.claim_failed(began, self._context.identity.task_queue_id, error)
            return self._failed(error)
        finally:
            self._is_open = False
        if claims or not self._stopping:  # an aborted call does not show whether the Queue responds
            with self._tracing.claimed(began, claims):
                self._note(claims)
        return 0.0 if claims else BETWEEN_EMPTY

    def _note(self, claims: Sequence[TaskClaim]) -> None:
        if self._failures:
            self._recovered = self._clock.monotonic()
            self._outage = min(self.seconds_without_response() or 0.0, OUTAGE_MOST)
        self.has_claimed, self._failures, self._is_refused = True, 0, False
        self._due_since = None
        self._free -= len(claims)
        self._claimable -= len(claims)
        self._granted(claims)

    def _failed(self, error: errors.CallFailed) -> float:
        is_refusal = isinstance(error, errors.ApiError) and not is_temporary(error)
        self._is_refused = is_refusal
        self._events.claim_failed(self._context.identity.task_queue_id, error)
        if is_refusal and not self.has_claimed:
            self._stopping = True
            self._events.claiming_refused(error)
            return 0.0
        is_cut_off = _is_cut_off(error)
        self._failures = 0 if is_cut_off else self._failures + 1
        wait = max(_backoff(self._failures), min(asked_to_wait(error), RETRY_AFTER_MOST))
        level = logging.ERROR if is_refusal else logging.WARNING
        hint = "; the Queue waits 20 s for work: is a proxy's timeout shorter?" if is_cut_off else ""
        log.log(level, "cannot claim work, retrying in %.1f s: %s%s", wait, error, hint)
        return error.elapsed + wait


def _is_cut_off(error: errors.CallFailed) -> bool:
    if not isinstance(error, errors.ServerError) or error.code is not None:  # the Queue's own have a code
        return False
    return error.status in CUT_STATUSES and error.elapsed >= CUT_AFTER


def _backoff(failures: int) -> float:
    doubled = min(BACKOFF_FIRST * 2.0 ** min(failures - 1, 16), BACKOFF_MOST)
    return doubled * (0.5 + random())  # noqa: S311 - spreads calls, keeps no secret


TIME_TO_STOP = 5.0
"""Seconds after which a keeper that does not stop is left behind; its thread is a daemon."""


class Keeper:
    """Claims and reclaims runs. Its methods may be called from any thread.

    Args:
        make_queue: Makes the keeper's client, in the keeper's loop.
        events: Is told about claims and reclaims.
        make_source: Makes the task source, in the keeper's loop.
        tracing: Makes the spans of claims and runs.

    Attributes:
        claiming: The loop of claim requests. Only its `has_claimed` and `seconds_without_response` may be
            used from other threads.
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
        self._thread = EventThread("taskqueue keeper")
        try:
            self._thread.submit(self._start(make_queue, make_source)).result()
        except BaseException:
            self._thread.stop()
            raise

    def stop_claiming(self) -> None:
        """Make no more claim requests; runs that an open one may still bring are handed over."""
        self._thread.call(self.claiming.stop)

    def abort_claiming(self) -> None:
        """Abort an open claim request, too, but only when it has had time to bring what it has claimed."""
        self._thread.call(lambda: self._thread.loop.call_later(PROMPT, self.claiming.abort))

    async def claiming_ended(self) -> None:
        """Wait until there are no more claim requests, and none is open.

        Raises:
            Exception: A bug has ended claiming.
        """
        await asyncio.wrap_future(self._thread.submit(self.claiming.ended()))

    async def reclaim(self, run: ClaimedRun) -> None:
        """Make one attempt to reclaim a run now."""
        await asyncio.wrap_future(self._thread.submit(self._reclaiming.reclaim_once(run)))

    def release_slot(self, run: ClaimedRun) -> None:
        """Free the slot of a run that has ended."""
        self._thread.call(self._release_slot, run)

    def _release_slot(self, run: ClaimedRun) -> None:
        self._reclaiming.drop(run)
        self.claiming.release_slot()

    def use_credentials(self, credentials: Credentials) -> None:
        """Use other credentials for the worker's own calls from now on."""
        self._queue.credentials = credentials
        self._thread.call(self.claiming.retry_refused)

    def hint_canceled(self, task_id: str | None = None) -> None:
        """Poll a task at once if it has a claimed run, or all claimed runs."""
        self._thread.call(self._cancellations.hint, task_id)

    def stop(self) -> None:
        """End the thread. Call it when claiming has ended and every run is resolved or lost."""
        with suppress(TimeoutError):
            self._thread.submit(self._stop()).result(TIME_TO_STOP)
        self._thread.stop(TIME_TO_STOP)

    async def _start(self, make_queue: Callable[[], AsyncQueue], make_source: TaskSourceFactory) -> None:
        config = self._config
        self._queue = make_queue()
        self._single = self._queue.with_options(attempts=1)
        polling = self._single.with_options(tracing=False)  # spans of polls without a result would be many
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
