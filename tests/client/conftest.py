"""Each test of a client is written once, and run over both clients.

It runs twice over the asynchronous client, which has another transport where aiohttp lacks the inner calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from taskqueue_client import AsyncQueue, Credentials, Queue
from taskqueue_client.local import LocalQueue
from tests.client.scripted import ScriptedServer
from tests.restless_clock import RestlessClock

CREDENTIALS = Credentials("tester/one", "a-secret-of-the-tests")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


class EitherClient:
    """Either client, with synchronous methods."""

    def __init__(self, queue: Queue | AsyncQueue, runner: asyncio.Runner | None) -> None:
        self.queue = queue
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.queue, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.result(method(*args, **kwargs))

        return call

    def with_options(self, **options: Any) -> EitherClient:
        return EitherClient(self.queue.with_options(**options), self.runner)

    def with_credentials(self, credentials: Credentials) -> EitherClient:
        return EitherClient(self.queue.with_credentials(credentials), self.runner)

    def all(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Everything that an `iter_*` method yields."""
        items = getattr(self.queue, name)(*args, **kwargs)
        if self.runner is None:
            return list(items)

        async def collect() -> list[Any]:
            return [item async for item in items]

        return self.runner.run(collect())

    def result(self, result: Any) -> Any:
        return result if self.runner is None or not asyncio.iscoroutine(result) else self.runner.run(result)


KINDS: dict[str, Any] = {"sync": Queue, "async": AsyncQueue, "async over ClientSession": AsyncQueue}


@pytest.fixture(params=KINDS)
def make_client(
    request: pytest.FixtureRequest, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A function that makes a client of the scripted server."""
    if request.param == "async over ClientSession":
        monkeypatch.setattr("taskqueue_client._transport.asynchronous.is_supported", lambda: False)
    runner = None if request.param == "sync" else asyncio.Runner()
    made: list[EitherClient] = []

    def make(
        root_url: str | None = None, credentials: Credentials | None = CREDENTIALS, **kwargs: Any
    ) -> Any:
        kind = KINDS[request.param]
        client = EitherClient(kind(root_url or server.root_url, credentials, **kwargs), runner)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
    if runner is not None:
        runner.close()


@pytest.fixture
def clock() -> RestlessClock:
    return RestlessClock()


@pytest.fixture
def client(make_client: Any, clock: RestlessClock) -> Any:
    """A client of the scripted server that never waits."""
    return make_client(clock=clock)


@pytest.fixture
def local() -> Iterator[LocalQueue]:
    """A local queue."""
    with LocalQueue() as local:
        yield local
