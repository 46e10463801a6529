"""The client of the worker's own calls: what it does otherwise than the one over aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from taskqueue_client.errors import ConnectionFailed
from taskqueue_client.models import Ping
from taskqueue_client.worker.direct_queue import DirectQueue
from tests.client.scripted import ScriptedServer, say

ALIVE = {"alive": True, "uptime": 1}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


def ping(server: ScriptedServer) -> Ping:
    async def once() -> Ping:
        async with DirectQueue(server.root_url) as queue:
            return await queue.with_options(attempts=1).ping()

    return asyncio.run(once())


def test_it_asks_for_answers_that_are_not_compressed(server: ScriptedServer) -> None:
    server.script.append(say(ALIVE, Content_Encoding="identity"))
    assert ping(server).alive
    assert server.received[0].headers["Accept-Encoding"] == "identity"


def test_it_reads_none_that_is_compressed_all_the_same(server: ScriptedServer) -> None:
    server.script.append(say(ALIVE, Content_Encoding="br"))
    with pytest.raises(ConnectionFailed):
        ping(server)
