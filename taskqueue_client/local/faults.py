"""Faults on request: what a network, a load balancer or a storage service does wrong, done on purpose.

Nothing happens unless a fault was added. A fault waits for calls of one endpoint, named as
`queue.createTask`, `object.finishUpload`, `auth.ping`, `storage.put` or `storage.get`, strikes as often
as it says, and is used up.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from fnmatch import fnmatchcase
from functools import lru_cache
from http.client import responses
from typing import Annotated, Any

import msgspec
from aiohttp import web

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.local.http.responses import ResentResponse, json_response
from taskqueue_client.local.storage.buckets import StoredBody, s3_error
from taskqueue_client.local.times import text as iso

from .refusal import STATUS

__all__ = [
    "Accident", "AnyFault", "CutDownload", "CutUpload", "Delay", "Drop", "ExpireUrl", "Fault", "Faults",
    "Respond", "SlowDownload", "overlapping_reclaims", "overlapping_reports", "service_500",
]  # fmt: skip

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class StruckCall:
    """A request that a fault strikes.

    Args:
        endpoint: The endpoint's name.
        request: The request itself.
        handler: Handles the request without a fault.
        clock: The queue's clock.
    """

    endpoint: str
    request: web.BaseRequest
    handler: Handler
    clock: Clock

    async def run(self) -> web.StreamResponse:
        """Handle the request as usual."""
        return await self.handler(self.request)


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", tag_field="kind"):
    """Base class of all faults.

    Args:
        endpoint: The calls that it strikes: `queue.createTask`; `*` stands for anything, as in `queue.*`.
        times: How many calls it strikes.
    """

    endpoint: str
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class Respond(Fault, frozen=True, kw_only=True, tag="respond"):
    """Responds with a given status.

    Args:
        status: An HTTP status.
        after: Do what was asked first, and drop the real response.
        html: Send a page, as load balancers do, instead of the service's own form of an error.
        headers: Further headers, `Retry-After` for example.
    """

    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    after: bool = False
    html: bool = False
    headers: dict[str, str] = {}

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        if self.after:
            await call.run()
        response = self._error(call)
        response.headers.update(self.headers)
        return response

    def _error(self, call: StruckCall) -> web.Response:
        (service, _, method) = call.endpoint.partition(".")
        if self.html:
            return _page(self.status)
        if service == "storage":
            return s3_error(self.status, "InternalError", "A fault was asked for.")
        return _service_error(self.status, method, iso(int(1000 * call.clock.now())))


class Drop(Fault, frozen=True, kw_only=True, tag="drop"):
    """Closes the connection without a response.

    Args:
        after: Do what was asked first.
    """

    after: bool = False

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        if self.after:
            await call.run()
        return _close_connection(call.request)


class Delay(Fault, frozen=True, kw_only=True, tag="delay"):
    """Lets the client wait.

    Args:
        seconds: How long, on the queue's clock.
        after: Do what was asked first, and delay the response.
        real_time: Count the seconds on the machine's clock instead.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0)]
    after: bool = False
    real_time: bool = False

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        waiting_on = SystemClock() if self.real_time else call.clock
        if self.after:
            response = await call.run()
            await waiting_on.sleep_async(self.seconds)
            return response
        await waiting_on.sleep_async(self.seconds)
        return await call.run()


class CutUpload(Fault, frozen=True, kw_only=True, tag="cutUpload"):
    """Closes the connection while the body of the request comes in; nothing is done.

    Args:
        at: How many bytes are read before.
    """

    at: Annotated[int, msgspec.Meta(ge=0)]

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        left = self.at
        while left > 0 and (chunk := await call.request.content.read(left)):
            left -= len(chunk)
        return _close_connection(call.request)


class CutDownload(Fault, frozen=True, kw_only=True, tag="cutDownload"):
    """Closes the connection while the body of the response is sent.

    Args:
        at: How many bytes are sent before.
    """

    at: Annotated[int, msgspec.Meta(ge=0)]

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        response = await call.run()
        return ResentResponse(response, _first(self.at, response))


class SlowDownload(Fault, frozen=True, kw_only=True, tag="slowDownload"):
    """Sends the body of the response in small pieces.

    Args:
        bytes_per_second: How much is sent in each second of the queue's clock.
    """

    bytes_per_second: Annotated[int, msgspec.Meta(ge=1)]

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        response = await call.run()
        return ResentResponse(response, _slowly(self.bytes_per_second, response, call.clock))


class ExpireUrl(Fault, frozen=True, kw_only=True, tag="expireUrl"):
    """Treats a signed URL as if its time were over."""

    endpoint: str = "storage.put"

    async def strike(self, call: StruckCall) -> web.StreamResponse:  # noqa: ARG002  faults are called alike
        """Respond to a call."""
        return s3_error(403, "AccessDenied", "Request has expired")


class Accident(Fault, frozen=True, kw_only=True, tag="accident"):
    """Turns a response into the 500 that the service sends there by a defect; other responses stay.

    Args:
        instead_of: The status of the responses that it strikes.
        text: What their `message` contains; all of that status by default.
        query: A query parameter that the request has, such as `limit=0`; any request by default.
    """

    instead_of: Annotated[int, msgspec.Meta(ge=200, le=499)]
    text: str = ""
    query: str = ""

    async def strike(self, call: StruckCall) -> web.StreamResponse:
        """Respond to a call."""
        response = await call.run()
        body = response.body if isinstance(response, web.Response) else None
        if response.status != self.instead_of or not isinstance(body, bytes):
            return response
        if self.text not in msgspec.json.decode(body, type=_Message).message:
            return response
        if self.query and self.query not in call.request.query_string.split("&"):
            return response
        method = call.endpoint.partition(".")[2]
        return _service_error(500, method, iso(int(1000 * call.clock.now())))


class _Message(msgspec.Struct):
    message: str = ""


AnyFault = Accident | Respond | Drop | Delay | CutUpload | CutDownload | SlowDownload | ExpireUrl
"""Any of the faults."""


class Faults:
    """The faults that were asked for and have not struck yet. Safe to use from any thread.

    Args:
        clock: The queue's clock.
        endpoints: The names that exist; a fault that can strike none of them is refused.
    """

    clock_shift: float = 0.0
    """By how many seconds the server's time is wrong, in `Date` headers and where Hawk checks a timestamp."""

    on_strike: Callable[[web.BaseRequest, AnyFault], object] = staticmethod(lambda *_: None)
    """Called with each request that a fault strikes, before it does."""

    def __init__(self, clock: Clock, endpoints: Collection[str]) -> None:
        self._clock = clock
        self.endpoints = endpoints
        self._lock = threading.Lock()
        self._waiting: list[tuple[AnyFault, int]] = []

    def add(self, fault: AnyFault) -> None:
        """Let a fault strike the next calls; faults for one endpoint take turns in the order they came.

        Raises:
            ValueError: A value is out of range, or no endpoint has the fault's name.
        """
        self.add_json(msgspec.to_builtins(fault))

    def add_json(self, data: object) -> None:
        """Add a fault given as JSON has it: `{"kind": "respond", "endpoint": "queue.task", "status": 502}`.

        Raises:
            ValueError: The data does not describe a fault; the message names the wrong part.
        """
        fault = msgspec.convert(data, AnyFault)
        if not any(fnmatchcase(endpoint, fault.endpoint) for endpoint in self.endpoints):
            message = (
                f"no endpoint is named {fault.endpoint!r}; a name is like 'queue.createTask' or 'storage.put'"
            )
            raise ValueError(message)
        with self._lock:
            self._waiting.append((fault, fault.times))

    def waiting(self) -> list[dict[str, Any]]:
        """Return the faults that have not struck as often as they will, as JSON; `times` is what is left."""
        with self._lock:
            return [msgspec.to_builtins(fault) | {"times": left} for fault, left in self._waiting]

    def remove(self, data: object) -> None:
        """Forget a fault, given as `waiting` shows it; one that has struck for the last time is not there."""
        fault = msgspec.convert(data, AnyFault)
        with self._lock:
            self._waiting = [each for each in self._waiting if not _is(fault, *each)]

    def clear(self) -> None:
        """Forget all faults, and set the clock right."""
        with self._lock:
            self._waiting.clear()
        self.clock_shift = 0.0

    def match(self, endpoint: str) -> AnyFault | None:
        """Return the fault that strikes a call of `endpoint` that has just come in, if any; counts it."""
        with self._lock:
            for position, (fault, left) in enumerate(self._waiting):
                if fnmatchcase(endpoint, fault.endpoint):
                    self._waiting[position : position + 1] = [(fault, left - 1)] if left > 1 else []
                    return fault
        return None

    def now(self) -> float:
        """Return the time the server shows, and holds Hawk timestamps against: seconds since the epoch."""
        return self._clock.now() + self.clock_shift

    async def answer(self, endpoint: str, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        """Respond to a request by its `handler`, or by a fault. The response's `Date` is `now()`."""
        call = StruckCall(endpoint, request, handler, self._clock)
        fault = self.match(endpoint)
        if fault is not None:
            self.on_strike(request, fault)
        response = await (call.run() if fault is None else fault.strike(call))
        response.headers["Date"] = _http_date(int(self.now()))
        return response


def _is(shown: AnyFault, fault: AnyFault, left: int) -> bool:
    return shown.times == left and shown == msgspec.structs.replace(fault, times=left)


_ALWAYS = 1_000_000

_ACCIDENTS: dict[str, AnyFault] = {
    "reclaim of a pending run": Accident("queue.reclaimTask", _ALWAYS, instead_of=409, text="never claimed"),
    "claimTask in quarantine": Accident("queue.claimTask", _ALWAYS, instead_of=409, text="in quarantine"),
    "object artifact again": Accident(
        "queue.createArtifact", _ALWAYS, instead_of=409, text="cannot be created again"
    ),
    "declareWorker in the past": Accident(
        "queue.declareWorker", _ALWAYS, instead_of=400, text="in the future"
    ),
    "body of more than 10 MiB": Accident("*", _ALWAYS, instead_of=413),
    "NUL in JSON": Accident("*", _ALWAYS, instead_of=400, text="character NUL"),
    "lone surrogate in JSON": Accident("*", _ALWAYS, instead_of=400, text="lone surrogate"),
    "unknown coding or charset": Accident("*", _ALWAYS, instead_of=400, text="is not supported; use"),
    "payload hash of a wrong length": Accident("*", _ALWAYS, instead_of=401, text="Invalid payload hash"),
    "client id of odd characters": Accident("*", _ALWAYS, instead_of=401, text="has characters other than"),
    "finishArtifact of another storage type": Accident(
        "queue.finishArtifact", _ALWAYS, instead_of=400, text="of storage type `object`"
    ),
    "getArtifact of an object without simple downloads": Accident(
        "queue.get*Artifact", _ALWAYS, instead_of=404, text="the method simple"
    ),
    "malformed contentType of an object": Accident(
        "object.createUpload", _ALWAYS, instead_of=400, text="contentType must"
    ),
    "finishArtifact after contentLength": Respond("queue.finishArtifact", _ALWAYS, status=500, after=True),
    "limit=0": Accident("queue.list[ACLP]*[kt]s", _ALWAYS, instead_of=200, query="limit=0"),
    "limit=0 of tasks": Accident("queue.[st]*s", _ALWAYS, instead_of=200, query="limit=0"),  # and statuses
}


def overlapping_reports(times: int = 1) -> Respond:
    """Respond to reports with 409 although they are done: what overlapping ones may get from the service."""
    return Respond("queue.report*", times, status=409, after=True)


def overlapping_reclaims(times: int = 1) -> Respond:
    """Respond to reclaims with 500 although they are done: what overlapping ones may get from the service."""
    return Respond("queue.reclaimTask", times, status=500, after=True)


def service_500(case: str) -> AnyFault:
    """Return a fault that responds with 500 where the service does so, every time, by a defect.

    Args:
        case: The case, such as `reclaim of a pending run`.

    Raises:
        ValueError: The case is not known; the error lists all cases.
    """
    if case not in _ACCIDENTS:
        message = f"case: {case!r} is not known; known cases: {', '.join(_ACCIDENTS)}"
        raise ValueError(message)
    return _ACCIDENTS[case]


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


def _service_error(status: int, method: str, time: str) -> web.Response:
    """Return an error in the form of Taskcluster's services."""
    code = next((code for code, each in STATUS.items() if each == status), "InternalServerError")
    info: dict[str, Any] = {"method": method, "params": {}, "payload": {}, "time": time}
    return json_response({"code": code, "message": "A fault was asked for.", "requestInfo": info}, status)
