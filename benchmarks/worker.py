"""The worker beside scriptworker, and beside bare aiohttp making the same requests. Linux only.

Run it with `python -m benchmarks.worker`.
"""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from yarl import URL

from benchmarks.measure import Row, at_least, at_most, compare
from benchmarks.worker_queue import FAR_FUTURE, canned_queue
from taskqueue_client import AsyncQueue, Credentials
from taskqueue_client.clock import SystemClock
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker import TaskRun, WorkerLoop
from taskqueue_client.worker.claiming import WorkerIdentity
from taskqueue_client.worker.direct_queue import DirectQueue
from taskqueue_client.worker.held_run import HeldRun
from taskqueue_client.worker.keeper import Keeper, KeeperSettings

CREDENTIALS = Credentials("benchmark", "none")
IDENTITY: dict[str, Any] = {"task_queue_id": "prov/wt", "worker_group": "wg", "worker_id": "w1"}
HELD = 1000
LEASE = 10.0
WATCHED = 25.0
"""Seconds that held runs are watched: several renewals of each."""


class NoOp(WorkerLoop):
    async def run_task(self, task: TaskRun) -> None:
        """Do nothing."""


class LikeScriptworker(WorkerLoop):
    def run_task(self, task: TaskRun) -> None:
        task.run_command(["true"])
        task.upload_artifact("public/a.txt", b"a")
        task.upload_artifact("public/b.txt", b"b")


class Waiting(WorkerLoop):
    async def run_task(self, task: TaskRun) -> None:
        del task
        await asyncio.Event().wait()


def serve(kind: type[WorkerLoop], root_url: str, **settings: Any) -> None:
    kind(root_url=root_url, credentials=CREDENTIALS, **IDENTITY, **settings).serve()


# No-op tasks one at a time, beside scriptworker


def scriptworkers_loop(root_url: str, folder: Path, tasks: int) -> None:
    """What scriptworker's `main` does, for so many tasks."""
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
        "task_script": (
            "sh",
            "-c",
            f"echo a > {folder}/artifacts/public/a.txt; echo b > {folder}/artifacts/public/b.txt",
        ),
        "work_dir": str(folder / "work"),
        "log_dir": str(folder / "log"),
        "artifact_dir": str(folder / "artifacts"),
        "task_log_dir": str(folder / "artifacts/public/logs"),
    }
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


async def bare_loop(root_url: str, tasks: int) -> None:
    """The same by aiohttp with the least: signed, but nothing is checked, kept, masked or cleaned up."""
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
                upload(claim, "a.txt", b"a"),
                upload(claim, "b.txt", b"b"),
                create(claim, "logs%2Flive.log", {"storageType": "link", "artifact": "public/x"}),
            )
            await post(f"{_path(claim)}/completed", credentials=claim["credentials"])


def beside_scriptworker(root_url: str) -> Iterator[Row]:
    tasks = 200
    what = "tasks/s: no-op, log, 2 artifacts, subprocess"
    with tempfile.TemporaryDirectory() as folder:

        def theirs() -> None:
            scriptworkers_loop(root_url, Path(folder), tasks)

        ours = compare(theirs, lambda: serve(LikeScriptworker, root_url, max_tasks=tasks), rounds=3)
        possible = compare(theirs, lambda: asyncio.run(bare_loop(root_url, tasks)), rounds=3)
    yield at_least(what, "scriptworker's loop", ours, 7)
    yield at_least("  aiohttp could reach, signed, nothing kept", "scriptworker's loop", possible, 0)


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
    """The same requests by the client alone: signed and decoded, but nothing is kept."""
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


def beside_aiohttp(root_url: str) -> Iterator[Row]:
    tasks = 3000
    ratio = compare(
        lambda: serve(NoOp, root_url, concurrency=32, max_tasks=tasks),
        lambda: asyncio.run(bare(root_url, tasks)),
        rounds=5,
    )
    yield at_most("time: no-op async handlers, 32 at a time", "bare aiohttp, same requests", ratio, 1.6)
    possible = compare(
        lambda: asyncio.run(through_client(root_url, tasks)),
        lambda: asyncio.run(bare(root_url, tasks)),
        rounds=5,
    )
    yield at_least("  AsyncQueue could reach, nothing kept", "bare aiohttp, same requests", possible, 0)


# Held runs


class Watcher:
    """Notes how late renewals begin, and what is lost."""

    def __init__(self) -> None:
        self.runs: queue.Queue[HeldRun] = queue.Queue()
        self.late: list[float] = []

    def claimed(self, runs: list[HeldRun]) -> None:
        for held in runs:
            self.runs.put(held)

    def renewed(self, late: float) -> None:
        self.late.append(late)

    def claim_failed(self, error: Exception) -> None:
        raise error

    refused = claim_failed

    def renewal_failed(self) -> None:
        """It shows in `late`, and in what is lost."""

    renewal_refused = renewal_failed


def held_runs() -> Iterator[Row]:
    """The lateness of renewals, and their cost beside aiohttp with one task a claim, signing by hmac."""
    watcher = Watcher()
    with canned_queue(lease=LEASE, runs=HELD) as root_url:
        settings = KeeperSettings(WorkerIdentity("prov/wt", "wg", "w1"), HELD, None, 3600.0)
        keeper = Keeper(lambda: DirectQueue(root_url, CREDENTIALS), settings, watcher, SystemClock())
        held = [watcher.runs.get(timeout=60) for _ in range(HELD)]
        cost = watched(lambda: len(watcher.late))
        lost = sum(not each.is_held for each in held)
        keeper.stop()
        late = sorted(watcher.late)
    yield at_most(
        f"p99 lateness of renewals, {HELD} held (s)",
        f"leases of {LEASE:.0f} s",
        late[len(late) * 99 // 100],
        0.25,
    )
    yield at_most("runs lost", f"of {HELD}", lost, 0)
    with canned_queue(lease=LEASE, runs=HELD) as root_url:
        theirs = asyncio.run(bare_renewals(root_url))
    yield at_most("CPU per renewal", "aiohttp, hmac, one task per claim", cost / theirs, 1.3)


def watched(count: Callable[[], int]) -> float:
    """Seconds of processor time for each renewal in a while."""
    before, cpu = count(), time.process_time()
    time.sleep(WATCHED)
    return (time.process_time() - cpu) / (count() - before)


async def bare_renewals(root_url: str) -> float:
    done = [0]
    async with aiohttp.ClientSession() as session:
        claims: list[Any] = []
        while len(claims) < HELD:
            body = json.dumps({"workerGroup": "wg", "workerId": "w1", "tasks": 32}).encode()
            async with session.post(f"{root_url}/api/queue/v1/claim-work/prov%2Fwt", data=body) as response:
                claims += json.loads(await response.read())["tasks"]

        async def keep(claim: Any) -> None:
            path = f"{_path(claim)}/reclaim"
            credentials = claim["credentials"]
            while True:
                await asyncio.sleep(LEASE * (0.5 + 0.2 * secrets.randbelow(1000) / 1000))
                headers = {"Authorization": signed(path, credentials)}
                async with session.post(root_url + path, headers=headers) as response:
                    credentials = json.loads(await response.read())["credentials"]
                done[0] += 1

        tasks = [asyncio.create_task(keep(claim)) for claim in claims]
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


# What a worker takes when it waits


def resident_and_cpu(kind: str, root_url: str, concurrency: int, seconds: float) -> tuple[int, float]:
    """Bytes and the share of a core that a worker in a process of its own takes."""
    command = [sys.executable, "-m", "benchmarks.worker", kind, root_url, str(concurrency)]
    process = psutil.Popen(command)
    try:
        time.sleep(5)
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        used = (after.user + after.system) - (before.user + before.system)
        return process.memory_info().rss, used / seconds
    finally:
        process.kill()
        process.wait()


def waiting() -> Iterator[Row]:
    with canned_queue(runs=0) as root_url:
        resident, cpu = resident_and_cpu("waiting", root_url, 1, 30)
    yield at_most("idle: % of a core", "", 100 * cpu, 0.2)
    yield at_most("idle: resident MB", "", resident / 1e6, 70)
    with canned_queue(lease=1200, runs=3000) as root_url:
        full, _ = resident_and_cpu("waiting", root_url, 3000, 5)
    yield at_most(
        "held, with a handler that waits: kB a run", "3000 runs", (full - resident) / 3000 / 1000, 25
    )


def main() -> None:
    logging.disable(logging.CRITICAL)
    with canned_queue() as root_url:
        for rows in (beside_aiohttp, beside_scriptworker):
            for row in rows(root_url):
                print(row, flush=True)
    for figures in (held_runs, waiting):
        for row in figures():
            print(row, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(Waiting, sys.argv[2], concurrency=int(sys.argv[3]))
    else:
        main()
