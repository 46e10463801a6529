"""Workers that poll and workers that call `claimWork` share a task queue while the storage is killed."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from taskqueue_client.legacy import AzureTaskSource
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.messages import Message
from taskqueue_client.worker import TaskRun, WorkerLoop
from taskqueue_client.worker.claims.claiming import QueueTaskSource
from tests.legacy.azurite import Azurite
from tests.worker.queue_world import World

TASKS = int(os.environ.get("TASKQUEUE_TEST_LEGACY_TASKS", "120"))
"""The number of tasks; 2,000 take some minutes."""

WAIT = 60 + TASKS / 5
PRIORITIES = ("lowest", "medium", "highest")


class Record:
    """The runs that the handlers of all workers have had."""

    def __init__(self) -> None:
        self.done: dict[str, Counter[str]] = {"polling": Counter(), "modern": Counter()}
        self.overlaps: list[str] = []
        self.handed_out: Counter[tuple[str, int]] = Counter()
        self._running: defaultdict[str, int] = defaultdict(int)
        self._changed = threading.Condition()

    def handle(self, kind: str, task_id: str) -> None:
        with self._changed:
            self._running[task_id] += 1
            if self._running[task_id] > 1:
                self.overlaps.append(task_id)
        with self._changed:
            self._running[task_id] -= 1
            self.done[kind][task_id] += 1
            self._changed.notify_all()

    def note(self, message: Message) -> None:
        if message.exchange.endswith("task-running"):
            body = message.body
            self.handed_out[body["status"]["taskId"], body["runId"]] += 1

    def total(self, kind: str) -> int:
        return len(self.done[kind])

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT), {kind: self.total(kind) for kind in self.done}


@contextmanager
def working(worker: WorkerLoop) -> Generator[WorkerLoop]:
    """Run a worker in a thread; shut it down after the block, and let it finish its runs."""
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        yield worker
    finally:
        worker.shutdown()
        thread.join(WAIT)
        assert not thread.is_alive()


def worker_of(world: World, task_queue_id: str, record: Record, kind: str, number: int) -> WorkerLoop:
    class Worker(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            record.handle(kind, task.task_id)

    return Worker(
        root_url=world.local.root_url,
        credentials=world.local.credentials,
        task_source=AzureTaskSource if kind == "polling" else QueueTaskSource,
        task_queue_id=task_queue_id,
        worker_group=kind,
        worker_id=f"worker-{number}",
        concurrency=4,
        max_tasks=None if kind == "polling" else TASKS // 5,
    )


@pytest.mark.timeout(4 * WAIT)
def test_no_task_is_lost_and_none_runs_twice_though_the_storage_is_killed(
    own_azurite: Azurite, task_queue_id: str
) -> None:
    record = Record()
    with LocalQueue(legacy_azure=own_azurite.connection_string) as local:
        local.subscribe(record.note)
        world = World(local)
        polling, modern = (
            [worker_of(world, task_queue_id, record, kind, number) for number in range(2)]
            for kind in record.done
        )
        with working(polling[0]), working(polling[1]):
            tasks = [
                world.create(taskQueueId=task_queue_id, priority=PRIORITIES[number % 3])
                for number in range(TASKS // 2)
            ]
            with working(modern[0]):
                record.until(lambda: record.total("polling") >= TASKS // 20)
                own_azurite.kill()
                tasks += [world.create(taskQueueId=task_queue_id) for _ in range(TASKS // 2)]
                record.until(lambda: record.total("modern") == TASKS // 5)
            with working(modern[1]):  # it claims all its tasks while the storage is down
                record.until(lambda: record.total("modern") == TASKS // 5 * 2)
            before = record.total("polling")
            own_azurite.start()
            record.until(lambda: {*tasks} == {*record.done["polling"], *record.done["modern"]})
            assert record.total("polling") >= max(before + 1, TASKS // 5)
        assert record.overlaps == []
        assert record.handed_out == Counter((task_id, 0) for task_id in tasks)
        assert {world.status(task_id).state for task_id in tasks} == {"completed"}
        world.close()
