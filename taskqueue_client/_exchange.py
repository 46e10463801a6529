"""Small HTTP/1.1 requests with small answers, from an event loop, in a third of aiohttp's processor time.

What aiohttp spends the rest on is what they do not need: redirects, cookies, proxies, compressed and
streamed bodies. A worker makes half a dozen of them for each run.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

KEPT_IDLE = 15.0
"""Seconds that an idle connection is kept: less than servers, and what is between, keep theirs."""

_EYEBALLS = 0.25
"""Seconds after which a host's next address is tried beside one that does not answer (RFC 8305)."""

_LONGEST_HEAD = 64 * 1024
_HEAD_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) (\d{3})\b")
_NUMBER = re.compile(r"\d{1,15}")
_CHUNK = re.compile(rb"(?:\r?\n)?([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
"""The line before a chunk, with the end of the one before."""
_TRAILERS = re.compile(rb"(?:[^\r\n]+\r?\n)*\r?\n")
_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENDED = "the connection was closed before the answer was complete"
_WITHOUT_BODY = frozenset({204, 304})


class Address(NamedTuple):
    """Where a connection goes."""

    scheme: str
    host: str
    port: int

    @property
    def header(self) -> str:
        """The value of `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port == (443 if self.scheme == "https" else 80)
        return host if is_usual else f"{host}:{self.port}"


class Sent(NamedTuple):
    """A request.

    Attributes:
        target: The path and the query, exactly as they were signed.
        headers: All but `Host` and `Content-Length`.
        body: None if there is none, and no word of its length either.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None


class Received(NamedTuple):
    """An answer.

    Attributes:
        headers: By their names in lower case.
        body: As it came.
        is_last: The connection cannot be used again.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_last: bool


class UnfitRequest(ValueError):
    """What is to be sent is no good HTTP."""

    def __init__(self) -> None:
        super().__init__("the request would be no good HTTP: a header holds something else than text")


class UnfitAnswer(ValueError):
    """What came is no good HTTP."""

    def __init__(self) -> None:
        super().__init__("the answer is no good HTTP")


class Exchanges:
    """Makes requests from one event loop, over connections that are kept until it is closed.

    Args:
        tls: Gives the settings of connections by https. Called on a thread, as it may take a while.
        most: How many connections there may be at a time; who comes then waits for one.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext], most: int = 100) -> None:
        self._tls = tls
        self._free = asyncio.Semaphore(most)
        self._idle: defaultdict[Address, deque[_Connection]] = defaultdict(deque)

    def close(self) -> None:
        """Close the idle connections; from the event loop."""
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
            read: Seconds to wait for the answer.
            longest: How many bytes of the answer's body are received; the rest is cut off.

        Raises:
            OSError: The connection broke, or took too long (`TimeoutError`).
            EOFError: It ended in the middle of the answer.
            ValueError: `UnfitRequest`, and nothing was sent; or `UnfitAnswer`.
        """
        written = _written(address, sent)
        async with self._free:
            connection = self._idle_one(address) or await self._connected(address, connect)
            try:
                received = await connection.exchange(written, read, longest)
            except BaseException:
                connection.abort()
                raise
            if received.is_last:
                connection.abort()
            else:
                self._keep(address, connection)
            return received

    def _keep(self, address: Address, connection: _Connection) -> None:
        idle = self._idle[address]
        idle.append(connection)
        while not idle[0].is_usable:  # the last one used is used first, so others may be idle for long
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
                tls = await asyncio.to_thread(self._tls) if address.scheme == "https" else None
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, address.host, address.port, ssl=tls, happy_eyeballs_delay=_EYEBALLS
                )
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"no connection in {seconds:g} s") from error
        return connection


class _Connection(asyncio.Protocol):
    """A connection, for one request after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # before anybody asks for anything
        self._answer: asyncio.Future[Received] | None = None
        self._longest = 0
        self._pieces: list[bytes] = []
        self._arrived = 0  # bytes, in these pieces
        self._wanted = 0  # bytes that must have arrived before it is worth to look again
        self._is_open = True
        self._idle_since = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether it is likely to take one more request."""
        return self._is_open and self._loop.time() - self._idle_since < KEPT_IDLE

    async def exchange(self, written: bytes, seconds: float, longest: int) -> Received:
        """Send a request, and receive its answer."""
        if not self._is_open:
            raise EOFError(_ENDED)
        self._pieces, self._arrived, self._wanted, self._longest = [], 0, 0, longest
        answer: asyncio.Future[Received] = self._loop.create_future()
        self._answer = answer
        too_late = self._loop.call_later(seconds, self._fail, TimeoutError(f"no answer in {seconds:g} s"))
        try:
            self._transport.write(written)
            return await answer
        finally:
            too_late.cancel()
            self._answer, self._idle_since = None, self._loop.time()

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
        self._pieces.append(data)
        self._arrived += len(data)
        if self._arrived >= self._wanted:
            self._look(has_ended=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._is_open = False
        self._look(has_ended=exc is None)
        self._fail(exc or EOFError(_ENDED))

    def _look(self, *, has_ended: bool) -> None:
        """See whether the answer is all there."""
        if self._answer is None or self._answer.done():
            return
        self._pieces = [b"".join(self._pieces)]
        try:
            found = received_in(self._pieces[0], self._longest, has_ended=has_ended)
        except UnfitAnswer as error:
            self._fail(error)
        else:
            if isinstance(found, Received):
                self._answer.set_result(found)
            else:
                self._wanted = found

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _written(address: Address, sent: Sent) -> bytes:
    headers = {"Host": address.header, **sent.headers}
    if sent.body is not None:
        headers["Content-Length"] = str(len(sent.body))
    lines = [f"{sent.method} {sent.target} HTTP/1.1", *map(": ".join, headers.items())]
    text = "".join(lines)
    if not (text.isascii() and text.isprintable() and _NAMES.fullmatch("".join(headers))):
        raise UnfitRequest
    return "\r\n".join((*lines, "", "")).encode() + (sent.body or b"")


def received_in(arrived: bytes, longest: int, *, has_ended: bool) -> Received | int:
    """The answer, if all of it has arrived (RFC 9112, sections 6 and 7).

    Args:
        arrived: What has come since the request was sent.
        longest: How many bytes of the body are wanted.
        has_ended: Nothing more will come.

    Returns:
        The answer; or how many bytes must have arrived before it is worth to look again.

    Raises:
        UnfitAnswer: It is none.
    """
    head = _head(arrived)
    while head is not None and head.status < 200:  # noqa: PLR2004 - until then, there is more to come
        head = _head(head.rest)
    if head is None:
        return len(arrived) + 1
    body = _body(head, longest, has_ended=has_ended)
    if isinstance(body, int):
        return len(arrived) - len(head.rest) + body
    return Received(head.status, head.headers, body.content, head.is_last or not body.is_all)


class _Head(NamedTuple):
    status: int
    headers: Mapping[str, str]
    is_last: bool
    """It says that the connection ends."""
    rest: bytes
    """What follows."""


def _head(arrived: bytes) -> _Head | None:
    """The head, if it is all there."""
    head, separator, rest = arrived.partition(_HEAD_END)
    if len(head) > _LONGEST_HEAD:
        raise UnfitAnswer
    if not separator:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.match(first)
    if found is None:
        raise UnfitAnswer
    headers = {name.lower(): value.strip() for name, _, value in [line.partition(":") for line in lines]}
    is_last = found[1] == "0" or "close" in headers.get("connection", "").lower()
    return _Head(int(found[2]), headers, is_last, rest)


class _Body(NamedTuple):
    content: bytes
    is_all: bool
    """It has come to its end, and nothing follows."""


def _body(head: _Head, longest: int, *, has_ended: bool) -> _Body | int:
    """The body, or how many bytes are needed for it."""
    if head.status in _WITHOUT_BODY:
        return _of_length(head.rest, 0, longest)
    if "transfer-encoding" in head.headers:
        return _in_chunks(head.rest, longest)
    length = head.headers.get("content-length")
    if length is None:
        wanted = 0 if has_ended else longest
        return _Body(head.rest[:longest], is_all=False) if len(head.rest) >= wanted else wanted
    if not _NUMBER.fullmatch(length):
        raise UnfitAnswer
    return _of_length(head.rest, int(length), longest)


def _of_length(rest: bytes, length: int, longest: int) -> _Body | int:
    wanted = min(length, longest)
    return wanted if len(rest) < wanted else _Body(rest[:wanted], len(rest) == length <= longest)


def _in_chunks(rest: bytes, longest: int) -> _Body | int:
    content, at = bytearray(), 0
    while found := _CHUNK.match(rest, at):
        start, size = found.end(), int(found[1], 16)
        if size == 0:
            trailers = _TRAILERS.match(rest, start)
            return _Body(bytes(content), trailers.end() == len(rest)) if trailers else len(rest) + 1
        at = start + size
        content += rest[start:at]
        if len(content) >= longest:
            return _Body(bytes(content[:longest]), is_all=False)
    if b"\n" in rest[at + 2 :]:  # a line, and not of a chunk
        raise UnfitAnswer
    return max(at, len(rest)) + 1
