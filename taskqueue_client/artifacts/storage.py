"""One attempt at a PUT or a GET of a storage URL, over urllib3, or over aiohttp for content in memory.

Neither credentials nor cookies are sent to storage. This module does not retry.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import urljoin, urlsplit

from urllib3 import HTTPConnectionPool, HTTPResponse

from taskqueue_client._protocol.api_responses import ResponseRefused, TransportFailed
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.network import (
    USER_AGENT,
    WANTS_USER,
    NetworkSettings,
    forget_in_children,
    proxy_refused,
)

from .artifact_errors import RedirectRefused, StorageFailed, StorageRefused, storage_refused
from .compression import GZIP
from .sources import AHEAD, Block, Source
from .storage_connections import (
    Cancellation,
    Limits,
    StorageAttempt,
    connection_class,
    network_errors,
    origin_of,
    target_of,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import ThreadPoolExecutor

    from taskqueue_client._transport.asynchronous import AsyncTransport

Progress = Callable[[int, int | None], object]
"""Called with the bytes transferred, and the total if it is known."""

MOST_REDIRECTS = 5

MOST_THREADS = 32
"""Threads for the transfers of one asynchronous client."""

_POOL_SIZE = 32
"""Idle connections per origin in the connection pool."""

_READ = 256 * 1024
"""The largest number of bytes received at a time."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SUCCESS = range(200, 300)
_CONTENT = frozenset({200, 206})
"""The statuses of responses with content. Others, such as 204, may come from the login page of a network."""

VERIFIABLE = frozenset({"sha256", "sha512"})
"""The algorithms that clients of the object service verify. The service stores others without a check."""

UPLOADED = ("sha256",)
"""The algorithms of the hashes that are stored with an upload. Every official client (JavaScript, Python, Go,
Rust) accepts one of `VERIFIABLE`, and sha512 takes twice as long on processors with SHA instructions."""

_LONGEST_RESPONSE = 64 * 1024
"""The largest number of bytes read of a response to a PUT, or of an error."""


@dataclass(frozen=True, slots=True)
class Put:
    """One attempt to send a source to a URL.

    Attributes:
        headers: The headers to send, except `Host`, `User-Agent` and `Content-Length`.
        algorithms: The algorithms of the hashes to compute while sending.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str]
    source: Source
    algorithms: tuple[str, ...]
    progress: Progress
    limits: Limits


@dataclass(frozen=True, slots=True)
class PutResponse:
    """The response to a PUT, and the hashes of the body, in hex by algorithm."""

    hashes: dict[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Get:
    """One attempt to read a URL."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    limits: Limits
    most_redirects: int = MOST_REDIRECTS


class Incoming:
    """The response to a GET, 200 or 206, while its body is received."""

    def __init__(self, attempt: StorageAttempt, response: HTTPResponse) -> None:
        self._attempt = attempt
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        """Return a header, or None. `http.client` leaves the white space at its end."""
        value = self._response.headers.get(name)
        return None if value is None else value.strip()

    @property
    def _is_framed(self) -> bool:
        """Whether the response says where it ends. Otherwise a truncated one would look complete."""
        coding = self.header("Transfer-Encoding") or ""
        return self._response.length_remaining is not None or coding.lower() == "chunked"

    def blocks(self) -> Iterator[Block]:
        """Return the blocks of the body as they are received, still encoded."""
        if not self._is_framed:
            reason = "the response is incomplete: it has no Content-Length and is not chunked"
            raise StorageFailed("GET", self._attempt.url, reason)
        while block := self._read():
            yield block

    def _read(self) -> bytes:
        with network_errors("GET", self._attempt.url):
            return self._response.read1(_READ)


_BATCH = 256 * 1024
"""Bytes that are handed to the threads that hash at a time, at least. TLS brings 16 kB at a time; handing
these over would take longer than everything else in a download."""


class Hashes:
    """Hashes of a stream by several algorithms, each computed on a separate thread.

    Use it as a context manager, so that the threads end.
    """

    def __init__(self, algorithms: Collection[str]) -> None:
        self._hashers = {algorithm: _hasher(algorithm) for algorithm in algorithms}
        self._small: list[Block] = []
        self._size = 0
        self._queues: list[_Blocks] = []
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        try:
            for algorithm, hasher in self._hashers.items():
                self._queues.append(_Blocks())
                name, args = f"artifact-{algorithm}", (hasher, self._queues[-1])
                self._threads.append(Thread(target=_hash, args=args, name=name, daemon=True))
                self._threads[-1].start()
        except BaseException:  # such as a Ctrl-C, or too many threads
            for blocks in self._queues:
                blocks.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def update(self, block: Block) -> None:
        """Add a block. Waits while a thread has `AHEAD` batches to hash."""
        self._small.append(block)
        self._size += len(block)
        if self._size >= _BATCH:
            self._hand_over()

    def _hand_over(self) -> None:
        batch = self._small[0] if len(self._small) == 1 else b"".join(self._small)
        self._small, self._size = [], 0
        for blocks in self._queues:
            blocks.put(batch)

    def hexdigests(self) -> dict[str, str]:
        """Return the hashes of all blocks, in hex by algorithm. No block can be added afterwards."""
        self._finish()
        return {algorithm: hasher.hexdigest() for algorithm, hasher in self._hashers.items()}

    def _finish(self) -> None:
        if self._small:
            self._hand_over()
        for blocks in self._queues:
            blocks.end()
        for thread in self._threads:
            thread.join()
        self._queues.clear()
        self._threads.clear()


def hexdigests(algorithms: Collection[str], content: bytes) -> dict[str, str]:
    """Return the hashes of `content`, in lower-case hex by algorithm."""
    return {algorithm: _hasher(algorithm, content).hexdigest() for algorithm in algorithms}


def _hasher(algorithm: str, content: bytes = b"") -> _Hasher:
    """Begin a hash. MD5 is only compared with the ETag: FIPS mode refuses it for purposes of security."""
    return hashlib.new(algorithm, content, usedforsecurity=algorithm != "md5")


class _Hasher(Protocol):
    def update(self, block: Block, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Blocks:
    """Up to `AHEAD` blocks on their way to a thread.

    After a Ctrl-C in the moment in which a `queue.Queue` has taken its lock, nobody could end the thread.
    """

    def __init__(self) -> None:
        self._blocks: SimpleQueue[Block | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(AHEAD):
            self._room.put(None)

    def put(self, block: Block) -> None:
        """Add a block. Waits for room."""
        self._room.get()
        self._blocks.put(block)

    def end(self) -> None:
        """Let the thread end after the last block."""
        self._blocks.put(None)

    def __iter__(self) -> Iterator[Block]:
        while (block := self._blocks.get()) is not None:
            self._room.put(None)
            yield block


def _hash(hasher: _Hasher, blocks: _Blocks) -> None:
    for block in blocks:
        hasher.update(block)


class Storage:
    """A client's connections to storage services. May be used from many threads.

    Nothing here takes a lock: since Python 3.14, `with lock` leaves the lock locked if a Ctrl-C comes in the
    moment in which it was taken, and the next transfer would wait for ever.
    """

    def __init__(self, network: NetworkSettings | None = None) -> None:
        self._network = network or NetworkSettings()
        self._start()
        forget_in_children(self)

    def _start(self) -> None:
        self._pools: dict[str, HTTPConnectionPool] = {}
        self._executors: dict[str, ThreadPoolExecutor] = {}
        self._async_transports: dict[AbstractEventLoop, AsyncTransport] = {}

    def forget(self) -> None:
        """Begin anew, without a word to the servers: the parent goes on with its connections."""
        self._of_parent = self._async_transports  # at their end, they would stop the parent's event loops
        self._start()

    def threads(self) -> ThreadPoolExecutor:
        """Return threads for the transfers of an event loop, whose default executor stays free for others."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - fails when the main thread has ended

        name = "artifacts"
        return self._executors.get(name) or self._executors.setdefault(
            name, ThreadPoolExecutor(MOST_THREADS, thread_name_prefix=name)
        )

    def _async_transport(self) -> AsyncTransport:
        from asyncio import get_running_loop  # noqa: PLC0415 - loaded already

        loop = get_running_loop()
        if loop not in self._async_transports:
            from taskqueue_client._transport.asynchronous import own_transport  # noqa: PLC0415 - imports aiohttp

            self._async_transports[loop] = own_transport(self._network)
        return self._async_transports[loop]

    async def leave_loop(self) -> None:
        """Close the connections of the running event loop."""
        from asyncio import get_running_loop  # noqa: PLC0415 - loaded already

        if transport := self._async_transports.pop(get_running_loop(), None):
            await transport.aclose()

    async def aclose(self) -> None:
        """Close idle connections, also those of the running event loop."""
        self.close()
        await self.leave_loop()

    def close(self) -> None:
        """Close idle connections, and stop the threads. A later transfer makes new ones."""
        while self._pools:
            self._pools.popitem()[1].close()
        while self._executors:
            self._executors.popitem()[1].shutdown(wait=False)

    def put(self, put: Put, cancellation: Cancellation) -> PutResponse:
        """Send a source."""
        content = put.source.content
        if content is not None:
            response = self._put(put, content, cancellation)
            put.progress(len(content), len(content))
            return PutResponse(hexdigests(put.algorithms, content), response.headers)
        with Hashes(put.algorithms) as hashes:
            try:
                response = self._put(put, _body(put, hashes, cancellation), cancellation)
            except _LocalError as failed:
                raise failed.error from None
            return PutResponse(hashes.hexdigests(), response.headers)

    def _put(self, put: Put, body: bytes | Iterator[Block], cancellation: Cancellation) -> HTTPResponse:
        headers = {"User-Agent": USER_AGENT, **put.headers, "Content-Length": str(put.source.size)}
        pool = self._pool("PUT", put.url)
        with StorageAttempt("PUT", put.url, put.limits, cancellation) as attempt:
            response = attempt.open(pool, headers, body)
            received = attempt.read(response, _LONGEST_RESPONSE)
            if response.status not in _SUCCESS:
                text = received.decode(errors="replace")
                raise self._refused("PUT", put.url, response.status, response.headers, text)
            attempt.check_sent()
        return response

    async def put_small(self, put: Put) -> PutResponse:
        """Send content that is in memory, from an event loop."""
        import asyncio  # noqa: PLC0415 - loaded already

        content = put.source.content or b""
        url = f"{origin_of('PUT', put.url)}{target_of(put.url)}"
        request = Request("PUT", url, {"User-Agent": USER_AGENT, **put.headers}, content)
        try:
            timeouts = put.limits.timeouts(len(content))
            response = await self._async_transport().request(request, timeouts, _LONGEST_RESPONSE)
        except TransportFailed as error:
            raise StorageFailed("PUT", put.url, error.reason) from error.__cause__
        except ResponseRefused as error:
            raise storage_refused("PUT", put.url, error.status, {}, error.reason) from error
        if response.status not in _SUCCESS:
            text = response.body.decode(errors="replace")
            raise storage_refused("PUT", put.url, response.status, response.headers, text)
        put.progress(len(content), len(content))
        await asyncio.sleep(0)  # now it is told, and not after the upload
        return PutResponse(hexdigests(put.algorithms, content), response.headers)

    @contextmanager
    def get(self, get: Get, cancellation: Cancellation) -> Generator[Incoming]:
        """Read a URL, following redirects as far as they are allowed."""
        url = get.url
        for _ in range(1 + get.most_redirects):
            with StorageAttempt("GET", url, get.limits, cancellation) as attempt:
                headers = {"User-Agent": USER_AGENT, **get.headers}
                response = attempt.open(self._pool("GET", url), headers)
                attempt.end_of_head()
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    yield self._accepted(attempt, response)
                    return
            url = _redirected(url, location)
        raise RedirectRefused("GET", get.url, f"more than {get.most_redirects} redirects")

    def _accepted(self, attempt: StorageAttempt, response: HTTPResponse) -> Incoming:
        if response.status in _CONTENT:
            return Incoming(attempt, response)
        body = attempt.read(response, _LONGEST_RESPONSE)
        if "gzip" in response.headers.get("Content-Encoding", "").lower():
            with suppress(zlib.error):
                body = zlib.decompressobj(GZIP).decompress(body, _LONGEST_RESPONSE)
        text = body.decode(errors="replace")
        raise self._refused("GET", attempt.url, response.status, response.headers, text)

    def _refused(
        self, method: str, url: str, status: int, headers: Mapping[str, str], text: str
    ) -> StorageRefused:
        if status == WANTS_USER and self._network.proxy(url, socks=True) is not None:
            text = proxy_refused(url, self._network).reason
        return storage_refused(method, url, status, headers, text)

    def _pool(self, method: str, url: str) -> HTTPConnectionPool:
        origin = origin_of(method, url)
        return self._pools.get(origin) or self._pools.setdefault(origin, self._new_pool(url, origin))

    def _new_pool(self, url: str, origin: str) -> HTTPConnectionPool:
        pool = self._network.pool_manager(url, maxsize=_POOL_SIZE).connection_from_url(origin)
        pool.ConnectionCls = connection_class(pool.ConnectionCls)  # urllib3 reads it from the pool
        return pool


class _LocalError(Exception):
    """Carries an error of the source or of `progress` past urllib3, to which it is one of the connection."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _body(put: Put, hashes: Hashes, cancellation: Cancellation) -> Iterator[Block]:
    """Return the body of a PUT that is not in memory: hashed, reported and checked while urllib3 sends it."""
    sent = 0
    try:
        for block in put.source.blocks():
            cancellation.check()
            hashes.update(block)
            yield block
            sent += len(block)
            put.progress(sent, put.source.size)
    except OSError as error:
        raise _LocalError(error) from error


def _redirected(url: str, location: str) -> str:
    try:
        target = urljoin(url, location).partition("#")[0]
        scheme = urlsplit(target).scheme
    except ValueError:
        raise RedirectRefused("GET", url, "the redirect leads to a malformed URL") from None
    if scheme not in {"http", "https"} or (url.startswith("https:") and scheme == "http"):
        raise RedirectRefused(
            "GET", url, f"redirected to a {scheme} URL; only https is followed, and http from http"
        )
    return target
