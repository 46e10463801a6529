"""Sends requests of the asynchronous client, over aiohttp.

`ConnectorTransport` uses aiohttp's connector and parser without `ClientSession.request`, which takes as much
processor time again: for redirects, cookies and tracing, which API calls and small uploads don't need.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Protocol
from weakref import finalize

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from taskqueue_client._protocol.api_responses import (
    MAX_RESPONSE,
    MAX_UNPACKED,
    Response,
    ResponseRefused,
    TransportFailed,
    unpacked,
)
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client.errors import ClientUnusable

from .async_connections import (
    KEEP_ALIVE,
    ConnectionDeadlines,
    HttpConnection,
    connect,
    destination,
    is_supported,
)
from .network import USER_AGENT, WANTS_USER, NetworkSettings, forget_in_children, proxy_refused

POOL_SIZE = 100
"""Connections that one client opens at most; further calls wait for one."""

_INVALID = "invalid request: the target or a header contains characters that HTTP does not allow"
_BUSY = f"all {POOL_SIZE} connections of the client were in use for other requests"
_CLOSED_MEANWHILE = "the client was closed before the response was complete"
_CLOSED = "this AsyncQueue is closed: make a new one, or close it later"
_ELSEWHERE = "this AsyncQueue belongs to the event loop of its first call: make one for each loop"
_SESSION_CLOSED = "the session of this AsyncQueue is closed: make both anew, or close the session later"
_SESSION_ELSEWHERE = "the session of this AsyncQueue belongs to another event loop: make both for each loop"


class AsyncTransport(Protocol):
    """Sends requests, and follows no redirects."""

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        """Send a request once, and return the response.

        Args:
            request: The request.
            timeouts: Bound the attempt.
            max_body: Bytes that the body may have, also when it is unpacked.

        Raises:
            TransportFailed: There is no response, or it is incomplete.
            ResponseRefused: Its body is too large or packed in an unknown way.
            ClientUnusable: The transport is closed, or belongs to another event loop.
        """
        ...

    async def aclose(self) -> None:
        """Close the transport and its own connections. It cannot be used afterwards."""
        ...


def own_transport(network: NetworkSettings) -> AsyncTransport:
    """Return a transport that opens its own connections."""
    return ConnectorTransport(network) if is_supported() else OwnSessionTransport(network)


class _OwnConnector:
    """A connector that is made in the loop of the first request, and belongs to it."""

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network
        self._limit = POOL_SIZE
        self._connections: dict[HttpConnection, None] = {}
        self._connector: aiohttp.TCPConnector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the connector is open
        self._closed = False

    def _opened(self) -> aiohttp.TCPConnector:
        if self._connector is None or self._loop is not asyncio.get_running_loop():
            return self._open()
        return self._connector

    def _open(self) -> aiohttp.TCPConnector:
        if self._closed:
            raise ClientUnusable(_CLOSED)
        if self._connector is not None:
            raise ClientUnusable(_ELSEWHERE)
        self._loop = asyncio.get_running_loop()
        self._connector = aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=KEEP_ALIVE)
        self._end = finalize(self, _abandon, self._connector, self._connections)  # runs before any `__del__`
        forget_in_children(self)
        return self._connector

    def forget(self) -> None:
        """Leave the connections to the parent: its event loop would read no more from what a child closes."""
        self._end.detach()

    async def aclose(self) -> None:
        self._closed, self._loop = True, None
        if self._connector is not None:
            await self._connector.close()


def _abandon(connector: aiohttp.BaseConnector, connections: dict[HttpConnection, None]) -> None:
    """Close without a warning what nobody closed: the loop may be gone by now."""
    if connector.closed:
        return
    closing = connector.close().__await__()
    with suppress(StopIteration):
        next(closing)  # closes at once; it would wait for the end of TLS connections
    closing.close()
    for each in list(connections):
        each.close()


class ConnectorTransport(_OwnConnector):
    """An `AsyncTransport` over aiohttp's connector and httptools' parser."""

    def __init__(self, network: NetworkSettings) -> None:
        super().__init__(network)
        self._destinations: dict[str, _Destination] = {}
        self._places = asyncio.Semaphore(POOL_SIZE)
        self._limit = 0  # `_places` counts: to the connector, idle connections are in use

    def _open(self) -> aiohttp.TCPConnector:
        connector = super()._open()
        self._deadlines = ConnectionDeadlines(self._connections)
        return connector

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        self._opened()
        scheme, _, rest = request.url.partition("://")
        host, _, path = rest.partition("/")
        to = self._destinations.get(f"{scheme}://{host}") or self._destination(f"{scheme}://{host}")
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
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error, error, request.url, self._network) from error
        if response.status == WANTS_USER:
            raise proxy_refused(request.url, self._network)
        if "content-encoding" in response.headers:
            return response._replace(body=unpacked(*response, max_body))
        return response

    async def _take_place(self, seconds: float) -> None:
        if not self._places.locked():
            await self._places.acquire()  # at once: `asyncio.timeout` takes longer
            return
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError as error:  # which has no text
            raise TransportFailed(_BUSY, timed_out=True) from error

    def _destination(self, origin: str) -> _Destination:
        self._destinations[origin] = made = _Destination(origin, self._network)
        return made

    async def aclose(self) -> None:
        for each in self._connections:
            each.fail(TransportFailed(_CLOSED_MEANWHILE))
        await super().aclose()


class _Destination:
    """Where requests go, and what all of them begin with."""

    def __init__(self, origin: str, network: NetworkSettings) -> None:
        proxy = network.proxy(origin)
        self.address = destination(origin, proxy, network.tls_for(origin))
        is_forwarded = proxy is not None and not origin.startswith("https:")
        self._prefix = origin if is_forwarded else ""
        headers = {"Host": self.address.headers["Host"], "User-Agent": USER_AGENT}
        if proxy is not None and is_forwarded:
            headers |= proxy.headers
        self._headers = [": ".join(header) for header in headers.items()]
        self._names = frozenset(headers)
        self.idle: dict[HttpConnection, None] = {}

    def idle_connection(self) -> HttpConnection | None:
        """Take the connection that was used last, if there is an idle one."""
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.is_usable and not connection.has_unread():
                return connection
            connection.close()
        return None

    def written(self, request: Request, target: str) -> bytes:
        """Return a request as it is sent (RFC 9112, sections 2 to 6)."""
        headers, body = request.headers, request.body or b""
        ours = self._headers if self._names.isdisjoint(headers) else self._headers_without(headers)
        lines = [f"{request.method} {self._prefix}{target} HTTP/1.1", *ours, *map(": ".join, headers.items())]
        if body or request.method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        text = "".join(lines)
        if not (text.isascii() and text.isprintable()) or " " in target or not _are_names(tuple(headers)):
            raise TransportFailed(_INVALID)
        return "\r\n".join((*lines, "", "")).encode() + body

    def _headers_without(self, headers: Mapping[str, str]) -> list[str]:
        return [header for header in self._headers if header.partition(":")[0] not in headers]


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@lru_cache(maxsize=64)
def _are_names(names: tuple[str, ...]) -> bool:
    return all(map(_NAME.fullmatch, names))


async def _read(status: int, body: aiohttp.StreamReader, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while piece := await body.readany():
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise ResponseRefused.too_large(status, limit)
    return b"".join(pieces)


def _failure(
    error: BaseException, cause: BaseException, url: str, network: NetworkSettings | None
) -> TransportFailed | ResponseRefused:
    _forget_request(error)
    if isinstance(cause, aiohttp.ClientHttpProxyError) and cause.status == WANTS_USER:
        return proxy_refused(url, network)
    if isinstance(cause, aiohttp.SocketTimeoutError) or type(cause) is TimeoutError:
        return TransportFailed.late()
    return TransportFailed(_described(cause), timed_out=isinstance(cause, TimeoutError))


def _described(error: BaseException) -> str:
    """Return an error's class and text.

    aiohttp's text for a connection that failed has the place of the TLS settings in memory, so that equal
    errors would look different in logs, and only a part of the reason.
    """
    kind = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError) and error.__cause__ is not None:
        return f"{kind}: cannot connect to {error.host}:{error.port}: {_described(error.__cause__)}"
    return f"{kind}: {error}".removesuffix(": ")


def _forget_request(error: BaseException) -> None:
    """Take our headers and the query, and so the signatures, out of an error that people will log."""
    if isinstance(error, aiohttp.ClientResponseError):
        url, method, *_ = error.request_info
        bare = url.with_query(None)
        error.request_info = aiohttp.RequestInfo(bare, method, CIMultiDictProxy(CIMultiDict[str]()), bare)
        error.args = (error.request_info, error.history)


class _SentOnceError(aiohttp.ClientError):
    """A connection broke; aiohttp knows no reason to send the request again for this one."""


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending GET and PUT a second time when the connection breaks.

    It would do so without a fresh signature, and nobody would know that the outcome of the first
    request is open.
    """
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _SentOnceError from error


_UNSIGNED = frozenset({"Content-Type"})
"""The header that aiohttp must not add to a POST or PUT: the request is signed without a content type."""


@lru_cache(maxsize=64)
def _timeout(timeouts: Timeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect, sock_read=timeouts.read)


async def _request_over(
    session: aiohttp.ClientSession,
    request: Request,
    timeouts: Timeouts,
    max_body: int,
    network: NetworkSettings | None,
    **options: object,
) -> Response:
    try:
        async with asyncio.timeout(timeouts.total):
            response = await session.request(
                request.method,
                URL(request.url, encoded=True),  # sent as it was signed
                data=request.body,
                timeout=_timeout(timeouts),
                skip_auto_headers=_UNSIGNED if request.body is None and request.method != "GET" else None,
                allow_redirects=False,
                raise_for_status=False,  # an injected session may want it
                **options,  # type: ignore[arg-type] # headers, middlewares and a proxy
            )
            async with response:  # whose session has unpacked it
                limit = min(max_body, MAX_UNPACKED) if "Content-Encoding" in response.headers else max_body
                body = await _read(response.status, response.content, limit)
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
        cause = error.__cause__ if isinstance(error, _SentOnceError) and error.__cause__ else error
        raise _failure(error, cause, request.url, network) from error
    if response.status == WANTS_USER:
        raise proxy_refused(request.url, network)
    return Response(response.status, response.headers, body)


class OwnSessionTransport(_OwnConnector):
    """An `AsyncTransport` over `ClientSession.request`, for an aiohttp without the inner functions."""

    _session: aiohttp.ClientSession | None = None

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        connector = self._opened()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=connector, connector_owner=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        proxy, headers = self._network.proxy(request.url), {"User-Agent": USER_AGENT, **request.headers}
        if proxy is not None and not request.url.startswith("https:"):
            headers |= proxy.headers
        return await _request_over(
            self._session,
            request,
            timeouts,
            max_body,
            self._network,
            headers=headers,
            middlewares=(_sent_once,),
            ssl=self._network.tls_for(request.url) or True,
            proxy=None if proxy is None else proxy.url,
            proxy_headers=None if proxy is None else proxy.headers,
        )

    async def aclose(self) -> None:
        await super().aclose()
        if self._session is not None:
            await self._session.close()


class InjectedSessionTransport:
    """An `AsyncTransport` over somebody else's session, with that session's settings."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        # The argument of a request replaces the session's own, which cannot be read in another way.
        self._middlewares = (*getattr(session, "_middlewares", ()), _sent_once)

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        """See `AsyncTransport`. Our headers replace the session's, which the signature does not cover."""
        if self._session.closed:
            raise ClientUnusable(_SESSION_CLOSED)
        running = asyncio.get_running_loop()
        if getattr(self._session, "_loop", running) is not running:  # cannot be asked in another way
            raise ClientUnusable(_SESSION_ELSEWHERE)

        async def ours(
            sent: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            # aiohttp refuses an `Authorization` beside the session's `auth` or an entry of `.netrc`.
            sent.headers.popall("Content-Type", None)
            sent.headers.update(request.headers)
            return await handler(sent)

        middlewares = (*self._middlewares, ours)
        return await _request_over(self._session, request, timeouts, max_body, None, middlewares=middlewares)

    async def aclose(self) -> None:
        """Leave the session to its owner."""
