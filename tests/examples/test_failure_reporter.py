"""The bot of the examples, with RabbitMQ and a webhook over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientResponseError, ClientSession, web
from aiohttp.test_utils import TestServer
from tenacity import wait_none

from examples.failure_reporter import FailureReporter
from taskqueue_client import AsyncQueue, LocalQueue, Queue, TaskDefinition, TaskRun, WorkerLoop, slugid
from taskqueue_client.events import PulseSettings
from taskqueue_client.testing import TaskFactory
from tests.events.messages_published import Publisher


class Failing(WorkerLoop):
    def run_task(self, task: TaskRun) -> None:
        task.run_command("seq 100; exit 3", shell=True)


def fail(local: LocalQueue, definition: TaskDefinition) -> str:
    """Run a task that fails."""
    with Queue(local.root_url, local.credentials) as queue:
        queue.create_task(task_id := slugid(), definition)
    Failing(
        root_url=local.root_url,
        credentials=local.credentials,
        task_queue_id=definition.get("taskQueueId", ""),
        worker_group="tests",
        worker_id="one",
        max_tasks=1,
    ).serve()
    return task_id


class Webhook:
    """Receives reports, after it has refused one with each status in `outage`, the last status first."""

    def __init__(self, *outage: int) -> None:
        self.outage = [*outage]
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.app = web.Application()
        self.app.router.add_post("/", self._post)

    async def _post(self, request: web.Request) -> web.Response:
        if self.outage:
            return web.Response(status=self.outage.pop())
        self.received.put_nowait(await request.json())
        return web.Response()


async def test_each_failed_task_is_reported_once_also_after_an_outage_of_the_webhook(
    task_factory: TaskFactory, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = slugid()
    monkeypatch.setenv("PULSE_URL", broker_url)
    webhook = Webhook(503, 429, 503, 408)
    publisher = await Publisher.connect(broker_url)
    with LocalQueue(amqp_url=broker_url) as local:
        definition = task_factory(taskGroupId=group, taskQueueId=f"test-{group}/w")
        before = await asyncio.to_thread(fail, local, definition)
        async with (
            asyncio.timeout(60),
            TestServer(webhook.app) as server,
            AsyncQueue(local.root_url, local.credentials) as queue,
            ClientSession() as session,
        ):
            reporter = FailureReporter(queue, session, str(server.make_url("/")))
            reporter.wait = wait_none()
            listening = asyncio.create_task(reporter.listen(group))
            report = await webhook.received.get()
            assert (report["taskId"], report["runId"], len(report["log"])) == (before, 0, 20)
            assert any(line.endswith(" 100") for line in report["log"])
            after = await asyncio.to_thread(fail, local, definition)
            assert (await webhook.received.get())["taskId"] == after
            for each in (group, slugid()):  # the second group has no tasks yet
                await reporter.report_group(each)
            webhook.outage += [503] * 4  # each report fails often enough that the message is delivered twice
            during = await asyncio.to_thread(fail, local, definition)
            assert (await webhook.received.get())["taskId"] == during
            webhook.outage.append(400)
            another = FailureReporter(queue, session, str(server.make_url("/")))
            reported = (await queue.status(during)).status
            with pytest.raises(ClientResponseError):  # the webhook refuses the report: it is not retried
                await another.report(reported)
            assert webhook.received.empty()
            listening.cancel()
            await asyncio.wait([listening])
    await publisher.channel.queue_delete(f"queue/{PulseSettings.from_url(broker_url).user}/failures-{group}")
    await publisher.close()
