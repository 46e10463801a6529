"""Claiming work: one call at a time, for as many runs as there are free slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import random

from taskqueue_client import errors
from taskqueue_client._retry import is_temporary
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.models import TaskClaim

from .keeper_events import KeeperEvents

log = logging.getLogger("taskqueue_client.worker")

MOST_CLAIMED = 32
"""How many runs the Queue hands out in one answer."""

BACKOFF_FIRST = 1.0
BACKOFF_MOST = 60.0
"""Seconds between claim calls that fail; they double, and are spread by half to both sides."""

BETWEEN_EMPTY = 1.0
"""Seconds from the start of a claim call that found nothing to the next one: the Queue's own long poll
takes longer, but something in between may answer at once."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Whom runs are claimed for, and from where."""

    task_queue_id: str
    worker_group: str
    worker_id: str


class Slots:
    """How many more runs may be claimed; for one event loop.

    Args:
        free: At first.
        claimable: How many runs may be claimed in all; None for no limit.
    """

    def __init__(self, free: int, claimable: int | None) -> None:
        self._free = free
        self._claimable = claimable
        self._changed = asyncio.Event()

    @property
    def used_up(self) -> bool:
        """Whether no run may be claimed any more."""
        return self._claimable is not None and self._claimable <= 0

    def take(self, count: int) -> None:
        """So many runs were claimed."""
        self._free -= count
        if self._claimable is not None:
            self._claimable -= count

    def give_back(self) -> None:
        """A run has ended."""
        self._free += 1
        self._changed.set()

    async def free(self) -> int:
        """Wait for a free slot; how many runs a call may ask for then."""
        while self._free <= 0:
            self._changed.clear()
            await self._changed.wait()
        return min(self._free, MOST_CLAIMED if self._claimable is None else self._claimable, MOST_CLAIMED)


class Claiming:
    """The loop that claims, until it is told to stop.

    Args:
        queue: With the worker's own credentials.
        identity: Whom to claim for.
        slots: How much to claim.
        granted: Who gets the claims of each answer.
        events: Who is told about failures.
        clock: Where time comes from.

    Attributes:
        has_claimed: A call was answered, if only with nothing.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        identity: WorkerIdentity,
        slots: Slots,
        *,
        granted: Callable[[list[TaskClaim]], None],
        events: KeeperEvents,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._identity = identity
        self._slots = slots
        self._granted = granted
        self._events = events
        self._clock = clock
        self._calling = False
        self._stopping = False
        self._failures = 0
        self.has_claimed = False
        self._due_since: float | None = None
        self._task = asyncio.create_task(self._run(), name="claiming")

    def stop(self) -> None:
        """Make no more calls. One that is under way is waited for, as its answer may hold runs."""
        self._stopping = True
        if not self._calling:
            self._task.cancel()

    def hang_up(self) -> None:
        """Stop at once. Runs that a call under way has claimed come back when their claims expire."""
        self._stopping = True
        self._task.cancel()

    def unanswered_for(self) -> float | None:
        """Seconds that a call has been due without an answer; None while none is. From any thread."""
        since = self._due_since
        return None if since is None or self._stopping else self._clock.monotonic() - since

    async def ended(self) -> None:
        """Wait for the end; raises what should not have happened."""
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        while not (self._stopping or self._slots.used_up):
            count = await self._slots.free()
            started = self._clock.monotonic()
            self._due_since = self._due_since or started
            pause = await self._claim(count)
            if not self._stopping:
                await self._clock.sleep_async(max(pause - (self._clock.monotonic() - started), 0))

    async def _claim(self, count: int) -> float:
        """One call; how many seconds after its start the next one may be made."""
        self._calling = True
        try:
            claims = await self._call(count)
        except errors.CallFailed as error:
            return self._failed(error)
        finally:
            self._calling = False
        self.has_claimed, self._failures = True, 0
        self._due_since = None
        self._slots.take(len(claims))
        self._granted(claims)
        return 0.0 if claims else BETWEEN_EMPTY

    async def _call(self, count: int) -> list[TaskClaim]:
        who = self._identity
        answer = await self._queue.claim_work(
            who.task_queue_id, worker_group=who.worker_group, worker_id=who.worker_id, tasks=count
        )
        return answer.tasks

    def _failed(self, error: errors.CallFailed) -> float:
        refused = isinstance(error, errors.ApiError) and not is_temporary(error)
        self._events.claim_failed(error)
        if refused and not self.has_claimed:
            self._stopping = True
            self._events.refused(error)
            return 0.0
        self._failures += 1
        backoff = min(BACKOFF_FIRST * 2.0 ** min(self._failures - 1, 16), BACKOFF_MOST)
        pause = error.elapsed + backoff * (0.5 + random())  # noqa: S311 - spreads calls, keeps no secret
        level = logging.ERROR if refused else logging.WARNING
        log.log(level, "cannot claim work, trying again in %.1f s: %s", pause, error)
        return pause
