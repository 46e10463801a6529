"""Responses that are cut, that trickle in, or that are too large when they are decompressed."""

from __future__ import annotations

import asyncio
import gzip
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import aiohttp
import pytest
import requests

from taskqueue_client import AsyncQueue, Queue, RetryPolicy, calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.errors import CallTimedOut, ConnectionFailed, UnreadableResponse
from tests.client.conftest import CREDENTIALS, EitherClient
from tests.client.scripted import Say, ScriptedServer

PING = Call("ping", "GET", "/ping", dict[str, Any])
CLAIM = Call("claimWork", "POST", "/claim-work/a%2Fb", dict[str, Any], body={})
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

CUT = {
    "before the head": b"",
    "in the status line": b"HTTP/1.1 200",
    "in a header": b"HTTP/1.1 200 OK\r\nContent-Type: appl",
    "after a header": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n",
    "in the body": b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"a":',
    "in a chunk": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n{"a":',
    "between chunks": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n',
    "in the size of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00",
    "after a negative size of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n",
    "after a wrong size of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "in the trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Tra",
    "in a body without length": b'HTTP/1.1 200 OK\r\n\r\n{"a":',
}


class RawServer:
    """Treats each connection with the next of the behaviors, and all later ones with the last."""

    def __init__(self, *behaviors: Callable[[Any], None]) -> None:
        self.connections = 0
        self._behaviors = behaviors

    @contextmanager
    def serving(self) -> Generator[str]:
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                behavior = outer._behaviors[min(outer.connections, len(outer._behaviors) - 1)]
                outer.connections += 1
                with suppress(OSError):
                    _read_request(self.request)
                    behavior(self.request)

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()


def _read_request(connection: Any) -> None:
    request = b""
    while b"\r\n\r\n" not in request or (request.startswith(b"POST") and not request.endswith(b"{}")):
        received = connection.recv(2**16)
        if not received:
            raise ConnectionError("the client closed the connection before the end of its request")
        request += received


def sends(data: bytes) -> Callable[[Any], None]:
    return lambda connection: connection.sendall(data)


def trickles(beginning: bytes, filler: bytes) -> Callable[[Any], None]:
    """Return a behavior whose response never pauses for long and never ends."""

    def behavior(connection: Any) -> None:
        connection.sendall(beginning)
        while True:
            connection.sendall(filler)
            time.sleep(0.02)

    return behavior


Make = Callable[..., Any]


@pytest.fixture(params=["sync", "async", "sync with a session", "async with a session"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """A function that makes a client of a root URL, with its own session or an injected one."""
    runner = asyncio.Runner()
    made: list[EitherClient] = []

    async def injected() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    session: Any = None
    if request.param == "sync with a session":
        session = requests.Session()
    if request.param == "async with a session":
        session = runner.run(injected())
    is_sync = request.param.startswith("sync")

    def make_one(root_url: str, **options: Any) -> EitherClient:
        kind: Any = Queue if is_sync else AsyncQueue
        policy = RetryPolicy(**{"wait_initial": 0, "wait_jitter": 0, **options})
        client = EitherClient(
            kind(root_url, CREDENTIALS, session=session, retry=policy), None if is_sync else runner
        )
        made.append(client)
        return client

    yield make_one
    for client in made:
        client.close()
    if session is not None:
        closing = session.close()
        if asyncio.iscoroutine(closing):
            runner.run(closing)
    runner.close()


@pytest.mark.parametrize("size", [b"zz", b"-2", b""])
def test_a_wrong_size_of_a_chunk_is_called_so(make: Make, size: bytes) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{}\r\n"
    with (
        RawServer(sends(response)).serving() as root_url,
        pytest.raises(ConnectionFailed, match=r"the response is not HTTP: .*chunk"),
    ):
        make(root_url, attempts=1).send(PING)


@pytest.mark.parametrize("cut", CUT.values(), ids=CUT)
def test_a_response_that_is_cut_is_retried(make: Make, cut: bytes) -> None:
    server = RawServer(sends(cut), sends(OK))
    with server.serving() as root_url:
        assert make(root_url).send(PING) == {}
    assert server.connections == 2


@pytest.mark.parametrize("cut", CUT.values(), ids=CUT)
def test_a_call_that_must_not_be_repeated_is_sent_once_and_its_outcome_unknown(
    make: Make, cut: bytes
) -> None:
    server = RawServer(sends(cut), sends(OK))
    with server.serving() as root_url, pytest.raises(ConnectionFailed) as failed:
        make(root_url).send(CLAIM)
    assert failed.value.attempted.outcome_unknown
    assert server.connections == 1


def test_an_interim_response_is_not_the_response(make: Make) -> None:
    """Else the next call on this connection would get the response to this call."""
    head = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
    numbered = [b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"n": %d}' % number for number in range(3)]

    def behavior(connection: Any) -> None:
        connection.sendall(head)
        time.sleep(0.1)  # so that the client's buffer does not have the rest yet
        connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n" + numbered[0])
        for response in numbered[1:]:
            _read_request(connection)
            connection.sendall(response)

    with RawServer(behavior).serving() as root_url:
        client = make(root_url)
        assert [client.send(PING)["n"] for _ in numbered] == [0, 1, 2]


TRICKLING = {
    "in the status line": (b"", b"\r\n"),
    "in a header": (b"HTTP/1.1 200 OK\r\nA: ", b"b"),
    "in the headers": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
    "of 100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "of 103 Early Hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "in the body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{", b" "),
    "in a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n{", b" "),
    "of chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "without length": (b"HTTP/1.1 200 OK\r\n\r\n{", b" "),
}


@pytest.mark.parametrize("what", TRICKLING)
def test_a_response_that_trickles_ends_with_the_policys_time(make: Make, what: str) -> None:
    with RawServer(trickles(*TRICKLING[what])).serving() as root_url:
        client, started = make(root_url, timeout=0.5), time.monotonic()
        with pytest.raises((CallTimedOut, ConnectionFailed)):
            client.send(PING)
        assert time.monotonic() - started < 15


def test_a_claim_response_that_trickles_ends_with_the_policys_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskqueue_client._protocol.retry.LONG_POLL_TIMEOUT", 0.2)
    server = RawServer(trickles(*TRICKLING["in the body"]))
    with server.serving() as root_url:
        client, started = make(root_url, timeout=0.3), time.monotonic()
        with pytest.raises((CallTimedOut, ConnectionFailed)):
            client.send(CLAIM)
        assert time.monotonic() - started < 15
    assert server.connections == 1


def test_an_injected_session_that_was_used_before_keeps_the_policys_time_too() -> None:
    def responds_then_trickles(connection: Any) -> None:
        connection.sendall(OK)
        _read_request(connection)
        trickles(*TRICKLING["in the headers"])(connection)

    with RawServer(responds_then_trickles).serving() as root_url, requests.Session() as session:
        session.get(root_url).close()
        client, started = Queue(root_url, session=session, retry=RetryPolicy(timeout=0.5)), time.monotonic()
        with pytest.raises((CallTimedOut, ConnectionFailed)):
            client.send(PING)
        assert time.monotonic() - started < 15


def test_requests_of_an_injected_sessions_owner_have_no_deadline_of_ours() -> None:
    def responds_twice(connection: Any) -> None:
        connection.sendall(OK)
        _read_request(connection)
        connection.sendall(OK)

    with RawServer(responds_twice).serving() as root_url, requests.Session() as session:
        Queue(root_url, session=session, retry=RetryPolicy(timeout=0.5)).send(PING)
        assert session.get(root_url, timeout=None).json() == {}


@cache
def _packed() -> bytes:
    """Return gzip that is 80 MB when it is decompressed."""
    return gzip.compress(b'"' + b" " * 80_000_000 + b'"')


def test_a_small_response_is_not_unpacked_to_a_huge_one(make: Make, server: ScriptedServer) -> None:
    packed = _packed()
    assert len(packed) < 100_000
    server.otherwise = Say(200, packed, {"Content-Encoding": "gzip"})
    with pytest.raises(UnreadableResponse, match="larger than 64 MiB"):
        make(server.root_url).send(PING)
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes), ("", bytes)],
)
def test_a_response_in_any_coding_that_was_asked_for_is_read(
    make: Make, server: ScriptedServer, coding: str, compress: Callable[[bytes], bytes]
) -> None:
    server.otherwise = Say(200, compress(b'{"a": 1}'), {"Content-Encoding": coding})
    assert make(server.root_url).send(PING) == {"a": 1}
    assert "gzip" in server.received[0].headers["Accept-Encoding"]


def test_claims_are_not_compressed_as_a_claim_that_is_not_read_is_lost(
    make: Make, server: ScriptedServer
) -> None:
    server.otherwise = Say(200, b'{"tasks": []}')
    make(server.root_url).send(calls.claim_work("a/b", worker_group="g", worker_id="w"))
    assert server.received[0].headers["Accept-Encoding"] == "identity"


def test_a_response_may_have_so_many_bytes_and_no_more(
    make: Make, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.otherwise = Say(200, b'"' + b" " * 2_000_000 + b'"')
    make(server.root_url).send(Call("x", "GET", "/x", str))
    monkeypatch.setattr("taskqueue_client._transport.synchronous.MAX_RESPONSE", 2**20)
    for name in ("ConnectorTransport", "InjectedSessionTransport"):
        target = f"taskqueue_client._transport.asynchronous.{name}.request.__defaults__"
        monkeypatch.setattr(target, (2**20,))
    with pytest.raises(UnreadableResponse, match="larger than 1 MiB"):
        make(server.root_url).send(Call("x", "GET", "/x", str))
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    in_chunks = RawServer(
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 30 + b"0\r\n\r\n")
    )
    with in_chunks.serving() as root_url, pytest.raises(UnreadableResponse, match="larger than 1 MiB"):
        make(root_url).send(Call("x", "GET", "/x", str))


def test_the_error_about_a_server_of_another_protocol_is_one_line(make: Make) -> None:
    server = RawServer(sends(b"SSH-2.0-server\r\n"))
    with server.serving() as root_url, pytest.raises(ConnectionFailed) as failed:
        make(root_url, attempts=1).send(PING)
    assert "\n" not in str(failed.value)
