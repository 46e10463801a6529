"""Encode and sign a call, decode its response, and attempt it again if that helps. No I/O.

`Wire` holds what a client knows about the service: its URL, the credentials, the difference of the clocks. A
client shares it with the copies that `with_options` returns. Each attribute is replaced as a whole, so that
threads need no lock.

Calls are signed by the rules of Hawk 1 and of Taskcluster's authentication documents. mohawk would spend most
of a signature's time on formatting the payload for a debug line. The tests compare these signatures with
mohawk's.
"""

from __future__ import annotations

import json
import logging
import math
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Generator
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from random import getrandbits
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from taskqueue_client import errors
from taskqueue_client._arguments import as_json, as_message_pack, may_have_odd_numbers
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials, checked, checked_root_url
from taskqueue_client.models import ClaimWorkResponse, Redirect, TaskClaim
from taskqueue_client.models._base import cut

from .api_responses import (
    NO_CONTENT,
    Response,
    ResponseRefused,
    TransportFailed,
    date_of,
    error_of_response,
    is_framed,
    sender,
    unreadable,
)
from .conversation import Call
from .retry import Retries, Timeouts, retried

if TYPE_CHECKING:
    from .call_spans import CallSpans

R = TypeVar("R")

LONGEST = 4096
"""The longest header, and the longest signed URL, that the Queue accepts, in characters."""

log = logging.getLogger("taskqueue_client")

_JSON = "application/json"

MAX_BODY = 10 * 1024 * 1024
"""The largest request body that the services accept, in bytes. They respond to a larger one with an Internal
Server Error."""

_CLAIMS: frozenset[type] = frozenset({ClaimWorkResponse, TaskClaim})
"""Responses that are decoded even if a task in them is nested too deeply: all their runs are claimed."""

_SKEW_NOTICED = 5.0
"""Seconds: a smaller difference may come from the `Date` header's whole seconds and the network's delay."""
_SKEW_WARNED = 60.0


class Request(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None


class Origin(NamedTuple):
    """Host and port of a URL, as a signature covers them.

    The host is in lower case, an IPv6 address in brackets; the port is text, by default that of the scheme.
    """

    host: str
    port: str

    @classmethod
    def of(cls, url: str) -> Origin:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(f"[{host}]" if ":" in host else host, str(port))


def nonce() -> str:
    """Return a text that makes two signatures of the same second differ. It may be easy to guess."""
    return f"{getrandbits(48):x}"  # reading the system's random source would release the GIL


def payload_hash(content_type: str, body: bytes) -> str:
    """Return the base64 of SHA-256 over a request's content type, without parameters, and body."""
    return _payload_hash(content_type, body) if body or content_type else _HASH_OF_NOTHING


def _payload_hash(content_type: str, body: bytes) -> str:
    kind = content_type.partition(";")[0].strip().lower()
    digest = sha256(b"hawk.1.payload\n%b\n%b\n" % (kind.encode(), body)).digest()
    return b2a_base64(digest, newline=False).decode()


_HASH_OF_NOTHING = _payload_hash("", b"")


def _ext(credentials: Credentials) -> str:
    """Return the base64 of the certificate and the authorized scopes, which each request carries."""
    ext: dict[str, object] = {}
    if credentials.certificate is not None:
        ext["certificate"] = msgspec.Raw(credentials.certificate.encode())
    if credentials.authorized_scopes is not None:
        ext["authorizedScopes"] = credentials.authorized_scopes
    return urlsafe_b64encode(msgspec.json.encode(ext)).decode() if ext else ""


_BLOCK = 64  # bytes of a block of SHA-256
_INNER = bytes(each ^ 0x36 for each in range(256))
_OUTER = bytes(each ^ 0x5C for each in range(256))


class Signer:
    """Signs with credentials. Immutable, so that it can be replaced while other threads use it."""

    __slots__ = ("_client_id", "_key", "credentials", "ext")

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._client_id = str.__str__(credentials.client_id)  # of a member of an enumeration, the value
        key = credentials.access_token.encode()
        self._key = (key if len(key) <= _BLOCK else sha256(key).digest()).ljust(_BLOCK, b"\0")
        self.ext = _ext(credentials)

    def header(
        self,
        method: str,
        origin: Origin,
        resource: str,
        *,
        timestamp: int,
        nonce: str,
        content_type: str = "",
        body: bytes | None = b"",
    ) -> str:
        """Return the `Authorization` header of a request.

        `nonce` must contain neither `"` nor a backslash. If the body is None, the signature does not cover
        it, which is optional in Hawk.
        """
        hashed = "" if body is None else payload_hash(content_type, body)
        ext = self.ext
        host, port = origin.host.rstrip("."), origin.port  # as requests and aiohttp send them in `Host`
        mac = self._mac(
            f"hawk.1.header\n{timestamp}\n{nonce}\n{method}\n{resource}\n{host}\n{port}\n{hashed}\n{ext}\n"
        )
        hash_part = f'hash="{hashed}", ' if hashed else ""
        ext_part = f', ext="{ext}"' if ext else ""
        header = (
            f'Hawk mac="{mac}", {hash_part}id="{self._client_id}", '
            f'ts="{timestamp}", nonce="{nonce}"{ext_part}'
        )
        if len(header) > LONGEST:
            raise self._too_long("header", header)
        return header

    def bewit(self, origin: Origin, resource: str, *, expires: int) -> str:
        """Return the value of the `bewit` parameter that lets anybody GET a URL until it expires.

        `resource` is without a bewit; `expires` is in seconds since the epoch by the server's clock.
        """
        host, port = origin
        mac = self._mac(f"hawk.1.bewit\n{expires}\n\nGET\n{resource}\n{host}\n{port}\n\n{self.ext}\n")
        fields = "\\".join([self.credentials.client_id, str(expires), mac, self.ext])
        return urlsafe_b64encode(fields.encode()).decode().rstrip("=")

    def signed_url(self, url: str, *, expires: int) -> str:
        """Return `url` with the bewit that lets anybody GET it until it expires."""
        parts = urlsplit(url)
        path = parts.path or "/"
        resource = f"{path}?{parts.query}" if parts.query else path
        bewit = self.bewit(Origin.of(url), resource, expires=expires)
        query = f"{parts.query}&bewit={bewit}" if parts.query else f"bewit={bewit}"
        signed = parts._replace(path=path, query=query).geturl()
        if len(signed) > LONGEST:
            raise self._too_long("URL", signed)
        return signed

    def _mac(self, normalized: str) -> str:
        """Return the HMAC of a text (RFC 2104, section 2) in base64.

        `hmac.digest` would look up the algorithm in OpenSSL each time, which takes a sixth of a whole call.
        """
        inner = sha256(self._key.translate(_INNER) + normalized.encode()).digest()
        outer = sha256(self._key.translate(_OUTER) + inner).digest()
        return b2a_base64(outer, newline=False).decode()

    def _too_long(self, what: str, text: str) -> errors.InvalidArgument:
        allowed = (
            f"a {what} of at most {LONGEST} characters, not {len(text)}: "
            f"certificate and authorized scopes take up {len(self.ext)}, leave some scopes out"
        )
        return errors.InvalidArgument("credentials", self.credentials.client_id, allowed)


class _Skew(msgspec.Struct):
    """The seconds to add to this machine's time to get the service's time; several clients share it."""

    offset: float = 0.0
    known: bool = False
    epoch: float = 0.0
    """The time at which the monotonic clock was 0: changes if the machine's clock is set, or it sleeps."""
    warned: float = 0.0
    """The difference that was last warned of, in seconds: another difference causes another warning."""


def _not_a_call(given: object) -> errors.InvalidArgument:
    """Return the error for an argument that is not a Call, such as the generator of `calls.create_task`."""
    return errors.InvalidArgument("call", given, "a Call; create_task and iter_… are methods of clients")


class Wire:
    """A service's URL, credentials and clock, and the encoding of calls to it."""

    def __init__(self, root_url: str, credentials: Credentials | None, clock: Clock) -> None:
        self.root_url = checked_root_url(root_url)
        parts = urlsplit(self.root_url)
        self._origin_url = f"{parts.scheme}://{parts.netloc}"
        self._prefix = f"{parts.path}/"
        self._origin = Origin.of(self.root_url)
        self.clock = clock
        self._skew = _Skew()
        self._signer: Signer | None = None
        self.credentials = credentials

    @property
    def credentials(self) -> Credentials | None:
        """The credentials that sign the next attempts."""
        signer = self._signer
        return None if signer is None else signer.credentials

    @credentials.setter
    def credentials(self, credentials: Credentials | None) -> None:
        self._signer = None if credentials is None else Signer(checked(credentials))

    def url(self, call: Call[Any]) -> str:
        return self._origin_url + self._resource(call)

    def _resource(self, call: Call[Any]) -> str:
        query = f"?{urlencode(call.query)}" if call.query else ""
        below = f"api/{call.service}/v1" if call.service else "v1"
        return f"{self._prefix}{below}{call.path}{query}"

    def encode(self, call: Call[Any]) -> Request:
        """Return the request of one attempt at a call, freshly signed."""
        now = self.server_time()
        resource = self._resource(call)
        body = None if call.body is None else _encoded(call.body)
        if body is not None and len(body) > MAX_BODY:
            found = f"the request body of {call.endpoint} has {len(body):,} bytes as JSON"
            raise errors.InvalidArgument("body", None, f"at most {MAX_BODY:,}", found)
        headers = {"Accept-Encoding": "identity" if call.returns in _CLAIMS else "gzip", **call.headers}
        if body is not None:
            headers["Content-Type"] = _JSON
        signer = self._signer
        if signer is not None:
            headers["Authorization"] = signer.header(
                call.method,
                self._origin,
                resource,
                timestamp=int(now),
                nonce=nonce(),
                content_type="" if body is None else _JSON,
                body=body or b"",
            )
        return Request(call.method, self._origin_url + resource, headers, body)

    def decode(self, call: Call[R], response: Response) -> R:
        if not self._skew.known or response.status == HTTPStatus.UNAUTHORIZED:
            self._learn_offset(response)
        if response.status not in call.accepts:
            raise error_of_response(self.attempted(call), response, self.server_time())
        is_none = call.returns is NoneType
        may_be_empty = is_none or (response.status == NO_CONTENT and NoneType in get_args(call.returns))
        if may_be_empty and not response.body:
            return None  # type: ignore[return-value] # R allows None
        if call.returns is Redirect:
            return self._redirect(call, response)  # type: ignore[return-value] # R is Redirect
        try:
            # Also if the call returns None, an object is required: a login page would be taken for success.
            value: Any = msgspec.json.decode(response.body, type=dict[str, Any] if is_none else call.returns)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if "truncated" in str(error) and not is_framed(response):
                why = f"the response is incomplete: {error}"
                raise TransportFailed(why).of_call(self.attempted(call)) from error
            why = f"{sender(response.proxy)}{unreadable(response.body, error)}"
            raise errors.UnreadableResponse(self.attempted(call), response.status, why) from error
        except RecursionError as error:
            if call.returns in _CLAIMS and (body := cut(response.body)) != response.body:
                return self.decode(call, response._replace(body=body))
            why = f"nested deeper than this Python can read: {error}"
            raise errors.UnreadableResponse(self.attempted(call), response.status, why) from error
        return None if is_none else value  # type: ignore[return-value] # as above

    def _redirect(self, call: Call[Any], response: Response) -> Redirect:
        if not (location := response.headers.get("location")):
            why = "the header Location is missing or empty"
            raise errors.UnreadableResponse(self.attempted(call), response.status, why)
        return Redirect(location)

    def server_time(self) -> float:
        """Return the service's time in seconds since the epoch; this machine's before the first response."""
        now, running, skew = self.clock.now(), self.clock.monotonic(), self._skew
        if abs(now - running - skew.epoch) > _SKEW_NOTICED:  # the clock was set, or the machine has slept
            skew.known = False  # until the next response
        # To set this machine's clock back does not set the service's time back.
        return max(now, running + skew.epoch) + skew.offset

    def known_server_time(self) -> float:
        """Return the service's time, or NaN until a response was received: this machine's may be far off."""
        now = self.server_time()
        return now if self._skew.known else math.nan

    def attempted(self, call: Call[Any]) -> errors.Attempted:
        """Return the URL and endpoint of a call, with one attempt, for an error about the call."""
        return errors.Attempted(call.endpoint, call.method, self.url(call))

    def is_stale(self, error: errors.CallFailed) -> bool:
        """Return whether a call was refused only for its timestamp, and the service's time is known now."""
        stale = isinstance(error, errors.AuthenticationFailed) and "Stale timestamp" in error.message
        return stale and self._skew.known

    def signed_url(self, call: Call[Any], lifetime: float) -> str:
        """Return the URL of a GET call with a signature in it."""
        if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may not check types
            raise _not_a_call(call)
        if call.method != "GET":
            found = f"{call.endpoint} is a {call.method} request, for which there are no signed URLs"
            raise errors.InvalidArgument("call", call.endpoint, "a GET request", found)
        if not lifetime > 0:
            raise errors.InvalidArgument("lifetime", lifetime, "more than 0 seconds")
        signer = self._signer
        if signer is None:
            raise errors.InvalidArgument("credentials", None, "credentials, which sign the URL")
        return signer.signed_url(self.url(call), expires=int(self.server_time() + lifetime))

    def share_time(self, other: Wire) -> None:
        """Share what is known of the service's time with another client of the service."""
        self._skew = other._skew

    def _learn_offset(self, response: Response) -> None:
        """Compare the clocks: at the first response, after a clock was set, or if credentials are refused."""
        date = date_of(response.headers)
        if date is None:
            return
        now, skew = self.clock.now(), self._skew
        difference, skew.epoch = date - now, now - self.clock.monotonic()
        skew.offset = difference if abs(difference) > _SKEW_NOTICED else 0.0
        skew.known = True  # last: another thread may be in `known_server_time` now
        if abs(difference) <= _SKEW_NOTICED:
            skew.warned = 0.0
        elif min(abs(difference), abs(difference - skew.warned)) > _SKEW_WARNED:
            skew.warned = difference
            log.warning(
                "this machine's clock is %.0f s %s that of %s; calls are signed with the service's time",
                abs(difference),
                "behind" if difference > 0 else "ahead of",
                self.root_url,
            )


def _encoded(body: object) -> bytes:
    if isinstance(body, msgspec.Raw):  # JSON already, and checked
        return bytes(body)
    try:
        encoded = as_json(body)
        if b"null" in encoded and may_have_odd_numbers(as_message_pack(body)):
            json.dumps(body, allow_nan=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        finding = f"cannot be written as JSON: {error}"
        raise errors.InvalidArgument("body", type(body), "values that JSON can represent", finding) from error
    return encoded


class Attempt(NamedTuple):
    request: Request
    timeouts: Timeouts


Attempts = Generator[Attempt | float, Response | None, R]
"""Yields attempts, and seconds to wait. After an attempt, its response is sent in, or a `TransportFailed` or
`ResponseRefused` thrown in; after a wait, None is sent in."""


def attempts(
    wire: Wire, retries: Retries, call: Call[R], spans: CallSpans | None = None, *, check: bool = False
) -> Attempts[R]:
    """Make a call, and retry it."""
    if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may not check types
        raise _not_a_call(call)
    if check and call.check is not None:
        call = replace(call, body=msgspec.Raw(call.check(wire.known_server_time())))
    tally = _Tally(wire.clock, spans)
    try:
        return (yield from _attempt(wire, retries, call, tally))
    except errors.CallFailed as error:
        if not retries.may_retry(call, error):
            raise
        failures: list[Exception] = [error]
    again, schedule = partial(_attempt, wire, retries, call, tally), retries.of_call(call, tally.elapsed)
    return (yield from retried(again, failures, _wait, schedule))


def _wait(seconds: float) -> Generator[float]:
    yield seconds


def _attempt(wire: Wire, retries: Retries, call: Call[R], tally: _Tally) -> Attempts[R]:
    """Make one attempt; sign it once more if the first signature was refused for its timestamp."""
    while True:
        try:
            return (yield from _exchange(wire, retries, call, tally))
        except errors.CallFailed as error:
            tally.count(error)
            if tally.signed_again or not wire.is_stale(error):
                raise
            tally.signed_again = True


def _exchange(wire: Wire, retries: Retries, call: Call[R], tally: _Tally) -> Attempts[R]:
    timeouts = retries.attempt_timeouts(call, tally.elapsed())
    attempt = Attempt(wire.encode(call), timeouts)
    try:
        if tally.spans is None:
            response = yield attempt
        else:
            response = yield from tally.spans.around(call, attempt, tally.made)
    except (TransportFailed, ResponseRefused) as failure:
        raise failure.of_call(wire.attempted(call)) from failure.__cause__
    assert response is not None  # noqa: S101 - `Attempts` guarantees it
    return wire.decode(call, response)


class _Tally:
    """Counts the attempts at one call, and measures their time."""

    def __init__(self, clock: Clock, spans: CallSpans | None) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self.spans = spans
        self.made = 0
        self._outcome_unknown = False
        self.signed_again = False

    def elapsed(self) -> float:
        return self._clock.monotonic() - self._started

    def count(self, error: errors.CallFailed) -> None:
        """Count a failed attempt, and describe all attempts until now in its error."""
        self.made += 1
        is_unclear = isinstance(error, (errors.ServerError, errors.UnreadableResponse))
        self._outcome_unknown |= error.attempted.outcome_unknown or is_unclear
        error.attempted = replace(
            error.attempted, attempts=self.made, elapsed=self.elapsed(), outcome_unknown=self._outcome_unknown
        )
