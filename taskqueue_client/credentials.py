"""Credentials: checks, temporary credentials, and credentials from the environment.

The rules are those of Taskcluster's documents about authentication (temporary credentials, authorizedScopes)
and about the environment of workers (the variables).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from taskqueue_client.models._base import Credentials

from .errors import InvalidArgument
from .scopes import satisfies
from .slugid import slugid

__all__ = [
    "LONGEST_LIFE", "START_BEFORE_NOW", "Credentials", "checked", "from_environment",
    "temporary_credentials",
]  # fmt: skip

T = TypeVar("T")

LONGEST_LIFE = timedelta(days=31)
"""The longest lifetime of temporary credentials that the auth service accepts."""

START_BEFORE_NOW = timedelta(minutes=5)
"""How long before now temporary credentials become valid by default, to allow for differing clocks.

A lifetime still counts from now: otherwise, credentials for five minutes would expire at once.
"""

_MS = timedelta(milliseconds=1)

_CLIENT_ID = re.compile(r"[A-Za-z0-9!@/:.+|_-]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_ROOT_URL = re.compile(r"[!\"$->A-\[\]-~]+")  # printable ASCII except # ? @ \\ and space
_SCOPE = re.compile(r"[\x20-\x7e]*")


def checked(credentials: Credentials, argument: str = "credentials") -> Credentials:
    """Return the credentials after checking their form.

    Args:
        credentials: The credentials.
        argument: The argument that the error names if they are not `Credentials` at all.

    Raises:
        InvalidArgument: They are not `Credentials`, or the client id, token, certificate or a scope is
            malformed. The error does not show a token or a certificate.
    """
    if not isinstance(credentials, Credentials):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may not check types
        raise InvalidArgument(argument, type(credentials), _CREDENTIALS)
    if not _matches(_CLIENT_ID, credentials.client_id):
        allowed = "a str of letters, digits and !@/:.+|_-, not empty"
        raise InvalidArgument("client_id", credentials.client_id, allowed)
    if not _matches(_TOKEN, credentials.access_token):
        allowed = "a str of printable ASCII without spaces, not empty"
        raise InvalidArgument("access_token", _hidden(credentials.access_token), allowed)
    if credentials.certificate is not None:
        _decoded(_UNREAD, credentials.certificate)
    if credentials.authorized_scopes is not None:
        _check_scopes("authorized_scopes", credentials.authorized_scopes)
    return credentials


_CREDENTIALS = (
    "Credentials; convert the dict of another client: "
    'Credentials(given["clientId"], given["accessToken"], given.get("certificate"))'
)


def _matches(pattern: re.Pattern[str], given: object) -> bool:
    """Return whether `given` is text that matches; an unset environment variable may give None."""
    return isinstance(given, str) and pattern.fullmatch(given) is not None


def certificate_of(text: str) -> Mapping[str, object]:
    """Return the certificate that `text` contains as a JSON object.

    Raises:
        InvalidArgument: `text` is not a JSON object.
    """
    return _decoded(_READ, text)


def expires_at(credentials: Credentials | None) -> float | None:
    """Return when credentials expire, in seconds since the epoch; None if they do not expire."""
    if credentials is None or credentials.certificate is None:
        return None
    expiry = certificate_of(credentials.certificate).get("expiry")
    return expiry / 1000 if isinstance(expiry, (int, float)) else None


_READ = msgspec.json.Decoder(dict[str, object])
_UNREAD = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Checks only that a certificate is a JSON object. This is faster: workers check several a second."""


def _decoded(decoder: msgspec.json.Decoder[T], certificate: str) -> T:
    try:
        return decoder.decode(certificate.encode())
    # AttributeError: not a str, such as the dict that other clients accept
    except (msgspec.MsgspecError, AttributeError, UnicodeError, RecursionError):
        raise InvalidArgument("certificate", _hidden(certificate), "a JSON object as a str") from None


def temporary_credentials(
    issuer: Credentials,
    scopes: Sequence[str],
    *,
    lifetime: timedelta = timedelta(hours=1),
    start: datetime | None = None,
    name: str | None = None,
) -> Credentials:
    """Return temporary credentials with fewer scopes, made without a request to a service.

    Args:
        issuer: Permanent credentials that have the scopes.
        scopes: The scopes of the new credentials.
        lifetime: Time until they expire, from `start` or, by default, from now; at most 31 days.
        start: When they become valid; default: five minutes ago, or later if the lifetime is almost 31 days.
        name: Their client id; the issuer needs `auth:create-client:<name>`. Default: the issuer's
            client id.

    Raises:
        InvalidArgument: The issuer is temporary, the lifetime is too long or not positive, the start
            has no time zone, or a scope or the name is malformed.
    """
    if checked(issuer, "issuer").certificate is not None:
        raise InvalidArgument(
            "issuer", issuer.client_id, "permanent credentials: temporary credentials cannot issue others"
        )
    if not _is_lifetime(lifetime):
        raise InvalidArgument("lifetime", lifetime, "a timedelta of more than 0 and at most 31 days")
    if start is not None and not _is_moment(start):
        raise InvalidArgument("start", start, "a datetime with a time zone")
    _check_scopes("scopes", scopes)
    if name is not None and (name == issuer.client_id or not _matches(_CLIENT_ID, name)):
        allowed = "letters, digits and !@/:.+|_-, not empty, and not the issuer's own client id"
        raise InvalidArgument("name", name, allowed)
    start_ms, expiry_ms = _validity(start, lifetime)
    seed = slugid() + slugid()
    certificate: dict[str, object] = {
        "version": 1,
        "scopes": list(scopes),
        "start": start_ms,
        "expiry": expiry_ms,
        "seed": seed,
    }
    certificate["signature"] = _signature(issuer, certificate, scopes, name)
    if name is not None:
        certificate["issuer"] = issuer.client_id
    return Credentials(
        client_id=issuer.client_id if name is None else name,
        access_token=urlsafe_b64encode(_hmac(issuer.access_token, seed)).decode().rstrip("="),
        certificate=msgspec.json.encode(certificate).decode(),
        authorized_scopes=_restriction(issuer.authorized_scopes, scopes),
    )


def _restriction(authorized: Sequence[str] | None, scopes: Sequence[str]) -> tuple[str, ...] | None:
    """Return the scopes that an issuer's restriction and a certificate have in common.

    The auth service refuses all calls that are restricted to a scope that their certificate lacks.
    """
    if authorized is None:
        return None
    narrower = [scope for scope in authorized if satisfies(scopes, scope)]
    return tuple(dict.fromkeys(narrower + [scope for scope in scopes if satisfies(authorized, scope)]))


def _validity(start: datetime | None, lifetime: timedelta) -> tuple[int, int]:
    """Return when credentials become valid, and when they expire, in milliseconds since the epoch."""
    start_ms = int(1000 * (time.time() if start is None else start.timestamp()))
    expiry_ms = start_ms + lifetime // _MS
    if start is None:
        start_ms = max(start_ms - START_BEFORE_NOW // _MS, expiry_ms - LONGEST_LIFE // _MS)
    return start_ms, expiry_ms


def _is_lifetime(given: object) -> bool:
    return isinstance(given, timedelta) and timedelta(0) < given <= LONGEST_LIFE


def _is_moment(given: object) -> bool:
    return isinstance(given, datetime) and given.tzinfo is not None


def _signature(
    issuer: Credentials, certificate: Mapping[str, object], scopes: Sequence[str], name: str | None
) -> str:
    # With `+`: in an f-string, a member of an enumeration would become its name.
    named = [] if name is None else ["clientId:" + name, "issuer:" + issuer.client_id]
    lines = [
        "version:1",
        *named,
        *(f"{key}:{certificate[key]}" for key in ("seed", "start", "expiry")),
        "scopes:",
        *scopes,
    ]
    return b64encode(_hmac(issuer.access_token, "\n".join(lines))).decode()


def _hmac(key: str, message: str) -> bytes:
    return hmac.digest(key.encode(), message.encode(), hashlib.sha256)


def _check_scopes(argument: str, scopes: object) -> None:
    if isinstance(scopes, (str, bytes)) or not isinstance(scopes, Sequence):
        raise InvalidArgument(argument, scopes, "a list of scopes")
    for scope in cast("Sequence[object]", scopes):
        if not _matches(_SCOPE, scope):
            raise InvalidArgument(argument, scope, "printable ASCII in each scope")


def checked_root_url(url: object) -> str:
    """Return the root URL without a slash at its end.

    Raises:
        InvalidArgument: The URL is not an absolute http or https URL, or has a user, query or fragment.
    """
    allowed = "an absolute URL such as https://tc.example.com, without user, query and fragment"
    if not isinstance(url, str) or not _is_root_url(url):
        shown = url.rpartition("@")[2] if isinstance(url, str) else type(url)
        raise InvalidArgument("root_url", shown, allowed)
    return url.rstrip("/")


def _is_root_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.hostname.encode("idna")
        usable = parts.scheme in {"http", "https"} and named and (parts.port is None or parts.port)
    except ValueError:  # the port is not a number, a bracket is not closed, or a name is too long
        return False
    return bool(usable) and _ROOT_URL.fullmatch(url) is not None


def from_environment(environ: Mapping[str, str] | None = None) -> tuple[str, Credentials | None]:
    """Return the root URL and the credentials of the environment.

    1. `TASKCLUSTER_PROXY_URL`, if set: that URL, without credentials, as the proxy adds its own.
    2. Else `TASKCLUSTER_ROOT_URL`, with `TASKCLUSTER_CLIENT_ID`, `TASKCLUSTER_ACCESS_TOKEN` and
       `TASKCLUSTER_CERTIFICATE` (of temporary credentials), or no credentials if none of
       the three is set.

    An empty variable counts as unset.

    Raises:
        InvalidArgument: Neither URL is set, or client id or token is missing, or a variable is malformed.
            The error names the variable.
    """
    check_environment(environ)
    environ = os.environ if environ is None else environ
    proxy_url = environ.get("TASKCLUSTER_PROXY_URL")
    if proxy_url:
        with _naming({"root_url": "TASKCLUSTER_PROXY_URL"}):
            return checked_root_url(proxy_url), None
    root_url = environ.get("TASKCLUSTER_ROOT_URL")
    if not root_url:
        raise InvalidArgument(
            "TASKCLUSTER_ROOT_URL",
            root_url,
            "the deployment's root URL",
            "the environment variable is not set",
        )
    with _naming(_VARIABLES):
        return checked_root_url(root_url), _credentials_in(environ)


def check_environment(environ: object) -> None:
    """Raise InvalidArgument, which shows no values, unless an argument is a dict of variables, or None."""
    if environ is not None and not isinstance(environ, Mapping):
        raise InvalidArgument("environ", type(environ), "a dict of environment variables, or None")


_VARIABLES = {
    "root_url": "TASKCLUSTER_ROOT_URL",
    "client_id": "TASKCLUSTER_CLIENT_ID",
    "access_token": "TASKCLUSTER_ACCESS_TOKEN",
    "certificate": "TASKCLUSTER_CERTIFICATE",
}


@contextmanager
def _naming(variables: Mapping[str, str]) -> Generator[None]:
    """Name the environment variables in the errors of a block: the caller has not given the arguments."""
    try:
        yield
    except InvalidArgument as error:
        name = variables.get(error.argument, error.argument)
        raise InvalidArgument(name, error.given, error.allowed, error.finding) from None


def _credentials_in(environ: Mapping[str, str]) -> Credentials | None:
    names = ("TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN", "TASKCLUSTER_CERTIFICATE")
    client_id, token, certificate = map(environ.get, names)
    if client_id and token:
        return checked(Credentials(client_id, token, certificate or None))
    for name in names:
        if environ.get(name):
            unset = "TASKCLUSTER_ACCESS_TOKEN" if client_id else "TASKCLUSTER_CLIENT_ID"
            raise InvalidArgument(unset, "", "", f"the environment variable is not set, but {name} is")
    return None


def _hidden(secret: object) -> object:
    """Return what an error shows instead of a secret; the type of a value that is not a str."""
    return "<not shown>" if isinstance(secret, str) else type(secret)
