"""The canned deployment of `benchmarks.sink` over TLS, with a thread for each connection.

With TLS, the kernel can neither discard nor send bodies, so the server costs more than over HTTP, for curl
and for the clients alike.
"""

from __future__ import annotations

import mmap
import ssl
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket

from benchmarks.sink import Connection, Sink, port_of

_BLOCK = 1 << 20


class TlsConnection(Connection):
    """See `Connection`; the socket blocks."""

    def _discard_body(self) -> bool:
        block = bytearray(_BLOCK)
        while self._discard:
            count = self.sock.recv_into(block, min(self._discard, _BLOCK))
            if not count:
                return False
            self._discard -= count
        return self._respond(b"")

    def _send_file(self) -> bool:
        assert self._sending is not None
        file = self._sink.file
        with mmap.mmap(file.fd, file.size, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            for at in range(0, file.size, _BLOCK):
                self.sock.sendall(view[at : at + _BLOCK])
        self._sending = None
        return True


class TlsSink(Sink):
    """See `Sink`.

    Args:
        file: The content of downloads.
        certificate: A file with the key and certificate of `localhost`.
    """

    def __init__(self, file: Path, certificate: Path) -> None:
        super().__init__(file)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)

    def serve(self) -> None:
        self._listener.settimeout(None)
        while True:
            sock, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket) -> None:
        with (
            suppress(OSError),
            self._tls.wrap_socket(sock, server_side=True) as tls,
        ):  # clients may disconnect at any time
            connection = TlsConnection(self, tls)
            while connection.ready():
                pass

    def _url(self, path: str) -> str:
        return f"https://localhost:{self.port}{path}?X-Amz-Signature=secret"


@contextmanager
def running_tls(file: Path, certificate: Path) -> Generator[str]:
    """Run a sink in a separate process; yield its root URL."""
    with port_of("benchmarks.tls_sink", file, certificate) as port:
        yield f"https://localhost:{port}"


if __name__ == "__main__":
    sink = TlsSink(Path(sys.argv[1]), Path(sys.argv[2]))
    print(sink.port, flush=True)
    sink.serve()
