"""The private functions of aiohttp that `ConnectorTransport` uses: those of its connector and its parser.

`tests/transport/test_aiohttp_inner.py` tests what this module expects of them, on the oldest and the newest
aiohttp. If `is_supported()` is false, `ClientSession.request` is used instead.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from functools import cache, lru_cache
from math import ceil

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from multidict import CIMultiDictProxy
from yarl import URL

from .network import Proxy

MAX_HEADERS = 32768
"""Bytes of one header line of a response: `Location` may hold a signed URL."""

_ROUNDED_FROM = 5.0
"""Seconds: longer timeouts are whole seconds, so that one settings object serves many requests."""


@cache
def is_supported() -> bool:
    """Return whether this version of aiohttp has these functions."""
    try:
        request = set(inspect.signature(aiohttp.ClientRequest).parameters)
        connect = set(inspect.signature(aiohttp.BaseConnector.connect).parameters)
        response = set(inspect.signature(ResponseHandler.set_response_params).parameters)
        members = ResponseHandler.read, ResponseHandler.start_timeout, ResponseHandler.should_close
    except (AttributeError, TypeError, ValueError):
        return False
    options = {"read_until_eof", "auto_decompress", "max_line_size", "max_field_size"}
    return (
        {"method", "url", "loop", "ssl", "proxy", "proxy_headers"} <= request
        and {"req", "traces", "timeout"} <= connect
        and options <= response
        and None not in members
    )


def destination(origin: str, proxy: Proxy | None, tls: ssl.SSLContext | None) -> aiohttp.ClientRequest:
    """Return what the connector connects to: a request of which only the address is used."""
    return aiohttp.ClientRequest(
        "GET",
        URL(origin),
        loop=asyncio.get_running_loop(),
        ssl=True if tls is None else tls,
        proxy=None if proxy is None else URL(proxy.url),
        proxy_headers=None if proxy is None else proxy.headers,
    )


async def connect(
    connector: aiohttp.BaseConnector, to: aiohttp.ClientRequest, seconds: float, total: float
) -> Connection:
    """Return a connection of the pool, or a new one, on which nothing has arrived unasked.

    Raises:
        aiohttp.ClientError: There is no connection.
        OSError: As above; a TimeoutError after so many seconds of connecting, or after `total` with the wait
            for the pool.
    """
    timeout = _timeout(seconds, total if total < _ROUNDED_FROM else float(ceil(total)))
    while True:
        connection = await connector.connect(to, [], timeout)
        protocol = connection.protocol
        if protocol is not None and not protocol.should_close:
            return connection
        connection.close()


@lru_cache(maxsize=64)
def _timeout(connect: float, total: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=total, sock_connect=connect)


def abort(connection: Connection) -> None:
    """Close a connection at once: what is waited for on it fails, or looks complete if it has no length."""
    if connection.transport is not None:
        connection.transport.abort()


def send(connection: Connection, data: bytes) -> None:
    """Send a request, and expect its response.

    Raises:
        aiohttp.ServerDisconnectedError: The connection was closed meanwhile.
    """
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None:
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(
        read_until_eof=True,
        auto_decompress=False,  # it would not be bounded
        max_line_size=MAX_HEADERS,
        max_field_size=MAX_HEADERS,
    )
    transport.write(data)


async def receive_head(
    connection: Connection,
) -> tuple[int, CIMultiDictProxy[str], aiohttp.StreamReader]:
    """Return status, headers and body of the response.

    Raises:
        aiohttp.ClientError: The response is incomplete.
        aiohttp.http_exceptions.HttpProcessingError: The response is not HTTP.
    """
    protocol = connection.protocol
    if protocol is None:
        raise aiohttp.ServerDisconnectedError
    while True:
        message, body = await protocol.read()
        if message.code >= 200:  # noqa: PLR2004 - until then, there is more to come
            return message.code, message.headers, body


def limit_pauses(connection: Connection, seconds: float) -> None:
    """Let the reading of the body fail with a TimeoutError when nothing arrives for so many seconds."""
    if connection.protocol is not None:
        connection.protocol.read_timeout = seconds
        connection.protocol.start_timeout()


def give_back(connection: Connection) -> None:
    """Return a connection to the pool after a response, unless it is still sending: the response came early.

    Raises:
        aiohttp.ClientOSError: The connection broke in a body without length, which then looks complete.
    """
    protocol, transport = connection.protocol, connection.transport
    if protocol is not None and isinstance(broken := protocol.exception(), aiohttp.ClientOSError):
        raise broken
    if transport is None or transport.get_write_buffer_size():
        connection.close()
    else:
        connection.release()
