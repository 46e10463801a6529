"""Responses as the service sends them: JSON with two spaces, its headers, ETags, compression, and errors."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from uuid import uuid4

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from taskqueue_client.local import times
from taskqueue_client.local.refusal import Refusal

from .request_bodies import brotli

_ON_EVERY_RESPONSE: CIMultiDict[str] = CIMultiDict(
    {
        "Cache-Control": "no-store no-cache must-revalidate",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Max-Age": "900",
        "Access-Control-Allow-Methods": "OPTIONS,GET,HEAD,POST,PUT,DELETE,TRACE,CONNECT",
        "Access-Control-Allow-Headers": "X-Requested-With,Content-Type,Authorization,Accept,Origin,"
        "Cache-Control",
        "Access-Control-Request-Method": "*",
        "Content-Security-Policy": "report-uri /__cspreport__;default-src 'none';frame-ancestors 'none';",
        "X-Content-Type-Options": "nosniff",
    }
)
_NO_CACHE = re.compile(r"(?:^|,)\s*no-cache\s*(?:,|$)", re.ASCII)
_QVALUE = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_JSON = "application/json; charset=utf-8"
_SMALLEST_COMPRESSED = 1024  # responses of at least this many bytes are compressed if the client accepts it


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response with a JSON body."""
    return _response(msgspec.json.format(msgspec.json.encode(body), indent=2), _JSON, status, headers)


def text_response(text: str, content_type: str, status: int, headers: Mapping[str, str]) -> web.Response:
    """Return a response with a text body, in UTF-8."""
    return _response(text.encode(), content_type, status, headers)


def see_other(url: str) -> web.Response:
    """Return a redirect as the service's library sends it to programs: a short text, and no ETag."""
    headers = {"Location": url, "Vary": "Accept"}
    response = text_response(f"See Other. Redirecting to {url}", "text/plain; charset=utf-8", 303, headers)
    del response.headers["ETag"]
    return response


def empty_response() -> web.Response:
    """Return a 204 without a body."""
    return web.Response(status=204, headers=_ON_EVERY_RESPONSE.copy())


def not_found() -> web.Response:
    """Return the response to a request that matches no route."""
    return json_response({"error": "Not found"}, 404)


def _response(body: bytes, content_type: str, status: int, headers: Mapping[str, str] | None) -> web.Response:
    digest = b64encode(hashlib.sha1(body, usedforsecurity=False).digest())[:27].decode()
    merged = _ON_EVERY_RESPONSE.copy()
    merged.update({"Content-Type": content_type, "ETag": f'W/"{len(body):x}-{digest}"', **(headers or {})})
    return web.Response(body=body, status=status, headers=merged)


def error_response(
    refusal: Refusal, method: str, params: Mapping[str, str], payload: object, now: float
) -> web.Response:
    """Return a refusal in the service's form; `now` is in seconds."""
    time = times.text(times.milliseconds(now))
    trailer = (
        f"* method:     {method}\n* errorCode:  {refusal.code}\n"
        f"* statusCode: {refusal.status}\n* time:       {time}"
    )
    words = refusal.message.encode(errors="replace").decode()  # headers may hold what is not UTF-8
    body = {
        "code": refusal.code,
        "message": f"{words}\n\n---\n\n{trailer}",
        "requestInfo": {"method": method, "params": params, "payload": payload, "time": time},
    }
    challenge = {"www-authenticate": "hawk"} if refusal.code == "AuthenticationFailed" else {}
    return json_response(body, refusal.status, challenge)


def finish(request: web.BaseRequest, response: web.Response) -> web.Response:
    """Add what depends on the request: trace ids, compression; or return a 304 if the body is known."""
    headers = response.headers
    trace = request.headers.get("x-taskcluster-trace-id", "")
    headers["x-for-trace-id"] = trace if trace.isascii() and trace.isprintable() and trace else str(uuid4())
    headers["x-for-request-id"] = str(uuid4())
    if _is_known(request, response):
        of_body = {"Content-Type", "Content-Length"}
        kept = {name: value for name, value in headers.items() if name not in of_body}
        return web.Response(status=304, headers=kept)
    if isinstance(response.body, bytes):
        _compress(request, response, response.body)
    return response


def _is_known(request: web.BaseRequest, response: web.Response) -> bool:
    """Return whether the client has this body already, according to `If-None-Match`."""
    known = request.headers.get("If-None-Match")
    if _NO_CACHE.search(request.headers.get("Cache-Control", "")):
        return False
    if known is None or request.method not in {"GET", "HEAD"} or response.status // 100 != 2:  # noqa: PLR2004  2xx
        return False
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    return "*" in tags or response.headers.get("ETag", "").removeprefix("W/") in tags


def _compress(request: web.BaseRequest, response: web.Response, body: bytes) -> None:
    varies = response.headers.get("Vary")
    response.headers["Vary"] = f"{varies}, Accept-Encoding" if varies else "Accept-Encoding"
    if request.method == "HEAD":  # announces the length of the plain body, as the service's library does
        return
    coding = _coding(request.headers.get("Accept-Encoding")) if len(body) >= _SMALLEST_COMPRESSED else None
    if coding is not None:
        response.body = _COMPRESS[coding](body)
        response.headers["Content-Encoding"] = coding


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    **({} if brotli is None else {"br": lambda body: brotli.compress(body, quality=1)}),
    "gzip": lambda body: gzip.compress(body, compresslevel=1, mtime=0),
    "deflate": lambda body: zlib.compress(body, 1),
}
"""The codings of responses, the preferred ones first."""

_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    **({} if brotli is None else {"br": brotli.decompress}),
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


def plain_body(response: web.StreamResponse) -> bytes:
    """Return the body of a response without its compression; empty if it is sent from a file."""
    body = getattr(response, "body", None)
    coding = response.headers.get("Content-Encoding", "")
    return _DECOMPRESS.get(coding, bytes)(body) if isinstance(body, bytes) else b""


@lru_cache(maxsize=64)
def _coding(accepted: str | None) -> str | None:
    """Return the coding with the highest quality in an `Accept-Encoding` header; None for no coding."""
    if accepted is None:
        return None
    quality = dict(map(_quality, accepted.lower().split(",")))
    rest = quality.get("*", 0.0)
    offered = {coding: quality.get(coding, rest) for coding in _COMPRESS}
    best = max(offered, key=offered.__getitem__)  # the first of those with the same quality
    return best if offered[best] and offered[best] >= quality.get("identity", rest) else None


def _quality(element: str) -> tuple[str, float]:
    """Return name and quality value of one element of a list such as `gzip;q=0.5, br`."""
    name, *parameters = element.replace(" ", "").split(";")
    given = next((text[2:] for text in parameters if text.startswith("q=")), "1")
    return name, float(given) if _QVALUE.fullmatch(given) else 1.0


class ResentResponse(web.StreamResponse):
    """Another response with its body sent piece by piece; the connection ends if the pieces end early."""

    def __init__(self, response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(status=response.status, reason=response.reason, headers=response.headers)
        self.content_length = response.content_length
        self._pieces = pieces

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the headers and the pieces."""
        writer = await super().prepare(request)
        if request.method == "HEAD":
            return writer
        left = self.content_length or 0
        async for piece in self._pieces:
            await self.write(piece)
            left -= len(piece)
        if left and request.transport is not None:
            request.transport.close()  # what was written is still sent, unlike with abort()
        return writer
