"""Calls from other threads to an event loop, with one wake-up for as many as come together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVarTuple

Args = TypeVarTuple("Args")


class Inbox:
    """Where other threads leave calls for a loop.

    Waking a loop costs a system call, at which threads wait for each other, so it is done only for the
    first call that is left.

    Args:
        loop: Who makes the calls, in the order in which they came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def call(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Have a function called soon; nothing happens if the loop has ended."""
        self._calls.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._is_woken = False  # before looking: what comes later wakes again
        while self._calls:
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - the other calls are made all the same
                context = {"message": f"a call of {function} failed", "exception": error}
                self._loop.call_exception_handler(context)
