"""Temporary credentials: checking their certificates, and issuing new ones."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.authentication.clients import is_scope
from taskqueue_client.local.authentication.headers import reject
from taskqueue_client.local.json_types import is_list, is_object
from taskqueue_client.scopes import missing_scopes, satisfies
from taskqueue_client.slugid import slugid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SEED_LENGTH = 44
_SKEW_MS = 5 * 60 * 1000
"""How far a certificate's dates may be off the service's clock."""

_LONGEST_LIFE_MS = 31 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Issuer:
    """A client that temporary credentials are derived from; its scopes are expanded."""

    client_id: str
    access_token: str = field(repr=False)
    scopes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a good certificate gives: the temporary access token, scopes, and until when (in seconds)."""

    access_token: str = field(repr=False)
    scopes: list[str]
    expires: float


def issuer_of(certificate: object, client_id: str) -> str:
    """Whose access token signed a certificate: the issuer it names, else the caller's own.

    Raises:
        AuthenticationError: The issuer is no text, or the caller.
    """
    if not is_object(certificate) or not certificate.get("issuer"):
        return client_id
    issuer = certificate["issuer"]
    _demand(isinstance(issuer, str), "ext.certificate.issuer must be a string")
    _demand(issuer != client_id, "ext.certificate.issuer must differ from the supplied clientId")
    return str(issuer)


def check_certificate(certificate: object, client_id: str, issuer: Issuer, now: float) -> Certificate:
    """Hold what `ext` has for a certificate against all rules.

    Args:
        certificate: Any JSON value.
        client_id: The name that the caller uses.
        issuer: Whose access token should have signed it.
        now: Seconds since the epoch.

    Raises:
        AuthenticationError: A rule is broken.
    """
    if not is_object(certificate):
        reject("ext.certificate must be a JSON object")
    _check_form(certificate)
    _check_dates(certificate, now * 1000)
    _check_names(certificate, client_id, issuer)
    _check_scopes(certificate, issuer)
    _check_signature(certificate, client_id, issuer.access_token)
    token = temporary_token(issuer.access_token, certificate["seed"])
    return Certificate(token, certificate["scopes"], certificate["expiry"] / 1000)


def _demand(holds: bool, reason: str) -> None:  # noqa: FBT001 - it reads like an assertion
    if not holds:
        reject(reason)


def _check_form(certificate: Mapping[str, Any]) -> None:
    seed, scopes = certificate.get("seed"), certificate.get("scopes")
    _demand(
        certificate.get("version") == 1 and certificate["version"] is not True,
        "ext.certificate.version must be 1",
    )
    _demand(isinstance(seed, str), "ext.certificate.seed must be a string")
    _demand(len(str(seed)) == _SEED_LENGTH, "ext.certificate.seed must be 44 characters")
    for name in ("start", "expiry"):
        is_number = isinstance(certificate.get(name), int | float) and not isinstance(certificate[name], bool)
        _demand(is_number, f"ext.certificate.{name} must be a number")
    if not is_list(scopes):
        reject("ext.certificate.scopes must be an array")
    _demand(all(map(is_scope, scopes)), "ext.certificate.scopes must be an array of valid scopes")


def _check_dates(certificate: Mapping[str, Any], now_ms: float) -> None:
    """Written so that a NaN fails, and an integer too large for a float is no error."""
    start, expiry = certificate["start"], certificate["expiry"]
    _demand(start <= now_ms + _SKEW_MS, "ext.certificate.start > now")
    _demand(expiry >= now_ms - _SKEW_MS, "ext.certificate.expiry < now")
    _demand(expiry <= start + _LONGEST_LIFE_MS, "ext.certificate cannot last longer than 31 days!")


def _check_names(certificate: Mapping[str, Any], client_id: str, issuer: Issuer) -> None:
    if issuer.client_id == client_id:
        is_named = "clientId" in certificate
        _demand(not is_named, "ext.certificate.clientId must only be used with ext.certificate.issuer")
        return
    create_scope = f"auth:create-client:{client_id}"
    may_create = satisfies(issuer.scopes, create_scope)
    reason = (
        f"ext.certificate issuer `{issuer.client_id}` doesn't have `{create_scope}` for supplied clientId."
    )
    _demand(may_create, reason)


def _check_scopes(certificate: Mapping[str, Any], issuer: Issuer) -> None:
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
    """The signature that a certificate ought to have."""
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
    """A number as JavaScript prints it: a whole one without a point."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def temporary_token(issuer_token: str, seed: str) -> str:
    """The access token that goes with a certificate's seed."""
    digest = hmac.digest(issuer_token.encode(), seed.encode(errors="replace"), hashlib.sha256)
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def issue(issuer: Issuer, client_id: str, scopes: list[str], start_ms: int, expiry_ms: int) -> dict[str, str]:
    """Named credentials that last from `start_ms` to `expiry_ms`; the certificate is JSON text."""
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
