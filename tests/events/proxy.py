"""A wire to the broker that a test can cut, silence and restore."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress


class Proxy:
    """Forwards TCP connections to a broker.

    Args:
        host: The broker's host.
        port: The broker's port.
        tls: The settings to serve TLS with; the connection to the broker has no TLS.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.accepted = 0
        self.connected = asyncio.Event()
        self.forwarded = asyncio.Event()
        self._target = (host, port)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def open(self) -> None:
        """Accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Refuse new connections, and cut the open ones."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Cut the open connections."""
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Forward nothing more; the connections stay open."""
        self._flowing.clear()

    def speak(self) -> None:
        """Forward again."""
        self._flowing.set()

    async def ended(self) -> None:
        """Wait until no connection is left."""
        await asyncio.wait_for(asyncio.gather(*self._pumps), 30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.connected.set()
        onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, onward_writer}
        for source, sink in ((reader, onward_writer), (onward_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while chunk := await source.read(65536):
                await self._flowing.wait()
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)
