"""Errors and their causes may be logged with all attributes: none has a signature or another secret."""

from __future__ import annotations

import pickle
import socket
import socketserver
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from taskqueue_client import Credentials, RetryPolicy
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.wire import Signer
from taskqueue_client.errors import (
    ApiError,
    AuthenticationFailed,
    CallFailed,
    CallTimedOut,
    ConnectionFailed,
    InsufficientScopes,
    ServerError,
    UnreadableResponse,
)

CREDENTIALS = Credentials("tester/one", "hidden-token", '{"signature":"hidden-certificate"}')
SECRETS = ("Hawk mac", 'mac="', "hidden-", Signer(CREDENTIALS).ext)
TWICE = RetryPolicy(attempts=2, wait_initial=0, wait_jitter=0)
IMPATIENT = replace(TWICE, read_timeout=0.2)
POST = Call("x", "POST", "/x", dict[str, Any], body={"a": 1})


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


SAID: dict[str, tuple[bytes, type[CallFailed]]] = {
    "nothing": (b"", ConnectionFailed),
    "half a response": (b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a"', ConnectionFailed),
    "401": (http("401 Unauthorized", '{"code":"AuthenticationFailed"}'), AuthenticationFailed),
    "403": (http("403 Forbidden", '{"code":"InsufficientScopes"}'), InsufficientScopes),
    "500": (http("500 Oh no", '{"code":"InternalServerError"}'), ServerError),
    "HTML": (http("200 OK", "<html>log in</html>"), UnreadableResponse),
    "garbage": (b"\x00\x01 no HTTP at all\r\n\r\n", ConnectionFailed),
    "a header of no end": (b"HTTP/1.1 200 OK\r\nX: " + 100_000 * b"x" + b"\r\n\r\n", ConnectionFailed),
    "an odd encoding": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        ConnectionFailed,
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_no_secret_hangs_on_the_error_about_a_response(make_client: Any, what: str) -> None:
    said, kind = SAID[what]
    with saying(said) as root_url:
        assert_no_secret_hangs_on(make_client, root_url, kind)


def test_no_secret_hangs_on_a_timeout(make_client: Any) -> None:
    with saying(b"", until=threading.Event()) as root_url:
        assert_no_secret_hangs_on(make_client, root_url, CallTimedOut, IMPATIENT)


def test_no_secret_hangs_on_a_refused_connection(make_client: Any) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        root_url = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}"
        assert_no_secret_hangs_on(make_client, root_url, ConnectionFailed)


def test_no_secret_hangs_on_the_error_of_a_proxy(make_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with saying(http("407 Proxy Authentication Required", "")) as proxy_url:
        monkeypatch.setenv("HTTPS_PROXY", proxy_url)
        assert_no_secret_hangs_on(make_client, "https://tc.example.test", ApiError)


def read_request(connection: socket.socket) -> None:
    """Read the whole request: closing with unread data resets the connection, which loses the response."""
    request = b""
    while chunk := connection.recv(2**16):
        request += chunk
        end = b"\r\n\r\n" if request.startswith(b"CONNECT") else b'{"a":1}'
        if request.endswith(end):
            return


@contextmanager
def saying(said: bytes, until: threading.Event | None = None) -> Generator[str]:
    """Run a server that sends one response to all requests; with `until`, it closes connections then."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):  # a client may close the connection first
                read_request(self.request)
                self.request.sendall(said)
            if until is not None:
                until.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            if until is not None:
                until.set()
            server.shutdown()
            thread.join()


def assert_no_secret_hangs_on(
    make_client: Any, root_url: str, kind: type[CallFailed], retry: RetryPolicy = TWICE
) -> None:
    client = make_client(root_url, CREDENTIALS, retry=retry)
    with pytest.raises(kind) as failed:
        client.send(POST)
    error = failed.value
    shown = [*(f"{each} {each!r}" for each in reachable(error)), *traceback.format_exception(error)]
    for secret in SECRETS:
        assert [text for text in shown if secret in text] == []
        assert secret.encode() not in pickle.dumps(error)


HANGING = ("headers", "request", "request_info", "response")
"""The attributes by which errors of transports refer to a request, and a request to its headers."""


def reachable(error: BaseException) -> list[Any]:
    """Return an error, its causes, and the objects that their attributes refer to."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        waiting += [getattr(one, name) for name in HANGING if hasattr(one, name)]
        if isinstance(one, BaseException):
            waiting += [one.__cause__, one.__context__, *one.args, *vars(one).values()]
    return [*found.values()]
