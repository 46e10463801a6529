"""One attempt at a PUT or a GET of a storage URL. Everything here blocks, and runs on a thread.

A PUT has a `Content-Length`, and a body read afresh from its source. Nothing is repeated here, and
nothing but what is written here is sent: no `Authorization`, no cookies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urljoin, urlsplit

from taskqueue_client._exchange import Exchanges
from taskqueue_client._version import __version__

from .buffers import BLOCK, Block, blocks_in_turn
from .cancellation import Cancellation
from .connections import Connections, Place, Timeouts, proxy_for, proxy_headers
from .errors import RedirectRefused, StorageFailed, StorageRefused
from .hashing import Hashes, hexdigests
from .kernel_copy import can_send, send_all_but_last_block
from .sources import Source

Progress = Callable[[int, int | None], object]
"""Told the bytes done, and of how many where that is known."""

USER_AGENT = f"taskqueue_client/{__version__}"

MOST_REDIRECTS = 5

MOST_THREADS = 32
"""Transfers of one client that block at once at most; an idle thread is used before a new one is made."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SUCCESS = range(200, 300)
_ANSWER = 64 * 1024
"""Bytes of an answer to a PUT, or of a refusal, that are read at most."""


@dataclass(frozen=True, slots=True)
class Put:
    """One attempt to send a source to a URL.

    Attributes:
        headers: All that are sent, but for `Host` and `Content-Length`.
        algorithms: The hashes to compute of what is sent.
        needs_hashes: Without that, they are left out where sending is twice as fast without them.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str]
    source: Source
    algorithms: tuple[str, ...]
    progress: Progress
    timeouts: Timeouts
    needs_hashes: bool = True

    def all_headers(self) -> dict[str, str]:
        """The headers with the length of the body, which is always known."""
        return {**self.headers, "Content-Length": str(self.source.size)}


@dataclass(frozen=True, slots=True)
class Get:
    """One attempt to read a URL."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    timeouts: Timeouts


class Incoming:
    """The answer to a GET, while its body comes in.

    Attributes:
        status: 200 or 206.
    """

    def __init__(self, get: Get, response: HTTPResponse) -> None:
        self._get = get
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        """A header, if it is there."""
        return self._response.getheader(name)

    def blocks(self, *, is_impatient: bool = False) -> Iterator[Block]:
        """The body, still encoded. A block is good until some more have come; see `blocks_in_turn`.

        Args:
            is_impatient: Give what comes as it comes, and not in whole blocks.

        Raises:
            StorageFailed: It was cut short.
        """
        buffers = blocks_in_turn()
        while block := self._read_some() if is_impatient else self._read_into(next(buffers)):
            yield block
        if self._response.length:
            raise StorageFailed("GET", self._get.url, f"{self._response.length} bytes are missing at its end")
        self._response.close()  # all was read, so that the connection can be used again

    def _read_some(self) -> bytes:
        with _network("GET", self._get.url):
            return self._response.read1(BLOCK)

    def _read_into(self, buffer: memoryview) -> memoryview:
        with _network("GET", self._get.url):
            return buffer[: self._response.readinto(buffer)]


class Storage:
    """What a client sends to storage services, and reads from them. May be used from many threads.

    Close it, or let it go.
    """

    def __init__(self) -> None:
        self.connections = Connections()

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Where an event loop lets transfers block: not in its default pool, which others need too."""
        return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="artifacts")

    @cached_property
    def stream_threads(self) -> ThreadPoolExecutor:
        """The same for streams, without a limit: each holds a thread for as long as its reader likes.

        A reader that waits for another transfer of the client would wait for its own thread otherwise.
        """
        return ThreadPoolExecutor(sys.maxsize, thread_name_prefix="artifact-streams")

    def exchanges(self) -> Exchanges:
        """Another way to places that no proxy leads to, for small content, from the running event loop."""
        return Exchanges(lambda: self.connections.tls)

    def close(self) -> None:
        """Close the idle connections, and let the threads end; a later transfer makes new ones."""
        self.connections.close()
        for name in ("threads", "stream_threads"):
            if threads := vars(self).pop(name, None):
                threads.shutdown(wait=False)

    def __del__(self) -> None:
        """Close without a warning what nobody closed."""
        self.connections.close()

    def put(self, put: Put, cancellation: Cancellation) -> dict[str, str]:
        """Send a source; gives the hashes of what was sent.

        Raises:
            StorageFailed: It did not arrive.
            SourceChanged: It was changed meanwhile; what arrived is not complete.
            OSError: The source cannot be read.
        """
        place = Place.of("PUT", put.url)
        with self._connected("PUT", put.url, put.timeouts, cancellation) as exchange:
            with _network("PUT", put.url):
                exchange.send_head(place, "PUT", put.all_headers())
            hashes, broken = _send_body(exchange.connection, put, cancellation)
            _read_answer(exchange, put, broken)
        return hashes

    @contextmanager
    def get(self, get: Get, cancellation: Cancellation) -> Generator[Incoming, None, None]:
        """Read a URL, and where it leads.

        Raises:
            StorageFailed: There is nothing to read.
        """
        url = get.url
        for _ in range(1 + MOST_REDIRECTS):
            with self._connected("GET", url, get.timeouts, cancellation) as exchange:
                with _network("GET", url):
                    exchange.send_head(Place.of("GET", url), "GET", get.headers)
                    response = exchange.receive_head()
                location = response.getheader("Location")
                if response.status not in _REDIRECTS or location is None:
                    yield _welcome(get, url, response)
                    return
            url = _redirected(url, location)
        raise RedirectRefused("GET", get.url, f"more than {MOST_REDIRECTS} redirects")

    @contextmanager
    def _connected(
        self, method: str, url: str, timeouts: Timeouts, cancellation: Cancellation
    ) -> Generator[_Exchange, None, None]:
        """A connection for one request; it is kept if that went well to its end."""
        address = Place.of(method, url).address
        with _network(method, url):
            connection = self.connections.take(address, timeouts)
        exchange = _Exchange(connection)
        try:
            with cancellation.watching(connection.sock):
                yield exchange
        finally:
            if exchange.is_complete:
                self.connections.give_back(address, connection)
            else:
                connection.close()


class _Exchange:
    """A request and its answer."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection = connection
        self._response: HTTPResponse | None = None

    def send_head(self, place: Place, method: str, headers: Mapping[str, str]) -> None:
        target, extra = _seen_by_proxy(place)
        self.connection.putrequest(method, target, skip_accept_encoding=True, skip_host=True)
        ours = {"Host": place.address.header, "User-Agent": USER_AGENT}
        for name, value in {**ours, **headers, **extra}.items():
            self.connection.putheader(name, value)
        self.connection.endheaders()

    def receive_head(self) -> HTTPResponse:
        self._response = self.connection.getresponse()
        return self._response

    @property
    def is_complete(self) -> bool:
        """Whether the answer was read to its end, and the connection is still there."""
        return self._response is not None and self._response.isclosed() and self.connection.sock is not None


@contextmanager
def _network(method: str, url: str) -> Generator[None, None, None]:
    """Turns what goes wrong between here and there into StorageFailed."""
    try:
        yield
    except (OSError, HTTPException) as error:
        raise _failure(method, url, error) from error


def _failure(method: str, url: str, error: Exception) -> StorageFailed:
    return StorageFailed(method, url, f"{type(error).__name__}: {error}".rstrip(": "))


def _seen_by_proxy(place: Place) -> tuple[str, dict[str, str]]:
    """The request's target, and what a proxy that reads the request wants to know."""
    proxy = proxy_for(place.address) if place.address.scheme == "http" else None
    if proxy is None:
        return place.target, {}
    return f"http://{place.address.header}{place.target}", proxy_headers(proxy)


def _send_body(
    connection: HTTPConnection, put: Put, cancellation: Cancellation
) -> tuple[dict[str, str], OSError | None]:
    """The hashes of what was sent, and why that was not all: the answer may know better."""
    if put.source.content is not None:
        broken = _send(connection, put.source.content)
        put.progress(put.source.size, put.source.size)
        return hexdigests(put.algorithms, put.source.content), broken
    sent = 0
    if not (put.algorithms and put.needs_hashes) and can_send(connection.sock, put.source):
        put = replace(put, algorithms=())
        try:
            for sent in cancellation.checked(send_all_but_last_block(connection.sock, put.source)):
                put.progress(sent, put.source.size)
        except OSError as error:
            return {}, error
    return _send_blocks(connection, put, cancellation, sent)


def _send_blocks(
    connection: HTTPConnection, put: Put, cancellation: Cancellation, sent: int
) -> tuple[dict[str, str], OSError | None]:
    """Send what comes after the bytes `sent` already."""
    with Hashes(put.algorithms) as hashes:
        for block in cancellation.checked(put.source.blocks(sent)):
            hashes.update(block)
            if broken := _send(connection, block):
                return {}, broken
            sent += len(block)
            put.progress(sent, put.source.size)
        return hashes.hexdigests(), None


def _send(connection: HTTPConnection, block: Block) -> OSError | None:
    try:
        connection.send(block)
    except OSError as error:
        return error
    return None


def _read_answer(exchange: _Exchange, put: Put, broken: OSError | None) -> None:
    """Raises what the answer, or its absence, means."""
    if isinstance(broken, TimeoutError):
        raise _failure("PUT", put.url, broken) from broken
    try:
        response = exchange.receive_head()
        answer = response.read(_ANSWER)
    except (OSError, HTTPException) as error:
        raise _failure("PUT", put.url, broken or error) from error
    if broken:
        exchange.connection.close()
    if response.status not in _SUCCESS:
        raise StorageRefused.of("PUT", put.url, response.status, answer.decode(errors="replace"))
    if broken:
        raise _failure("PUT", put.url, broken) from broken


def _welcome(get: Get, url: str, response: HTTPResponse) -> Incoming:
    if response.status in _SUCCESS:
        return Incoming(get, response)
    with _network("GET", url):
        answer = response.read(_ANSWER)
    raise StorageRefused.of("GET", url, response.status, answer.decode(errors="replace"))


def _redirected(url: str, location: str) -> str:
    """Where a redirect leads.

    Raises:
        RedirectRefused: Out of TLS, out of HTTP, or to what is no URL.
    """
    try:
        there = urljoin(url, location).partition("#")[0]
        scheme = urlsplit(there).scheme
    except ValueError:
        raise RedirectRefused("GET", url, "redirected to what is no URL") from None
    if scheme not in {"http", "https"} or (url.startswith("https:") and scheme == "http"):
        raise RedirectRefused("GET", url, f"redirected to a {scheme} URL, which is not followed")
    return there
