"""Calls through a task's proxy, against the same calls signed and sent by the client itself.

Caller and server are separate processes, as a task's commands are. The floor is a proxy of aiohttp's server
and client with the least code: it passes a request on without its headers, and signs nothing.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web
from yarl import URL

from benchmarks.canned import canned_server
from benchmarks.measure import ROUNDS, Row, at_least, at_most, possible
from taskqueue_client import AsyncQueue, Credentials, Queue
from taskqueue_client.worker.features.proxy import TaskProxy
from taskqueue_client.worker.threads import EventThread

TASK = "Y9IplizWTj-eOJfHEC71Rw"
CREDENTIALS = Credentials("benchmark/client", "a-token-of-some-forty-characters-length-abc")
CALLS = 160
AT_ONCE = 16


def one_after_the_other(call: Callable[[], object]) -> float:
    """Return the median of the milliseconds of a call."""
    taken: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1000


def added_milliseconds(proxy_url: str, root_url: str) -> float:
    """Return the milliseconds that a proxy adds to a call."""
    with Queue(proxy_url) as through, Queue(root_url, CREDENTIALS) as direct:
        return one_after_the_other(lambda: through.status(TASK)) - one_after_the_other(
            lambda: direct.status(TASK)
        )


async def calls_per_second(proxy_url: str) -> float:
    """Return how many calls succeed in a second, 16 at a time."""
    async with AsyncQueue(proxy_url) as queue:

        async def several(call: Callable[[], Awaitable[object]]) -> None:
            for _ in range(CALLS // AT_ONCE):
                await call()

        started = time.perf_counter()
        await asyncio.gather(*(several(lambda: queue.status(TASK)) for _ in range(AT_ONCE)))
        return CALLS // AT_ONCE * AT_ONCE / (time.perf_counter() - started)


def call(root_url: str, *proxy_urls: str) -> None:
    """Make the calls, and print milliseconds and calls per second for each proxy; they take turns."""
    added = [[added_milliseconds(each, root_url) for each in proxy_urls] for _ in range(ROUNDS)]
    rates = [[asyncio.run(calls_per_second(each)) for each in proxy_urls] for _ in range(ROUNDS)]
    print(json.dumps([[*map(statistics.median, zip(*figures, strict=True))] for figures in (added, rates)]))


@contextmanager
def bare_proxy(root_url: str) -> Generator[str]:
    """Run a proxy with the least code on a separate thread, as `TaskProxy` does."""
    thread = EventThread("bare proxy")
    server = _BareProxy(root_url)
    try:
        yield thread.submit(server.start()).result()
    finally:
        thread.submit(server.stop()).result()
        thread.stop()


class _BareProxy:
    def __init__(self, root_url: str) -> None:
        self._root_url = root_url

    async def start(self) -> str:
        self._session = aiohttp.ClientSession()
        self._runner = web.ServerRunner(web.Server(self._serve))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        url = URL(self._root_url + request.raw_path, encoded=True)
        async with self._session.request(request.method, url, data=await request.read()) as response:
            body = await response.read()
            return web.Response(status=response.status, body=body, content_type="application/json")


def rows() -> Iterator[Row]:
    """Compare the proxy with signed calls, and with the floor."""
    with (
        canned_server() as root_url,
        bare_proxy(root_url) as bare_url,
        TaskProxy(root_url, CREDENTIALS, ["queue:status:*"], time.time) as proxy_url,
    ):
        command = [sys.executable, "-m", "benchmarks.proxy", root_url, proxy_url, bare_url]
        added, rates = json.loads(subprocess.check_output(command))
    yield at_most("a call through a task's proxy, ms more", "signed directly", added[0], 1.5)
    yield possible("… aiohttp's server and client, nothing signed", "signed directly", added[1])
    yield at_least(f"calls/s through a task's proxy, {AT_ONCE} at a time", "", rates[0], 500)
    yield possible("… aiohttp's server and client, nothing signed", "", rates[1])


if __name__ == "__main__":
    call(*sys.argv[1:])
