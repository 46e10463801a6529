"""Pytest fixtures, `run_handler` and `run_worker`, for tests of workers and of programs that call the Queue.

pytest finds the fixtures when the package is installed; no import is needed. `run_handler` needs no queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

import pytest

from ._arguments import mapping
from .definitions import task_definition
from .errors import InvalidArgument

async_fixture: Callable[..., Any] = pytest.fixture
with suppress(ImportError):  # without pytest-asyncio, another plugin handles asynchronous fixtures
    from pytest_asyncio import fixture as async_fixture

if TYPE_CHECKING:
    from taskqueue_client import AsyncQueue, Queue

    from .definitions import TaskDefinition
    from .events import Event
    from .local import LocalQueue, Message
    from .models import TaskStatus
    from .worker import WorkerLoop
    from .worker.handler_testing import TaskResult, run_handler
    from .worker.loop import WorkerSettings
else:

    def __getattr__(name: str) -> Any:
        """Import names that need the whole worker on first use: pytest always loads this module.

        `dir()` does not list them: pytest reads each name that it lists, to find fixtures.
        """
        if name not in {"TaskResult", "run_handler"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(".worker.handler_testing", __package__), name)


__all__ = [
    "TaskFactory", "TaskResult", "TaskRunner", "async_queue", "event_of", "local_queue", "queue",
    "run_handler", "run_worker", "task_factory",
]  # fmt: skip

TaskFactory = Callable[..., "TaskDefinition"]

_TASK_QUEUE_ID = "test-provisioner/test-worker"

_MAX_IDLE = 30.0
"""Seconds without work after which a worker ends: with `max_tasks=2`, the second run may never come."""


class TaskRunner(Protocol):
    """The type of the fixture `run_worker`."""

    def __call__(
        self,
        worker: type[WorkerLoop],
        payload: Mapping[str, Any],
        /,
        *,
        task: Mapping[str, Any] | None = None,
        config_file: str | PathLike[str] | None = None,
        **settings: Unpack[WorkerSettings],
    ) -> TaskResult:
        """Create a task, have a worker run it, and return the result of its last run.

        Args:
            worker: The worker's class.
            payload: The task's payload.
            task: Other keys of the task's definition.
            config_file: A file with settings of the worker, such as those of its `settings_type`.
            **settings: Settings of the worker. By default, it ends after one run, or 30 s without work.

        Raises:
            InvalidArgument: No worker with these arguments would claim the task.
            RuntimeError: The worker ran another task that was pending, or has reported nothing; or an event
                loop runs in this thread: use `await asyncio.to_thread(run_worker, …)` there.
        """
        ...


@pytest.fixture
def local_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalQueue]:
    """A queue in memory, on a free port of this machine and on a clock that the test can move."""
    from ._transport.network import bypassing_proxies  # noqa: PLC0415 - only for tests that need a queue
    from .local import LocalQueue  # noqa: PLC0415 - as above

    with LocalQueue() as local:
        for name, hosts in bypassing_proxies(local.root_url).items():
            monkeypatch.setenv(name, hosts)
        yield local


@pytest.fixture
def queue(local_queue: LocalQueue) -> Iterator[Queue]:
    """A client of the local queue with all scopes."""
    from taskqueue_client import Queue  # noqa: PLC0415 - as above

    with Queue(local_queue.root_url, local_queue.credentials) as client:
        yield client


@async_fixture
async def async_queue(local_queue: LocalQueue) -> AsyncIterator[AsyncQueue]:
    """An asynchronous client of the local queue with all scopes; needs pytest-asyncio or a similar plugin."""
    from taskqueue_client import AsyncQueue  # noqa: PLC0415 - as above

    async with AsyncQueue(local_queue.root_url, local_queue.credentials) as client:
        yield client


def event_of(message: Message) -> Event:
    """Return the event that a listener gets for a message of a local queue, to test a handler of events.

    `local_queue.subscribe(lambda message: events.append(event_of(message)))` needs no broker.
    """
    import msgspec  # noqa: PLC0415 - pytest loads this module each time

    from .events.event import read_event  # noqa: PLC0415 - as above

    body = msgspec.json.encode(message.body)
    headers = {"CC": message.cc}
    return read_event(message.exchange, message.routing_key, body, headers, redelivered=False)


@pytest.fixture
def task_factory(local_queue: LocalQueue) -> TaskFactory:
    """A function that returns a valid task definition; keyword arguments replace or add keys."""

    def make_task(**changes: Any) -> TaskDefinition:
        definition = task_definition(
            _TASK_QUEUE_ID,
            {},
            name="test task",
            description="made by a test",
            owner="tester@example.com",
            source="https://example.com/source",
            created=datetime.fromtimestamp(local_queue.clock.now(), UTC),
            deadline="1 hour",
            expires="1 day",
        )
        return cast("TaskDefinition", {**definition, **changes})

    return make_task


@pytest.fixture
def run_worker(local_queue: LocalQueue, task_factory: TaskFactory) -> Iterator[TaskRunner]:
    """A function that has a worker run one task of the local queue, and returns the result."""
    from taskqueue_client import Queue  # noqa: PLC0415 - as above

    from .slugid import slugid  # noqa: PLC0415 - as above
    from .worker.handler_testing import result_of  # noqa: PLC0415 - as above
    from .worker.threads import current_loop  # noqa: PLC0415 - as above

    client = Queue(local_queue.root_url, local_queue.credentials)  # a project may replace `queue`

    def run(
        worker: type[WorkerLoop],
        payload: Mapping[str, Any],
        /,
        *,
        task: Mapping[str, Any] | None = None,
        config_file: str | PathLike[str] | None = None,
        **settings: Unpack[WorkerSettings],
    ) -> TaskResult:
        if current_loop() is not None:
            how = "in an asynchronous test, use `await asyncio.to_thread(run_worker, …)`"
            raise RuntimeError(f"run_worker blocks until the worker has ended: {how}")
        _check_class(worker)
        used: WorkerSettings = {
            "task_queue_id": (task or {}).get("taskQueueId", _TASK_QUEUE_ID),
            "worker_group": "testing",
            "worker_id": "worker",
            "max_tasks": 1,
            "max_idle": _MAX_IDLE,
            "cancellation_poll_interval": 0.1,
            **settings,
        }
        made = worker if config_file is None else partial(worker, config_file=config_file)
        ready = made(root_url=local_queue.root_url, credentials=local_queue.credentials, **used)
        task_id, served = slugid(), ready.config.task_queue_ids
        keys = {"taskQueueId": served[0], "payload": mapping("payload", payload), **(task or {})}
        _check_claimable(client.create_task(task_id, task_factory(**keys)).status, served)
        ready.serve()
        return result_of(client, task_id)

    with client:
        yield run


def _check_class(worker: object) -> None:
    from .worker import WorkerLoop  # noqa: PLC0415 - as above

    kind = worker if isinstance(worker, type) else object
    if not issubclass(kind, WorkerLoop):
        allowed = "a subclass of WorkerLoop; settings are arguments of run_worker"
        raise InvalidArgument("worker", worker, allowed)


def _check_claimable(status: TaskStatus, served: Sequence[str]) -> None:
    """Raise InvalidArgument for a task that the worker would never claim."""
    if status.task_queue_id not in served:
        allowed = f"a task queue that the worker serves: {', '.join(served)}"
        raise InvalidArgument("task.taskQueueId", status.task_queue_id, allowed)
    if status.state != "pending":
        finding = f"the task is {status.state}"
        raise InvalidArgument(
            "task", status.task_id, "a pending task, without unresolved dependencies", finding
        )
