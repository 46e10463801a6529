"""`run_handler` ends like a run of a queue: outcome, artifacts and log; and the fixture `run_worker`."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import product
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock, create_autospec

import pytest

from taskqueue_client import (
    ClaimLost,
    Credentials,
    IntermittentTask,
    InternalError,
    LocalQueue,
    Queue,
    ReasonResolved,
    TaskFailed,
    TaskRun,
    TaskState,
    WorkerLoop,
    slugid,
    testing,
)
from taskqueue_client.artifacts import StorageRefused
from taskqueue_client.errors import ConnectionFailed, InvalidArgument
from taskqueue_client.local.faults import Drop, Respond
from taskqueue_client.testing import TaskFactory, TaskResult, TaskRunner, run_handler
from taskqueue_client.worker import handler_testing
from taskqueue_client.worker.commands.command import CommandResult
from taskqueue_client.worker.run import handlers
from taskqueue_client.worker.threads import EventThread

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}


class Greeter(WorkerLoop):
    """Greets the name in the payload; some names lead to failures."""

    payload_schema = SCHEMA

    def run_task(self, task: TaskRun) -> None:
        name = task.payload["name"]
        task.log.info("greeting %s", name)
        (task.work_directory / "greeting").write_text(f"Hello {name}\n")
        task.upload_artifact("public/file.txt", "greeting")
        task.upload_artifact("public/large.txt", text="x" * 100_000)
        task.run_command(["false" if name == "nobody" else "true"])
        if name == "missing":
            task.upload_artifact("public/missing.txt", "nowhere")
        if name == "missing and no retry":
            task.upload_artifact("public/missing.txt", "nowhere")
            raise IntermittentTask
        if name == "../up":
            task.upload_artifact("public/up.txt", name)


class AsyncGreeter(Greeter):
    """The same as a coroutine."""

    async def run_task(self, task: TaskRun) -> None:  # type: ignore[override] # mypy takes the base's for a plain method  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.to_thread(super().run_task, task)


KINDS = pytest.mark.parametrize("kind", [Greeter, AsyncGreeter])


def comparable(result: TaskResult) -> str:
    """Return the log of a result without what differs between two runs."""
    lines = [line.partition("Z ")[2] for line in result.log.splitlines()[1:]]
    return re.sub(r"/tmp/[^/]+/[^/]+|after .*MB\)", "…", "\n".join(lines))


class FrozenDatetime(datetime):
    """Stands in for freezegun's replacement of `datetime`, which is another class than that of the times."""

    @classmethod
    def fromtimestamp(cls, timestamp: float, tz: tzinfo | None = None) -> Self:
        return cls.combine((moment := datetime.fromtimestamp(timestamp, tz)).date(), moment.timetz())


def test_a_handler_runs_while_the_test_freezes_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(handler_testing, "datetime", FrozenDatetime)
    monkeypatch.setattr(time, "time", moment.timestamp)
    created: list[datetime] = []

    class Uploading(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            created.append(datetime.fromisoformat(task.definition["created"]))
            task.upload_artifact("public/x", b"x", expires=moment + timedelta(hours=1))

    assert run_handler(Uploading, {}).outcome == "completed"
    assert created == [moment]


NAMES = ("Ada", "nobody", "missing", "missing and no retry", "../up")
PAYLOADS: list[dict[str, Any]] = [*({"name": each} for each in NAMES), {"nam": 1}, {}]


@KINDS
@pytest.mark.parametrize("payload", PAYLOADS)
def test_it_ends_like_a_run_of_a_queue(
    kind: type[WorkerLoop], payload: dict[str, Any], run_worker: TaskRunner
) -> None:
    tried, worked = run_handler(kind, payload), run_worker(kind, payload)
    assert tried.outcome == worked.outcome
    assert tried.artifacts == worked.artifacts
    if tried.outcome != "internal-error":  # whose log has a traceback, which differs
        assert comparable(tried) == comparable(worked)


@KINDS
def test_outcome_artifacts_and_log_are_those_of_the_handler(kind: type[WorkerLoop]) -> None:
    result = run_handler(kind, {"name": "Ada"})
    assert result.outcome == "completed"
    assert result.error is None
    assert result.artifacts == {"public/file.txt": b"Hello Ada\n", "public/large.txt": b"x" * 100_000}
    assert "greeting Ada" in result.log
    assert "the handler succeeded" in result.log


def test_a_run_whose_claim_is_lost_has_no_artifacts() -> None:
    class Loses(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            task.upload_artifact("public/file.txt", b"content")
            raise ClaimLost

    result = run_handler(Loses, {})
    assert result.outcome == "lost"
    assert result.artifacts == {}


def test_a_payload_that_does_not_match_the_schema_is_malformed_and_the_handler_is_not_called() -> None:
    result = run_handler(Greeter, {"nam": "Ada"})
    assert result.outcome == "malformed-payload"
    assert "unknown key" in result.log
    assert result.artifacts == {}


@KINDS
def test_a_value_of_the_payload_that_a_method_refuses_makes_it_malformed(kind: type[WorkerLoop]) -> None:
    result = run_handler(kind, {"name": "../up"})
    assert result.outcome == "malformed-payload"
    assert '$.name: "../up" is not valid; expected a path inside' in result.log
    assert "unless the handler sets allow_outside=True" in result.log  # authors of tasks cannot


@pytest.mark.parametrize("given", [5, [1], {"a": 1}], ids=["number", "list", "object"])
@pytest.mark.parametrize("argument", ["name", "prefix", "directory"])
def test_an_artifact_of_the_payload_that_is_not_text_makes_it_malformed(argument: str, given: Any) -> None:
    class Uploader(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            value = task.payload["value"]
            if argument == "name":
                task.upload_artifact(value, b"content")
            else:
                task.upload_artifacts(*(("public", value) if argument == "directory" else (value, ".")))

    result = run_handler(Uploader, {"value": given})
    assert result.outcome == "malformed-payload"
    assert "  $.value: " in result.log


def test_a_bug_of_the_handler_is_an_internal_error_with_what_it_raised() -> None:
    result = run_handler(Greeter, {})
    assert result.outcome == "internal-error"
    assert isinstance(result.error, KeyError)
    assert "KeyError: 'name'" in result.log


class Hooked(WorkerLoop):
    """Notes the order in which its methods are called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.called: list[str] = []

    def on_start(self) -> None:
        self.called.append("on_start")

    def on_stop(self) -> None:
        self.called.append("on_stop")

    def run_time_limit(self, task: TaskRun) -> float | None:
        del task
        return 0.1

    def run_task(self, task: TaskRun) -> None:
        self.called.append(f"run_task {task.definition['extra']} {task.scopes}")
        assert task.canceled.wait(30)
        raise IntermittentTask


def hooked(**settings: Any) -> Hooked:
    return Hooked(
        root_url="https://tc.example.com", task_queue_id="a/b", worker_group="c", worker_id="d", **settings
    )


def test_a_test_that_fails_shows_the_log_of_a_task_that_was_not_completed(
    run_worker: TaskRunner, caplog: pytest.LogCaptureFixture
) -> None:
    for run in (run_handler, run_worker):
        caplog.clear()
        assert run(Greeter, {"name": "Ada"}).outcome == "completed"
        assert caplog.text == ""
        result = run(Greeter, {"name": "nobody"})
        assert f"task {result.task_id} ended: failed; its log:\n{result.log}" in caplog.text


def test_hooks_are_called_and_the_definition_may_have_other_keys() -> None:
    worker = hooked(max_run_time_outcome="resource-unavailable")
    result = run_handler(worker, {}, extra={"a": 1}, scopes=["x:y"])
    assert worker.called == ["on_start", "run_task {'a': 1} ('x:y',)", "on_stop"]
    assert result.outcome == "resource-unavailable"
    assert "took longer than run_time_limit, 0.1 s" in result.log


def test_a_handler_may_clean_up_after_its_time_limit() -> None:
    class Cleaning(Hooked):
        def run_task(self, task: TaskRun) -> None:
            assert task.canceled.wait(30)
            task.upload_artifact("public/partial.txt", text="half a cake")

    worker = Cleaning(root_url="https://tc.example.com", task_queue_id="a/b", worker_group="c", worker_id="d")
    result = run_handler(worker, {})
    assert result.outcome == "failed"
    assert result.artifacts == {"public/partial.txt": b"half a cake"}


def impatient(kind: type[WorkerLoop]) -> WorkerLoop:
    """Return a worker that gives handlers no time to stop."""
    return kind(
        root_url="https://tc.example.com",
        task_queue_id="a/b",
        worker_group="c",
        worker_id="d",
        termination_grace=0,
    )


def test_a_handler_that_does_not_stop_at_its_time_limit_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    class Stuck(Hooked):
        def run_task(self, task: TaskRun) -> None:
            del task
            released.wait()

    monkeypatch.setattr(handlers, "HANDLER_GRACE", 0.1)
    assert run_handler(impatient(Stuck), {}).outcome == "failed"
    released.set()


def test_a_second_request_to_stop_lets_canceled_tasks_of_an_event_thread_end() -> None:
    thread = EventThread("stubborn")
    started, canceled, released, ended = (threading.Event() for _ in range(4))

    async def stubborn() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            canceled.set()
            await asyncio.to_thread(released.wait)
        ended.set()

    thread.submit(stubborn())
    assert started.wait(30)
    assert not thread.stop(0)
    assert canceled.wait(30)
    assert not thread.stop(0)
    assert thread.turned().wait(30)
    released.set()
    assert thread.stop(30)
    assert ended.is_set()


BLOCKED = "a handler still blocks the event loop of all handlers, not waiting any longer"
CANCELED = "a handler, or an asyncio task that it has created, has not ended 1 s after it was canceled"


@pytest.mark.parametrize(
    ("is_blocking", "warning", "other"), [(True, BLOCKED, CANCELED), (False, CANCELED, BLOCKED)]
)
def test_a_warning_says_whether_a_coroutine_that_is_left_behind_blocks_the_others(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_blocking: bool,  # noqa: FBT001 - a parameter of the test
    warning: str,
    other: str,
) -> None:
    released = threading.Event()

    class Stuck(WorkerLoop):
        def run_time_limit(self, task: TaskRun) -> float | None:
            del task
            return 0.1

        async def run_task(self, task: TaskRun) -> None:
            del task
            if is_blocking:
                released.wait()
            while not released.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.to_thread(released.wait)

    monkeypatch.setattr(handlers, "HANDLER_GRACE", 0.1)
    monkeypatch.setattr(handlers, "TO_END", 1.0)
    assert run_handler(impatient(Stuck), {}).outcome == "failed"
    released.set()
    assert warning in caplog.text
    assert other not in caplog.text


def test_a_time_limit_that_exits_is_an_internal_error() -> None:
    class Exiting(Greeter):
        def run_time_limit(self, task: TaskRun) -> float | None:
            sys.exit(f"no limit for {task.task_id}")

    result = run_handler(Exiting, {"name": "Ada"})
    assert result.outcome == "internal-error"
    assert "run_time_limit raised SystemExit" in result.log


def test_a_definition_that_the_queue_would_refuse_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="retries"):
        run_handler(Greeter, {}, retries=1000)


class Caller(WorkerLoop):
    """Calls the Queue, logs its access token, and fails."""

    def run_task(self, task: TaskRun) -> None:
        task.log.info("version %s", task.queue.version().version)
        task.log.info("token %s", task.credentials.access_token)
        message = "no oven"
        raise InternalError(message)


def test_calls_of_the_handler_go_to_the_worker_s_deployment_and_no_secret_is_in_the_log(
    local_queue: LocalQueue,
) -> None:
    worker = Caller(
        root_url=local_queue.root_url,
        credentials=local_queue.credentials,
        task_queue_id="a/b",
        worker_group="c",
        worker_id="d",
    )
    result = run_handler(worker, {})
    assert "version" in result.log
    assert "InternalError: no oven" in result.log
    assert local_queue.access_token not in result.log


def test_without_a_deployment_calls_fail_at_once_and_the_error_says_why() -> None:
    result = run_handler(Caller, {})
    assert result.outcome == "internal-error"
    assert "/run_handler-has-no-queue/" in str(result.error)
    assert "/run_handler-has-no-queue/" in result.log
    assert "attempted once" in str(result.error)


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    class Leaving(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            (task.work_directory / "x").touch()
            task.upload_artifact("public/x", iter([b"x"]))

    worker = Leaving(
        root_url="https://tc.example.com",
        credentials=Credentials("a", "a-token-of-some-length"),
        task_queue_id="a/b",
        worker_group="c",
        worker_id="d",
        work_directory=tmp_path,
    )
    result = run_handler(worker, {})
    assert result.artifacts == {"public/x": b"x"}
    assert list(tmp_path.iterdir()) == []


async def test_it_can_be_called_in_an_event_loop() -> None:
    assert run_handler(AsyncGreeter, {"name": "Ada"}).outcome == "completed"


def test_the_fixture_s_settings_and_definition_are_the_test_s(run_worker: TaskRunner) -> None:
    result = run_worker(Hooked, {}, task={"extra": {"b": 2}, "retries": 0}, worker_id="mine")
    assert result.outcome == "failed"
    assert "on worker testing/mine of" in result.log


class OneUpload(WorkerLoop):
    """Uploads an artifact."""

    def run_task(self, task: TaskRun) -> None:
        task.upload_artifact("public/x.txt", b"x", storage=task.payload["storage"])


@pytest.mark.parametrize(
    ("storage", "fault", "outcome"),
    [
        ("s3", Respond("storage.put", status=413), "failed"),
        ("s3", Respond("storage.put", status=403), "internal-error"),
        ("object", Drop("queue.createArtifact", after=True), "resource-unavailable"),
    ],
)
def test_an_artifact_whose_upload_failed_is_not_in_the_result_of_the_fixture(
    run_worker: TaskRunner, local_queue: LocalQueue, storage: str, fault: Drop | Respond, outcome: str
) -> None:
    local_queue.faults.add(fault)
    result = run_worker(OneUpload, {"storage": storage})
    assert (result.outcome, result.artifacts) == (outcome, {})
    assert "public/x.txt was not uploaded" in result.log


def test_an_artifact_that_a_proxy_refuses_is_an_error_of_the_fixture(
    run_worker: TaskRunner, local_queue: LocalQueue
) -> None:
    local_queue.faults.add(Respond("storage.get", status=403, html=True, times=9))
    with pytest.raises(StorageRefused, match="HTTP 403"):
        run_worker(OneUpload, {"storage": "s3"})


@dataclass
class Keys:
    keys: list[str]


class Signer(WorkerLoop):
    """A worker with custom settings."""

    settings_type = Keys

    def run_task(self, task: TaskRun) -> None:
        task.log.info("settings: %s", self.settings)


def test_the_fixture_s_worker_may_have_a_settings_file(run_worker: TaskRunner, tmp_path: Path) -> None:
    file = tmp_path / "worker.yml"
    file.write_text("worker: {custom: {keys: [one, two]}}\n")

    class Configured(Signer):
        def __init__(self, **settings: Any) -> None:
            super().__init__(config_file=file, **settings)

    for result in (run_worker(Signer, {}, config_file=file), run_worker(Configured, {})):
        assert "settings: Keys(keys=['one', 'two'])" in result.log


@pytest.mark.parametrize(
    "given",
    [
        {"task_queue_id": "proj/linux"},
        {"task_queue_id": ["proj/linux", "proj/mac"]},
        {"task": {"taskQueueId": "proj/linux"}},
    ],
)
def test_the_fixture_s_worker_claims_from_the_task_queue_of_its_task(
    run_worker: TaskRunner, given: dict[str, Any]
) -> None:
    result = run_worker(Greeter, {"name": "Ada"}, max_idle=30, **given)
    assert "of proj/linux" in result.log


def test_the_plugin_does_not_import_the_worker_before_it_is_used() -> None:
    code = "import sys, taskqueue_client.testing; sys.exit('taskqueue_client.worker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BEHIND_A_PROXY = """
import taskqueue_client

class Good(taskqueue_client.WorkerLoop):
    def run_task(self, task):
        task.upload_artifact("public/good.txt", text="good")

def test_it(queue, run_worker):
    assert run_worker(Good, {}).artifacts == {"public/good.txt": b"good"}
    assert list(queue.iter_task_queues()) != []
"""


def test_the_fixtures_work_behind_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.com")
    (tmp_path / "test_behind_a_proxy.py").write_text(BEHIND_A_PROXY)
    command = [sys.executable, "-m", "pytest", "-q", "test_behind_a_proxy.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "1 passed" in done.stdout


class Sometimes(WorkerLoop):
    """Asks for a retry."""

    def run_task(self, task: TaskRun) -> None:
        raise IntermittentTask(task.task_id)


@pytest.mark.parametrize(
    ("worker", "payload", "words"),
    [
        (comparable, {}, "worker: <function .* expected a subclass of WorkerLoop, or an instance of one"),
        (int, {}, "worker: <class 'int'>"),
        (Greeter, ["name"], r"payload: \['name'\] is not valid; expected a dict"),
        (Greeter, None, "payload: None"),
    ],
)
def test_run_handler_refuses_what_is_not_a_worker_or_a_payload(worker: Any, payload: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        run_handler(worker, payload)


def test_run_worker_refuses_a_task_that_its_worker_would_wait_for_without_end(
    run_worker: TaskRunner, queue: Queue, task_factory: TaskFactory
) -> None:
    unresolved = slugid()
    queue.create_task(unresolved, task_factory(taskQueueId="other/queue"))
    with pytest.raises(InvalidArgument, match="task: the task is unscheduled; expected a pending task"):
        run_worker(Greeter, {"name": "Ada"}, task={"dependencies": [unresolved]})
    with pytest.raises(InvalidArgument, match=r"task.taskQueueId: 'a/b' .* worker serves: c/d, e/f"):
        run_worker(Greeter, {"name": "Ada"}, task_queue_id=["c/d", "e/f"], task={"taskQueueId": "a/b"})


def test_run_worker_ends_a_worker_that_waits_for_a_further_task_without_end(
    run_worker: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "_MAX_IDLE", 0.1)
    assert run_worker(Greeter, {"name": "Ada"}, max_tasks=2).outcome == "completed"


async def test_run_worker_says_how_an_asynchronous_test_calls_it(
    run_worker: TaskRunner, local_queue: LocalQueue
) -> None:
    messages: list[object] = []
    local_queue.subscribe(messages.append)
    with pytest.raises(
        RuntimeError, match=r"run_worker blocks .* `await asyncio.to_thread\(run_worker, …\)`"
    ):
        run_worker(Greeter, {"name": "Ada"})
    assert messages == []
    assert (await asyncio.to_thread(run_worker, Greeter, {"name": "Ada"})).outcome == "completed"


@pytest.mark.parametrize("given", [[], None, 5])
def test_run_worker_refuses_settings_before_it_creates_a_task(
    run_worker: TaskRunner, local_queue: LocalQueue, given: Any
) -> None:
    messages: list[object] = []
    local_queue.subscribe(messages.append)
    with pytest.raises(InvalidArgument, match=r"^task_queue_id: "):
        run_worker(Greeter, {"name": "Ada"}, task_queue_id=given)
    with pytest.raises(InvalidArgument, match=r"^max_tasks: "):
        run_worker(Greeter, {"name": "Ada"}, max_tasks=0)
    assert messages == []


def test_run_worker_refuses_a_worker_that_is_not_a_class(run_worker: TaskRunner) -> None:
    worker: Any = Greeter(root_url="http://h", task_queue_id="a/b", worker_group="g", worker_id="w")
    with pytest.raises(InvalidArgument, match=r"worker: .* settings are arguments of run_worker"):
        run_worker(worker, {"name": "Ada"})


def test_run_worker_says_that_its_worker_ran_another_task(run_worker: TaskRunner) -> None:
    assert run_worker(Sometimes, {}).outcome == "intermittent-task"
    with pytest.raises(RuntimeError, match=r"task .* is still pending: the worker ran another task of test-"):
        run_worker(Greeter, {"name": "Ada"})


def test_run_worker_says_that_the_handler_has_given_up_its_claim(run_worker: TaskRunner) -> None:
    class Loses(WorkerLoop):
        def run_task(self, _: TaskRun) -> None:
            raise ClaimLost

    with pytest.raises(RuntimeError, match=r"^task .* is still running: the worker has reported nothing$"):
        run_worker(Loses, {})


def returning(returned: Any, *, is_async: bool) -> type[WorkerLoop]:
    """Return a worker class whose handler returns a value, as in a program without types."""

    class Script(WorkerLoop):
        def run_task(self, task: TaskRun) -> Any:
            del task
            return returned

    class Coroutine(WorkerLoop):
        async def run_task(self, task: TaskRun) -> Any:
            del task
            return returned

    return Coroutine if is_async else Script


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "returned",
    [
        *(False, 1, -1, pytest.param(10**5000, id="large"), TaskFailed("x"), ValueError()),
        *(CommandResult(1, None, 0, 0, 0, 0), CommandResult(None, 9, 0, 0, 0, 0)),
        subprocess.CompletedProcess[str]("make", 2),
        *("failed", TaskState.FAILED, TaskState.EXCEPTION, ReasonResolved.INTERMITTENT_TASK, TaskFailed),
    ],
)
def test_a_handler_that_returns_a_failure_completes_with_a_warning(
    returned: object, *, is_async: bool
) -> None:
    result = run_handler(returning(returned, is_async=is_async), {})
    assert result.outcome == "completed"
    assert "WARNING what run_task returned has no effect: to fail the task, raise TaskFailed\n" in result.log


def test_the_log_names_the_asyncio_tasks_that_each_handler_leaves_running(run_worker: TaskRunner) -> None:
    async def poll() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        asyncio.create_task(poll(), name="nested")  # noqa: RUF006 - as programs do
        raise TaskFailed

    class Gathers(WorkerLoop):
        async def run_task(self, task: TaskRun) -> None:
            if task.payload["fails"]:
                command = asyncio.create_task(task.run_command_async(["sleep", "3600"]), name="command")
                await asyncio.gather(asyncio.sleep(0), command, fail())
            await asyncio.create_task(asyncio.sleep(0))
            asyncio.create_task(poll()).cancel()

    left, clean = run_worker(Gathers, {"fails": True}), run_worker(Gathers, {"fails": False})
    assert (left.outcome, clean.outcome) == ("failed", "completed")
    tasks = f"command (run_command_async), nested ({poll.__qualname__})"
    warning = f"WARNING run_task has ended, but not these asyncio tasks that it has started: {tasks}\n"
    assert warning in left.log
    assert "WARNING" not in clean.log


def test_the_log_ends_with_the_name_alone_of_an_outcome_without_text() -> None:
    class Fails(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            del task
            raise TaskFailed

    assert run_handler(Fails, {}).log.endswith(" ERROR TaskFailed\n")


def test_the_log_has_each_outcome_of_a_group_and_the_one_that_counts_at_its_end() -> None:
    class Checks(WorkerLoop):
        async def run_task(self, task: TaskRun) -> None:
            del task
            tests = ExceptionGroup("tests", [TaskFailed("unit: 1 failed"), TaskFailed("types: 2 errors")])
            message = "checks"
            raise ExceptionGroup(message, [TaskFailed("lint: 3 errors"), tests])

    result = run_handler(Checks, {})
    assert result.outcome == "failed"
    assert [line.partition(" ")[2] for line in result.log.splitlines()[1:]] == [
        "ERROR TaskFailed: unit: 1 failed",
        "ERROR TaskFailed: types: 2 errors",
        "ERROR TaskFailed: lint: 3 errors",
    ]


@pytest.mark.parametrize(
    "returned",
    [
        None,
        True,
        0,
        "done",
        TaskState.COMPLETED,
        ReasonResolved.COMPLETED,
        Mock(spec=type),
        1.0,
        CommandResult(0, None, 0, 0, 0, 0),
        subprocess.CompletedProcess[str]("make", 0),
    ],
)
def test_a_handler_that_returns_another_value_gets_no_warning(returned: object) -> None:
    assert "returned" not in run_handler(returning(returned, is_async=False), {}).log


@pytest.mark.parametrize("queue", ["what a project calls a queue"])
def test_a_fixture_of_the_same_name_as_the_client_does_not_disturb_run_worker(
    queue: str, run_worker: TaskRunner
) -> None:
    assert run_worker(Greeter, {"name": queue}).outcome == "completed"


def test_a_worker_or_run_that_is_pickled_says_what_to_do_instead() -> None:
    """As for a process pool, or a process that is spawned."""

    class Pickling(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            with pytest.raises(TypeError, match=r"TaskRun cannot be pickled .* such as task\.payload"):
                pickle.dumps(task)
            with pytest.raises(TypeError, match=r"Pickling cannot be pickled .* a worker in each process"):
                pickle.dumps(self)

    assert run_handler(Pickling, {}).outcome == "completed"


def test_downloads_of_a_handler_are_attempted_once() -> None:
    missing = {"taskId": slugid()}

    class Plain(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            if task.payload["list"]:
                task.upstream_artifacts([missing])
            task.download_artifact(missing["taskId"], "public/x")

    class Asynchronous(WorkerLoop):
        async def run_task(self, task: TaskRun) -> None:
            if task.payload["list"]:
                await task.upstream_artifacts_async([missing])
            await task.download_artifact_async(missing["taskId"], "public/x")

    for worker, payload in product((Plain, Asynchronous), ({"list": True}, {"list": False})):
        result = run_handler(worker, payload)
        assert result.outcome == "internal-error"
        assert isinstance(result.error, ConnectionFailed)
        assert result.error.attempts == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="it cannot mark functions as asynchronous")
async def test_the_asynchronous_methods_of_a_mocked_run_can_be_awaited() -> None:
    task = create_autospec(TaskRun, instance=True)
    task.run_command_async.return_value = CommandResult(0, None, 0, 0, 0, 0)
    assert (await task.run_command_async(["make"])).exit_code == 0
    assert task.run_command(["make"]) is not None
