"""The health of a worker, and the HTTP server for it and for metrics.

The health is whether the worker takes work, and whether it should be restarted.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Self, cast

from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.worker_log import log

from .worker_metrics import Vitals, WorkerMetrics

READY_WITHIN = 60.0
"""Seconds from one response to a claim request to the next. A request takes 20 s when there is no work, and
three in a row do not fail by chance. Also seconds for which the worker's event loop may be blocked."""

LIVE_WITHIN = 600.0
"""The same, after which the worker should be restarted: the worker, and not the Queue, may be what hangs."""

_TEXT = "text/plain; charset=utf-8"


def live_problems(vitals: Vitals) -> list[str]:
    """Return why a worker should be restarted; an empty list if it should not."""
    problems: list[str] = []
    if vitals.since_claim is not None and vitals.since_claim > LIVE_WITHIN:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    if vitals.lease_left is not None and vitals.lease_left < 0:
        problems.append(f"a lease ended {-vitals.lease_left:.0f} s ago, and its run is still being worked on")
    if vitals.stuck >= vitals.slots:
        problems.append("handlers of runs that have ended do not stop, and hold all slots")
    if vitals.blocked > LIVE_WITHIN:
        problems.append(_blocked(vitals))
    return problems


def _blocked(vitals: Vitals) -> str:
    return f"a hook, or the reader of the worker's log, has blocked the worker for {vitals.blocked:.0f} s"


def ready_problems(vitals: Vitals) -> list[str]:
    """Return why a worker does not take work; an empty list if it does."""
    problems = live_problems(vitals)
    if vitals.is_shutting_down:
        problems.append("the worker is shutting down")
    if not vitals.has_claimed:
        problems.append("no response to a claim request yet")
    elif vitals.since_claim is not None and READY_WITHIN < vitals.since_claim <= LIVE_WITHIN:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    if READY_WITHIN < vitals.blocked <= LIVE_WITHIN:
        problems.append(_blocked(vitals))
    return problems


class _Page(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


_Pages = Mapping[str, Callable[[str], _Page]]
"""Makes each page from the `Accept` header of the request."""


class Monitor:
    """Serves `/metrics`, `/live` and `/ready`, on separate threads, from its start until it is closed.

    `/live` and `/ready` respond with 200, or with 503 and the reasons, one per line.
    """

    def __init__(self, metrics: WorkerMetrics, host: str, port: int) -> None:
        pages: _Pages = {
            "/metrics": lambda accept: _metrics(metrics, accept),
            "/live": lambda _: _health(live_problems(metrics.vitals())),
            "/ready": lambda _: _health(ready_problems(metrics.vitals())),
        }
        try:
            self._server = _Server(host, port, pages)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(
                "metrics_port", port, f"a free port of {host}", f"cannot listen on {host}:{port}: {error}"
            ) from error
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK,), name="monitor", daemon=True
        )

    def start(self) -> None:
        """Start to respond. Connections that were made before have waited."""
        self._thread.start()
        log.info("serving /metrics, /live and /ready on port %d", self.port)

    def close(self) -> None:
        """Stop listening, and wait for the threads."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_LOOK = 0.2
"""Seconds between looks whether the server is to be closed."""


def _health(problems: list[str]) -> _Page:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return _Page(status, _TEXT, ("\n".join(problems or ["ok"]) + "\n").encode())


def _metrics(metrics: WorkerMetrics, accept: str) -> _Page:
    body, content_type = metrics.exposition(accept)
    return _Page(HTTPStatus.OK, content_type, body)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self, host: str, port: int, pages: _Pages) -> None:
        self.pages = pages
        self._connections: set[Any] = set()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        forget_in_children(self)

    def forget(self) -> None:
        """See `Forked`: a child that outlives the worker would keep its port."""
        self.socket.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End open connections, so that a slow client does not delay the end of the worker."""
        for each in list(self._connections):
            with suppress(OSError):  # ended meanwhile
                each.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error for debugging only: clients may disconnect at any time."""
        del request
        log.debug("monitor: %s: %s", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server_version = "taskqueue_client"
    sys_version = ""
    timeout = 2  # seconds: a client that sends nothing must not delay `close`

    def do_GET(self) -> None:
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _page(self) -> _Page:
        pages = cast("_Server", self.server).pages
        make = pages.get(self.path.partition("?")[0])
        if make is None:
            return _Page(HTTPStatus.NOT_FOUND, _TEXT, f"not found; paths: {' '.join(pages)}\n".encode())
        try:
            return make(self.headers.get("Accept", ""))
        except Exception:
            log.exception("cannot serve %s", self.path)
            return _Page(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"see the worker's log\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server has
        log.debug("monitor: %s", format % args)
