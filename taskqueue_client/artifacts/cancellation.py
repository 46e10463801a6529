"""How a transfer that runs on a thread is stopped from another one."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class Cancelled(Exception):
    """Ends the work of a thread whose result nobody waits for any more."""


class Cancellation:
    """Tells work on a thread that it is not wanted any more, and wakes it if it waits for a socket."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._cancelled = False
        self._sockets: set[socket.socket] = set()

    def cancel(self) -> None:
        """Let all work that watches this end soon. May be called from any thread, and often."""
        with self._lock:
            self._cancelled = True
            for watched in self._sockets:
                with suppress(OSError):  # it was closed already
                    # not SSLSocket's own, after which its writes would go out in the clear
                    socket.socket.shutdown(watched, socket.SHUT_RDWR)

    @contextmanager
    def watching(self, watched: socket.socket) -> Generator[None, None, None]:
        """Shut `watched` down on `cancel`.

        Raises:
            Cancelled: It happened before.
        """
        with self._lock:
            self._sockets.add(watched)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._sockets.discard(watched)

    def check(self) -> None:
        """Raises `Cancelled` if the work is not wanted any more."""
        if self._cancelled:
            raise Cancelled

    def checked(self, values: Iterable[T]) -> Iterator[T]:
        """The values, for as long as they are wanted."""
        for value in values:
            self.check()
            yield value
