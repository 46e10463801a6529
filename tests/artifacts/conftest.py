"""A local queue, a run to upload to, and each client in turn."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client.clock import MovableClock
from taskqueue_client.definitions import task_definition
from taskqueue_client.local import LocalQueue
from tests.artifacts.raw_server import RawServer
from tests.client.conftest import EitherClient as ClientWithoutRun


class WaitlessClock:
    """The queue's clock for a client that never waits: each sleep advances it at once."""

    sleeps_at_least = 0.0

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.advance(max(seconds, self.sleeps_at_least))

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.to_thread(self.sleep, seconds)


class Seen(list[tuple[Any, ...]]):
    """A progress callback that records its arguments."""

    def __call__(self, *done: object) -> None:
        self.append(done)


def no_isal(_module: str) -> None:
    """Used in place of the function `isal` of `artifacts.content`: isal is not installed."""


class Run(NamedTuple):
    task_id: str
    run_id: int
    expires: datetime


class EitherClient(ClientWithoutRun):
    """Either client, with synchronous methods, and a run to upload to."""

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        runner: asyncio.Runner | None,
        run: Run,
        clock: WaitlessClock,
    ) -> None:
        super().__init__(queue, runner)
        self.run = run
        self.clock = clock

    @property
    def is_async(self) -> bool:
        return self.runner is not None

    def upload(self, name: str, source: object, **options: Any) -> Any:
        options.setdefault("expires", self.run.expires)
        return self.upload_artifact(self.run.task_id, self.run.run_id, name, source, **options)

    def upload_many(self, artifacts: object, **options: Any) -> Any:
        options.setdefault("expires", self.run.expires)
        return self.upload_artifacts(self.run.task_id, self.run.run_id, artifacts, **options)

    def download(self, name: str, **options: Any) -> Any:
        return self.download_artifact(self.run.task_id, name, **options)

    def stream(self, name: str, **options: Any) -> list[bytes]:
        return self.all("stream_artifact", self.run.task_id, name, **options)

    def iterator(self, blocks: Iterable[bytes]) -> Iterator[bytes] | AsyncIterator[bytes]:
        async def give() -> AsyncIterator[bytes]:
            for block in blocks:
                yield block

        return iter(blocks) if self.runner is None else give()


def make_run(queue: Queue, clock: MovableClock) -> Run:
    now = datetime.fromtimestamp(clock.now(), UTC)
    task_id = slugid()
    definition = task_definition(
        "prov/wt", {}, name="n", owner="o", source="https://example.com", created=now, expires="1 day"
    )
    queue.create_task(task_id, definition)
    queue.claim_work("prov/wt", worker_group="wg", worker_id="w1", tasks=1)
    return Run(task_id, 0, now + timedelta(hours=20))


@pytest.fixture(scope="module")
def module_s_queue() -> Iterator[LocalQueue]:
    with LocalQueue(claim_timeout=10 * 3600) as local:  # claims outlast the URLs of uploads
        yield local


@pytest.fixture
def local(module_s_queue: LocalQueue) -> Iterator[LocalQueue]:
    """A queue without faults at the start of each test."""
    yield module_s_queue
    module_s_queue.faults.clear()


@pytest.fixture
def run(local: LocalQueue) -> Run:
    with Queue(local.root_url, local.credentials, clock=local.clock) as queue:
        return make_run(queue, local.clock)


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def client(runner: asyncio.Runner | None, local: LocalQueue, run: Run) -> Iterator[EitherClient]:
    """A client of the local queue that never waits."""
    kind = Queue if runner is None else AsyncQueue
    clock = WaitlessClock(local.clock)
    client = EitherClient(kind(local.root_url, local.credentials, clock=clock), runner, run, clock)
    yield client
    client.close()


@pytest.fixture
def raw_client(runner: asyncio.Runner | None, server: RawServer) -> Iterator[EitherClient]:
    """A client of the raw server."""
    kind = Queue if runner is None else AsyncQueue
    clock = WaitlessClock(MovableClock())
    run = Run(slugid(), 0, datetime.now(UTC) + timedelta(hours=1))
    client = EitherClient(kind(server.url, Credentials("tester", "secret"), clock=clock), runner, run, clock)
    yield client
    client.close()


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """A file of some blocks, all of which differ."""
    path = tmp_path / "content"
    path.write_bytes(b"".join(number.to_bytes(4, "big") for number in range(250_000)))
    return path


@contextmanager
def file_size_limit(size: int) -> Generator[None]:
    """Refuse larger files to this process, in place of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
