"""The contract of aiohttp's inner functions, run on the oldest and the newest aiohttp that we support.

If a test here fails on a new aiohttp, `is_supported` has to be false for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from taskqueue_client._protocol.api_responses import TransportFailed
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._transport import async_connections as connections
from taskqueue_client._transport.async_connections import ConnectionDeadlines, HttpConnection
from taskqueue_client._transport.network import Proxy

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@asynccontextmanager
async def saying(*responses: bytes, first: bytes = b"") -> AsyncGenerator[str]:
    """A server that responds to each request, and closes the connection after the last one."""
    served = list[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        with suppress(asyncio.IncompleteReadError, OSError):  # the client may close the connection before
            for response in responses:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(response)
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*served)


def test_this_aiohttp_has_the_inner_functions() -> None:
    assert connections.is_supported()


@pytest.mark.parametrize("missing", ["ClientRequest", "BaseConnector"])
def test_an_aiohttp_without_them_is_recognized(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    connections.is_supported.cache_clear()
    monkeypatch.delattr(aiohttp, missing)
    try:
        assert not connections.is_supported()
    finally:
        connections.is_supported.cache_clear()


async def exchange(connector: aiohttp.BaseConnector, origin: str) -> tuple[int, bytes]:
    """Send one request over a new connection; return status and body."""
    deadlines, forever = ConnectionDeadlines({}), Timeouts(60, 60, 60)
    to = connections.destination(origin, None, None)
    connection = await connections.connect(connector, to, forever, deadlines, {})
    response = await connection.exchange(REQUEST, deadlines.loop.time() + 60, 60, 1000)
    return response.status, response.body


async def test_the_connector_closes_what_it_has_opened() -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsmall"
    async with saying(response, b"") as origin:
        connector = aiohttp.TCPConnector(limit=0)
        assert await exchange(connector, origin) == (200, b"small")
        async with asyncio.timeout(60):
            await connector.close()  # waits for the end of the connection


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with saying(b"HTTP/1.1 200 OK\r\n\r\nbody") as origin, aiohttp.TCPConnector() as connector:
        assert await exchange(connector, origin) == (200, b"body")


@pytest.mark.parametrize(
    "cut", [b"", b"HTTP/1.1 200 OK\r\nA: b", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsm"]
)
async def test_a_response_that_is_cut_is_an_error(cut: bytes) -> None:
    async with saying(cut) as origin, aiohttp.TCPConnector() as connector:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await exchange(connector, origin)


async def test_a_server_that_speaks_first_is_an_error() -> None:
    """Else these bytes would be taken for the response to the first request, and so on."""
    early = b"HTTP/1.1 408 Request Timeout\r\n"
    async with saying(b"", first=early) as origin, aiohttp.TCPConnector() as connector:
        to = connections.destination(origin, None, None)
        opened = await connector.connect(to, [], aiohttp.ClientTimeout())
        assert opened.protocol is not None
        while not opened.protocol.should_close:  # noqa: ASYNC110 - aiohttp has no event for it
            await asyncio.sleep(0)
        with pytest.raises(TransportFailed, match="before the request"):
            HttpConnection(opened, ConnectionDeadlines({}), {})
        assert opened.closed


async def test_a_destination_knows_host_and_proxy() -> None:
    to = connections.destination("https://h:8443", Proxy("http://p:1", "me:secret"), None)
    assert to.headers["Host"] == "h:8443"
    assert to.proxy is not None
    assert (to.proxy.host, to.proxy.port) == ("p", 1)
    headers: Any = to.proxy_headers
    assert headers["Proxy-Authorization"].startswith("Basic ")
