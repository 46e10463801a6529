"""What the synchronous transports, of API calls and of storage, change in urllib3's connections.

`http.client` bounds each read, but not all reads together; it takes an interim response for the final one,
and some truncated responses for complete ones.
"""

from __future__ import annotations

import io
import math
import queue
import socket
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any, cast

_LARGEST_JOINED = 64 * 1024
"""Bytes of a body that is sent together with the head of its request."""


class Attempt:
    """Bounds the time that one request and its response take.

    Attributes:
        patience: Seconds that sending may stand still; for reading, the connection has a timeout.
        ends: When the attempt ends, on the monotonic clock.
        late: What has happened then.
        received: Called with each number of bytes that was received, and the moment at which waiting for them
            began, if not None.
    """

    received: Callable[[int, float], None] | None = None

    def __init__(self, patience: float, ends: float, late: str) -> None:
        self.patience = patience
        self.ends = ends
        self.late = late

    def left(self) -> float:
        """Return the seconds until the end, or raise `TimeoutError`."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(self.late)
        return left


current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
"""The attempt that the thread makes; None for requests of others, over an injected session."""


class _BoundedReader(io.RawIOBase):
    """Reads from a socket until the attempt ends, and knows whether the other side has closed it."""

    def __init__(self, connection: socket.socket, attempt: Attempt) -> None:
        self._connection = connection
        self._patience = self._timeout = connection.gettimeout() or math.inf
        self._file = cast("io.RawIOBase", connection.makefile("rb", buffering=0))
        self._attempt = attempt
        self.at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        timeout = min(self._attempt.left(), self._patience)
        if timeout != self._timeout:
            self._connection.settimeout(timeout)
            self._timeout = timeout
        begun = time.monotonic()
        try:
            count = self._file.readinto(buffer)
        except TimeoutError:
            self._attempt.left()
            raise
        self.at_end = count == 0
        if self._attempt.received is not None:
            self._attempt.received(count or 0, begun)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


_INTERIM = range(102, 200)
"""The statuses of responses that the final response follows. `http.client` skips 100, and 101 is final."""


class FinalResponse(HTTPResponse):
    """The final response to a request, which is read within the time of its attempt.

    `http.client` takes 103 Early Hints for the whole response. The connection would then be used again, and
    the next request would receive the response to this one. It also takes a response for complete whose
    connection ends in the head, or in place of a chunk.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._reader: _BoundedReader | None = None
        if attempt := current_attempt.get():
            self.fp.close()
            self._reader = _BoundedReader(sock, attempt)
            self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the heads of interim responses, and that of the final one."""
        super().begin()
        while self.status in _INTERIM:
            self.headers = self.msg = None  # type: ignore[assignment] # `begin` reads only if it is None
            super().begin()
        self._refuse_if(b"", truncated=True)

    def read(self, amt: int | None = None) -> bytes:
        """Read the body, or so many bytes of it."""
        try:
            data = super().read(amt)
        except ValueError as error:  # the size of a chunk is negative, which http.client does not check
            raise HTTPException(str(error)) from error
        self._refuse_if(data, truncated=self.chunked)
        return data

    def read1(self, n: int = -1) -> bytes:
        """Read what has come of the body."""
        data = super().read1(n)
        self._refuse_if(data, truncated=self.chunked and not data)
        return data

    def _refuse_if(self, data: bytes, *, truncated: bool) -> None:
        """Raise `IncompleteRead` if the connection has ended where only a truncated response ends."""
        if truncated and self._reader is not None and self._reader.at_end:
            self.close()
            raise IncompleteRead(data)


class _Sends:
    """Mixin for urllib3's connections: how requests are sent.

    The head is sent together with the body. `http.client` sends them one after the other: two packets, or two
    TLS records, for which the server wakes up twice. Large bodies take several packets in any case, and are
    not copied. Sending may take as long as a response; urllib3 bounds it by the time to connect.
    """

    sock: socket.socket | None
    _head: bytes | None = None  # of the request that is being sent with its body; empty: still to come

    def connect(self) -> None:
        cast("Any", super()).connect()  # with TLS, and a proxy's response
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
        head, self._head = self._head, None  # sending may open the connection, and send to a proxy before
        cast("Any", super()).send(head + data if head else data)


def add_deadline(pool: Any) -> None:
    """Let responses that are read over the pool's connections keep the deadline of our attempts."""
    kind: Any = getattr(pool, "ConnectionCls", None)
    if getattr(kind, "response_class", None) is not HTTPResponse:  # has one, or a class of its owner
        return
    pool.ConnectionCls = type(f"Timed{kind.__name__}", (_Sends, kind), {"response_class": FinalResponse})
    for idle in list(pool.pool.queue):
        if idle is not None:
            idle.response_class = FinalResponse


class IdleConnections:
    """The idle connections of a urllib3 pool, of which the last one is taken first, instead of a `LifoQueue`.

    Ctrl-C in the moment in which that has taken its lock leaves it locked: the next call would wait for ever.
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
        """Return the number of idle connections."""
        return len(self.queue)
