"""Checks credentials: Hawk header, bewit of a signed URL, `ext`, certificate; also issues certificates."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from taskqueue_client.local.javascript_values import decode_base64, is_given, is_list, is_object
from taskqueue_client.local.times import DAY, MINUTE, SECOND
from taskqueue_client.scopes import missing_scopes, satisfies
from taskqueue_client.slugid import slugid

from .known_clients import Client, is_scope

LONGEST_HEADER = 4096
LONGEST_URL = 4096

_SCHEME = re.compile(r"(\w+)(?:\s+(.*))?", re.ASCII | re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"\\]*)"\s*(?:,\s*|\Z)', re.ASCII)
_VALUE = re.compile(r"[ \w!#$%&'()*+,\-./:;<=>?@\[\]^`{|}~]+", re.ASCII)
_KNOWN = {"id", "ts", "nonce", "hash", "ext", "mac", "app", "dlg"}
_NEEDED = {"id", "ts", "nonce", "mac"}
BEWIT = re.compile(r"(/.*)([?&])bewit=([^&]*)(?:&(.*))?", re.DOTALL)
"""A path and query with a bewit, which may be empty (use `fullmatch`)."""
_BEWIT_PARTS = 4
_INTEGER = re.compile(r"\s*[+-]?[0-9]+")


class AuthenticationError(Exception):
    """Credentials that are not accepted; the message is for the caller."""


def reject(reason: str) -> NoReturn:
    """Raise `AuthenticationError`: the credentials are not accepted."""
    raise AuthenticationError(reason)


def bad_request(reason: str) -> NoReturn:
    """Raise `AuthenticationError`: the credentials cannot be read."""
    reject(f"Bad Request: {reason}")


def unauthorized(reason: str) -> NoReturn:
    """Raise `AuthenticationError`: the credentials can be read, and are wrong."""
    reject(f"Unauthorized: {reason}")


def parse_header(header: str) -> dict[str, str]:
    """Return the attributes of an `Authorization: Hawk …` header."""
    if len(header) > LONGEST_HEADER:
        bad_request("Header length too long")
    scheme = _SCHEME.fullmatch(header)
    if scheme is None:
        bad_request("Invalid header syntax")
    if scheme[1].lower() != "hawk":
        unauthorized("Unauthorized")
    if not scheme[2]:
        bad_request("Invalid header syntax")
    attributes = _attributes(scheme[2])
    if not attributes.keys() >= _NEEDED:
        bad_request("Missing attributes")
    return attributes


def _attributes(text: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _ATTRIBUTE.match(text, position)
        if found is None:
            bad_request("Bad header format")
        name, value = found.groups()
        _check_attribute(name, value, attributes)
        attributes[name] = value
        position = found.end()
    return attributes


def _check_attribute(name: str, value: str, attributes: dict[str, str]) -> None:
    if name not in _KNOWN:
        bad_request(f"Unknown attribute: {name}")
    if not _VALUE.fullmatch(value):
        bad_request(f"Bad attribute value: {name}")
    if name in attributes:
        bad_request(f"Duplicate attribute: {name}")


@dataclass(frozen=True, slots=True)
class Bewit:
    """The signature of a signed URL, and the path and query that it was made for."""

    client_id: str
    expires: str
    mac: str
    ext: str
    resource: str

    def is_over(self, now: float) -> bool:
        """Return whether the bewit has expired; never if `expires` does not begin with a number."""
        digits = _INTEGER.match(self.expires)
        return digits is not None and int(digits[0]) <= now


def parse_bewit(found: re.Match[str]) -> Bewit:
    """Return the bewit in a match of `BEWIT`; it may be anywhere in the query."""
    if len(found.string) > LONGEST_URL:
        bad_request("Resource path exceeds max length")
    if not found[3]:
        unauthorized("Empty bewit")
    if found[4] == "":  # `bewit=…&`
        unauthorized("Unauthorized")
    parts = _decode_bewit(found[3]).split("\\")
    if len(parts) != _BEWIT_PARTS:
        bad_request("Invalid bewit structure")
    client_id, expires, mac, ext = parts
    if not (client_id and expires and mac):
        bad_request("Missing bewit attributes")
    rest = found[2] + found[4] if found[4] else ""
    return Bewit(client_id, expires, mac, ext, found[1] + rest)


def _decode_bewit(text: str) -> str:
    """Decode base64url without padding, the bytes as Latin-1, as the service does."""
    if not re.fullmatch(r"[\w-]*", text, re.ASCII):
        bad_request("Invalid bewit encoding")
    return decode_base64(text).decode("latin-1")


def parse_ext(ext: str) -> dict[str, Any]:
    """Return the JSON object in an `ext` of standard or URL-safe base64; `{}` if it is other JSON.

    Bytes that are not UTF-8 become replacement characters.
    """
    try:
        text = decode_base64(ext).decode(errors="replace")
        value = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        reject("Failed to parse ext")
    if value is None:
        reject("Failed to parse ext")
    return value if is_object(value) else {}


def _not_json(name: str) -> NoReturn:
    """Refuse `NaN` and `Infinity`, which only Python takes for JSON."""
    raise ValueError(name)


_SEED_LENGTH = 44
_SKEW_MS = 5 * MINUTE  # how far a certificate's dates may be off the service's clock
_LONGEST_LIFE_MS = 31 * DAY


@dataclass(frozen=True, slots=True)
class Accepted:
    """The key, the scopes and the expiry (in seconds) of accepted credentials."""

    key: str = field(repr=False)
    scopes: list[str]
    expires: float


def issuer_of(certificate: object, client_id: str) -> str:
    """Return the client whose access token signed a certificate: the named issuer, else the caller."""
    if not is_object(certificate) or not is_given(certificate.get("issuer")):
        return client_id
    issuer = certificate["issuer"]
    _demand(isinstance(issuer, str), "ext.certificate.issuer must be a string")
    _demand(issuer != client_id, "ext.certificate.issuer must differ from the supplied clientId")
    return str(issuer)


def check_certificate(certificate: object, client_id: str, issuer: Client, now: float) -> Accepted:
    """Check the certificate of an `ext`; `issuer` has expanded scopes, and `now` is in seconds."""
    if not is_object(certificate):
        reject("ext.certificate must be a JSON object")
    _check_form(certificate)
    _check_dates(certificate, now * SECOND)
    _check_names(certificate, client_id, issuer)
    _check_scopes(certificate, issuer)
    _check_signature(certificate, client_id, issuer.access_token)
    token = temporary_token(issuer.access_token, certificate["seed"])
    return Accepted(token, certificate["scopes"], certificate["expiry"] / SECOND)


def _demand(holds: bool, reason: str) -> None:  # noqa: FBT001 - it reads like an assertion
    if not holds:
        reject(reason)


def _check_form(certificate: Mapping[str, Any]) -> None:
    seed, scopes = certificate.get("seed"), certificate.get("scopes")
    is_first = certificate.get("version") == 1 and certificate["version"] is not True
    _demand(is_first, "ext.certificate.version must be 1")
    _demand(isinstance(seed, str), "ext.certificate.seed must be a string")
    _demand(len(str(seed)) == _SEED_LENGTH, "ext.certificate.seed must be 44 characters")
    for name in ("start", "expiry"):
        is_number = isinstance(certificate.get(name), int | float) and not isinstance(certificate[name], bool)
        _demand(is_number, f"ext.certificate.{name} must be a number")
    if not is_list(scopes):
        reject("ext.certificate.scopes must be an array")
    _demand(all(map(is_scope, scopes)), "ext.certificate.scopes must be an array of valid scopes")


def _check_dates(certificate: Mapping[str, Any], now_ms: float) -> None:
    """Check the dates without converting them: they may be integers that are too large for a float."""
    start, expiry = certificate["start"], certificate["expiry"]
    _demand(start <= now_ms + _SKEW_MS, "ext.certificate.start > now")
    _demand(expiry >= now_ms - _SKEW_MS, "ext.certificate.expiry < now")
    _demand(expiry <= start + _LONGEST_LIFE_MS, "ext.certificate cannot last longer than 31 days!")


def _check_names(certificate: Mapping[str, Any], client_id: str, issuer: Client) -> None:
    if issuer.client_id == client_id:
        is_named = "clientId" in certificate
        _demand(not is_named, "ext.certificate.clientId must only be used with ext.certificate.issuer")
        return
    scope = f"auth:create-client:{client_id}"
    reason = f"ext.certificate issuer `{issuer.client_id}` doesn't have `{scope}` for supplied clientId."
    _demand(satisfies(issuer.scopes, scope), reason)


def _check_scopes(certificate: Mapping[str, Any], issuer: Client) -> None:
    reason = (
        f"ext.certificate issuer `{issuer.client_id}` doesn't satisfy all certificate scopes "
        f"{', '.join(certificate['scopes'])}.  The temporary credentials were not generated correctly."
    )
    _demand(not missing_scopes(issuer.scopes, certificate["scopes"]), reason)


def _check_signature(certificate: Mapping[str, Any], client_id: str, access_token: str) -> None:
    ours = signature(certificate, client_id, access_token).encode()
    theirs = str(certificate.get("signature")).encode(errors="replace")
    other_id = ", or wrong clientId provided" if certificate.get("issuer") else ""
    _demand(hmac.compare_digest(ours, theirs), f"ext.certificate.signature is not valid{other_id}")


def signature(certificate: Mapping[str, Any], client_id: str, issuer_token: str) -> str:
    """Return the signature that a certificate must have."""
    names = [f"clientId:{client_id}", f"issuer:{certificate['issuer']}"] if certificate.get("issuer") else []
    lines = [
        "version:1",
        *names,
        f"seed:{certificate['seed']}",
        f"start:{_number(certificate['start'])}",
        f"expiry:{_number(certificate['expiry'])}",
        "scopes:",
        *certificate["scopes"],
    ]
    text = "\n".join(lines).encode(errors="replace")
    return b64encode(hmac.digest(issuer_token.encode(), text, hashlib.sha256)).decode()


def _number(value: float) -> str:
    """Return a number as JavaScript prints it: whole numbers without a decimal point."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def temporary_token(issuer_token: str, seed: str) -> str:
    """Return the access token that goes with a certificate's seed."""
    digest = hmac.digest(issuer_token.encode(), seed.encode(errors="replace"), hashlib.sha256)
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def issue(issuer: Client, client_id: str, scopes: list[str], start_ms: int, expiry_ms: int) -> dict[str, str]:
    """Return named credentials that are valid from `start_ms` to `expiry_ms`."""
    certificate: dict[str, Any] = {
        "version": 1,
        "scopes": scopes,
        "start": start_ms,
        "expiry": expiry_ms,
        "seed": slugid() + slugid(),
        "signature": None,
        "issuer": issuer.client_id,
    }
    certificate["signature"] = signature(certificate, client_id, issuer.access_token)
    return {
        "clientId": client_id,
        "accessToken": temporary_token(issuer.access_token, certificate["seed"]),
        "certificate": json.dumps(certificate, separators=(",", ":")),
    }
