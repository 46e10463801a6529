"""Uploads and downloads of artifacts, side by side with curl, the official package and scriptworker.

All talk to the same canned sink, which discards uploads inside the kernel. Files lie in memory where the
system has such a folder, so that the disk is not what is measured. Memory and pauses of the event loop are
measured in a fresh process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import scriptworker.artifacts
import taskcluster
import taskcluster.aio
import taskcluster.upload

from benchmarks.canned import certificate_and_bundle
from benchmarks.inputs import FIXED, TEXT_SIZES, Inputs, input_sets
from benchmarks.measure import (
    ROUNDS,
    Row,
    at_least,
    at_most,
    compare,
    folder_in_memory,
    possible,
    processor_seconds,
    seconds,
    slowest,
    worst,
)
from benchmarks.sink import FAR_FUTURE, SLUGID, running
from benchmarks.tls_sink import running_tls
from benchmarks.transfers import OURS, TRANSFERS, client
from taskqueue_client import Queue
from taskqueue_client.artifacts.content import gzipped, gzipped_content
from taskqueue_client.artifacts.sources import BLOCK, Source, open_source

SIZE = 1024**3
MANY = 1000
SMALLER = 4
"""Inputs that take long are so many times smaller in the generated sets."""

CURL = ("curl", "-sS", "-f")

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
    """Yield scriptworker's `upload_artifacts`, which compresses files in place."""
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


def small_artifacts() -> Iterator[Row]:
    """Half of them text, half binary, of 4 kB."""
    what = f"{MANY} artifacts of 4 kB, half of them text"
    asynchronous, synchronous = zip(*map(_small_beside_scriptworker, input_sets()), strict=True)
    yield at_least(f"{what}, AsyncQueue, speed", "scriptworker", min(asynchronous), 3, 2.1)
    yield at_least(f"{what}, Queue, speed", "scriptworker", min(synchronous), 2.5, 1.2)


def _small_beside_scriptworker(inputs: Inputs) -> tuple[float, float]:
    """Return the speeds of both clients; the generated sets have fewer artifacts, as more take too long."""
    with folder_in_memory(3 * SIZE) as folder, running() as root:
        many = folder / "many"
        many.mkdir()
        text = b"".join(inputs.text(4096))
        for number in range(MANY // (SMALLER if inputs.seed else 1)):
            path = many / f"{number}.{'log' if number % 2 else 'bin'}"
            path.write_bytes(text if number % 2 else os.urandom(4096))
        names = [path.name for path in many.iterdir()]
        with scriptworkers(root, _copy(many)) as upload, client(root) as (runner, queue):
            asynchronous = compare(
                lambda: upload(names), lambda: runner.run(TRANSFERS["many"](queue, folder))
            )
        with scriptworkers(root, _copy(many)) as upload, Queue(root, OURS) as synchronous:

            def ours() -> None:
                assert synchronous.upload_artifacts(SLUGID, 0, many, expires=FAR_FUTURE).is_complete

            return asynchronous, compare(lambda: upload(names), ours)


def _copy(folder: Path) -> Path:
    """Return a copy of the folder: scriptworker compresses the files in place."""
    return Path(shutil.copytree(folder, tempfile.mkdtemp(dir=folder.parent), dirs_exist_ok=True))


def gzip() -> Iterator[Row]:
    for what, size, times in (("1 kB", TEXT_SIZES[0], 2000), ("100 kB", TEXT_SIZES[1], 100)):

        def beside_zlib(inputs: Inputs, size: int = size, times: int = times) -> float:
            content = b"".join(inputs.text(size))
            ours = _processor_time(partial(_gzipped, content), times)
            return ours / _processor_time(partial(zlib.compress, content, 6, 31), times)

        yield at_most(f"gzip of {what}, processor time", "zlib, level 6", worst(beside_zlib), 1.3)
    yield at_least("gzip of 100 MB, speed", "gzip", slowest(_beside_gzip), 3)


def _beside_gzip(inputs: Inputs) -> float:
    """Return the speed of gzip; the texts of the generated sets are shorter, as long ones take too long."""
    with folder_in_memory(3 * SIZE) as folder:
        large = folder / "log"
        write_log(large, TEXT_SIZES[2] // (SMALLER if inputs.seed else 1), inputs)
        command = run("gzip", "-k", "-f", large)
        return compare(command, lambda: gzipped(open_source(large), list))


def _gzipped(content: bytes) -> Source:
    source = open_source(content)
    return gzipped(source, list) if source.content is None else gzipped_content(source.content)


def _processor_time(work: Callable[[], object], times: int) -> float:
    def repeated() -> None:
        for _ in range(times):
            work()

    return statistics.median(processor_seconds(repeated) for _ in range(ROUNDS))


def large_artifacts() -> Iterator[Row]:
    with folder_in_memory(3 * SIZE) as folder:
        large = folder / "large"
        write_large(large)
        with running(large) as root, client(root) as (runner, queue):
            yield from _large_rows(root, folder, lambda name: runner.run(TRANSFERS[name](queue, folder)))


def _large_rows(root: str, folder: Path, ours: Callable[[str], object]) -> Iterator[Row]:
    large = folder / "large"
    ratio = compare(lambda: ours("s3"), run(*CURL, "-T", large, f"{root}/put/curl"))
    yield at_most("1 GiB up by S3 PUT, time", "curl -T", ratio, 0.9)
    ratio = compare(official_object_upload(root, large), lambda: ours("object"))
    yield at_least("1 GiB up by the object service, speed", "official upload", ratio, 1.8)
    download = run(*CURL, f"{root}/file", "-o", folder / "downloaded")
    ratio = compare(lambda: ours("download"), download, before=partial(same_memory, folder))
    yield at_most("1 GiB down, verified, time", "curl -o", ratio, 1.5)


def large_over_tls() -> Iterator[Row]:
    """Transfers of large files over HTTPS, and the memory of a fresh process that makes one."""
    with folder_in_memory(3 * SIZE) as folder, certificate_and_bundle() as (certificate, bundle):
        large = folder / "large"
        write_large(large)
        os.environ["REQUESTS_CA_BUNDLE"] = str(bundle)
        with running_tls(large, certificate) as root, client(root) as (runner, queue):
            yield from _rows_over_tls(
                root, certificate, folder, lambda name: runner.run(TRANSFERS[name](queue, folder))
            )
            for name in ("s3", "download"):
                found = _of_fresh_process(name, root, folder)
                yield at_most(f"{name} over https, peak of resident memory, MB", "", found["megabytes"], 60)


def _rows_over_tls(
    root: str, certificate: Path, folder: Path, ours: Callable[[str], object]
) -> Iterator[Row]:
    """curl gets only the certificate of the server: loading a whole bundle would add to its time."""
    curl = (*CURL, "--cacert", certificate)
    ratio = compare(lambda: ours("s3"), run(*curl, "-T", folder / "large", f"{root}/put/curl"))
    yield at_most("1 GiB up by S3 PUT, https, time", "curl -T", ratio, 0.9)
    download = run(*curl, f"{root}/file", "-o", folder / "downloaded")
    ratio = compare(lambda: ours("download"), download, before=partial(same_memory, folder))
    yield at_most("1 GiB down, verified, https, time", "curl -o", ratio, 0.9)


def floors() -> Iterator[Row]:
    """The least possible time of transfers with hashes, as multiples of curl's time without hashes."""
    with folder_in_memory(3 * SIZE) as folder, certificate_and_bundle() as (certificate, _):
        large, downloaded = folder / "large", folder / "downloaded"
        write_large(large)
        what, before = "by processor time of curl, server and sha256", partial(same_memory, folder)
        with running(large) as root:
            floor = _floor(root, CURL, "-T", large, f"{root}/put/curl")
            yield possible(f"1 GiB up, {what}", "curl -T", floor)
        with running_tls(large, certificate) as root:
            curl = (*CURL, "--cacert", certificate)
            floor = _floor(root, curl, "-T", large, f"{root}/put/curl")
            yield possible(f"1 GiB up, https, {what}", "curl -T", floor)
            floor = _floor(root, curl, f"{root}/file", "-o", downloaded, before=before)
            yield possible(f"1 GiB down, https, {what}", "curl -o", floor)


def _floor(
    root: str,
    curl: tuple[str | Path, ...],
    *transfer: str | Path,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Return the processor time of curl, server and hash, shared by all cores, as a multiple of curl's time.

    A hash uses one core, so its time alone is a floor, too.
    """

    def hashing() -> None:
        """Hash as many bytes, without reading them: curl's processor time includes that."""
        hasher, block = hashlib.sha256(), bytes(BLOCK)
        for _ in range(SIZE // BLOCK):
            hasher.update(block)

    def of_server() -> float:
        found: float = json.loads(subprocess.check_output([*curl, f"{root}/stats"]))["processorTime"]
        return found

    def once() -> float:
        before()
        hashed, server, children = processor_seconds(hashing), of_server(), _of_children()
        time = seconds(run(*curl, *transfer))
        spent = _of_children() - children + of_server() - server
        return max(hashed, (spent + hashed) / (os.cpu_count() or 1)) / time

    return statistics.median(once() for _ in range(ROUNDS))


def _of_children() -> float:
    """The processor time of child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def same_memory(folder: Path) -> None:
    """Make enough free pages of memory available before each download.

    A virtual machine gives pages that are free for a while back to its host, and getting them again takes
    longer than the download. curl would write to the pages that its previous file has just freed; our client
    writes a new file beside the previous one.
    """
    (folder / "downloaded").unlink(missing_ok=True)
    pages = folder / "pages"
    with pages.open("wb") as file:
        for _ in range(SIZE // 1024**2):
            file.write(bytes(1024**2))
    pages.unlink()


def of_fresh_processes() -> Iterator[Row]:
    limits = {"s3": 60, "object": 60, "gzip": 80, "download": 60}
    with folder_in_memory(3 * SIZE) as folder:
        write_large(folder / "large")
        write_log(folder / "log", TEXT_SIZES[2])
        for name, limit in limits.items():
            with running(folder / "large") as root:
                found = _of_fresh_process(name, root, folder)
            yield at_most(f"{name}, peak of resident memory, MB", "", found["megabytes"], limit)
            yield at_most(f"{name}, event loop blocked, ms", "", found["milliseconds"], 50)


def _of_fresh_process(transfer: str, root: str, folder: Path) -> dict[str, float]:
    command = (sys.executable, "-m", "benchmarks.transfers", transfer, root, str(folder))
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


def write_large(path: Path) -> None:
    block = os.urandom(1024**2)
    with path.open("wb") as file:
        for number in range(SIZE // len(block)):
            file.write(block[number:] + block[:number])


def write_log(path: Path, size: int, inputs: Inputs = FIXED) -> None:
    with path.open("wb") as file:
        file.writelines(inputs.text(size))
