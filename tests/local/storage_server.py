"""A server with only storage and faults, for the tests of both."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from taskqueue_client.clock import MovableClock
from taskqueue_client.local.engine import Store
from taskqueue_client.local.faults import FaultInjector, Faults
from taskqueue_client.local.storage import ArtifactStorage, artifact_directory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

TASK_ID = "Nb8VUDCcTNS02ceVc6xVCg"


def s3_key(name: str) -> str:
    return f"{TASK_ID}/0/{name}"


class WatchedClock(MovableClock):
    """A clock that lets a test wait until somebody sleeps on it."""

    def __init__(self, *, held: bool) -> None:
        super().__init__(held=held)
        self.sleeping = asyncio.Event()

    async def sleep_async(self, seconds: float) -> None:
        self.sleeping.set()
        await super().sleep_async(seconds)

    async def wait_for_sleeper(self) -> None:
        """Wait until somebody has begun to sleep since the last call."""
        await asyncio.wait_for(self.sleeping.wait(), 30)
        self.sleeping.clear()


@dataclass
class Served:
    """A storage service with its URL, and the parts behind it."""

    storage: ArtifactStorage
    directory: Path
    injector: FaultInjector
    clock: WatchedClock
    store: Store
    url: str = ""
    responded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a handler has ended, with or without a response."""

    @property
    def faults(self) -> Faults:
        return self.injector.faults

    def put_url(self, name: str) -> str:
        """A URL that is valid for 45 minutes, like that of an S3 artifact."""
        return self.storage.put_url(s3_key(name), 45 * 60)

    def get_url(self, name: str) -> str:
        return self.storage.get_url(s3_key(name))

    def files(self) -> list[Path]:
        """The files of all bodies."""
        return sorted(self.directory.iterdir())

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        buckets = self.storage.buckets
        try:
            if request.method == "PUT":
                return await self.injector.respond("storage.put", request, buckets.put)
            return await self.injector.respond("storage.get", request, buckets.get)
        finally:
            self.responded.set()


@asynccontextmanager
async def serving(path: str = ":memory:", *, held: bool = True, port: int = 0) -> AsyncGenerator[Served]:
    clock = WatchedClock(held=held)
    with closing(Store(path)) as store, artifact_directory(path) as directory:
        storage = ArtifactStorage(store, directory, clock, lambda: served.url)
        injector = FaultInjector(clock, {"storage.put", "storage.get"})
        served = Served(storage, directory, injector, clock, store)
        server = web.Server(served.respond, auto_decompress=False)
        runner = web.ServerRunner(server, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        (address,) = runner.addresses
        served.url = f"http://127.0.0.1:{address[1]}"
        try:
            yield served
        finally:
            await runner.cleanup()


async def _serve_until_killed(path: str, names: list[str]) -> None:
    async with serving(path, held=False) as served:
        sys.stdout.write("\n".join(served.put_url(name) for name in names) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_until_killed(sys.argv[1], sys.argv[2:]))
