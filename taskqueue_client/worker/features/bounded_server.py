"""An HTTP server with limited connections, so that clients cannot use up the open files of the worker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.worker.config import address_of, files_limit, files_needed
from taskqueue_client.worker.worker_log import log

MOST_CONNECTIONS = 200
"""Connections of one server, if the process may have many open files, which include connections."""

FEWEST_CONNECTIONS = 4
"""Connections of one server, however few open files the process may have."""

IDLE = 75.0
"""Seconds after which a connection without a request is closed, as by nginx: its client may be gone, such as
a laptop that was closed, or may keep it open to shut others out."""

SILENCE = 1.0
"""Seconds that a connection may take until its next request while other connections wait. Also the seconds
between attempts to accept a connection."""

WAITING = 1024
"""Connections that wait in the kernel, without a file descriptor. Beyond these, clients have to retry."""


def files_of_servers(runs: int) -> int:
    """Return how many file descriptors the servers of so many runs may take: those that runs do not need."""
    return files_limit() - files_needed(runs)


def _is_about_the_server(record: logging.LogRecord) -> bool:
    """Keep requests that are not valid HTTP out of the log: strangers could fill it, and paths are secret.

    Also a bug of aiohttp, which is harmless: the client disconnects while the server stops.
    """
    errors = (HttpProcessingError, asyncio.InvalidStateError)
    return record.exc_info is None or not isinstance(record.exc_info[1], errors)


http_log = log.getChild("http")
http_log.addFilter(_is_about_the_server)


class BoundedServer(web.Server):
    """A server with at most `most` connections, and `MOST_CONNECTIONS`: further ones wait until one ends.

    While connections wait, the server closes those that have sent no request for `SILENCE`, so that clients
    that send nothing, or keep idle connections, do not keep others out. A full server also closes each
    connection after its response.
    """

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], name: str, most: int
    ) -> None:
        super().__init__(
            self._respond,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=IDLE,
            logger=http_log,
            access_log=None,
            auto_decompress=False,  # the proxy passes on bodies with their Content-Encoding
        )
        self._handler = handler
        self._name = name
        self._share = max(most, FEWEST_CONNECTIONS)
        self._silent: dict[web.RequestHandler, tuple[float, asyncio.Transport]] = {}
        self._open = 0
        self._beginning: set[asyncio.Task[Any]] = set()
        self._resumption: asyncio.TimerHandle | None = None
        self._warned: set[str] = set()

    def start(self, listener: socket.socket, closing: float) -> None:
        """Accept connections on a socket, until `stop`, which gives open requests `closing` seconds."""
        self._listener, self._closing = listener, closing
        forget_in_children(self)
        listener.settimeout(0)
        listener.listen(WAITING)
        self._loop.add_reader(listener, self._accept)

    def forget(self) -> None:
        """See `Forked`: a child that outlives the server would keep its port."""
        self._listener.close()

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        self._resume()  # cancels the timer, which would accept again
        self._loop.remove_reader(self._listener)
        self._listener.close()
        await asyncio.gather(*self._beginning, return_exceptions=True)
        self.pre_shutdown()
        await self.shutdown(self._closing)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Note a connection."""
        super().connection_made(handler, transport)
        self._silent[handler] = (self._loop.time(), transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note the end of a connection, and accept another one."""
        self._silent.pop(handler, None)
        super().connection_lost(handler, exc)
        self._open -= 1
        self._resume()

    def _accept(self) -> None:
        """Accept a connection, if there is room. asyncio's own server would accept any number."""
        if self._is_full:
            self._make_room()
            self._pause()
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # its client is gone
            return
        except OSError as error:  # no file descriptor is free
            self._warn("%s cannot accept a connection, retrying: %s", error)
            self._pause()
            return
        self._open += 1
        connection.settimeout(0)
        beginning = self._loop.create_task(self._loop.connect_accepted_socket(self, connection))
        self._beginning.add(beginning)
        beginning.add_done_callback(partial(self._has_begun, connection))

    def _has_begun(self, connection: socket.socket, beginning: asyncio.Task[Any]) -> None:
        self._beginning.discard(beginning)
        if not beginning.cancelled() and (error := beginning.exception()) is not None:
            log.debug("an accepted connection failed: %s", error)  # on macOS, if its client is gone
            connection.close()
            self._open -= 1
            self._resume()

    @property
    def most(self) -> int:
        """How many connections the server has at most."""
        return min(self._share, MOST_CONNECTIONS)

    @property
    def _is_full(self) -> bool:
        return self._open >= self.most

    @property
    def _shown(self) -> str:
        host, port, *_ = self._listener.getsockname()
        return f"{self._name} on {address_of(host, port)}"

    def _warn(self, message: str, cause: object) -> None:
        """Log a message once, as strangers could fill the log."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, self._shown, cause)

    def _make_room(self) -> None:
        self._warn("%s has %d connections: further ones wait until one ends", self.most)
        for handler, (since, transport) in self._silent.items():
            if self._loop.time() - since >= SILENCE and not transport.get_write_buffer_size():
                handler.close()
                self._loop.call_soon(self._close, handler, since)

    def _close(self, handler: web.RequestHandler, silent_since: float) -> None:
        """Close a silent connection, unless a request has just come: it gets its response first."""
        since, transport = self._silent.get(handler, (None, None))
        if transport is not None and since == silent_since:
            transport.close()

    def _pause(self) -> None:
        """Accept nothing until a connection ends, for `SILENCE` seconds at most."""
        self._loop.remove_reader(self._listener)
        self._resumption = self._loop.call_later(SILENCE, self._resume)

    def _resume(self) -> None:
        if self._resumption is not None:
            self._resumption.cancel()
            self._resumption = None
            self._loop.add_reader(self._listener, self._accept)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._handler(request)
        finally:
            if (transport := request.transport) is not None:
                self._silent[request.protocol] = (self._loop.time(), transport)
        if self._is_full:
            response.force_close()
        return response

    def _request(self, *given: Any) -> web.BaseRequest:
        request = self._make_request(*given)
        self._silent.pop(request.protocol, None)
        return request
