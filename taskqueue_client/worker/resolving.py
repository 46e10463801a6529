"""Telling the Queue how a run ended, until it knows or the lease is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import random

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed, RequestConflict
from taskqueue_client.lease import attempt_timeout, retry_in
from taskqueue_client.models import Run

from .held_run import HeldRun
from .outcomes import Resolution, Uploads
from .renewing import LEASE_ENDED
from .run_state import Event, State

log = logging.getLogger("taskqueue_client.worker")


class Resolver:
    """Resolves one held run.

    Args:
        held: The run. No renewal of it begins once it is being resolved.
        queue: Signs with the run's credentials.
        renew: Tries to renew its lease once more.
        clock: Where time comes from.
    """

    def __init__(
        self, held: HeldRun, queue: AsyncQueue, renew: Callable[[HeldRun], Awaitable[object]], clock: Clock
    ) -> None:
        self._held = held
        self._queue = queue.with_options(attempts=1)  # attempts are counted here, by the lease
        self._renew = renew
        self._clock = clock

    async def resolve(self, resolution: Resolution) -> State:
        """Resolve the run, if it is still ours; where it stands afterwards."""
        if self._held.apply(Event.RESOLVE):
            if resolution.uploads is Uploads.AFTER_REPORT:
                await self._extend_credentials()
            await self._report(resolution)
        return self._held.state

    async def _extend_credentials(self) -> None:
        """Uploads follow the report, but no renewal can: so renew first what is half used up."""
        if self._held.lease.left(self._clock.monotonic()) < self._held.lease.length / 2:
            await self._renew(self._held)

    async def _report(self, resolution: Resolution) -> None:
        held, failures = self._held, 0
        while left := held.lease.left(self._clock.monotonic()):
            if await self._try_once(resolution, attempt_timeout(left)):
                return
            failures += 1
            left = held.lease.left(self._clock.monotonic())
            await self._clock.sleep_async(min(retry_in(failures, left, random()), left))  # noqa: S311 - spreads calls, keeps no secret
        held.apply(Event.LEASE_ENDED, LEASE_ENDED)

    async def _try_once(self, resolution: Resolution, timeout: float) -> bool:  # noqa: ASYNC109 - of one try among several
        """One try; False if the same may succeed a little later."""
        held = self._held
        try:
            async with asyncio.timeout(timeout):
                await self._queue.send(resolution.call(held.task_id, held.run_id))
        except RequestConflict as error:
            await self._look(resolution, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is ours until its lease ends
            log.warning(
                "cannot report %s as %s: %s", held, resolution.reason, str(error) or "no answer in time"
            )
            return False
        else:
            held.apply(Event.CONFIRMED)
        return True

    async def _look(self, resolution: Resolution, refusal: RequestConflict) -> None:
        """After a refusal: it does not matter if the run is resolved as it was meant."""
        found = await self._find()
        if found is not None and found.reason_resolved == resolution.reason:
            self._held.apply(Event.CONFIRMED)
        else:
            ended = found and found.reason_resolved
            self._held.apply(Event.RESOLUTION_REFUSED, f"it ended as {ended}" if ended else refusal.message)

    async def _find(self) -> Run | None:
        held = self._held
        left = max(held.lease.left(self._clock.monotonic()), 1.0)
        try:
            answer = await self._queue.with_options(attempts=6, timeout=left).status(held.task_id)
        except CallFailed as error:
            log.warning("cannot see how %s ended: %s", held, error)
            return None
        return next((run for run in answer.status.runs if run.run_id == held.run_id), None)
