"""The transfers that are measured, and a program that measures memory and event-loop pauses of one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.sink import FAR_FUTURE, SLUGID
from taskqueue_client import AsyncQueue, Credentials

CONNECTIONS = 16
OURS = Credentials("benchmark", "secret")

Transfer = Callable[[AsyncQueue, Path], Coroutine[Any, Any, object]]


async def _s3(queue: AsyncQueue, folder: Path) -> object:
    return await queue.upload_artifact(SLUGID, 0, "public/x.bin", folder / "large", expires=FAR_FUTURE)


async def _object(queue: AsyncQueue, folder: Path) -> object:
    return await queue.upload_artifact(
        SLUGID, 0, "public/x.bin", folder / "large", expires=FAR_FUTURE, storage="object"
    )


async def _gzip(queue: AsyncQueue, folder: Path) -> object:
    return await queue.upload_artifact(SLUGID, 0, "public/x.log", folder / "log", expires=FAR_FUTURE)


async def _many(queue: AsyncQueue, folder: Path) -> object:
    half = CONNECTIONS // 2  # each upload has one to the Queue and one to the storage
    report = await queue.upload_artifacts(SLUGID, 0, folder / "many", expires=FAR_FUTURE, concurrency=half)
    assert report.is_complete
    return None  # `Runner.run` writes what it returns as text, to compare signal handlers


async def _download(queue: AsyncQueue, folder: Path) -> object:
    return await queue.download_artifact(SLUGID, "public/x.bin", to=folder / "downloaded")


TRANSFERS: dict[str, Transfer] = {
    "s3": _s3,
    "object": _object,
    "gzip": _gzip,
    "many": _many,
    "download": _download,
}


@contextmanager
def client(root_url: str) -> Generator[tuple[asyncio.Runner, AsyncQueue], None, None]:
    """Yield a client, which is created before the time is measured."""
    with asyncio.Runner() as runner:
        queue = AsyncQueue(root_url, OURS)
        yield runner, queue
        runner.run(queue.close())


async def observed(name: str, root_url: str, folder: Path) -> float:
    """Return the longest pause of the event loop during a transfer, in seconds."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    async with AsyncQueue(root_url, OURS) as queue:
        watcher = asyncio.create_task(watch())
        await TRANSFERS[name](queue, folder)
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
    return longest


def observe(name: str, root_url: str, folder: Path) -> None:
    """Run the transfer in the new process, and print its figures."""
    longest = asyncio.run(observed(name, root_url, folder))
    print(json.dumps({"megabytes": peak_of_resident_memory(), "milliseconds": 1000 * longest}))


def peak_of_resident_memory() -> float:
    """Return the peak in MB, of this program alone: `getrusage` includes the process before its exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    observe(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
