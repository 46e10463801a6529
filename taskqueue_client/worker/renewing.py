"""Keeping the leases of held runs: one small task for each, in the keeper's loop."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import random

from taskqueue_client.clock import Clock
from taskqueue_client.errors import RequestConflict
from taskqueue_client.lease import attempt_timeout, retry_in

from .held_run import HeldRun
from .keeper_events import KeeperEvents
from .run_state import RENEWED_IN, Event

log = logging.getLogger("taskqueue_client.worker")

LEASE_ENDED = "its lease ended before the Queue could be reached"


class Renewals:
    """Renews leases from when a run is claimed until it is resolved or lost.

    Args:
        events: Who is told.
        clock: Where time comes from.
    """

    def __init__(self, events: KeeperEvents, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._tasks: dict[HeldRun, asyncio.Task[None]] = {}

    def start(self, held: HeldRun) -> None:
        """Keep a run."""
        task = self._tasks[held] = asyncio.create_task(self._keep(held))
        task.add_done_callback(partial(self._ended, held))

    def drop(self, held: HeldRun) -> None:
        """Keep a run no longer."""
        task = self._tasks.pop(held, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Keep nothing any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def held(self) -> list[HeldRun]:
        """The runs that are kept."""
        return list(self._tasks)

    async def try_once(self, held: HeldRun) -> bool:
        """Try to renew a lease; False if the same may succeed a little later."""
        asked = self._clock.monotonic()
        try:
            async with asyncio.timeout(attempt_timeout(held.lease.left(asked))):
                answer = await held.queue.reclaim_task(held.task_id, held.run_id)
            held.credentials.replace(answer.credentials)
            held.lease = held.lease.renewed(answer, asked)
        except RequestConflict as error:
            if held.apply(Event.RENEWAL_REFUSED, error.message):
                self._events.renewal_refused()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is ours until its lease ends
            self._events.renewal_failed()
            log.warning("cannot renew the claim on %s: %s", held, str(error) or "no answer in time")
            return False
        return True

    async def _keep(self, held: HeldRun) -> None:
        while held.state in RENEWED_IN:
            due = held.lease.renew_at(random())  # noqa: S311 - spreads calls, keeps no secret
            await self._sleep(due - self._clock.monotonic())
            late = self._clock.monotonic() - due
            if await self._renew(held):
                self._events.renewed(late)

    def _ended(self, held: HeldRun, task: asyncio.Task[None]) -> None:
        """A run that nobody renews any more must not be worked on any more."""
        self._tasks.pop(held, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the claim on %s cannot be renewed", held, exc_info=error)
            held.apply(Event.LEASE_ENDED, f"it cannot be renewed: {error}")

    async def _renew(self, held: HeldRun) -> bool:
        """Try until it succeeds, is refused, or is too late; tell whether it has succeeded."""
        failures = 0
        while held.state in RENEWED_IN:
            if not held.lease.left(self._clock.monotonic()):
                held.apply(Event.LEASE_ENDED, LEASE_ENDED)
            elif await self.try_once(held):
                return held.is_held
            else:
                failures += 1
                left = held.lease.left(self._clock.monotonic())
                await self._sleep(min(retry_in(failures, left, random()), left))  # noqa: S311 - as above
        return False

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_async(max(seconds, 0))
