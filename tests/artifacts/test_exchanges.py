"""Small requests over connections that are kept: real sockets, and servers that do as they like."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from taskqueue_client import _exchange
from taskqueue_client._exchange import Exchanges
from taskqueue_client._http import Address, Received, Sent, UnfitAnswer, UnfitRequest

FOREVER = 60
"""Seconds after which a test has failed that waits for what does not come."""
GET = Sent("GET", "/path?query=1", {"A": "b"}, None)
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsmall"


class Peer:
    """A client's connection, at the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """The head of the next request, and its body."""
        async with asyncio.timeout(FOREVER):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
            return head, await self.reader.readexactly(int(length[1]) if length else 0)

    async def answers(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def ends(self) -> None:
        """Wait until the client has closed it."""
        async with asyncio.timeout(FOREVER):
            with suppress(ConnectionResetError):
                await self.reader.read()


class Server:
    """Accepts connections, and leaves what to do with them to a test."""

    def __init__(self) -> None:
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self.accepted: list[Peer] = []
        self.address = Address("http", "", 0)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(Peer(reader, writer))
        self._new.put_nowait(self.accepted[-1])

    async def peer(self) -> Peer:
        """The next new connection."""
        async with asyncio.timeout(FOREVER):
            return await self._new.get()


@asynccontextmanager
async def serving(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.accept, host, 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    server.address = Address("http", host, port) if tls is None else Address("https", "localhost", port)
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


def no_tls() -> ssl.SSLContext:
    raise AssertionError


@pytest.fixture
async def exchanges(server: Server) -> AsyncIterator[Exchanges]:
    """They leave nothing open."""
    with closing(Exchanges(no_tls)) as exchanges:
        yield exchanges
    for peer in server.accepted:
        await peer.ends()


async def turns() -> None:
    """Lets what is due on the loop be done."""
    for _ in range(5):
        await asyncio.sleep(0)


async def get(
    exchanges: Exchanges, server: Server, sent: Sent = GET, *, read: float = FOREVER, longest: int = 1 << 30
) -> Received:
    return await exchanges.exchange(server.address, sent, connect=FOREVER, read=read, longest=longest)


async def answered(
    exchanges: Exchanges, server: Server, answer: bytes = EMPTY, peer: Peer | None = None
) -> Peer:
    """One exchange; gives the connection it went over, which is a new one if none is given."""
    going = asyncio.create_task(get(exchanges, server))
    peer = peer or await server.peer()
    await peer.request()
    await peer.answers(answer)
    assert (await going).status == 200
    return peer


async def test_a_request_is_sent_as_it_is_and_its_answer_received(
    exchanges: Exchanges, server: Server
) -> None:
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    host = b"127.0.0.1:%d" % server.address.port
    assert await peer.request() == (
        b"GET /path?query=1 HTTP/1.1\r\nHost: " + host + b"\r\nA: b\r\n\r\n",
        b"",
    )
    await peer.answers(SMALL)
    assert await going == Received(200, {"content-length": "5"}, b"small", is_last=False)


@pytest.mark.parametrize("body", [b"", bytes(5_000_000)])
async def test_a_body_is_sent_with_its_length(exchanges: Exchanges, server: Server, body: bytes) -> None:
    going = asyncio.create_task(get(exchanges, server, Sent("PUT", "/", {}, body)))
    peer = await server.peer()
    head, received = await peer.request()
    assert (b"\r\nContent-Length: %d\r\n" % len(body) in head, received) == (True, body)
    await peer.answers(EMPTY)
    await going


async def two_idle(exchanges: Exchanges, server: Server) -> tuple[Peer, Peer]:
    """Two connections; the second was used last."""
    going: list[tuple[Peer, asyncio.Task[Received]]] = []
    for _ in range(2):
        task = asyncio.create_task(get(exchanges, server))
        going.append((await server.peer(), task))
    for peer, task in going:
        await peer.request()
        await peer.answers(EMPTY)
        await task
    return going[0][0], going[1][0]


async def test_connections_are_used_again_and_the_last_used_one_first(
    exchanges: Exchanges, server: Server
) -> None:
    _, last = await two_idle(exchanges, server)
    for _ in range(3):
        await answered(exchanges, server, SMALL, last)
    assert len(server.accepted) == 2


@pytest.mark.parametrize(
    "last",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        EMPTY + b"HTTP/1.1 408 Request Timeout\r\n\r\n",
    ],
)
async def test_a_connection_is_closed_after_its_last_answer(
    exchanges: Exchanges, server: Server, last: bytes
) -> None:
    await (await answered(exchanges, server, last)).ends()
    await answered(exchanges, server)
    assert len(server.accepted) == 2


async def test_what_goes_on_until_the_end_is_received_to_its_end(
    exchanges: Exchanges, server: Server
) -> None:
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    await peer.answers(b"HTTP/1.1 200 OK\r\n\r\n", b"bo", b"dy")
    peer.writer.close()
    assert (await going).body == b"body"


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used(
    exchanges: Exchanges, server: Server
) -> None:
    peer = await answered(exchanges, server)
    peer.writer.write_eof()
    await peer.ends()
    await answered(exchanges, server)
    assert len(server.accepted) == 2


async def test_a_connection_on_which_something_came_unasked_is_closed(
    exchanges: Exchanges, server: Server
) -> None:
    peer = await answered(exchanges, server)
    await peer.answers(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    await peer.ends()
    await answered(exchanges, server)
    assert len(server.accepted) == 2


async def test_a_connection_that_still_sends_when_the_answer_has_come_is_closed(
    exchanges: Exchanges, server: Server
) -> None:
    going = asyncio.create_task(get(exchanges, server, Sent("PUT", "/", {}, bytes(50_000_000))))
    peer = await server.peer()
    await peer.reader.readuntil(b"\r\n\r\n")
    await peer.answers(EMPTY)
    assert (await going).status == 200
    await answered(exchanges, server)
    assert len(server.accepted) == 2


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on, it is later on the loop."""
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + seconds)


async def test_a_connection_that_was_idle_for_long_is_not_used(
    exchanges: Exchanges, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await answered(exchanges, server)
    later(monkeypatch, _exchange.KEPT_IDLE / 2)
    await answered(exchanges, server, peer=peer)  # from here on, it is idle anew
    later(monkeypatch, _exchange.KEPT_IDLE / 2)
    await answered(exchanges, server, peer=peer)
    later(monkeypatch, _exchange.KEPT_IDLE)
    await answered(exchanges, server)
    await peer.ends()
    assert len(server.accepted) == 2


async def test_idle_connections_are_closed_although_others_are_used_all_the_time(
    exchanges: Exchanges, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as other:
        elsewhere = await answered(exchanges, other)
        idle, used = await two_idle(exchanges, server)
        later(monkeypatch, _exchange.KEPT_IDLE / 2)
        await answered(exchanges, server, peer=used)
        later(monkeypatch, _exchange.KEPT_IDLE / 2)
        await answered(exchanges, server, peer=used)
        await idle.ends()
        await elsewhere.ends()


async def test_more_requests_than_there_may_be_wait_for_one_to_end(server: Server) -> None:
    with closing(Exchanges(no_tls, most=2)) as exchanges:
        going = [asyncio.create_task(get(exchanges, server)) for _ in range(9)]
        peers = [await server.peer() for _ in range(2)]
        for peer in peers:
            await peer.request()
        await turns()
        assert len(server.accepted) == 2

        peers[0].writer.transport.abort()  # one fails,
        await peers[1].answers(b"nonsense\r\n")  # another one is refused,
        peers = [await server.peer() for _ in range(2)]
        await peers[0].request()
        going[2].cancel()
        going[3].cancel()  # two are cancelled,
        going[8].cancel()  # and one that still waits
        peers = [await server.peer() for _ in range(2)]
        for _ in range(2):  # the others go over two connections
            for peer in peers:
                await peer.request()
                await peer.answers(EMPTY)
        ended = await asyncio.gather(*going, return_exceptions=True)
    assert [type(each) for each in ended[2:]] == [asyncio.CancelledError] * 2 + [Received] * 4 + [
        asyncio.CancelledError
    ]
    assert {type(each) for each in ended[:2]} <= {EOFError, ConnectionResetError, UnfitAnswer}
    assert len(server.accepted) == 6


async def test_an_answer_may_come_in_many_pieces(exchanges: Exchanges, server: Server) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsmall\r\n0\r\nA: b\r\n\r\n"
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    for at in range(len(answer)):
        assert not going.done()
        await peer.answers(answer[at : at + 1])
        await turns()
    assert (await going).body == b"small"
    going = asyncio.create_task(get(exchanges, server))  # of the one before, nothing is left
    await peer.request()
    await peer.answers(answer.replace(b"5\r\nsmall", b"3\r\nold"))
    assert (await going).body == b"old"


@pytest.mark.parametrize("size", [None, 1000, 20_000_000])
async def test_an_answer_may_be_large(exchanges: Exchanges, server: Server, size: int | None) -> None:
    body = bytes(20_000_000)
    if size is None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    else:
        chunk = b"%x\r\n%s\r\n" % (size, bytes(size))
        chunks = chunk * (len(body) // size) + b"0\r\n\r\n"
        answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    await peer.answers(answer)
    received = await going
    assert (received.body == body, received.is_last) == (True, False)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
    ],
)
async def test_no_more_than_is_wanted_is_received(exchanges: Exchanges, server: Server, head: bytes) -> None:
    going = asyncio.create_task(get(exchanges, server, longest=5))
    peer = await server.peer()
    await peer.request()
    await peer.answers(head, b"small and more")
    assert (await going).body == b"small"
    await peer.ends()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", SMALL[:-1]])
async def test_an_answer_that_does_not_come_is_waited_for_as_long_as_was_said(
    exchanges: Exchanges, server: Server, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = asyncio.create_task(get(exchanges, server, read=20))
    peer = await server.peer()
    await peer.request()
    await peer.answers(begun)
    await turns()
    assert not going.done()
    later(monkeypatch, 20)
    with pytest.raises(TimeoutError, match=r"^nothing came for 20 s$"):
        await going
    await peer.ends()


async def test_an_answer_that_comes_slowly_is_waited_for_as_long_as_something_comes(
    exchanges: Exchanges, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = asyncio.create_task(get(exchanges, server, read=20))
    peer = await server.peer()
    await peer.request()
    for at in range(5):
        await peer.answers(SMALL[at : at + 1])
        await turns()
        later(monkeypatch, 12)
    await peer.answers(SMALL[5:])
    assert (await going).status == 200


async def test_a_connection_is_waited_for_as_long_as_was_said(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stand_still(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", stand_still)
    with pytest.raises(TimeoutError, match=r"^no connection in 0\.05 s$"):
        await exchanges.exchange(Address("http", "127.0.0.1", 9), GET, connect=0.05, read=60, longest=9)


async def test_a_place_where_nobody_listens_is_an_error(exchanges: Exchanges) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address("http", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConnectionRefusedError):
            await exchanges.exchange(address, GET, connect=60, read=60, longest=9)


async def test_who_is_cancelled_closes_the_connection(exchanges: Exchanges, server: Server) -> None:
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    await peer.ends()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1", EMPTY[:-1], SMALL[:-1]])
async def test_a_server_that_ends_before_the_answer_does_is_an_error(
    exchanges: Exchanges, server: Server, begun: bytes
) -> None:
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    await peer.answers(begun)
    peer.writer.close()
    with pytest.raises(EOFError, match="closed before the answer was complete"):
        await going
    await answered(exchanges, server)


@pytest.mark.parametrize("begun", [b"", SMALL[:-1], b"HTTP/1.1 200 OK\r\n\r\nbo"])
async def test_a_server_that_resets_the_connection_is_an_error(
    exchanges: Exchanges, server: Server, begun: bytes
) -> None:
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    await peer.answers(begun)
    await turns()
    own = peer.writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()
    with pytest.raises(ConnectionResetError):
        await going


async def test_what_is_no_http_is_an_error_at_once(exchanges: Exchanges, server: Server) -> None:
    going = asyncio.create_task(get(exchanges, server))
    peer = await server.peer()
    await peer.request()
    await peer.answers(b"SSH-2.0-")
    with pytest.raises(UnfitAnswer):
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
    exchanges: Exchanges, server: Server, target: str, headers: dict[str, str]
) -> None:
    with pytest.raises(UnfitRequest):
        await get(exchanges, server, Sent("GET", target, headers, None))
    await turns()
    assert server.accepted == []


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_ipv6_addresses_are_named_in_brackets(exchanges: Exchanges) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no address ::1")
    async with serving("::1") as server:
        going = asyncio.create_task(get(exchanges, server))
        peer = await server.peer()
        head, _ = await peer.request()
        assert b"\r\nHost: [::1]:%d\r\n" % server.address.port in head
        await peer.answers(EMPTY)
        await going


@pytest.fixture
async def tls_server(certificate: Path) -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with serving(tls=context) as server:
        yield server


@pytest.mark.filterwarnings("error")
async def test_requests_go_over_tls_to_whom_is_trusted(tls_server: Server, certificate: Path) -> None:
    with closing(Exchanges(lambda: ssl.create_default_context(cafile=certificate))) as exchanges:
        peer = await answered(exchanges, tls_server, SMALL)
        await answered(exchanges, tls_server, SMALL, peer)
        peer.writer.close()  # with goodbyes
        await peer.ends()
        peer = await answered(exchanges, tls_server, SMALL)
    await peer.ends()
    gc.collect()


async def test_a_connection_that_ended_with_the_answer_is_not_kept(
    tls_server: Server, certificate: Path
) -> None:
    """By TLS, the answer and the goodbye may arrive at once."""
    with closing(Exchanges(lambda: ssl.create_default_context(cafile=certificate))) as exchanges:
        for _ in range(2):
            going = asyncio.create_task(get(exchanges, tls_server))
            peer = await tls_server.peer()
            await peer.request()
            peer.writer.write(SMALL)
            peer.writer.close()
            assert (await going).body == b"small"
            await peer.ends()


async def test_who_is_not_trusted_is_sent_nothing_by_tls(tls_server: Server) -> None:
    exchanges = Exchanges(ssl.create_default_context)
    with pytest.raises(ssl.SSLCertVerificationError):
        await get(exchanges, tls_server)
    await turns()
    assert tls_server.accepted == []


async def test_closing_closes_idle_connections_and_those_in_use_after_their_answer(
    exchanges: Exchanges, server: Server
) -> None:
    idle, used = await two_idle(exchanges, server)
    going = asyncio.create_task(get(exchanges, server))
    await used.request()
    exchanges.close()
    await idle.ends()
    await used.answers(SMALL)
    assert (await going).body == b"small"
    await used.ends()
