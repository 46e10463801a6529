"""Polls of an Azure storage queue: `AzureTaskSource`'s connections, and bare aiohttp doing the same.

Needs node and Azurite, as `tests/legacy` does.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from benchmarks.measure import Row, at_most, compare, possible, seconds
from taskqueue_client import Queue
from taskqueue_client.legacy import PollQueue, StoragePolling, poll_task_urls
from taskqueue_client.local import LocalQueue
from tests.legacy.azurite import MAIN, Azurite

POLLS = 200
AT_ONCE = 8


async def ours(queue: PollQueue) -> None:
    storage = StoragePolling()

    async def poll_some() -> None:
        for _ in range(POLLS // AT_ONCE):
            assert await storage.poll(queue, 32) == []

    await asyncio.gather(*(poll_some() for _ in range(AT_ONCE)))
    await storage.close()


async def bare(queue: PollQueue) -> None:
    async with aiohttp.ClientSession() as session:

        async def poll_some() -> None:
            for _ in range(POLLS // AT_ONCE):
                async with session.get(queue.signed_poll_url + "&numofmessages=32") as response:
                    assert response.status == 200
                    assert len(ET.fromstring(await response.read())) == 0

        await asyncio.gather(*(poll_some() for _ in range(AT_ONCE)))


def rows() -> Iterator[Row]:
    if shutil.which("node") is None or not MAIN.exists():
        print(f"skipped: needs node and {MAIN}")
        return
    with tempfile.TemporaryDirectory() as folder:
        azurite = Azurite(Path(folder))
        try:
            yield from measured(azurite)
        finally:
            azurite.kill()


def measured(azurite: Azurite) -> Iterator[Row]:
    with LocalQueue(legacy_azure=azurite.connection_string) as local:
        with Queue(local.root_url, local.credentials) as client:
            queue = client.send(poll_task_urls("proj/linux")).queues[0]
        ratio = compare(lambda: asyncio.run(ours(queue)), lambda: asyncio.run(bare(queue)))
        yield at_most("polls of a storage queue, time", "aiohttp.ClientSession, ElementTree", ratio, 1.3)
        rate = POLLS / seconds(lambda: asyncio.run(ours(queue)))
        yield possible("polls per second, 8 at once", "Azurite", rate)


if __name__ == "__main__":
    for row in rows():
        print(row)
