"""A canned deployment: responds to the calls of uploads and downloads at once, and throws bodies away.

It runs in a separate process, on one thread, and costs next to nothing, so that what a benchmark
measures is its client. Bodies are discarded inside the kernel (`MSG_TRUNC`); downloads are sent by
`sendfile`. Linux only.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import md5, sha256
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.request import urlopen

FAR_FUTURE = "2099-01-01T00:00:00.000Z"
SLUGID = "JWsT9HNNSmm184fuRaxY5Q"
CREDENTIALS = {"clientId": "benchmark", "accessToken": "none", "certificate": "{}"}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)
_DISCARD = bytearray(4 << 20)
_SMALL = 64 << 10
"""The largest body, in bytes, whose ETag is its MD5 sum, as on S3; larger ones are discarded unread."""


class Request(NamedTuple):
    method: str
    path: str
    body: bytes


class Connection:
    """The state of one connection: reading a head, discarding a body, or sending a file."""

    def __init__(self, sink: Sink, sock: socket.socket) -> None:
        self._sink = sink
        self.sock = sock
        self._head: bytes = b""
        self._discard: int = 0
        self._chunked = False
        self._sending: tuple[int, int] | None = None

    def ready(self) -> bool:
        """Do what can be done without waiting; return False if the client has disconnected."""
        try:
            return self._send_file() if self._sending else self._receive()
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def wants(self) -> int:
        return selectors.EVENT_WRITE if self._sending else selectors.EVENT_READ

    def _receive(self) -> bool:
        if self._discard:
            return self._discard_body()
        data = self.sock.recv(65536)
        self._head += data
        if self._chunked:
            return self._end_of_chunks() and bool(data)
        end = self._head.find(b"\r\n\r\n")
        return bool(data) and (end < 0 or self._request(end + 4))

    def _request(self, end: int) -> bool:
        head, rest = self._head[:end], self._head[end:]
        method, path, _ = head.split(b" ", 2)
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        self._head = b""
        if _CHUNKED.search(head):
            self._chunked, self._head = True, rest
            return self._end_of_chunks()
        if _EXPECTS.search(head):
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if path.startswith(b"/put/") and size > _SMALL:
            self._sink.received += size
            self._discard = size - len(rest)
            return bool(self._discard) or self._respond(b"")
        if len(rest) < size:  # a small body that is worth reading: take the rest with the next block
            self._head = head + rest
            return True
        if path.startswith(b"/put/"):
            self._sink.received += size
            return self._respond(b"", etag=md5(rest, usedforsecurity=False).hexdigest())
        return self._route(Request(method.decode(), path.decode(), rest))

    def _end_of_chunks(self) -> bool:
        """Look for the last chunk, which is empty; the others are not parsed."""
        if not self._head.endswith(b"\r\n0\r\n\r\n"):
            self._head = self._head[-16:]
            return True
        self._head, self._chunked = b"", False
        return self._respond(b"")

    def _discard_body(self) -> bool:
        while self._discard:
            most = min(self._discard, len(_DISCARD))
            count = self.sock.recv_into(_DISCARD, most, socket.MSG_TRUNC)
            if not count:
                return False
            self._discard -= count
        return self._respond(b"")

    def _route(self, request: Request) -> bool:
        if request.path.startswith("/file"):
            file = self._sink.file
            self._respond(b"", length=file.size)
            self._sending = (0, file.size)
            return True
        response = self._sink.response(request)
        return self._respond(json.dumps(response).encode())

    def _respond(self, body: bytes, length: int | None = None, etag: str = "discarded-1") -> bool:
        head = (
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nETag: "%s"\r\nContent-Length: %d\r\n\r\n'
        )
        self.sock.sendall(head % (etag.encode(), len(body) if length is None else length) + body)
        return True

    def _send_file(self) -> bool:
        assert self._sending is not None
        offset, size = self._sending
        while offset < size:
            try:
                offset += os.sendfile(self.sock.fileno(), self._sink.file.fd, offset, size - offset)
            except BlockingIOError:
                self._sending = (offset, size)
                return True
        self._sending = None
        return True


class ServedFile:
    def __init__(self, path: Path | None) -> None:
        self.fd = os.open(path, os.O_RDONLY) if path else -1
        self.size = path.stat().st_size if path else 0
        self.sha256 = ""
        if path:
            hasher = sha256()
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    hasher.update(block)
            self.sha256 = hasher.hexdigest()


def _nothing(_: Request) -> object:
    return {}


class Sink:
    """Listens on a free port of the loopback interface.

    Args:
        file: The content of downloads.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = ServedFile(file)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self.open = self.most_open = self.received = 0
        self._routes: list[tuple[re.Pattern[str], Callable[[Request], object]]] = [
            (re.compile(r"POST /api/queue/v1/task/.*/artifacts/"), self._create_artifact),
            (re.compile(r"PUT /api/queue/v1/task/"), _nothing),
            (re.compile(r"PUT /api/object/v1/upload/"), self._create_upload),
            (re.compile(r"POST /api/object/v1/finish-upload/"), _nothing),
            (re.compile(r"GET /api/queue/v1/task/.*/artifact-content/"), self._artifact),
            (re.compile(r"PUT /api/object/v1/start-download/"), self._start_download),
            (re.compile(r"GET /stats"), self._stats),
        ]

    def response(self, request: Request) -> object:
        for pattern, handler in self._routes:
            if pattern.match(f"{request.method} {request.path}"):
                return handler(request)
        return {"error": "Not found"}

    def serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    self._accept(selector)
                elif not cast("Connection", key.data).ready():
                    selector.unregister(key.fileobj)
                    key.data.sock.close()
                    self.open -= 1
                elif (wanted := key.data.wants()) != key.events:
                    selector.modify(key.fileobj, wanted, key.data)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        sock, _ = self._listener.accept()
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ, Connection(self, sock))
        self.open += 1
        self.most_open = max(self.most_open, self.open)

    def _stats(self, _: Request) -> object:
        received, processor_time = self.received, time.process_time()
        return {"mostOpen": self.most_open - 1, "received": received, "processorTime": processor_time}

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}?X-Amz-Signature=secret"

    def _create_artifact(self, request: Request) -> object:
        asked = json.loads(request.body)
        if asked["storageType"] == "s3":
            return {
                "storageType": "s3",
                "contentType": asked["contentType"],
                "expires": FAR_FUTURE,
                "putUrl": self._url("/put/s3"),
            }
        return {
            "storageType": "object",
            "name": "t/x",
            "projectId": "none",
            "uploadId": SLUGID,
            "expires": asked["expires"],
            "credentials": CREDENTIALS,
        }

    def _create_upload(self, request: Request) -> object:
        asked: dict[str, Any] = json.loads(request.body)
        proposed = asked["proposedUploadMethods"]
        headers = {"Content-Type": proposed["putUrl"]["contentType"], "Content-Encoding": "identity"}
        headers["Content-Length"] = str(proposed["putUrl"]["contentLength"])
        put = {"url": self._url("/put/object"), "expires": FAR_FUTURE, "headers": headers}
        method: dict[str, Any] = {"dataInline": True} if "dataInline" in proposed else {"putUrl": put}
        return {key: asked[key] for key in ("projectId", "uploadId", "expires")} | {"uploadMethod": method}

    def _artifact(self, _: Request) -> object:
        return {"storageType": "object", "name": "t/x", "credentials": CREDENTIALS}

    def _start_download(self, _: Request) -> object:
        hashes = {"sha256": self.file.sha256}
        return {"method": "getUrl", "url": self._url("/file"), "expires": FAR_FUTURE, "hashes": hashes}


@contextmanager
def running(file: Path | None = None) -> Generator[str, None, None]:
    """Run a sink in a separate process; yield its root URL."""
    with port_of("benchmarks.sink", *([file] if file else [])) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def port_of(module: str, *arguments: Path) -> Generator[int, None, None]:
    """Run a module in a separate process until the block ends; yield the port that it prints first."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def most_connections(root_url: str) -> int:
    """How many connections were open at once at most, this one not counted."""
    return _statistic(root_url, "mostOpen")


def received_bytes(root_url: str) -> int:
    """How many bytes of bodies were uploaded; those that came in chunks are not counted."""
    return _statistic(root_url, "received")


def _statistic(root_url: str, name: str) -> int:
    with urlopen(f"{root_url}/stats") as response:
        return int(json.load(response)[name])


def main() -> None:
    sink = Sink(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(sink.port, flush=True)
    sink.serve()


if __name__ == "__main__":
    main()
