"""Sends requests of the synchronous client, over the adapters of requests.

`Session.request` is not used, because it reads the environment for every call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import HTTPError

from taskqueue_client._protocol.api_responses import (
    MAX_RESPONSE,
    Response,
    ResponseRefused,
    TransportFailed,
    unpacked,
)
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client.errors import InvalidArgument

from .connection_errors import failure_of_urllib3
from .network import USER_AGENT, WANTS_USER, NetworkSettings, forget_in_children, proxy_refused
from .sync_connections import Attempt, add_deadline, current_attempt

POOL_SIZE = 32
"""Idle connections that are kept for the threads of one client; a worker has fewer busy ones."""

_PIECE = 2**20  # bytes that are read at a time of a body whose length is unknown


class SyncTransport:
    """Sends requests over a session, and follows no redirects. May be used from many threads.

    An injected session is never closed; without one, the transport has its own, with the network settings.
    """

    def __init__(self, session: requests.Session | None, root_url: str, network: NetworkSettings) -> None:
        self.owns_session = session is None
        self._network = network if session is None else None
        self._forwarder = ""
        self._settings: dict[str, Any] = {}
        if session is None:
            network.check(root_url, socks=True)
            self._forwarder = network.forwarding_proxy(root_url)
            self._session = _own_session(network)
        else:
            self._session = session
            self._settings = _settings_of(session, root_url)
            self._connection_settings = {key: self._settings[key] for key in ("verify", "proxies", "cert")}
        self._settings["stream"] = True

    def close(self) -> None:
        """Close the connections of the transport's own session; a later request opens new ones."""
        if self.owns_session:
            self._session.close()

    def request(self, request: Request, timeouts: Timeouts) -> Response:
        ends = time.monotonic() + timeouts.total
        attempt = Attempt(timeouts.read, ends, TransportFailed.LATE)
        token = current_attempt.set(attempt)
        try:
            response = self._send(request, timeouts)
            body = _read(response, attempt)
        except (OSError, HTTPError) as error:  # of requests, of urllib3, or about a CA bundle
            raise _failure(error, request.url, self._network) from error
        finally:
            current_attempt.reset(token)
        status, headers = response.status_code, response.headers
        if status == WANTS_USER:
            raise proxy_refused(request.url, self._network)
        if "content-encoding" in headers:
            body = unpacked(status, headers, body, MAX_RESPONSE)
        return Response(status, headers, body, self._forwarder)

    def _send(self, request: Request, timeouts: Timeouts) -> requests.Response:
        prepared = requests.PreparedRequest()
        prepared.method = request.method
        prepared.url = request.url
        prepared.headers = CaseInsensitiveDict[Any]({**self._session.headers, **request.headers})
        if not self.owns_session:
            _drop_unsent(prepared.headers, request)
        if request.body is not None or request.method != "GET":
            prepared.headers["Content-Length"] = str(len(request.body or b""))
        prepared.body = request.body
        adapter = self._session.get_adapter(request.url)
        if not self.owns_session and isinstance(adapter, HTTPAdapter):
            add_deadline(adapter.get_connection_with_tls_context(prepared, **self._connection_settings))
        return adapter.send(prepared, timeout=(timeouts.connect, timeouts.read), **self._settings)


def _read(response: requests.Response, attempt: Attempt) -> bytes:
    raw = response.raw
    if not hasattr(raw, "stream"):  # a user's adapter may make a response without urllib3
        return response.content
    try:
        body = _body(raw, response.status_code, attempt)
    except BaseException:
        raw.close()
        raise
    raw.release_conn()
    return body


def _body(raw: Any, status: int, attempt: Attempt) -> bytes:
    if (length := raw.length_remaining) is None:  # chunks, or all until the connection ends
        return b"".join(_pieces(raw, status, attempt))
    if length > MAX_RESPONSE:
        raise ResponseRefused.too_large(status, MAX_RESPONSE)
    body: bytes = raw.read(decode_content=False)
    return body


def _pieces(raw: Any, status: int, attempt: Attempt) -> Iterator[bytes]:
    size = 0
    while piece := raw.read(_PIECE, decode_content=False):
        size += len(piece)
        if size > MAX_RESPONSE:
            raise ResponseRefused.too_large(status, MAX_RESPONSE)
        yield piece
        attempt.left()


class _OneOrigin(HTTPAdapter):
    """Sends to one origin, with the same settings every time, and so looks for its pool only once."""

    _pool: HTTPConnectionPool | None = None

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network
        super().__init__()
        forget_in_children(self)

    def get_connection_with_tls_context(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> Any:
        pool = self._pool  # another thread may close the client, or send at the same time
        if pool is None:
            url = request.url or ""
            made = self._network.pool_manager(url, maxsize=POOL_SIZE).connection_from_url(url)
            add_deadline(made)
            pool = self.__dict__.setdefault("_pool", made)  # atomic: all threads use the first pool
        return pool

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Do nothing: the TLS context of the connection pool verifies certificates."""

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:  # noqa: ARG002 - the name that requests passes
        """Return the part of the signed URL after the host; for an HTTP proxy, the whole URL."""
        url, pool = request.url or "", self._pool
        if pool is not None and pool.proxy is not None and url.startswith("http:"):
            return url
        return "/" + url.split("/", 3)[3]

    def build_response(self, req: requests.PreparedRequest, resp: Any) -> requests.Response:
        """Return the response without its cookies, and without a guess at the encoding of its text."""
        response = requests.Response()
        response.request, response.raw = req, resp
        response.status_code, response.headers = resp.status, resp.headers
        return response

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        pool = self._pool
        if pool is not None:
            pool.close()
        self.forget()
        super().close()

    def forget(self) -> None:
        """Drop the connections without closing them: the parent still uses them."""
        self.__dict__.pop("_pool", None)


def _own_session(network: NetworkSettings) -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _OneOrigin(network))
    session.headers = CaseInsensitiveDict({"User-Agent": USER_AGENT})
    return session


# An injected session


def _settings_of(session: requests.Session, root_url: str) -> dict[str, Any]:
    """Return the proxies and the CA bundle of an injected session, read once, and not for every call."""
    settings = {**session.merge_environment_settings(root_url, {}, None, None, None)}
    bundle = settings["verify"]
    if isinstance(bundle, str) and root_url.startswith("https:") and not Path(bundle).exists():
        variables = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # requests reads them first
        argument = next((each for each in variables if os.environ.get(each) == bundle), "session.verify")
        raise InvalidArgument(argument, bundle, "a file or folder of certificates")
    return settings


def _drop_unsent(headers: CaseInsensitiveDict[Any], request: Request) -> None:
    """Drop an injected session's headers that are not to be sent.

    None stands for no header, as in `Session.request`; and the signature of a call without a body says
    that there is no content type.
    """
    if request.body is None:
        headers.pop("Content-Type", None)
    for name in [name for name, value in headers.items() if value is None]:
        del headers[name]


# Failures


def _failure(
    error: Exception, url: str, network: NetworkSettings | None
) -> TransportFailed | ResponseRefused:
    if isinstance(error, requests.RequestException):
        error.request = error.response = None  # they have the signature, and the error may be logged
    failure = failure_of_urllib3(error, url, network)
    if isinstance(error, requests.Timeout) and isinstance(failure, TransportFailed):
        failure.timed_out = True  # also if an injected session has raised it without a cause
    if network is None and isinstance(failure, TransportFailed):
        failure.is_unsent = False  # an injected session may retry: only its last attempt was not sent
    return failure
