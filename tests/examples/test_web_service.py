"""The web service of the examples, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from examples import web_service
from taskqueue_client import Credentials, Queue, slugid
from taskqueue_client.local import LocalQueue
from taskqueue_client.testing import TaskFactory


@asynccontextmanager
async def serving(
    deployment: LocalQueue, lifetime: timedelta
) -> AsyncGenerator[TestClient[web.Request, web.Application]]:
    async with TestClient(TestServer(web_service.service(deployment.credentials, lifetime))) as client:
        yield client


async def test_requests_share_one_client_with_fewer_scopes(
    deployment: LocalQueue, queue: Queue, task_factory: TaskFactory
) -> None:
    queue.create_task(task_id := slugid(), task_factory())
    async with serving(deployment, timedelta(hours=1)) as client:
        responses = await asyncio.gather(*(client.get(f"/tasks/{task_id}") for _ in range(20)))
        assert [(await each.json())["state"] for each in responses] == ["pending"] * 20
        assert (await client.get(f"/tasks/{slugid()}")).status == 404
        assert (await client.get("/tasks/x")).status == 400
        credentials = client.app[web_service.QUEUE].credentials
        assert credentials is not None
        assert credentials.certificate is not None


async def test_the_service_replaces_its_credentials(
    deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued, issue, replaced = list[Credentials](), web_service.reader, asyncio.Event()

    def reader(issuer: Credentials, lifetime: timedelta) -> Credentials:
        if issued:
            replaced.set()
        issued.append(issue(issuer, lifetime))
        return issued[-1]

    monkeypatch.setattr(web_service, "reader", reader)
    async with serving(deployment, timedelta(seconds=0.1)) as client, asyncio.timeout(60):
        await replaced.wait()
        assert client.app[web_service.QUEUE].credentials is issued[-1]
