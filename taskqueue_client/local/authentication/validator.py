"""The auth service's judgement on a request: who signed it, and which scopes it carries."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from mohawk.util import (  # pyright: ignore[reportMissingTypeStubs] - it has none
    calculate_mac,  # pyright: ignore[reportUnknownVariableType] - as above
)

from taskqueue_client.local.authentication.certificates import Issuer, check_certificate, issuer_of
from taskqueue_client.local.authentication.clients import CLIENT_ID, Client, is_scope
from taskqueue_client.local.authentication.headers import (
    has_bewit,
    parse_bewit,
    parse_ext,
    parse_header,
    reject,
    unauthorized,
)
from taskqueue_client.local.json_types import is_list
from taskqueue_client.scopes import missing_scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SKEW = 15 * 60
"""How many seconds a header's timestamp may be off the service's clock."""

_LATER = 15 * 60
"""For how many seconds the scopes of a request without credentials are promised."""

_NEVER = 253402300799.0
"""When credentials of clients that don't expire end, in seconds since the epoch: the end of the year 9999."""

_ANONYMOUS = "assume:anonymous"


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What a signature covers, as it reached the service.

    Args:
        method: The HTTP method.
        resource: Path and query, exactly as sent.
        host: From the `Host` header, without the port.
        port: The port that the client connected to.
        authorization: The `Authorization` header.
    """

    method: str
    resource: str
    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller whose credentials hold, or one without any.

    Args:
        client_id: The name; None without credentials.
        scopes: What the caller may do: roles expanded, those of everybody included.
        expires: Until when, in seconds since the epoch.
        payload_hash: The hash of the body that the caller signed, if any.
    """

    client_id: str | None
    scopes: Sequence[str]
    expires: float
    payload_hash: str | None = None


class _MacCredentials(TypedDict):
    id: str
    key: str
    algorithm: str


@dataclass(frozen=True, slots=True)
class _MacInput:
    """The parts of the normalised string, by the names that mohawk's `calculate_mac` reads."""

    credentials: _MacCredentials
    timestamp: str
    nonce: str
    method: str
    name: str
    host: str
    port: str
    ext: str | None
    app: str | None = None
    dlg: str | None = None


@dataclass(frozen=True, slots=True)
class _Credentials:
    key: str = field(repr=False)
    scopes: list[str]
    expires: float


class SignatureValidator:
    """Judges signed requests.

    Args:
        find_client: The client with an id, or None.
        expand: Expands the roles in a list of scopes.
        now: The time, in seconds since the epoch.
    """

    def __init__(
        self,
        find_client: Callable[[str], Client | None],
        expand: Callable[[Sequence[str]], list[str]],
        now: Callable[[], float],
    ) -> None:
        self._find_client = find_client
        self._expand = expand
        self._now = now

    def authenticate(self, request: SignedRequest) -> Identity:
        """Who signed a request; the hash of its body is left to the caller to check.

        Raises:
            AuthenticationError: It carries credentials, and they are not good.
        """
        if request.authorization:
            if has_bewit(request.resource):
                message = (
                    "Cannot use two authentication schemes at once: "
                    "this request has both a bewit in its query and an 'authorization' header"
                )
                reject(message)
            return self._by_header(request, parse_header(request.authorization))
        if has_bewit(request.resource):
            return self._by_bewit(request)
        return Identity(None, self._expand([_ANONYMOUS]), self._now() + _LATER)

    def _by_header(self, request: SignedRequest, attributes: dict[str, str]) -> Identity:
        client_id = attributes["id"]
        credentials = self._credentials(client_id, attributes.get("ext"))
        mac_input = _MacInput(
            credentials={"id": client_id, "key": credentials.key, "algorithm": "sha256"},
            timestamp=attributes["ts"],
            nonce=attributes["nonce"],
            method=request.method.upper(),
            name=request.resource,
            host=request.host.lower(),
            port=str(request.port),
            **{name: attributes.get(name) for name in ("ext", "app", "dlg")},
        )
        _check_mac("header", mac_input, attributes["mac"], attributes.get("hash"))
        if not _is_within(attributes["ts"], self._now()):
            unauthorized("Stale timestamp")
        return Identity(client_id, credentials.scopes, credentials.expires, attributes.get("hash"))

    def _by_bewit(self, request: SignedRequest) -> Identity:
        if request.method.upper() not in {"GET", "HEAD"}:
            unauthorized("Invalid method")
        bewit = parse_bewit(request.resource)
        if not (bewit.expires.isdecimal() and int(bewit.expires[:20]) > self._now()):
            unauthorized("Access expired")
        credentials = self._credentials(bewit.client_id, bewit.ext or None)
        mac_input = _MacInput(
            credentials={"id": bewit.client_id, "key": credentials.key, "algorithm": "sha256"},
            timestamp=bewit.expires,
            nonce="",
            method="GET",
            name=bewit.resource,
            host=request.host.lower(),
            port=str(request.port),
            ext=bewit.ext,
        )
        _check_mac("bewit", mac_input, bewit.mac, None)
        return Identity(bewit.client_id, credentials.scopes, credentials.expires)

    def _credentials(self, client_id: str, ext_text: str | None) -> _Credentials:
        """The key that a client id signs with, and its scopes; a certificate and restrictions applied."""
        ext = parse_ext(ext_text) if ext_text else {}
        client = self._client(issuer_of(ext.get("certificate"), client_id))
        key, scopes, expires = client.access_token, self._expand(client.scopes), client.expires or _NEVER
        if _is_given(ext.get("certificate")):
            issuer = Issuer(client.client_id, key, scopes)
            certificate = check_certificate(ext["certificate"], client_id, issuer, self._now())
            key, scopes, expires = (
                certificate.access_token,
                certificate.scopes,
                min(expires, certificate.expires),
            )
        if _is_given(ext.get("authorizedScopes")):
            scopes = self._limit_to_authorized(ext["authorizedScopes"], scopes)
        if not CLIENT_ID.fullmatch(client_id):
            reject(f"clientId {client_id!r} has characters other than A-Z a-z 0-9 ! @ / : . + | _ -")
        return _Credentials(key, self._expand([*scopes, _ANONYMOUS]), expires)

    def _client(self, client_id: str) -> Client:
        client = self._find_client(client_id)
        if client is None:
            reject(f"Client with clientId '{client_id}' not found")
        if client.disabled:
            reject(f"Client with clientId '{client_id}' is disabled")
        if client.expires is not None and client.expires < self._now():
            reject(f"Client with clientId: '{client_id}' has expired")
        return client

    def _limit_to_authorized(self, authorized: Any, scopes: list[str]) -> list[str]:
        if not is_list(authorized):
            reject("ext.authorizedScopes must be an array")
        if not all(map(is_scope, authorized)):
            reject("ext.authorizedScopes must be an array of valid scopes")
        held = self._expand([*scopes, _ANONYMOUS])
        if missing_scopes(held, authorized):
            message = "Supplied credentials do not satisfy authorizedScopes; credentials have scopes:"
            lines = [
                message,
                "",
                "```",
                *held,
                "```",
                "",
                "authorizedScopes are:",
                "",
                "```",
                *authorized,
                "```",
            ]
            reject("\n".join(lines))
        return authorized


def _is_given(value: object) -> bool:
    """Whether JavaScript takes the value for true: an empty list is one."""
    return value not in (None, False, 0, "")


def _check_mac(kind: str, mac_input: _MacInput, theirs: str, payload_hash: str | None) -> None:
    try:
        ours: bytes = calculate_mac(kind, mac_input, payload_hash)
    except UnicodeEncodeError:  # the path is not UTF-8: nobody has signed that
        unauthorized("Bad mac")
    if not hmac.compare_digest(ours, theirs.encode(errors="replace")):
        unauthorized("Bad mac")


def _is_within(timestamp: str, now: float) -> bool:
    try:
        return abs(float(timestamp) - now) <= _SKEW
    except ValueError:
        return False
