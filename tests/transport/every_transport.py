"""A call, and an upload to storage, over each of the transports."""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import aclosing, closing
from typing import Any

import pytest

from taskqueue_client import RetryPolicy
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client._transport.sync_connections import Cancellation
from taskqueue_client.artifacts.sources import open_source
from taskqueue_client.artifacts.storage import Put, Storage, no_progress

CALL = Call("createTask", "PUT", "/task/x", dict[str, Any], body={"a": "body"})
BODY = b'{"a":"body"}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be the API: respond with an empty object to every call that has `BODY`."""
    with contextlib.suppress(OSError, EOFError):
        while await reader.readuntil(b"\r\n\r\n"):
            assert await reader.readexactly(len(BODY)) == BODY
            writer.write(OK)
    writer.close()


_POLICY = RetryPolicy()


def put_to_storage(root_url: str, policy: RetryPolicy = _POLICY) -> dict[str, Any]:
    with closing(Storage(NetworkSettings())) as storage:
        storage.put(_upload(root_url, policy), Cancellation())
    return {}


async def put_to_storage_async(root_url: str) -> dict[str, Any]:
    async with aclosing(Storage(NetworkSettings())) as storage:
        await storage.put_small(_upload(root_url, _POLICY))
    return {}


def _upload(root_url: str, policy: RetryPolicy) -> Put:
    return Put(f"{root_url}/bucket/x", {}, open_source(BODY), ("sha256",), no_progress, policy)


def only_variables(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Remove all network settings from the environment, and set these."""
    settings = {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    for name in list(os.environ):
        if name in settings or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
