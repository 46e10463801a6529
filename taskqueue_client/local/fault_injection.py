"""How faults strike: what the server does with a request instead of responding as usual."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http.client import responses
from typing import Any, assert_never

import msgspec
from aiohttp import web

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.local.http.responses import ResentResponse, json_response
from taskqueue_client.local.storage.buckets import StoredBody, s3_error
from taskqueue_client.local.times import text as iso

from .faults import (
    AnyFault,
    CutDownload,
    CutUpload,
    Delay,
    Drop,
    ExpireUrl,
    Faults,
    Respond,
    RespondWith500,
    SlowDownload,
)
from .refusal import STATUS

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class FaultInjector:
    """Responds to the requests of a server, by their handlers or by faults.

    Attributes:
        faults: The faults, as users add them.
        on_strike: Called with each request that a fault strikes, before it does, if it is set.
    """

    def __init__(self, clock: Clock, endpoints: Collection[str]) -> None:
        self.endpoints = endpoints
        self.faults = Faults(clock, endpoints)
        self.on_strike: Callable[[web.BaseRequest, AnyFault], object] | None = None
        self._clock = clock

    def match(self, endpoint: str) -> AnyFault | None:
        """Return the fault that strikes a call of `endpoint` that has just come in, if any; counts it."""
        return self.faults._take(endpoint)  # noqa: SLF001 - hidden from users  # pyright: ignore[reportPrivateUsage]

    async def respond(self, endpoint: str, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        """Return the response of `handler`, or that of a fault. Its `Date` is the time that `faults` show."""
        call = _StruckCall(endpoint, request, handler, self._clock)
        fault = self.match(endpoint)
        if fault is None:
            response = await call.run()
        else:
            if self.on_strike is not None:
                self.on_strike(request, fault)
            response = await _strike(call, fault)
        response.headers["Date"] = _http_date(int(self.faults.now()))
        return response


@dataclass(frozen=True, slots=True)
class _StruckCall:
    """A request that a fault strikes."""

    endpoint: str
    request: web.BaseRequest
    handler: Handler
    clock: Clock

    async def run(self) -> web.StreamResponse:
        """Handle the request as usual."""
        return await self.handler(self.request)

    def error(self, status: int) -> web.Response:
        """Return an error in the form of the service."""
        service, _, method = self.endpoint.partition(".")
        if service == "storage":
            return s3_error(status, "InternalError", "A fault was injected.")
        return _service_error(status, method, iso(int(1000 * self.clock.now())))


async def _strike(call: _StruckCall, fault: AnyFault) -> web.StreamResponse:  # noqa: PLR0911 - one for each fault
    """Return the response to a call that a fault strikes."""
    match fault:
        case Respond():
            return await _respond(call, fault)
        case RespondWith500():
            return await _respond_with_500(call, fault)
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


async def _respond(call: _StruckCall, fault: Respond) -> web.Response:
    if fault.after:
        await call.run()
    response = _page(fault.status) if fault.html else call.error(fault.status)
    response.headers.update(fault.headers)
    return response


async def _respond_with_500(call: _StruckCall, fault: RespondWith500) -> web.StreamResponse:
    response = await call.run()
    body = response.body if isinstance(response, web.Response) else None
    if response.status != fault.instead_of or not isinstance(body, bytes):
        return response
    if fault.text not in msgspec.json.decode(body, type=_Message).message:
        return response
    if fault.query and fault.query not in call.request.query_string.split("&"):
        return response
    return call.error(500)


class _Message(msgspec.Struct):
    message: str = ""


async def _delay(call: _StruckCall, fault: Delay) -> web.StreamResponse:
    clock = SystemClock() if fault.real_time else call.clock
    if not fault.after:
        await clock.sleep_async(fault.seconds)
    response = await call.run()
    if fault.after:
        await clock.sleep_async(fault.seconds)
    return response


async def _cut_upload(call: _StruckCall, fault: CutUpload) -> web.Response:
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


def _service_error(status: int, method: str, time: str) -> web.Response:
    """Return an error in the form of Taskcluster's services."""
    code = next((code for code, each in STATUS.items() if each == status), "InternalServerError")
    info: dict[str, Any] = {"method": method, "params": {}, "payload": {}, "time": time}
    return json_response({"code": code, "message": "A fault was injected.", "requestInfo": info}, status)
