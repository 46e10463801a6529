"""Reading request bodies: size limit, JSON, and the checks against the endpoint's schema."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from taskqueue_client.local.json_types import is_list, is_object
from taskqueue_client.local.refuse import refuse
from taskqueue_client.local.request_schemas import REQUEST_SCHEMAS
from taskqueue_client.local.schema_check import Check, compile_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

LARGEST_BODY = 10 * 1024 * 1024
"""The service's limit, in bytes; counted after decompression."""

_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
JSON_TYPE = "application/json"
_CHARSETS = {
    "utf-8",
    "utf8",
    "us-ascii",
    "iso-8859-1",
    "latin1",
    "windows-1252",
    "utf-16",
    "utf-16le",
    "utf-16be",
}
_LARGEST_EXACT = 2**53
_TOO_LARGE = 2**63
_LONG_NUMBER = re.compile(r"[0-9]{19}")


async def read_body(request: web.BaseRequest) -> bytes:
    """The whole body, decompressed.

    Raises:
        Refusal: It is too large, compressed in an unknown or wrong way, or did not come to its end.
    """
    if not request.body_exists:
        return b""
    encoding = _encoding(request)
    if (request.content_length or 0) > LARGEST_BODY:
        _too_large()
    await _say_continue(request)
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > LARGEST_BODY:
                _too_large()
    except ConnectionError:  # for the log of requests only, as nobody hears it
        refuse("InputError", "request aborted")
    return _decompress(bytes(body), encoding)


async def _say_continue(request: web.BaseRequest) -> None:
    """Let a client go on that asked whether it may send its body."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large() -> NoReturn:
    refuse("InputTooLarge", f"Request body is larger than {LARGEST_BODY} bytes")


def _encoding(request: web.BaseRequest) -> str:
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in {"identity", *_WINDOW_BITS}:
        message = f"Content-Encoding {encoding!r} is not supported: use identity, gzip or deflate"
        refuse("MalformedPayload", message)
    return encoding


def _decompress(body: bytes, encoding: str) -> bytes:
    """The body itself; no more of it is unpacked than may be sent."""
    if encoding == "identity":
        return body
    unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        unpacked = unpacker.decompress(body, LARGEST_BODY + 1)
    except zlib.error as error:
        refuse("MalformedPayload", f"The payload is not {encoding}: {error}")
    if len(unpacked) > LARGEST_BODY:
        _too_large()
    if not unpacker.eof:
        refuse("MalformedPayload", f"The payload is not {encoding}: it ends too early")
    return unpacked


def media_type(content_type: str | None) -> str:
    """A content type without its parameters, in lower case."""
    return (content_type or "").split(";")[0].strip().lower()


def read_text(body: bytes, content_type: str | None) -> str:
    """The text of a JSON body; bytes that are not of its character set become replacement characters."""
    charset = _charset(content_type or "").lower()
    if charset not in _CHARSETS:
        message = f"The character set {charset!r} of the payload is not supported: use utf-8"
        refuse("MalformedPayload", message)
    return body.decode(charset, "replace").removeprefix("\ufeff")


def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"')
    return "utf-8"


def parse(text: str) -> Any:
    """An object or a list.

    Raises:
        Refusal: The text is not JSON, is nested deeper than Python can handle, is a scalar, or has a NUL
            in a string, which the service's database can't hold.
    """
    try:
        return _parsed(text)
    except RecursionError:
        words = "nested deeper than Python can handle, which the local queue is written in"
        refuse("MalformedPayload", f"Failed to parse JSON: {words}")
    except (msgspec.DecodeError, ValueError) as error:
        end = "truncated" in str(error)
        refuse(
            "MalformedPayload", f"Failed to parse JSON: {'Unexpected end of JSON input' if end else error}"
        )


def _parsed(text: str) -> Any:
    value = _DECODER.decode(text)
    if not (is_object(value) or is_list(value)):
        refuse("MalformedPayload", "Failed to parse JSON: Must be an object or array")
    if "\\u0000" in text and any("\0" in each for each in _strings(value)):
        refuse("MalformedPayload", "Failed to parse JSON: a string holds the character NUL")
    return _with_doubles(value) if _LONG_NUMBER.search(text) else value


def _number(digits: str) -> float:
    """As JavaScript has it: 1.0 is the integer 1."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < _LARGEST_EXACT else value


_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)


def _with_doubles(value: Any) -> Any:
    """The value with its largest integers as JavaScript has them: rounded."""
    if is_object(value):
        return {key: _with_doubles(each) for key, each in value.items()}
    if is_list(value):
        return [_with_doubles(each) for each in value]
    return float(str(value)) if isinstance(value, int) and abs(value) >= _TOO_LARGE else value


def _strings(value: Any) -> Iterator[str]:
    """Every string within, keys too."""
    if isinstance(value, str):
        yield value
    elif is_object(value):
        for key, each in value.items():
            yield key
            yield from _strings(each)
    elif is_list(value):
        for each in value:
            yield from _strings(each)


_CHECKS: dict[str, Check] = {}


def check_body(schema: str, content_type: str | None, body: Any, root_url: str) -> None:
    """Fill the defaults of the schema into the body, and hold it against the schema.

    Raises:
        Refusal: The content type is not JSON, or the body is off the schema: every violation is listed.
    """
    if media_type(content_type) != JSON_TYPE:
        expected = "Payload must be JSON with content-type: application/json"
        refuse("MalformedPayload", f"{expected} got content-type: {content_type or 'null'}")
    check = _CHECKS.get(schema) or _CHECKS.setdefault(schema, compile_schema(REQUEST_SCHEMAS[schema]))
    errors: list[str] = []
    check(body, "data", errors)
    if errors:
        refuse("InputValidationError", _violations(f"{root_url}/schemas/{schema}.json#", errors))


def _violations(schema_url: str, errors: list[str]) -> str:
    listed = "\n  * ".join(errors)
    return f"\nSchema Validation Failed!\nRejecting Schema: {schema_url}\nErrors:\n  * {listed}"
