"""A server in a separate process that sends the same response to everybody, as quickly as Python can.

It must not be the bottleneck: of a request, it only looks for the end.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import certifi

STATUS = b"""{
  "status": {
    "taskId": "Y9IplizWTj-eOJfHEC71Rw", "provisionerId": "prov", "workerType": "wt",
    "taskQueueId": "prov/wt", "schedulerId": "-", "projectId": "none",
    "taskGroupId": "Y9IplizWTj-eOJfHEC71Rw", "priority": "lowest",
    "deadline": "2026-11-22T08:59:12.886Z", "expires": "2027-11-22T08:59:12.886Z",
    "retriesLeft": 5, "state": "running", "runs": [
      {"runId": 0, "state": "running", "reasonCreated": "scheduled", "workerGroup": "wg",
       "workerId": "w1", "takenUntil": "2026-11-21T09:20:53.649Z",
       "scheduled": "2026-11-21T08:59:12.886Z", "started": "2026-11-21T09:00:53.649Z"}
    ]
  }
}"""

RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
    b"Date: %b\r\nCache-Control: no-store no-cache must-revalidate\r\n"
    b"X-Content-Type-Options: nosniff\r\nContent-Length: %d\r\n\r\n%b"
    % (formatdate(usegmt=True).encode(), len(STATUS), STATUS)
)


class Canned(asyncio.Protocol):
    """Responds to each request on a connection, as soon as it is whole."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _content_length(self._buffer[:end])
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(RESPONSE)


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0


async def serve(certificate: str | None) -> None:
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0, ssl=tls, backlog=500)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def canned_server(certificate: Path | None = None) -> Generator[str]:
    """Yield the root URL of a canned server; it uses TLS if a certificate is given."""
    command = [sys.executable, "-m", "benchmarks.canned", *([str(certificate)] if certificate else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield f"https://localhost:{port}" if certificate else f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def certificate_and_bundle() -> Generator[tuple[Path, Path]]:
    """Yield a key and certificate for localhost, and a bundle of it and all real authorities."""
    with tempfile.TemporaryDirectory() as folder:
        made, bundle = Path(folder, "localhost.pem"), Path(folder, "bundle.pem")
        request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        names = ["-addext", "subjectAltName=DNS:localhost"]
        key, certificate = Path(folder, "key.pem"), Path(folder, "cert.pem")
        subprocess.run(
            ["openssl", *request.split(), *names, "-keyout", str(key), "-out", str(certificate)],
            check=True,
            capture_output=True,
        )
        made.write_bytes(key.read_bytes() + certificate.read_bytes())
        bundle.write_bytes(Path(certifi.where()).read_bytes() + certificate.read_bytes())
        yield made, bundle


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1] if len(sys.argv) > 1 else None))
