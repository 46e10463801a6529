"""The memory that bodies pass through: a few blocks, used in turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

Block = bytes | memoryview
"""Bytes on their way."""

BLOCK = 512 * 1024
"""Bytes that are read, hashed and sent at a time. Of smaller blocks, handing them to the threads that
hash takes too much; larger ones fall out of the processor's cache."""

AHEAD = 4
"""Blocks that may wait for a slow hash or reader."""


def blocks_in_turn() -> Iterator[memoryview]:
    """Blocks to read into. Each comes again after all that may wait, one in work and one being read."""
    made: list[memoryview] = []
    while len(made) < AHEAD + 2:
        made.append(memoryview(bytearray(BLOCK)))
        yield made[-1]
    yield from cycle(made)
