"""Uploads and downloads of artifacts, side by side with curl, the official package and scriptworker.

All talk to the same canned sink, which discards uploads inside the kernel. Files lie in memory where the
system has such a folder, so that the disk is not what is measured. Memory, and how long the event loop
stands still, are those of a fresh process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import scriptworker.artifacts
import taskcluster
import taskcluster.aio
import taskcluster.upload

from benchmarks.measure import Row, at_least, at_most, compare, seconds
from benchmarks.sink import FAR_FUTURE, SLUGID, most_connections, running
from benchmarks.transfers import CONNECTIONS, TRANSFERS, client

SIZE = 1024**3
LOG_OF_SCRIPTWORKER = 32 * 1024**2
"""It compresses at some MB per second, so that it gets a part of the log; compared are speeds."""
MANY = 1000
ROUNDS = 5
OFFICIAL = {"clientId": "benchmark", "accessToken": "secret"}


def run(*command: str | Path) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True)


def official_object_upload(root_url: str, file: Path) -> Callable[[], None]:
    service = taskcluster.Object({"rootUrl": root_url, "credentials": OFFICIAL})

    def upload() -> None:
        with file.open("rb") as source:
            taskcluster.upload.uploadFromFile(
                projectId="none",
                name="t/x",
                contentType="application/octet-stream",
                contentLength=SIZE,
                expires=FAR_FUTURE,
                file=source,
                objectService=service,
            )

    return upload


@contextmanager
def scriptworkers(root_url: str, folder: Path) -> Generator[Callable[[list[str]], None], None, None]:
    """`upload_artifacts`, which compresses (the file itself) if need be, and calls `create_artifact`."""
    with asyncio.Runner() as runner:
        session = runner.run(_session())
        options = {"rootUrl": root_url, "credentials": OFFICIAL}
        context: Any = SimpleNamespace(
            config={"artifact_dir": str(folder), "artifact_upload_timeout": 1200},
            claim_task={"status": {"taskId": SLUGID}, "runId": 0},
            task={"expires": FAR_FUTURE},
            session=session,
            temp_queue=taskcluster.aio.Queue(options, session=session),
        )
        yield lambda names: runner.run(scriptworker.artifacts.upload_artifacts(context, names))
        runner.run(session.close())


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


def gzip_speed(root_url: str, folder: Path, ours: Callable[[], object]) -> float:
    """How many times as many bytes per second as scriptworker."""
    part = folder / "part"
    part.mkdir()
    with (folder / "log").open("rb") as log:
        (part / "x.log").write_bytes(log.read(LOG_OF_SCRIPTWORKER))
    with scriptworkers(root_url, part) as upload:
        theirs = LOG_OF_SCRIPTWORKER / seconds(lambda: upload(["x.log"]))
    return SIZE / seconds(ours) / theirs


def rows(root: str, folder: Path) -> Iterator[Row]:
    large, names = folder / "large", [path.name for path in (folder / "many").iterdir()]
    curl = ("curl", "-sS", "-f")
    with client(root) as (runner, queue):

        def ours(name: str) -> Callable[[], object]:
            return lambda: runner.run(TRANSFERS[name](queue, folder))

        ratio = compare(ours("s3"), run(*curl, "-T", large, f"{root}/put/curl"), ROUNDS)
        yield at_most("1 GiB by S3 PUT, time", "curl -T", ratio, 0.8)
        ratio = compare(official_object_upload(root, large), ours("object"), ROUNDS)
        yield at_least("1 GiB by the object service, speed", "official upload", ratio, 1.8)
        curl_download = run(*curl, f"{root}/file", "-o", folder / "downloaded")
        ratio = compare(ours("download"), curl_download, ROUNDS, partial(same_memory, folder))
        yield at_most("1 GiB download, verified, time", "curl -o", ratio, 1.5)
        with scriptworkers(root, folder / "many") as upload:
            ratio = compare(lambda: upload(names), ours("many"), ROUNDS)
        yield at_least(f"{MANY} artifacts of 4 kB, speed", "scriptworker upload_artifacts", ratio, 2.5)
        ratio = gzip_speed(root, folder, ours("gzip"))
        yield at_least("1 GiB of log text with gzip, speed", "scriptworker", ratio, 20)


def same_memory(folder: Path) -> None:
    """Let both find as many pages in memory as they need.

    A virtual machine gives pages back to its host when they are free for a while, and getting them again
    takes longer than the download. curl writes to the pages that its last file has just freed; ours is a
    new file beside the old one.
    """
    (folder / "downloaded").unlink(missing_ok=True)
    pages = folder / "pages"
    with pages.open("wb") as file:
        for _ in range(SIZE // 1024**2):
            file.write(bytes(1024**2))
    pages.unlink()


def rows_of_fresh_processes(folder: Path) -> Iterator[Row]:
    limits = {"s3": 60, "object": 60, "gzip": 80}
    for name in TRANSFERS:
        with running(folder / "large") as root:
            command = (sys.executable, "-m", "benchmarks.transfers", name, root, str(folder))
            found = json.loads(subprocess.check_output(command))
            if name == "many":
                connections = most_connections(root)
                yield at_most("many, connections", "", connections, CONNECTIONS)
        if name in limits:
            yield at_most(f"{name}, peak of resident memory in MB", "", found["megabytes"], limits[name])
        yield at_most(f"{name}, the event loop stood still, ms", "", found["milliseconds"], 50)


def prepare(folder: Path) -> None:
    block = os.urandom(1024**2)
    with (folder / "large").open("wb") as file:
        for number in range(SIZE // len(block)):
            file.write(block[number:] + block[:number])
    write_log(folder / "log")
    (folder / "many").mkdir()
    for number in range(MANY):
        (folder / "many" / f"{number}.bin").write_bytes(block[number : number + 4096])


def write_log(path: Path) -> None:
    """Lines as builds write them: words that come again, and numbers and hashes that don't."""
    dice = random.Random(1)
    words = ["compiling", "linking", "warning:", "unused", "variable", "src/core/", "-O2", "ok", "FAIL"]
    lines = b"".join(
        b"[task 2026-11-21T09:%02d:%02d.%03dZ] %s %s\n"
        % (
            dice.randrange(60),
            dice.randrange(60),
            dice.randrange(1000),
            " ".join(dice.choices(words, k=6)).encode(),
            sha256(dice.randbytes(4)).hexdigest()[: dice.randrange(40)].encode(),
        )
        for _ in range(100_000)
    )
    with path.open("wb") as file:
        for start in range(SIZE // len(lines) + 1):
            shift = start * 7919
            file.write(lines[shift:] + lines[:shift])
        file.truncate(SIZE)


def main() -> None:
    in_memory = Path("/dev/shm")
    place = in_memory if in_memory.is_dir() and shutil.disk_usage(in_memory).free > 4 * SIZE else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        prepare(folder)
        with running(folder / "large") as root:
            for row in rows(root, folder):
                print(row, flush=True)
        for row in rows_of_fresh_processes(folder):
            print(row, flush=True)


if __name__ == "__main__":
    main()
