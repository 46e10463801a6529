"""What the checkpoints of a growing log cost: a run with them beside the same run without them. Linux only.

A command writes 100 MB of a build log. All times are a thirtieth of those of a real worker: the log is
written in 8 s instead of four minutes, the second checkpoint is made 0.3 s after the first instead of 10 s,
and a second earns as much of the budget as 30 s do. So there are as many checkpoints, each as large as it
would be.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.artifacts import write_log
from benchmarks.inputs import TEXT_SIZES
from benchmarks.measure import Row, at_most, folder_in_memory, possible
from benchmarks.sink import received_bytes, running
from benchmarks.worker_queue import canned_queue
from taskqueue_client import Credentials
from taskqueue_client.worker import TaskRun, WorkerLoop
from taskqueue_client.worker.run import log_checkpoints

SIZE = TEXT_SIZES[2]
WRITTEN_IN = 240.0
INTERVAL = 10.0
FASTER = 30.0
ROUNDS = 2

_WRITER = """
import sys, time
file, seconds, pieces = open(sys.argv[1], "rb"), float(sys.argv[2]), 200
size = file.seek(0, 2) // pieces + 1
file.seek(0)
began = time.monotonic()
for number in range(pieces):
    sys.stdout.buffer.write(file.read(size))
    sys.stdout.buffer.flush()
    time.sleep(max(began + seconds * (number + 1) / pieces - time.monotonic(), 0))
"""


class Cost(NamedTuple):
    """The cost of a run.

    Attributes:
        sent: Bytes that storage received.
        cpu: Seconds of processor time of the worker, without that of the command.
        wall: Seconds from the end of the handler to the end of the run.
    """

    sent: int
    cpu: float
    wall: float


class Writing(WorkerLoop):
    """Writes a file to the log.

    Attributes:
        file: The file.
        seconds: How long the command writes.
        written: When the handler ended.
    """

    file = ""
    seconds = 0.0
    written = 0.0

    def run_task(self, task: TaskRun) -> None:
        task.run_command([sys.executable, "-c", _WRITER, self.file, str(self.seconds)])
        self.written = time.perf_counter()


def cost(file: Path, interval: float, faster: float = FASTER) -> Cost:
    """Return the cost of a run in a fresh process, in which all times are `faster` times shorter."""
    with running() as storage, canned_queue(storage=storage) as root_url:
        arguments = [root_url, str(file), str(interval), str(faster)]
        command = [sys.executable, "-m", "benchmarks.checkpoints", *arguments]
        cpu, wall = json.loads(subprocess.check_output(command))
        return Cost(received_bytes(storage), cpu, wall)


def rows() -> Iterator[Row]:
    """Compare runs with and without checkpoints, which take turns."""
    with folder_in_memory(3 * SIZE) as folder:
        file = folder / "log"
        write_log(file, SIZE)
        pairs = [(cost(file, INTERVAL), cost(file, 0)) for _ in range(ROUNDS)]
    what, against = "a log of 100 MB in four minutes with checkpoints", "without checkpoints"
    sent, cpu, wall = (
        statistics.median(ours[at] / theirs[at] for ours, theirs in pairs) for at in range(len(Cost._fields))
    )
    yield at_most(f"{what}, bytes sent", against, sent, 1.3)
    yield at_most("… processor time of the worker", against, cpu, 1.3)
    yield at_most("… time from the handler's end to the report", against, wall, 1.3)
    without = statistics.median(theirs.cpu for _, theirs in pairs)
    yield possible("… processor time without checkpoints, s", "", without)


def run(root_url: str, file: str, interval: str, faster: str) -> None:
    """Run a worker for one run; print its processor time, and the time from the handler's end."""
    log_checkpoints.PACE *= float(faster)
    earliest, latest = log_checkpoints.FIRST_BETWEEN
    log_checkpoints.FIRST_BETWEEN = earliest / float(faster), latest / float(faster)
    logging.disable(logging.CRITICAL)
    worker = Writing(
        root_url=root_url,
        credentials=Credentials("benchmark", "none"),
        task_queue_id="prov/wt",
        worker_group="wg",
        worker_id="w1",
        max_tasks=1,
        log_checkpoint_interval=float(interval) / float(faster),
    )
    worker.file, worker.seconds = file, WRITTEN_IN / float(faster)
    before = time.process_time()
    worker.serve()
    print(json.dumps([time.process_time() - before, time.perf_counter() - worker.written]))


if __name__ == "__main__":
    run(*sys.argv[1:])
