"""Claiming: a loop that asks a task source for as many runs as there are free slots, and the task sources."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import random
from typing import Protocol

from taskqueue_client import errors
from taskqueue_client._protocol.retry import asked_to_wait, is_foreign, is_temporary
from taskqueue_client._protocol.threads_and_tasks import is_canceled
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.models import ClaimWorkResponse, TaskClaim
from taskqueue_client.worker.config import WorkerIdentity
from taskqueue_client.worker.tracing import NO_TRACING, Tracing
from taskqueue_client.worker.worker_log import counted, log

from .claimed_run import KeeperEvents

RESPONSE_TIMEOUT = 30.0
"""Seconds that a response may take in addition to the long poll."""

PROMPT = 1.0
"""Seconds within which the Queue responds to a claim request if there is work. A request that is older when
claiming stops only waits for work, and is aborted: the Queue claims nothing for a closed connection."""

MOST_CLAIMED = 32
"""Runs that the Queue hands out in one response at most."""

BACKOFF_FIRST = 1.0
BACKOFF_MOST = 60.0
"""Seconds between claim requests that fail: they double each time, and vary at random by up to a half."""

RETRY_AFTER_MOST = 3600.0
"""The longest `Retry-After` that is obeyed, in seconds: a mistaken one would end claiming for good."""

BETWEEN_EMPTY = 1.0
"""Seconds from the start of a claim request that found nothing to the next one: the Queue's own long poll
takes longer, but a proxy may respond at once."""

CUT_AFTER = 5.0
"""Seconds after which a proxy's error means that the proxy has timed out during the long poll. This is no
outage, and happens as long as there is no work: with pauses that double, new tasks would wait."""

CUT_STATUSES = frozenset({502, 503, 504})
"""The statuses of such errors: Apache httpd sends 502, Varnish 503, nginx and most others 504."""

OUTAGE_MOST = 180.0
"""The most seconds that count of an outage, and for which it is remembered: see `Claiming.outage`."""


@dataclass(slots=True)
class SourceContext:
    """The arguments of a task source.

    Attributes:
        queue: A client with the worker's own credentials, which are replaced when the worker's are. It makes
            one attempt per call: the worker calls `claim` again after a failure.
        identity: The worker and its task queue. A source that claims from several task queues sets it before
            each request, so that metrics and spans have the task queue of the last one.
        clock: The source of time.
    """

    queue: AsyncQueue
    identity: WorkerIdentity
    clock: Clock


class TaskSource(Protocol):
    """A source of claims for a worker; `WorkerLoop` reclaims, runs and reports what it returns.

    A worker makes one source for each of its sessions, and calls it in the event loop that reclaims runs:
    a method that blocks this loop loses claims. `claim` is never called again before it has returned.
    """

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        """Claim up to `count` runs, and wait for some time if there is no work.

        If a call fails after others have claimed runs, the claimed runs must be returned, not lost.

        Args:
            count: The number of runs that the worker has room for now, at least 1.

        Returns:
            The claims; none if there was no work. The worker then calls again, at the earliest 1 s after
            the start of this call.

        Raises:
            CallFailed: Nothing was claimed. The worker calls again with exponential back-off, and not before
                the time of a `Retry-After` header, of which an hour counts at most. If the first call is
                refused, the worker ends.
            Exception: Any other exception ends the worker after its runs.
        """
        ...

    def stop(self) -> None:
        """Let an open `claim` return soon: the worker shuts down and makes no further call.

        Requests that may have claimed runs are awaited, requests that only wait for work are aborted. A
        second request to shut down cancels `claim` 1 s later; then runs that it has claimed are lost until
        their claims expire.
        """
        ...

    async def close(self) -> None:
        """Close connections of the source itself; called once, when no `claim` is open."""
        ...


TaskSourceFactory = Callable[[SourceContext], TaskSource]
"""Makes the task source of a worker's session, in the event loop that the source is called in."""


class Claiming:
    """Claims work in a loop, until `stop`.

    Args:
        free: The number of free slots at first.
        claimable: How many runs may be claimed in all; None: no limit.
        granted: Called with the claims that each call of the source returns.

    Attributes:
        has_claimed: The Queue has responded to a claim request, with or without work.
        failure: Why the last claim request that has ended failed; None if it did not.
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
        self._has_others = False  # other credentials have come during the request
        self.has_claimed = False
        self.failure: errors.CallFailed | None = None
        self._due_since: float | None = None
        self._recovered = -math.inf
        self._outage = 0.0
        self._task = asyncio.create_task(self._run(), name="claiming")

    def release_slot(self) -> None:
        """Free the slot of a run that has ended."""
        self._free += 1
        self._released.set()

    def stop(self) -> None:
        """Claim no more. Runs that an open call of the source has claimed are still passed on."""
        self._stopping = True
        if self._is_open:
            self._source.stop()
        else:
            self._task.cancel()

    def retry_refused(self) -> None:
        """Retry a refused request at once, also an open one that is refused later: credentials are new."""
        self._has_others = True
        if self._refused_wait is not None:
            self._failures = 0
            self._refused_wait.cancel()

    def abort(self) -> None:
        """Stop at once. Runs that an open request has just claimed stay claimed until their claims expire."""
        self._stopping = True
        self._task.cancel()

    def seconds_without_response(self) -> float | None:
        """Return for how many seconds a claim has been due without a response; None while none is due.

        May be called from any thread.
        """
        since = self._due_since
        return None if since is None or self._stopping else self._clock.monotonic() - since

    @property
    def is_retrying(self) -> bool:
        """Whether a claim request is open after one that failed; may be called from any thread."""
        return self._is_open and self.failure is not None

    def outage(self) -> float:
        """Return the length of the last outage in seconds; 0 if it ended longer ago than it lasted.

        A fleet starts many runs together after an outage, which should not all make requests at once.
        """
        return self._outage if self._clock.monotonic() - self._recovered < self._outage else 0.0

    async def ended(self) -> None:
        """Wait for the end of the loop. Raises the bug that has ended it, if any."""
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
        await asyncio.sleep(0)  # a source that blocks the loop would keep the worker from starting
        while not self._stopping and self._claimable > 0:
            count = await self._room()
            started = self._clock.monotonic()
            self._due_since = started if self._due_since is None else self._due_since
            left = started + await self._claim(count) - self._clock.monotonic()
            if left > 0 and not self._stopping:
                await self._wait(left)
        if not self._stopping:
            log.info("no more claims: max_tasks is reached")

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
        self._is_open, self._has_others = True, False
        began = time.time_ns()
        try:
            claims = await self._source.claim(count)
        except errors.CallFailed as error:
            self._tracing.claim_failed(began, self._context.identity.task_queue_id, error)
            return self._failed(error)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
            if is_canceled() or (self._stopping and isinstance(error, asyncio.CancelledError)):
                raise  # also if the source cancels a request in `stop`
            # Otherwise claiming would end without an error, or the runs would be interrupted.
            raise RuntimeError(f"the task source raised {type(error).__name__}") from error
        else:
            if claims or not self._stopping:  # an aborted call does not show whether the Queue responds
                with self._tracing.claimed(began, claims):
                    self._note(claims)
        finally:
            self._is_open = False  # after `_note` has cleared `failure`: another thread reads both
        return 0.0 if claims else BETWEEN_EMPTY

    def _note(self, claims: Sequence[TaskClaim]) -> None:
        if self._failures:
            self._recovered = self._clock.monotonic()
            lasted = self.seconds_without_response() or 0.0
            self._outage = min(lasted, OUTAGE_MOST)
            attempts = counted(self._failures, "failed attempt")
            log.info("claim requests succeed again, after %s in %.0f s", attempts, lasted)
        self.has_claimed, self._failures, self._is_refused, self.failure = True, 0, False, None
        self._due_since = None
        self._free -= len(claims)
        self._claimable -= len(claims)
        self._granted(claims)

    def _failed(self, error: errors.CallFailed) -> float:
        is_refusal = self._is_refused = isinstance(error, errors.ApiError) and not is_temporary(error)
        self._events.claim_failed(self._context.identity.task_queue_id, error)
        if is_refusal and self._has_others:
            log.warning("cannot claim work, retrying at once with newer credentials: %s", error)
            return 0.0
        if is_refusal and not self.has_claimed:
            self._stopping = True
            self._events.claiming_refused(error)
            return 0.0
        is_cut_off = _is_cut_off(error)
        self._failures = 0 if is_cut_off else self._failures + 1
        self.failure = None if is_cut_off else error
        wait = max(_backoff(self._failures), min(asked_to_wait(error), RETRY_AFTER_MOST))
        level = logging.ERROR if is_refusal else logging.WARNING
        hint = "; the Queue waits 20 s for work: is a proxy's timeout shorter?" if is_cut_off else ""
        log.log(level, "cannot claim work, retrying in %.1f s: %s%s", wait, error, hint)
        return error.elapsed + wait


def _is_cut_off(error: errors.CallFailed) -> bool:
    if not isinstance(error, errors.ServerError) or error.code is not None:  # errors of the Queue have a code
        return False
    return error.status in CUT_STATUSES and error.elapsed >= CUT_AFTER


def _backoff(failures: int) -> float:
    doubled = min(BACKOFF_FIRST * 2.0 ** min(failures - 1, 16), BACKOFF_MOST)
    return doubled * (0.5 + random())  # noqa: S311 - spreads calls, keeps no secret


class QueueTaskSource:
    """The default task source: one `claimWork` request at a time; see `TaskSource`."""

    def __init__(self, context: SourceContext) -> None:
        self._queue = context.queue.with_options(timeout=RESPONSE_TIMEOUT)
        self._identity = context.identity
        self._clock = context.clock
        self._requested = 0.0
        self._request: asyncio.Task[ClaimWorkResponse] | None = None
        self._aborting: asyncio.Task[None] | None = None

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        """See `TaskSource.claim`."""
        self._requested = self._clock.monotonic()
        who = self._identity
        request = self._queue.claim_work(
            who.task_queue_id, worker_group=who.worker_group, worker_id=who.worker_id, tasks=count
        )
        self._request = asyncio.create_task(request)
        try:
            return (await self._request).tasks
        except asyncio.CancelledError:
            if self._aborting is None:
                raise
            return []
        finally:
            self._request = None

    def stop(self) -> None:
        """See `TaskSource.stop`."""
        self._aborting = asyncio.create_task(self._abort_when_old())

    async def close(self) -> None:
        """See `TaskSource.close`."""
        if self._aborting is not None:
            self._aborting.cancel()

    async def _abort_when_old(self) -> None:
        await self._clock.sleep_async(max(self._requested + PROMPT - self._clock.monotonic(), 0))
        if self._request is not None:
            log.info(
                "closing the open claim request, which has waited for %.1f s: if the Queue has just claimed "
                "a run for it, the claim of that run expires",
                self._clock.monotonic() - self._requested,
            )
            self._request.cancel()


COUNT_INTERVAL = 5.0
"""Seconds between looks at the other task queues while a claim request waits for work."""

COUNT_TIMEOUT = 5.0
"""Seconds to wait for a count of pending tasks. A claim waits for the count, but does not need it."""


class SeveralTaskQueues:
    """Claims from several task queues; see `TaskSource`.

    One claim request is open at a time, so that no more is claimed than there is room for. While it waits for
    work, the pending tasks of the other task queues are counted. If one of them has some, the request is
    aborted, and the next one goes there. After a claim, requests begin again with the first, preferred task
    queue; otherwise, task queues take turns. After a claim, empty task queues before the one that it came
    from are left out: a request there would wait for seconds before it is aborted.
    """

    def __init__(self, task_queue_ids: Sequence[str], context: SourceContext) -> None:
        self._ids = task_queue_ids
        self._context = context
        self._queue = context.queue.with_options(attempts=1, timeout=COUNT_TIMEOUT)
        self._clock = context.clock
        self._turn = 0
        self._claimed_from = 0  # the place of the task queue that gave the last claim, if it gave any
        self._choosing: asyncio.Task[int] | None = None
        self._open: QueueTaskSource | None = None
        self._stopping = False
        self._warned: set[str] = set()
        self._failed: set[str] = set()  # those whose last claim request failed
        self._withheld: set[str] = set()  # those whose pending tasks this claim did not get

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        """See `TaskSource.claim`."""
        self._choosing = asyncio.create_task(self._first_to_ask())
        try:
            await asyncio.wait([self._choosing])
        finally:
            self._choosing.cancel()
        if self._choosing.cancelled():
            return ()
        turn = self._choosing.result()
        task_queue_id: str | None = self._ids[turn]
        self._turn = (turn + 1) % len(self._ids)  # also if the call fails
        self._claimed_from = 0
        self._withheld.clear()
        claims: Sequence[TaskClaim] = ()
        while task_queue_id is not None and not claims and not self._stopping:
            claims, task_queue_id = await self._claim_from(task_queue_id, count)
        if claims:
            self._turn = 0
            self._claimed_from = self._ids.index(self._context.identity.task_queue_id)
        return claims

    def stop(self) -> None:
        """See `TaskSource.stop`."""
        self._stopping = True
        if self._choosing is not None:
            self._choosing.cancel()
        if self._open is not None:
            self._open.stop()

    async def close(self) -> None:
        """See `TaskSource.close`."""
        if self._open is not None:
            await self._open.close()

    async def _first_to_ask(self) -> int:
        for place in range(self._turn, self._claimed_from):
            if await self._pending(self._ids[place]) != 0:
                return place
        return max(self._turn, self._claimed_from)

    async def _claim_from(self, task_queue_id: str, count: int) -> tuple[Sequence[TaskClaim], str | None]:
        """Make one request; return its claims, and the task queue that it was aborted for."""
        self._context.identity = replace(self._context.identity, task_queue_id=task_queue_id)
        self._open = source = QueueTaskSource(self._context)
        self._failed.add(task_queue_id)  # unless it responds
        request = asyncio.create_task(source.claim(count))
        watching = asyncio.create_task(self._other_with_work(task_queue_id))
        try:
            await asyncio.wait([request, watching], return_when=asyncio.FIRST_COMPLETED)
            other = watching.result() if watching.done() else None
            if not request.done():
                source.stop()
            claims = await request
            self._failed.discard(task_queue_id)
            return claims, other
        finally:
            request.cancel()
            watching.cancel()
            await source.close()

    async def _other_with_work(self, task_queue_id: str) -> str:
        """Wait until another task queue has pending tasks; return its identifier.

        Before it returns, it waits for `PROMPT`: the Queue looks for tasks each second while a request waits,
        so the open request has by then claimed tasks that were created at the same time. If `task_queue_id`
        has pending tasks before and after this wait, the worker is in quarantine there, and does not turn to
        it again in the same claim: two such task queues would end each other's requests for ever. Task queues
        whose last claim request failed do not count, either: another request to them may fail as well.
        """
        others = [
            each for each in self._ids if each != task_queue_id and each not in self._failed | self._withheld
        ]
        await self._clock.sleep_async(PROMPT)
        while True:
            for each in others:
                if await self._pending(each):
                    has_own = await self._pending(task_queue_id)
                    await self._clock.sleep_async(PROMPT)
                    if has_own and await self._pending(task_queue_id):
                        self._withheld.add(task_queue_id)
                    return each
            await self._clock.sleep_async(COUNT_INTERVAL)

    async def _pending(self, task_queue_id: str) -> int | None:
        """Return the number of pending tasks of a task queue; None if it is not known."""
        try:
            return (await self._queue.pending_tasks(task_queue_id)).pending_tasks
        except errors.CallFailed as error:
            if isinstance(error, errors.InsufficientScopes) and not is_foreign(error):  # not a proxy's 403
                self._warn(task_queue_id, error)
            else:
                log.info("cannot count the pending tasks of %s, retrying: %s", task_queue_id, error)
        return None

    def _warn(self, task_queue_id: str, error: errors.InsufficientScopes) -> None:
        """Say it once: the scopes do not change from one look to the next."""
        if task_queue_id not in self._warned:
            self._warned.add(task_queue_id)
            log.warning(
                "no scope to count the pending tasks of %s: they may wait while claim requests to other task "
                "queues last, 20 s each; the worker's credentials lack queue:pending-count:%s (HTTP %d)",
                *(task_queue_id, task_queue_id, error.status),
            )
