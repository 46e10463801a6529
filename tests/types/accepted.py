"""Programs of users, with the types that the type checkers must infer. Checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from datetime import datetime
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, assert_type

import aiohttp
import requests

from taskqueue_client import (
    AsyncQueue,
    Credentials,
    Queue,
    RetryPolicy,
    calls,
    follow_group,
    follow_group_async,
    missing_scopes,
    slugid,
)
from taskqueue_client.definitions import TaskDefinition, TaskOptions, from_now, task_definition
from taskqueue_client.models import (
    Artifact,
    ClaimWorkResponse,
    ReasonResolved,
    TaskAndStatus,
    TaskClaim,
    TaskState,
    TaskStatus,
    TaskStatusResponse,
)
from taskqueue_client.testing import TaskResult, TaskRunner, run_handler
from taskqueue_client.worker import Command, CommandResult, TaskEnd, TaskRun, WorkerArguments, WorkerLoop

W = TypeVar("W", bound=WorkerLoop)

written_by_hand: TaskDefinition = {
    "taskQueueId": "p/w",
    "created": from_now("0 seconds"),
    "deadline": from_now("2 hours 30 minutes"),
    "payload": {"anything": ["at", {"all": 1}]},
    "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
}


def blocking(queue: Queue) -> None:
    assert_type(queue.create_task(slugid(), written_by_hand), TaskStatusResponse)
    made = task_definition("p/w", {}, name="n", owner="o", source="https://example.com")
    assert_type(queue.create_task(slugid(), made).status, TaskStatus)
    claims = queue.claim_work("p/w", worker_group="g", worker_id="w", tasks=4)
    assert_type(claims, ClaimWorkResponse)
    for claim in claims.tasks:
        assert_type(claim, TaskClaim)
        assert_type(claim.taken_until, datetime)
        assert_type(claim.task, dict[str, Any])
        assert_type(claim.credentials, Credentials)
        assert_type(claim.status.state, TaskState)
        queue.credentials = claim.credentials
    assert_type(queue.iter_artifacts("t", 0), Iterator[Artifact])
    assert_type(queue.task("t"), dict[str, Any])
    assert_type(queue.with_options(attempts=1, timeout=5.0), Queue)
    assert_type(queue.signed_url(calls.status("t")), str)
    queue.report_exception("t", 0, "internal-error")
    queue.report_exception("t", 0, ReasonResolved.INTERNAL_ERROR)
    assert_type(queue.finish_artifact("t", 0, "n", upload_id="u"), None)
    assert_type(queue.upload_artifact("t", 0, "n", b"content", expires="1 day").expires, datetime)
    assert_type(missing_scopes(set(queue.current_scopes().scopes), {"assume:role"}), list[str])
    with closing(queue.stream_artifact("t", "n")) as blocks, closing(follow_group(queue, "g")) as changes:
        assert_type(next(blocks), bytes)
        assert_type(next(changes), list[TaskAndStatus])


async def awaited() -> None:
    async with (
        aiohttp.ClientSession() as session,
        AsyncQueue("https://tc.example.com", session=session, retry=RetryPolicy(attempts=3)) as queue,
    ):
        assert_type(await queue.create_task(slugid(), written_by_hand), TaskStatusResponse)
        running = asyncio.create_task(queue.claim_work("p/w", worker_group="g", worker_id="w"))
        assert_type(await running, ClaimWorkResponse)
        async with aclosing(follow_group_async(queue, "g")) as changes:
            assert_type(await anext(changes), list[TaskAndStatus])
        assert_type(queue.iter_artifacts("t", 0), AsyncIterator[Artifact])


class Payload(TypedDict):
    """The payload of the worker's tasks."""

    command: list[str]


def typed_payloads(run_worker: TaskRunner, payload: Payload, options: TaskOptions) -> None:
    assert_type(
        task_definition("p/w", payload, name="n", owner="o", source="https://example.com", **options),
        TaskDefinition,
    )
    assert_type(run_handler(Regional, payload, **options), TaskResult)
    assert_type(run_worker(Regional, payload, task=options), TaskResult)


class CreatesTasks(Protocol):
    """The part of a client that a program uses to submit tasks."""

    def create_task(self, task_id: str, definition: TaskDefinition) -> TaskStatusResponse: ...


class AsyncCreatesTasks(Protocol):
    """The same interface of an asynchronous client."""

    async def create_task(self, task_id: str, definition: TaskDefinition) -> TaskStatusResponse: ...


def submit(client: CreatesTasks, async_client: AsyncCreatesTasks) -> None: ...


submit(Queue.from_env(), AsyncQueue.from_env())


class RunsCommands(Protocol):
    """The part of a `TaskRun` that an asynchronous handler uses."""

    async def run_command_async(self, command: Command, *, proxy: bool = False) -> CommandResult: ...


async def build(run: RunsCommands) -> None:
    await run.run_command_async(["make"])


class Building(WorkerLoop):
    """Passes its runs to functions that know only protocols."""

    async def run_task(self, task: TaskRun) -> None:
        await build(task)


Queue("https://tc.example.com", Credentials("id", "token"), session=requests.Session())


class Regional(WorkerLoop):
    """A worker with an additional argument."""

    def __init__(self, region: str, **arguments: Unpack[WorkerArguments]) -> None:
        super().__init__(**arguments)
        self.region = region

    def run_task(self, task: TaskRun) -> None:
        task.log.info("in %s", self.region)


Regional("here", concurrency=4, max_idle="10 minutes", root_url="https://tc.example.com").serve()


def logged(handler: Callable[[W, TaskRun], None]) -> Callable[[W, TaskRun], None]:
    """A decorator of handlers."""
    return handler


class Decorated(WorkerLoop):
    """A worker whose methods are decorated, or have other argument names than those of the base class."""

    @logged
    def run_task(self, task: TaskRun) -> None:
        task.log.info("decorated")

    def on_task_end(self, ended: TaskEnd) -> None:
        assert ended.task_id

    def run_time_limit(self, run: TaskRun) -> str:
        return f"{len(run.scopes)} minutes"


class Recording(Queue):
    """Endpoints can be overridden like any method."""

    def create_task(self, task_id: str, definition: TaskDefinition) -> TaskStatusResponse:
        assert task_id
        return super().create_task(task_id, definition)


class AsyncRecording(AsyncQueue):
    """Endpoints of the asynchronous client can be overridden, too."""

    async def create_task(self, task_id: str, definition: TaskDefinition) -> TaskStatusResponse:
        assert task_id
        return await super().create_task(task_id, definition)
