"""Lets the kernel send a file by itself, where it can: half the work of reading and writing it.

The kernel sends the file's own pages, as they are when they leave. So the end of the file is held back
until everything before it has arrived: only then it is known what was sent.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Iterator
from errno import ECONNRESET
from os import strerror
from struct import unpack

from .buffers import BLOCK
from .errors import SourceChanged
from .sources import Source

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

_SPAN = 8 * 1024 * 1024
"""Bytes to send between two looks at progress."""

_PAUSE = 1
"""Milliseconds between two looks at what has arrived: nothing wakes us when it has."""


def can_send(sock: socket.socket, source: Source) -> bool:
    """Whether the kernel can send the source: a file, and no TLS."""
    return sys.platform == "linux" and type(sock) is socket.socket and source.plain_file is not None


def send_all_but_last_block(sock: socket.socket, source: Source) -> Iterator[int]:
    """Send most of a file; gives how many bytes have been sent, again and again.

    Raises:
        SourceChanged: It has become shorter.
        OSError: The connection is broken, or stands still for longer than its timeout.
    """
    assert source.plain_file is not None  # noqa: S101 - see can_send
    end = max(source.size - BLOCK, 0)
    for sent in range(0, end, _SPAN):
        count = min(_SPAN, end - sent)
        if sock.sendfile(source.plain_file, source.start + sent, count) != count:
            raise SourceChanged(source.name)
        yield sent + count
    _wait_until_arrived(sock)


def _wait_until_arrived(sock: socket.socket) -> None:
    other_side = select.poll()
    other_side.register(sock, select.POLLIN)
    patience = sock.gettimeout() or 0.0
    left, since = _not_arrived(sock), time.monotonic()
    while left:
        if other_side.poll(_PAUSE):
            raise ConnectionResetError(ECONNRESET, strerror(ECONNRESET))  # or it answers already
        before, left = left, _not_arrived(sock)
        if left < before:
            since = time.monotonic()
        elif time.monotonic() - since > patience:
            raise TimeoutError


def _not_arrived(sock: socket.socket) -> int:
    """Bytes that the other side has not acknowledged."""
    count: int = unpack("i", ioctl(sock, TIOCOUTQ, b"\0" * 4))[0]
    return count
