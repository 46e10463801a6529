"""Workers in a thread of the test, and the artifacts and logs of their runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

import requests

from taskqueue_client.worker.loop import WorkerLoop, WorkerSettings
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until

Handler = Callable[[TaskRun], Any]
AsyncHandler = Callable[[TaskRun], Coroutine[Any, Any, None]]


def worker_for(
    world: World,
    handler: Handler | None = None,
    *,
    awaited: AsyncHandler | None = None,
    schema: Mapping[str, Any] | None = None,
    root_url: str | None = None,
    **settings: Unpack[WorkerSettings],
) -> WorkerLoop:
    """Return a worker with a plain or an asynchronous handler, which polls for canceled runs every 0.1 s.

    The worker uploads logs only at the end, so that a run makes the same requests however long it takes.
    """

    class Blocking(WorkerLoop):
        payload_schema = schema

        def run_task(self, task: TaskRun) -> None:
            assert handler is not None
            handler(task)

    class Awaiting(WorkerLoop):
        payload_schema = schema

        async def run_task(self, task: TaskRun) -> None:
            assert awaited is not None
            await awaited(task)

    settings = {
        "task_queue_id": TASK_QUEUE_ID,
        "worker_group": "group",
        "worker_id": "worker",
        "cancellation_poll_interval": 0.1,
        "termination_grace": 1.0,
        "log_checkpoint_interval": 0,
        **settings,
    }
    kind = Blocking if awaited is None else Awaiting
    return kind(root_url=root_url or world.local.root_url, credentials=world.local.credentials, **settings)


class Stuck:
    """A handler that ignores requests to stop, and returns only at the end of the `with` block."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self._let_go = threading.Event()

    def __call__(self, task: TaskRun) -> None:
        del task
        self.started.set()
        self._let_go.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()


class Working:
    """Serves a worker in a thread; at the end, shuts it down, and ends its claim request early."""

    def __init__(self, world: World, worker: WorkerLoop) -> None:
        self._world = world
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="worker under test")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.worker.shutdown()
            until(self.has_ended)
        self.wait_for_end()

    def has_ended(self) -> bool:
        """End a claim request that waits for work; return whether the worker has ended 0.1 s later."""
        self._world.local.clock.advance(seconds=21)
        self._thread.join(0.1)
        return not self._thread.is_alive()

    def is_alive(self, within: float) -> bool:
        """Return whether the worker still serves after some seconds."""
        self._thread.join(within)
        return self._thread.is_alive()

    def wait_for_end(self) -> None:
        """Wait until the worker has ended; raise its error, if any."""
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _serve(self) -> None:
        try:
            self.worker.serve()
        except BaseException as error:  # noqa: BLE001 - the test gets it
            self.error = error


def work(
    world: World,
    handler: Handler | None = None,
    *,
    awaited: AsyncHandler | None = None,
    schema: Mapping[str, Any] | None = None,
    **settings: Unpack[WorkerSettings],
) -> None:
    """Run a worker until it has worked on `max_tasks` tasks, by default one."""
    settings = {"max_tasks": 1, **settings}
    with Working(world, worker_for(world, handler, awaited=awaited, schema=schema, **settings)) as working:
        working.wait_for_end()


def artifact(world: World, task_id: str, name: str, run_id: int = 0) -> str:
    """Return the content of an artifact as text."""
    found = world.queue.artifact(task_id, run_id, name)
    url: Any = getattr(found, "url")  # noqa: B009 - of the kinds that have one
    response = requests.get(url, timeout=WAIT)
    response.raise_for_status()
    return response.text


def log_of(world: World, task_id: str, run_id: int = 0) -> str:
    """Return the task's log, to which its link leads."""
    return artifact(world, task_id, "public/logs/live.log", run_id)


def artifact_names(world: World, task_id: str, run_id: int = 0) -> set[str]:
    return {each.name for each in world.queue.iter_artifacts(task_id, run_id)}


def serve_one(world: World, kind: type[WorkerLoop], **settings: Any) -> None:
    """Run a worker of a class for one task."""
    kind(
        root_url=world.local.root_url,
        credentials=world.local.credentials,
        task_queue_id=TASK_QUEUE_ID,
        worker_group="group",
        worker_id="worker",
        max_tasks=1,
        **settings,
    ).serve()
