"""An HTTP server on this machine that signs a task's API calls: Taskcluster's proxy, as part of the worker.

Commands call the deployment through `TASKCLUSTER_PROXY_URL` and never see credentials. Calls are signed with
the run's current credentials, restricted to what the task may do. The paths and headers are those of
taskcluster-proxy, described in Taskcluster's documents on the task environment.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from http import HTTPStatus
from ipaddress import IPv4Address
from random import random
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from taskqueue_client._protocol.api_responses import TransportFailed, date_of
from taskqueue_client._protocol.wire import Origin, Signer, nonce
from taskqueue_client._transport.async_connections import connection_failure
from taskqueue_client._transport.network import WANTS_USER, NetworkSettings
from taskqueue_client._version import __version__
from taskqueue_client.credentials import Credentials, certificate_of, checked
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.outcomes import thread_refused
from taskqueue_client.worker.threads import EventThread
from taskqueue_client.worker.worker_log import log

from .bounded_server import BoundedServer, files_of_servers

RETRIED_BODY = 1024 * 1024
"""Bytes of a request's body that are kept for a retry; a longer body is streamed, and sent once."""

MOST_CALLS = 64
"""Connections of one proxy: each may take 1.4 MB of the worker's memory, which all its tasks need."""

ATTEMPTS = 5
"""How often a call is sent at most, if it gets no response or a 5xx."""

BACKOFF = 0.1
"""Seconds between the first two attempts; they double, and up to as many are added at random."""

_CONNECT = 10.0  # seconds

TIMEOUT = aiohttp.ClientTimeout(total=None, connect=_CONNECT, sock_read=60)
"""Seconds. `connect` includes the response of an HTTP proxy to `CONNECT`; `sock_connect` would not."""

SENT_WITHIN = 120.0
"""Seconds for sending a call whose body is kept, and for the head of its response. aiohttp does not bound
sending: a network that loses all packets would delay the call by a quarter of an hour."""

WRONG_CLOCK = 60.0
"""If the worker's time differs by more seconds from the service's, a refused call is signed again, with the
service's time. The service refuses signatures whose time differs by 15 minutes."""

BEWIT_LIFETIME = 3600
"""Seconds that a URL signed by `/bewit` works."""

_CLOSING = 0.01
"""Seconds that calls under way get when the proxy is closed. aiohttp takes 0 for "no limit"."""

_LOOPBACK: Final = "127.0.0.1"
"""The address to listen on, unless the handler gives another one."""

_NO_RESPONSE = (aiohttp.ClientConnectionError, aiohttp.ClientHttpProxyError, OSError)
"""Errors after which a call is repeated. A malformed response is not one of them: the call has been made."""

_BLOCK = 256 * 1024
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "upgrade", "host", "authorization", "content-length", "expect"}
)
"""Headers that are not passed on: of one connection (RFC 9110, 7.6.1), or set by the proxy. `Connection` can
name more."""

_NEVER_REPEATED = re.compile(
    r"POST .*/(claim-work/[^/]+(/[^/]+)?|task/[^/]+/(rerun|priority))|PUT .*/workers/[^/]+/[^/]+"
)
"""The calls of `_protocol.retry.UNREPEATABLE`, which the clients do not repeat either."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that newer versions of aiohttp refuse to send in a header."""

_HOSTNAME = re.compile(
    r"(?=.{1,253}(:|$))([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z0-9-]{1,63}(:\d+)?"
)
_API_PATH = re.compile(r"/api(/[^/]+/[^/]+/.*)")
_OLD_PATH = re.compile(r"(/[^/.]+/[^/]+/.*)")
_HOST_PATH = re.compile(r"/([^/]*\.[^/]*)(/.*)?")


def _address(given: object) -> str:
    """Return the text of an IPv4 address, or raise InvalidArgument."""
    with suppress(ValueError):
        if isinstance(given, str) and not IPv4Address(given).is_unspecified:
            return given
    raise InvalidArgument("host", given, "an IPv4 address of this machine, such as 172.17.0.1")


class TaskProxy:
    """Signs the API calls of one run's commands, from its creation until `close`.

    Runs in a separate thread, so a handler that blocks does not hold up its commands. Use it as a context
    manager, or call `close`. The URL of a `plain` proxy lacks the secret path, for programs that cannot use a
    root URL with a path: every process that reaches the address can use such a proxy.

    Args:
        host: The address to listen on, instead of `127.0.0.1`.
        run: The run, for the worker's log.
        runs: The concurrency of the worker. The proxies of so many runs share its file descriptors.

    Attributes:
        is_closed: Whether it was closed.

    Raises:
        InvalidArgument: `host` is not an IPv4 address.
        OSError: `host` is not an address of this machine, or no file descriptor is free.
    """

    def __init__(
        self,
        root_url: str,
        credentials: Credentials,
        authorized_scopes: Sequence[str],
        server_time: Callable[[], float],
        *,
        plain: bool = False,
        host: str = _LOOPBACK,
        run: object = "a run",
        runs: int = 1,
    ) -> None:
        self._run = run
        share = files_of_servers(runs) // (4 * runs)  # each takes three files; live logs get a quarter
        self._most = min(share, MOST_CALLS)
        self._host = _address(host)
        self._failures: Counter[str] = Counter()
        self._hosts = {self._host, _LOOPBACK, "localhost"}  # others: a web page, by DNS rebinding
        self._root_url = root_url
        self._authorized_scopes = tuple(authorized_scopes)
        self._server_time = server_time
        self.path: Final = "" if plain else f"/{secrets.token_urlsafe(24)}"
        self._network = NetworkSettings()
        self.is_closed = False
        self.use_credentials(credentials)
        try:
            self._thread = EventThread("task proxy")
        except RuntimeError as error:
            raise thread_refused() from error
        self.url: Final = self._thread.begin(self._start())

    def use_credentials(self, credentials: Credentials) -> None:
        """Sign with other credentials from the next attempt on. May be called from any thread."""
        self._signer = _RunSigner(credentials.restricted_to(self._authorized_scopes))

    def close(self) -> None:
        """Stop listening and close all connections, those of calls under way too."""
        if not self.is_closed:
            self.is_closed = True
            self._thread.submit(self._stop()).result()
            self._thread.stop()
            if (unlogged := self._failures.total() - len(self._failures)) > 0:
                log.warning("proxy of %s: further calls that failed or were cut: %d", self._run, unlogged)

    def __enter__(self) -> str:
        return self.url

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _start(self) -> str:
        listener = socket.create_server((self._host, 0))  # first: nothing is open if it fails
        self._session, self._session_of_retries = _session(), _session(force_close=True)
        self._server = BoundedServer(self._serve, f"the proxy of {self._run}", self._most)
        self._server.start(listener, _CLOSING)
        return f"http://{self._host}:{listener.getsockname()[1]}{self.path}"

    async def _stop(self) -> None:
        await self._server.stop()
        await self._session.close()
        await self._session_of_retries.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self.path and request.host.partition(":")[0] not in self._hosts:
            return _text(
                421, f"Misdirected request: the host must be one of {', '.join(sorted(self._hosts))}"
            )
        given = request.raw_path
        if not hmac.compare_digest(given[: len(self.path)].encode(), self.path.encode()):
            refusal = _text(404, "Not found: use the whole URL of TASKCLUSTER_PROXY_URL")
            refusal.force_close()  # a stranger could keep the connection open
            return refusal
        response = await self._response(request, given[len(self.path) :])
        if not response.prepared:
            response.headers.update(self._signer.about)
        return response

    async def _response(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        bare, mark, query = path.partition("?")
        if bare == "/bewit":
            return await self._sign_url(request)
        if bare == "/credentials":
            return await self._replace_credentials(request)
        target = self._target(bare)
        if target is None:
            return _text(404, f"Not found: {bare}: expected /api/SERVICE/VERSION/PATH or /HOSTNAME/PATH")
        return await self._forward(request, target + mark + query)

    def _target(self, path: str) -> str | None:
        """Return the URL that a path stands for, both without a query; None if the path is not valid."""
        if path.startswith("/api/"):
            found = _API_PATH.fullmatch(path)
            return f"{self._root_url}/api{found[1]}" if found else None
        if found := _OLD_PATH.fullmatch(path):
            return f"{self._root_url}/api{found[1]}"
        found = _HOST_PATH.fullmatch(path)
        if found and _HOSTNAME.fullmatch(found[1]):
            return f"https://{found[1]}{found[2] or '/'}"
        return None

    async def _sign_url(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        try:
            url = body.decode().strip()
            is_http = urlsplit(url).scheme in {"http", "https"} and urlsplit(url).hostname
            if not is_http or not url.isprintable():  # a line break would end the header of the response
                raise InvalidArgument("URL", url, "an absolute http or https URL")
            signed = self._signer.signed_url(url, expires=int(self._server_time()) + BEWIT_LIFETIME)
        except ValueError as error:  # an InvalidArgument is a ValueError
            return _text(500, f"Error creating bewit url: {error}")
        return web.Response(status=303, headers={"Location": signed}, text=signed)

    async def _replace_credentials(self, request: web.BaseRequest) -> web.Response:
        if request.method != "PUT":
            return _text(405, "Invalid method: expected PUT")
        try:
            given = msgspec.json.decode(await request.read(), type=Credentials)
            if given.certificate == "":
                given = msgspec.structs.replace(given, certificate=None)
            self.use_credentials(checked(given))
        except (msgspec.MsgspecError, InvalidArgument, RecursionError):
            return _text(400, "Invalid body: expected a JSON object with clientId, accessToken, certificate")
        return web.Response()

    async def _forward(self, request: web.BaseRequest, target: str) -> web.StreamResponse:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, whole = await _first_bytes(request)
        once = not whole or _NEVER_REPEATED.fullmatch(f"{request.method} {target.partition('?')[0]}")
        send = partial(self._send, request, target, body, whole=whole)
        try:
            received = await (send() if once else _with_retries(send))
            if whole and (now := self._time_if_stale(received)) is not None:
                received.release()
                received = await send(now=now)
            _check(received)
        except (TransportFailed, aiohttp.ClientError, OSError, ValueError) as error:
            why = self._reason(error, target)
            self._warn("proxy of %s: %s %s failed: %s", request.method, _shown(target), why)
            failed = _text(500, f"Failed during proxy request: {why}: {_shown(target)}")
            failed.headers["X-Taskcluster-Endpoint"] = target
            return failed
        return await self._pass_back(request, received, target)

    def _warn(self, message: str, *args: str) -> None:
        """Log the first failure of a kind, and count the others: a task could fill the worker's log."""
        self._failures[message] += 1
        if self._failures[message] == 1:
            log.warning(message, self._run, *args)

    def _time_if_stale(self, received: aiohttp.ClientResponse) -> float | None:
        """Return the service's time if a call may have been refused for the time in its signature; else None.

        This machine's clock may have been set since the worker's last call. The body is not read: it may be
        compressed.
        """
        now = date_of(received.headers) if received.status == HTTPStatus.UNAUTHORIZED else None
        return None if now is None or abs(now - self._server_time()) <= WRONG_CLOCK else now

    def _reason(self, error: Exception, target: str) -> str:
        """Return why there is no response; without the query of the URL, which may contain a signature."""
        if isinstance(error, TransportFailed):
            return error.reason
        if isinstance(error, InvalidArgument) and error.argument == "credentials":
            return str(error)  # of `Signer`: the scopes of the task are too many for a signature
        if isinstance(error, ValueError):
            return "the URL or a header of the request is not valid"
        return connection_failure(error, error, target, self._network).reason

    async def _send(
        self,
        request: web.BaseRequest,
        target: str,
        body: bytes,
        *,
        whole: bool,
        anew: bool = False,
        now: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request once, with a new signature, without following redirects.

        `anew` uses a new connection. So does a call to another host than the root URL's: a task could call
        many hosts, and use up the worker's file descriptors with idle connections to them. `now` is the
        service's time, if `server_time` is wrong.
        """
        is_kept = not anew and target.startswith(f"{self._root_url}/")
        session = self._session if is_kept else self._session_of_retries
        headers = _forwarded_headers(request.headers)
        if body:
            headers.setdefault("Content-Type", "application/json")  # as taskcluster-proxy does
        headers["Authorization"] = self._authorization(request.method, target, now)
        if request.body_exists:
            headers["Content-Length"] = str(len(body) if whole else request.content_length or 0)
        if not whole and request.content_length is None:
            del headers["Content-Length"]  # the body is sent in chunks, as it arrives
        proxy = self._network.proxy(target)
        if proxy is not None and target.startswith("http:"):  # `proxy_headers` are those of a CONNECT
            headers.update(proxy.headers)
        async with asyncio.timeout(SENT_WITHIN if whole else None):
            return await session.request(
                request.method,
                URL(target, encoded=True),
                headers=headers,
                data=(body if whole else _whole_body(body, request)) if request.body_exists else None,
                allow_redirects=False,
                ssl=self._network.tls if target.startswith("https:") else True,
                proxy=None if proxy is None else proxy.url,
                proxy_headers=None if proxy is None else proxy.headers,
            )

    def _authorization(self, method: str, target: str, now: float | None) -> str:
        """Return the header for one attempt, without a hash of the body: not every body fits into memory."""
        origin = Origin.of(target)
        resource = "/" + target.split("/", 3)[3]
        timestamp = int(self._server_time() if now is None else now)
        return self._signer.header(method, origin, resource, timestamp=timestamp, nonce=nonce(), body=None)

    async def _pass_back(
        self, request: web.BaseRequest, received: aiohttp.ClientResponse, target: str
    ) -> web.StreamResponse:
        headers = _forwarded_headers(received.headers)
        headers["X-Taskcluster-Endpoint"] = target
        headers.update(self._signer.about)
        response = web.StreamResponse(status=received.status, reason=received.reason, headers=headers)
        response.content_length = length = received.content_length
        try:
            if length is not None and length <= _BLOCK and request.method != "HEAD":
                body = await received.read()  # sent together with the headers, which is faster
                return web.Response(
                    status=received.status, reason=received.reason, headers=headers, body=body
                )
            await response.prepare(request)
            if request.method != "HEAD":
                async for block in received.content.iter_chunked(_BLOCK):
                    await response.write(block)
        except (aiohttp.ClientError, OSError):
            self._warn("proxy of %s: the response to %s %s was cut short", request.method, _shown(target))
            if request.transport is not None:
                request.transport.abort()  # an incomplete response must not look like a whole one
        finally:
            received.release()
        return response


class _RunSigner(Signer):
    """Signs with credentials, and describes them."""

    @cached_property
    def about(self) -> dict[str, str]:
        """The headers that tell a task with which client and scopes a call was made."""
        credentials = self.credentials
        about = {
            "X-Taskcluster-Proxy-Version": __version__,
            "X-Taskcluster-Proxy-Revision": __version__,
            "X-Taskcluster-Authorized-Scopes": _json(credentials.authorized_scopes),
        }
        if credentials.certificate is None:
            about["X-Taskcluster-Proxy-Perm-ClientId"] = credentials.client_id
        else:
            scopes = certificate_of(credentials.certificate).get("scopes")
            about["X-Taskcluster-Proxy-Temp-ClientId"] = credentials.client_id
            about["X-Taskcluster-Proxy-Temp-Scopes"] = _json(scopes)
        return about


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def _json(value: object) -> str:
    """Return JSON for a header, in which aiohttp refuses the one control character that JSON allows."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _check(received: aiohttp.ClientResponse) -> None:
    """Refuse a response that cannot be passed back."""
    if received.status < HTTPStatus.OK:
        refused = "the response switches to another protocol"
    elif _CONTROL.search("".join((received.reason or "", *received.headers.values()))):
        refused = "a header of the response contains a control character"
    else:
        return
    received.close()
    raise TransportFailed(refused)


def _shown(target: str) -> str:
    """Return a URL without its query, which may contain a signature."""
    return target.partition("?")[0]


async def _first_bytes(request: web.BaseRequest) -> tuple[bytes, bool]:
    """Return the first bytes of a body, and whether they are the whole body."""
    body = bytearray()
    while len(body) < RETRIED_BODY:
        block = await request.content.readany()
        if not block:
            return bytes(body), True
        body += block
    return bytes(body), False


async def _whole_body(beginning: bytes, request: web.BaseRequest) -> AsyncIterator[bytes]:
    yield beginning
    async for block in request.content.iter_any():
        yield block


def _forwarded_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    passed = CIMultiDict(headers)
    named = {name.strip().lower() for each in headers.getall("Connection", ()) for name in each.split(",")}
    for name in _HOP_BY_HOP | named:
        passed.popall(name, None)
    return passed


def _session(*, force_close: bool = False) -> aiohttp.ClientSession:
    """Return a session; with `force_close`, it uses no connection twice, and tries two addresses at a time.

    Otherwise, each retry after a restart of a load balancer could fail on another idle connection, and a call
    to a host with many addresses that do not respond would take many file descriptors.
    """
    delay = _CONNECT / 2 if force_close else 0.25  # seconds until the next address is tried, too
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=force_close, happy_eyeballs_delay=delay),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=TIMEOUT,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        read_bufsize=_BLOCK,
    )
    # aiohttp repeats PUT and GET by itself, even calls that must be sent once. No option turns that off.
    session._retry_connection = False  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return session


async def _with_retries(send: Callable[..., Awaitable[aiohttp.ClientResponse]]) -> aiohttp.ClientResponse:
    """Send a request up to `ATTEMPTS` times; return the last response, or raise the last error."""
    for failures in range(ATTEMPTS - 1):
        try:
            received = await send()
        except _NO_RESPONSE as error:
            if isinstance(error, aiohttp.ClientHttpProxyError) and error.status == WANTS_USER:
                raise  # as in the clients: another attempt would send the same user and password
            send = partial(send, anew=True)
        else:
            if received.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return received
            received.release()
        await asyncio.sleep(BACKOFF * (2**failures + random()))  # noqa: S311 - spreads calls, keeps no secret
    return await send()
