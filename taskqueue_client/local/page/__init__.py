"""A web page that shows what the local queue does, and lets a developer act on it.

This module has its routes, its files, and the check of who may use it.

`Access` lets in only a browser that was given the token, and only from the page itself. Cookies do not know
ports: every server on this host name gets the page's cookie, and a page served by one of them counts as the
same site. So a cookie alone never lets a request in; where the request comes from is checked as well. The
check of the `Host` header keeps out DNS rebinding: a name that somebody else controls and that points to this
machine.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import inspect
import logging
import math
import re
import time
import weakref
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import web
from yarl import URL

from taskqueue_client._protocol.schemas import check_definition
from taskqueue_client.clock import MovableClock
from taskqueue_client.errors import InvalidDefinition
from taskqueue_client.local.auth.auth_service import Caller, Identity
from taskqueue_client.local.engine.core import Core
from taskqueue_client.local.engine.task_artifacts import get_artifact
from taskqueue_client.local.faults import AnyFault, FaultInjector
from taskqueue_client.local.http.admin import LONGEST_STEP
from taskqueue_client.local.http.api import ROUTES, Api, BrokenEscapeError
from taskqueue_client.local.http.request_bodies import read_body
from taskqueue_client.local.http.schema_check import is_address
from taskqueue_client.local.messages import Message
from taskqueue_client.local.refusal import Refusal, conflict, existing, refuse

from .views import Feed, Views


class Access:
    """Checks requests to the page.

    Token and cookie are derived from `secret`: with the same secret, both stay valid after a restart.
    """

    def __init__(self, secret: str, host: str) -> None:
        self._host = host.lower()
        self.token = _derived(secret, "page token")
        self._cookie = _derived(secret, "page cookie")

    def check_host(self, request: web.BaseRequest) -> None:
        """Refuse a request whose `Host` is neither an address, `localhost` nor the queue's own name."""
        name, _ = _split_host(request)
        if name not in {"localhost", self._host} and not is_address(name):
            host = request.headers.get("Host")
            refuse("InsufficientScopes", f"Host: {host!r} is not this queue; use the address it printed")

    def check_origin(self, request: web.BaseRequest) -> None:
        """Refuse a request of another page; a request that changes something must have an `Origin`."""
        origin = request.headers.get("Origin")
        is_read = request.method in {"GET", "HEAD"}
        if (origin is None and not is_read) or origin not in {None, f"http://{request.headers['Host']}"}:
            refuse("InsufficientScopes", f"Origin: {origin!r} is not the origin of this page")
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            refuse("InsufficientScopes", "Only the page itself may make this request")

    def check_cookie(self, request: web.BaseRequest) -> None:
        """Refuse a request of a browser that has not exchanged the token for a cookie."""
        cookie = request.cookies.get(_cookie_name(request))
        if cookie is None or not _are_equal(cookie, self._cookie):
            refuse(
                "AuthenticationFailed",
                "The cookie of the page is missing or not valid; open the address that the queue printed",
            )

    def cookie_for(self, request: web.BaseRequest, token: str) -> str:
        """Return the `Set-Cookie` header for a browser with the right token."""
        if not _are_equal(token, self.token):
            refuse("AuthenticationFailed", "The token is not valid; open the address that the queue printed")
        return f"{_cookie_name(request)}={self._cookie}; Path=/page/; HttpOnly; SameSite=Strict"


def _derived(secret: str, purpose: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _are_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _cookie_name(request: web.BaseRequest) -> str:
    """Return the name of the cookie. It has the port, as two queues on one machine need two cookies."""
    return f"taskqueue-page-{_split_host(request)[1] or 80}"


def _split_host(request: web.BaseRequest) -> tuple[str, int | None]:
    try:
        parts = urlsplit(f"//{request.headers.get('Host', '')}")
        name, port = parts.hostname or "", parts.port
    except ValueError:
        return ("", None)
    return (name, port)


_STATIC = files(__name__) / "static"  # which may be in a zip file
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_IDENTITY = Identity("page", ["*"], math.inf)
"""The identity of the page's requests, after the check of the cookie."""

_READ_BY_POST = {"tasks", "statuses"}

_STYLE = (_STATIC / "page.css").read_bytes()
"""Sent within the HTML: a browser paints nothing before it has the style."""

_POLICY = (
    "default-src 'none'; script-src 'self'; img-src 'self' blob:; connect-src 'self';"
    f" style-src 'sha256-{b64encode(hashlib.sha256(_STYLE).digest()).decode()}';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ARTIFACT = re.compile(r"/page/artifact/([^/]+)/([0-9]{1,3})/name=(.+)", re.DOTALL)

_log = logging.getLogger(__name__)


class Page:
    """Responds to the requests of the page, and records events for it."""

    def __init__(
        self, core: Core, injector: FaultInjector, *, secret: str, host: str, root_url: Callable[[], str]
    ) -> None:
        self._core = core
        self._faults = faults = injector.faults
        self._fault_endpoints = injector.endpoints
        self._root_url = root_url
        self._views = Views(core)
        self._access = Access(secret, host)
        self._feed = Feed(core.clock, self._live_state)
        self._api = Api({"queue": core}, lambda _: _IDENTITY, faults.now, root_url)
        self._files = {path.name: _File.read(path) for path in _STATIC.iterdir() if _suffix(path) in _TYPES}
        self._struck: dict[int, str] = {}  # kinds of faults, by the `id` of requests that still exist
        injector.on_strike = self._note_strike
        injector.on_change(self._feed.wake_from_any_thread)
        if isinstance(core.clock, MovableClock):
            core.clock.after_move(self._feed.wake_from_any_thread)
        self._reads: dict[str, Callable[[], object]] = {
            "/page/state": self._state,
            "/page/overview": self._views.overview,
            "/page/history": self._feed.history,
        }
        self._acts: dict[tuple[str, str], Callable[[Any], object]] = {
            ("POST", "/page/check"): self._check,
            ("POST", "/page/clock/advance"): self._advance,
            ("POST", "/page/clock/hold"): lambda _: self._movable.hold(),
            ("POST", "/page/clock/release"): lambda _: self._movable.release(),
            ("POST", "/page/faults"): faults.add_json,
            ("POST", "/page/faults/remove"): lambda body: faults.remove(
                msgspec.convert(body, _RemovedFault).fault
            ),
        }

    @property
    def url(self) -> str:
        """The address to open, with the token that lets a browser in."""
        return f"{self._root_url()}/#token={self._access.token}"

    def owns(self, path: str) -> bool:
        """Return whether a request to this path is one of the page."""
        return path == "/" or path.startswith("/page/")

    def note_message(self, message: Message) -> None:
        """Show a message of the queue."""
        self._feed.add_message(message)
        self._views.sample()

    def note_request(self, request: web.BaseRequest, response: web.StreamResponse, ms: float) -> None:
        """Show a request that the page has not made."""
        self._feed.add_request(request, response, ms, fault=self._struck.get(id(request)))

    def _note_strike(self, request: web.BaseRequest, fault: AnyFault) -> None:
        self._struck[id(request)] = msgspec.to_builtins(fault)["kind"]
        weakref.finalize(request, self._struck.pop, id(request))

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to a request. Raises nothing, unless the browser has closed the connection."""
        try:
            self._access.check_host(request)
            return await self._respond(request, request.raw_path.partition("?")[0])
        except Refusal as refusal:
            return _json({"code": refusal.code, "message": refusal.message}, refusal.status)
        except (BrokenEscapeError, msgspec.DecodeError) as error:
            message = f"A part of the request cannot be decoded: {error}"
            return _json({"code": "InputError", "message": message}, 400)
        except Exception:  # noqa: BLE001 - details of a bug are for the log only
            _log.exception("page: %s %s failed", request.method, request.path)
            return _json({"code": "InternalServerError", "message": "See the log of the queue"}, 500)

    async def _respond(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path == "/" or path.startswith("/page/static/"):
            return self._file(request, path.removeprefix("/page/static/").removeprefix("/") or "index.html")
        self._access.check_origin(request)
        if (request.method, path) == ("POST", "/page/session"):
            token = msgspec.json.decode(await read_body(request), type=_Session).token
            return _json({}, headers={"Set-Cookie": self._access.cookie_for(request, token)})
        self._access.check_cookie(request)
        if path == "/page/stream" and request.method == "GET":
            return await self._feed.stream(request, _HEADERS)
        if path.startswith("/page/api/queue/"):
            return _private(await self._call(request, path.removeprefix("/page")))
        if (found := _ARTIFACT.fullmatch(path)) and request.method in {"GET", "HEAD"}:
            return await self._artifact(request, unquote(found[1]), int(found[2]), unquote(found[3]))
        return await self._respond_to_page(request, path)

    async def _call(self, request: web.BaseRequest, path: str) -> web.Response:
        """Call an endpoint of the Queue; calls that change something are shown among the requests."""
        started = time.perf_counter()
        match = existing(ROUTES.find(request.method, path), f"The Queue has no route {request.method} {path}")
        response = await self._api.respond(request, match)
        if request.method not in {"GET", "HEAD"} and match.endpoint.name not in _READ_BY_POST:
            taken = 1000 * (time.perf_counter() - started)
            self._feed.add_request(request, response, taken, path=path, client=_IDENTITY.client_id)
        return response

    async def _respond_to_page(self, request: web.BaseRequest, path: str) -> web.Response:
        if request.method == "GET" and path in self._reads:
            return _json(self._reads[path]())
        if request.method == "GET" and path.startswith("/page/group/"):
            return _json(self._views.group(unquote(path.removeprefix("/page/group/"))))
        route = (request.method, path)
        act = existing(self._acts.get(route), f"The page has no route {request.method} {path}")
        try:
            result = act(msgspec.json.decode(await read_body(request) or b"{}"))
            result = await result if inspect.isawaitable(result) else result
        except (ValueError, RecursionError) as error:
            refuse("InputError", str(error))
        self._feed.wake()
        return _json(result if isinstance(result, dict) else {})

    def _time(self) -> dict[str, Any]:
        clock = self._core.clock
        if not isinstance(clock, MovableClock):
            return {"now": clock.now(), "clock": "fixed"}
        return {"now": clock.now(), "clock": "held" if clock.is_held else "running"}

    def _live_state(self) -> dict[str, Any]:
        return {**self._time(), "faults": self._faults.waiting()}

    def _state(self) -> dict[str, Any]:
        return {
            **self._live_state(),
            "moments": self._views.moments(),
            "endpoints": self._fault_endpoints,
            "rootUrl": self._root_url(),
        }

    async def _check(self, definition: Any) -> dict[str, Any]:
        """Return the problems that clients find in a definition; in a thread, as jsonschema takes time."""
        try:
            await asyncio.to_thread(check_definition, definition, self._faults.now())
        except InvalidDefinition as error:
            found = [{"path": each.path, "allowed": each.allowed or each.finding} for each in error.problems]
            return {"problems": found}
        return {"problems": []}

    @property
    def _movable(self) -> MovableClock:
        if not isinstance(self._core.clock, MovableClock):
            conflict("This queue follows the machine's clock, which cannot be moved")
        return self._core.clock

    def _advance(self, body: Any) -> None:
        step = msgspec.convert(body, _ClockStep)
        seconds = step.seconds if step.to is None else max(step.to - self._movable.now() + 0.001, 0)
        if not 0 <= seconds <= LONGEST_STEP:
            raise ValueError(f"seconds: {seconds} is out of range; allowed are 0 to {LONGEST_STEP}")
        self._movable.advance(seconds)

    async def _artifact(
        self, request: web.BaseRequest, task_id: str, run_id: int, name: str
    ) -> web.StreamResponse:
        """Respond with the bytes of an artifact, with a content type that no browser runs."""
        caller = Caller(lambda: _IDENTITY, None, {})
        found = get_artifact(self._core, caller, task_id, run_id, name)
        url: str = getattr(found, "url", "")
        if not url.startswith(f"{self._root_url()}/storage/"):
            refuse("InputError", f"The content of {name} is not in this queue")
        parts = urlsplit(url)
        target = URL(f"{parts.path}?{parts.query}", encoded=True)
        stored = request.clone(method="GET", rel_url=target)  # the URL is signed for GET only
        response = _private(await self._core.storage.buckets.get(stored))
        response.headers["Content-Type"] = "application/octet-stream"
        response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
        response.headers["Content-Disposition"] = "attachment"
        return response

    def _file(self, request: web.BaseRequest, name: str) -> web.Response:
        if request.method not in {"GET", "HEAD"} or name not in self._files:
            refuse("ResourceNotFound", f"The page has no file {name}")
        return self._files[name].response(request)


def _suffix(path: Traversable) -> str:
    return PurePath(path.name).suffix


@dataclass(frozen=True, slots=True)
class _File:
    content_type: str
    body: bytes
    compressed: bytes
    etag: str

    @classmethod
    def read(cls, path: Traversable) -> _File:
        body = path.read_bytes().replace(b"/* page.css */", _STYLE)
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        return cls(f"{_TYPES[_suffix(path)]}; charset=utf-8", body, gzip.compress(body, mtime=0), etag)

    def response(self, request: web.BaseRequest) -> web.Response:
        headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": self.etag}
        if request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304, headers=headers)
        headers |= {"Content-Type": self.content_type, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=self.compressed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=self.body, headers=headers)


class _Session(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class _ClockStep(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float = 0
    to: float | None = None


class _RemovedFault(msgspec.Struct, forbid_unknown_fields=True):
    fault: dict[str, Any]


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    all_headers = {**_HEADERS, "Content-Type": "application/json", **(headers or {})}
    return web.Response(body=msgspec.json.encode(body), status=status, headers=all_headers)


def _private(response: web.StreamResponse) -> web.StreamResponse:
    """Return the response of an endpoint or of storage, without the headers that let every origin read it."""
    for name in [each for each in response.headers if each.startswith("Access-Control-")]:
        del response.headers[name]
    response.headers.update(_HEADERS)
    return response
