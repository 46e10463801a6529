"""Hashes of what is sent and received, computed beside it: hashlib lets other threads run meanwhile."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from queue import Queue
from threading import Thread
from typing import Protocol, Self

from .buffers import AHEAD, Block

VERIFIABLE = frozenset({"sha256", "sha512"})
"""The algorithms that the object service's clients know; others are stored unchecked, and ignored."""

UPLOADED = ("sha256",)
"""The algorithms an upload is finished with. Every official client (JavaScript, Python, Go, Rust) is
content with one of `VERIFIABLE`, and sha512 takes twice as long on processors that know SHA."""


class Hashes:
    """Computes several hashes of a stream, each on a thread of its own.

    Use it as a context manager, so that the threads end.

    Args:
        algorithms: Their names, as hashlib has them; with none of them it does nothing.
    """

    def __init__(self, algorithms: Collection[str]) -> None:
        self._hashers = {algorithm: hashlib.new(algorithm) for algorithm in algorithms}
        self._queues: list[Queue[Block | None]] = []
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        for algorithm, hasher in self._hashers.items():
            blocks: Queue[Block | None] = Queue(AHEAD)
            thread = Thread(target=_hash, args=(hasher, blocks), name=f"artifact-{algorithm}", daemon=True)
            thread.start()
            self._queues.append(blocks)
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def update(self, block: Block) -> None:
        """Add a block; waits while the threads are too far behind."""
        for blocks in self._queues:
            blocks.put(block)

    def hexdigests(self) -> dict[str, str]:
        """The hashes of all blocks, in lower-case hex, by algorithm; nothing can be added any more."""
        self._finish()
        return {algorithm: hasher.hexdigest() for algorithm, hasher in self._hashers.items()}

    def _finish(self) -> None:
        for blocks in self._queues:
            blocks.put(None)
        for thread in self._threads:
            thread.join()
        self._queues.clear()
        self._threads.clear()


def hexdigests(algorithms: Collection[str], content: bytes) -> dict[str, str]:
    """The hashes of content that is in memory."""
    return {algorithm: hashlib.new(algorithm, content).hexdigest() for algorithm in algorithms}


class _Hasher(Protocol):
    def update(self, block: Block, /) -> None: ...


def _hash(hasher: _Hasher, blocks: Queue[Block | None]) -> None:
    while (block := blocks.get()) is not None:
        hasher.update(block)
