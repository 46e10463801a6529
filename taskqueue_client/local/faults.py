"""Fault injection: failures of a network, a load balancer or a storage service, on request.

Nothing happens unless a fault was added. A fault waits for calls of one endpoint, such as
`queue.createTask`, `object.finishUpload`, `auth.ping`, `storage.put` or `storage.get`, strikes the next
`times` calls, and is removed.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from http.client import responses
from typing import Annotated, Any, assert_never

import msgspec
from aiohttp import web

from taskqueue_client.clock import Clock, SystemClock

from . import times
from .http.responses import ResentResponse, json_response, plain_body
from .refusal import STATUS
from .storage.buckets import StoredBody, s3_error

__all__ = [
    "AnyFault", "CutDownload", "CutUpload", "Delay", "Drop", "ExpireUrl", "Fault", "Faults", "Respond",
    "RespondWith500", "SlowDownload", "overlapping_reclaims", "overlapping_reports", "service_500",
]  # fmt: skip


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", tag_field="kind"):
    """Base class of all faults.

    Args:
        endpoint: The endpoint, such as `queue.createTask`; `*` stands for anything, as in `queue.*`.
        times: The number of calls that it strikes.
    """

    endpoint: str
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


_HeaderName = Annotated[str, msgspec.Meta(pattern=r"\A[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")]
_HeaderValue = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x08\x0a-\x1f\x7f]*\Z")]


class Respond(Fault, frozen=True, kw_only=True, tag="respond"):
    """Responds with a given status.

    Args:
        status: An HTTP status.
        after: Handle the request first, and drop the real response.
        html: Send a page, as load balancers do, instead of the service's own form of an error.
        headers: Further headers, `Retry-After` for example.
    """

    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    after: bool = False
    html: bool = False
    headers: dict[_HeaderName, _HeaderValue] = {}


class Drop(Fault, frozen=True, kw_only=True, tag="drop"):
    """Closes the connection without a response.

    Args:
        after: Handle the request first.
    """

    after: bool = False


class Delay(Fault, frozen=True, kw_only=True, tag="delay"):
    """Makes the client wait.

    Args:
        seconds: The length of the delay, on the queue's clock.
        after: Handle the request first, and delay the response.
        real_time: Count the seconds on the machine's clock instead.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0)]
    after: bool = False
    real_time: bool = False


class CutUpload(Fault, frozen=True, kw_only=True, tag="cutUpload"):
    """Closes the connection while the body of the request arrives; the request is not handled.

    Args:
        at: The number of bytes that are read first.
    """

    at: Annotated[int, msgspec.Meta(ge=0)]


class CutDownload(Fault, frozen=True, kw_only=True, tag="cutDownload"):
    """Closes the connection while the body of the response is sent.

    Args:
        at: The number of bytes that are sent first.
    """

    at: Annotated[int, msgspec.Meta(ge=0)]


class SlowDownload(Fault, frozen=True, kw_only=True, tag="slowDownload"):
    """Sends the body of the response in small pieces.

    Args:
        bytes_per_second: The bytes that are sent in each second of the queue's clock.
    """

    bytes_per_second: Annotated[int, msgspec.Meta(ge=1)]


class ExpireUrl(Fault, frozen=True, tag="expireUrl"):
    """Treats a signed URL as if it had expired."""

    endpoint: str = "storage.put"


class RespondWith500(Fault, frozen=True, kw_only=True, tag="respondWith500"):
    """Responds with 500 instead of some other status, as the service does in some cases by a defect.

    Args:
        instead_of: The status of the responses that it replaces.
        text: If given, only responses with this text in their `message` are replaced.
        query: If given, only responses to requests with this query parameter, such as `limit=0`.
    """

    instead_of: Annotated[int, msgspec.Meta(ge=200, le=499)]
    text: str = ""
    query: str = ""


AnyFault = RespondWith500 | Respond | Drop | Delay | CutUpload | CutDownload | SlowDownload | ExpireUrl
"""Any of the faults."""


class Faults:
    """The faults that were added and have not struck yet. Safe to use from any thread.

    Args:
        clock: The queue's clock.
        endpoints: The names that exist; a fault that can strike none of them is refused.
    """

    clock_shift: float = 0.0
    """By how many seconds the server's time is wrong, in `Date` headers and where Hawk checks a timestamp."""

    def __init__(self, clock: Clock, endpoints: Collection[str]) -> None:
        self._clock = clock
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._waiting: list[AnyFault] = []
        self._on_change: Callable[[], object] = lambda: None

    def add(self, fault: AnyFault) -> None:
        """Let a fault strike the next calls, after all faults for the same endpoint that were added before.

        Raises:
            ValueError: A value is out of range, or no endpoint has the fault's name.
            TypeError: `fault` is not a fault.
        """
        if not isinstance(fault, Fault):  # pyright: ignore[reportUnnecessaryIsInstance] # any type
            raise TypeError(
                f"fault: {fault!r} is not valid; expected a fault such as Drop('queue.createTask')"
            )
        self.add_json(msgspec.to_builtins(fault))

    def add_json(self, data: object) -> None:
        """Add a fault given as JSON has it: `{"kind": "respond", "endpoint": "queue.task", "status": 502}`.

        Raises:
            ValueError: The data does not describe a fault; the message names the wrong part.
        """
        fault = msgspec.convert(data, AnyFault)
        if not any(fnmatchcase(endpoint, fault.endpoint) for endpoint in self._endpoints):
            example = "a name is like 'queue.createTask' or 'storage.put'"
            raise ValueError(f"no endpoint is named {fault.endpoint!r}; {example}")
        with self._lock:
            self._waiting.append(fault)
        self._on_change()

    def waiting(self) -> list[dict[str, Any]]:
        """Return the faults that will still strike, as JSON; `times` is the number of strikes left."""
        with self._lock:
            return [msgspec.to_builtins(fault) for fault in self._waiting]

    def remove(self, data: object) -> None:
        """Remove a fault, given as `waiting` returns it; do nothing if it has struck for the last time."""
        fault = msgspec.convert(data, AnyFault)
        with self._lock:
            self._waiting = [each for each in self._waiting if each != fault]
        self._on_change()

    def clear(self) -> None:
        """Remove all faults, and set `clock_shift` to 0."""
        with self._lock:
            self._waiting.clear()
        self.clock_shift = 0.0
        self._on_change()

    def _take(self, endpoint: str, applies: Callable[[AnyFault], bool]) -> AnyFault | None:
        """Return the first fault for `endpoint` that `applies`, or None, and count it as used once."""
        with self._lock:
            for position, fault in enumerate(self._waiting):
                if fnmatchcase(endpoint, fault.endpoint) and applies(fault):
                    left = fault.times - 1
                    rest = [msgspec.structs.replace(fault, times=left)] if left else []
                    self._waiting[position : position + 1] = rest
                    return fault
        return None

    def now(self) -> float:
        """Return the time that the server shows, and checks Hawk timestamps with: seconds since the epoch."""
        return self._clock.now() + self.clock_shift


_ALWAYS = 1_000_000


def _defect(endpoint: str, instead_of: int, text: str = "", query: str = "") -> RespondWith500:
    return RespondWith500(endpoint, _ALWAYS, instead_of=instead_of, text=text, query=query)


_CASES: dict[str, AnyFault] = {
    "reclaim of a pending run": _defect("queue.reclaimTask", 409, "never claimed"),
    "claimTask in quarantine": _defect("queue.claimTask", 409, "in quarantine"),
    "object artifact again": _defect("queue.createArtifact", 409, "cannot be created again"),
    "declareWorker in the past": _defect("queue.declareWorker", 400, "in the future"),
    "body of more than 10 MiB": _defect("*", 413),
    "NUL in JSON": _defect("*", 400, "character NUL"),
    "lone surrogate in JSON": _defect("*", 400, "lone surrogate"),
    "unknown coding or charset": _defect("*", 400, "is not supported; use"),
    "body not in its coding": _defect("*", 400, "The payload is not "),
    "payload hash of a wrong length": _defect("*", 401, "Invalid payload hash"),
    "client id of odd characters": _defect("*", 401, "has characters other than"),
    "getArtifact of an object without simple downloads": _defect("queue.get*Artifact", 404, "method simple"),
    "malformed contentType of an object": _defect("object.createUpload", 400, "contentType must"),
    "hash of null": _defect("object.*Upload", 400, "must not be null"),
    "finishArtifact after contentLength": Respond("queue.finishArtifact", _ALWAYS, status=500, after=True),
    "limit=0": _defect("queue.list[ACLP]*[kt]s", 200, query="limit=0"),
    "limit=0 of tasks": _defect("queue.[st]*s", 200, query="limit=0"),  # and statuses
}


def overlapping_reports(times: int = 1) -> Respond:
    """Respond to reports with 409 although they succeed, as the service may do when reports overlap."""
    return Respond("queue.report*", times, status=409, after=True)


def overlapping_reclaims(times: int = 1) -> Respond:
    """Respond to reclaims with 500 although they succeed, as the service may do when reclaims overlap."""
    return Respond("queue.reclaimTask", times, status=500, after=True)


def service_500(case: str) -> AnyFault:
    """Return a fault that responds with 500 where the service does so, every time, by a defect.

    Args:
        case: The case, such as `reclaim of a pending run`.

    Raises:
        ValueError: The case is not known; the error lists all cases.
    """
    if case not in _CASES:
        raise ValueError(f"case: {case!r} is not known; known cases: {', '.join(_CASES)}")
    return _CASES[case]


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class FaultInjector:
    """Responds to the requests of a server, by their handlers or by faults.

    Attributes:
        faults: The faults, as users add them.
        on_strike: Called with each request that a fault strikes, before it does.
    """

    def __init__(self, clock: Clock, endpoints: Collection[str]) -> None:
        self.endpoints = endpoints
        self.faults = Faults(clock, endpoints)
        self.on_strike: Callable[[web.BaseRequest, AnyFault], object] = lambda _request, _fault: None
        self._clock = clock

    def match(self, endpoint: str) -> AnyFault | None:
        """Return the fault that applies to this request to `endpoint`, or None, and count it as used once.

        A `RespondWith500` is not one of them: whether it applies depends on the response.
        """
        return self._take(endpoint, lambda fault: not isinstance(fault, RespondWith500))

    def _take(self, endpoint: str, applies: Callable[[AnyFault], bool]) -> AnyFault | None:
        return self.faults._take(endpoint, applies)  # noqa: SLF001 - hidden from users  # pyright: ignore[reportPrivateUsage]

    def on_change(self, callback: Callable[[], object]) -> None:
        """Call `callback` after faults were added or removed, in the thread that does it."""
        self.faults._on_change = callback  # noqa: SLF001 - hidden from users  # pyright: ignore[reportPrivateUsage]

    async def respond(self, endpoint: str, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        """Return the response of `handler`, or that of a fault. Its `Date` is the time that `faults` show."""
        fault = self.match(endpoint)
        call = _Call(endpoint, request, partial(self._handle, endpoint, request, handler), self._clock)
        response = await (call.run() if fault is None else self._strike(call, fault))
        response.headers["Date"] = _http_date(int(self.faults.now()))
        return response

    async def _handle(self, endpoint: str, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        """Return the response of `handler`, or the 500 of a fault that replaces this response."""
        response = await handler(request)
        fault = self._take(endpoint, lambda fault: _is_replaced(fault, request, response))
        if fault is None:
            return response
        return await self._strike(_Call(endpoint, request, partial(handler, request), self._clock), fault)

    async def _strike(self, call: _Call, fault: AnyFault) -> web.StreamResponse:
        self.on_strike(call.request, fault)
        return await _strike(call, fault)


@dataclass(frozen=True, slots=True)
class _Call:
    endpoint: str
    request: web.BaseRequest
    run: Callable[[], Awaitable[web.StreamResponse]]  # handles the request as usual
    clock: Clock

    def error(self, status: int) -> web.Response:
        """Return an error in the form of the service, or of storage."""
        message = "A fault was injected."
        service, _, method = self.endpoint.partition(".")
        if service == "storage":
            return s3_error(status, "InternalError", message)
        codes = [code for code, each in STATUS.items() if each == min(status, 500)]
        time = times.text(times.milliseconds(self.clock.now()))
        info: dict[str, Any] = {"method": method, "params": {}, "payload": {}, "time": time}
        # A status for which the service has no code, such as 429, gets none: clients look at the code first.
        coded = {"code": codes[0]} if codes else {}
        return json_response({**coded, "message": message, "requestInfo": info}, status)


async def _strike(call: _Call, fault: AnyFault) -> web.StreamResponse:  # noqa: PLR0911 - one for each fault
    match fault:
        case Respond():
            return await _respond(call, fault)
        case RespondWith500():
            return call.error(500)
        case Drop():
            if fault.after:
                await call.run()
            return _close_connection(call.request)
        case Delay():
            return await _delay(call, fault)
        case CutUpload():
            return await _cut_upload(call, fault)
        case CutDownload():
            response = await call.run()
            return ResentResponse(response, _first(fault.at, response))
        case SlowDownload():
            response = await call.run()
            return ResentResponse(response, _slowly(fault.bytes_per_second, response, call.clock))
        case ExpireUrl():
            return s3_error(403, "AccessDenied", "Request has expired")
    assert_never(fault)


async def _respond(call: _Call, fault: Respond) -> web.Response:
    if fault.after:
        await call.run()
    response = _page(fault.status) if fault.html else call.error(fault.status)
    response.headers.update(fault.headers)
    return response


def _is_replaced(fault: AnyFault, request: web.BaseRequest, response: web.StreamResponse) -> bool:
    """Return whether a fault replaces this response to the request by a 500."""
    return (
        isinstance(fault, RespondWith500)
        and response.status == fault.instead_of
        and bool(body := plain_body(response))
        and fault.text in _message_in(body)
        and (not fault.query or fault.query in request.query_string.split("&"))
    )


class _Message(msgspec.Struct):
    message: str = ""


def _message_in(body: bytes) -> str:
    """Return the message of an error; the whole body if it is not JSON, as errors of storage are not."""
    try:
        return msgspec.json.decode(body, type=_Message).message
    except msgspec.DecodeError:
        return body.decode(errors="replace")


async def _delay(call: _Call, fault: Delay) -> web.StreamResponse:
    clock = SystemClock() if fault.real_time else call.clock
    if not fault.after:
        await clock.sleep_async(fault.seconds)
    response = await call.run()
    if fault.after:
        await clock.sleep_async(fault.seconds)
    return response


async def _cut_upload(call: _Call, fault: CutUpload) -> web.Response:
    left = fault.at
    while left > 0 and (chunk := await call.request.content.read(left)):
        left -= len(chunk)
    return _close_connection(call.request)


@lru_cache(maxsize=2)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _blocks(response: web.StreamResponse) -> Iterator[bytes]:
    if isinstance(response, StoredBody):
        yield from response.blocks()
    elif isinstance(response, web.Response) and isinstance(response.body, bytes):
        yield response.body


async def _first(count: int, response: web.StreamResponse) -> AsyncIterator[bytes]:
    for block in _blocks(response):
        yield block[:count]
        count -= min(count, len(block))


async def _slowly(bytes_per_second: int, response: web.StreamResponse, clock: Clock) -> AsyncIterator[bytes]:
    for block in _blocks(response):
        for start in range(0, len(block), bytes_per_second):
            yield block[start : start + bytes_per_second]
            await clock.sleep_async(1)


def _close_connection(request: web.BaseRequest) -> web.Response:
    """Close the connection at once; the returned response is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _page(status: int) -> web.Response:
    title = f"{status} {responses.get(status, '')}"
    text = f"<html><head><title>{title}</title></head><body><center><h1>{title}</h1></center></body></html>"
    return web.Response(status=status, text=text, content_type="text/html")
