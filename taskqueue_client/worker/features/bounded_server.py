"""An HTTP server with limited connections, so that clients cannot use up the open files of the worker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.worker.worker_log import log

MOST_CONNECTIONS = 200
"""Connections of one server. A process may often have 1024 files open, all connections included."""

IDLE = 75.0
"""Seconds after which a connection without a request is closed, as by nginx: its client may be gone, such as
a laptop that was closed, or may keep it open to shut others out."""


def _is_about_the_server(record: logging.LogRecord) -> bool:
    """Keep requests that are no HTTP out of the log: a stranger could fill it, and their paths are secret."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


http_log = log.getChild("http")
http_log.addFilter(_is_about_the_server)


class BoundedServer(web.Server):
    """A server that closes a connection for each one beyond `MOST_CONNECTIONS`.

    The oldest one that has sent no request is closed, or else the new one. So clients that connect and send
    nothing do not keep others out.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(
            handler,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=IDLE,
            logger=http_log,
            access_log=None,
            auto_decompress=False,  # the proxy passes on bodies with their Content-Encoding
        )
        self._silent: dict[web.RequestHandler, asyncio.Transport] = {}
        self._was_full = False

    async def start(self, listener: socket.socket, closing: float) -> None:
        """Accept connections on a socket, until `stop`, which gives open requests `closing` seconds."""
        self._listener = listener
        forget_in_children(self)
        self._runner = web.ServerRunner(self, shutdown_timeout=closing)
        await self._runner.setup()
        # asyncio would accept as many connections at a time, and log each failure when no file can be opened
        await web.SockSite(self._runner, listener, backlog=1).start()
        listener.listen()

    def forget(self) -> None:
        """See `Forked`: a child that outlives the server would keep its port."""
        self._listener.close()

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(3):  # asyncio forgets a connection that is accepted while its server closes
            await asyncio.sleep(0)
        await self._runner.cleanup()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Note a connection, and close one if there are too many."""
        super().connection_made(handler, transport)
        self._silent[handler] = transport
        if len(self.connections) > MOST_CONNECTIONS:
            if not self._was_full:  # once, as strangers could fill the log
                self._was_full = True
                host, port, *_ = self._listener.getsockname()
                log.warning(
                    "the server on %s:%d has more than %d connections: closing one for each further one",
                    *(host, port, MOST_CONNECTIONS),
                )
            self._silent.pop(next(iter(self._silent))).abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note the end of a connection."""
        self._silent.pop(handler, None)
        super().connection_lost(handler, exc)

    def _request(self, *given: Any) -> web.BaseRequest:
        request = self._make_request(*given)
        self._silent.pop(request.protocol, None)
        return request
