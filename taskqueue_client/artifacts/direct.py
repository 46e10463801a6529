"""Sends what is small straight from an event loop: for it, a thread would cost more than the sending."""

from __future__ import annotations

from taskqueue_client._exchange import Exchanges
from taskqueue_client._http import Received, Sent

from .connections import Place, proxy_for
from .errors import StorageFailed, StorageRefused
from .hashing import hexdigests
from .storage import USER_AGENT, Put

_ANSWER = 64 * 1024
"""Bytes of an answer that are read at most."""


class DirectSender:
    """PUTs small content.

    Args:
        exchanges: What over.
    """

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges

    def takes(self, put: Put) -> bool:
        """Whether the content is small, and goes there directly."""
        return put.source.content is not None and proxy_for(Place.of("PUT", put.url).address) is None

    async def send(self, put: Put) -> dict[str, str]:
        """Make one attempt; gives the hashes of what was sent.

        Raises:
            StorageFailed: It did not arrive.
        """
        content = put.source.content or b""
        try:
            answer = await self._exchange(put, content)
        except (OSError, EOFError, ValueError) as error:
            raise StorageFailed("PUT", put.url, f"{type(error).__name__}: {error}") from error
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - success, in HTTP
            raise StorageRefused.of("PUT", put.url, answer.status, answer.body.decode(errors="replace"))
        put.progress(len(content), len(content))
        return hexdigests(put.algorithms, content)

    async def _exchange(self, put: Put, content: bytes) -> Received:
        place = Place.of("PUT", put.url)
        sent = Sent("PUT", place.target, {"User-Agent": USER_AGENT, **put.headers}, content)
        connect, read = put.timeouts
        return await self._exchanges.exchange(
            place.address, sent, connect=connect, read=read, longest=_ANSWER
        )
