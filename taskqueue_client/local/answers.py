"""Answers as the service gives them: JSON with two spaces, its headers, ETags, compression, and errors."""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from aiohttp import web
from multidict import CIMultiDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskqueue_client.local.refusal import Refusal

_ON_EVERY_ANSWER: CIMultiDict[str] = CIMultiDict(
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
_JSON = "application/json; charset=utf-8"
_SMALLEST_COMPRESSED = 1024
"""From this many bytes on an answer is compressed, if the client takes that."""


def json_answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer with a JSON body."""
    return _answer(msgspec.json.format(msgspec.json.encode(body), indent=2), _JSON, status, headers)


def text_answer(text: str, content_type: str, status: int, headers: Mapping[str, str]) -> web.Response:
    """An answer in words."""
    return _answer(text.encode(), f"{content_type}; charset=utf-8", status, headers)


def empty_answer() -> web.Response:
    """204: done, and nothing to say."""
    return web.Response(status=204, headers=_ON_EVERY_ANSWER.copy())


def not_found() -> web.Response:
    """The answer to a request that no route fits."""
    return json_answer({"error": "Not found"}, 404)


def _answer(body: bytes, content_type: str, status: int, headers: Mapping[str, str] | None) -> web.Response:
    all_headers = _ON_EVERY_ANSWER.copy()
    all_headers.update({"Content-Type": content_type, "ETag": _etag(body), **(headers or {})})
    return web.Response(body=body, status=status, headers=all_headers)


def _etag(body: bytes) -> str:
    digest = b64encode(hashlib.sha1(body, usedforsecurity=False).digest())[:27].decode()
    return f'W/"{len(body):x}-{digest}"'


def error_answer(
    refusal: Refusal, method: str, params: Mapping[str, str], payload: object, now_ms: int
) -> web.Response:
    """A refusal in the service's form.

    Args:
        refusal: Why not.
        method: The endpoint's name.
        params: The URL parameters.
        payload: The body, as far as it was read and completed.
        now_ms: The time, in milliseconds since the epoch.
    """
    time = iso(now_ms)
    facts = {
        "method": f"    {method}",
        "errorCode": f" {refusal.code}",
        "statusCode": refusal.status,
        "time": f"      {time}",
    }
    trailer = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    words = refusal.message.encode(errors="replace").decode()  # headers may hold what is not UTF-8
    body = {
        "code": refusal.code,
        "message": f"{words}\n\n---\n\n{trailer}",
        "requestInfo": {"method": method, "params": params, "payload": payload, "time": time},
    }
    challenge = {"www-authenticate": "hawk"} if refusal.code == "AuthenticationFailed" else {}
    return json_answer(body, refusal.status, challenge)


def iso(milliseconds: int) -> str:
    """A time as the service writes it: `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03}Z"


def finish(request: web.BaseRequest, answer: web.Response) -> web.Response:
    """Add what depends on the request: its trace, a 304 instead of what the client has, compression."""
    headers = answer.headers
    trace = request.headers.get("x-taskcluster-trace-id", "")
    headers["x-for-trace-id"] = trace if trace.isascii() and trace.isprintable() and trace else str(uuid4())
    headers["x-for-request-id"] = str(uuid4())
    if _is_known(request, answer):
        kept = {
            name: value for name, value in headers.items() if name not in {"Content-Type", "Content-Length"}
        }
        return web.Response(status=304, headers=kept)
    if isinstance(answer.body, bytes):
        _compress(request, answer, answer.body)
    return answer


def _is_known(request: web.BaseRequest, answer: web.Response) -> bool:
    """Whether the client already holds this very body, by the ETag it names."""
    known = request.headers.get("If-None-Match")
    if known is None or request.method not in {"GET", "HEAD"} or answer.status // 100 != 2:  # noqa: PLR2004  2xx
        return False
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    return "*" in tags or answer.headers.get("ETag", "").removeprefix("W/") in tags


def _compress(request: web.BaseRequest, answer: web.Response, body: bytes) -> None:
    answer.headers["Vary"] = "Accept-Encoding"
    if request.method == "HEAD":  # announces the length of the plain body, as the service's library does
        return
    if len(body) >= _SMALLEST_COMPRESSED and _takes_gzip(request.headers.get("Accept-Encoding", "")):
        answer.body = gzip.compress(body, compresslevel=1, mtime=0)
        answer.headers["Content-Encoding"] = "gzip"


def _takes_gzip(accepted: str) -> bool:
    codings = [coding.replace(" ", "").lower().split(";") for coding in accepted.split(",")]
    return any(name in {"gzip", "*"} and "q=0" not in parameters for name, *parameters in codings)
