"""TCP servers on separate threads, for tests of clients that would block the event loop."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.worker.queue_world import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextmanager
def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> Generator[int]:
    """Run a server on a separate thread; yield its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    async def start() -> asyncio.Server:
        return await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)

    async def stop() -> None:
        for listener in server.sockets:
            loop.remove_reader(listener)
        for _ in range(5):  # else asyncio leaves a connection open that is being accepted
            await asyncio.sleep(0)
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        for _ in range(5):
            await asyncio.sleep(0)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def reserved_port(host: str = "127.0.0.1") -> Generator[int]:
    """Yield a port that no other process gets until the end; a server that reuses addresses may take it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, 0))
        yield reserved.getsockname()[1]


async def want_a_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond as an HTTP proxy that refuses the user and the password."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    writer.close()


@contextmanager
def file_limit(limit: int) -> Generator[None]:
    """Let this process have at most `limit` open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def get_when_descriptors_are_free_again(url: str, path: str, refused: Callable[[], object]) -> bytes:
    """Connect to a server of this process while no file can be opened, and send a GET request after that.

    Returns:
        The beginning of the response.
    """
    server, limits = urlsplit(url), resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            client.connect((server.hostname, server.port))
            until(refused)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.settimeout(60)
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return client.recv(100)
