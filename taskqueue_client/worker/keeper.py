"""The keeper: a thread with its own loop and connections, where claims live from first to last.

Whatever handlers do, even if they hold their own loop or thread for longer than a lease, runs are renewed
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials
from taskqueue_client.lease import Lease
from taskqueue_client.models import TaskClaim

from .cancellation import CancellationWatch
from .claiming import Claiming, Slots, WorkerIdentity
from .event_thread import EventThread
from .held_run import HeldRun
from .keeper_events import KeeperEvents
from .renewing import Renewals


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """What the keeper goes by.

    Attributes:
        identity: Whom to claim for.
        concurrency: How many runs may be held at a time.
        max_tasks: How many runs are claimed in all; None for no limit.
        cancellation_poll_interval: Seconds from one look at the held runs' statuses to the next.
    """

    identity: WorkerIdentity
    concurrency: int
    max_tasks: int | None
    cancellation_poll_interval: float


class Keeper:
    """Claims runs and keeps them. Its methods may be called from any thread.

    Args:
        make_queue: Makes the client that everything here goes through, in the keeper's loop.
        settings: What to go by.
        events: Who is told.
        clock: Where time comes from.
    """

    def __init__(
        self,
        make_queue: Callable[[], AsyncQueue],
        settings: KeeperSettings,
        events: KeeperEvents,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._events = events
        self._clock = clock
        self._thread = EventThread("taskqueue keeper")
        try:
            self._thread.submit(self._start(make_queue)).result()
        except BaseException:
            self._thread.stop()
            raise

    def stop_claiming(self) -> None:
        """Make no more claim calls; what one under way brings is still handed over."""
        self._thread.call(self._claiming.stop)

    def hang_up(self) -> None:
        """End a claim call under way, too: the runs that it may just have claimed come back by themselves."""
        self._thread.call(self._claiming.hang_up)

    async def claiming_ended(self) -> None:
        """Wait until there are no more claim calls; raises what should not have ended them."""
        await asyncio.wrap_future(self._thread.submit(self._claiming.ended()))

    async def renew(self, held: HeldRun) -> None:
        """Try once, now, to renew a run's lease."""
        await asyncio.wrap_future(self._thread.submit(self._renewals.try_once(held)))

    def let_go(self, held: HeldRun) -> None:
        """A run has ended: its slot is free."""
        self._thread.call(self._let_go, held)

    def _let_go(self, held: HeldRun) -> None:
        self._renewals.drop(held)
        self._slots.give_back()

    def use_credentials(self, credentials: Credentials) -> None:
        """Make the worker's own calls with other credentials from now on."""
        self._queue.credentials = credentials

    def hint_cancelled(self, task_id: str | None = None) -> None:
        """Look soon at a task, if a run of it is held, or at all of them."""
        self._thread.call(self._cancellations.hint, task_id)

    @property
    def has_claimed(self) -> bool:
        """Whether a claim call was answered, if only with nothing."""
        return self._claiming.has_claimed

    def unanswered_for(self) -> float | None:
        """Seconds that a claim call has been due without an answer; None while none is."""
        return self._claiming.unanswered_for()

    def stop(self) -> None:
        """End the thread, once claiming has ended and every run was resolved or lost."""
        self._thread.submit(self._stop()).result()
        self._thread.stop()

    async def _start(self, make_queue: Callable[[], AsyncQueue]) -> None:
        settings = self._settings
        self._queue = make_queue()
        single = self._single = self._queue.with_options(attempts=1)
        self._slots = Slots(settings.concurrency, settings.max_tasks)
        self._renewals = Renewals(self._events, self._clock)
        self._cancellations = CancellationWatch(
            single, self._renewals.held, settings.cancellation_poll_interval, self._clock
        )
        self._claiming = Claiming(
            single,
            settings.identity,
            self._slots,
            granted=self._granted,
            events=self._events,
            clock=self._clock,
        )

    def _granted(self, claims: list[TaskClaim]) -> None:
        now = self._clock.monotonic()
        runs = [HeldRun(claim, Lease.of_claim(claim, now), self._single) for claim in claims]
        for held in runs:
            self._renewals.start(held)
        self._events.claimed(runs)

    async def _stop(self) -> None:
        self._claiming.hang_up()
        await self._cancellations.stop()
        await self._renewals.stop()
        await self._queue.close()
