"""Hears of cancelled runs at once: from the Queue's messages, where the worker may listen to them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskqueue_client.errors import TaskQueueError
from taskqueue_client.events import Event, Gap, Listener, PulseSettings, task_exception
from taskqueue_client.models import ReasonResolved
from taskqueue_client.models.messages import TaskExceptionMessage

from .claiming import WorkerIdentity

log = logging.getLogger("taskqueue_client.worker")


async def hear_of_cancellations(
    pulse: PulseSettings, identity: WorkerIdentity, hint: Callable[[str | None], object]
) -> None:
    """Give a hint for each task of which a run of this worker was canceled, until cancelled.

    A message is only a hint, as any may be lost or come twice: the Queue is asked, now and then without
    a message too, and at once when the listening begins and after each gap. So a broker that refuses
    this worker is an error in the log, and no more.
    """
    own = task_exception(
        task_queue_id=identity.task_queue_id,
        worker_group=identity.worker_group,
        worker_id=identity.worker_id,
    )

    async def after_gap(_: Gap) -> None:
        hint(None)

    try:
        async with Listener(pulse, [own], reconcile=after_gap) as listener:
            hint(None)
            async for event in listener:
                if (task_id := _cancelled_task(event)) is not None:
                    hint(task_id)
    except TaskQueueError:
        log.exception("no messages about canceled runs; the Queue is asked for them as often as ever")


def _cancelled_task(event: Event) -> str | None:
    message = event.message
    if not isinstance(message, TaskExceptionMessage) or message.run_id is None:
        return None
    run = message.status.runs[message.run_id]
    return message.status.task_id if run.reason_resolved is ReasonResolved.CANCELED else None
