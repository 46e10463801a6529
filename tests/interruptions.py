"""Ctrl-C at each point of a call at which Python looks for signals after a function in C."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Iterator
from types import FrameType


class Interruption:
    """A profiler that raises KeyboardInterrupt after the function in C with this number."""

    def __init__(self, number: int, counts: Callable[[FrameType], bool]) -> None:
        self.left = number
        self._counts = counts

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and self._counts(frame):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def interrupted(
    call: Callable[[], object],
    *also_raised: type[BaseException],
    counts: Callable[[FrameType], bool] = lambda _: True,
) -> Iterator[int]:
    """Interrupt a call after its first function in C, the next call after its second one, and so on.

    Yield the number after each call; stop when a call has ended before its interruption. If all takes longer
    than 100 s, print tracebacks and end the process. `counts` selects the frames whose functions are counted.
    """
    faulthandler.dump_traceback_later(100, exit=True)
    expected: tuple[type[BaseException], ...] = (KeyboardInterrupt, *also_raised)
    number, interruption = 0, Interruption(0, counts)
    while interruption.left <= 0:
        number += 1
        interruption = Interruption(number, counts)
        sys.setprofile(interruption)
        try:
            call()
        except expected:
            pass
        finally:
            sys.setprofile(None)
        yield number
