"""Noticing between two renewals that runs are not ours any more: canceled, or past their deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import uniform

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed, InsufficientScopes
from taskqueue_client.models import RunState, TaskStatus

from .held_run import HeldRun
from .run_state import Event

log = logging.getLogger("taskqueue_client.worker")

JITTER = 0.25
"""How far, as a part of it, the interval is drawn to either side: workers started together drift apart."""


class CancellationWatch:
    """Asks for the statuses of all held runs now and then, with one call, and when it is given a hint.

    A resolved run never comes back, so what the service says here is as good as a refused renewal.

    Args:
        queue: With the worker's own credentials; needs `queue:status:<task_id>`.
        held: The runs to ask about.
        interval: Seconds from one call to the next.
        clock: Where time comes from.
    """

    def __init__(
        self, queue: AsyncQueue, held: Callable[[], list[HeldRun]], interval: float, clock: Clock
    ) -> None:
        self._queue = queue
        self._held = held
        self._interval = interval
        self._clock = clock
        self._looking: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name="cancellation watch")

    def hint(self, task_id: str | None = None) -> None:
        """Look soon: at one task, which somebody heard was canceled, or at all of them."""
        runs = [held for held in self._held() if task_id in {None, held.task_id}]
        looking = asyncio.create_task(self._look(runs))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)

    async def stop(self) -> None:
        """Look no more."""
        tasks = [self._task, *self._looking]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep_async(self._interval * uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - spreads calls
            await self._look(self._held())

    async def _look(self, runs: list[HeldRun]) -> None:
        if not runs:
            return
        by_task = {held.task_id: held for held in runs}
        try:
            async for each in self._queue.iter_statuses(list(by_task)):
                _compare(by_task[each.task_id], each.status)
        except InsufficientScopes as error:
            log.warning("cancellations are noticed only when a claim is renewed: %s", error)
        except CallFailed as error:
            log.info("cannot look for cancellations, trying again: %s", error)


def _compare(held: HeldRun, status: TaskStatus) -> None:
    run = next((run for run in status.runs if run.run_id == held.run_id), None)
    if run is not None and run.state is not RunState.RUNNING:
        held.apply(Event.RENEWAL_REFUSED, f"it is {run.state}, {run.reason_resolved}")
