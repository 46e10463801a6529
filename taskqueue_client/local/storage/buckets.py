"""Storage that behaves like S3: buckets behind signed PUT and GET URLs under `/storage/`.

The server that calls `put` and `get` must not decompress bodies of requests (`auto_decompress=False` of
aiohttp): S3 gives a gzip body back as it was sent.

URLs are signed by AWS Signature Version 4 in the query, with an unsigned payload: "Authenticating Requests:
Using Query Parameters (AWS Signature Version 4)" in the Amazon S3 API reference.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import sqlite3
from base64 import b64decode
from calendar import timegm
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from time import gmtime, strftime, strptime
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes, urlencode, urlsplit
from xml.sax.saxutils import escape

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from taskqueue_client.clock import Clock
from taskqueue_client.local.engine.store import is_of_machine
from taskqueue_client.local.http.request_bodies import say_continue

from .body_store import BLOCK, Body, BodyStore

_ALGORITHM = "AWS4-HMAC-SHA256"
_SCOPE = "us-east-1/s3/aws4_request"
_TIME = "%Y%m%dT%H%M%SZ"
_ERRORS = "surrogateescape"  # how aiohttp decodes bytes of a request that are not UTF-8


class BadSignatureError(Exception):
    """The URL does not allow this request; the message and `code` are S3's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class UrlSigner:
    """Signs and checks URLs with one secret, which `key_id` names in each URL."""

    key_id: str
    secret: str = field(repr=False)

    def sign(
        self, method: str, url: str, *, now: float, seconds: int, headers: Mapping[str, str] = {}
    ) -> str:
        """Return the `url` with a signature that allows `method` for some `seconds` from `now` on.

        The request must be made with these `headers`, to the letter, and with the `Host` of the URL.
        """
        signed = {"host": urlsplit(url).netloc} | {name.lower(): text for name, text in headers.items()}
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
        """Raise a BadSignatureError unless `url` allows a request with this method and these headers."""
        query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        given = query.pop("X-Amz-Signature", None)
        if given is None:
            raise BadSignatureError("AccessDenied", "Access Denied")
        expires = _expires(query)
        held = {name.lower(): text for name, text in headers.items()}
        signed = {name: held.get(name, "") for name in query.get("X-Amz-SignedHeaders", "").split(";")}
        expected = self.signature(method, url, query, signed)
        if "host" not in signed or not hmac.compare_digest(_bytes(expected), _bytes(given)):
            message = "The request signature we calculated does not match the signature you provided."
            raise BadSignatureError("SignatureDoesNotMatch", message)
        if int(now) > expires:
            raise BadSignatureError("AccessDenied", "Request has expired")

    def signature(self, method: str, url: str, query: Mapping[str, str], signed: Mapping[str, str]) -> str:
        """Return the signature of a request in hex; of `url`, only the path counts."""
        date, names = query["X-Amz-Date"], sorted(signed)
        path = quote(unquote(urlsplit(url).path), safe="/", errors=_ERRORS)  # the one form that is signed
        headers = [f"{name}:{' '.join(signed[name].split())}" for name in names]
        parts = (method, path, _joined(query), *headers, "", ";".join(names), "UNSIGNED-PAYLOAD")
        text = "\n".join(parts)
        scope = f"{date[:8]}/{_SCOPE}"
        to_sign = f"{_ALGORITHM}\n{date}\n{scope}\n{hashlib.sha256(_bytes(text)).hexdigest()}"
        key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            key = _mac(key, part)
        return _mac(key, to_sign).hex()


def _expires(query: Mapping[str, str]) -> int:
    """Return the second up to which a signed URL works."""
    try:
        return timegm(strptime(query["X-Amz-Date"], _TIME)) + int(query["X-Amz-Expires"])
    except (KeyError, ValueError):
        raise BadSignatureError(
            "AccessDenied", "Query-string authentication requires X-Amz-Date and X-Amz-Expires."
        ) from None


def _joined(query: Mapping[str, str]) -> str:
    """Return the query in its signed form: sorted, everything but unreserved characters percent-encoded."""
    return urlencode(sorted(query.items()), errors=_ERRORS, quote_via=quote)


def _bytes(text: str) -> bytes:
    return text.encode(errors=_ERRORS)


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, _bytes(text), "sha256")


PUBLIC = "public-bucket"
PRIVATE = "private-bucket"
OBJECTS = "object-bucket"

GRACE_SECONDS = 10
"""How many seconds longer an upload URL works than the client is told."""

_PREFIX = "/storage/"
_STORED_HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition", "Cache-Control")
_ISOLATED = {"Content-Security-Policy": "sandbox allow-scripts allow-popups allow-downloads"}
"""Keeps HTML and SVG from the origin of this server, where they could do all that the web page can."""
_SHOWN_ALONE = "application/pdf"  # Chromium shows PDFs only without a sandbox; they cannot act in the origin
_CORS = {"Access-Control-Allow-Origin": "*"}
"""Lets web pages of all origins read a response: the service configures its buckets so."""
_METHODS_FOR_PAGES = ("GET", "PUT", "HEAD", "POST", "DELETE")

_DOT_SEGMENT = re.compile(r"(?:(?<=/)|^)(?=~*\.{1,2}(?:/|$))")

_NO_BYTES = re.compile(r"bytes=-0+", re.IGNORECASE)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Buckets:
    """Makes the URLs, and responds to the requests made to them."""

    bodies: BodyStore
    signer: UrlSigner
    clock: Clock
    base_url: Callable[[], str]

    def put_url(self, bucket: str, key: str, seconds: int, headers: Mapping[str, str] = {}) -> str:
        """Return a URL that accepts a PUT for some `seconds`, and only with these `headers`."""
        url = self.plain_url(bucket, key)
        return self.signer.sign("PUT", url, now=self.clock.now(), seconds=seconds, headers=headers)

    def get_url(self, bucket: str, key: str, seconds: int) -> str:
        """Return a URL that gives the body to a GET for some `seconds`."""
        return self.signer.sign("GET", self.plain_url(bucket, key), now=self.clock.now(), seconds=seconds)

    def plain_url(self, bucket: str, key: str) -> str:
        """Return the URL without a signature; it can be read in the public bucket."""
        return f"{self.base_url()}{_PREFIX}{bucket}/{quote(storage_key(key), safe='/')}"

    def save(self, bucket: str, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Store a body without a request."""
        self.bodies.save(bucket, storage_key(key), data, headers, self.clock.now())

    def remove(self, bucket: str, key: str) -> None:
        """Remove a body, if there is one."""
        self.bodies.remove(bucket, storage_key(key))

    async def put(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to `PUT /storage/<bucket>/<key>`."""
        if (refused := self._refused("PUT", request)) is not None:
            return refused
        if request.headers.get("Transfer-Encoding"):
            return s3_error(501, "NotImplemented", "Transfer-Encoding is not implemented here.")
        if request.content_length is None:
            return s3_error(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")
        headers = _stored_headers(request)
        if not _is_utf8("".join(headers.values())):
            return s3_error(400, "InvalidArgument", f"{', '.join(headers)}: not UTF-8.")
        say_continue(request)
        return await self._receive(request, request.content_length, headers)

    async def _receive(self, request: web.BaseRequest, size: int, headers: Mapping[str, str]) -> web.Response:
        (bucket, key) = _address(request)
        try:
            md5 = _announced_md5(request.headers.get("Content-MD5"))
            chunks = _checked(md5, _exactly(size, request.content.iter_any()))
            body = await self.bodies.receive(bucket, key, chunks, headers, self.clock.now())
        except _WrongDigestError as error:
            return s3_error(400, error.code, "Content-MD5 is not the MD5 sum of the bytes that came.")
        except (ConnectionError, web.RequestPayloadError):
            message = "You did not provide the number of bytes specified by the Content-Length HTTP header."
            return s3_error(400, "IncompleteBody", message)
        except (OSError, sqlite3.Error) as error:
            if not is_of_machine(error):
                raise
            _log.error("an upload could not be stored: %s", error)
            return s3_error(500, "InternalError", "We encountered an internal error. Please try again.")
        return web.Response(headers={**_CORS, "ETag": body.etag})

    async def get(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to `GET` and `HEAD /storage/<bucket>/<key>`; a URL that is signed for GET refuses HEAD."""
        (bucket, key) = _address(request)
        is_signed = bucket != PUBLIC or "X-Amz-Signature=" in request.raw_path
        if is_signed and (refused := self._refused(request.method, request)) is not None:
            return refused
        body = self.bodies.find(bucket, key)
        if body is None:
            return s3_error(404, "NoSuchKey", "The specified key does not exist.")
        return _unmet_condition(request.headers, body) or _download(request, body)

    async def preflight(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to `OPTIONS`: a browser asks so before a page of another origin may send a request."""
        method = request.headers.get("Access-Control-Request-Method")
        if method is None or "Origin" not in request.headers:
            needed = "OPTIONS needs the headers Origin and Access-Control-Request-Method."
            return s3_error(400, "BadRequest", needed)
        named = request.headers.get("Access-Control-Request-Headers", "")
        if method not in _METHODS_FOR_PAGES or not named.isascii():
            return s3_error(403, "AccessForbidden", "Pages of other origins cannot send this request.")
        headers = {
            **_CORS,
            "Access-Control-Allow-Methods": ", ".join(_METHODS_FOR_PAGES),
            "Access-Control-Allow-Headers": named,
            "Access-Control-Max-Age": "3600",
        }
        return web.Response(headers=headers)

    def _refused(self, method: str, request: web.BaseRequest) -> web.Response | None:
        """Return the response to a request that its URL does not allow; None for one that it allows."""
        url = f"{self.base_url()}{request.raw_path}"
        try:
            self.signer.check(method, url, now=self.clock.now(), headers=request.headers)
        except BadSignatureError as error:
            return s3_error(403, error.code, str(error))
        return None


class StoredBody(web.StreamResponse):
    """A response that sends a body, or a part of it, from the file straight to the socket."""

    def __init__(self, body: Body, span: range, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status=status, headers=headers)
        self.content_length = len(span)
        self._stored = body
        self._span = span

    def blocks(self) -> Iterator[bytes]:
        """Return the bytes that are sent, in blocks."""
        left = len(self._span)
        with self._stored.path.open("rb") as file:
            file.seek(self._span.start)
            while left and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                yield block

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send headers and body."""
        with self._stored.path.open("rb") as file:  # before the first await: the body may be replaced then
            writer = await super().prepare(request)
            if self._span and request.method == "GET" and request.transport is not None:
                loop = asyncio.get_running_loop()
                await loop.sendfile(request.transport, file, self._span.start, len(self._span))
        return writer


def storage_key(name: str) -> str:
    """Return a key that can stand in a URL's path: `.` and `..` between slashes get a `~` before them.

    HTTP clients remove such segments from paths. Different names keep different keys.
    """
    return _DOT_SEGMENT.sub("~", name)


def s3_error(status: int, code: str, message: str) -> web.Response:
    """Return an error as S3 sends it."""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
    )
    return web.Response(status=status, text=text, content_type="application/xml", headers=_CORS)


def _address(request: web.BaseRequest) -> tuple[str, str]:
    path = request.raw_path.partition("?")[0].encode(errors="surrogateescape")
    (bucket, _, key) = unquote_to_bytes(path).decode(errors="replace").removeprefix(_PREFIX).partition("/")
    return (bucket, key)


async def _exactly(size: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the chunks of a body of `size` bytes; raises an error for more (decompressed ones) or fewer."""
    left = size
    async for chunk in chunks:
        left -= len(chunk)
        yield chunk
    if left:
        raise web.RequestPayloadError(f"{size} bytes were announced, {size - left} came")


class _WrongDigestError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def _announced_md5(header: str | None) -> bytes | None:
    """Return the MD5 sum in a `Content-MD5` header; None without one."""
    try:
        md5 = None if header is None else b64decode(header, validate=True)
    except ValueError:
        md5 = b""
    if md5 is not None and len(md5) != hashlib.md5(usedforsecurity=False).digest_size:
        raise _WrongDigestError("InvalidDigest")
    return md5


async def _checked(md5: bytes | None, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the chunks of a body; raises an error if they do not have the MD5 sum that was announced."""
    found = hashlib.md5(usedforsecurity=False)
    async for chunk in chunks:
        if md5 is not None:
            found.update(chunk)
        yield chunk
    if md5 not in {None, found.digest()}:
        raise _WrongDigestError("BadDigest")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # aiohttp decodes other bytes as surrogates
        return False
    return True


def _stored_headers(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers of an upload that are part of what is stored."""
    kept = {name: request.headers[name] for name in _STORED_HEADERS if name in request.headers}
    return {"Content-Type": "binary/octet-stream"} | kept


def _download(request: web.BaseRequest, body: Body) -> web.StreamResponse:
    headers = {
        **_CORS,
        **body.headers,
        **({} if body.headers.get("Content-Type") == _SHOWN_ALONE else _ISOLATED),
        "ETag": body.etag,
        "Last-Modified": formatdate(body.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }
    requested = _requested_range(request, body)
    if requested is None:
        return StoredBody(body, range(body.size), 200, headers)
    if not requested:
        return s3_error(416, "InvalidRange", "The requested range is not satisfiable")
    headers["Content-Range"] = f"bytes {requested.start}-{requested.stop - 1}/{body.size}"
    return StoredBody(body, requested, 206, headers)


def _unmet_condition(headers: Mapping[str, str], body: Body) -> web.Response | None:
    """Return the response to a request whose conditions the body does not meet; None if it meets them.

    As in S3, a condition on the ETag replaces the one on the time.
    """
    wanted, known = headers.get("If-Match"), headers.get("If-None-Match")
    is_unmet = (
        _is_newer(body, headers.get("If-Unmodified-Since")) if wanted is None else not _has_etag(body, wanted)
    )
    if is_unmet:
        needed = "The stored data does not meet the conditions of the request."
        return s3_error(412, "PreconditionFailed", needed)
    is_unchanged = (
        _is_newer(body, headers.get("If-Modified-Since")) is False
        if known is None
        else _has_etag(body, known)
    )
    return web.Response(status=304, headers={**_CORS, "ETag": body.etag}) if is_unchanged else None


def _has_etag(body: Body, etags: str) -> bool:
    return any(etag.strip() in {body.etag, "*"} for etag in etags.split(","))


def _is_newer(body: Body, date: str | None) -> bool | None:
    """Return whether a body was stored after an HTTP date, in whole seconds; None without a valid date.

    A date in the form of asctime has no zone: it is in UTC (RFC 9110, 5.6.7).
    """
    try:
        when = None if date is None else parsedate_to_datetime(date)
        return None if when is None else int(body.modified) > timegm(when.utctimetuple())
    except (ValueError, OverflowError):
        return None


def _requested_range(request: web.BaseRequest, body: Body) -> range | None:
    """Return the bytes a Range header requests; None: all of them, also for an invalid header."""
    if "Range" not in request.headers or request.headers.get("If-Range", body.etag) != body.etag:
        return None
    if _NO_BYTES.fullmatch(request.headers["Range"]):  # aiohttp reads it as all bytes
        return range(0)
    try:
        return range(body.size)[request.http_range]
    except ValueError:
        return None
