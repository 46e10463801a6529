"""Small HTTP/1.1 requests with small answers, from an event loop, in a third of aiohttp's processor time.

What aiohttp spends the rest on is what they do not need: redirects, cookies, proxies, compressed and
streamed bodies. A worker makes half a dozen of them for each run.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] # tuple without items

from ._http import Address, Arriving, Received, Sent, UnfitAnswer, written

KEPT_IDLE = 15.0
"""Seconds that an idle connection is kept: less than most servers, and what is between, keep theirs."""

_EYEBALLS = 0.25
"""Seconds after which a host's next address is tried beside one that does not answer (RFC 8305)."""

_Found = tuple[int, int, int, str, tuple[Any, ...]]
"""What `socket.getaddrinfo` says of an address."""

_ENDED = "the connection was closed before the answer was complete"


class Exchanges:
    """Makes requests from one event loop, over connections that are kept until it is closed.

    Args:
        tls: Gives the settings of connections by https. Called on a thread, as it may take a while.
        most: How many requests there may be at a time; who comes then waits.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext], most: int = 100) -> None:
        self._tls = tls
        self._free = asyncio.Semaphore(most)
        self._idle: defaultdict[Address, deque[_Connection]] = defaultdict(deque)
        self._is_closed = False

    def close(self) -> None:
        """Close the idle connections, and each of the others after its answer; from the event loop."""
        self._is_closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    async def exchange(
        self, address: Address, sent: Sent, *, connect: float, read: float, longest: int
    ) -> Received:
        """Send a request, once, and receive the answer.

        Args:
            address: Where to.
            sent: What.
            connect: Seconds to wait for a connection.
            read: Seconds to wait for each part of the answer.
            longest: How many bytes of the answer's body are received; the rest is cut off.

        Raises:
            OSError: The connection broke, or took too long (`TimeoutError`).
            EOFError: It ended in the middle of the answer.
            ValueError: `UnfitRequest`, and nothing was sent; or `UnfitAnswer`.
        """
        request = written(address, sent)
        async with self._free:
            connection = self._idle_one(address) or await self._connected(address, connect)
            try:
                received = await connection.exchange(request, read, longest)
            except BaseException:
                connection.abort()
                raise
            if received.is_last or self._is_closed:
                connection.abort()
            else:
                self._keep(address, connection)
            return received

    def _keep(self, address: Address, connection: _Connection) -> None:
        self._idle[address].append(connection)
        for idle in self._idle.values():
            while idle and not idle[0].is_usable:  # the last one used is used first, others idle for long
                idle.popleft().abort()

    def _idle_one(self, address: Address) -> _Connection | None:
        idle = self._idle[address]
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.abort()
        return None

    async def _connected(self, address: Address, seconds: float) -> _Connection:
        try:
            async with asyncio.timeout(seconds):
                return await self._connect(address)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"no connection in {seconds:g} s") from error

    async def _connect(self, address: Address) -> _Connection:
        is_encrypted = address.scheme == "https"
        tls = await asyncio.to_thread(self._tls) if is_encrypted else None
        # asyncio's own race for a connection loses its winner when it is cancelled in that moment
        opened = await start_connection(await _addresses(address), happy_eyeballs_delay=_EYEBALLS)
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, sock=opened, ssl=tls, server_hostname=address.host if is_encrypted else None
        )
        return connection


async def _addresses(address: Address) -> Sequence[_Found]:
    """Where the host is. A number is read here, as asking for it would take a thread."""
    host, port, kind = address.host, address.port, socket.SOCK_STREAM
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)


class _Connection(asyncio.Protocol):
    """A connection, for one request after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # before anybody asks for anything
        self._answer: asyncio.Future[Received] | None = None
        self._arriving = Arriving(0)
        self._is_open = True
        self._last_heard = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether it is likely to take one more request."""
        return (
            self._is_open
            and self._loop.time() - self._last_heard < KEPT_IDLE
            and not self._transport.get_write_buffer_size()  # it was answered before it was read
        )

    async def exchange(self, request: bytes, patience: float, longest: int) -> Received:
        """Send a request, and receive its answer; wait so many seconds for each part of it."""
        if not self._is_open:
            raise EOFError(_ENDED)
        self._arriving, self._last_heard = Arriving(longest), self._loop.time()
        answer: asyncio.Future[Received] = self._loop.create_future()
        self._answer = answer
        self._timer = self._loop.call_later(patience, self._lose_patience, patience)
        try:
            self._transport.write(request)
            return await answer
        finally:
            self._timer.cancel()
            self._answer = None

    def _lose_patience(self, patience: float) -> None:
        """Give up, unless something has come meanwhile."""
        left = self._last_heard + patience - self._loop.time()
        if left <= 0:
            self._fail(TimeoutError(f"nothing came for {patience:g} s"))
        else:
            self._timer = self._loop.call_later(left, self._lose_patience, patience)

    def abort(self) -> None:
        """Close it at once, without goodbyes."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answer is None or self._answer.done():
            self._is_open = False  # nobody has asked for anything
            self.abort()
            return
        self._last_heard = self._loop.time()
        try:
            self._give(self._arriving.take(data))
        except UnfitAnswer as error:
            self._fail(error)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._is_open = False
        if exc is None:
            self._give(self._arriving.end())
        self._fail(exc or EOFError(_ENDED))

    def _give(self, received: Received | None) -> None:
        if received is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(received)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
