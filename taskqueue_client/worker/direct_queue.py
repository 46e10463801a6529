"""A client for the few small calls that each run takes, in a fraction of aiohttp's processor time."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import urlsplit

from taskqueue_client._call import Call
from taskqueue_client._http import Address, Sent, UnfitAnswer
from taskqueue_client._retry import RetryPolicy
from taskqueue_client._transport import USER_AGENT
from taskqueue_client._wire import Answer
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.steps import StorageName
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import CallTimedOut, ConnectionFailed

R = TypeVar("R")

_ANSWER = 1 << 30
"""Bytes of an answer that are read at most: what 32 tasks with the largest payloads need, and more."""

_OUR_HEADERS = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
"""Who says nothing about encodings takes any of them (RFC 9110, section 12.5.3)."""


class DirectQueue(AsyncQueue):
    """An `AsyncQueue` that goes through aiohttp only where the environment names a proxy.

    It has the arguments of `AsyncQueue`, but for `session`.
    """

    def __init__(
        self,
        root_url: str,
        credentials: Credentials | None = None,
        *,
        retry: RetryPolicy | None = None,
        check_definitions: bool = True,
        artifact_storage: StorageName = "s3",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            root_url,
            credentials,
            retry=retry,
            check_definitions=check_definitions,
            artifact_storage=artifact_storage,
            clock=clock,
        )
        self._exchanges = self.storage.exchanges()
        parts = urlsplit(self.root_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._address = Address(parts.scheme, parts.hostname or "", port)

    async def close(self) -> None:
        """See `AsyncQueue`."""
        self._exchanges.close()
        await super().close()

    async def _send_once(self, call: Call[R], timeouts: tuple[float, float]) -> R:
        if self._sessions.proxy is not None:
            return await super()._send_once(call, timeouts)
        request = self._wire.encode(call)
        target = "/" + request.url.split("/", 3)[3]
        body = b"" if request.body is None and request.method != "GET" else request.body
        sent = Sent(request.method, target, {**_OUR_HEADERS, **request.headers}, body)
        connect, read = timeouts
        try:
            received = await self._exchanges.exchange(
                self._address, sent, connect=connect, read=read, longest=_ANSWER
            )
            if received.headers.get("content-encoding", "identity").lower() != "identity":
                raise UnfitAnswer
        except (OSError, EOFError, ValueError) as error:
            failed = CallTimedOut if isinstance(error, TimeoutError) else ConnectionFailed
            raise failed(self._wire.attempted(call), f"{type(error).__name__}: {error}") from error
        return self._wire.decode(call, Answer(received.status, received.headers, received.body))
