"""Compare a simulated fleet with 200 real workers on a local queue: `python -m benchmarks.capacity.reality`.

Four processes have 50 workers each. The requests of two minutes are counted, by kind. Both fleets get the
same tasks at the same times: other random tasks make more of a difference than the simulation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

from taskqueue_client import Queue, TaskRun, WorkerLoop, slugid, task_definition
from taskqueue_client.local import LocalQueue

from . import virtual_time
from .deployment import Deployment
from .fleet import Fleet, Load

LOAD = Load(workers=200, concurrency=2, duration=20.0, poll=10.0)
PROCESSES = 4
CLAIM = 30.0
WARM_UP = 60
MEASURED = 120
AGREES = 0.1
"""The simulation may differ from reality by this part."""

TASK_QUEUE = "capacity/worker"
KINDS = (
    ("claimWork", re.compile(r"POST /api/queue/v1/claim-work/")),
    ("reclaimTask", re.compile(r"POST /api/queue/v1/task/[^/]+/runs/\d+/reclaim ")),
    ("statuses", re.compile(r"POST /api/queue/v1/tasks/status")),
    ("createArtifact", re.compile(r"POST /api/queue/v1/task/[^/]+/runs/\d+/artifacts/")),
    ("report", re.compile(r"POST /api/queue/v1/task/[^/]+/runs/\d+/completed ")),
)


class _Sleeper(WorkerLoop):
    """Works on a task for as long as its payload says."""

    async def run_task(self, task: TaskRun) -> None:
        await asyncio.sleep(task.payload["seconds"])


class _Counter(logging.Handler):
    """Counts the requests in the log of the local queue."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.counts.update(kind for kind, pattern in KINDS if pattern.match(line))


class _Task(NamedTuple):
    """When a task is created, in seconds since the start, and how long its run takes."""

    due: float
    duration: float


@dataclass(frozen=True, kw_only=True)
class _Drawn(Load):
    """A load whose runs take the given durations, one after the other."""

    durations: Iterator[float]

    def sample(self) -> float:
        return next(self.durations)


def main() -> int:
    tasks = [*_draw(WARM_UP + MEASURED)]
    real = _real(tasks)
    simulated = virtual_time.run(partial(_simulated, tasks))
    wrong = 0
    print(f"{'requests of 2 min':<16} {'real':>8} {'simulated':>10} {'difference':>11}")
    for kind, _ in KINDS:
        difference = simulated[kind] / real[kind] - 1
        wrong += abs(difference) > AGREES
        print(f"{kind:<16} {real[kind]:>8} {simulated[kind]:>10} {difference:>11.1%}")
    return wrong


def serve(workers: int) -> None:
    """Run workers in this process until it is killed; the environment names the queue."""
    threads = [
        threading.Thread(target=_sleeper(f"{os.getpid()}-{number}").serve, daemon=True)
        for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _sleeper(worker_id: str) -> _Sleeper:
    return _Sleeper(
        task_queue_id=TASK_QUEUE,
        worker_group="g",
        worker_id=worker_id,
        concurrency=LOAD.concurrency,
        cancellation_poll_interval=LOAD.poll,
    )


def _draw(seconds: float) -> Iterator[_Task]:
    """Yield tasks that become pending at random times."""
    due = 0.0
    while (due := due + random.expovariate(LOAD.tasks_per_second)) < seconds:
        yield _Task(due, LOAD.sample())


def _real(tasks: list[_Task]) -> Counter[str]:
    counter = _Counter()
    logger = logging.getLogger("taskqueue_client.local.requests")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(counter)
    with LocalQueue(claim_timeout=CLAIM) as local, Queue(local.root_url, local.credentials) as queue:
        environment = {
            **os.environ,
            "TASKCLUSTER_ROOT_URL": local.root_url,
            "TASKCLUSTER_CLIENT_ID": local.credentials.client_id,
            "TASKCLUSTER_ACCESS_TOKEN": local.credentials.access_token,
        }
        program = f"from {__spec__.name} import serve; serve({LOAD.workers // PROCESSES})"
        workers = [
            subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(PROCESSES)
        ]
        try:
            begun = time.monotonic()
            _submit(queue, [task for task in tasks if task.due < WARM_UP], begun, begun + WARM_UP)
            before = counter.counts.copy()
            _submit(queue, [task for task in tasks if task.due >= WARM_UP], begun, begun + WARM_UP + MEASURED)
            return counter.counts - before
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def _submit(queue: Queue, tasks: list[_Task], begun: float, end: float) -> None:
    """Create tasks when they are due, and wait for the end."""
    for task in tasks:
        time.sleep(max(begun + task.due - time.monotonic(), 0.0))
        definition = task_definition(
            TASK_QUEUE,
            {"seconds": task.duration},
            name="sleep",
            owner="me@example.com",
            source="https://example.com",
        )
        queue.create_task(slugid(), definition)
    time.sleep(max(end - time.monotonic(), 0.0))


async def _simulated(tasks: list[_Task]) -> Counter[str]:
    load = _Drawn(**asdict(LOAD), durations=iter([task.duration for task in tasks]))
    fleet = Fleet(Deployment(claim_seconds=CLAIM), load)
    fleet.boot(LOAD.workers)
    for task in tasks:
        await asyncio.sleep(task.due - asyncio.get_running_loop().time())
        fleet.deployment.create_tasks()
    await asyncio.sleep(WARM_UP + MEASURED - tasks[-1].due)
    return Counter(
        {
            kind: sum(number for second, number in count.items() if second >= WARM_UP)
            for kind, count in fleet.deployment.requests.items()
        }
    )


if __name__ == "__main__":
    sys.exit(main())
