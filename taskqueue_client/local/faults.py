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
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.local.answers import iso, json_answer
from taskqueue_client.local.buckets import StoredBody, s3_error
from taskqueue_client.local.refusal import STATUS

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that a fault strikes.

    Args:
        endpoint: Whom it is for.
        request: The request itself.
        handler: Who would answer it.
        clock: The queue's clock.
    """

    endpoint: str
    request: web.BaseRequest
    handler: Handler
    clock: Clock

    async def run(self) -> web.StreamResponse:
        """Do what was asked."""
        return await self.handler(self.request)


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", tag_field="kind"):
    """What all faults have.

    Args:
        endpoint: Whom it strikes: `queue.createTask`; `*` stands for anything, as in `queue.*`.
        times: How many calls it strikes.
    """

    endpoint: str
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class Answer(Fault, frozen=True, kw_only=True, tag="answer"):
    """Answers with a status of its own.

    Args:
        status: An HTTP status.
        after: Do what was asked first, and lose the real answer.
        html: Send a page, as load balancers do, instead of the service's own form of an error.
        headers: Further headers, `Retry-After` for example.
    """

    status: Annotated[int, msgspec.Meta(ge=200, le=599)]
    after: bool = False
    html: bool = False
    headers: dict[str, str] = {}

    async def strike(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        if self.after:
            await call.run()
        answer = self._error(call)
        answer.headers.update(self.headers)
        return answer

    def _error(self, call: Call) -> web.Response:
        (service, _, method) = call.endpoint.partition(".")
        if self.html:
            return _page(self.status)
        if service == "storage":
            return s3_error(self.status, "InternalError", "A fault was asked for.")
        return _service_error(self.status, method, iso(int(1000 * call.clock.now())))


class Drop(Fault, frozen=True, kw_only=True, tag="drop"):
    """Closes the connection without an answer.

    Args:
        after: Do what was asked first.
    """

    after: bool = False

    async def strike(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        if self.after:
            await call.run()
        return _hang_up(call.request)


class Delay(Fault, frozen=True, kw_only=True, tag="delay"):
    """Lets the client wait.

    Args:
        seconds: How long, on the queue's clock.
        after: Do what was asked first, and hold the answer back.
        real_time: Count the seconds on the machine's clock instead.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0)]
    after: bool = False
    real_time: bool = False

    async def strike(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        waiting_on = SystemClock() if self.real_time else call.clock
        if self.after:
            answer = await call.run()
            await waiting_on.sleep_async(self.seconds)
            return answer
        await waiting_on.sleep_async(self.seconds)
        return await call.run()


class CutUpload(Fault, frozen=True, kw_only=True, tag="cutUpload"):
    """Closes the connection while the body of the request comes in; nothing is done.

    Args:
        at: How many bytes are read before.
    """

    at: Annotated[int, msgspec.Meta(ge=0)]

    async def strike(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        left = self.at
        while left > 0 and (chunk := await call.request.content.read(left)):
            left -= len(chunk)
        return _hang_up(call.request)


class CutDownload(Fault, frozen=True, kw_only=True, tag="cutDownload"):
    """Closes the connection while the body of the answer goes out.

    Args:
        at: How many bytes are sent before.
    """

    at: Annotated[int, msgspec.Meta(ge=0)]

    async def strike(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        answer = await call.run()
        return _ResentAnswer(answer, _first(self.at, answer))


class SlowDownload(Fault, frozen=True, kw_only=True, tag="slowDownload"):
    """Sends the body of the answer in small pieces.

    Args:
        bytes_per_second: How much is sent in each second of the queue's clock.
    """

    bytes_per_second: Annotated[int, msgspec.Meta(ge=1)]

    async def strike(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        answer = await call.run()
        return _ResentAnswer(answer, _slowly(self.bytes_per_second, answer, call.clock))


class ExpireUrl(Fault, frozen=True, kw_only=True, tag="expireUrl"):
    """Treats a signed URL as if its time were over."""

    endpoint: str = "storage.put"

    async def strike(self, call: Call) -> web.StreamResponse:  # noqa: ARG002  faults are called alike
        """Answer a call."""
        return s3_error(403, "AccessDenied", "Request has expired")


AnyFault = Answer | Drop | Delay | CutUpload | CutDownload | SlowDownload | ExpireUrl


class Faults:
    """The faults that were asked for and have not struck yet. Safe to use from any thread.

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
        self._waiting: list[tuple[AnyFault, int]] = []

    def add(self, fault: AnyFault) -> None:
        """Let a fault strike the next calls; faults for one endpoint take turns in the order they came.

        Raises:
            ValueError: A value is out of range, or no endpoint has the fault's name.
        """
        self.add_json(msgspec.to_builtins(fault))

    def add_json(self, data: object) -> None:
        """Add a fault given as JSON has it: `{"kind": "answer", "endpoint": "queue.task", "status": 502}`.

        Raises:
            ValueError: It is no fault; the message says where.
        """
        fault = msgspec.convert(data, AnyFault)
        if not any(fnmatchcase(endpoint, fault.endpoint) for endpoint in self._endpoints):
            message = (
                f"no endpoint is named {fault.endpoint!r}; a name is like 'queue.createTask' or 'storage.put'"
            )
            raise ValueError(message)
        with self._lock:
            self._waiting.append((fault, fault.times))

    def waiting(self) -> list[dict[str, Any]]:
        """The faults that have not struck as often as they will, as JSON; `times` is what is left."""
        with self._lock:
            return [msgspec.to_builtins(fault) | {"times": left} for fault, left in self._waiting]

    def clear(self) -> None:
        """Forget all faults, and set the clock right."""
        with self._lock:
            self._waiting.clear()
        self.clock_shift = 0.0

    def match(self, endpoint: str) -> AnyFault | None:
        """The fault that strikes a call of `endpoint` that has just come in, if any; counts it."""
        with self._lock:
            for position, (fault, left) in enumerate(self._waiting):
                if fnmatchcase(endpoint, fault.endpoint):
                    self._waiting[position : position + 1] = [(fault, left - 1)] if left > 1 else []
                    return fault
        return None

    def now(self) -> float:
        """The time the server shows, and holds Hawk timestamps against: seconds since the epoch."""
        return self._clock.now() + self.clock_shift

    async def answer(self, endpoint: str, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        """Answer a request by its `handler`, or let a fault do it. The answer's `Date` is `now()`."""
        call = Call(endpoint, request, handler, self._clock)
        fault = self.match(endpoint)
        answer = await (call.run() if fault is None else fault.strike(call))
        answer.headers["Date"] = _http_date(int(self.now()))
        return answer


@lru_cache(maxsize=2)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


class _ResentAnswer(web.StreamResponse):
    """Another answer with its body sent piece by piece; the connection ends if the pieces end early."""

    def __init__(self, answer: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(status=answer.status, reason=answer.reason, headers=answer.headers)
        self.content_length = answer.content_length
        self._pieces = pieces

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        writer = await super().prepare(request)
        if request.method == "HEAD":
            return writer
        left = self.content_length or 0
        async for piece in self._pieces:
            await self.write(piece)
            left -= len(piece)
        if left and request.transport is not None:
            request.transport.close()  # what was written still goes out, unlike with abort()
        return writer


def _blocks(answer: web.StreamResponse) -> Iterator[bytes]:
    if isinstance(answer, StoredBody):
        yield from answer.blocks()
    elif isinstance(answer, web.Response) and isinstance(answer.body, bytes):
        yield answer.body


async def _first(count: int, answer: web.StreamResponse) -> AsyncIterator[bytes]:
    for block in _blocks(answer):
        yield block[:count]
        count -= min(count, len(block))


async def _slowly(bytes_per_second: int, answer: web.StreamResponse, clock: Clock) -> AsyncIterator[bytes]:
    for block in _blocks(answer):
        for start in range(0, len(block), bytes_per_second):
            yield block[start : start + bytes_per_second]
            await clock.sleep_async(1)


def _hang_up(request: web.BaseRequest) -> web.Response:
    """Close the connection at once; the answer that is returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _page(status: int) -> web.Response:
    title = f"{status} {responses.get(status, '')}"
    text = f"<html><head><title>{title}</title></head><body><center><h1>{title}</h1></center></body></html>"
    return web.Response(status=status, text=text, content_type="text/html")


def _service_error(status: int, method: str, time: str) -> web.Response:
    """An error in the form of Taskcluster's services."""
    code = next((code for code, each in STATUS.items() if each == status), "InternalServerError")
    info: dict[str, Any] = {"method": method, "params": {}, "payload": {}, "time": time}
    return json_answer({"code": code, "message": "A fault was asked for.", "requestInfo": info}, status)
