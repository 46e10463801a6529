"""An HTTP server whose responses a test chooses, right or wrong, and that records its requests."""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import partial
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Message
    body: bytes
    peer: object


@dataclass(frozen=True)
class RawResponse:
    """A response with these headers and this body; `announced` may be another length than that of the body.

    With `raw`, these bytes are sent instead, and the connection is closed after them.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    announced: int | None = None
    hangs_up: bool = False
    has_etag: bool = True
    raw: bytes | None = None


def json_response(document: object) -> RawResponse:
    return RawResponse(headers=(("Content-Type", "application/json"),), body=json.dumps(document).encode())


def etag(request: Request, response: RawResponse) -> Iterator[tuple[str, str]]:
    """Yield the ETag that S3 sends for an upload, unless the response has another one, or must have none."""
    has_own = any(name == "ETag" for name, _ in response.headers) or not response.has_etag
    if request.method == "PUT" and response.status == 200 and not has_own:
        yield "ETag", f'"{md5(request.body, usedforsecurity=False).hexdigest()}"'


class _Server(ThreadingHTTPServer):
    hung_up: Event

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.hung_up.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore that clients disconnect; any other error is a mistake in a test."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class RawServer:
    """Responds to each complete request with what `respond` returns, and records it; ignores incomplete ones.

    `while_receiving` is called after the first 1,000 bytes of a larger body.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.respond: Callable[[Request], RawResponse] = lambda _: RawResponse()
        self.while_receiving: Callable[[], object] = lambda: None
        self.after_raw: Callable[[BaseHTTPRequestHandler], object] = lambda _: None
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.hung_up = self._server.hung_up = Event()
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://localhost:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, owner: RawServer, *connection: Any) -> None:
        self._owner = owner
        super().__init__(*connection)

    def handle_any(self) -> None:
        body = self._receive()
        if body is None:
            self.close_connection = True
            return
        request = Request(self.command, self.path, self.headers, body, self.client_address)
        self._owner.requests.append(request)
        response = self._owner.respond(request)
        if response.raw is None:
            self._send(response, etag(request, response))
        else:
            self._send_raw(response.raw)

    do_GET = do_PUT = do_POST = handle_any  # noqa: N815 - named by http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
        """Say nothing."""

    def _receive(self) -> bytes | None:
        """Return the whole body; None if it is incomplete."""
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(min(length, 1000))
        if length > len(body):
            self._owner.while_receiving()
        body += self.rfile.read(length - len(body))
        return body if len(body) == length else None

    def _send(self, response: RawResponse, more: Iterable[tuple[str, str]]) -> None:
        self.send_response(response.status)
        length = len(response.body) if response.announced is None else response.announced
        for name, value in (*response.headers, *more):
            self.send_header(name, value)
        if not any(name == "Transfer-Encoding" for name, _ in response.headers):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(response.body)
        if length != len(response.body) or response.hangs_up:
            self.close_connection = True

    def _send_raw(self, raw: bytes) -> None:
        self.close_connection = True
        self.wfile.write(raw)
        self._owner.after_raw(self)


@contextmanager
def responding_early(response: bytes, tls: ssl.SSLContext | None = None) -> Generator[str]:
    """Respond to one request and close the connection before most of its body was read; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond() -> None:
            connection, _ = listener.accept()
            # Without this option, the response may wait, and would be lost when the connection is closed.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            with connection:
                connection.recv(65536)
                connection.sendall(response)

        thread = Thread(target=respond)
        thread.start()
        host = "http://127.0.0.1" if tls is None else "https://localhost"
        yield f"{host}:{listener.getsockname()[1]}/key"
        thread.join()
