"""Fixtures of the tests of all transports."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskqueue_client import AsyncQueue, Queue, RetryPolicy
from tests.certificates import Authority
from tests.servers import listening

from .every_transport import CALL, put_to_storage, put_to_storage_async, respond


@pytest.fixture(scope="module")
def api(authority: Authority) -> Iterator[str]:
    """The root URL of an API over TLS, whose certificate is signed by the private authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    with listening(respond, context) as port:
        yield f"https://localhost:{port}"


@pytest.fixture(params=["sync", "async", "async over ClientSession", "storage", "async storage"])
def put(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that makes one call, or one upload to storage, with a new client of a root URL."""
    if request.param == "async over ClientSession":
        monkeypatch.setattr("taskqueue_client._transport.asynchronous.is_supported", lambda: False)

    def sync(root_url: str, attempts: int = 1) -> Any:
        with Queue(root_url, retry=RetryPolicy(attempts=attempts)) as queue:
            return queue.send(CALL)

    async def asynchronous(root_url: str, attempts: int = 1) -> Any:
        async with AsyncQueue(root_url, retry=RetryPolicy(attempts=attempts)) as queue:
            return await queue.send(CALL)

    def storage(root_url: str, _: int = 1) -> Any:
        return put_to_storage(root_url)

    def async_storage(root_url: str, _: int = 1) -> Any:
        return asyncio.run(put_to_storage_async(root_url))

    functions = {"sync": sync, "storage": storage, "async storage": async_storage}
    return functions.get(request.param, lambda *given: asyncio.run(asynchronous(*given)))
