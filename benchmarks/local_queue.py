"""The local queue in a process of its own, asked by one client: `python -m benchmarks.local_queue`."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.measure import Row, at_least, at_most, seconds
from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client.definitions import TaskDefinition, task_definition

WORKER: Any = {"worker_group": "wg", "worker_id": "w1"}
SECOND = 1000  # milliseconds
TRIES = 10


def definition(task_queue_id: str = "prov/wt") -> TaskDefinition:
    source = "https://example.com"
    return task_definition(
        task_queue_id, {"command": ["true"]}, name="n", owner="o@example.com", source=source
    )


@contextmanager
def local_queue(*arguments: str) -> Generator[tuple[Queue, psutil.Process]]:
    """A client of a local queue, and the process that it runs in."""
    command = [str(Path(sys.executable).with_name("taskqueue")), "local", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        credentials = Credentials(told["TASKCLUSTER_CLIENT_ID"], told["TASKCLUSTER_ACCESS_TOKEN"])
        try:
            with Queue(told["TASKCLUSTER_ROOT_URL"], credentials) as queue:
                yield queue, psutil.Process(process.pid)
        finally:
            process.terminate()


def per_second(work: Callable[[], object], times: int) -> float:
    """How often a second `work` can be done: the best of several tries, as `timeit` has it."""

    def repeated() -> None:
        for _ in range(times):
            work()

    return times / min(seconds(repeated) for _ in range(TRIES))


def start() -> Iterator[Row]:
    program = (
        "import time; a = time.perf_counter()\n"
        "from urllib.request import urlopen\n"
        "import aiohttp.web\n"
        "from taskqueue_client.local import LocalQueue\n"
        "b = time.perf_counter()\n"
        "with LocalQueue() as local:\n"
        "    urlopen(local.root_url + '/api/queue/v1/ping').read()\n"
        "    print(time.perf_counter() - b)\n"
    )
    took = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(5)]
    yield at_most("start to the first answer, ms", "-", SECOND * statistics.median(took), 150)


def creating_and_claiming() -> Iterator[Row]:
    with local_queue() as (queue, _):
        made = per_second(lambda: queue.create_task(slugid(), definition()), 300)
        yield at_least("createTask a second, in memory", "Queue", made, 900)
        yield at_least(
            "claimWork and reportCompleted a second", "Queue", per_second(lambda: complete(queue), 150), 400
        )
        made = asyncio.run(created_a_second(queue))
        yield at_least("createTask a second, in memory", "AsyncQueue", made, 900)
    with tempfile.TemporaryDirectory() as folder, local_queue("--db", str(Path(folder, "q"))) as (queue, _):
        made = per_second(lambda: queue.create_task(slugid(), definition()), 300)
        yield at_least("createTask a second, on a file", "Queue", made, 500)


async def created_a_second(queue: Queue) -> float:
    """How many tasks one AsyncQueue makes a second, one after the other: the best of several tries."""
    times, took = 300, float("inf")
    async with AsyncQueue(queue.root_url, queue.credentials) as client:
        for _ in range(TRIES):
            started = time.perf_counter()
            for _ in range(times):
                await client.create_task(slugid(), definition())
            took = min(took, time.perf_counter() - started)
    return times / took


def complete(queue: Queue) -> None:
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    queue.report_completed(claim.status.task_id, claim.run_id)


def waking() -> Iterator[Row]:
    claimed = threading.Event()
    with local_queue() as (queue, _):
        took: list[float] = []

        def wait_for_work() -> None:
            for _ in range(50):
                waiting.set()
                queue.claim_work("prov/wt", **WORKER)
                took[-1] = time.perf_counter() - took[-1]
                claimed.set()

        waiting = threading.Event()
        thread = threading.Thread(target=wait_for_work)
        thread.start()
        for _ in range(50):
            waiting.wait()
            waiting.clear()
            time.sleep(0.02)  # the long poll is under way by then
            took.append(time.perf_counter())
            queue.create_task(slugid(), definition())
            claimed.wait()
            claimed.clear()
        thread.join()
        yield at_most("createTask to claim, median ms", "-", SECOND * statistics.median(took), 10)


def many_pending() -> Iterator[Row]:
    with local_queue() as (queue, process):
        few = filled(queue, 100)
        cost_of_few = claim_cost(queue, few)
        many = filled(queue, 100_000)
        ratio = claim_cost(queue, many) / cost_of_few
        yield at_most("claim with 100,000 pending tasks", "100 pending tasks", ratio, 1.5)
        yield at_most("resident memory then, MB", "-", process.memory_info().rss / 2**20, 300)


def filled(queue: Queue, tasks: int) -> list[str]:
    """Create tasks in 50 queues, over many connections."""
    names = [f"prov{tasks}/wt{number}" for number in range(50)]

    async def fill() -> None:
        async with AsyncQueue(queue.root_url, queue.credentials, check_definitions=False) as client:
            made = {name: definition(name) for name in names}

            async def worker(name: str) -> None:
                for _ in range(tasks // 50):
                    await client.create_task(slugid(), made[name])

            await asyncio.gather(*(worker(name) for name in names))

    asyncio.run(fill())
    return names


def claim_cost(queue: Queue, names: list[str]) -> float:
    return statistics.median(seconds(partial(queue.claim_work, name, **WORKER)) for name in names)


def many_waiting() -> Iterator[Row]:
    with local_queue() as (queue, _):
        task_id = slugid()
        queue.create_task(task_id, definition("prov/other"))
        alone = per_second(lambda: queue.status(task_id), 500)
        asked = threading.Event()
        done = threading.Event()

        def wait_in_line() -> None:
            asyncio.run(crowd(queue, asked, done))

        thread = threading.Thread(target=wait_in_line)
        thread.start()
        asked.wait()
        crowded = per_second(lambda: queue.status(task_id), 500)
        done.set()
        thread.join()
        yield at_most("status with 500 waiting long polls", "without", alone / crowded, 2)


async def crowd(queue: Queue, asked: threading.Event, done: threading.Event) -> None:
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        AsyncQueue(queue.root_url, queue.credentials, session=session) as client,
    ):
        polls = [
            asyncio.create_task(client.claim_work("prov/wt", worker_group="wg", worker_id=f"w{number}"))
            for number in range(500)
        ]
        await asyncio.sleep(2)
        asked.set()
        await asyncio.to_thread(done.wait)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)


def main() -> None:
    for part in (start, creating_and_claiming, waking, many_waiting, many_pending):
        for row in part():
            print(row, flush=True)


if __name__ == "__main__":
    main()
