"""What a forked child must not use: two processes that share a connection get each other's responses.

Threads and locked locks of the parent would keep a child waiting for ever.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """An owner of connections or threads."""

    def forget(self) -> None:
        """Drop the parent's connections and threads, in a child that was forked just now."""
        ...


_owners: WeakSet[Forked] = WeakSet()


def forget_in_children(owner: Forked) -> None:
    """Call the owner's `forget` in every child that is forked while the owner lives."""
    _owners.add(owner)


def _forget() -> None:
    for owner in list(_owners):
        owner.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget)
