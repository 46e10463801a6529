"""The connections to storage: their timeouts, their minimum rate, and their cancellation."""

from __future__ import annotations

import http.client
import io
import re
import socket
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

from urllib3 import HTTPConnectionPool, HTTPResponse, Timeout
from urllib3.exceptions import HTTPError, IncompleteRead, ProtocolError, ProxyError, SSLError

from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._transport.network import FinalResponse

from .artifact_errors import StorageFailed

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


class Deadlines:
    """Shuts connections down at a deadline; one thread for all of them.

    There is no lock (see `Storage`): the thread that takes a connection out of `_due` decides whether it was
    in time. A second thread, which a race may start, does no harm.
    """

    _IDLE = 10.0
    _CLOSING = 1.0  # seconds: a connection that was opened meanwhile keeps the thread

    def __init__(self) -> None:
        self._changes: SimpleQueue[None] = SimpleQueue()
        self._due: dict[socket.socket, float] = {}
        self._thread: Thread | None = None
        self._is_watching = False
        self._closing = False

    def close(self) -> None:
        """End the thread, unless a connection has a deadline; a later connection starts another one."""
        self._closing = True
        if self._thread is not None and not self._due:
            self._changes.put(None)
            self._thread.join(self._CLOSING)

    @contextmanager
    def shutting_down(self, watched: socket.socket, seconds: float) -> Generator[None]:
        """Shut a connection down unless the block ends in time."""
        self._closing = False
        self._due[watched] = time.monotonic() + seconds
        try:
            self._wake(seconds)
            yield
        finally:
            if self._due.pop(watched, None) is None:
                reason = f"the response did not come within {seconds:g} s"
                raise TimeoutError(reason)

    def _wake(self, seconds: float) -> None:
        """Let the thread, or a new one, know of a connection that has just been added."""
        if not self._is_watching:
            thread = Thread(target=self._run, name="storage-deadlines", daemon=True)
            thread.start()
            self._thread = thread
        elif seconds < self._IDLE:
            self._changes.put(None)

    def _run(self) -> None:
        self._is_watching, is_idle = True, False
        while self._due or not (is_idle or self._closing):
            is_idle = not self._due
            with suppress(Empty):
                self._changes.get(timeout=self._shut_down_late())
        self._is_watching = False
        if self._due:  # added before it was known that this thread ends
            self._run()

    def _shut_down_late(self) -> float:
        """Shut down connections after their deadline; return the seconds until the next deadline."""
        now, seconds = time.monotonic(), self._IDLE
        for watched, due in self._due.copy().items():
            if due > now:
                seconds = min(seconds, due - now)
            elif self._due.pop(watched, None) is not None:
                _shut_down(watched)
        return seconds


class StorageAttempt:
    """A request in progress: its exact target, its connection, and its rate."""

    def __init__(
        self, method: str, url: str, limits: Limits, deadlines: Deadlines, cancel: Cancellation
    ) -> None:
        self.method = method
        self.url = url
        self.limits = limits
        self._deadlines = deadlines
        self._cancellation = cancel
        self._connection: Any = None
        self._cleanup = ExitStack()
        self._bytes = 0
        self._seconds = 0.0
        self._head = ExitStack()
        self._unsent = 0
        self.is_receiving = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._cleanup, network_errors(self.method, self.url):
            self._head.close()

    def open(
        self,
        pool: HTTPConnectionPool,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes | memoryview] | None = None,
    ) -> HTTPResponse:
        """Send the request, and return the response when its head is received.

        The connection is closed at the end of the attempt, unless the response was read to its end.
        """
        token = _attempt.set(self)  # tells the connection that urllib3 chooses to which attempt it belongs
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
            _attempt.reset(token)
        self._cleanup.callback(_close, response)
        return cast("HTTPResponse", response)

    def read(self, response: HTTPResponse, most: int) -> bytes:
        """Return the body of a response, cut off after `most` bytes."""
        with network_errors(self.method, self.url):
            received = response.read(most)
            self.end_of_head()
        return received

    def begin(self, connection: Any) -> None:
        """Note the connection that urllib3 has chosen."""
        self._connection = connection
        connection.timeout = self.limits.read  # until now it was the timeout of connecting
        connection.sock.settimeout(self.limits.read)
        self._cleanup.enter_context(self._cancellation.watching(connection.sock))

    def expect_response(self) -> None:
        """Bound the time until `end_of_head`."""
        seconds = max(self.limits.window, self.limits.read)
        self._head.enter_context(self._deadlines.shutting_down(self._connection.sock, seconds))

    def end_of_head(self) -> None:
        """End the time limit of the head: the rate of the body is measured as it is received."""
        with network_errors(self.method, self.url):
            self._head.close()
        self.is_receiving = True

    def send(self, send: Callable[[memoryview], int], data: Any, piece: int) -> None:
        """Send data by pieces, and measure the rate."""
        view = memoryview(data)
        self._unsent = len(view)
        while self._unsent:
            begun = time.monotonic()
            sent = send(view[-self._unsent :][:piece])
            self._unsent -= sent
            self.measure(sent, begun)

    def check_sent(self) -> None:
        """Check that all of the body was sent: urllib3 reads a response also if that fails."""
        if self._unsent:
            reason = "the connection was closed before the whole body was sent"
            raise StorageFailed(self.method, self.url, reason)

    def measure(self, count: int, begun: float) -> None:
        """Note that `count` bytes were moved since the moment `begun`."""
        self._bytes += count
        self._seconds += time.monotonic() - begun
        if self._seconds >= self.limits.window:
            if self._bytes < self.limits.min_rate * self._seconds:
                rate, window = self.limits.min_rate, self.limits.window
                reason = f"too slow: fewer than {rate:g} bytes per second for {window:g} s"
                raise StorageFailed(self.method, self.url, reason)
            self._bytes, self._seconds = 0, 0.0


_attempt: ContextVar[StorageAttempt] = ContextVar("attempt")


class _MeasuredReader(io.RawIOBase):
    """Reads from a socket, and measures the rate, also of chunk sizes and trailers."""

    def __init__(self, connection: socket.socket, attempt: StorageAttempt) -> None:
        self._file = cast("io.RawIOBase", connection.makefile("rb", buffering=0))
        self._attempt = attempt
        self.at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        begun = time.monotonic()
        count = self._file.readinto(buffer)
        self.at_end = count == 0
        if self._attempt.is_receiving:
            self._attempt.measure(count or 0, begun)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(FinalResponse):
    """A response whose rate is measured, and which is incomplete without its last chunk."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self._reader = _MeasuredReader(sock, _attempt.get())
        self.fp = io.BufferedReader(self._reader)

    def read1(self, n: int = -1) -> bytes:
        block = super().read1(n)
        if self.chunked and not block and self._reader.at_end:  # http.client mistakes it for the last chunk
            raise http.client.IncompleteRead(block)
        return block


class _Connection:
    """Mixin for urllib3's connections: exact targets, measured sending, and cancellation."""

    response_class = _Response
    sock: Any
    connect: Callable[[], None]
    proxy_is_forwarding: bool

    def request(self, *args: Any, **options: Any) -> None:
        if self.sock is None:
            self.connect()
        _attempt.get().begin(self)
        cast("Any", super()).request(*args, **options)

    def putrequest(self, method: str, _url: str, **options: Any) -> None:
        """Send the target exactly as it was signed: urllib3 would normalize it, and log the signature."""
        url = _attempt.get().url
        if not self.proxy_is_forwarding:
            url = target_of(url)
        cast("Any", super()).putrequest(method, url, **{**options, "skip_accept_encoding": True})

    def send(self, data: Any) -> None:
        """Send data, and measure the rate, unlike `sendall`, which has one timeout for all of `data`."""
        piece = len(data) if type(self.sock) is socket.socket else _PIECE
        _attempt.get().send(self.sock.send, data, piece)

    def getresponse(self) -> Any:
        _attempt.get().expect_response()
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
        raise StorageFailed(method, url, _reason(_cause(error))) from error


def _reason(cause: BaseException) -> str:
    if isinstance(cause, IncompleteRead) and cause.expected is not None:  # pyright: ignore[reportUnnecessaryComparison] # it is None for a chunk
        return f"{cause.expected} bytes are missing at its end"
    return f"{type(cause).__name__}: {cause}".rstrip(": \r\n")


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
