"""The HTTP server: one socket, on which everything under one root URL answers."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from taskqueue_client.local.answers import error_answer, finish, json_answer, not_found, text_answer
from taskqueue_client.local.monitoring import Monitoring
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.local.routing import allowed_methods, find_endpoint

if TYPE_CHECKING:
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader

    from taskqueue_client.local.admin import Admin
    from taskqueue_client.local.api import Api
    from taskqueue_client.local.buckets import Buckets
    from taskqueue_client.local.faults import Faults

_LONGEST_LINE = 16 * 1024
"""Of a request line, and of one header, in bytes: the service's limit for all of them together."""

_KEEP_ALIVE = 90.0
"""After how many idle seconds a connection is closed."""

_BACKLOG = 1024
"""How many connections may wait to be accepted: as many long polls may come in at once."""

_SHUTDOWN = 0.05
"""How many seconds requests under way are given when the server stops: all but long polls take less."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)
_requests = logging.getLogger("taskqueue_client.local.requests")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the server hands requests to.

    Args:
        api: Everything under `/api/`.
        buckets: Everything under `/storage/`.
        faults: What goes wrong on purpose.
        admin: Everything under `/admin/`; None when there is no such thing.
        after_change: Called when a request may have changed something.
        now: The time, in seconds since the epoch.
    """

    api: Api
    buckets: Buckets
    faults: Faults
    admin: Admin | None
    after_change: Callable[[], object]
    now: Callable[[], float]


class Server:
    """Listens, and answers each request.

    Args:
        parts: Whom requests are handed to.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._monitoring = Monitoring(None)
        self._runner: web.ServerRunner | None = None
        self._socket: socket.socket | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen on an address; the URL to reach it by. Port 0 takes a free one.

        Raises:
            OSError: The address can't be used.
        """
        listener = _Listener(self._answer, self._reject, **_settings())
        self._runner = web.ServerRunner(listener, shutdown_timeout=_SHUTDOWN)
        await self._runner.setup()
        address = _addresses(host)[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        await web.SockSite(self._runner, self._socket, backlog=_BACKLOG).start()
        taken: int = self._socket.getsockname()[1]
        name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - to replace it
        return f"http://[{name}]:{taken}" if ":" in name else f"http://{name}:{taken}"

    async def stop(self) -> None:
        """Stop listening, and end the requests under way."""
        if self._socket is not None:
            await _accept_no_more(self._socket)
        if self._runner is not None:
            await self._runner.cleanup()
            await asyncio.sleep(0)  # what the requests that were cut have left to do

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        after_answer = asyncio.get_running_loop().call_soon  # runs when the answer is on its way
        path = request.raw_path.partition("?")[0]
        try:
            answer = await self._answer_or_reject(request, path)
        finally:  # also when the client has hung up
            if request.method not in {"GET", "HEAD", "OPTIONS"}:
                after_answer(self._parts.after_change)
        milliseconds = 1000 * (time.perf_counter() - started)
        after_answer(_requests.info, "%s %s %d %.1f ms", request.method, path, answer.status, milliseconds)
        return answer

    async def _answer_or_reject(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        try:
            endpoint, handler = self._route(request, path)
            return await self._parts.faults.answer(endpoint, request, handler)
        except Refusal as refusal:
            return self._reject(request, refusal)
        except Exception:  # noqa: BLE001 - whatever goes wrong must not show its inside to the caller
            _log.exception("%s %s failed", request.method, path)
            return self._reject(request, Refusal("InternalServerError", "Internal Server Error"))

    def _route(self, request: web.BaseRequest, path: str) -> tuple[str, Handler]:
        """Whom a request is for: the endpoint's name, if there is one, and who answers."""
        if path.startswith("/storage/"):
            return self._storage_handler(request.method)
        if self._parts.admin is not None and path.startswith("/admin/"):
            return "", self._parts.admin.answer
        match = find_endpoint(request.method, path)
        if match is None:
            return "", self._other_handler(request.method, path)
        return match.endpoint.full_name, lambda request: self._parts.api.answer(request, match)

    def _storage_handler(self, method: str) -> tuple[str, Handler]:
        name = {"PUT": "put", "GET": "get", "HEAD": "get"}.get(method)
        if name is None:
            return "", _constant(not_found())
        handler: Handler = getattr(self._parts.buckets, name)
        return f"storage.{name}", handler

    def _other_handler(self, method: str, path: str) -> Handler:
        """What the process answers outside of its services' routes."""
        allowed = ",".join(allowed_methods(path))
        if method == "OPTIONS" and allowed:
            return _constant(text_answer(allowed, "text/html", 200, {"Allow": allowed}))
        if method in {"GET", "HEAD"} and path == "/robots.txt":
            return _constant(text_answer("User-Agent: *\nDisallow: /\n", "text/plain", 200, {}))
        about = {
            "/__version__": self._monitoring.version,
            "/__heartbeat__": self._monitoring.heartbeat,
            "/__lbheartbeat__": self._monitoring.lbheartbeat,
        }.get(path)
        found = about is not None and method in {"GET", "HEAD"}
        return _constant(json_answer(about()) if about is not None and found else not_found())

    def _reject(self, request: web.BaseRequest, refusal: Refusal) -> web.Response:
        """The answer to a request that belongs to no endpoint, or can't be read."""
        return finish(request, error_answer(refusal, "", {}, {}, int(1000 * self._parts.now())))


async def _accept_no_more(listening: socket.socket) -> None:
    """Let connections that are being accepted come to be.

    asyncio would leave them open, and forget them, if the server was closed first.
    """
    asyncio.get_running_loop().remove_reader(listening)
    for _ in range(3):  # the protocol is made, is told of its connection, and is known to the runner
        await asyncio.sleep(0)


def _constant(answer: web.Response) -> Handler:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return finish(request, answer)

    return handler


def _settings() -> Mapping[str, Any]:
    return {
        "access_log": None,
        "auto_decompress": False,  # storage gives bodies back as they were sent
        "keepalive_timeout": _KEEP_ALIVE,
        "max_line_size": _LONGEST_LINE,
        "max_field_size": _LONGEST_LINE,
    }


class _Listener(web.Server):
    """aiohttp's low-level server, with our own words for requests that are not HTTP."""

    def __init__(
        self,
        handler: Handler,
        reject: Callable[[web.BaseRequest, Refusal], web.Response],
        **settings: Any,
    ) -> None:
        # a client that hangs up must not be given tasks
        super().__init__(handler, request_factory=_make_request, handler_cancellation=True)
        self._reject = reject
        self._settings = settings

    def __call__(self) -> RequestHandler:
        return _Connection(self, self._reject, loop=asyncio.get_running_loop(), **self._settings)


class _Connection(RequestHandler):
    def __init__(
        self, server: _Listener, reject: Callable[[web.BaseRequest, Refusal], web.Response], **settings: Any
    ) -> None:
        super().__init__(server, **settings)
        self._reject = reject

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A request that aiohttp could not parse: 400 instead of its own page."""
        if status >= 500:  # noqa: PLR2004  a fault of ours
            return super().handle_error(request, status, exc, message)
        answer = self._reject(
            request, Refusal("MalformedPayload", "The request is not HTTP/1.1, or too long")
        )
        answer.force_close()
        return answer


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: Any,
    task: asyncio.Task[None],
) -> web.Request:
    """A `Request` rather than a `BaseRequest`: storage asks it for ranges and the like."""
    return web.Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raise a ValueError for an address that others can reach, unless that is allowed.

    Args:
        host: What the server shall listen on.
        allow_remote: Whether others may reach it.
    """
    if not (allow_remote or all(ip_address(address).is_loopback for address in _addresses(host))):
        message = f"{host} can be reached from other machines: allow that explicitly, or use 127.0.0.1"
        raise ValueError(message)


def _addresses(host: str) -> list[str]:
    found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [str(address[0]).partition("%")[0] for *_, address in found]
