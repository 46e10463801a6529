"""Signed URLs as S3 makes them: AWS Signature Version 4 in the query, with an unsigned payload.

The rules are those of "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)"
in the Amazon S3 API reference.
"""

from __future__ import annotations

import hashlib
import hmac
from calendar import timegm
from dataclasses import dataclass, field
from time import gmtime, strftime, strptime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ALGORITHM = "AWS4-HMAC-SHA256"
_SCOPE = "us-east-1/s3/aws4_request"
_TIME = "%Y%m%dT%H%M%SZ"
_ERRORS = "surrogateescape"
"""How aiohttp decodes bytes of a request that are not UTF-8."""


class BadSignatureError(Exception):
    """The URL does not allow this request. `code` is S3's name for the reason.

    Args:
        message: S3's text.
        code: `AccessDenied` or `SignatureDoesNotMatch`.
    """

    def __init__(self, message: str, *, code: str = "AccessDenied") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Signer:
    """Signs and checks URLs with one secret.

    Args:
        key_id: Names the secret in each URL.
        secret: Never leaves the signer.
    """

    key_id: str
    secret: str = field(repr=False)

    def sign(
        self, method: str, url: str, *, now: float, seconds: int, headers: Mapping[str, str] | None = None
    ) -> str:
        """The `url` with a signature that allows `method` for some `seconds` from `now` on.

        Args:
            method: In upper case.
            url: Without a query.
            now: Seconds since the epoch; counted in whole ones.
            seconds: How long the URL works.
            headers: Those with which the request must be made, to the letter; `Host` is always one.
        """
        signed = {"host": urlsplit(url).netloc} | {
            name.lower(): text for name, text in (headers or {}).items()
        }
        date = strftime(_TIME, gmtime(now))
        query = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD",
            "X-Amz-Credential": f"{self.key_id}/{date[:8]}/{_SCOPE}",
            "X-Amz-Date": date,
            "X-Amz-Expires": str(seconds),
            "X-Amz-SignedHeaders": ";".join(sorted(signed)),
        }
        query["X-Amz-Signature"] = self.signature(method, url, query, signed)
        return f"{url}?{_joined(query)}"

    def check(self, method: str, url: str, *, now: float, headers: Mapping[str, str]) -> None:
        """Return if `url` allows a request with this method and these headers (whatever their case).

        Raises:
            BadSignatureError: It is not signed, signed for another request, or its time is over.
        """
        query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        given = query.pop("X-Amz-Signature", None)
        if given is None:
            message = "Access Denied"
            raise BadSignatureError(message)
        expires = _expires(query)
        held = _lower(headers)
        signed = {name: held.get(name, "") for name in query.get("X-Amz-SignedHeaders", "").split(";")}
        expected = self.signature(method, url, query, signed)
        if "host" not in signed or not hmac.compare_digest(_bytes(expected), _bytes(given)):
            message = "The request signature we calculated does not match the signature you provided."
            raise BadSignatureError(message, code="SignatureDoesNotMatch")
        if int(now) > expires:
            message = "Request has expired"
            raise BadSignatureError(message)

    def signature(self, method: str, url: str, query: Mapping[str, str], signed: Mapping[str, str]) -> str:
        """The hexadecimal signature over a request: only the path of `url` counts, and `query` beside it."""
        date = query["X-Amz-Date"]
        text = "\n".join(
            (
                method,
                canonical_path(url),
                _joined(query),
                *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
                "",
                ";".join(sorted(signed)),
                "UNSIGNED-PAYLOAD",
            )
        )
        scope = f"{date[:8]}/{_SCOPE}"
        to_sign = f"{_ALGORITHM}\n{date}\n{scope}\n{hashlib.sha256(_bytes(text)).hexdigest()}"
        return _mac(self._signing_key(scope.split("/")), to_sign).hex()

    def _signing_key(self, scope: Iterable[str]) -> bytes:
        key = f"AWS4{self.secret}".encode()
        for part in scope:
            key = _mac(key, part)
        return key


def canonical_path(url: str) -> str:
    """The path of a URL, each character written in the one way that is signed."""
    return quote(unquote(urlsplit(url).path), safe="/", errors=_ERRORS)


def _expires(query: Mapping[str, str]) -> int:
    """The second up to which a signed URL works."""
    try:
        return timegm(strptime(query["X-Amz-Date"], _TIME)) + int(query["X-Amz-Expires"])
    except (KeyError, ValueError):
        message = "Query-string authentication requires X-Amz-Date and X-Amz-Expires."
        raise BadSignatureError(message) from None


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in headers.items()}


def _joined(query: Mapping[str, str]) -> str:
    """The query in its signed form: sorted, everything but unreserved characters percent-encoded."""
    return "&".join(f"{_quoted(name)}={_quoted(text)}" for name, text in sorted(query.items()))


def _quoted(text: str) -> str:
    return quote(text, safe="", errors=_ERRORS)


def _bytes(text: str) -> bytes:
    return text.encode(errors=_ERRORS)


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, _bytes(text), "sha256")
