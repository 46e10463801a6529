"""How costs grow with the number of threads, runs, pending tasks and artifacts: each gives one plot."""

from __future__ import annotations

import logging
import sqlite3
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.canned import canned_server
from benchmarks.local_queue import WORKER, local_queue
from benchmarks.measure import ROUNDS, Row, folder_in_memory, growth, processor_seconds, seconds
from benchmarks.sink import FAR_FUTURE, SLUGID, running
from benchmarks.worker import CREDENTIALS, NoOp, serve
from benchmarks.worker_queue import canned_queue
from taskqueue_client import Queue, slugid
from taskqueue_client.definitions import TaskDefinition, task_definition

PENDING = (100, 1_000, 10_000, 100_000, 1_000_000)
QUEUES = 50
"""The number of task queues with the pending tasks, and of measured claims: one in each."""


def calls_by_threads() -> Iterator[Row]:
    calls = 1600
    with canned_server() as root_url, Queue(root_url, CREDENTIALS) as queue:

        def cost(threads: int) -> float:
            with ThreadPoolExecutor(threads) as pool:

                def work() -> None:
                    list(pool.map(queue.status, [SLUGID] * calls))

                work()  # opens the connections
                return 1e6 * statistics.median(processor_seconds(work) for _ in range(ROUNDS)) / calls

        points = [(threads, cost(threads)) for threads in (1, 2, 4, 8, 16, 32)]
    yield growth("processor time of a call, µs", "threads with one Queue", points, 0.2)


def runs_by_concurrency() -> Iterator[Row]:
    logging.disable(logging.CRITICAL)
    tasks = 300
    with canned_queue() as root_url:

        def cost(concurrency: int) -> float:
            work = partial(serve, NoOp, root_url, concurrency=concurrency, max_tasks=tasks)
            return 1000 * statistics.median(processor_seconds(work) for _ in range(ROUNDS)) / tasks

        points = [(concurrency, cost(concurrency)) for concurrency in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    yield growth("processor time of a no-op run, ms", "runs at a time", points, 0.1)


def claims_by_pending_tasks() -> Iterator[Row]:
    with folder_in_memory(2 * 2**30) as folder:
        file = folder / "queue.db"
        names = [f"prov/wt{number}" for number in range(QUEUES)]
        with local_queue("--db", str(file)) as (queue, _):
            for name in names:
                queue.create_task(slugid(), _small(name))
        points = [(pending, 1000 * _claim_cost(file, names, pending)) for pending in PENDING]
    yield growth("claim of a task, ms", "pending tasks, in 50 task queues", points, 0.1)


def _small(task_queue_id: str) -> TaskDefinition:
    return task_definition(task_queue_id, {}, name="n", owner="o", source="https://example.com")


def _claim_cost(file: Path, names: list[str], pending: int) -> float:
    _fill(file, pending)
    with local_queue("--db", str(file)) as (queue, _):
        queue.ping()  # opens the connection
        return statistics.median(seconds(partial(queue.claim_work, name, **WORKER)) for name in names)


def _fill(file: Path, pending: int) -> None:
    """Copy pending tasks until there are `pending`. The API, with 1,000 a second, would take too long."""
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA synchronous = OFF")
        (there,) = database.execute("SELECT count(*) FROM pending").fetchone()
        database.execute("CREATE TEMP TABLE copies (number INTEGER PRIMARY KEY, copy TEXT)")
        database.executemany(
            "INSERT INTO copies (copy) VALUES (?)", ((slugid(),) for _ in range(pending - there))
        )
        database.execute(
            "CREATE TEMP TABLE originals AS SELECT row_number() OVER () - 1 AS number, "
            "min(task_id) AS task_id FROM pending GROUP BY task_queue_id"
        )
        for table, column in (("tasks", "sort_key"), ("pending", "seq")):
            _copy(database, table, column)
    database.close()


def _copy(database: sqlite3.Connection, table: str, own: str) -> None:
    """Copy rows of tasks that are pending in turn, with a new task id; `own` is the other new column."""
    columns = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
    values = {"task_id": "copy", own: "copy" if own == "sort_key" else "NULL"}
    chosen = ", ".join(values.get(name, f"original.{name}") for name in columns)
    database.execute(
        f"INSERT INTO {table} SELECT {chosen} FROM copies JOIN originals ON originals.number = "
        f"copies.number % {QUEUES} JOIN {table} AS original ON original.task_id = originals.task_id"
    )


def uploads_by_artifacts() -> Iterator[Row]:
    with running() as root_url, Queue(root_url, CREDENTIALS) as queue:

        def cost(artifacts: int) -> float:
            contents = {f"public/{number}.bin": b"x" * 1000 for number in range(artifacts)}
            work = partial(queue.upload_artifacts, SLUGID, 0, contents, expires=FAR_FUTURE)
            times = max(1, min(30, 3_000 // artifacts))
            return 1000 * statistics.median(seconds(work) for _ in range(times)) / artifacts

        cost(100)  # opens the connections
        points = [(artifacts, cost(artifacts)) for artifacts in (1, 10, 100, 1_000, 10_000)]
    yield growth("upload of an artifact of 1 kB, ms", "artifacts of a run", points, 0.1)
