"""Task sources: where a worker's claims come from.

The default one calls the Queue's `claimWork`. `SeveralTaskQueues` does so for several task queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed, InsufficientScopes
from taskqueue_client.models import ClaimWorkResponse, TaskClaim
from taskqueue_client.worker.config import WorkerIdentity
from taskqueue_client.worker.worker_log import log

RESPONSE_TIMEOUT = 30.0
"""Seconds that a response may take in addition to the long poll."""

PROMPT = 1.0
"""Seconds within which the Queue responds to a claim request if there is work. A request that is older when
claiming stops only waits for work, and is aborted: the Queue claims nothing for a closed connection."""


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
            self._request.cancel()


COUNT_INTERVAL = 5.0
"""Seconds between looks at the other task queues while a claim request waits for work."""


class SeveralTaskQueues:
    """Claims from several task queues; see `TaskSource`.

    One claim request is open at a time, so that no more is claimed than there is room for. While it waits for
    work, the pending tasks of the other task queues are counted, and it is aborted for one that has some.
    Requests begin with the preferred task queue after each claim, and otherwise take turns.

    Args:
        task_queue_ids: The task queues; those before are preferred.
        context: The worker's client, identity and clock.
    """

    def __init__(self, task_queue_ids: Sequence[str], context: SourceContext) -> None:
        self._ids = task_queue_ids
        self._context = context
        self._queue = context.queue
        self._clock = context.clock
        self._turn = 0
        self._open: QueueTaskSource | None = None
        self._stopping = False
        self._warned: set[str] = set()
        self._failed: set[str] = set()  # those whose last claim request failed

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        """See `TaskSource.claim`."""
        task_queue_id: str | None = self._ids[self._turn]
        self._turn = (self._turn + 1) % len(self._ids)  # also if the call fails
        claims: Sequence[TaskClaim] = ()
        while task_queue_id is not None and not claims and not self._stopping:
            claims, task_queue_id = await self._claim_from(task_queue_id, count)
        if claims:
            self._turn = 0
        return claims

    def stop(self) -> None:
        """See `TaskSource.stop`."""
        self._stopping = True
        if self._open is not None:
            self._open.stop()

    async def close(self) -> None:
        """See `TaskSource.close`."""
        if self._open is not None:
            await self._open.close()

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
        """Wait for pending tasks of another task queue.

        Before it returns, it waits for `PROMPT`: the Queue looks for tasks each second while a request waits,
        so the open request has claimed tasks that were created together with these. Task queues whose last
        claim request failed do not count: aborting the open request for them would be in vain.
        """
        others = [each for each in self._ids if each != task_queue_id and each not in self._failed]
        await self._clock.sleep_async(PROMPT)
        while True:
            for each in others:
                if await self._has_pending(each):
                    await self._clock.sleep_async(PROMPT)
                    return each
            await self._clock.sleep_async(COUNT_INTERVAL)

    async def _has_pending(self, task_queue_id: str) -> bool:
        """Return whether a task queue has pending tasks; False if that is not known."""
        try:
            return (await self._queue.pending_tasks(task_queue_id)).pending_tasks > 0
        except InsufficientScopes as error:
            self._warn(task_queue_id, error)
        except CallFailed as error:
            log.info("cannot count the pending tasks of %s, retrying: %s", task_queue_id, error)
        return False

    def _warn(self, task_queue_id: str, error: InsufficientScopes) -> None:
        """Say it once: the scopes do not change from one look to the next."""
        if task_queue_id not in self._warned:
            self._warned.add(task_queue_id)
            log.warning(
                "no scope to count the pending tasks of %s: they may wait while claim requests to other task "
                "queues last, 20 s each; the worker's credentials lack queue:pending-count:%s (HTTP %d)",
                *(task_queue_id, task_queue_id, error.status),
            )
