"""Reclaiming runs until they are resolved, and noticing in between that they were canceled.

Each run has one small task that reclaims it, in the keeper's loop. The statuses of all runs are polled, and
the Queue's messages tell when to poll at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import random, uniform
from typing import TYPE_CHECKING

from taskqueue_client._protocol.lease import attempt_timeout, retry_in
from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed, InsufficientScopes, RequestConflict, TaskQueueError
from taskqueue_client.models import ReasonResolved, RunState, TaskStatus
from taskqueue_client.models.messages import TaskExceptionMessage
from taskqueue_client.worker.outcomes import LossReason

from .claimed_run import STATES_TO_RECLAIM, ClaimedRun, Event, KeeperEvents
from .task_source import WorkerIdentity

if TYPE_CHECKING:
    from taskqueue_client.events import Event as Message
    from taskqueue_client.events import Gap, PulseSettings

log = logging.getLogger("taskqueue_client.worker")

LATE = 0.1
"""A reclaim that begins later than this part of its lease is logged. The rest of the lease, 30 % or more,
is there for retries; a thread that is not scheduled for as long as this uses it up."""


class Reclaiming:
    """Reclaims runs from their claim until they are resolved or lost.

    Args:
        events: Is told about each reclaim.
        clock: The source of time.
    """

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
            if run.apply(Event.RECLAIM_REFUSED, error.message, LossReason.RECLAIM_REFUSED):
                self._events.reclaim_refused()
        except Exception as error:  # noqa: BLE001 - whatever happens, the claim lasts until its lease ends
            self._events.reclaim_failed()
            log.warning("cannot reclaim %s, retrying: %s", run, _in_words(error))
            return error
        return None

    async def _reclaim_until_resolved(self, run: ClaimedRun) -> None:
        while run.state in STATES_TO_RECLAIM:
            due = run.lease.reclaim_at(random())  # noqa: S311 - spreads calls, keeps no secret
            await self._sleep(due - self._clock.monotonic())
            late = self._clock.monotonic() - due
            self._warn_if_late(run, late)
            if await self._reclaim(run, late):
                self._events.reclaimed(late)

    def _warn_if_late(self, run: ClaimedRun, late: float) -> None:
        if late > LATE * run.lease.length and run.state in STATES_TO_RECLAIM:
            log.warning(
                "reclaiming %s began %.1f s late, with %.1f of %.1f s of the lease left: the keeper's thread "
                "was not scheduled, as when the process was suspended, or a handler did not release the "
                "interpreter's lock",
                *(run, late, run.lease.left(self._clock.monotonic()), run.lease.length),
            )

    async def _reclaim(self, run: ClaimedRun, late: float) -> bool:
        """Retry until an attempt succeeds or is refused, or the lease has ended; return the success."""
        failures, last = 0, f"no attempt was made, as the first one began {late:.1f} s late"
        while run.state in STATES_TO_RECLAIM:
            if not run.lease.left(self._clock.monotonic()):
                why = f"its lease ended ({run.lease.length:.1f} s); {last}"
                run.apply(Event.LEASE_ENDED, why, LossReason.LEASE_ENDED)
            elif error := await self.reclaim_once(run):
                failures += 1
                last = f"reclaim failed {failures} times, last error: {_in_words(error)}"
                left = run.lease.left(self._clock.monotonic())
                await self._sleep(min(retry_in(failures, left, random()), left))  # noqa: S311 - as above
            else:
                return run.has_claim
        return False

    def _ended(self, run: ClaimedRun, task: asyncio.Task[None]) -> None:
        """Lose a run that can no longer be reclaimed because of a bug: working on it would be in vain."""
        self._tasks.pop(run, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the claim on %s cannot be reclaimed", run, exc_info=error)
            run.apply(Event.LEASE_ENDED, f"reclaiming raised {error!r}", LossReason.LEASE_ENDED)

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_async(max(seconds, 0))


def _in_words(error: Exception) -> str:
    return str(error) or "no response in time"


JITTER = 0.25
"""The part of the interval by which each poll is moved to either side, so that workers that were started
together do not poll together."""


class CancellationWatch:
    """Polls the statuses of all claimed runs with one call, at intervals and after each hint.

    A resolved run never runs again, so its status is as good as a refused reclaim.

    Args:
        queue: A client with the worker's credentials; needs `queue:status:<task_id>`.
        runs: Returns the runs to poll.
        interval: Seconds between polls.
        clock: The source of time.
    """

    def __init__(
        self, queue: AsyncQueue, runs: Callable[[], list[ClaimedRun]], interval: float, clock: Clock
    ) -> None:
        self._queue = queue
        self._runs = runs
        self._interval = interval
        self._clock = clock
        self._is_refused = False
        self._polls: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name="cancellation watch")

    def hint(self, task_id: str | None = None) -> None:
        """Poll at once: one task, or all of them."""
        poll = asyncio.create_task(
            self._poll([run for run in self._runs() if task_id in {None, run.task_id}])
        )
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)

    async def stop(self) -> None:
        """Poll no more."""
        await end_tasks(self._task, *self._polls)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep_async(self._interval * uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - spreads calls
            await self._poll(self._runs())

    async def _poll(self, runs: list[ClaimedRun]) -> None:
        if not runs:
            return
        by_task = {run.task_id: run for run in runs}
        try:
            async for each in self._queue.iter_statuses(list(by_task)):
                _compare(by_task[each.task_id], each.status)
            self._is_refused = False
        except InsufficientScopes as error:
            self._say_refused(error)
        except CallFailed as error:
            log.info("cannot poll for canceled runs, retrying: %s", error)

    def _say_refused(self, error: InsufficientScopes) -> None:
        """Say it once: the scopes do not change from one poll to the next."""
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "no scope to poll for canceled runs: cancellation is noticed at the next reclaim only; "
                "the worker's credentials lack queue:status:<taskId> (HTTP %d)",
                error.status,
            )


def _compare(run: ClaimedRun, status: TaskStatus) -> None:
    found = next((each for each in status.runs if each.run_id == run.run_id), None)
    if found is not None and found.state is not RunState.RUNNING:
        resolved = found.reason_resolved
        why = f"the Queue has resolved the run as {found.state}, {resolved}"
        run.apply(Event.RECLAIM_REFUSED, why, LossReason.of(resolved))


async def consume_cancellations(
    pulse: PulseSettings, identities: Sequence[WorkerIdentity], hint: Callable[[str | None], object]
) -> None:
    """Give a hint for each message about a canceled run of this worker, until canceled.

    The worker has one identity for each of its task queues.

    A message is only a hint, as messages may be lost or come twice: the Queue is polled as well, and at
    once when consuming begins and after each gap. So a broker that refuses this worker is an error in the
    log, and does not stop the worker.
    """
    from taskqueue_client.events import AsyncListener, task_exception  # noqa: PLC0415 - most workers have no broker

    own = [
        task_exception(
            task_queue_id=each.task_queue_id, worker_group=each.worker_group, worker_id=each.worker_id
        )
        for each in identities
    ]

    async def after_gap(_: Gap) -> None:
        hint(None)

    try:
        async with AsyncListener(pulse, own, reconcile=after_gap) as listener:
            hint(None)
            async for message in listener:
                if (task_id := _canceled_task(message)) is not None:
                    hint(task_id)
    except TaskQueueError as error:
        log.error("not consuming cancellation messages, polling for canceled runs instead: %s", error)  # noqa: TRY400 - the error says it all; its traceback shows only the insides of the connection


def _canceled_task(event: Message) -> str | None:
    message = event.message
    if not isinstance(message, TaskExceptionMessage) or message.run_id is None:
        return None
    run = message.status.runs[message.run_id]
    return message.status.task_id if run.reason_resolved is ReasonResolved.CANCELED else None
