"""Sends what is small straight from an event loop: for it, a thread would cost more than the sending."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import defaultdict
from typing import NamedTuple, Self

from .connections import Address, Connections, Place, proxy_for
from .errors import StorageFailed, StorageRefused
from .hashing import hexdigests
from .storage import USER_AGENT, Put, host_header

_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})\b")
_LENGTH = re.compile(rb"\r\nContent-Length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\nTransfer-Encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nConnection:[ \t]*close", re.IGNORECASE)
_VALUE = re.compile(r"[\x20-\x7e]*")
_HEAD_END = b"\r\n\r\n"
_ANSWER = 64 * 1024
"""Bytes of an answer that are read at most."""

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _NotHttp(ValueError):
    def __init__(self) -> None:
        super().__init__("what is to be sent, or what came, is no good HTTP")


class _Answer(NamedTuple):
    status: int
    body: bytes
    is_last: bool
    """The connection cannot be used again."""


class DirectSender:
    """PUTs small content over connections that are kept while it is open.

    Use it as an async context manager.

    Args:
        connections: Those of the client's storage, for their TLS settings.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: defaultdict[Address, list[_Connection]] = defaultdict(list)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connections in self._idle.values():
            for _reader, writer in connections:
                writer.transport.abort()  # at once, without goodbyes

    def takes(self, put: Put) -> bool:
        """Whether the content is small, and goes there directly."""
        return put.source.content is not None and proxy_for(Place.of("PUT", put.url).address) is None

    async def send(self, put: Put) -> dict[str, str]:
        """Make one attempt; gives the hashes of what was sent.

        Raises:
            StorageFailed: It did not arrive.
        """
        content = put.source.content or b""
        try:
            answer = await self._exchange(put, content)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise StorageFailed("PUT", put.url, f"{type(error).__name__}: {error}") from error
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - success, in HTTP
            raise StorageRefused.of("PUT", put.url, answer.status, answer.body.decode(errors="replace"))
        put.progress(len(content), len(content))
        return hexdigests(put.algorithms, content)

    async def _exchange(self, put: Put, content: bytes) -> _Answer:
        place = Place.of("PUT", put.url)
        reader, writer = await self._connected(place.address, put.timeouts.connect)
        try:
            writer.write(_head(place, put) + content)
            async with asyncio.timeout(put.timeouts.read):
                answer = await _read_answer(reader)
        except BaseException:
            writer.transport.abort()
            raise
        if answer.is_last:
            writer.transport.abort()
        else:
            self._idle[place.address].append((reader, writer))
        return answer

    async def _connected(self, address: Address, seconds: float) -> _Connection:
        idle = self._idle[address]
        while idle:
            reader, writer = idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.transport.abort()
        async with asyncio.timeout(seconds):
            tls = await self._tls() if address.scheme == "https" else None
            return await asyncio.open_connection(address.host, address.port, ssl=tls)

    async def _tls(self) -> ssl.SSLContext:
        """Made on a thread, as reading certificates takes a while."""
        return await asyncio.to_thread(lambda: self._connections.tls)


def _head(place: Place, put: Put) -> bytes:
    headers = {"Host": host_header(place.address), "User-Agent": USER_AGENT, **put.all_headers()}
    if not all(_VALUE.fullmatch(value) for value in headers.values()):
        raise _NotHttp
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"PUT {place.target} HTTP/1.1\r\n{lines}\r\n".encode()


async def _read_answer(reader: asyncio.StreamReader) -> _Answer:
    head = await reader.readuntil(_HEAD_END)
    found = _STATUS.match(head)
    if found is None:
        raise _NotHttp
    status = int(found[2])
    if status < 200:  # noqa: PLR2004 - there is more to come
        return await _read_answer(reader)
    is_last = found[1] == b"0" or _CLOSE.search(head) is not None
    length = _LENGTH.search(head)
    if _CHUNKED.search(head):
        return _Answer(status, await _read_chunks(reader), is_last)
    if length is not None and int(length[1]) <= _ANSWER:
        return _Answer(status, await reader.readexactly(int(length[1])), is_last)
    if status == 204:  # noqa: PLR2004 - no content, and no word of its length
        return _Answer(status, b"", is_last)
    return _Answer(status, await reader.read(_ANSWER), is_last=True)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        if len(body) + size > _ANSWER:
            raise _NotHttp
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        pass  # trailers
    return body
