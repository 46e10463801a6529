"""Reclaims of runs when they are due, until they are resolved, in the keeper's event loop."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from random import random
from typing import Any, NamedTuple

from msgspec.structs import replace

from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import is_conflict
from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client.clock import Clock
from taskqueue_client.worker.outcomes import LossReason
from taskqueue_client.worker.worker_log import counted, log

from .claimed_run import (
    ClaimedRun,
    ClaimEvent,
    ClaimState,
    KeeperEvents,
    Reclaimed,
    attempt_timeout,
    cause_of,
    retry_in,
)

LATE = 0.1
"""A reclaim that begins later than this part of its lease is logged. At least 30 % of the lease is left for
retries when a reclaim is due; a delay of the keeper's thread uses up a part of that."""


class _Due(NamedTuple):
    """When a run is to be reclaimed. The number decides between equal times, as runs cannot be compared."""

    time: float
    number: int
    run: ClaimedRun


class Reclaiming:
    """Reclaims runs until they are resolved or lost. One asyncio task, of 1.5 kB, waits for all of them."""

    def __init__(self, events: KeeperEvents, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._due: list[_Due] = []  # sorted
        self._due_of: dict[ClaimedRun, _Due] = {}
        self._waiting: asyncio.Task[None] | None = None
        self._tasks: dict[ClaimedRun, asyncio.Task[None]] = {}  # of reclaims that have begun

    def start(self, run: ClaimedRun) -> None:
        """Reclaim a run from now on."""
        due = _Due(run.lease.reclaim_at(random()), id(run), run)  # noqa: S311 - spreads calls, keeps no secret
        self._due_of[run] = due
        insort(self._due, due)
        if due is self._due[0]:
            if self._waiting is not None:
                self._waiting.cancel()
            self._waiting = asyncio.create_task(self._begin_when_due())

    def drop(self, run: ClaimedRun) -> None:
        """Do not reclaim a run any more."""
        if (due := self._due_of.pop(run, None)) is not None:
            del self._due[bisect_left(self._due, due)]
        if (task := self._tasks.pop(run, None)) is not None:
            task.cancel()

    async def stop(self) -> None:
        """Reclaim nothing any more."""
        await end_tasks(*filter(None, [self._waiting]), *self._tasks.values())

    def runs(self) -> list[ClaimedRun]:
        """Return the runs that are being reclaimed."""
        return [*self._due_of, *self._tasks]

    async def reclaim_once(self, run: ClaimedRun) -> Exception | None:
        """Make one attempt; return the error if another attempt may succeed."""
        asked = self._clock.monotonic()
        try:
            async with asyncio.timeout(attempt_timeout(run.lease.left(asked))):
                call: Call[Any] = replace(calls.reclaim_task(run.task_id, run.run_id), returns=Reclaimed)
                response: Reclaimed = await run.queue.send(call)
            run.use_credentials(response.credentials)
            run.lease = run.lease.reclaimed(response, asked)
        except Exception as error:  # noqa: BLE001 - whatever happens, the claim lasts until its lease ends
            if is_conflict(error):
                if run.apply(ClaimEvent.RECLAIM_REFUSED, error.message, LossReason.RECLAIM_REFUSED):
                    self._events.reclaim_ended("refused")
                return None
            self._events.reclaim_ended("failed")
            return error
        else:
            self._events.reclaim_ended("reclaimed")
        return None

    async def _begin_when_due(self) -> None:
        """Begin each reclaim when it is due, until no run waits for one."""
        try:
            while self._due:
                until = self._due[0].time
                await self._clock.sleep_async(max(until - self._clock.monotonic(), 0))
                now = self._clock.monotonic()
                while self._due and self._due[0].time <= max(now, until):
                    self._begin(self._due[0].run, now - self._due[0].time)
        except Exception as error:  # noqa: BLE001 - a bug: nobody should work on runs that are not reclaimed
            for run in self.runs():
                self.drop(run)
                _lose(run, error)

    def _begin(self, run: ClaimedRun, late: float) -> None:
        self.drop(run)
        if run.state is ClaimState.CLAIMED:
            self._tasks[run] = asyncio.create_task(
                self._reclaim_and_restart(run, late), context=run.trace.context.copy()
            )

    async def _reclaim_and_restart(self, run: ClaimedRun, late: float) -> None:
        try:
            await self._reclaim(run, late)
        except Exception as error:  # noqa: BLE001 - as above
            _lose(run, error)
        finally:
            self._tasks.pop(run, None)
        if run.state is ClaimState.CLAIMED:
            self.start(run)

    def _note_begin(self, run: ClaimedRun, late: float) -> None:
        self._events.reclaim_began(late)
        if late > LATE * run.lease.length:
            log.warning(
                "reclaim of %s began %.1f s late, %.1f of %.1f s of the lease are left: the keeper's thread "
                "was not scheduled, for example because the process was suspended or a handler held the GIL",
                *(run, late, run.lease.left(self._clock.monotonic()), run.lease.length),
            )

    async def _reclaim(self, run: ClaimedRun, late: float) -> None:
        """Retry until an attempt succeeds or is refused, or the lease has ended."""
        self._note_begin(run, late)
        failures, last = 0, f"no attempt was made, as the first one began {late:.1f} s late"
        while run.state is ClaimState.CLAIMED:
            if not run.lease.left(self._clock.monotonic()):
                why = f"its lease ended ({run.lease.length:.1f} s); {last}"
                run.apply(ClaimEvent.LEASE_ENDED, why, LossReason.LEASE_ENDED)
            elif error := await self.reclaim_once(run):
                if not failures:  # one line for each outage: the last retries follow closely
                    log.warning("cannot reclaim %s, retrying: %s", run, cause_of(error))
                failures += 1
                last = f"reclaim failed {counted(failures, 'time')}, last error: {cause_of(error)}"
                left = run.lease.left(self._clock.monotonic())
                await self._clock.sleep_async(min(retry_in(failures, left, random()), left))  # noqa: S311 - as above
            else:
                if failures and run.state is ClaimState.CLAIMED:
                    log.info("reclaimed %s after %s", run, counted(failures, "failed attempt"))
                return


def _lose(run: ClaimedRun, error: Exception) -> None:
    """Lose a run that can no longer be reclaimed because of a bug: working on it would be in vain."""
    log.error("cannot reclaim %s because of a bug, giving up the claim", run, exc_info=error)
    run.apply(ClaimEvent.LEASE_ENDED, f"reclaiming raised {error!r}", LossReason.LEASE_ENDED)
