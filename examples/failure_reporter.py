"""A bot that posts the last lines of the log of each failed task of a group to a webhook.

    python -m examples.failure_reporter TASK_GROUP_ID https://example.com/webhook

It needs `PULSE_URL`. The AMQP queue has a name, so that it keeps messages while the bot or RabbitMQ restarts.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress

import aiohttp
from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception, wait_exponential
from tenacity.wait import wait_base

from taskqueue_client import AsyncQueue, TaskQueueError
from taskqueue_client.errors import ResourceNotFound
from taskqueue_client.events import AsyncListener, Event, Gap, PulseSettings, task_failed
from taskqueue_client.models import TaskStatus
from taskqueue_client.models.messages import TaskMessage

LOG = "public/logs/live_backing.log"
TRANSIENT = {408, 429, *range(500, 600)}
LOGGER = logging.getLogger(__name__)


def may_pass(error: BaseException) -> bool:
    """Return whether a webhook may accept a report later."""
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status in TRANSIENT
    return isinstance(error, (aiohttp.ClientError, TimeoutError))


class FailureReporter:
    """Reports each failed run once, as long as the program runs."""

    wait: wait_base = wait_exponential(max=60)  # between attempts to reach the webhook, in seconds

    def __init__(self, queue: AsyncQueue, session: aiohttp.ClientSession, webhook: str) -> None:
        self._queue = queue
        self._session = session
        self._webhook = webhook
        self._reported: set[tuple[str, int]] = set()
        self._lock = asyncio.Lock()  # `reconcile` runs beside the handler of events

    async def listen(self, task_group_id: str) -> None:
        """Report failures until the task is canceled."""

        async def reconcile(_: Gap) -> None:
            await self.report_group(task_group_id)

        async with AsyncListener(
            PulseSettings.from_env(),
            [task_failed(task_group_id=task_group_id)],
            queue=f"failures-{task_group_id}",
            reconcile=reconcile,
        ) as listener:
            await self.report_group(task_group_id)  # what failed before the queue existed
            await listener.run(self.on_event)

    async def on_event(self, event: Event) -> None:
        """Report the task of a message."""
        if isinstance(event.message, TaskMessage):
            await self.report(event.message.status)

    async def report_group(self, task_group_id: str) -> None:
        """Report the tasks of the group that are failed now."""
        with suppress(ResourceNotFound):  # the group has no tasks yet
            async for member in self._queue.iter_task_group(task_group_id):
                if member.status.state == "failed":
                    await self.report(member.status)

    async def report(self, status: TaskStatus) -> None:
        """Post the last lines of the latest run of a task."""
        run = (status.task_id, len(status.runs) - 1)
        async with self._lock:
            if run not in self._reported:
                await self._post({"taskId": run[0], "runId": run[1], "log": await self._last_lines(*run)})
                self._reported.add(run)

    async def _post(self, report: Mapping[str, object]) -> None:
        """Post a report, and retry in an outage, as a message is dropped if its handler fails twice."""
        log = before_sleep_log(LOGGER, logging.WARNING)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(may_pass), wait=self.wait, before_sleep=log, reraise=True
        ):
            with attempt:
                async with self._session.post(self._webhook, json=report) as response:
                    response.raise_for_status()

    async def _last_lines(self, task_id: str, run_id: int) -> list[str]:
        tail = b""
        try:
            async for block in self._queue.stream_artifact(task_id, LOG, run_id=run_id):
                tail = (tail + block)[-64_000:]
        except TaskQueueError as error:  # a report without a log is better than none
            return [str(error)]
        return tail.decode(errors="replace").splitlines()[-20:]


async def main(task_group_id: str, webhook: str) -> None:
    """Report the failures of a group until Ctrl-C."""
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it logs tracebacks of lost connections otherwise
    async with AsyncQueue.from_env() as queue, aiohttp.ClientSession() as session:
        await FailureReporter(queue, session, webhook).listen(task_group_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
