"""One attempt at a PUT or a GET of a storage URL, over urllib3, or over aiohttp for content in memory.

Neither credentials nor cookies are sent to storage. This module does not retry.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import IncompleteRead
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from taskqueue_client._protocol.api_responses import ResponseRefused, TransportFailed
from taskqueue_client._protocol.retry import RetryPolicy, Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.connection_errors import failure_of_urllib3, first_cause
from taskqueue_client._transport.network import (
    USER_AGENT,
    WANTS_USER,
    NetworkSettings,
    forget_in_children,
    proxy_refused,
)
from taskqueue_client._transport.sync_connections import Cancellation, StorageAttempt, storage_connection

from .artifact_errors import RedirectRefused, StorageFailed, StorageRefused, storage_refused
from .content import GZIP
from .sources import Block, Hashes, Source, hexdigests

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import ThreadPoolExecutor

    from urllib3 import HTTPConnectionPool, HTTPResponse

    from taskqueue_client._transport.asynchronous import AsyncTransport

Progress = Callable[[int, int | None], object]
"""Called with the bytes transferred, and the total if it is known."""

MOST_REDIRECTS = 5

MOST_THREADS = 32
"""Threads for the transfers of one asynchronous client."""

_POOL_SIZE = 32  # idle connections per origin in the connection pool

MOST_ORIGINS = 16
"""Origins with idle connections. Tasks choose the URLs of references: without a limit, references to many
hosts would use up the file descriptors of a worker."""

_READ = 256 * 1024  # the largest number of bytes received at a time

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SUCCESS = range(200, 300)
_CONTENT = frozenset({200, 206})
"""The statuses of responses with content. Others, such as 204, may come from the login page of a network."""

VERIFIABLE = frozenset({"sha256", "sha512"})
"""The algorithms that clients of the object service verify. The service stores others without a check."""

UPLOADED = ("sha256",)
"""The algorithms of the hashes that are stored with an upload. Every official client (JavaScript, Python, Go,
Rust) accepts one of `VERIFIABLE`, and sha512 takes twice as long on processors with SHA instructions."""

_LONGEST_RESPONSE = 64 * 1024  # the largest number of bytes read of a response to a PUT, or of an error

_LONGEST = 3600.0  # seconds that sending a small body may take if there is no minimum rate

_LENGTH = re.compile(r"[0-9]{1,18}")

_URL = re.compile(r"https?://[\x21-\x7e]+")


def no_progress(*_: object) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class Put:
    """One attempt to send a source to a URL.

    Attributes:
        headers: The headers to send, except `Host`, `User-Agent` and `Content-Length`.
        algorithms: The algorithms of the hashes to compute while sending.
        policy: The timeouts and the minimum rate.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str]
    source: Source
    algorithms: tuple[str, ...]
    progress: Progress
    policy: RetryPolicy

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of an attempt that sends all of the source at once."""
        policy, size = self.policy, self.source.size
        sending = size / policy.min_rate if policy.min_rate else _LONGEST
        total = policy.connect_timeout + max(policy.min_rate_window, policy.read_timeout) + sending
        return Timeouts(policy.connect_timeout, policy.read_timeout, total)


@dataclass(frozen=True, slots=True)
class PutResponse:
    """The response to a PUT, and the hashes of the body, in hex by algorithm."""

    hashes: dict[str, str]
    headers: Mapping[str, str]


class Incoming:
    """A response while its body is received.

    Args:
        network: The settings that the connection was made with.
    """

    def __init__(
        self, method: str, attempt: StorageAttempt, response: HTTPResponse, network: NetworkSettings
    ) -> None:
        self._method = method
        self._network = network
        self.attempt = attempt
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    def header(self, name: str) -> str | None:
        """Return a header, or None. `http.client` leaves the white space at its end."""
        value = self.headers.get(name)
        return None if value is None else value.strip()

    @property
    def length(self) -> int | None:
        """The Content-Length; None if it is missing or malformed: `int` fails for too many digits."""
        value = self.header("Content-Length") or ""
        return int(value) if _LENGTH.fullmatch(value) else None

    @property
    def _is_framed(self) -> bool:
        """Whether the response says where it ends. Otherwise a truncated one would look complete."""
        coding = self.header("Transfer-Encoding") or ""
        return self._response.length_remaining is not None or coding.lower() == "chunked"

    def blocks(self) -> Iterator[Block]:
        """Return the blocks of the body as they are received, still encoded."""
        if not self._is_framed:
            reason = "the response is incomplete: it has no Content-Length and is not chunked"
            raise StorageFailed(self._method, self.attempt.url, reason)
        while block := self._read(self._response.read1, _READ):
            yield block

    def beginning(self) -> bytes:
        """Return the body, cut off after `_LONGEST_RESPONSE` bytes, within the time limit of the head."""
        received = self._read(self._response.read, _LONGEST_RESPONSE)
        self.attempt.end_of_head()
        return received

    def _read(self, read: Callable[[int], bytes], most: int) -> bytes:
        try:
            return read(most)
        except (OSError, HTTPError) as error:
            raise _failure(self._method, self.attempt.url, error, self._network) from error


class Storage:
    """A client's connections to storage services. May be used from many threads.

    Nothing here takes a lock: since Python 3.14, a Ctrl-C may leave it locked, and transfers would hang.
    """

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network
        self._start()
        forget_in_children(self)

    def _start(self) -> None:
        self._pools: OrderedDict[str, HTTPConnectionPool] = OrderedDict()
        self._executors: dict[str, ThreadPoolExecutor] = {}
        self._async_transports: dict[AbstractEventLoop, AsyncTransport] = {}

    def forget(self) -> None:
        """Drop the connections and threads without closing them: the parent still uses them."""
        self._of_parent = self._async_transports  # if deleted, they would stop the parent's event loops
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
            received = self._put(put, content, cancellation)
            put.progress(len(content), len(content))
            return PutResponse(hexdigests(put.algorithms, content), received)
        with Hashes(put.algorithms) as hashes:
            try:
                received = self._put(put, _body(put, hashes, cancellation), cancellation)
            except _LocalError as failed:
                raise failed.error from None
            return PutResponse(hashes.hexdigests(), received)

    def _put(self, put: Put, body: bytes | Iterator[Block], cancellation: Cancellation) -> Mapping[str, str]:
        """Send a body; return the headers of the response."""
        headers = {**put.headers, "Content-Length": str(put.source.size)}
        with self._requested("PUT", put.url, headers, put.policy, cancellation, body) as incoming:
            received = incoming.beginning()
            if incoming.status not in _SUCCESS:
                raise self._refused("PUT", put.url, incoming.status, incoming.headers, received)
            if incoming.attempt.unsent:
                reason = "the connection was closed before the whole body was sent"
                raise StorageFailed("PUT", put.url, reason)
            return incoming.headers

    async def put_small(self, put: Put) -> PutResponse:
        """Send content that is in memory, from an event loop."""
        import asyncio  # noqa: PLC0415 - loaded already

        content = put.source.content or b""
        url = _parts_of("PUT", put.url)
        request = Request("PUT", url.geturl(), {"User-Agent": USER_AGENT, **put.headers}, content)
        try:
            response = await self._async_transport().request(request, put.timeouts, _LONGEST_RESPONSE)
        except (TransportFailed, ResponseRefused) as error:
            raise _failed("PUT", put.url, error) from error.__cause__
        if response.status not in _SUCCESS:
            raise self._refused("PUT", put.url, response.status, response.headers, response.body)
        if put.progress is not no_progress:
            put.progress(len(content), len(content))
            await asyncio.sleep(0)  # lets the event loop call `progress` now, not after the upload
        return PutResponse(hexdigests(put.algorithms, content), response.headers)

    @contextmanager
    def get(
        self,
        url: str,
        headers: Mapping[str, str],
        policy: RetryPolicy,
        cancellation: Cancellation,
        most_redirects: int = MOST_REDIRECTS,
    ) -> Generator[Incoming]:
        """Read a URL, following up to `most_redirects` redirects."""
        target = url
        for _ in range(1 + most_redirects):
            with self._requested("GET", target, headers, policy, cancellation) as incoming:
                incoming.attempt.end_of_head()
                location = incoming.header("Location")
                if incoming.status not in _REDIRECTS or location is None:
                    self._check_content(incoming)
                    yield incoming
                    return
            target = _redirected(target, location)
        raise RedirectRefused("GET", url, f"more than {most_redirects} redirects")

    def _check_content(self, incoming: Incoming) -> None:
        if incoming.status in _CONTENT:
            return
        body = incoming.beginning()
        if "gzip" in incoming.headers.get("Content-Encoding", "").lower():
            with suppress(zlib.error):
                body = zlib.decompressobj(GZIP).decompress(body, _LONGEST_RESPONSE)
        raise self._refused("GET", incoming.attempt.url, incoming.status, incoming.headers, body)

    @contextmanager
    def _requested(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        policy: RetryPolicy,
        cancellation: Cancellation,
        body: bytes | Iterator[Block] | None = None,
    ) -> Generator[Incoming]:
        """Send a request; the context begins when the head of the response is received.

        The connection is closed at the end of the context, unless the response was read to its end.
        """
        pool, attempt = self._pool(method, url), StorageAttempt(url, policy, cancellation)
        headers = {"User-Agent": USER_AGENT, **headers}
        with ExitStack() as ends:
            ends.callback(cancellation.attempts.discard, attempt)
            try:
                response: HTTPResponse = attempt.open(pool, method, headers, body)
            except (OSError, HTTPError) as error:
                raise _failure(method, url, error, self._network) from error
            yield Incoming(method, attempt, ends.enter_context(closing(response)), self._network)

    def _refused(
        self, method: str, url: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> StorageRefused:
        if status == WANTS_USER and self._network.proxy(url, socks=True) is not None:
            return storage_refused(method, url, status, headers, proxy_refused(url, self._network).reason)
        text, proxy = body.decode(errors="replace"), self._network.forwarding_proxy(url)
        return storage_refused(method, url, status, headers, text, proxy)

    def _pool(self, method: str, url: str) -> HTTPConnectionPool:
        parts = _parts_of(method, url)
        origin = f"{parts.scheme}://{parts.netloc}"
        try:
            self._pools.move_to_end(origin)
        except KeyError:
            for oldest in list(self._pools)[: 1 - MOST_ORIGINS]:
                self._pools.pop(oldest, None)  # urllib3 closes its idle connections when no transfer uses it
        return self._pools.get(origin) or self._pools.setdefault(origin, self._new_pool(url, origin))

    def _new_pool(self, url: str, origin: str) -> HTTPConnectionPool:
        pool = self._network.pool_manager(url, maxsize=_POOL_SIZE).connection_from_url(origin)
        pool.ConnectionCls = storage_connection(pool.ConnectionCls)  # urllib3 reads it from the pool
        return pool


def _failure(method: str, url: str, error: Exception, network: NetworkSettings) -> StorageFailed:
    """Return the failure for an error of the network or of urllib3."""
    cause = first_cause(error)
    if isinstance(cause, IncompleteRead):
        return StorageFailed(method, url, _missing(cause))
    return _failed(method, url, failure_of_urllib3(error, url, network))


def _failed(method: str, url: str, failure: TransportFailed | ResponseRefused) -> StorageFailed:
    if isinstance(failure, ResponseRefused):
        return storage_refused(method, url, failure.status, {}, failure.reason)
    return StorageFailed(method, url, failure.reason)


def _missing(cause: IncompleteRead) -> str:
    if cause.expected is None:  # it ends in its head, or where a chunk should begin
        return "the response is incomplete"
    return f"the response is incomplete: {cause.expected} bytes are missing at its end"


def _parts_of(method: str, url: str) -> SplitResult:
    """Return the parts of a URL, which may be that of a reference, without a user and a fragment."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if _URL.fullmatch(url) and parts.hostname and parts.port != 0:
            host = parts.netloc.rpartition("@")[2]
            parse_url(f"{parts.scheme}://{host}")  # also raises a ValueError: for hosts such as [v1.a]
            return parts._replace(netloc=host, path=parts.path or "/", fragment="")
    finding = "the response of the service has a URL that is not valid"
    raise RedirectRefused(method, url, f"{finding}; expected an http or https URL with a host")


class _LocalError(Exception):
    """Carries an error of the source or of `progress` past urllib3, which would blame the connection."""

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
