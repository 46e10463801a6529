"""Reclaims of runs until they are resolved: one asyncio task for each run, in the keeper's event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from random import random

from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client.clock import Clock
from taskqueue_client.errors import RequestConflict
from taskqueue_client.worker.outcomes import LossReason
from taskqueue_client.worker.worker_log import counted, log

from .claimed_run import (
    STATES_TO_RECLAIM,
    ClaimedRun,
    ClaimEvent,
    KeeperEvents,
    attempt_timeout,
    retry_in,
)

LATE = 0.1
"""A reclaim that begins later than this part of its lease is logged. The rest of the lease, 30 % or more,
is there for retries; a thread that is not scheduled for as long as this uses it up."""


class Reclaiming:
    """Reclaims runs from their claim until they are resolved or lost."""

    def __init__(self, events: KeeperEvents, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._tasks: dict[ClaimedRun, asyncio.Task[None]] = {}

    def start(self, run: ClaimedRun) -> None:
        """Reclaim a run from now on."""
        task = self._tasks[run] = asyncio.create_task(
            self._reclaim_until_resolved(run), context=run.trace.context.copy()
        )
        task.add_done_callback(partial(self._ended, run))

    def drop(self, run: ClaimedRun) -> None:
        """Do not reclaim a run any more."""
        task = self._tasks.pop(run, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Reclaim nothing any more."""
        await end_tasks(*self._tasks.values())

    def runs(self) -> list[ClaimedRun]:
        """Return the runs that are being reclaimed."""
        return list(self._tasks)

    async def reclaim_once(self, run: ClaimedRun) -> Exception | None:
        """Make one attempt; return the error if another attempt may succeed."""
        asked = self._clock.monotonic()
        try:
            async with asyncio.timeout(attempt_timeout(run.lease.left(asked))):
                response = await run.queue.reclaim_task(run.task_id, run.run_id)
            run.credentials.replace(response.credentials)
            run.lease = run.lease.reclaimed(response, asked)
        except RequestConflict as error:
            if run.apply(ClaimEvent.RECLAIM_REFUSED, error.message, LossReason.RECLAIM_REFUSED):
                self._events.reclaim_ended("refused")
        except Exception as error:  # noqa: BLE001 - whatever happens, the claim lasts until its lease ends
            self._events.reclaim_ended("failed")
            log.warning("cannot reclaim %s, retrying: %s", run, cause_of(error))
            return error
        else:
            self._events.reclaim_ended("reclaimed")
        return None

    async def _reclaim_until_resolved(self, run: ClaimedRun) -> None:
        while run.state in STATES_TO_RECLAIM:
            due = run.lease.reclaim_at(random())  # noqa: S311 - spreads calls, keeps no secret
            await self._sleep(due - self._clock.monotonic())
            if run.state in STATES_TO_RECLAIM:
                late = self._clock.monotonic() - due
                self._note_begin(run, late)
                await self._reclaim(run, late)

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
        failures, last = 0, f"no attempt was made, as the first one began {late:.1f} s late"
        while run.state in STATES_TO_RECLAIM:
            if not run.lease.left(self._clock.monotonic()):
                why = f"its lease ended ({run.lease.length:.1f} s); {last}"
                run.apply(ClaimEvent.LEASE_ENDED, why, LossReason.LEASE_ENDED)
            elif error := await self.reclaim_once(run):
                failures += 1
                last = f"reclaim failed {counted(failures, 'time')}, last error: {cause_of(error)}"
                left = run.lease.left(self._clock.monotonic())
                await self._sleep(min(retry_in(failures, left, random()), left))  # noqa: S311 - as above
            else:
                return

    def _ended(self, run: ClaimedRun, task: asyncio.Task[None]) -> None:
        """Lose a run that can no longer be reclaimed because of a bug: working on it would be in vain."""
        self._tasks.pop(run, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the claim on %s cannot be reclaimed", run, exc_info=error)
            run.apply(ClaimEvent.LEASE_ENDED, f"reclaiming raised {error!r}", LossReason.LEASE_ENDED)

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_async(max(seconds, 0))


def cause_of(error: Exception) -> str:
    """Return why a call failed, for the log: a timeout has no message."""
    return str(error) or "no response in time"
