"""The network of a campaign: an HTTP proxy before the queue that breaks some of the exchanges.

The queue listens on another loopback address, at the same port. In responses, the proxy replaces the queue's
address by its own, as in the URLs of storage, so that clients reach storage through the proxy, too.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

from .excuses import LATE
from .incidents import IncidentLog

QUEUE_HOST = "127.0.0.2"
PROXY_HOST = "127.0.0.1"

_BAD_GATEWAY = (
    b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"
)
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
_RECLAIM = re.compile(r"/task/[\w-]{22}/runs/\d+/reclaim")
_CREATES_OBJECT = re.compile(rb'"storageType": ?"object"')
_LIMIT = 1 << 16

FAULTS = (
    "request lost",
    "response lost",
    "delayed",
    "request cut",
    "response cut",
    "reset",
    "repeated",
    "502 before",
    "502 after",
)
STORAGE_FAULTS = ("503 of storage", "request cut", "response cut", "response lost", "delayed", "reset")


class Head(NamedTuple):
    """The first line and the headers of a message."""

    line: str
    headers: list[tuple[str, str]]

    def header(self, name: str) -> str:
        return next((value for each, value in self.headers if each.lower() == name), "")

    @property
    def target(self) -> str:
        return " ".join(self.line.split(" ")[:2])

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])

    def encoded(self) -> bytes:
        return "\r\n".join(
            [self.line, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        ).encode()


class _Gone(Exception):
    """One of the two sides has closed its connection."""


class _Side:
    """A connection that is read ahead, to notice that a client disconnects while it waits for a response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = bytearray()
        self._filled = asyncio.Event()
        self.gone = asyncio.Event()
        self._room = asyncio.Event()
        self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(OSError):
            while chunk := await self._reader.read(_LIMIT):
                self._buffer += chunk
                self._filled.set()
                if len(self._buffer) > 4 * _LIMIT:
                    self._room.clear()
                    await self._room.wait()
        self.gone.set()
        self._filled.set()

    async def _fill(self) -> None:
        self._room.set()
        self._filled.clear()
        if self.gone.is_set():
            raise _Gone
        await self._filled.wait()

    async def head(self) -> Head:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._fill()
        line, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        pairs = [each.partition(":") for each in lines]
        return Head(line, [(name, value.strip()) for name, _, value in pairs])

    async def some(self, most: int) -> bytes:
        while not self._buffer:
            await self._fill()
        piece = bytes(self._buffer[:most])
        del self._buffer[: len(piece)]
        self._room.set()
        return piece

    async def send(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError as error:
            raise _Gone from error

    def close(self, *, reset: bool = False) -> None:
        self._pump.cancel()
        if reset:
            sock: socket.socket | None = self.writer.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort() if reset else self.writer.close()


class _Exchange(NamedTuple):
    """A request that has arrived, and the fault that strikes it."""

    client: _Side
    queue: _Side
    head: Head
    fault: str
    delay: float


class ChaosProxy:
    """Forwards HTTP, and breaks a share of the exchanges.

    The creation of an object artifact is never repeated: the service would respond with 500 to the second
    request, but the local queue responds with 409, as if the task itself had created the artifact.

    Args:
        port: The port of the queue, and of the proxy.
        seed: The seed of the faults.
        share: The share of broken exchanges.
        log: Where each fault is noted.

    Attributes:
        exchanges: How many requests came in.
        broken: How many of these requests a fault struck.
        outage: Whether every new connection is closed at once.
        storage_outage: Whether storage responds with 503 to everything.
        reclaims: Each successful reclaim: its time, and the worker's id.
    """

    def __init__(self, port: int, seed: int, share: float, log: IncidentLog) -> None:
        self.port = port
        self.exchanges = self.broken = 0
        self.share = share
        self.outage = self.storage_outage = False
        self.reclaims: list[tuple[float, str]] = []
        self._rng = random.Random(f"network {seed}")
        self._log = log
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._queue_address = f"{QUEUE_HOST}:{port}".encode()
        self._own_address = f"{PROXY_HOST}:{port}".encode()

    async def open(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(
            self._accept, PROXY_HOST, self.port, limit=_LIMIT, backlog=512
        )

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """End the connections that are open now."""
        for each in self._connections:
            each.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        client = _Side(reader, writer)
        try:
            with suppress(_Gone, OSError, asyncio.CancelledError):  # client and queue see the end
                await self._serve(client)
        finally:
            client.close()
            self._connections.discard(task)

    async def _serve(self, client: _Side) -> None:
        if self.outage:
            raise _Gone
        queue = _Side(*await asyncio.open_connection(QUEUE_HOST, self.port, limit=_LIMIT))
        try:
            while True:
                head = await client.head()
                fault, delay = self.choose(head)
                async with asyncio.TaskGroup() as group:  # if the client disconnects, the proxy must, too
                    watch = group.create_task(_raise_when_gone(client))
                    await self._perform(_Exchange(client, queue, head, fault, delay))
                    watch.cancel()
        except* (_Gone, OSError):
            pass  # as in `_accept`, in a group; `suppress` takes groups from Python 3.12 on
        finally:
            queue.close()

    def choose(self, head: Head) -> tuple[str, float]:
        """Count an exchange; return the fault that strikes it, if any, and the length of a delay."""
        self.exchanges += 1
        storage = "/storage/" in head.line
        struck = self._rng.random() < self.share
        fault = self._rng.choice(STORAGE_FAULTS if storage else FAULTS) if struck else ""
        delay = self._rng.choice([0.05, 0.3, 1, 3])
        if storage and self.storage_outage:
            fault = "503 of storage"
        if fault:
            self.broken += 1
        return fault, delay

    async def _perform(self, exchange: _Exchange) -> None:
        """Take one exchange from its request to its response.

        Raises:
            _Gone: The exchange ends its connection.
        """
        claims, delivered = _Claims(), False
        try:
            with self._logged(exchange):
                await self._respond(exchange, claims)
            delivered = exchange.fault != "502 after"
        except _Gone:
            if exchange.fault == "reset":
                exchange.client.close(reset=True)
            raise
        finally:
            if claims.runs and not delivered:
                self._log.add("claim not delivered", exchange.head.target, runs=claims.runs)

    def _logged(self, exchange: _Exchange) -> AbstractContextManager[object]:
        if not exchange.fault:
            return nullcontext()
        detail = f"{exchange.delay} s" if exchange.fault == "delayed" else ""
        return self._log.lasting(f"exchange: {exchange.fault}", exchange.head.target, detail)

    async def _respond(self, exchange: _Exchange, claims: _Claims) -> None:
        client, queue, head, fault, delay = exchange
        length = int(head.header("content-length") or 0)
        if fault == "delayed":
            await asyncio.sleep(delay)
        if fault == "request lost":
            raise _Gone
        if fault in {"502 before", "503 of storage"}:
            await _discard(client, length)
            await client.send(_page(503, _SLOW_DOWN) if fault[0:3] == "503" else _page(502, _BAD_GATEWAY))
            return
        body = await self._forward_request(exchange, length)
        if fault == "repeated" and body is not None and not _CREATES_OBJECT.search(body):
            response = await queue.head()
            claims.note(head, await _whole(queue, response))
            if claims.runs:
                self._log.add("claim not delivered", head.target, runs=claims.taken())
            await queue.send(body)
        await self._forward_response(exchange, claims)

    async def _forward_request(self, exchange: _Exchange, length: int) -> bytes | None:
        """Send the request to the queue; return it for a repetition, or None if it is too long to keep."""
        client, queue, head, fault, _ = exchange
        kept = [
            each for each in head.headers if each[0].lower() != "accept-encoding" or "/storage/" in head.line
        ]
        encoded = Head(head.line, kept).encoded()
        if "/storage/" in head.line:  # signatures of storage URLs contain the host
            encoded = encoded.replace(self._own_address, self._queue_address, 1)
        await queue.send(encoded)
        if fault == "request cut":
            await queue.send((await client.some(length))[: length // 2] if length else b"")
            raise _Gone
        if length > _LIMIT:
            await _copy(client, queue, length)
            return None
        body = await _exactly(client, length)
        await queue.send(body)
        return encoded + body

    async def _forward_response(self, exchange: _Exchange, claims: _Claims) -> None:
        client, queue, request, fault, _ = exchange
        sent = time.time()
        response = await queue.head()
        while response.status < 200:
            await client.send(response.encoded())
            response = await queue.head()
        if time.time() - sent > LATE and "/claim-work/" not in request.line:
            self._log.add("exchange: slow", request.target).began = sent
        length = _length(request, response)
        if "/storage/" in request.line or length is None or length > _LIMIT * 16:
            await self._forward_stored(exchange, response, length)
            return
        body = await _exactly(queue, length)
        claims.note(request, body)
        self._note_reclaim(request, response, body)
        if fault in {"response lost", "reset"}:
            raise _Gone
        if fault == "502 after":
            await client.send(_page(502, _BAD_GATEWAY))
            return
        whole = response.encoded() + body.replace(self._queue_address, self._own_address)
        if fault == "response cut":
            await client.send(whole[: len(whole) - max(1, length // 2)])
            raise _Gone
        await client.send(whole)
        if response.header("connection").lower() == "close":
            raise _Gone

    async def _forward_stored(self, exchange: _Exchange, response: Head, length: int | None) -> None:
        client, queue, _, fault, _ = exchange
        if fault in {"response lost", "reset"}:
            raise _Gone
        await client.send(response.encoded())
        if length is None:
            while True:
                await client.send(await queue.some(_LIMIT))  # until the queue closes the connection
        if fault == "response cut":
            await client.send((await queue.some(length))[: length // 2] if length else b"")
            raise _Gone
        await _copy(queue, client, length)

    def _note_reclaim(self, request: Head, response: Head, body: bytes) -> None:
        if response.status == 200 and _RECLAIM.search(request.line):
            self.reclaims.append((time.time(), json.loads(body)["workerId"]))


class _Claims:
    """The runs in the response to a claim request."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def note(self, request: Head, body: bytes) -> None:
        if "/claim-work/" in request.line:
            with suppress(ValueError, KeyError):
                tasks = json.loads(body)["tasks"]
                self.runs = [f"{each['status']['taskId']}/{each['runId']}" for each in tasks]

    def taken(self) -> list[str]:
        runs, self.runs = self.runs, []
        return runs


async def _raise_when_gone(side: _Side) -> None:
    await side.gone.wait()
    raise _Gone


async def _exactly(side: _Side, length: int) -> bytes:
    pieces: list[bytes] = []
    while length:
        pieces.append(await side.some(length))
        length -= len(pieces[-1])
    return b"".join(pieces)


async def _whole(queue: _Side, response: Head) -> bytes:
    return await _exactly(queue, int(response.header("content-length") or 0))


async def _discard(side: _Side, length: int) -> None:
    while length:
        length -= len(await side.some(length))


async def _copy(source: _Side, sink: _Side, length: int) -> None:
    while length:
        piece = await source.some(min(length, _LIMIT))
        length -= len(piece)
        await sink.send(piece)


def _length(request: Head, response: Head) -> int | None:
    """Return the length of a response's body; None if it lasts until the connection ends."""
    if request.line.startswith("HEAD ") or response.status in {204, 304}:
        return 0
    length = response.header("content-length")
    return int(length) if length else None


def _page(status: int, body: bytes) -> bytes:
    kind = "application/xml" if status == 503 else "text/html"
    head = f"HTTP/1.1 {status} Unavailable\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
