"""An HTTP server for the logs of a worker's runs, which readers follow while they grow.

For each reader, the server only keeps a file open: a slow reader delays neither the task nor other readers,
and takes no memory. The code that writes a log never calls the server, which looks at the file instead.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aiohttp import web

from taskqueue_client.artifacts.content import LOG_NAME
from taskqueue_client.worker.commands.task_log import open_at_once
from taskqueue_client.worker.config import address_of, cannot_listen
from taskqueue_client.worker.threads import EventThread
from taskqueue_client.worker.worker_log import log

from .bounded_server import BoundedServer, files_of_servers

LOOK = 0.1
"""Seconds between checks whether a log has grown: a reader gets a line at most this much later."""

LONGEST_WAIT = 30
"""Seconds that a reader may ask to wait for new lines, in one request."""

STALLED = 30.0
"""Seconds after which a reader that takes nothing is disconnected."""

AFTER_END = 30.0
"""Seconds that readers get for the rest of a log after the end of its run."""

MOST_READERS = 100
"""Requests that are served at the same time, and half of the connections: others are refused at once. Each
takes two file descriptors, which tasks need, too."""

CLOSING = 1.0
"""Seconds that readers get for the rest of their log when the worker ends."""

TO_END = 5.0
"""Seconds to wait for the server's end: a file system that hangs must not keep the worker from ending."""

_BLOCK = 64 * 1024
_REST = re.compile(r"bytes=(\d{1,18})-")
_WAIT = re.compile(r"(?:^|[\s,;])wait=(\d{1,9})\b")

_HEADERS = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # or nginx collects lines before it passes them on
    "Access-Control-Allow-Origin": "*",  # pages of the deployment show logs, too
    "Access-Control-Expose-Headers": "X-Streaming",
    "X-Streaming": "true",
}


class _ServedLog:
    """A log that is served; `ended` is the time of the loop's clock when the log was complete, or None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended: float | None = None

    async def grown(self, file: io.FileIO, size: int, seconds: float) -> int:
        """Wait until a log is larger than `size` or has ended, at most for `seconds`; return its size."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (found := _size(file)) == size and self.ended is None and loop.time() < until:  # noqa: ASYNC110 - writers of a log set no event
            await asyncio.sleep(LOOK)
        return found

    def timeout(self) -> float:
        """Return how many seconds a reader may take for a block now."""
        if self.ended is None:
            return STALLED
        return min(STALLED, self.ended + AFTER_END - asyncio.get_running_loop().time())

    async def blocks(self, file: io.FileIO) -> AsyncIterator[bytes]:
        """Yield the log's content, and what is appended to it, until the log has ended."""
        while True:
            has_ended = self.ended is not None
            while block := file.read(_BLOCK):
                yield block
            if has_ended:
                return
            await asyncio.sleep(LOOK)


class LiveLogs:
    """Serves logs over HTTP, in a separate thread, from its creation until `close`.

    A plain GET gets the log from its first byte, and follows it until the end of the run. A GET with
    `Range: bytes=N-` gets the bytes that exist now, from byte N on. With `Prefer: wait=S` (RFC 7240), and the
    ETag of the last response in `If-None-Match`, the server responds as soon as the log has grown, or with
    304 after S seconds, at most `LONGEST_WAIT`.

    Port 0 is any free port. Readers reach the server by `public_url`; default: the URL of `host` and `port`.
    `runs` is the concurrency of the worker, whose runs need file descriptors, too.
    """

    def __init__(self, host: str, port: int, public_url: str | None = None, *, runs: int = 1) -> None:
        self._logs: dict[str, _ServedLog] = {}
        self.readers = 0
        self._most = files_of_servers(runs) // 6  # every second one reads a file; proxies get three quarters
        self._thread = EventThread("live logs")
        own_url = self._thread.begin(self._start(host, port))
        self.url: Final = (public_url or own_url).rstrip("/")

    def add(self, path: Path) -> str:
        """Serve the log in a file; return its URL, which cannot be guessed. May be called from any thread."""
        key = secrets.token_urlsafe(24)
        self._logs[key] = _ServedLog(path)
        return f"{self.url}/{key}"

    def remove(self, url: str) -> None:
        """Accept no new requests for a log; its readers get the rest. May be called from any thread."""
        served = self._logs.pop(url.rpartition("/")[2], None)
        if served is not None:
            served.ended = self._thread.loop.time()

    def close(self) -> None:
        """Stop listening, give readers `CLOSING` seconds for the rest of their log, and close connections."""
        for url in list(self._logs):
            self.remove(url)
        if not self._thread.end(self._server.stop(), TO_END):
            log.warning(
                "the server of live logs has not stopped within %.0f s, not waiting any longer: the file "
                "system of a log may not respond",
                TO_END,
            )

    async def _start(self, host: str, port: int) -> str:
        """Listen; return the URL of the server."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise cannot_listen("live_log", host, port, error) from error
        self._server = BoundedServer(self._serve, "the server of live logs", self._most)
        self._server.start(listener, CLOSING)
        return f"http://{address_of(host, listener.getsockname()[1])}"

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in {"GET", "HEAD"}:
            return _text(405, "Invalid method: expected GET or HEAD")
        served = self._logs.get(request.path.rpartition("/")[2])
        if served is None:
            return _text(404, f"Not found: the run has ended, and its log is {LOG_NAME}")
        if request.method == "HEAD":
            return web.StreamResponse(headers=_HEADERS)
        if self.readers >= (most := min(MOST_READERS, self._server.most // 2)):
            return _text(503, f"Too many readers: at most {most} at a time")
        self.readers += 1
        try:
            return await _respond(request, served)
        finally:
            self.readers -= 1


async def _respond(request: web.BaseRequest, served: _ServedLog) -> web.StreamResponse:
    """Respond to a GET of a log that is served."""
    try:
        with io.FileIO(served.path, opener=open_at_once) as file:
            if (rest := _REST.fullmatch(request.headers.get("Range", ""))) is not None:
                return await _send_rest(request, served, file, int(rest[1]))
            return await _send(request, served, web.StreamResponse(headers=_HEADERS), served.blocks(file))
    except OSError as error:
        log.debug("cannot read a log for its live stream: %s", error)
        return _text(503, "The log cannot be read")


async def _send_rest(
    request: web.BaseRequest, served: _ServedLog, file: io.FileIO, begin: int
) -> web.StreamResponse:
    headers, wait = dict(_HEADERS), _WAIT.search(request.headers.get("Prefer", ""))
    seconds = 0 if wait is None else min(int(wait[1]), LONGEST_WAIT)
    if wait is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
    size = _size(file)
    if request.headers.get("If-None-Match") == _etag(size):
        before, size = size, await served.grown(file, size, seconds)
        if size == before:
            return web.Response(status=304, headers={**headers, "ETag": _etag(size)})
    if begin >= size:
        return web.Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers |= {"ETag": _etag(size), "Content-Range": f"bytes {begin}-{size - 1}/*"}
    response = web.StreamResponse(status=206, headers=headers)
    response.content_length = size - begin
    return await _send(request, served, response, _part(file, begin, size))


async def _part(file: io.FileIO, begin: int, end: int) -> AsyncIterator[bytes]:
    file.seek(begin)
    while block := file.read(min(_BLOCK, end - begin)):
        begin += len(block)
        yield block


async def _send(
    request: web.BaseRequest, served: _ServedLog, response: web.StreamResponse, blocks: AsyncIterator[bytes]
) -> web.StreamResponse:
    """Send blocks as fast as the reader takes them; disconnect a reader that is too slow."""
    transport = request.transport  # `request` has none after a disconnect
    try:
        await response.prepare(request)
        async for block in blocks:
            async with asyncio.timeout(served.timeout()):
                await response.write(block)
        async with asyncio.timeout(served.timeout()):  # may wait, too: `write` may keep a block in memory
            await response.write_eof()
    except BaseException as error:
        if transport is not None:
            transport.abort()  # an incomplete log must not look like a whole one
        if not isinstance(error, OSError):  # else the reader has disconnected, or is too slow (TimeoutError)
            raise
    return response


def _size(file: io.FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _etag(size: int) -> str:
    """Return the ETag: a log only grows, so its size identifies its content."""
    return f'"{size}"'


def _text(status: int, text: str) -> web.Response:
    """Return a refusal. It ends the connection, which strangers could keep open."""
    response = web.Response(status=status, text=text + "\n", headers={"Access-Control-Allow-Origin": "*"})
    response.force_close()
    return response
