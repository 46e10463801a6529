"""How many files of the package an operation crosses, and how often it changes from one file to another.

`python -m benchmarks.files_crossed upload|create|run|serve` traces every call of a function of the package by
`sys.setprofile`: an upload, a `createTask` of the client, one run of a worker, a `createTask` that the local
queue serves. `--changes` lists the changes of file as well, the most frequent ones first.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import taskqueue_client
from taskqueue_client import Queue, TaskRun, WorkerLoop, slugid
from taskqueue_client.definitions import task_definition
from taskqueue_client.local import LocalQueue

PACKAGE = str(Path(taskqueue_client.__file__).parent)

IDENTITY: dict[str, Any] = {"task_queue_id": "prov/wt", "worker_group": "wg", "worker_id": "w1"}


class Crossed(NamedTuple):
    """The files, in the order of their first call, and how often the next call is in another file."""

    files: list[str]
    changes: Counter[tuple[str, str]]


class Trace:
    """Counts the files whose functions are called from `begin` to `end`, separately for each thread.

    Threads that exist before `start` are not traced.
    """

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._counts = False
        self._found = Crossed([], Counter())

    def start(self) -> None:
        threading.setprofile(self)

    def begin(self) -> None:
        self._last.clear()
        self._found = Crossed([], Counter())
        self._counts = True

    def end(self) -> Crossed:
        self._counts = False
        threading.setprofile(None)
        return self._found

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if not self._counts or event != "call" or not path.startswith(PACKAGE):
            return
        file, thread = path.removeprefix(f"{PACKAGE}/"), threading.get_ident()
        if (last := self._last.get(thread, "")) != file:
            self._found.changes[last, file] += 1
        self._last[thread] = file
        if file not in self._found.files:
            self._found.files.append(file)


def crossed(operation: Callable[[], object]) -> Crossed:
    """Trace an operation in this thread, and in those that it starts."""
    trace = Trace()
    trace.start()
    sys.setprofile(trace)
    trace.begin()
    try:
        operation()
    finally:
        sys.setprofile(None)
        found = trace.end()
    return found


def upload(local: LocalQueue) -> Crossed:
    """Upload 1 kB of text to S3."""
    with Queue(local.root_url, local.credentials) as queue:
        task_id = _created(queue)
        queue.claim_work("prov/wt", worker_group="wg", worker_id="w1", tasks=1)
        content, expires = b"one line of a log\n" * 57, "2099-01-01T00:00:00.000Z"
        task_expires = queue.task(task_id)["expires"]

        def operation() -> None:
            queue.upload_artifact(
                task_id, 0, "public/x.log", content, expires=expires, task_expires=task_expires
            )

        operation()  # imports what is imported at first use
        return crossed(operation)


def create(local: LocalQueue) -> Crossed:
    """Create a task without dependencies."""
    with Queue(local.root_url, local.credentials) as queue:
        _created(queue)
        return crossed(lambda: _created(queue))


def run(local: LocalQueue) -> Crossed:
    """Run a task with one artifact: from the start of its handler to that of the next one."""
    trace, found = Trace(), list[Crossed]()

    class OneArtifact(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            if task.payload == {"number": 1}:
                trace.begin()
            elif task.payload == {"number": 2}:
                found.append(trace.end())
            task.upload_artifact("public/x.log", text="one line of a log\n" * 57)

    with Queue(local.root_url, local.credentials) as queue:
        for number in range(3):
            _created(queue, {"number": number})
    trace.start()
    worker = OneArtifact(root_url=local.root_url, credentials=local.credentials, max_tasks=3, **IDENTITY)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    thread.join()
    return found[0]


def serve(local: LocalQueue) -> Crossed:
    """Create a task without dependencies in the local queue: from the request to the response."""
    del local
    trace = Trace()
    trace.start()
    with LocalQueue() as traced, Queue(traced.root_url, traced.credentials) as queue:
        for _ in range(2):
            trace.begin()
            _created(queue)
        return trace.end()


def _created(queue: Queue, payload: dict[str, Any] | None = None) -> str:
    task_id = slugid()
    definition = task_definition("prov/wt", payload or {}, name="n", owner="o", source="https://example.com")
    queue.create_task(task_id, definition)
    return task_id


OPERATIONS = {each.__name__: each for each in (upload, create, run, serve)}


def main(name: str = "upload", *options: str) -> None:
    with LocalQueue() as local:
        found = OPERATIONS[name](local)
    print(*found.files, sep="\n")
    if "--changes" in options:
        print(*(f"{count:4} {' -> '.join(pair)}" for pair, count in found.changes.most_common()), sep="\n")
    print(f"{len(found.files)} files, {found.changes.total()} changes of file")


if __name__ == "__main__":
    main(*sys.argv[1:])
