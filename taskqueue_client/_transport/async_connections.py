"""The asynchronous client's transport: aiohttp's connector opens connections, httptools parses responses.

The connector knows proxies, TLS and hosts with several addresses. What aiohttp does for a response, beyond
parsing it, takes longer than the rest of a call: streams, cookies, redirects, tracing, timers.

`tests/transport/test_async_connections.py` tests what this module expects of the two inner functions of
aiohttp that it uses, on the oldest and the newest aiohttp. If `is_supported()` is false,
`ClientSession.request` is used instead.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import select
import ssl
from collections.abc import Callable
from functools import cache, lru_cache, partial
from http.client import HTTPException, RemoteDisconnected

import aiohttp
from aiohttp.connector import Connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from taskqueue_client._protocol.api_responses import (
    MAX_RESPONSE,
    Response,
    ResponseRefused,
    TransportFailed,
    is_framed,
    unpacked,
)
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.threads_and_tasks import LoopEnd, begin, finalize_in_loop, running_loop
from taskqueue_client._protocol.wire import Request
from taskqueue_client.errors import ClientUnusable

from .connection_errors import connection_failed, not_connected_in_time, tunnel_refused
from .network import USER_AGENT, WANTS_USER, NetworkSettings, Proxy, forget_in_children, proxy_refused

KEEP_ALIVE = 15.0
"""Seconds that an idle connection is kept: less than most servers and load balancers keep theirs."""

MAX_HEAD = 128 * 1024
"""The most bytes without a part of the body: heads (with signed URLs), trailers, chunk extensions."""

RECEIVED = 256 * 1024
"""The most bytes that are received at a time."""

_UNUSABLE = "the server closed the connection, or sent something on it, before the request"
_LONG_HEAD = f"the headers of the response are longer than {MAX_HEAD // 1024} KiB"
_FINAL = 200  # the least status of a response after which no other one follows

POOL_SIZE = 100
"""Connections that one client opens at most; further calls wait for one."""

_INVALID = "invalid request: the target or a header contains characters that HTTP does not allow"
_BUSY = f"all {POOL_SIZE} connections of the client were in use for other requests"
_CLOSED_MEANWHILE = "the client was closed before the response was complete"
_CLOSED = "this AsyncQueue is closed: make a new one, or close it later"
_ELSEWHERE = "this AsyncQueue belongs to the event loop of its first call: make one for each loop"


@cache
def is_supported() -> bool:
    """Return whether this version of aiohttp has the inner functions that this module uses."""
    try:
        request = set(inspect.signature(aiohttp.ClientRequest).parameters)
        connect = set(inspect.signature(aiohttp.BaseConnector.connect).parameters)
    except (AttributeError, TypeError, ValueError):
        return False
    address = {"method", "url", "loop", "ssl", "proxy", "proxy_headers"}
    return address <= request and {"req", "traces", "timeout"} <= connect


def destination(origin: str, proxy: Proxy | None, tls: ssl.SSLContext | None) -> aiohttp.ClientRequest:
    """Return the address to connect to: the connector takes a request, and uses only its address."""
    return aiohttp.ClientRequest(
        "GET",
        URL(origin, encoded=True),  # `Host` has the address as it was signed, and not shortened
        loop=asyncio.get_running_loop(),
        ssl=True if tls is None else tls,
        proxy=None if proxy is None else URL(proxy.url),
        proxy_headers=None if proxy is None else proxy.headers,
    )


async def connect(
    connector: aiohttp.BaseConnector,
    to: aiohttp.ClientRequest,
    timeouts: Timeouts,
    deadlines: ConnectionDeadlines,
    idle: dict[HttpConnection, None],
) -> HttpConnection:
    try:
        opened = await connector.connect(to, [], _timeout(min(timeouts.connect, timeouts.total)))
    except TimeoutError as error:
        raise aiohttp.ConnectionTimeoutError from error
    return HttpConnection(opened, deadlines, idle)


@lru_cache(maxsize=64)
def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=seconds)  # `sock_connect` does not bound the response of a proxy


def _is_readable(handle: int) -> Callable[[], object]:
    if not hasattr(select, "poll"):  # on Windows, where `select` takes any handle
        return lambda: select.select([handle], [], [], 0)[0]
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return partial(poll.poll, 0)


class HttpConnection(asyncio.BufferedProtocol):
    """An HTTP/1.1 connection, for one exchange after the other.

    Args:
        opened: The connection of aiohttp, which from now on only closes it.
        deadlines: Ends exchanges that take too long, and closes connections that are idle too long.
        idle: The idle connections; this one is added while another exchange may begin.

    Attributes:
        due: When the exchange fails, or the idle connection is closed, by the clock of the event loop.
        has_unread: Tells whether something came, or the connection ended, while the event loop was blocked.
    """

    def __init__(
        self, opened: Connection, deadlines: ConnectionDeadlines, idle: dict[HttpConnection, None]
    ) -> None:
        handler, transport = opened.protocol, opened.transport
        if handler is None or transport is None or handler.should_close:
            opened.close()
            raise TransportFailed(_UNUSABLE) from aiohttp.ServerDisconnectedError()
        self._opened = opened
        self._handler = handler
        self._transport = transport
        self._deadlines = deadlines
        self._idle = idle
        self.has_unread = _is_readable(transport.get_extra_info("socket").fileno())
        self._parser = HttpResponseParser(self)
        self._response: asyncio.Future[Response] | None = None
        self._begin_response()
        self._stays_open = True
        self.due = math.inf
        deadlines.connections[self] = None
        transport.set_protocol(self)

    @property
    def is_usable(self) -> bool:
        is_due = self._deadlines.loop.time() >= self.due  # still open, if the event loop was blocked
        return self._stays_open and not is_due and not self._transport.is_closing()

    async def exchange(self, request: bytes, ends: float, read_timeout: float, max_body: int) -> Response:
        """Send a request, and return its response; then the connection is idle or closed.

        The response must be complete at `ends`, by the clock of the event loop; some data must arrive every
        `read_timeout` seconds.
        """
        self._ends, self._read_timeout, self._max_body = ends, read_timeout, max_body
        self._without_body = 0
        self._response = self._deadlines.loop.create_future()
        self._expect_more()
        self._deadlines.meet(self.due)
        self._transport.write(request)
        try:
            received = await self._response  # not a variable: the traceback of its error would refer to it
        except BaseException:
            self._response = None
            self.abort_if_idle()  # or the rest of the request would be sent
            raise
        self._release()
        return received

    def fail(self, error: Exception) -> None:
        response, self._response = self._response, None
        if response is not None and not response.done():
            response.set_exception(error)

    def expire(self) -> None:
        """Let an exchange fail that took too long, or close an idle connection."""
        if self._response is None:
            self.close()
        self.fail(TimeoutError())

    def abort_if_idle(self) -> None:
        """Close an idle connection at once, without waiting for the end of TLS."""
        if self._response is None:
            self._transport.abort()
            self.close()

    def close(self) -> None:
        """Close the connection, which no exchange is using."""
        self._opened.close()
        self._idle.pop(self, None)
        self._deadlines.forget(self)
        self._begin_response()  # the parser keeps this object in memory: drop what was received

    def _release(self) -> None:
        if self._transport.get_write_buffer_size():  # the response came before the request was sent
            self._transport.abort()
        if self.is_usable:
            self.due = self._deadlines.loop.time() + KEEP_ALIVE
            self._deadlines.meet(self.due)
            self._idle[self] = None
        else:
            self.close()

    def _expect_more(self) -> None:
        self.due = min(self._ends, self._deadlines.loop.time() + self._read_timeout)

    def _begin_response(self) -> None:
        self._headers = CIMultiDict[str]()
        self._has_headers = False
        self._body = bytearray()

    # Called by the event loop

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`. Without a buffer, asyncio would map memory for each response."""
        del sizehint
        return self._deadlines.buffer

    def buffer_updated(self, nbytes: int) -> None:
        response = self._response
        if response is None:  # no request waits for a response
            self.close()
            return
        self._without_body += nbytes
        try:
            self._parser.feed_data(self._deadlines.buffer[:nbytes])
        except HttpParserError as error:
            self._stays_open = False  # also if only bytes after a complete response are wrong
            self.fail(HTTPException(str(error)))
        except HttpParserUpgrade:
            self.fail(TransportFailed("the response switches to another protocol"))
        if response.done():
            return
        self._expect_more()
        if self._without_body > MAX_HEAD:
            self.fail(TransportFailed(_LONG_HEAD))

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)  # the connector's `close` waits for this call
        if exc is None and self._has_headers and not is_framed(self._received()):
            self.on_message_complete()  # such a response ends with its connection
        self.fail(exc or aiohttp.ServerDisconnectedError())
        self.close()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Begin a response: the first, one after an informational response, or one without a request."""
        self._stays_open = self._response is not None
        if self._has_headers:
            self._begin_response()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; ignore a trailer."""
        if not self._has_headers:
            self._headers.add(name.decode("latin-1"), value.decode("latin-1").strip())

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        self._body += body
        if len(self._body) > self._max_body:
            self.fail(ResponseRefused.too_large(self._parser.get_status_code(), self._max_body))

    def on_message_complete(self) -> None:
        """End the exchange, unless the response is an informational one."""
        response = self._response
        if response is not None and not response.done() and self._parser.get_status_code() >= _FINAL:
            response.set_result(self._received())
            self._response = None
            self._begin_response()
            self._stays_open = self._parser.should_keep_alive()

    def _received(self) -> Response:
        return Response(self._parser.get_status_code(), self._headers, bytes(self._body))


class ConnectionDeadlines:
    """Ends exchanges and idle connections that are due, with one timer for all connections.

    `asyncio.timeout` for each call would cost as much as its signature.

    Attributes:
        buffer: Data that a connection has just received; parsed before another connection receives.
    """

    def __init__(self, connections: dict[HttpConnection, None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections = connections
        self.buffer = memoryview(bytearray(RECEIVED))
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def meet(self, due: float) -> None:
        """Look at the connections at the time `due`, or earlier."""
        if due < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._looks_at = self.loop.call_at(due, self._look), due

    def forget(self, connection: HttpConnection) -> None:
        """Stop looking at a connection. After the last one, no timer is left on the event loop."""
        self.connections.pop(connection, None)
        if self._timer is not None and not self.connections:
            self._timer.cancel()
            self._timer, self._looks_at = None, math.inf

    def close_idle(self) -> None:
        for each in list(self.connections):
            each.abort_if_idle()

    def _look(self) -> None:
        self._timer, self._looks_at, now = None, math.inf, self.loop.time()
        for each in list(self.connections):
            if each.due <= now:
                each.expire()
        if self.connections:
            self.meet(min(each.due for each in self.connections))


class ConnectorTransport:
    """An `AsyncTransport` over httptools and aiohttp's connector, for the event loop of the first request."""

    _limit = 0  # none: the connector would count idle connections as used; `_places` sets the limit

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network
        self._connections: dict[HttpConnection, None] = {}
        self._connector: aiohttp.TCPConnector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the connector is open
        self._closed = False
        self._destinations: dict[str, _Destination] = {}
        self._places = asyncio.Semaphore(POOL_SIZE)

    def _opened(self) -> aiohttp.TCPConnector:
        running = asyncio._get_running_loop()  # noqa: SLF001 - documented
        is_open = not self._closed and self._loop is running
        return (is_open and self._connector) or self._open()

    def _open(self) -> aiohttp.TCPConnector:
        loop = running_loop()
        if self._closed or self._connector is not None:
            raise ClientUnusable(_CLOSED if self._closed else _ELSEWHERE)
        self._deadlines = ConnectionDeadlines(self._connections)
        self._loop_end = LoopEnd(self._deadlines.close_idle)
        connector = aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=KEEP_ALIVE)
        self._end = finalize_in_loop(self, _abandon, connector, self._connections, self._loop_end)
        forget_in_children(self)
        self._loop, self._connector = loop, connector  # last: after a MemoryError, the next request retries
        return connector

    def forget(self) -> None:
        """Leave the connections to the parent: its event loop would not read from one that a child closes."""
        self._end.detach()
        self._loop_end.forget()

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        self._opened()
        scheme, _, rest = request.url.partition("://")
        host, _, path = rest.partition("/")
        origin = f"{scheme}://{host}"
        if (to := self._destinations.get(origin)) is None:
            to = self._destinations[origin] = _Destination(origin, self._network)
        data = to.written(request, f"/{path}")
        ends = self._deadlines.loop.time() + timeouts.total
        try:
            await self._take_place(timeouts.total)
            try:
                connection = to.idle_connection() or await connect(
                    self._opened(), to.address, timeouts, self._deadlines, to.idle
                )
                response = await connection.exchange(data, ends, timeouts.read, max_body)
            finally:
                self._places.release()
        except (aiohttp.ClientError, HTTPException, OSError) as error:
            for each in list(to.idle):  # they may be dead, too: each attempt would fail on another one
                each.close()
            raise connection_failure(error, error, request.url, self._network) from error
        if response.status == WANTS_USER:
            raise proxy_refused(request.url, self._network)
        if "content-encoding" in response.headers:
            body = unpacked(response.status, response.headers, response.body, max_body)
            return response._replace(body=body, proxy=to.forwarder)
        return response._replace(proxy=to.forwarder) if to.forwarder else response

    async def _take_place(self, seconds: float) -> None:
        if not self._places.locked():
            await self._places.acquire()  # at once: `asyncio.timeout` takes longer
            return
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError as error:  # the error has no text
            raise TransportFailed(_BUSY, timed_out=True, is_unsent=True) from error

    async def aclose(self) -> None:
        self._closed = True
        if self._connector is not None and self._loop is asyncio.get_running_loop():
            for each in self._connections:
                each.fail(TransportFailed(_CLOSED_MEANWHILE))
            await self._connector.close()
        elif self._connector is not None:  # `close` can be awaited in the connector's loop only
            self._end()


def _abandon(connector: aiohttp.BaseConnector, connections: dict[HttpConnection, None], end: LoopEnd) -> None:
    """Close connections that nobody closed, before their `__del__` warns. The loop may be closed already."""
    end.forget()
    begin(connector.close())  # closes at once; awaiting it would take until the end of TLS
    for each in list(connections):
        each.fail(TransportFailed(_CLOSED_MEANWHILE))
        each.close()


class _Destination:
    """The address that requests are sent to, and their common headers.

    Attributes:
        forwarder: The URL of the proxy that responds, or passes requests on; empty without one.
    """

    def __init__(self, origin: str, network: NetworkSettings) -> None:
        proxy = network.proxy(origin)
        self.address = destination(origin, proxy, network.tls_for(origin))
        self.forwarder = network.forwarding_proxy(origin)
        self._prefix = origin if self.forwarder else ""
        headers = {"Host": self.address.headers["Host"], "User-Agent": USER_AGENT}
        if proxy is not None and self.forwarder:
            headers |= proxy.headers
        self._headers = [": ".join(header) for header in headers.items()]
        self._names = frozenset(headers)
        self.idle: dict[HttpConnection, None] = {}

    def idle_connection(self) -> HttpConnection | None:
        """Take the idle connection that was used last; None if none is usable."""
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.is_usable and not connection.has_unread():
                return connection
            connection.close()
        return None

    def written(self, request: Request, target: str) -> bytes:
        """Return a request as it is sent (RFC 9112, sections 2 to 6)."""
        headers, body = request.headers, request.body or b""
        ours = self._headers
        if not self._names.isdisjoint(headers):
            ours = [each for each in ours if each.partition(":")[0] not in headers]
        lines = [f"{request.method} {self._prefix}{target} HTTP/1.1", *ours, *map(": ".join, headers.items())]
        if body or request.method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        text = "".join(lines)
        if not (text.isascii() and text.isprintable()) or " " in target or not _are_names(tuple(headers)):
            raise TransportFailed(_INVALID, is_unsent=True)
        return "\r\n".join((*lines, "", "")).encode() + body


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@lru_cache(maxsize=64)
def _are_names(names: tuple[str, ...]) -> bool:
    return all(map(_NAME.fullmatch, names))


def connection_failure(
    error: BaseException, cause: BaseException, url: str, network: NetworkSettings | None
) -> TransportFailed | ResponseRefused:
    """Return the failure for an error of aiohttp, which `cause` explains."""
    _forget_request(error)
    proxy = None if network is None else network.proxy(url)
    if isinstance(cause, aiohttp.ClientHttpProxyError):
        if cause.status == WANTS_USER:
            return proxy_refused(url, network)
        return tunnel_refused(url, proxy, f"{cause.status} {cause.message}".strip())
    if isinstance(cause, aiohttp.ConnectionTimeoutError):
        return not_connected_in_time(url, proxy)
    return connection_failed(_standard(cause), url, proxy)


def _standard(error: BaseException) -> BaseException:
    """Return the error of the operating system, TLS or `http.client` that an error of aiohttp stands for."""
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)):
        return RemoteDisconnected("")
    if isinstance(error, aiohttp.ClientResponseError):
        return HTTPException(error.message)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return error.certificate_error  # it has no `os_error` before aiohttp 3.13.5
    cause = getattr(error, "os_error", error.__cause__)  # not the error, whose text may have the URL
    return cause if isinstance(error, aiohttp.ClientConnectionError) and cause is not None else error


def _forget_request(error: BaseException) -> None:
    """Remove our headers and the query, which have signatures, from an error that people will log."""
    if isinstance(error, aiohttp.ClientResponseError):
        url, method, *_ = error.request_info
        bare = url.with_query(None)
        error.request_info = aiohttp.RequestInfo(bare, method, CIMultiDictProxy(CIMultiDict[str]()), bare)
        error.args = (error.request_info, error.history)
