"""What the transfers of both clients do unless asked otherwise."""

from __future__ import annotations

from taskqueue_client.errors import InvalidArgument

MOST_IN_MEMORY = 64 * 1024 * 1024
"""Bytes that a download to memory may have."""

CONCURRENCY = 16
"""Artifacts that go up at the same time."""


def silently(*_: object) -> None:
    """Report no progress."""


def check_concurrency(concurrency: int) -> None:
    """Refuse what would never begin.

    Raises:
        InvalidArgument: It is less than 1.
    """
    if concurrency < 1:
        raise InvalidArgument("concurrency", concurrency, "1 or more")
