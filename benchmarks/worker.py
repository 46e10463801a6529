"""The worker beside scriptworker, and beside bare aiohttp making the same requests. Linux only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import queue
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from yarl import URL

from benchmarks.inputs import TEXT_SIZES, Inputs, input_sets
from benchmarks.measure import Row, at_least, at_most, compare, possible, processor_seconds, speeds, worst
from benchmarks.worker_queue import FAR_FUTURE, canned_queue, emptied_queue
from taskqueue_client import AsyncQueue, Credentials
from taskqueue_client.clock import SystemClock
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker import TaskRun, WorkerConfig, WorkerLoop
from taskqueue_client.worker.claims.claimed_run import ClaimedRun
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.run.log_checkpoints import FIRST_BETWEEN

CREDENTIALS = Credentials("benchmark", "none")
IDENTITY: dict[str, Any] = {"task_queue_id": "prov/wt", "worker_group": "wg", "worker_id": "w1"}
RUNS = 320
"""Runs beside scriptworker in a round: so many that the start of a worker hardly counts."""

RUNS_OF_SCRIPTWORKER = 40
"""Runs of scriptworker in a round: its loop has no start, and its runs take several times as long."""

HELD = 1000
LEASE = 10.0
WATCHED = 25.0
"""Seconds that held runs are watched: several reclaims of each."""


def texts(inputs: Inputs) -> list[bytes]:
    """The contents of two text artifacts of 1 kB."""
    return 2 * [b"".join(inputs.text(TEXT_SIZES[0]))]


class NoOp(WorkerLoop):
    async def run_task(self, task: TaskRun) -> None:
        """Do nothing."""


class LikeScriptworker(WorkerLoop):
    contents: Sequence[bytes] = ()

    def run_task(self, task: TaskRun) -> None:
        task.run_command(["true"])
        for name, content in zip("ab", self.contents, strict=True):
            task.upload_artifact(f"public/{name}.txt", content)


class Waiting(WorkerLoop):
    async def run_task(self, task: TaskRun) -> None:
        del task
        await asyncio.Event().wait()


def serve(kind: type[WorkerLoop], root_url: str, **settings: Any) -> None:
    kind(root_url=root_url, credentials=CREDENTIALS, **IDENTITY, **settings).serve()


# No-op tasks one at a time, beside scriptworker


def scriptworkers_loop(root_url: str, folder: Path, contents: Sequence[bytes], tasks: int) -> None:
    """Run `tasks` tasks as scriptworker's `main` does."""
    # not at the top, as the worker whose memory is measured runs from this file, too
    from scriptworker import worker  # noqa: PLC0415 - see above
    from scriptworker.constants import (  # pyright: ignore[reportMissingTypeStubs] # noqa: PLC0415 - it has no types; see above
        DEFAULT_CONFIG,
    )
    from scriptworker.context import Context  # noqa: PLC0415 - see above

    config = {
        **DEFAULT_CONFIG,
        "taskcluster_root_url": root_url,
        "provisioner_id": "prov",
        "worker_type": "wt",
        "worker_group": "wg",
        "worker_id": "w1",
        "sign_chain_of_trust": False,
        "verify_chain_of_trust": False,
        "verbose": False,
        "task_script": ("cp", f"{folder}/a.txt", f"{folder}/b.txt", f"{folder}/artifacts/public"),
        "work_dir": str(folder / "work"),
        "log_dir": str(folder / "log"),
        "artifact_dir": str(folder / "artifacts"),
        "task_log_dir": str(folder / "artifacts/public/logs"),
    }
    for name, content in zip("ab", contents, strict=True):
        (folder / f"{name}.txt").write_bytes(content)
    context: Any = Context()
    context.config = config
    loop = context.event_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    credentials = {"clientId": "benchmark", "accessToken": "none"}
    for _ in range(tasks):
        for name in ("work", "artifacts/public/logs", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        loop.run_until_complete(worker.async_main(context, credentials))
    asyncio.set_event_loop(None)
    loop.close()


async def bare_loop(root_url: str, contents: Sequence[bytes], tasks: int) -> None:
    """Run tasks by aiohttp with the least code: requests are signed, but nothing is checked or masked."""
    async with aiohttp.ClientSession() as session:

        async def post(path: str, body: object = None, credentials: Any = None) -> Any:
            headers = {} if credentials is None else {"Authorization": signed(path, credentials)}
            url = URL(root_url + path, encoded=True)
            async with session.post(url, json=body, headers=headers) as response:
                return json.loads(await response.read())

        async def create(claim: Any, name: str, request: dict[str, str]) -> Any:
            path = f"{_path(claim)}/artifacts/public%2F{name}"
            return await post(path, {**request, "expires": FAR_FUTURE}, claim["credentials"])

        async def upload(claim: Any, name: str, content: bytes) -> None:
            created = await create(claim, name, {"storageType": "s3", "contentType": "text/plain"})
            async with session.put(created["putUrl"], data=content) as response:
                await response.read()

        for _ in range(tasks):
            body = {"workerGroup": "wg", "workerId": "w1", "tasks": 1}
            (claim,) = (await post("/api/queue/v1/claim-work/prov%2Fwt", body))["tasks"]
            await asyncio.to_thread(subprocess.run, ["true"], capture_output=True, check=True)
            await asyncio.gather(
                upload(claim, "logs%2Flive_backing.log", b"x" * 200),
                *(
                    upload(claim, f"{name}.txt", content)
                    for name, content in zip("ab", contents, strict=True)
                ),
                create(claim, "logs%2Flive.log", {"storageType": "link", "artifact": "public/x"}),
            )
            await post(f"{_path(claim)}/completed", credentials=claim["credentials"])


def beside_scriptworker() -> Iterator[Row]:
    logging.disable(logging.CRITICAL)
    what = "runs with a subprocess, a log and 2 text artifacts of 1 kB"
    speed, milliseconds, floor, least = zip(*map(_beside_scriptworker, input_sets()), strict=True)
    yield at_least(f"{what}, speed", "scriptworker", min(speed), 6, 2.9)
    yield possible("… aiohttp with the least code, nothing kept", "scriptworker", min(floor))
    yield at_most("… processor time, ms a run", "", max(milliseconds), 4, 8.0)
    yield possible("… aiohttp with the least code, nothing kept", "", max(least))


def _beside_scriptworker(inputs: Inputs) -> tuple[float, float, float, float]:
    """Return speed and milliseconds of processor time for a run: ours, then those of aiohttp."""
    LikeScriptworker.contents = contents = texts(inputs)
    with canned_queue(inputs) as root_url, tempfile.TemporaryDirectory() as folder:

        def ours(tasks: int = RUNS) -> None:
            serve(LikeScriptworker, root_url, max_tasks=tasks)

        def theirs() -> None:
            scriptworkers_loop(root_url, Path(folder), contents, RUNS_OF_SCRIPTWORKER)

        def bare(tasks: int = RUNS) -> None:
            asyncio.run(bare_loop(root_url, contents, tasks))

        def milliseconds(work: Callable[[int], object]) -> float:
            return 1000 * processor_seconds(lambda: work(RUNS)) / RUNS

        more = RUNS / RUNS_OF_SCRIPTWORKER
        speed, floor = (more * each for each in speeds(theirs, ours, bare))
        return speed, milliseconds(ours), floor, milliseconds(bare)


# No-op asynchronous handlers, 32 at a time, beside bare aiohttp


async def bare(root_url: str, tasks: int) -> None:
    async with aiohttp.ClientSession(f"{root_url}/api/queue/v1/") as session:

        async def post(path: str, body: object = None) -> Any:
            async with session.post(path, json=body) as response:
                return json.loads(await response.read())

        async def one(claim: Any) -> None:
            run = f"task/{claim['status']['taskId']}/runs/0"
            artifact = {"storageType": "s3", "expires": FAR_FUTURE, "contentType": "text/plain"}
            target = await post(f"{run}/artifacts/public%2Flogs%2Flive_backing.log", artifact)
            async with session.put(target["putUrl"], data=b"x" * 200) as response:
                await response.read()
            link = {"storageType": "link", "expires": FAR_FUTURE, "artifact": "public/logs/live_backing.log"}
            await post(f"{run}/artifacts/public%2Flogs%2Flive.log", link)
            await post(f"{run}/completed")

        running: set[asyncio.Task[None]] = set()
        while tasks:
            body = {"workerGroup": "wg", "workerId": "w1", "tasks": min(32 - len(running), tasks)}
            claims = (await post("claim-work/prov%2Fwt", body))["tasks"]
            tasks -= len(claims)
            running |= {asyncio.create_task(one(claim)) for claim in claims}
            if len(running) == 32:
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(running)


async def through_client(root_url: str, tasks: int) -> None:
    """Make the requests of `bare` by the client alone: signed and decoded, but no run is reclaimed."""
    log, link = "public/logs/live_backing.log", "public/logs/live.log"
    async with AsyncQueue(root_url, CREDENTIALS) as queue, aiohttp.ClientSession() as session:

        async def one(claim: TaskClaim) -> None:
            run = queue.with_credentials(claim.credentials)
            key = claim.status.task_id, claim.run_id
            about: Any = {"expires": FAR_FUTURE, "contentType": "text/plain"}
            file: Any = {"storageType": "s3", **about}
            to_log: Any = {"storageType": "link", "artifact": log, **about}
            target = await run.create_artifact(*key, log, file)
            async with session.put(target.put_url or "", data=b"x" * 200) as response:
                await response.read()
            await run.create_artifact(*key, link, to_log)
            await run.report_completed(*key)

        running: set[asyncio.Task[None]] = set()
        while tasks:
            wanted = min(32 - len(running), tasks)
            claims = await queue.claim_work("prov/wt", worker_group="wg", worker_id="w1", tasks=wanted)
            tasks -= len(claims.tasks)
            running |= {asyncio.create_task(one(claim)) for claim in claims.tasks}
            if len(running) == 32:
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(running)


def beside_aiohttp() -> Iterator[Row]:
    logging.disable(logging.CRITICAL)
    tasks, against = 1000, "bare aiohttp, same requests"

    def ours(inputs: Inputs) -> float:
        with canned_queue(inputs) as root_url:
            return compare(
                lambda: serve(NoOp, root_url, concurrency=32, max_tasks=tasks),
                lambda: asyncio.run(bare(root_url, tasks)),
            )

    yield at_most("no-op asynchronous runs, 32 at a time, time", against, worst(ours), 1.7)
    with canned_queue() as root_url:
        ratio = compare(
            lambda: asyncio.run(through_client(root_url, tasks)), lambda: asyncio.run(bare(root_url, tasks))
        )
    yield possible("… AsyncQueue alone, nothing kept", against, ratio)


# Tracing


class Discarding(SpanExporter):
    """Takes the spans, and sends them nowhere: exporters work in a separate thread, at their own cost.

    Attributes:
        taken: The exported spans; None: they are not kept.
    """

    def __init__(self) -> None:
        self.taken: list[ReadableSpan] | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.taken is not None:
            self.taken += spans
        return SpanExportResult.SUCCESS


class BareSpans(WorkerLoop):
    """Makes the spans of a traced run by the SDK alone: nothing is measured, nested or propagated."""

    spans: Sequence[ReadableSpan] = ()

    async def run_task(self, task: TaskRun) -> None:
        del task
        tracer = trace.get_tracer("bare")
        for span in self.spans:
            tracer.start_span(span.name, kind=span.kind, attributes=dict(span.attributes or {})).end()


def tracing() -> Iterator[Row]:
    """The processor time of all spans of a no-op run with OpenTelemetry's SDK."""
    logging.disable(logging.CRITICAL)
    exporter, provider = Discarding(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with canned_queue() as root_url:

        def run(kind: type[WorkerLoop] = NoOp, tasks: int = 500, *, is_on: bool = False) -> None:
            serve(kind, root_url, concurrency=32, max_tasks=tasks, tracing=is_on)

        exporter.taken = []
        run(tasks=1, is_on=True)
        provider.force_flush()
        BareSpans.spans = exporter.taken
        exporter.taken = None
        ratio = compare(lambda: run(is_on=True), run, measure=processor_seconds)
        yield at_most("no-op asynchronous runs with tracing, processor time", "the same without", ratio, 1.15)
        ratio = compare(lambda: run(BareSpans), run, measure=processor_seconds)
    yield possible(f"… the same {len(BareSpans.spans)} spans by the SDK alone", "the same without", ratio)


# Many claimed runs


class Watcher:
    """Records the claimed runs, and how late their reclaims begin."""

    def __init__(self) -> None:
        self.runs: queue.Queue[ClaimedRun] = queue.Queue()
        self.late: list[float] = []

    def claimed(self, task_queue_id: str, runs: list[ClaimedRun]) -> None:
        del task_queue_id
        for held in runs:
            self.runs.put(held)

    def reclaim_began(self, late: float) -> None:
        self.late.append(late)

    def claim_failed(self, task_queue_id: str, error: Exception) -> None:
        del task_queue_id
        raise error

    def claiming_refused(self, error: Exception) -> None:
        raise error

    def reclaim_ended(self, result: str) -> None:
        """Do nothing: a failure shows in the number of lost claims."""


def held_runs() -> Iterator[Row]:
    """The lateness of reclaims, and their cost beside aiohttp, with a task for each claim, and hmac."""
    logging.disable(logging.CRITICAL)
    watcher = Watcher()
    with canned_queue(lease=LEASE, runs=HELD) as root_url:
        config = WorkerConfig(
            task_queue_id="prov/wt",
            worker_group="wg",
            worker_id="w1",
            concurrency=HELD,
            cancellation_poll_interval=3600.0,
        )
        keeper = Keeper(lambda: AsyncQueue(root_url, CREDENTIALS), config, watcher, SystemClock())
        held = [watcher.runs.get(timeout=60) for _ in range(HELD)]
        cost = watched(lambda: len(watcher.late))
        lost = sum(not each.has_claim for each in held)
        keeper.stop()
        late = sorted(watcher.late)
    p99 = late[len(late) * 99 // 100]
    yield at_most(f"{HELD} held claims of 5 kB, p99 lateness of reclaims, s", "", p99, 0.25)
    yield at_most("… claims lost", "", lost, 0)
    with canned_queue(lease=LEASE, runs=HELD) as root_url:
        theirs = asyncio.run(bare_reclaims(root_url))
    yield at_most("… processor time of a reclaim", "aiohttp and hmac, one task each", cost / theirs, 1.1)


def watched(count: Callable[[], int]) -> float:
    """Return the processor time of a reclaim in seconds, from `WATCHED` seconds with many reclaims."""
    before, cpu = count(), time.process_time()
    time.sleep(WATCHED)
    return (time.process_time() - cpu) / (count() - before)


async def bare_reclaims(root_url: str) -> float:
    done = [0]
    async with aiohttp.ClientSession() as session:
        claims: list[Any] = []
        while len(claims) < HELD:
            body = json.dumps({"workerGroup": "wg", "workerId": "w1", "tasks": 32}).encode()
            async with session.post(f"{root_url}/api/queue/v1/claim-work/prov%2Fwt", data=body) as response:
                claims += json.loads(await response.read())["tasks"]

        async def reclaim(claim: Any) -> None:
            path = f"{_path(claim)}/reclaim"
            credentials = claim["credentials"]
            while True:
                await asyncio.sleep(LEASE * (0.5 + 0.2 * secrets.randbelow(1000) / 1000))
                headers = {"Authorization": signed(path, credentials)}
                async with session.post(root_url + path, headers=headers) as response:
                    credentials = json.loads(await response.read())["credentials"]
                done[0] += 1

        tasks = [asyncio.create_task(reclaim(claim)) for claim in claims]
        before, cpu = done[0], time.process_time()
        await asyncio.sleep(WATCHED)
        cost = (time.process_time() - cpu) / (done[0] - before)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return cost


def _path(claim: Any) -> str:
    return f"/api/queue/v1/task/{claim['status']['taskId']}/runs/0"


def signed(path: str, credentials: dict[str, str]) -> str:
    """A Hawk header for a POST without body, made by hand."""
    stamp, nonce = int(time.time()), secrets.token_urlsafe(5)[:6]
    ext = base64.b64encode(
        json.dumps({"certificate": json.loads(credentials["certificate"])}).encode()
    ).decode()
    text = f"hawk.1.header\n{stamp}\n{nonce}\nPOST\n{path}\n127.0.0.1\n80\n\n{ext}\n"
    digest = hmac.digest(credentials["accessToken"].encode(), text.encode(), hashlib.sha256)
    mac = base64.b64encode(digest).decode()
    return f'Hawk id="{credentials["clientId"]}", ts="{stamp}", nonce="{nonce}", ext="{ext}", mac="{mac}"'


# The memory and processor time of a worker that waits


def resident_and_cpu(runs: int, seconds: float) -> tuple[int, float]:
    """Return the bytes, and the share of a core, that a worker process uses while its runs wait."""
    with emptied_queue(runs=runs) as (root_url, until_emptied):
        command = [sys.executable, "-m", "benchmarks.worker", root_url, str(runs + 1)]
        process = psutil.Popen(command)
        try:
            until_emptied()
            before = process.cpu_times()
            time.sleep(seconds)  # what is measured
            after = process.cpu_times()
            used = (after.user + after.system) - (before.user + before.system)
            return process.memory_info().rss, used / seconds
        finally:
            process.kill()
            process.wait()


def waiting() -> Iterator[Row]:
    resident, cpu = resident_and_cpu(0, 30)
    yield at_most("idle worker, % of a core", "", 100 * cpu, 0.2)
    yield at_most("idle worker, resident MB", "", resident / 1e6, 70)
    full, _ = resident_and_cpu(HELD, FIRST_BETWEEN[1] + 2)  # when each run has uploaded its log once
    kilobytes = (full - resident) / HELD / 1000
    yield at_most(f"{HELD} held claims of 5 kB with waiting handlers, kB a run", "", kilobytes, 20)


if __name__ == "__main__":
    serve(Waiting, sys.argv[1], concurrency=int(sys.argv[2]))
