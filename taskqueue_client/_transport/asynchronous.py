"""The asynchronous client's transports over `ClientSession.request`, and the choice of its transport."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Protocol

import aiohttp
from yarl import URL

from taskqueue_client._protocol.api_responses import (
    MAX_RESPONSE,
    Response,
    ResponseRefused,
    TransportFailed,
    unpacked,
)
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.threads_and_tasks import running_loop
from taskqueue_client._protocol.wire import Request
from taskqueue_client.errors import ClientUnusable

from .async_connections import POOL_SIZE, ConnectorTransport, connection_failure, is_supported
from .network import USER_AGENT, WANTS_USER, NetworkSettings, proxy_refused

_SESSION_CLOSED = "the session of this AsyncQueue is closed: make both anew, or close the session later"
_SESSION_ELSEWHERE = "the session of this AsyncQueue belongs to another event loop: make both for each loop"


class AsyncTransport(Protocol):
    """Sends requests, and follows no redirects."""

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        """Send a request once, and return the response.

        Args:
            request: The request.
            timeouts: The timeouts of the attempt.
            max_body: The most bytes of the body, also after decompression.

        Raises:
            TransportFailed: There is no response, or it is incomplete.
            ResponseRefused: The body is too large, or compressed in an unknown way.
            ClientUnusable: The transport is closed, or belongs to another event loop.
        """
        ...

    async def aclose(self) -> None:
        """Close the transport and its own connections. It cannot be used afterwards."""
        ...


def own_transport(network: NetworkSettings) -> AsyncTransport:
    """Return a transport that opens its own connections."""
    return ConnectorTransport(network) if is_supported() else OwnSessionTransport(network)


async def _read(status: int, body: aiohttp.StreamReader, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while piece := await body.readany():
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise ResponseRefused.too_large(status, limit)
    return b"".join(pieces)


class _SentOnceError(aiohttp.ClientError):
    """A connection broke. After an error of this class, aiohttp does not send the request again."""


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending GET and PUT a second time when the connection breaks.

    The second request would not be signed afresh, and nobody would know that the first one may have taken
    effect.
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
                raise_for_status=False,  # whatever an injected session has set
                auto_decompress=False,  # aiohttp takes an incomplete compressed body for a complete one
                **options,  # type: ignore[arg-type] # headers, middlewares and a proxy
            )
            async with response:
                body = await _read(response.status, response.content, max_body)
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
        cause = error.__cause__ if isinstance(error, _SentOnceError) and error.__cause__ else error
        failure = connection_failure(error, cause, request.url, network)
        if network is None and isinstance(failure, TransportFailed):
            failure.is_unsent = False  # a middleware of an injected session may retry
        raise failure from error
    if response.status == WANTS_USER:
        raise proxy_refused(request.url, network)
    if "Content-Encoding" in response.headers:
        body = unpacked(response.status, response.headers, body, max_body)
    forwarder = "" if network is None else network.forwarding_proxy(request.url)
    return Response(response.status, response.headers, body, forwarder)


class OwnSessionTransport(ConnectorTransport):
    """An `AsyncTransport` over `ClientSession.request`, if `is_supported()` is false."""

    _limit = POOL_SIZE
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
        # The `middlewares` of a request replace those of the session, so these are passed on. They have no
        # public attribute.
        self._middlewares = (*getattr(session, "_middlewares", ()), _sent_once)

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        """See `AsyncTransport`. Our headers replace the session's, which the signature does not cover."""
        if self._session.closed:
            raise ClientUnusable(_SESSION_CLOSED)
        running = running_loop()
        if getattr(self._session, "_loop", running) is not running:  # there is no public attribute
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
        """Do nothing: the session is closed by its owner."""
