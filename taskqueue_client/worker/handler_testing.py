"""One call of a worker's handler without a queue, for tests of the handler.

Everything but the Queue is real: the check of the payload, the handler's thread or event loop, its work
directory, its commands and its log. Artifacts are read instead of uploaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

import msgspec

from taskqueue_client._arguments import check_kind
from taskqueue_client._dates import timestamp
from taskqueue_client._protocol.retry import RetryPolicy
from taskqueue_client._protocol.schemas import check_definition
from taskqueue_client.artifacts.artifact_errors import StorageRefused
from taskqueue_client.artifacts.content import LOG_NAME
from taskqueue_client.client import Queue
from taskqueue_client.credentials import Credentials
from taskqueue_client.definitions import (
    TaskOptions,
    _as_stored,  # pyright: ignore[reportPrivateUsage] # what only the Queue does otherwise
    task_definition,
)
from taskqueue_client.errors import InvalidArgument, ResourceNotFound
from taskqueue_client.models import ReasonResolved, StorageType, TaskClaim, TaskState
from taskqueue_client.slugid import slugid

from .claims.claimed_run import ClaimedRun, Lease
from .commands.environment import CommandEnvironment
from .commands.masking import Secrets
from .commands.run_processes import Guardian
from .commands.task_log import TaskLog
from .commands.work_directory import WorkDirectories
from .loop import WorkerLoop, check_has_settings
from .outcomes import LOST, UPLOADED_BEFORE, Outcome, resolution_of
from .payload import current_schema
from .run.declared_artifacts import DeclaredArtifact, outcome_of_failed_upload, with_failed_upload, worst
from .run.handlers import Attempts, Handlers
from .run.lifecycle import explain
from .run.run_resources import HandlerQueue, RunResources, SharedResources
from .threads import EventThread, ThreadsafeCalls, check_not_patched
from .tracing import NO_TRACING
from .worker_log import log

CREDENTIALS = Credentials("testing", "not-a-secret-access-token")

_LEASE = 1200.0

_SHOWN = 20_000  # characters of a log that a test that fails shows, from its end


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task in a test.

    Attributes:
        task_id: The task.
        outcome: How its run ended, as in `reasonResolved`: `completed`, `failed`, `malformed-payload`, …
        artifacts: The content of its artifacts by name, without the log, and without failed uploads.
        log: The text of its log.
        error: What the handler raised, or the failed upload that counts instead; None if there was none, and
            for a task of a queue, which does not know the error.
    """

    task_id: str
    outcome: str
    artifacts: dict[str, bytes] = field(repr=False)
    log: str = field(repr=False)
    error: BaseException | None = None


def run_handler(
    worker: WorkerLoop | type[WorkerLoop], payload: Mapping[str, Any], **options: Unpack[TaskOptions]
) -> TaskResult:
    """Call a worker's handler for a task that is in no queue, and return how the run would end.

    Payload and definition are checked as for a real run. `on_start` is called first, and `on_stop` last. The
    handler is called once, also if it raises `IntermittentTask`, and its time is limited as in a real run.
    Artifacts are read and not uploaded. Downloads, and calls that the handler makes with `task.queue`, go to
    the worker's deployment, with the worker's own credentials, and are not retried. If `worker` is a class,
    there is no deployment: downloads and calls end the run as `internal-error`.

    Args:
        worker: A worker with its settings, or its class, which gets its settings from the environment and a
            name for tests.
        payload: The task's payload.
        **options: Other keys of the task's definition, such as `scopes` or `extra`.

    Raises:
        InvalidArgument: The definition is one that the Queue would refuse, `worker` is not a worker, or its
            `work_directory` cannot be used.
        RuntimeError: The `__init__` of the worker's class has not called that of `WorkerLoop`, or gevent or
            eventlet has patched the program.
        Exception: `on_start` or `on_stop` raised it.
    """
    _check_worker(worker)
    check_kind("payload", payload, Mapping, "a dict")
    if isinstance(worker, type):
        worker = worker(
            root_url="http://127.0.0.1:9/run_handler-has-no-queue",  # nobody listens; errors have the URL
            task_queue_id="testing/handler",
            worker_group="testing",
            worker_id="handler",
        )
    check_not_patched()
    check_has_settings(worker)
    claim = _claim(worker, dict(payload), options)
    worker.on_start()
    try:
        with ExitStack() as stack:
            return _run(worker, claim, stack)
    finally:
        worker.on_stop()


def _check_worker(worker: object) -> None:
    kind = worker if isinstance(worker, type) else type(worker)
    if not issubclass(kind, WorkerLoop):
        raise InvalidArgument("worker", worker, "a subclass of WorkerLoop, or an instance of one")


def _claim(worker: WorkerLoop, payload: dict[str, Any], options: TaskOptions) -> TaskClaim:
    """Return a claim of a new task, as the Queue would send it."""
    config, now = worker.config, datetime.fromtimestamp(worker.clock.now(), UTC)
    definition = task_definition(
        config.task_queue_ids[0],
        payload,
        name="test",
        owner="test@example.com",
        source="https://example.com/test",
        created=now,
        **options,
    )
    task_id = slugid()
    task = _as_stored(msgspec.json.decode(check_definition(definition, now.timestamp())), task_id)
    started = timestamp(now)  # as text: a library that freezes time replaces `datetime` by another class
    run = {"runId": 0, "reasonCreated": "scheduled", "scheduled": started, "started": started}
    running = {"taskId": task_id, "state": "running", "retriesLeft": task["retries"]}
    claim = {
        "status": {**task, **running, "runs": [{**run, "state": "running"}]},
        "runId": 0,
        "workerGroup": config.worker_group,
        "workerId": config.worker_id,
        "takenUntil": timestamp(now + timedelta(seconds=_LEASE)),
        "task": task,
        "credentials": msgspec.to_builtins(worker.credentials or CREDENTIALS),
    }
    return msgspec.json.decode(msgspec.json.encode(claim), type=TaskClaim)


def _run(worker: WorkerLoop, claim: TaskClaim, stack: ExitStack) -> TaskResult:
    shared = _shared(worker, stack)
    lease = Lease(_LEASE, worker.clock.monotonic() + _LEASE)
    resources = RunResources(ClaimedRun(claim, lease, shared.async_queue), shared)
    stack.enter_context(closing(resources))
    thread = EventThread("handler under test")
    stack.callback(thread.stop)
    error = thread.submit(_call(worker, resources)).result()
    explain(resources.log, error)
    reason = resolution_of(error)
    uploaded = () if reason is None else resources.artifacts.final()
    artifacts, failure = _contents(uploaded, resources.log)
    if reason in UPLOADED_BEFORE:
        after_uploads = with_failed_upload(error, failure)
        if after_uploads is not error:
            error, reason = after_uploads, resolution_of(after_uploads)
            explain(resources.log, error)
    with closing(resources.log.finished()) as log:
        text = log.read().decode(errors="replace")
    outcome = reason.value if reason else LOST
    return _logged(TaskResult(claim.status.task_id, outcome, artifacts, text, error))


def _logged(result: TaskResult) -> TaskResult:
    """Log why a task was not completed: pytest shows logged lines if the test fails, but not `result.log`."""
    if result.outcome != ReasonResolved.COMPLETED:
        log.warning("task %s ended: %s; its log:\n%s", result.task_id, result.outcome, result.log[-_SHOWN:])
    return result


def _shared(worker: WorkerLoop, stack: ExitStack) -> SharedResources:
    config, once = worker.config, RetryPolicy(attempts=1)
    directories = stack.enter_context(WorkDirectories(config.work_directory))
    return SharedResources(
        config=replace(config, intermittent_attempts=1),
        directories=directories,
        guardian=stack.enter_context(closing(Guardian(f"{directories.path}/"))),
        queue=stack.enter_context(Queue(worker.root_url, retry=once, clock=worker.clock)),
        async_queue=HandlerQueue(worker.root_url, retry=once, clock=worker.clock),
        clock=worker.clock,
        environment=CommandEnvironment(config.pass_environment),
        secrets=Secrets(),
        live_logs=None,
        tracing=NO_TRACING,
        schema=current_schema(worker.payload_schema, worker.checked_schema),
        run_time_limit=worker.run_time_limit,
        download_attempts=once.attempts,
    )


async def _call(worker: WorkerLoop, resources: RunResources) -> BaseException | None:
    """Check the payload and call the handler once; return what it raised."""
    calls = ThreadsafeCalls(asyncio.get_running_loop())
    queue, capture = resources.shared.async_queue, worker.config.capture_logging
    async with Handlers(worker.run_task, queue, calls, capture_logging=capture) as handlers:
        return await Attempts(resources, handlers.call).result()


def _contents(
    declared: Iterable[DeclaredArtifact], task_log: TaskLog
) -> tuple[dict[str, bytes], Outcome | None]:
    """Return the content of artifacts by name, and the outcome if some cannot be read, else None."""
    contents: dict[str, bytes] = {}
    failures: list[Outcome] = []
    for each in declared:
        try:
            with closing(each.open()) as source:
                contents[each.name] = b"".join(map(bytes, source.blocks()))
        except Exception as error:  # noqa: BLE001 - the error is how the run ends
            task_log.logger.error("cannot upload %s: %s", each.name, error)  # noqa: TRY400 - as a worker does
            failures.append(outcome_of_failed_upload(each.name, error))
    return contents, worst(failures)


def _content(queue: Queue, task_id: str, run_id: int, name: str) -> bytes | None:
    """Return the content of an artifact; None if its upload has failed."""
    try:
        return queue.download_artifact(task_id, name, run_id=run_id).content or b""
    except (ResourceNotFound, StorageRefused) as error:
        if isinstance(error, StorageRefused) and not error.is_absence:
            raise
        return None


def result_of(queue: Queue, task_id: str) -> TaskResult:
    """Return the result of a task's last resolved run, from a local queue whose worker has ended.

    Raises:
        RuntimeError: No run of the task is resolved.
    """
    status = queue.status(task_id).status
    resolved = [each for each in status.runs if each.reason_resolved is not None]
    if not resolved:
        reason = "the worker has reported nothing"
        if status.state is TaskState.PENDING:
            reason = f"the worker ran another task of {status.task_queue_id}, which was pending before"
        raise RuntimeError(f"task {task_id} is still {status.state}: {reason}")
    run = resolved[-1]
    contents: dict[str, bytes] = {}
    for each in queue.iter_artifacts(task_id, run.run_id):
        if each.storage_type in {StorageType.S3, StorageType.OBJECT}:
            content = _content(queue, task_id, run.run_id, each.name)
            if content is not None:
                contents[each.name] = content
    text = contents.pop(LOG_NAME, b"").decode(errors="replace")
    return _logged(TaskResult(task_id, str(run.reason_resolved), contents, text))
