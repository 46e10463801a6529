"""The parts of the auth service that a local queue needs: checks of signed requests, and a few endpoints.

A check finds the client that signed, its scopes, and whether they suffice for an endpoint.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from mohawk.util import calculate_mac, parse_content_type

from taskqueue_client.local import endpoints, times
from taskqueue_client.local.javascript_values import is_given, is_list
from taskqueue_client.local.refusal import existing, refuse
from taskqueue_client.scopes import ScopeExpression, missing_scopes, render, unsatisfied

from .known_clients import CLIENT_ID, Client, is_scope
from .presented_credentials import (
    BEWIT,
    Accepted,
    AuthenticationError,
    check_certificate,
    issuer_of,
    parse_bewit,
    parse_ext,
    parse_header,
    reject,
    unauthorized,
)

_SKEW = 15 * 60  # how many seconds a header's timestamp may be off the service's clock
_NUMBER = re.compile(r" *[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? *")
_LATER = 15 * 60  # how many seconds the identity of a request without credentials is valid

NEVER = 253402300799.0
"""The expiry of clients that never expire, in seconds since the epoch: the end of the year 9999."""

ANONYMOUS = "assume:anonymous"

_TESTER = ("tester", "no-secret")
"""The client and access token that the service documents for tests of code that signs requests."""

_TESTER_GET_NEEDS = ("test:authenticate-get",)
_TESTER_GET_SCOPES = ("test:*", "auth:create-client:test:*")
_TEST = endpoints.each("scope", "requiredScopes", "<scope>")


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a request that its signature covers, as they reached the service.

    `resource` is path and query; `host` has no port, and `port` is the one that the client connected to.
    """

    method: str
    resource: str
    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller with accepted credentials, or without credentials.

    Args:
        client_id: The name; None without credentials.
        scopes: The caller's scopes: roles are expanded, and the scopes of everybody are included.
        expires: When the credentials expire, in seconds since the epoch.
        payload_hash: The hash of the body that the caller signed, if any.
    """

    client_id: str | None
    scopes: Sequence[str]
    expires: float
    payload_hash: str | None = None


@dataclass(slots=True)
class SignatureValidator:
    """Checks signed requests; `expand` expands the roles in a list of scopes."""

    find_client: Callable[[str], Client | None]
    expand: Callable[[Sequence[str]], list[str]]
    now: Callable[[], float]

    def authenticate(self, request: SignedRequest) -> Identity:
        """Return who signed a request, or the anonymous identity; the caller has to check the body's hash."""
        bewit = BEWIT.fullmatch(request.resource)
        if request.authorization:
            if bewit is not None and bewit[3]:  # an empty bewit is ignored
                reject(
                    "Cannot use two authentication schemes at once: "
                    "this request has both a bewit in its query and an 'authorization' header"
                )
            return self._by_header(request, parse_header(request.authorization))
        if bewit is not None:
            return self._by_bewit(request, bewit)
        return Identity(None, self.expand([ANONYMOUS]), self.now() + _LATER)

    def _by_header(self, request: SignedRequest, attributes: dict[str, str]) -> Identity:
        client_id = attributes["id"]
        credentials = self._credentials(client_id, attributes.get("ext"))
        _check_mac(
            *("header", request, credentials.key, attributes["mac"], attributes.get("hash")),
            timestamp=attributes["ts"],
            nonce=attributes["nonce"],
            method=request.method.upper(),
            name=request.resource,
            **{name: attributes.get(name) for name in ("ext", "app", "dlg")},
        )
        if _is_stale(attributes["ts"], self.now()):
            unauthorized("Stale timestamp")
        return Identity(client_id, credentials.scopes, credentials.expires, attributes.get("hash"))

    def _by_bewit(self, request: SignedRequest, found: re.Match[str]) -> Identity:
        if request.method.upper() not in {"GET", "HEAD"}:
            unauthorized("Invalid method")
        bewit = parse_bewit(found)
        credentials = self._credentials(bewit.client_id, bewit.ext or None)
        _check_mac(
            *("bewit", request, credentials.key, bewit.mac, None),
            timestamp=bewit.expires,
            nonce="",
            method="GET",
            name=bewit.resource,
            ext=bewit.ext,
            app=None,
        )
        if bewit.is_over(self.now()):
            unauthorized("Access expired")
        return Identity(bewit.client_id, credentials.scopes, credentials.expires)

    def _credentials(self, client_id: str, ext_text: str | None) -> Accepted:
        if not ext_text:
            client = self._client(client_id)
            scopes = self.expand([*client.scopes, ANONYMOUS])
            return Accepted(client.access_token, scopes, client.expires or NEVER)
        ext = parse_ext(ext_text)
        client = self._client(issuer_of(ext.get("certificate"), client_id))
        key, scopes, expires = client.access_token, self.expand(client.scopes), client.expires or NEVER
        if is_given(ext.get("certificate")):
            issuer = replace(client, scopes=scopes)
            temporary = check_certificate(ext["certificate"], client_id, issuer, self.now())
            key, scopes, expires = temporary.key, temporary.scopes, min(expires, temporary.expires)
        if is_given(ext.get("authorizedScopes")):
            scopes = self._limit_to_authorized(ext["authorizedScopes"], scopes)
        if not CLIENT_ID.fullmatch(client_id):
            reject(f"clientId {client_id!r} has characters other than A-Z a-z 0-9 ! @ / : . + | _ -")
        return Accepted(key, self.expand([*scopes, ANONYMOUS]), expires)

    def _client(self, client_id: str) -> Client:
        client = self.find_client(client_id)
        if client is None:
            reject(f"Client with clientId '{client_id}' not found")
        if client.disabled:
            reject(f"Client with clientId '{client_id}' is disabled")
        if client.expires is not None and client.expires < self.now():
            reject(f"Client with clientId: '{client_id}' has expired")
        return client

    def _limit_to_authorized(self, authorized: Any, scopes: list[str]) -> list[str]:
        if not is_list(authorized):
            reject("ext.authorizedScopes must be an array")
        if not all(map(is_scope, authorized)):
            reject("ext.authorizedScopes must be an array of valid scopes")
        held = self.expand([*scopes, ANONYMOUS])
        if missing_scopes(held, authorized):
            message = "Supplied credentials do not satisfy authorizedScopes; credentials have scopes:"
            lines = [message, "", "```", *held, "```", "", "authorizedScopes are:", "", "```", *authorized]
            reject("\n".join([*lines, "```"]))
        return authorized


def _check_mac(
    kind: str, request: SignedRequest, key: str, theirs: str, payload_hash: str | None, /, **parts: str | None
) -> None:
    """Reject a MAC that was not made with `key`; `parts` are named as mohawk's `calculate_mac` reads them."""
    credentials = {"key": key, "algorithm": "sha256"}
    host, port = request.host.lower(), str(request.port)
    covered = SimpleNamespace(credentials=credentials, host=host, port=port, **parts)
    try:
        ours: bytes = calculate_mac(kind, covered, payload_hash)
    except UnicodeEncodeError:  # the path is not UTF-8, so no client has signed it
        unauthorized("Bad mac")
    if not hmac.compare_digest(ours, theirs.encode(errors="replace")):
        unauthorized("Bad mac")


def _is_stale(timestamp: str, now: float) -> bool:
    """Return whether a timestamp is too far from `now`; as in the service, never if it is not a number."""
    return _NUMBER.fullmatch(timestamp) is not None and abs(float(timestamp) - now) > _SKEW


@dataclass(slots=True)
class Caller:
    """The caller of one request. Credentials are checked when they are first needed.

    Each endpoint decides when it checks scopes.
    """

    identify: Callable[[], Identity]
    expression: ScopeExpression | None
    params: Mapping[str, str]
    _known: Identity | None = None

    @property
    def client_id(self) -> str:
        """The caller's client id, for records of changes."""
        return self._identity().client_id or "auth-failed:no-auth"

    @property
    def scopes(self) -> Sequence[str]:
        """All scopes the caller has, expanded."""
        return self._identity().scopes

    def require(self, **params: object) -> None:
        """Refuse a caller without the endpoint's scopes, filled in with `params` and the URL's parameters."""
        identity = self._identity()
        if self.expression is None or "*" in identity.scopes:
            return
        expression = render(self.expression, {**self.params, **params})
        missing = unsatisfied(expression, identity.scopes)
        if missing is not None:
            refuse("InsufficientScopes", _explain(identity.client_id, missing, expression))

    def _identity(self) -> Identity:
        if self._known is None:
            try:
                self._known = self.identify()
            except AuthenticationError as error:
                refuse("AuthenticationFailed", str(error))
        return self._known


def _explain(client_id: str | None, missing: ScopeExpression, needed: ScopeExpression) -> str:
    if client_id is None:
        return (
            "This request requires Taskcluster credentials that satisfy the following scope expression:"
            f"\n\n{_block(needed)}"
        )
    return (
        f"Client ID {client_id} does not have sufficient scopes and is missing the following scopes:"
        f"\n\n{_block(missing)}"
        f"\n\nThis request requires the client to satisfy the following scope expression:\n\n{_block(needed)}"
    )


def _block(expression: ScopeExpression) -> str:
    text = expression if isinstance(expression, str) else json.dumps(expression, indent=2, ensure_ascii=False)
    return f"```\n{text}\n```"


def check_payload_hash(identity: Identity, body: bytes, content_type: str | None) -> None:
    """Raise `AuthenticationError` if the caller signed a hash and `body` has another one."""
    if identity.payload_hash is None:
        return
    kind = parse_content_type(content_type or "").encode(errors="replace")
    ours = b64encode(sha256(b"hawk.1.payload\n%b\n%b\n" % (kind, body)).digest())
    if not hmac.compare_digest(ours, identity.payload_hash.encode(errors="replace")):
        raise AuthenticationError(
            "Invalid payload hash: {{hash}}\n"
            f"Computed payload hash: {ours.decode()}\n"
            "The body that arrived is not the one whose hash the request's signature covers."
        )


@dataclass(slots=True)
class AuthService:
    """The endpoints of the auth service; each method is named after its endpoint."""

    authenticate: Callable[[SignedRequest], Identity]
    clients: Mapping[str, Client]
    expand: Callable[[Sequence[str]], list[str]]

    @endpoints.auth(
        "POST",
        "/test-authenticate",
        _TEST,
        schema="test-authenticate-request",
        tester_scopes=itemgetter("clientScopes"),
    )
    def test_authenticate(self, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return client id and scopes of a request signed as `tester`, if they satisfy `requiredScopes`."""
        caller.require(requiredScopes=body["requiredScopes"])
        return {"clientId": caller.client_id, "scopes": caller.scopes}

    @endpoints.auth("GET", "/test-authenticate-get/", _TEST, tester_scopes=lambda _: _TESTER_GET_SCOPES)
    def test_authenticate_get(self, caller: Caller) -> dict[str, Any]:
        """Return what `test_authenticate` returns, for a GET, which can be a signed URL."""
        return self.test_authenticate(caller, {"requiredScopes": _TESTER_GET_NEEDS})

    @endpoints.auth("GET", "/scopes/current", "auth:current-scopes")
    def current_scopes(self, caller: Caller) -> dict[str, Any]:
        """Return the scopes of the caller."""
        return {"scopes": caller.scopes}

    @endpoints.auth("GET", "/clients/<clientId>", "auth:get-client:<clientId>")
    def client(self, client_id: str) -> dict[str, Any]:
        """Return the record of a client, without its access token."""
        client = existing(self.clients.get(client_id), f"Client with clientId `{client_id}` not found")
        return {
            "clientId": client.client_id,
            "description": "",
            "expires": times.text(times.milliseconds(client.expires or NEVER)),
            **dict.fromkeys(("created", "lastModified", "lastDateUsed", "lastRotated"), times.text(0)),
            "deleteOnExpiration": False,
            "scopes": list(client.scopes),
            "expandedScopes": self.expand(client.scopes),
            "disabled": client.disabled,
        }

    @endpoints.auth("POST", "/authenticate-hawk", schema="authenticate-hawk-request")
    def authenticate_hawk(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return who signed a request that another service received, or why its signature is not accepted."""
        request = SignedRequest(
            body["method"], body["resource"], body["host"], body["port"], body.get("authorization")
        )
        try:
            identity = self.authenticate(request)
        except AuthenticationError as error:
            return {"status": "auth-failed", "message": str(error)}
        about = {"expires": times.text(times.milliseconds(identity.expires)), "scopes": identity.scopes}
        if identity.client_id is None:
            return {"status": "no-auth", "scheme": "none", **about}
        signed_hash = {} if identity.payload_hash is None else {"hash": identity.payload_hash}
        who = {"clientId": identity.client_id, **signed_hash}
        return {"status": "auth-success", "scheme": "hawk", **about, **who}


def tester_validator(scopes: Sequence[str], now: Callable[[], float]) -> SignatureValidator:
    """Return a validator that knows only the client `tester`, with these scopes.

    Roles are not expanded: the scopes stay as given, after `assume:anonymous`.
    """
    tester = Client(*_TESTER, scopes=scopes)

    def expand(scopes: Sequence[str]) -> list[str]:
        return [ANONYMOUS, *(scope for scope in scopes if scope != ANONYMOUS)]

    return SignatureValidator({tester.client_id: tester}.get, expand, now)
