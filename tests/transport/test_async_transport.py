"""Requests over aiohttp's connector and httptools' parser: real sockets, and servers that break the rules."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import ssl
import struct
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import aiohttp
import pytest

from taskqueue_client._protocol.api_responses import Response, ResponseRefused, TransportFailed
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.threads_and_tasks import LoopEnd
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport import async_connections
from taskqueue_client._transport.async_connections import (
    KEEP_ALIVE,
    MAX_HEAD,
    ConnectionDeadlines,
    ConnectorTransport,
)
from taskqueue_client._transport.network import USER_AGENT, NetworkSettings
from taskqueue_client.errors import ClientUnusable
from tests.certificates import Authority

FOREVER = 60
"""Seconds after which a wait in these tests has failed."""
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsmall"


class Peer:
    """The server's end of a connection from the client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Read the next request; return its head and its body."""
        async with asyncio.timeout(FOREVER):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
            return head, await self.reader.readexactly(int(length[1]) if length else 0)

    async def responds(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def ends(self) -> None:
        """Wait until the client has closed the connection."""
        await self.rest()

    async def rest(self) -> int:
        """Wait until the client has closed the connection; return the number of bytes that still came."""
        size = 0
        async with asyncio.timeout(FOREVER):
            with suppress(ConnectionResetError):
                while piece := await self.reader.read(2**20):
                    size += len(piece)
        return size


class Server:
    """Accepts connections; the test sends and receives over them."""

    def __init__(self) -> None:
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self.accepted: list[Peer] = []
        self.origin = ""

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(Peer(reader, writer))
        self._new.put_nowait(self.accepted[-1])

    async def peer(self) -> Peer:
        """Return the next new connection."""
        async with asyncio.timeout(FOREVER):
            return await self._new.get()


@asynccontextmanager
async def serving(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.accept, host, 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    address = f"[{host}]" if ":" in host else host
    server.origin = f"http://{address}:{port}" if tls is None else f"https://localhost:{port}"
    try:
        yield server
    finally:
        listening.close()
        for peer in server.accepted:
            peer.writer.transport.abort()
        await listening.wait_closed()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def transport(server: Server) -> AsyncIterator[ConnectorTransport]:
    """A transport; when it is closed, it must leave no connection open."""
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        yield transport
    for peer in server.accepted:
        await peer.ends()


async def turns() -> None:
    """Let the event loop run what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


async def get(
    transport: ConnectorTransport,
    server: Server,
    *,
    read: float = FOREVER,
    total: float = FOREVER,
    max_body: int = 1 << 30,
) -> Response:
    request = Request("GET", f"{server.origin}/path?query=1", {"A": "b"}, None)
    return await transport.request(request, Timeouts(FOREVER, read, total), max_body)


async def put(transport: ConnectorTransport, server: Server, body: bytes) -> Response:
    request = Request("PUT", f"{server.origin}/", {}, body)
    return await transport.request(request, Timeouts(FOREVER, FOREVER, FOREVER))


async def exchanged(
    transport: ConnectorTransport, server: Server, response: bytes = EMPTY, peer: Peer | None = None
) -> Peer:
    """Make one exchange, over `peer` or a new connection; return the connection."""
    going = asyncio.create_task(get(transport, server))
    peer = peer or await server.peer()
    await peer.request()
    await peer.responds(response)
    assert (await going).status == 200
    return peer


async def test_a_request_is_sent_as_it_is_and_its_response_received(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    host = server.origin.removeprefix("http://")
    head = f"GET /path?query=1 HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nA: b\r\n\r\n"
    assert await peer.request() == (head.encode(), b"")
    await peer.responds(SMALL)
    response = await going
    assert (response.status, response.headers["content-length"], response.body) == (200, "5", b"small")


@pytest.mark.parametrize("body", [b"", bytes(5_000_000)])
async def test_a_body_is_sent_with_its_length(
    transport: ConnectorTransport, server: Server, body: bytes
) -> None:
    going = asyncio.create_task(put(transport, server, body))
    peer = await server.peer()
    head, received = await peer.request()
    assert (b"\r\nContent-Length: %d\r\n" % len(body) in head, received) == (True, body)
    await peer.responds(EMPTY)
    await going


async def test_connections_are_used_again(transport: ConnectorTransport, server: Server) -> None:
    peer = await exchanged(transport, server)
    for _ in range(3):
        await exchanged(transport, server, SMALL, peer)
    assert len(server.accepted) == 1


@pytest.mark.parametrize(
    "last",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        EMPTY + b"HTTP/1.1 408 Request Timeout\r\n\r\n",
    ],
)
async def test_a_connection_is_closed_after_its_last_response(
    transport: ConnectorTransport, server: Server, last: bytes
) -> None:
    await (await exchanged(transport, server, last)).ends()
    await exchanged(transport, server)
    assert len(server.accepted) == 2


async def test_a_body_without_a_length_is_received_until_the_connection_ends(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(b"HTTP/1.1 200 OK\r\n\r\n", b"bo", b"dy")
    peer.writer.close()
    assert (await going).body == b"body"


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used(
    transport: ConnectorTransport, server: Server
) -> None:
    peer = await exchanged(transport, server)
    peer.writer.write_eof()
    await peer.ends()
    await exchanged(transport, server)
    assert len(server.accepted) == 2


async def test_a_connection_on_which_something_came_unasked_is_closed(
    transport: ConnectorTransport, server: Server
) -> None:
    peer = await exchanged(transport, server)
    await peer.responds(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    await turns()
    await exchanged(transport, server)
    await peer.ends()
    assert len(server.accepted) == 2


async def test_after_a_connection_that_broke_no_idle_one_is_used(
    transport: ConnectorTransport, server: Server
) -> None:
    """A restarted load balancer resets all idle connections: each retry would fail on another one."""
    requests = [asyncio.create_task(get(transport, server)) for _ in range(3)]
    peers = [await server.peer() for _ in requests]
    for peer in peers:
        await peer.request()
    for peer in peers:  # the connection whose exchange ended last is used first
        await peer.responds(EMPTY)
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        requests = [each for each in requests if not each.done()]
    going = asyncio.create_task(get(transport, server))
    await peers[-1].request()
    peers[-1].writer.transport.abort()
    with pytest.raises(TransportFailed):
        await going
    retry = asyncio.create_task(exchanged(transport, server))
    assert [await peer.reader.read(1) for peer in reversed(peers[:-1])] == [b"", b""]  # both were closed
    await retry
    assert len(server.accepted) == 4


@pytest.mark.parametrize("unread", [b"", SMALL])
async def test_a_connection_on_which_something_came_while_the_event_loop_was_blocked_is_not_used(
    transport: ConnectorTransport, server: Server, unread: bytes
) -> None:
    """What came is the end of the connection, or bytes that the next request would take for its response."""
    peer = await exchanged(transport, server)
    # The event loop, which runs the server too, has no turn between this and the next request.
    peer.writer.write(unread)
    peer.writer.write_eof()
    await exchanged(transport, server)
    assert len(server.accepted) == 2


async def test_a_connection_that_still_sends_when_the_response_has_come_is_closed(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(put(transport, server, bytes(50_000_000)))
    peer = await server.peer()
    await peer.reader.readuntil(b"\r\n\r\n")
    await peer.responds(EMPTY)
    assert (await going).status == 200
    await exchanged(transport, server)
    assert len(server.accepted) == 2
    assert await peer.rest() < 50_000_000  # else the whole body would be sent once the server reads again


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of the event loop forward."""
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + seconds)


async def times_out(going: asyncio.Task[Response], peer: Peer) -> None:
    with pytest.raises(TransportFailed) as failed:
        await going
    assert failed.value.timed_out
    await peer.ends()


async def test_a_connection_that_was_idle_for_long_is_not_used(
    transport: ConnectorTransport, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await exchanged(transport, server)
    later(monkeypatch, KEEP_ALIVE * 0.9)
    await exchanged(transport, server, peer=peer)  # its idle time starts again here
    later(monkeypatch, KEEP_ALIVE * 0.9)
    await turns()
    await exchanged(transport, server, peer=peer)
    later(monkeypatch, KEEP_ALIVE * 1.1)
    await peer.ends()
    await exchanged(transport, server)
    assert len(server.accepted) == 2


async def test_a_connection_that_was_idle_while_the_event_loop_was_blocked_is_not_used(
    transport: ConnectorTransport, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await exchanged(transport, server)
    later(monkeypatch, KEEP_ALIVE * 1.1)
    await exchanged(transport, server)  # before the loop has run its timer
    assert len(server.accepted) == 2


async def test_requests_beyond_the_size_of_the_pool_wait_for_others_to_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_connections, "POOL_SIZE", 2)
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        going = [asyncio.create_task(get(transport, server)) for _ in range(9)]
        peers = [await server.peer() for _ in range(2)]
        for peer in peers:
            await peer.request()
        await turns()
        assert len(server.accepted) == 2

        peers[0].writer.transport.abort()  # one fails,
        await peers[1].responds(b"nonsense\r\n")  # another one is refused,
        peers = [await server.peer() for _ in range(2)]
        await peers[0].request()
        going[2].cancel()
        going[3].cancel()  # two are cancelled,
        going[8].cancel()  # and another one that still waits for a connection
        peers = [await server.peer() for _ in range(2)]
        for _ in range(2):  # the others go over two connections
            for peer in peers:
                await peer.request()
                await peer.responds(EMPTY)
        ended = await asyncio.gather(*going, return_exceptions=True)
    assert [type(each) for each in ended[2:]] == [asyncio.CancelledError] * 2 + [Response] * 4 + [
        asyncio.CancelledError
    ]
    assert {type(each) for each in ended[:2]} == {TransportFailed}
    assert len(server.accepted) == 6


async def test_a_response_may_come_in_many_pieces(transport: ConnectorTransport, server: Server) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsmall\r\n0\r\nA: b\r\n\r\n"
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    for at in range(len(response)):
        assert not going.done()
        await peer.responds(response[at : at + 1])
        await turns()
    assert (await going).body == b"small"
    going = asyncio.create_task(get(transport, server))  # nothing is left of the response before
    await peer.request()
    await peer.responds(response.replace(b"5\r\nsmall", b"3\r\nold"))
    assert (await going).body == b"old"


@pytest.mark.parametrize("size", [None, 1000, 20_000_000])
async def test_a_response_may_be_large(
    transport: ConnectorTransport, server: Server, size: int | None
) -> None:
    body = bytes(20_000_000)
    if size is None:
        response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    else:
        chunk = b"%x\r\n%s\r\n" % (size, bytes(size))
        chunks = chunk * (len(body) // size) + b"0\r\n\r\n"
        response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(response)
    assert (await going).body == body
    await exchanged(transport, server, peer=peer)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
    ],
)
async def test_a_response_larger_than_the_limit_is_refused_and_not_received(
    transport: ConnectorTransport, server: Server, head: bytes
) -> None:
    going = asyncio.create_task(get(transport, server, max_body=5))
    peer = await server.peer()
    await peer.request()
    await peer.responds(head, b"small and more")
    with pytest.raises(ResponseRefused, match="larger than"):
        await going
    await peer.ends()


async def test_a_response_that_trickles_ends_with_the_whole_attempt(
    transport: ConnectorTransport, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = asyncio.create_task(get(transport, server, read=20, total=30))
    peer = await server.peer()
    await peer.request()
    for at in range(2):
        await peer.responds(SMALL[at : at + 1])
        await turns()
        assert not going.done()
        later(monkeypatch, 15)
    await times_out(going, peer)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", SMALL[:-1]])
async def test_a_response_that_does_not_come_is_waited_for_as_long_as_was_said(
    transport: ConnectorTransport, server: Server, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = asyncio.create_task(get(transport, server, read=20))
    peer = await server.peer()
    await peer.request()
    await peer.responds(begun)
    await turns()
    assert not going.done()
    later(monkeypatch, 20)
    await times_out(going, peer)


async def test_a_response_that_comes_slowly_is_waited_for_as_long_as_something_comes(
    transport: ConnectorTransport, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = asyncio.create_task(get(transport, server, read=20, total=600))
    peer = await server.peer()
    await peer.request()
    await peer.responds(SMALL[:-5])
    for at in range(-5, -1):
        await turns()
        later(monkeypatch, 12)
        await peer.responds(SMALL[at : at + 1])
    await turns()
    assert not going.done()
    await peer.responds(SMALL[-1:])
    assert (await going).body == b"small"


async def test_a_connection_is_waited_for_as_long_as_was_said(
    transport: ConnectorTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stand_still(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", stand_still)
    request = Request("GET", "http://127.0.0.1:9/", {}, None)
    with pytest.raises(TransportFailed) as failed:
        await transport.request(request, Timeouts(0.05, FOREVER, FOREVER))
    assert failed.value.timed_out
    assert failed.value.reason == "could not connect to 127.0.0.1:9 in time"


async def test_a_proxy_that_does_not_respond_is_waited_for_as_long_as_a_connection(
    transport: ConnectorTransport, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", server.origin.replace("://", "://me:hidden@"))
    monkeypatch.setenv("no_proxy", "localhost")
    request = Request("GET", "https://tc.example.com/", {}, None)
    with pytest.raises(TransportFailed) as failed:
        await transport.request(request, Timeouts(0.05, FOREVER, FOREVER))
    assert failed.value.timed_out
    through = f"through the proxy {server.origin}"
    assert failed.value.reason == f"could not connect to tc.example.com:443 in time {through}"
    assert len(server.accepted) == 1


async def test_a_place_where_nobody_listens_is_an_error(
    transport: ConnectorTransport, server: Server
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server.origin = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportFailed, match="Connection refused"):
            await get(transport, server)


async def test_a_canceled_request_closes_the_connection(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    await peer.ends()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1", EMPTY[:-1], SMALL[:-1]])
async def test_a_server_that_ends_before_the_response_does_is_an_error(
    transport: ConnectorTransport, server: Server, begun: bytes
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(begun)
    peer.writer.close()
    with pytest.raises(TransportFailed) as failed:
        await going
    assert isinstance(failed.value.__cause__, aiohttp.ServerDisconnectedError)  # whose name is in the span
    await exchanged(transport, server)


async def test_a_failed_exchange_leaves_nothing_in_memory(
    transport: ConnectorTransport, server: Server
) -> None:
    size = 20_000_000
    gc.collect()
    gc.disable()  # the collector would free cycles after a while
    tracemalloc.start()
    try:
        going = asyncio.create_task(put(transport, server, bytes(size)))
        peer = await server.peer()
        await peer.request()
        await peer.responds(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (size + 1), bytes(size))
        peer.writer.close()
        await asyncio.wait([going])
        assert isinstance(going.exception(), TransportFailed)
        del going
        await peer.ends()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < size / 2


@pytest.mark.parametrize("begun", [b"", SMALL[:-1], b"HTTP/1.1 200 OK\r\n\r\nbo"])
async def test_a_server_that_resets_the_connection_is_an_error(
    transport: ConnectorTransport, server: Server, begun: bytes
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(begun)
    await turns()
    own = peer.writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()
    with pytest.raises(TransportFailed) as failed:
        await going
    assert isinstance(failed.value.__cause__, ConnectionResetError)


async def test_a_response_that_is_not_http_is_an_error_at_once(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(b"SSH-2.0-")
    with pytest.raises(TransportFailed, match=r"\Athe response is not HTTP: Expected HTTP/"):
        await going
    await peer.ends()


@pytest.mark.parametrize("head", [b"A: b\r\n" * MAX_HEAD, b"A: " + b"b" * MAX_HEAD])
async def test_headers_without_end_are_not_received(
    transport: ConnectorTransport, server: Server, head: bytes
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(b"HTTP/1.1 200 OK\r\n", head)
    with pytest.raises(TransportFailed, match="longer than 128 KiB"):
        await going
    await peer.ends()


@pytest.mark.parametrize("begun", [b"0\r\nA: ", b"5;a="])
async def test_trailers_and_extensions_of_chunks_without_end_are_not_received(
    transport: ConnectorTransport, server: Server, begun: bytes
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await turns()
    await peer.responds(begun, b"b" * MAX_HEAD, b"b")
    with pytest.raises(TransportFailed, match="longer than 128 KiB"):
        await going
    await peer.ends()


async def test_the_first_header_of_a_name_counts_and_no_trailer(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(
        b"HTTP/1.1 103 Early Hints\r\nA: hint\r\n\r\nHTTP/1.1 200 OK\r\nB: first \r\nB: second\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nsmall\r\n0\r\nC: trailer\r\n\r\n"
    )
    headers = (await going).headers
    assert {name: headers.get(name) for name in "abc"} == {"a": None, "b": "first", "c": None}


async def test_a_response_is_never_taken_for_the_next_one(
    transport: ConnectorTransport, server: Server
) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(b"HTTP/1.1 204 No Content\r\n\r\n")  # complete, although it has no length
    assert (await going).status == 204
    going = asyncio.create_task(get(transport, server))
    await peer.request()
    peer.writer.close()
    with pytest.raises(TransportFailed, match="before the response was complete"):
        await going


async def test_another_protocol_is_not_switched_to(transport: ConnectorTransport, server: Server) -> None:
    going = asyncio.create_task(get(transport, server))
    peer = await server.peer()
    await peer.request()
    await peer.responds(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
    with pytest.raises(TransportFailed, match="switches to another protocol"):
        await going
    await peer.ends()


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/", {"a": "b\r\nc: d"}),
        ("/", {"a": "b\n"}),
        ("/", {"a": "b\0"}),
        ("/", {"a": "\xe9"}),
        ("/", {"a\r\n": "b"}),
        ("/", {"a:": "b"}),
        ("/", {"a ": "b"}),
        ("/", {"": "b"}),
        ("/ HTTP/1.1\r\na: b\r\n\r\n", {}),
        ("/a b", {}),
        ("/\xe9", {}),
    ],
)
async def test_a_request_that_would_not_be_http_is_never_sent(
    transport: ConnectorTransport, server: Server, target: str, headers: dict[str, str]
) -> None:
    request = Request("GET", server.origin + target, headers, None)
    with pytest.raises(TransportFailed, match="invalid request"):
        await transport.request(request, Timeouts(FOREVER, FOREVER, FOREVER))
    await turns()
    assert server.accepted == []


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_ipv6_addresses_are_named_in_brackets(transport: ConnectorTransport) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no address ::1")
    async with serving("::1") as server:
        going = asyncio.create_task(get(transport, server))
        peer = await server.peer()
        head, _ = await peer.request()
        assert server.origin.removeprefix("http://").encode() in head
        await peer.responds(EMPTY)
        await going


@pytest.fixture
async def tls_server(authority: Authority) -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    async with serving(tls=context) as server:
        yield server


@pytest.mark.filterwarnings("error")
async def test_requests_go_over_tls_to_a_trusted_server(
    tls_server: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        peer = await exchanged(transport, tls_server, SMALL)
        await exchanged(transport, tls_server, SMALL, peer)
        peer.writer.close()  # TLS sends close_notify
        await peer.ends()
        peer = await exchanged(transport, tls_server, SMALL)
    await peer.ends()
    gc.collect()


async def test_a_connection_that_ended_with_the_response_is_not_kept(
    tls_server: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS, the response and close_notify may arrive together."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        for _ in range(2):
            going = asyncio.create_task(get(transport, tls_server))
            peer = await tls_server.peer()
            await peer.request()
            peer.writer.write(SMALL)
            peer.writer.close()
            assert (await going).body == b"small"
            await peer.ends()


async def test_nothing_is_sent_to_a_server_that_tls_does_not_trust(tls_server: Server) -> None:
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        with pytest.raises(TransportFailed, match="certificate verify failed"):
            await get(transport, tls_server)
    await turns()
    assert tls_server.accepted == []


async def test_the_error_of_a_connection_that_fails_says_where_to_and_why() -> None:
    """The text is the same each time: aiohttp's own text has the memory address of the TLS settings."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, but not listening
        port = silent.getsockname()[1]
        request = Request("GET", f"https://127.0.0.1:{port}/", {}, None)
        async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
            with pytest.raises(TransportFailed) as failed:
                await transport.request(request, Timeouts(FOREVER, FOREVER, FOREVER))
    assert failed.value.reason == f"the connection to 127.0.0.1:{port} failed: Connection refused"


async def test_a_closed_transport_leaves_nothing_in_memory(server: Server) -> None:
    before = _deadlines()  # those of clients of earlier tests, if any
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        await exchanged(transport, server)
    del transport
    await turns()
    gc.collect()
    assert _deadlines() <= before


def _deadlines() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, ConnectionDeadlines)}


async def test_a_request_succeeds_after_one_that_failed_for_lack_of_memory(
    transport: ConnectorTransport, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allocates the buffer of all connections: a worker could report none of its runs any more."""

    def fail(_: object) -> ConnectionDeadlines:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(async_connections, "ConnectionDeadlines", fail)
        with pytest.raises(MemoryError):
            await get(transport, server)
    await exchanged(transport, server)


async def test_a_request_that_gets_no_connection_in_time_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_connections, "POOL_SIZE", 1)
    async with aclosing(ConnectorTransport(NetworkSettings())) as transport:
        going = asyncio.create_task(get(transport, server))
        await (await server.peer()).request()
        with pytest.raises(TransportFailed, match="connections of the client were in use") as failed:
            await get(transport, server, total=0.0)
        assert failed.value.timed_out
        assert failed.value.is_unsent
        going.cancel()


async def test_closing_opens_no_connection_for_requests_that_wait_for_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_connections, "POOL_SIZE", 1)
    transport = ConnectorTransport(NetworkSettings())
    going = [asyncio.create_task(get(transport, server)) for _ in range(2)]
    await (await server.peer()).request()
    await transport.aclose()
    with pytest.raises(TransportFailed, match="closed before the response"):
        await going[0]
    with pytest.raises(ClientUnusable, match="closed"):
        await going[1]
    await turns()
    assert len(server.accepted) == 1


async def closed(transport: ConnectorTransport) -> None:
    await transport.aclose()


async def closed_in_another_thread(transport: ConnectorTransport) -> None:
    await asyncio.to_thread(asyncio.run, transport.aclose())


async def freed_in_another_thread(transport: ConnectorTransport) -> None:
    await asyncio.to_thread(transport._end)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("close", [closed, closed_in_another_thread, freed_in_another_thread])
async def test_closing_closes_idle_connections_and_those_in_use(
    close: Callable[[ConnectorTransport], Awaitable[None]], transport: ConnectorTransport, server: Server
) -> None:
    """In the thread of their event loop: in another one, transports of uvloop would crash the process."""
    asyncio.get_running_loop().set_debug(True)  # checks the thread
    idle = await exchanged(transport, server)
    going = [asyncio.create_task(get(transport, server)) for _ in range(2)]
    await idle.request()
    used = await server.peer()
    await used.request()
    await idle.responds(SMALL)
    await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
    await close(transport)
    await idle.ends()
    await used.ends()
    with pytest.raises(TransportFailed, match="closed before the response"):
        await asyncio.gather(*going)


def test_a_transport_may_be_abandoned_while_its_loop_closes_it() -> None:
    """As happens when the garbage collector, or the last connection, frees the transport."""
    happened: list[str] = []

    async def main() -> None:
        def close() -> None:
            happened.append("closing")
            end.forget()
            happened.append("closed")

        end = LoopEnd(close)

    asyncio.run(main())
    assert happened == ["closing", "closed"]
