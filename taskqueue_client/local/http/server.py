"""The HTTP server: one socket, for everything under one root URL."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local.endpoints import heartbeat, version
from taskqueue_client.local.faults import FaultInjector, Handler
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.local.storage.buckets import Buckets

from .admin import Admin
from .api import Api, BrokenEscapeError, Routes
from .responses import error_response, finish, json_response, not_found, text_response
from .schema_check import is_address

if TYPE_CHECKING:
    from taskqueue_client.local.page import Page

_LONGEST_LINE = 16 * 1024
"""The limit of the request line, and of each header, in bytes; in the service, of all of them together."""

_ABSOLUTE_FORM = re.compile(r"https?://[^/?]*", re.IGNORECASE)
"""The part before the path in a request target that is a URL."""

_PORT = re.compile(r":[0-9]*$")
_MISDIRECTED = 421
_WRONG_HOST = "The Host header is not that of this local queue; use the root URL that it printed"
_KEEP_ALIVE = 90.0  # after how many idle seconds a connection is closed
_BACKLOG = 1024  # connections that may wait to be accepted, for many long polls at once

_SHUTDOWN = 0.05
"""How many seconds requests under way are given when the server stops: all but long polls take less."""

_BAD_REQUEST_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Error</title>
</head>
<body>
<pre>Bad Request</pre>
</body>
</html>
"""

_ROBOTS = "User-Agent: *\nDisallow: /\n"

_OF_THE_PROCESS: dict[str, Callable[[], web.Response]] = {
    "robots.txt": lambda: text_response(_ROBOTS, "text/plain; charset=utf-8", 200, {}),
    "__version__": lambda: json_response(version(None)),
    "__heartbeat__": lambda: json_response(heartbeat(None)),
    "__lbheartbeat__": lambda: json_response(heartbeat(None)),
}
"""Responses about the service's process, to any method, by the first segment of the path."""

_log = logging.getLogger(__name__)
_requests = logging.getLogger("taskqueue_client.local.requests")


@dataclass(eq=False, slots=True)
class Server:
    """Listens, and passes each request to the part of the local queue that responds to it.

    Args:
        api: Everything under `/api/`.
        buckets: Everything under `/storage/`.
        injector: Calls the handlers, or lets a fault strike.
        admin: Everything under `/admin/`, if there is an admin secret.
        page: The web page, if there is one.
        after_change: Called when a request may have changed something.
        own_host: The only name, beside `localhost` and addresses, that requests may have in `Host`; None
            allows all.
        routes: The endpoints.
    """

    api: Api
    buckets: Buckets
    injector: FaultInjector
    admin: Admin | None
    page: Page | None
    after_change: Callable[[], object]
    own_host: str | None
    routes: Routes
    _runner: web.ServerRunner | None = field(default=None, init=False)
    _socket: socket.socket | None = field(default=None, init=False)

    async def start(self, host: str, port: int) -> str:
        """Listen on an address, and return its URL. Port 0 chooses a free one."""
        listener = _Listener(self._respond, self._reject)
        self._runner = web.ServerRunner(listener, shutdown_timeout=_SHUTDOWN)
        await self._runner.setup()
        address = _addresses(host)[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family)
        # not _BACKLOG: asyncio would try so many accepts at a time, and log each one if no file can be opened
        await web.SockSite(self._runner, self._socket, backlog=1).start()
        self._socket.listen(_BACKLOG)
        taken: int = self._socket.getsockname()[1]
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - to replace it
        return f"http://[{name}]:{taken}" if ":" in name else f"http://{name}:{taken}"

    async def stop(self) -> None:
        """Stop listening, and end the requests under way."""
        if self._socket is not None:
            await _accept_no_more(self._socket)
            _shut_down(self._socket)
        if self._runner is not None:
            await self._runner.cleanup()
            await asyncio.sleep(0)  # lets requests whose connections were closed finish

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        after_response = asyncio.get_running_loop().call_soon  # runs after the response was written
        path = request.raw_path.partition("?")[0]
        page = self.page
        try:
            if page is not None and page.owns(path):
                return await page.respond(request)
            response = await self._respond_or_reject(request, path)
        finally:  # also when the client has disconnected
            if request.method not in {"GET", "HEAD", "OPTIONS"}:
                after_response(self.after_change)
        ms = 1000 * (time.perf_counter() - started)
        after_response(_requests.info, "%s %s %d %.1f ms", request.method, path, response.status, ms)
        if page is not None:
            page.note_request(request, response, ms)
        return response

    async def _respond_or_reject(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if not self._is_for_us(request.headers.get("Host", "")):
            return finish(request, json_response({"error": _WRONG_HOST}, _MISDIRECTED))
        try:
            endpoint, handler = self._route(request, path)
            return await self.injector.respond(endpoint, request, handler)
        except BrokenEscapeError:
            return finish(request, text_response(_BAD_REQUEST_PAGE, "text/html; charset=utf-8", 400, {}))
        except Refusal as refusal:
            return self._reject(request, refusal)
        except Exception:  # noqa: BLE001 - an internal error must not be shown to the caller
            _log.exception("%s %s failed", request.method, path)
            return self._reject(request, Refusal("InternalServerError", "Internal Server Error"))

    def _is_for_us(self, host: str) -> bool:
        """Return whether `Host` names this queue: any other name may point here, too (DNS rebinding)."""
        own, name = self.own_host, _PORT.sub("", host).lower()
        return own is None or name in {"", "localhost", own.lower()} or is_address(name.strip("[]"))

    def _route(self, request: web.BaseRequest, path: str) -> tuple[str, Handler]:
        if path.startswith("/storage/"):
            return self._storage_handler(request.method)
        if self.admin is not None and path.startswith("/admin/"):
            return "", self.admin.respond
        match = self.routes.find(request.method, path)
        if match is None:
            return "", self._other_handler(request.method, path)
        return match.endpoint.full_name, partial(self.api.respond, match=match)

    def _storage_handler(self, method: str) -> tuple[str, Handler]:
        if method == "OPTIONS":
            return "", self.buckets.preflight
        name = {"PUT": "put", "GET": "get", "HEAD": "get"}.get(method)
        if name is None:
            return "", _constant(not_found())
        handler: Handler = getattr(self.buckets, name)
        return f"storage.{name}", handler

    def _other_handler(self, method: str, path: str) -> Handler:
        """Return the handler of a request outside of the services' routes."""
        allowed = ", ".join(self.routes.allowed_methods(path))
        if method == "OPTIONS" and allowed:
            return _constant(text_response(allowed, "text/plain", 200, {"Allow": allowed}))
        respond = _OF_THE_PROCESS.get(path.removeprefix("/").partition("/")[0])
        return _constant(not_found() if respond is None else respond())

    def _reject(self, request: web.BaseRequest, refusal: Refusal) -> web.Response:
        """Return the response to a request that belongs to no endpoint, or cannot be read."""
        return finish(request, error_response(refusal, "", {}, {}, self.injector.faults.now()))


async def _accept_no_more(listening: socket.socket) -> None:
    """Stop accepting connections, and wait for those that are being accepted.

    If the server was closed first, asyncio would leave these connections open, and never close them.
    """
    asyncio.get_running_loop().remove_reader(listening)
    for _ in range(3):  # create the protocol, call its connection_made, and add it to the runner
        await asyncio.sleep(0)


def _shut_down(open_socket: Any) -> None:
    """End a connection, or listening. Closing alone ends nothing while a forked child has the socket, too."""
    with suppress(OSError):  # the client has ended the connection before
        open_socket.shutdown(socket.SHUT_RDWR)


def _constant(response: web.Response) -> Handler:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return finish(request, response)

    return handler


class _Listener(web.Server):
    """aiohttp's low-level server, with the Queue's response to requests that are not HTTP."""

    def __init__(self, handler: Handler, reject: Callable[[web.BaseRequest, Refusal], web.Response]) -> None:
        # a client that disconnects must not be given tasks
        super().__init__(handler, request_factory=_make_request, handler_cancellation=True)
        self.reject = reject

    def __call__(self) -> RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,  # storage gives bodies back as they were sent
            keepalive_timeout=_KEEP_ALIVE,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )


class _Connection(RequestHandler):
    def __init__(self, server: _Listener, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._reject = server.reject

    def connection_lost(self, exc: BaseException | None) -> None:
        """Shut the socket down; asyncio closes it afterwards."""
        if self.transport is not None:
            _shut_down(self.transport.get_extra_info("socket"))
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond with the Queue's 400, not aiohttp's page, to a request that cannot be parsed."""
        if status >= 500:  # noqa: PLR2004  an error of the local queue
            return super().handle_error(request, status, exc, message)
        refusal = Refusal("MalformedPayload", "The request is not HTTP/1.1, or too long")
        response = self._reject(request, refusal)
        response.force_close()
        return response


class _Request(web.Request):
    """A request whose response has no `Server` header; a full `Request`, for ranges and the like."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.pop("Server", None)


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: Any,
    task: asyncio.Task[None],
) -> web.Request:
    target = _ABSOLUTE_FORM.sub("", message.path, count=1) or "/"
    if target != message.path:
        message = message._replace(path=target)
    return _Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raise a ValueError for an address that other machines can reach, unless `allow_remote` is set."""
    addresses = _addresses(host)
    if not (allow_remote or all(ip_address(address).is_loopback for address in addresses)):
        remedy = "set allow_remote (--allow-remote), or use 127.0.0.1"
        raise ValueError(f"{host} can be reached from other machines: {remedy}")


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # UnicodeError: the name has an empty part, such as `a..b`
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument("host", host, f"an address or a name of this machine ({reason})") from error
    return [str(address[0]).partition("%")[0] for *_, address in found]
