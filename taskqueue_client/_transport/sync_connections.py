"""Subclasses of urllib3's connections, for API calls and for storage.

`http.client` bounds each read, but not all reads together; it treats an interim response as the final one,
and some truncated responses as complete.
"""

from __future__ import annotations

import errno
import io
import math
import os
import queue
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from .connection_errors import TooLate, TooSlow

if TYPE_CHECKING:
    from taskqueue_client._protocol.retry import RetryPolicy

_LARGEST_JOINED = 64 * 1024  # bytes of a body that is sent together with the head of its request

_PIECE = 64 * 1024  # bytes that are passed to TLS at a time: all of them must be sent within the read timeout


class Attempt:
    """Bounds the time that one request and its response take.

    Attributes:
        patience: Seconds that sending may stand still; for reading, the connection has a timeout.
        ends: When the attempt ends, on the monotonic clock.
        late: The text of the `TooLate` that is raised then.
    """

    def __init__(self, patience: float, ends: float, late: str) -> None:
        self.patience = patience
        self.ends = ends
        self.late = late

    def left(self) -> float:
        """Return the seconds until the end, or raise `TooLate`."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TooLate(self.late)
        return left

    def received(self, count: int, begun: float) -> None:
        """Note that `count` bytes were received, and that waiting for them began at the moment `begun`."""


current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
"""The attempt that the thread makes; None for requests that others send over an injected session."""

_TLS_RECORD = 16 * 1024  # the most bytes that TLS sends, and returns, at a time (RFC 8446, 5.1)


class _BoundedReader(io.RawIOBase):
    """Reads from a socket until the attempt ends, and knows whether the other side has closed it."""

    def __init__(self, connection: socket.socket, attempt: Attempt) -> None:
        self._connection = connection
        self._patience = self._timeout = connection.gettimeout() or math.inf
        self._file = cast("io.RawIOBase", connection.makefile("rb", buffering=0))
        self._attempt = attempt
        self._failure: OSError | None = None  # raised by the next read
        self.at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._failure is not None:
            raise self._failure
        timeout = min(self._attempt.left(), self._patience)
        if timeout != self._timeout:
            self._connection.settimeout(timeout)
            self._timeout = timeout
        begun = time.monotonic()
        try:
            count = self._file.readinto(buffer) or 0
        except TimeoutError:
            self._attempt.left()
            raise
        self.at_end = count == 0
        if count and len(buffer) > _TLS_RECORD and isinstance(self._connection, ssl.SSLSocket):
            count += self._read_further_records(memoryview(buffer)[count:])
        self._attempt.received(count, begun)
        return count

    def _read_further_records(self, buffer: memoryview) -> int:
        """Read further records of TLS that have arrived: to pass them on one at a time takes long."""
        left, timeout = buffer, self._connection.gettimeout()
        self._connection.settimeout(0)
        try:
            while left and (count := self._connection.recv_into(left)):
                left = left[count:]
        except ssl.SSLWantReadError:
            pass  # there are no more for now
        except OSError as error:
            self._failure = error
        finally:
            self._connection.settimeout(timeout)
        return len(buffer) - len(left)

    def close(self) -> None:
        self._file.close()
        super().close()


_INTERIM = range(102, 200)
"""The statuses of responses that the final response follows. `http.client` skips 100, and 101 is final."""

_MOST_TRAILERS, _LONGEST_TRAILER = 100, 65536
"""How many trailers of how many bytes are accepted: as many as `http.client` accepts of headers."""


class FinalResponse(HTTPResponse):
    """The final response to a request, which is read within the time of its attempt.

    `http.client` treats 103 Early Hints as the whole response. The connection would then be used again, and
    the next request would receive the response to this one. It also treats a response as complete if the
    connection ends in the head, or where a chunk should begin.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._reader: _BoundedReader | None = None
        if attempt := current_attempt.get():
            self.fp.close()
            self._reader = _BoundedReader(sock, attempt)
            self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the heads of interim responses and the head of the final response."""
        super().begin()
        while self.status in _INTERIM:
            self.headers = self.msg = None  # type: ignore[assignment] # `begin` reads only if it is None
            super().begin()
        self._refuse_if(b"", truncated=True)

    def read(self, amt: int | None = None) -> bytes:
        data = super().read(amt)
        self._refuse_if(data, truncated=self.chunked)
        return data

    def read1(self, n: int = -1) -> bytes:
        data = super().read1(n)
        self._refuse_if(data, truncated=self.chunked and not data)
        return data

    def _read_next_chunk_size(self) -> int:
        """Return the size of a chunk. `http.client` treats a wrong size as the end of the connection."""
        try:
            size: int = cast("Any", super())._read_next_chunk_size()  # noqa: SLF001 - `read` and `read1` call it
        except ValueError:
            size = -1
        if size < 0:
            self._refuse_if(b"", truncated=True)
            raise HTTPException("the size of a chunk is not valid")
        return size

    def _read_and_discard_trailer(self) -> None:
        """Read the trailers. `http.client` reads any number of them, as long as the server sends some."""
        for _ in range(_MOST_TRAILERS):
            if self.fp.readline(_LONGEST_TRAILER) in {b"\r\n", b"\n", b""}:
                return
        raise HTTPException(f"got more than {_MOST_TRAILERS} trailers")

    def _refuse_if(self, data: bytes, *, truncated: bool) -> None:
        """Raise `IncompleteRead` if the connection has ended and the response is `truncated` in that case."""
        if truncated and self._reader is not None and self._reader.at_end:
            self.close()
            raise IncompleteRead(data)


@contextmanager
def _broken_pipes() -> Generator[None]:
    """Raise a BrokenPipeError if the server has closed the connection: urllib3 then reads its response.

    Over TLS, Python 3.11.7 and 3.12.1 raise an SSLEOFError, and a refusal of a large body would be lost.
    """
    try:
        yield
    except ssl.SSLEOFError as error:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error


class _Sends:
    """Mixin for urllib3's connections: how requests are sent.

    The head is sent together with the body. `http.client` sends them one after the other: two packets, or two
    TLS records, for which the server wakes up twice. Large bodies take several packets in any case, and are
    not copied. The read timeout bounds sending, too; in urllib3, the connect timeout does.
    """

    sock: socket.socket | None
    _head: bytes | None = None  # of a request to be sent together with its body; empty until it is known

    def connect(self) -> None:
        cast("Any", super()).connect()  # includes TLS, and the response of a proxy
        self._bound_sending()

    def putrequest(self, *args: Any, **options: Any) -> None:
        self._bound_sending()
        cast("Any", super()).putrequest(*args, **options)

    def _bound_sending(self) -> None:
        attempt = current_attempt.get()
        if self.sock is not None and attempt is not None:
            self.sock.settimeout(min(attempt.patience, attempt.left()))

    def request(self, method: str, url: str, body: Any = None, *args: Any, **options: Any) -> None:
        self._head = b"" if isinstance(body, bytes) and 0 < len(body) <= _LARGEST_JOINED else None
        try:
            cast("Any", super()).request(method, url, body, *args, **options)
        finally:
            self._head = None

    def send(self, data: Any) -> None:
        if self._head == b"":
            self._head = data
            return
        head, self._head = self._head, None  # sending may open the connection, which calls `send` for a proxy
        with _broken_pipes():
            cast("Any", super()).send(head + data if head else data)


def add_deadline(pool: Any) -> None:
    """Let requests and responses over a pool's connections keep the deadlines of our attempts."""
    kind: Any = getattr(pool, "ConnectionCls", None)
    if getattr(kind, "response_class", None) is not HTTPResponse:  # has deadlines, or its owner's class
        return
    pool.ConnectionCls = type(f"Timed{kind.__name__}", (_Sends, kind), {"response_class": FinalResponse})
    for idle in list(pool.pool.queue):
        if idle is not None:
            idle.response_class = FinalResponse


class IdleConnections:
    """The idle connections of a urllib3 pool, last in, first out, instead of a `LifoQueue`.

    A Ctrl-C just after a `LifoQueue` has taken its lock leaves it locked: the next call would wait for ever.
    """

    def __init__(self, size: int) -> None:
        self.queue: deque[Any] = deque()
        self._size = size

    def get(self, block: bool = False, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002, ARG002 - as LifoQueue
        """Return an idle connection, or raise `queue.Empty`, after which urllib3 opens a new one."""
        try:
            return self.queue.pop()
        except IndexError:
            raise queue.Empty from None

    def put(self, connection: Any, block: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002 - as LifoQueue
        """Add a connection; raise `queue.Full` if there are enough. urllib3 then closes it."""
        if len(self.queue) >= self._size:
            raise queue.Full
        self.queue.append(connection)

    def qsize(self) -> int:
        return len(self.queue)


# Storage


class TransferCanceled(Exception):
    """Stops work on a thread whose transfer was canceled."""


class Cancellation:
    """Stops a transfer that runs on another thread, also while it waits for data.

    Attributes:
        attempts: The requests in progress.
    """

    def __init__(self) -> None:
        self.attempts: set[StorageAttempt] = set()
        self._canceled = False

    def cancel(self) -> None:
        """Stop the transfer soon. May be called from any thread, and repeatedly."""
        self._canceled = True
        for each in self.attempts.copy():
            each.shut_down()

    def check(self) -> None:
        """Raise `TransferCanceled` if the transfer was canceled."""
        if self._canceled:
            raise TransferCanceled


class StorageAttempt(Attempt):
    """A request to storage: its exact URL, its rate, and its socket.

    Attributes:
        policy: The timeouts and the minimum rate.
        unsent: How many bytes of the last data were not sent: urllib3 may return a response nevertheless.
    """

    def __init__(self, url: str, policy: RetryPolicy, cancellation: Cancellation) -> None:
        self._head_timeout = max(policy.min_rate_window, policy.read_timeout)
        late = f"the response did not come within {self._head_timeout:g} s"
        # Until the request is sent, these bound a proxy's response to CONNECT.
        super().__init__(policy.read_timeout, time.monotonic() + self._head_timeout, late)
        self.url = url
        self.unsent = 0
        self.policy = policy
        self._cancellation = cancellation
        self._socket: socket.socket | None = None
        self._is_measured = False
        self._bytes = 0
        self._seconds = 0.0

    def open(self, pool: Any, method: str, headers: Mapping[str, str], body: Any) -> Any:
        """Send the request over a pool of urllib3; return the response when its head is received."""
        from urllib3 import Timeout  # noqa: PLC0415 - asynchronous clients do without

        token = current_attempt.set(self)  # for the connection that urllib3 chooses
        try:
            return pool.urlopen(
                method,
                self.url.partition("?")[0],
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=Timeout(connect=self.policy.connect_timeout, read=self.patience),
                preload_content=False,
                decode_content=False,
            )
        finally:
            current_attempt.reset(token)

    def begin(self, connection: Any) -> None:
        """Send the request over the connection that urllib3 has chosen."""
        self.ends = math.inf
        connection.timeout = self.patience  # until now it was the timeout of connecting
        connection.sock.settimeout(self.patience)
        self._socket = connection.sock
        self._cancellation.attempts.add(self)
        self._cancellation.check()  # only now: a `cancel` that comes later finds the socket

    def shut_down(self) -> None:
        """End the connection. May be called from any thread."""
        if self._socket is not None:
            with suppress(OSError):  # closed already
                # after SSLSocket.shutdown, data would be sent unencrypted
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def expect_response(self) -> None:
        """Bound the time until `end_of_head`."""
        self.ends = time.monotonic() + self._head_timeout

    def end_of_head(self) -> None:
        """End the time limit of the head: the rate of the body is measured as it is received."""
        self.ends = math.inf
        self._is_measured = True

    def received(self, count: int, begun: float) -> None:
        if self._is_measured:
            self._measure(count, begun)

    def send(self, send: Callable[[memoryview], int], data: Any, piece: int) -> None:
        view = memoryview(data)
        self.unsent = len(view)
        while self.unsent:
            begun = time.monotonic()
            sent = send(view[-self.unsent :][:piece])
            self.unsent -= sent
            self._measure(sent, begun)

    def _measure(self, count: int, begun: float) -> None:
        """Note that `count` bytes were transferred since the moment `begun`."""
        self._bytes += count
        self._seconds += time.monotonic() - begun
        window, rate = self.policy.min_rate_window, self.policy.min_rate
        if self._seconds >= window:
            if self._bytes < rate * self._seconds:
                raise TooSlow(f"too slow: fewer than {rate:g} bytes per second for {window:g} s")
            self._bytes, self._seconds = 0, 0.0


def _storage_attempt() -> StorageAttempt:
    return cast("StorageAttempt", current_attempt.get())


class _ToStorage:
    """Mixin for urllib3's connections: exact targets, measured sending, and cancellation."""

    response_class = FinalResponse
    sock: Any
    connect: Callable[[], None]
    proxy_is_forwarding: bool

    def request(self, *args: Any, **options: Any) -> None:
        if self.sock is None:
            self.connect()
        _storage_attempt().begin(self)
        cast("Any", super()).request(*args, **options)

    def putrequest(self, method: str, _url: str, **options: Any) -> None:
        """Send the target exactly as it was signed: urllib3 would normalize it, and log the signature."""
        url = _storage_attempt().url
        if not self.proxy_is_forwarding:
            parts = urlsplit(url)
            url = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        cast("Any", super()).putrequest(method, url, **{**options, "skip_accept_encoding": True})

    def send(self, data: Any) -> None:
        """Send data, and measure the rate, unlike `sendall`, which has one timeout for all of `data`."""
        piece = len(data) if type(self.sock) is socket.socket else _PIECE
        with _broken_pipes():
            _storage_attempt().send(self.sock.send, data, piece)

    def getresponse(self) -> Any:
        _storage_attempt().expect_response()
        return cast("Any", super()).getresponse()


@cache
def storage_connection(kind: type) -> type:
    """Return a subclass of a connection of urllib3 that its `StorageAttempt` measures and cancels."""
    return type("StorageConnection", (_ToStorage, kind), {})
