"""Storage that behaves like S3: buckets behind signed PUT and GET URLs under `/storage/`.

The server that mounts `put` and `get` must not decompress bodies of requests (aiohttp:
`AppRunner(app, auto_decompress=False)`): S3 gives a gzip body back as it was sent.
"""

from __future__ import annotations

import asyncio
import logging
import re
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes
from xml.sax.saxutils import escape

from aiohttp import web

from taskqueue_client.local.bodies import Body, BodyStore, read_blocks
from taskqueue_client.local.sigv4 import BadSignatureError, Signer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from aiohttp.abc import AbstractStreamWriter

    from taskqueue_client.clock import Clock

PUBLIC = "public-bucket"
PRIVATE = "private-bucket"
OBJECTS = "object-bucket"

GRACE_SECONDS = 10
"""How much longer an upload URL works than the client is told."""

_PREFIX = "/storage/"
_KEPT_HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition")
_DOT_SEGMENT = re.compile(r"(?:(?<=/)|^)(?=~*\.{1,2}(?:/|$))")

_log = logging.getLogger(__name__)


class Buckets:
    """Makes the URLs, and answers the requests made to them.

    Args:
        bodies: Where bodies are kept.
        signer: Signs the URLs; with the same one they outlive a restart.
        clock: When URLs expire.
        base_url: The server's `http://host:port`, asked for each URL.
    """

    def __init__(self, bodies: BodyStore, signer: Signer, clock: Clock, base_url: Callable[[], str]) -> None:
        self._bodies = bodies
        self._signer = signer
        self._clock = clock
        self._base_url = base_url

    def put_url(self, bucket: str, key: str, seconds: int, headers: Mapping[str, str] | None = None) -> str:
        """A URL that takes a PUT for some `seconds`, and only with these `headers`."""
        url = self.plain_url(bucket, key)
        return self._signer.sign("PUT", url, now=self._clock.now(), seconds=seconds, headers=headers)

    def get_url(self, bucket: str, key: str, seconds: int) -> str:
        """A URL that gives the body to a GET for some `seconds`."""
        return self._signer.sign("GET", self.plain_url(bucket, key), now=self._clock.now(), seconds=seconds)

    def plain_url(self, bucket: str, key: str) -> str:
        """The URL without a signature; it can be read in the public bucket."""
        return f"{self._base_url()}{_PREFIX}{bucket}/{quote(storage_key(key), safe='/')}"

    def save(self, bucket: str, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Store a body without a request.

        Raises:
            OSError: The disk is full.
        """
        self._bodies.save(bucket, storage_key(key), data, headers, self._clock.now())

    def remove(self, bucket: str, key: str) -> None:
        """Remove a body, if there is one."""
        self._bodies.remove(bucket, storage_key(key))

    async def put(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer `PUT /storage/<bucket>/<key>`."""
        try:
            self._check_signature("PUT", request)
        except BadSignatureError as error:
            return s3_error(403, error.code, str(error))
        if request.headers.get("Transfer-Encoding"):
            return s3_error(501, "NotImplemented", "Transfer-Encoding is not implemented here.")
        if request.content_length is None:
            return s3_error(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await self._receive(request, request.content_length)

    async def _receive(self, request: web.BaseRequest, size: int) -> web.Response:
        (bucket, key) = _address(request)
        chunks = _exactly(size, request.content.iter_any())
        try:
            body = await self._bodies.receive(bucket, key, chunks, _kept(request), self._clock.now())
        except (ConnectionError, web.RequestPayloadError):
            message = "You did not provide the number of bytes specified by the Content-Length HTTP header."
            return s3_error(400, "IncompleteBody", message)
        except OSError as error:
            _log.error("an upload could not be stored: %s", error.strerror)
            return s3_error(500, "InternalError", "We encountered an internal error. Please try again.")
        return web.Response(headers={"ETag": body.etag})

    async def get(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer `GET` and `HEAD /storage/<bucket>/<key>`. A URL signed for GET takes HEAD as well."""
        (bucket, key) = _address(request)
        try:
            if bucket != PUBLIC or "X-Amz-Signature=" in request.raw_path:
                self._check_signature("GET", request)
        except BadSignatureError as error:
            return s3_error(403, error.code, str(error))
        body = self._bodies.find(bucket, key)
        if body is None:
            return s3_error(404, "NoSuchKey", "The specified key does not exist.")
        if request.headers.get("If-None-Match") in (body.etag, "*"):
            return web.Response(status=304, headers={"ETag": body.etag})
        return _download(request, body)

    def _check_signature(self, method: str, request: web.BaseRequest) -> None:
        url = f"{self._base_url()}{request.raw_path}"
        self._signer.check(method, url, now=self._clock.now(), headers=request.headers)


class StoredBody(web.StreamResponse):
    """The answer that sends a body, or a part of it, from the file straight to the socket.

    Args:
        body: What is sent.
        span: Which of its bytes.
        status: 200, or 206 for a part.
        headers: Those of the answer.
    """

    def __init__(self, body: Body, span: range, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status=status, headers=headers)
        self.content_length = len(span)
        self._stored = body
        self._span = span

    def blocks(self) -> Iterator[bytes]:
        """The bytes that are sent, in blocks."""
        return read_blocks(self._stored, self._span.start, len(self._span))

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send headers and body."""
        with self._stored.path.open("rb") as file:  # before the first await: it may be replaced then
            writer = await super().prepare(request)
            if self._span and request.method == "GET" and request.transport is not None:
                loop = asyncio.get_running_loop()
                await loop.sendfile(request.transport, file, self._span.start, len(self._span))
        return writer


def storage_key(name: str) -> str:
    """A key that can stand in a URL's path: `.` and `..` between slashes get a `~` before them.

    HTTP clients remove such segments from paths. Different names keep different keys.
    """
    return _DOT_SEGMENT.sub("~", name)


def s3_error(status: int, code: str, message: str) -> web.Response:
    """An error as S3 sends it."""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
    )
    return web.Response(status=status, text=text, content_type="application/xml")


def _address(request: web.BaseRequest) -> tuple[str, str]:
    """Bucket and key."""
    path = request.raw_path.partition("?")[0].encode(errors="surrogateescape")
    (bucket, _, key) = unquote_to_bytes(path).decode(errors="replace").removeprefix(_PREFIX).partition("/")
    return (bucket, key)


async def _exactly(size: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks of a body of `size` bytes.

    Raises:
        RequestPayloadError: There are more or fewer (more: somebody decompressed them).
    """
    left = size
    async for chunk in chunks:
        left -= len(chunk)
        yield chunk
    if left:
        message = f"{size} bytes were announced, {size - left} came"
        raise web.RequestPayloadError(message)


def _kept(request: web.BaseRequest) -> dict[str, str]:
    """The headers of an upload that are part of what is stored."""
    kept = {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
    return {"Content-Type": "binary/octet-stream"} | kept


def _download(request: web.BaseRequest, body: Body) -> web.StreamResponse:
    headers = {
        **body.headers,
        "ETag": body.etag,
        "Last-Modified": formatdate(body.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }
    asked = _asked_range(request, body)
    if asked is None:
        return StoredBody(body, range(body.size), 200, headers)
    if not asked:
        return s3_error(416, "InvalidRange", "The requested range is not satisfiable")
    headers["Content-Range"] = f"bytes {asked.start}-{asked.stop - 1}/{body.size}"
    return StoredBody(body, asked, 206, headers)


def _asked_range(request: web.BaseRequest, body: Body) -> range | None:
    """The bytes a Range header asks for; None is all of them, as for a header that cannot be read."""
    if "Range" not in request.headers or request.headers.get("If-Range", body.etag) != body.etag:
        return None
    try:
        return range(body.size)[request.http_range]
    except ValueError:
        return None
