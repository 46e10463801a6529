"""The local queue in a separate process, called by one client."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import aiohttp
import psutil
import requests

from benchmarks.bare_queue import bare_queue
from benchmarks.canned import canned_server
from benchmarks.inputs import Inputs, input_sets
from benchmarks.measure import ROUNDS, Row, at_least, at_most, possible, seconds
from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client.definitions import TaskDefinition
from taskqueue_client.errors import ResourceNotFound

WORKER: Any = {"worker_group": "wg", "worker_id": "w1"}
SECOND = 1000  # milliseconds
TRIES = 7
USUAL = 1400
"""Calls a second of `requests.Session` on the machine that the goals are for."""

MANY = 20_000


def definition(task_queue_id: str = "prov/wt") -> TaskDefinition:
    """Return another definition of the fixed set each time."""
    return {**next(_DEFINITIONS), "taskQueueId": task_queue_id}


def definitions(inputs: Inputs) -> Iterator[TaskDefinition]:
    """Yield definitions for ever, without dependencies, because the tasks that these name do not exist."""
    made = inputs.definitions(1000, dependencies=0)
    return cycle({**each, "taskQueueId": "prov/wt"} for each in made)


_DEFINITIONS = definitions(Inputs(0))


@contextmanager
def local_queue(*arguments: str) -> Generator[tuple[Queue, psutil.Process]]:
    """Yield a client of a local queue, and the queue's process."""
    command = [str(Path(sys.executable).with_name("taskqueue")), "local", "--json", "--no-page", *arguments]
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
    """Return how often a second `work` can be done: the best of several tries, as in `timeit`."""

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
    yield at_most("start to the first response, ms", "", SECOND * statistics.median(took), 150)


def creating_and_claiming() -> Iterator[Row]:
    usual = calls_of_requests()
    yield possible("status a second, canned response", "bare requests.Session", usual)

    def row(what: str, client: str, rates: Iterable[float], goal: float) -> Row:
        return at_least(what, client, min(rates), round(goal * usual / USUAL))

    rates = [rates_of(inputs) for inputs in input_sets()]
    yield row("createTask a second, in memory", "Queue", (each.created for each in rates), 900)
    yield row("claimWork and reportCompleted a second", "Queue", (each.completed for each in rates), 400)
    yield row("createTask a second, in memory", "AsyncQueue", (each.created_async for each in rates), 900)
    yield row("createTask a second, on a file", "Queue", (each.created_on_file for each in rates), 500)


def calls_of_requests() -> float:
    """How many calls a second `requests.Session` makes: goals are for a machine on which it makes USUAL."""
    with canned_server() as root_url, requests.Session() as session:
        url = f"{root_url}/api/queue/v1/task/{slugid()}/status"
        return per_second(lambda: session.get(url).json(), 300)


class Rates(NamedTuple):
    created: float
    completed: float
    created_async: float
    created_on_file: float


def rates_of(inputs: Inputs) -> Rates:
    """Return how many calls of each kind a client makes in a second."""
    made = definitions(inputs)
    with local_queue() as (queue, _):
        created = per_second(lambda: queue.create_task(slugid(), next(made)), 300)
        completed = per_second(lambda: complete(queue), 150)
        created_async = asyncio.run(created_a_second(queue, made))
    with tempfile.TemporaryDirectory() as folder, local_queue("--db", str(Path(folder, "q"))) as (queue, _):
        on_file = per_second(lambda: queue.create_task(slugid(), next(made)), 300)
    return Rates(created, completed, created_async, on_file)


def beside_bare_server() -> Iterator[Row]:
    """The local queue beside a server that executes the same statements; one client calls both."""
    figures = [times_beside(inputs) for inputs in input_sets()]
    against = "aiohttp.web and sqlite3"
    for what, times in zip(
        ("createTask", "claimWork and reportCompleted"), zip(*figures, strict=True), strict=True
    ):
        yield at_most(f"{what}, time", against, max(each.time for each in times), 2)
        yield possible("… processor time of the server", against, max(each.of_server for each in times))


class Beside(NamedTuple):
    """Multiples of the times of the bare server."""

    time: float
    of_server: float


def times_beside(inputs: Inputs) -> tuple[Beside, Beside]:
    made, calls = definitions(inputs), 200
    with (
        local_queue() as (ours, our_server),
        bare_queue() as (root_url, pid),
        Queue(root_url, ours.credentials) as bare,
    ):

        def beside(call: Callable[[Queue], object]) -> Beside:
            return compare_servers(
                partial(call, ours), our_server, partial(call, bare), psutil.Process(pid), calls
            )

        created = beside(lambda queue: queue.create_task(slugid(), next(made)))
        return created, beside(complete)


def compare_servers(
    ours: Callable[[], object],
    our_server: psutil.Process,
    theirs: Callable[[], object],
    their_server: psutil.Process,
    calls: int,
) -> Beside:
    """Let both serve `calls` in turns; return medians of the ratios."""

    def repeated(work: Callable[[], object]) -> None:
        for _ in range(calls):
            work()

    def taken(work: Callable[[], object], server: psutil.Process) -> tuple[float, float]:
        before = server.cpu_times()
        time_taken = seconds(partial(repeated, work))
        after = server.cpu_times()
        return time_taken, after.user + after.system - before.user - before.system

    taken(ours, our_server)
    taken(theirs, their_server)
    pairs = [(taken(ours, our_server), taken(theirs, their_server)) for _ in range(ROUNDS)]
    return Beside(*(statistics.median(a[at] / b[at] for a, b in pairs) for at in (0, 1)))


async def created_a_second(queue: Queue, made: Iterator[TaskDefinition]) -> float:
    """How many tasks one AsyncQueue makes a second, one after the other: the best of several tries."""
    times, took = 300, float("inf")
    async with AsyncQueue(queue.root_url, queue.credentials) as client:
        for _ in range(TRIES):
            started = time.perf_counter()
            for _ in range(times):
                await client.create_task(slugid(), next(made))
            took = min(took, time.perf_counter() - started)
    return times / took


def complete(queue: Queue) -> None:
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    queue.report_completed(claim.status.task_id, claim.run_id)


def waking() -> Iterator[Row]:
    polls: SimpleQueue[str] = SimpleQueue()
    claimed: SimpleQueue[float] = SimpleQueue()

    def wait_for_work(queue: Queue) -> None:
        for number in range(50):
            polls.put(f"w{number}")
            queue.claim_work("prov/wt", worker_group="wg", worker_id=f"w{number}")
            claimed.put(time.perf_counter())

    with local_queue() as (queue, _), Queue(queue.root_url, queue.credentials) as polling:
        thread = threading.Thread(target=wait_for_work, args=(polling,))
        thread.start()
        took: list[float] = []
        for _ in range(50):
            until_seen(queue, polls.get())
            created = time.perf_counter()
            queue.create_task(slugid(), definition())
            took.append(claimed.get() - created)
        thread.join()
        yield at_most("createTask to claim, median ms", "", SECOND * statistics.median(took), 10)


def until_seen(queue: Queue, worker_id: str) -> None:
    """Wait until a worker's claim request has come: the queue notes a worker when it asks for work."""
    while True:
        with suppress(ResourceNotFound):
            queue.get_worker("prov/wt", worker_group="wg", worker_id=worker_id)
            return


def many_pending() -> Iterator[Row]:
    with local_queue() as (queue, process):
        few = filled(queue, 100)
        cost_of_few = claim_cost(queue, few)
        many = filled(queue, MANY)
        ratio = claim_cost(queue, many) / cost_of_few
        yield at_most(f"claim with {MANY} pending tasks", "100 pending tasks", ratio, 1.5)
        yield at_most("resident memory then, MB", "", process.memory_info().rss / 2**20, 300)


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
        while len([worker async for worker in client.iter_workers("prov/wt")]) < len(polls):
            pass  # not all claim requests have come
        asked.set()
        await asyncio.to_thread(done.wait)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)


def rows() -> Iterator[Row]:
    for part in (start, creating_and_claiming, waking, many_waiting, many_pending):
        yield from part()
