"""Sends a body to a signed URL, and asks for another URL when that one is too old."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .errors import StorageFailed, StorageRefused
from .hashing import UPLOADED
from .repeating import repeated
from .sources import Source
from .steps import Sending, Settings, Steps
from .storage import Progress, Put

RENEWED_BEFORE = 300.0
"""Seconds before its expiry from which on a URL is not used any more: clocks differ by as much."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send a body.

    Attributes:
        headers: What to send with it, besides its length.
        expires: When the URL does, in seconds since the epoch.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str]
    expires: float


class Putting:
    """Sends a body, in as many attempts as it takes. Each one begins at its start.

    Args:
        settings: Those of the client.
        renew: Asks for a target; called again when its URL has expired.
        body: What to send.
        needs_hashes: Whether what is sent must be hashed; it is anyhow, unless the kernel sends a file.
        progress: Told how far an attempt is.
        target: The first one, if it is known already.
    """

    def __init__(
        self,
        settings: Settings,
        renew: Callable[[], Steps[Target]],
        body: Source,
        progress: Progress,
        *,
        needs_hashes: bool = False,
        target: Target | None = None,
    ) -> None:
        self._settings = settings
        self._renew = renew
        self._body = body
        self._progress = progress
        self._needs_hashes = needs_hashes
        self._target = target

    def steps(self) -> Steps[dict[str, str]]:
        """Gives the hashes of what was sent."""
        return repeated(self._attempt, self._settings.retry, self._may_repeat)

    def _attempt(self) -> Steps[dict[str, str]]:
        if self._target is None or self._settings.server_time() >= self._target.expires - RENEWED_BEFORE:
            self._target = yield from self._renew()
        try:
            return (yield from Sending(self._put(self._target)))
        except StorageRefused as error:
            if error.is_expiry(self._target.expires, self._settings.server_time()):
                self._target = None
            raise

    def _put(self, target: Target) -> Put:
        timeouts = self._settings.timeouts
        return Put(
            target.url, target.headers, self._body, UPLOADED, self._progress, timeouts, self._needs_hashes
        )

    def _may_repeat(self, error: BaseException) -> bool:
        return isinstance(error, StorageFailed) and (error.is_temporary or self._target is None)
