"""A real HTTP server that sends the responses of a test, and records the requests."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from aiohttp import web


@dataclass(frozen=True)
class Received:
    """A request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: tuple[str, int]


@dataclass(frozen=True)
class Say:
    """A response; if `status` is None, the server cuts the connection instead."""

    status: int | None = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    wait_for: threading.Event | None = None


def say(document: Any, status: int = 200, **headers: str) -> Say:
    """A response with JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Say(status, msgspec.json.encode(document), {"Content-Type": "application/json", **named})


CUT = Say(status=None)


class ScriptedServer:
    """Sends the responses of the script in turn, and then `otherwise` to all further requests."""

    def __init__(self) -> None:
        self.script: deque[Say] = deque()
        self.otherwise: Say | Callable[[Received], Say] = Say()
        self.received: list[Received] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted server", daemon=True)
        self._runner: web.AppRunner | None = None
        self.root_url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """The number of connections over which the requests came."""
        return len({each.connection for each in self.received})

    async def _start(self) -> None:
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        self._socket = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(self._runner, self._socket).start()
        host, port = self._socket.getsockname()
        self.root_url = f"http://{host}:{port}"

    async def _stop(self) -> None:
        self._loop.remove_reader(self._socket)
        for _ in range(3):  # else asyncio leaves a connection open that is being accepted
            await asyncio.sleep(0)
        assert self._runner is not None
        await self._runner.cleanup()

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        received = Received(
            request.method, request.raw_path, dict(request.headers), await request.read(), tuple(peer[:2])
        )
        self.received.append(received)
        if self.script:
            response = self.script.popleft()
        else:
            response = self.otherwise if isinstance(self.otherwise, Say) else self.otherwise(received)
        if response.wait_for is not None:
            await asyncio.to_thread(response.wait_for.wait)
        if response.status is None:
            request.transport.abort()
            return web.Response()
        return web.Response(status=response.status, body=response.body, headers=dict(response.headers))
