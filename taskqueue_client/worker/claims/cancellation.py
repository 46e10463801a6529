"""Detection of canceled runs, before a reclaim is refused.

The statuses of all runs are polled, and the Queue's messages tell when to poll at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import uniform
from typing import TYPE_CHECKING, Any

from taskqueue_client._protocol.retry import is_foreign
from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed, InsufficientScopes, TaskQueueError
from taskqueue_client.models import ReasonResolved, Run, RunState, TaskStatus
from taskqueue_client.models.messages import TaskExceptionMessage
from taskqueue_client.worker.config import WorkerIdentity
from taskqueue_client.worker.outcomes import LossReason
from taskqueue_client.worker.worker_log import log

from .claimed_run import ClaimedRun, ClaimEvent

if TYPE_CHECKING:
    from taskqueue_client.events import Event, Gap, PulseSettings

JITTER = 0.25
"""The part of the interval by which each poll is moved to either side, so that workers that were started
together do not poll together."""

_NOT_CLAIMED = frozenset(RunState) - {RunState.RUNNING}


class CancellationWatch:
    """Polls the statuses of all claimed runs with one call, at intervals and after each hint.

    A resolved run never runs again, so its status is as good as a refused reclaim.

    Args:
        queue: A client with the worker's credentials; needs `queue:status:<task_id>`.
        runs: Returns the runs to poll.
        interval: Seconds between polls.
    """

    def __init__(
        self, queue: AsyncQueue, runs: Callable[[], list[ClaimedRun]], interval: float, clock: Clock
    ) -> None:
        self._queue = queue
        self._runs = runs
        self._interval = interval
        self._clock = clock
        self._logged = set[str]()  # the failures since the last poll that succeeded
        self._polls: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name="cancellation watch")

    def hint(self, task_id: str | None = None) -> None:
        """Poll at once: one task, or all of them."""
        poll = asyncio.create_task(self._poll(task_id), name="cancellation hint")
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)

    async def stop(self) -> None:
        """Poll no more."""
        await end_tasks(self._task, *self._polls)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep_async(self._interval * uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - spreads calls
            await self._poll()

    async def _poll(self, task_id: str | None = None) -> None:
        by_task: defaultdict[str, list[ClaimedRun]] = defaultdict(list)
        for run in self._runs():  # a task that was canceled and rerun may have two
            if task_id in {None, run.task_id}:
                by_task[run.task_id].append(run)
        if not by_task:
            return
        try:
            async for each in self._queue.iter_statuses(list(by_task)):
                for run in by_task[each.task_id]:
                    _compare(run, each.status)
            if self._logged:
                self._logged.clear()
                log.info("polls for canceled runs succeed again")
        except CallFailed as error:
            if isinstance(error, InsufficientScopes) and not is_foreign(error):  # not a proxy's 403
                message = (
                    "not polling for canceled runs: the worker's credentials lack queue:status:<taskId> "
                    "(HTTP %d); cancellation is noticed at the next reclaim"
                )
                self._log_once("refused", logging.WARNING, message, error.status)
            else:
                self._log_once("failed", logging.INFO, "cannot poll for canceled runs, retrying: %s", error)
        except Exception as error:  # noqa: BLE001 - a bug, or a claim that the Queue cannot have made; polls must go on
            message = "cannot poll for canceled runs, retrying"
            self._log_once(repr(error), logging.ERROR, message, exc_info=error)

    def _log_once(self, failure: str, level: int, message: str, *args: object, **options: Any) -> None:
        """Log a failure once until polls succeed: in an outage, it would be a line every few seconds."""
        if failure not in self._logged:
            self._logged.add(failure)
            log.log(level, message, *args, **options)


def _find_run(status: TaskStatus, run_id: int) -> Run | None:
    return next((each for each in status.runs if each.run_id == run_id), None)


def _compare(run: ClaimedRun, status: TaskStatus) -> None:
    found = _find_run(status, run.run_id)
    # A state that is new on the server, without `resolved`, is ignored: the next reclaim shows its meaning.
    if found is not None and (found.resolved is not None or found.state in _NOT_CLAIMED):
        resolved = found.reason_resolved
        why = f"the Queue has resolved the run as {found.state}, {resolved}"
        run.apply(ClaimEvent.RECLAIM_REFUSED, why, LossReason.of(resolved))


async def consume_cancellations(
    pulse: PulseSettings, identities: Sequence[WorkerIdentity], hint: Callable[[str | None], object]
) -> None:
    """Give a hint for each message about a canceled run of this worker, until this call is canceled.

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
    except (TaskQueueError, OSError) as error:  # an OSError if the `ca_file` of `pulse` is unreadable
        log.error("not consuming cancellation messages, polling for canceled runs instead: %s", error)  # noqa: TRY400 - the error says it all; its traceback shows only the insides of the connection


def _canceled_task(event: Event) -> str | None:
    message = event.message
    if not isinstance(message, TaskExceptionMessage) or message.run_id is None:
        return None
    run = _find_run(message.status, message.run_id)
    is_canceled = run is not None and run.reason_resolved is ReasonResolved.CANCELED
    return message.status.task_id if is_canceled else None
