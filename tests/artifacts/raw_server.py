"""An HTTP server that does what a test says, right or wrong, and remembers what it was sent."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
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
class Answer:
    """What to send: headers as they are, and the body, of which perhaps less than was announced."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    announced: int | None = None
    hangs_up: bool = False


def json_answer(document: object) -> Answer:
    return Answer(headers=(("Content-Type", "application/json"),), body=json.dumps(document).encode())


class _Server(ThreadingHTTPServer):
    hung_up: Event

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.hung_up.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may hang up; anything else is a mistake in a test."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class RawServer:
    """Answers every request with what `answer` returns for it; forgets those that are cut short.

    After the first bytes of a larger body, `while_receiving` is called.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer()
        self.while_receiving: Callable[[], object] = lambda: None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(min(length, 1000))
                if length > len(body):
                    owner.while_receiving()
                body += self.rfile.read(length - len(body))
                if len(body) < length:
                    self.close_connection = True
                    return
                request = Request(self.command, self.path, self.headers, body, self.client_address)
                owner.requests.append(request)
                answer = owner.answer(request)
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                length = len(answer.body) if answer.announced is None else answer.announced
                if not any(name == "Transfer-Encoding" for name, _ in answer.headers):
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(answer.body)
                if length != len(answer.body) or answer.hangs_up:
                    self.close_connection = True

            do_GET = do_PUT = do_POST = handle_any  # noqa: N815 - named by http.server

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
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
