"""Responses of the services: decompression within limits, and the exceptions for error responses."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple, Self, cast

import msgspec
from msgspec.structs import replace

from taskqueue_client import errors

NO_CONTENT = 204
"""The status of a response that never has a body."""

MAX_RESPONSE = 512 * 2**20
"""The largest body of a response, in bytes: more than 32 claims of tasks with definitions of 10 MiB."""

MAX_UNPACKED = 64 * 2**20
"""The largest body of a compressed response after decompression, in bytes: 300 kB of gzip can be 300 MB.
Responses with claims are requested uncompressed: a claim that is not read is lost until it expires."""

_GZIP_OR_ZLIB = 47  # the `wbits` that let zlib detect the format


class Response(NamedTuple):
    """A response: the body is decompressed, headers are found by names in any case.

    Attributes:
        proxy: The URL of the proxy that got the request, and may have responded itself; empty without one.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    proxy: str = ""


class TransportFailed(Exception):
    """A transport has no response, or an incomplete one.

    Attributes:
        is_unsent: Nothing was sent to the service, so the call has no effect.
    """

    LATE = "the response was not complete in time"

    def __init__(self, reason: str, *, timed_out: bool = False, is_unsent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.timed_out = timed_out
        self.is_unsent = is_unsent

    def of_call(self, attempted: errors.Attempted) -> errors.CallFailed:
        failed = errors.CallTimedOut if self.timed_out else errors.ConnectionFailed
        return failed(replace(attempted, outcome_unknown=not self.is_unsent), self.reason)


class ResponseRefused(Exception):
    """A response was received, but not accepted: for example, it is too large."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason

    def of_call(self, attempted: errors.Attempted) -> errors.CallFailed:
        return errors.UnreadableResponse(attempted, self.status, self.reason)

    @classmethod
    def too_large(cls, status: int, limit: int) -> Self:
        return cls(status, f"the response is larger than {limit / 2**20:g} MiB")


class ProxyRefused(ResponseRefused):
    """A proxy has refused the request with 407; the server has not received it."""

    def __init__(self, reason: str) -> None:
        super().__init__(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED.value, reason)

    def of_call(self, attempted: errors.Attempted) -> errors.ApiError:
        """Return the error of a call, which is not retried."""
        return errors.ApiError(attempted, errors.Refused(self.status, message=self.reason))


def unpacked(status: int, headers: Mapping[str, str], body: bytes, limit: int) -> bytes:
    """Return a decompressed body. No more than the limit is ever decompressed."""
    coding = headers["content-encoding"].strip().lower()
    if coding in {"identity", ""} or not body:
        return body
    if coding not in {"gzip", "x-gzip", "deflate"}:
        why = f"Content-Encoding: expected gzip or deflate, found {coding!r}"
        if status >= HTTPStatus.BAD_REQUEST:
            return why.encode()  # in place of the message: the status says what kind of error it is
        raise ResponseRefused(status, why)
    limit = min(limit, MAX_UNPACKED)
    try:
        return _unpacked(status, body, limit)
    except zlib.error as error:
        why = f"the response is damaged: its body is not {coding} ({error})"
        raise TransportFailed(why) from error


def _unpacked(status: int, body: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while body:
        unpacking = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
        pieces.append(unpacking.decompress(body, left + 1))
        left -= len(pieces[-1])
        if left < 0:
            raise ResponseRefused.too_large(status, limit)
        if not unpacking.eof:
            raise TransportFailed("the response is incomplete: its compressed body ends too early")
        body = unpacking.unused_data
    return b"".join(pieces)


def is_framed(response: Response) -> bool:
    """Return whether a response says where it ends; otherwise, a truncated one looks complete."""
    headers = response.headers
    return response.status == NO_CONTENT or "content-length" in headers or "transfer-encoding" in headers


_MOST_AGE = 2**31  # seconds, as RFC 9111, 1.2.2 bounds them: with more, the time could be out of range


def date_of(headers: Mapping[str, str]) -> float | None:
    """Return the server's time in seconds since the epoch; None if `Date` is missing or malformed.

    A cache states the seconds since `Date` in the header `Age` (RFC 9111, 5.1).
    """
    age = headers.get("age", "")
    try:
        return _moment_of(headers["date"]) + (min(int(age), _MOST_AGE) if age.isdecimal() else 0)
    except (KeyError, ValueError, OverflowError):
        return None


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds of the `Retry-After` header (RFC 9110, 10.2.3); None if it is missing or malformed.

    A date counts from the header `Date` or, without it, from `now`, in seconds since the epoch.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    if value.isdecimal():
        return float(value)
    date = date_of(headers)
    try:
        return max(_moment_of(value) - (now if date is None else date), 0.0)
    except (ValueError, OverflowError):
        return None


def _moment_of(date: str) -> float:
    """Return the seconds since the epoch of a header's date. A date without a zone is in GMT."""
    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_BY_CODE: dict[str, type[errors.ApiError]] = {
    "MalformedPayload": errors.MalformedRequestBody,
    "InvalidRequestArguments": errors.InvalidRequestArguments,
    "InputValidationError": errors.InputValidationError,
    "InputError": errors.InputError,
    "NoMatchingBackend": errors.NoMatchingBackend,
    "AuthenticationFailed": errors.AuthenticationFailed,
    "InsufficientScopes": errors.InsufficientScopes,
    "ResourceNotFound": errors.ResourceNotFound,
    "NoMatchingMethod": errors.NoMatchingMethod,
    "RequestConflict": errors.RequestConflict,
    "ResourceExpired": errors.ResourceExpired,
    "InputTooLarge": errors.InputTooLarge,
    "InternalServerError": errors.InternalServerError,
}

_BY_STATUS: dict[int, type[errors.ApiError]] = {
    400: errors.BadRequest,
    401: errors.AuthenticationFailed,
    403: errors.InsufficientScopes,
    404: errors.NotFound,
    406: errors.NoMatchingMethod,
    409: errors.RequestConflict,
    410: errors.ResourceExpired,
    413: errors.InputTooLarge,
    424: errors.ErrorArtifact,
    429: errors.TooManyRequests,
}


def error_of_response(attempted: errors.Attempted, response: Response, now: float) -> errors.ApiError:
    """Return the error for a response that was not accepted, from a service or a proxy in front of it."""
    document = _json_object(response.body)
    code, info = document.get("code"), document.get("requestInfo")
    code = code if isinstance(code, str) else None
    kind = _kind(response.status, code)
    # The Queue's own response about an error artifact has no code.
    is_foreign = code is None and kind is not errors.ErrorArtifact
    refused = errors.Refused(
        status=response.status,
        code=code,
        message=(sender(response.proxy) if is_foreign else "") + _message(response, document),
        request_info=cast("dict[str, Any]", info) if isinstance(info, dict) else {},
        retry_after=retry_after(response.headers, now),
        document=document,
    )
    return kind(attempted, refused)


def sender(proxy: str) -> str:
    """Return the beginning of a text about a response without an error code: which proxy may have sent it."""
    return f"the proxy {proxy} may have responded, and not the service: " if proxy else ""


def _kind(status: int, code: str | None) -> type[errors.ApiError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    other = errors.ServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else errors.ApiError
    return _BY_STATUS.get(status, other)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


_REDIRECTS = range(300, 400)
_TRAILER = "\n\n---\n\n* method: "
# Compiled at the first page in place of a response, to keep the import short.
_TAG = r"(?is)<(script|style)\b.*?</\1\s*>|<[^>]*>"


def _message(response: Response, document: Mapping[str, Any]) -> str:
    location = response.headers.get("location")
    if location and response.status in _REDIRECTS:
        target = errors.shortened(location.partition("?")[0])
        return f"redirected to {target}, but calls do not follow redirects; check the root URL"
    words = document.get("message") or document.get("error")
    if isinstance(words, str):
        return words.partition(_TRAILER)[0]
    page = text_of_page(response.body.decode(errors="replace"))
    return page or f"empty response with status {response.status}"


def text_of_page(page: str) -> str:
    """Return the visible text of an HTML page, such as a proxy's, shortened."""
    return errors.shortened(" ".join(re.sub(_TAG, " ", page[: 20 * errors.LONGEST]).split()))


def unreadable(body: bytes, error: Exception) -> str:
    """Return why a body is not the JSON of a response, with its text if it is a page of another server.

    Nothing else is shown: JSON in another encoding, for example, may contain credentials.
    """
    if not body:
        return "it is empty"
    page = text_of_page(body.decode(errors="replace")) if body.lstrip().startswith(b"<") else ""
    return f"it is not JSON: {page}" if page else str(error)
