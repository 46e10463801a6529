"""The connections to storage: their timeouts, their minimum rate, and their cancellation."""

from __future__ import annotations

import math
import re
import socket
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from http.client import IncompleteRead
from typing import Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

from urllib3 import HTTPConnectionPool, HTTPResponse, Timeout
from urllib3.exceptions import HTTPError, ProtocolError, ProxyError, SSLError

from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._transport.network import TUNNEL_REFUSED, WANTS_USER, NetworkSettings, proxy_refused
from taskqueue_client._transport.sync_connections import Attempt, FinalResponse, current_attempt

from .artifact_errors import StorageFailed, storage_refused

_PIECE = 64 * 1024
"""Bytes that are passed to TLS at a time: all of them must be sent within the read timeout."""

_LONGEST = 3600.0
"""Seconds that sending a small body may take if there is no minimum rate."""

_URL = re.compile(r"https?://[\x21-\x7e]+")


class Limits(NamedTuple):
    """Timeouts and the minimum rate of one attempt.

    Attributes:
        connect: Seconds until a connection is established.
        read: Seconds from one part of the response, or of a body that is sent, to the next.
        min_rate: The lowest allowed rate of the content, in bytes per second; 0 for any rate.
        window: Seconds over which the rate is measured, and within which the head of the response must come.
    """

    connect: float
    read: float
    min_rate: float = 1000.0
    window: float = 60.0

    def timeouts(self, size: int) -> Timeouts:
        """Return the timeouts of an attempt that sends `size` bytes at once."""
        sending = size / self.min_rate if self.min_rate else _LONGEST
        return Timeouts(self.connect, self.read, self.connect + max(self.window, self.read) + sending)


class TransferCanceled(Exception):
    """Stops work on a thread whose transfer was canceled."""


class Cancellation:
    """Stops a transfer that runs on another thread, also while it waits for data."""

    def __init__(self) -> None:
        self._canceled = False
        self._sockets: set[socket.socket] = set()

    def cancel(self) -> None:
        """Stop the transfer soon. May be called from any thread, and repeatedly."""
        self._canceled = True
        for watched in self._sockets.copy():
            _shut_down(watched)

    @contextmanager
    def watching(self, watched: socket.socket) -> Generator[None]:
        """Shut `watched` down on `cancel`."""
        self._sockets.add(watched)
        try:
            self.check()  # only now: a `cancel` that comes later finds the socket
            yield
        finally:
            self._sockets.discard(watched)

    def check(self) -> None:
        """Raise `TransferCanceled` if the transfer was canceled."""
        if self._canceled:
            raise TransferCanceled


def _shut_down(watched: socket.socket) -> None:
    with suppress(OSError):  # closed already
        # not SSLSocket's own, after which its writes would leave unencrypted
        socket.socket.shutdown(watched, socket.SHUT_RDWR)


class StorageAttempt(Attempt):
    """A request in progress: its exact target, its connection, and its rate."""

    def __init__(self, method: str, url: str, limits: Limits, cancel: Cancellation) -> None:
        self._head_timeout = max(limits.window, limits.read)
        late = f"the response did not come within {self._head_timeout:g} s"
        super().__init__(limits.read, time.monotonic() + self._head_timeout, late)  # of a proxy's response
        self.method = method
        self.url = url
        self.limits = limits
        self._cancellation = cancel
        self._cleanup = ExitStack()
        self._bytes = 0
        self._seconds = 0.0
        self._unsent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def open(
        self,
        pool: HTTPConnectionPool,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes | memoryview] | None = None,
    ) -> HTTPResponse:
        """Send the request, and return the response when its head is received.

        The connection is closed at the end of the attempt, unless the response was read to its end.
        """
        token = current_attempt.set(self)  # for the connection that urllib3 chooses
        try:
            with network_errors(self.method, self.url):
                response: Any = pool.urlopen(
                    self.method,
                    self.url.partition("?")[0],
                    body=body,  # type: ignore[arg-type] # memoryviews are accepted, too
                    headers=headers,
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    timeout=Timeout(connect=self.limits.connect, read=self.limits.read),
                    preload_content=False,
                    decode_content=False,
                )
        finally:
            current_attempt.reset(token)
        self._cleanup.callback(_close, response)
        return cast("HTTPResponse", response)

    def read(self, response: HTTPResponse, most: int) -> bytes:
        """Return the body of a response, cut off after `most` bytes."""
        with network_errors(self.method, self.url):
            received = response.read(most)
            self.end_of_head()
        return received

    def begin(self, connection: Any) -> None:
        """Send the request over the connection that urllib3 has chosen."""
        self.ends = math.inf
        connection.timeout = self.limits.read  # until now it was the timeout of connecting
        connection.sock.settimeout(self.limits.read)
        self._cleanup.enter_context(self._cancellation.watching(connection.sock))

    def expect_response(self) -> None:
        """Bound the time until `end_of_head`."""
        self.ends = time.monotonic() + self._head_timeout

    def end_of_head(self) -> None:
        """End the time limit of the head: the rate of the body is measured as it is received."""
        self.ends = math.inf
        self.received = self._measure

    def send(self, send: Callable[[memoryview], int], data: Any, piece: int) -> None:
        """Send data by pieces, and measure the rate."""
        view = memoryview(data)
        self._unsent = len(view)
        while self._unsent:
            begun = time.monotonic()
            sent = send(view[-self._unsent :][:piece])
            self._unsent -= sent
            self._measure(sent, begun)

    def check_sent(self) -> None:
        """Check that all of the body was sent: urllib3 reads a response also if that fails."""
        if self._unsent:
            reason = "the connection was closed before the whole body was sent"
            raise StorageFailed(self.method, self.url, reason)

    def _measure(self, count: int, begun: float) -> None:
        """Note that `count` bytes were moved since the moment `begun`."""
        self._bytes += count
        self._seconds += time.monotonic() - begun
        if self._seconds >= self.limits.window:
            if self._bytes < self.limits.min_rate * self._seconds:
                rate, window = self.limits.min_rate, self.limits.window
                reason = f"too slow: fewer than {rate:g} bytes per second for {window:g} s"
                raise StorageFailed(self.method, self.url, reason)
            self._bytes, self._seconds = 0, 0.0


def _current() -> StorageAttempt:
    return cast("StorageAttempt", current_attempt.get())


class _Connection:
    """Mixin for urllib3's connections: exact targets, measured sending, and cancellation."""

    response_class = FinalResponse
    sock: Any
    connect: Callable[[], None]
    proxy_is_forwarding: bool

    def request(self, *args: Any, **options: Any) -> None:
        if self.sock is None:
            self.connect()
        _current().begin(self)
        cast("Any", super()).request(*args, **options)

    def putrequest(self, method: str, _url: str, **options: Any) -> None:
        """Send the target exactly as it was signed: urllib3 would normalize it, and log the signature."""
        url = _current().url
        if not self.proxy_is_forwarding:
            url = target_of(url)
        cast("Any", super()).putrequest(method, url, **{**options, "skip_accept_encoding": True})

    def send(self, data: Any) -> None:
        """Send data, and measure the rate, unlike `sendall`, which has one timeout for all of `data`."""
        piece = len(data) if type(self.sock) is socket.socket else _PIECE
        _current().send(self.sock.send, data, piece)

    def getresponse(self) -> Any:
        _current().expect_response()
        return cast("Any", super()).getresponse()


@cache
def connection_class(kind: type) -> type:
    """Return a subclass of a connection of urllib3 that its `StorageAttempt` measures and cancels."""
    return type("StorageConnection", (_Connection, kind), {})


def _close(response: HTTPResponse) -> None:
    if not response.isclosed():
        response.close()


@contextmanager
def network_errors(method: str, url: str) -> Generator[None]:
    """Raise errors of the network and of urllib3 as `StorageFailed`."""
    try:
        yield
    except (OSError, HTTPError) as error:
        cause = _cause(error)
        if str(cause).startswith(TUNNEL_REFUSED):
            reason = proxy_refused(url, NetworkSettings()).reason
            raise storage_refused(method, url, WANTS_USER, {}, reason) from error
        raise StorageFailed(method, url, _reason(cause)) from error


def _reason(cause: BaseException) -> str:
    if not isinstance(cause, IncompleteRead):
        return f"{type(cause).__name__}: {cause}".rstrip(": \r\n")
    if cause.expected is None:  # in its head, or in place of a chunk
        return "the response is incomplete"
    return f"the response is incomplete: {cause.expected} bytes are missing at its end"


def _cause(error: BaseException) -> BaseException:
    """Return the error that urllib3's error is about."""
    found: object = error.__cause__
    if isinstance(error, (ProtocolError, SSLError)):
        found = error.args[-1]
    elif isinstance(error, ProxyError):
        found = error.original_error
    return _cause(found) if isinstance(found, Exception) and isinstance(error, HTTPError) else error


def origin_of(method: str, url: str) -> str:
    """Return scheme, host and port of a URL."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if _URL.fullmatch(url) and parts.hostname and parts.port != 0:
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    raise StorageFailed(method, url, "expected an http or https URL with a host")


def target_of(url: str) -> str:
    """Return the path and the query, as they were signed."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
