"""The outcomes of runs, with and without faults, against a local queue."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partialmethod, singledispatchmethod, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from taskqueue_client import temporary_credentials
from taskqueue_client.clock import MovableClock
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local.faults import Drop, Respond
from taskqueue_client.testing import run_handler
from taskqueue_client.worker import TaskEnd, WorkerLoop, outcomes, shutdown
from taskqueue_client.worker.commands.task_log import TaskLog
from taskqueue_client.worker.run.run_resources import RunResources
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import WAIT, World, until
from tests.worker.run_outcomes import OUTCOMES, check, raising, reasons
from tests.worker.worker_world import Working, artifact, artifact_names, log_of, serve_one, work, worker_for

REPORTS = "queue.report*"
WEATHER: dict[str, list[Respond | Drop]] = {
    "normal": [],
    "502 after commit": [Respond(endpoint=REPORTS, status=502, after=True, html=True)],
    "connection cut": [Drop(endpoint=REPORTS), Drop(endpoint=REPORTS, after=True)],
}


@pytest.mark.parametrize("weather", WEATHER)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_is_reported_once_and_rightly(world: World, outcome: str, weather: str) -> None:
    task_id = world.create()
    for fault in WEATHER[weather]:
        world.local.faults.add(fault)
    work(world, OUTCOMES[outcome][0])
    check(world, task_id, outcome)
    assert world.local.faults.waiting() == []


def test_artifacts_go_to_the_storage_that_the_worker_is_set_up_for(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/one", b"1")
        task.upload_artifact("public/two", b"2", storage="s3")
        task.queue.upload_artifact(
            task.task_id, task.run_id, "public/three", b"3", expires=task.definition["expires"]
        )

    work(world, handler, artifact_storage="object")
    found = world.queue.list_artifacts(task_id, 0).artifacts
    assert {each.name: each.storage_type for each in found} == {
        "public/logs/live.log": "link",
        "public/logs/live_backing.log": "s3",
        "public/one": "object",
        "public/two": "s3",
        "public/three": "object",
    }


def test_an_unexpected_exception_leaves_its_traceback_in_the_log(world: World) -> None:
    task_id = world.create()
    work(world, raising(ValueError("what happened")))
    log = log_of(world, task_id)
    assert "Traceback" in log
    assert "ValueError: what happened" in log


def test_a_subclass_may_have_attributes_and_methods_of_any_private_name(world: World) -> None:
    ends: list[BaseException | None] = []

    class Own(WorkerLoop):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._lock, self._session, self._credentials = threading.Lock(), "session", "credentials"

        def _serve(self) -> str:
            return self._session

        _live = _listen = _terminate = _serve

        def run_task(self, task: TaskRun) -> None:
            del task
            with self._lock:
                self.shutdown()
            assert self._live() == "session"

        def on_task_end(self, end: TaskEnd) -> None:
            ends.append(end.error)

    world.create()
    serve_one(world, Own)
    assert ends == [None]


def test_a_worker_that_is_running_does_not_run_a_second_time(world: World) -> None:
    first, second = world.create(), world.create()

    def handler(task: TaskRun) -> None:
        if task.task_id == first:
            with pytest.raises(RuntimeError, match="running already"):
                worker.serve()

    worker = worker_for(world, handler, max_tasks=1)
    worker.serve()
    assert reasons(world, first) == ["completed"]
    assert reasons(world, second) == ["None"]


def test_a_class_that_does_not_call_the_init_of_its_base_is_an_error_at_the_start() -> None:
    class Forgetful(WorkerLoop):
        def __init__(self) -> None:
            self.started = False

        def on_start(self) -> None:
            self.started = True

        def run_task(self, task: TaskRun) -> None:
            """Never called."""

    worker = Forgetful()
    for start in (worker.serve, lambda: run_handler(worker, {})):
        with pytest.raises(RuntimeError, match=r"Forgetful.__init__ must call super\(\).__init__"):
            start()
    assert not worker.started


@pytest.mark.parametrize(
    "name",
    ["checked_schema", "clock", "config", "pulse", "root_url", "runner", "signing_key", "task_source"],
)
def test_a_worker_whose_class_replaces_an_attribute_of_its_base_is_an_error_at_the_start(
    world: World, name: str
) -> None:
    task_id = world.create()
    worker = worker_for(world, lambda _: None, max_tasks=1)
    setattr(worker, name, {"password": "a-secret-for-tests"})
    for start in (worker.serve, lambda: run_handler(worker, {})):
        with pytest.raises(RuntimeError, match=rf"\.{name}: of type dict, .* use another name") as caught:
            start()
        assert "a-secret-for-tests" not in str(caught.value)
    assert world.queue.status(task_id).status.state == "pending"


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
@pytest.mark.parametrize(
    "patched", ["threading.get_ident", "queue.SimpleQueue", "select.select", "subprocess.Popen"]
)
def test_a_program_with_patched_modules_is_refused_before_anything_is_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch, library: str, patched: str
) -> None:
    task_id = world.create()
    module, _, name = patched.partition(".")
    original: Callable[..., object] = getattr(import_module(module), name)

    def stand_in(*args: Any, **kwargs: Any) -> object:
        return original(*args, **kwargs)

    stand_in.__module__, stand_in.__name__ = f"{library}.{module}", name  # as the real libraries name theirs
    worker = worker_for(world, lambda _: None, max_tasks=1)
    monkeypatch.setattr(patched, stand_in)
    for start in (worker.run, worker.serve, lambda: run_handler(worker, {})):
        with pytest.raises(RuntimeError, match=rf"{library} has replaced {name} .* real threads"):
            start()
    monkeypatch.undo()
    assert reasons(world, task_id) == ["None"]


@pytest.mark.parametrize(
    ("name", "closest"),
    [("concurency", "concurrency"), ("credential", "credentials"), ("task_queue", "task_queue_id")],
)
def test_a_misspelled_argument_is_refused_before_others_are_missing(name: str, closest: str) -> None:
    class Idle(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            """Do nothing."""

    arguments: Any = {name: "s3cret"}
    with pytest.raises(InvalidArgument) as refused:
        Idle(**arguments)
    assert str(refused.value) == f"{name}: unknown argument; the closest known one is {closest}"


@pytest.mark.parametrize("name", ["reclaim_interval", "worker_type", "task_max_timeout", "capacity"])
def test_an_argument_that_resembles_none_is_refused_with_all_that_are_known(name: str) -> None:
    class Idle(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            """Do nothing."""

    arguments: Any = {name: "s3cret"}
    with pytest.raises(InvalidArgument) as refused:
        Idle(**arguments)
    assert str(refused.value).startswith(f"{name}: unknown argument; known arguments: artifact_storage, ")
    assert "max_run_time, " in str(refused.value)


def test_a_worker_runs_again_when_it_has_ended(world: World) -> None:
    worker = worker_for(world, lambda _: None, max_tasks=1)
    for _ in range(2):
        task_id = world.create()
        worker.serve()
        assert reasons(world, task_id) == ["completed"]


def test_a_worker_that_was_shut_down_before_its_start_says_why_it_ends_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker = worker_for(world, lambda _: None)
    worker.shutdown()
    worker.serve()
    assert caplog.messages == ["worker group/worker does not start: shutdown() was called before"]


@pytest.mark.parametrize(
    ("argument", "given"),
    [("config_file", 5), ("config_file", []), ("pulse", "amqp://u:s3cret@h"), ("pulse", {}), ("clock", "x"),
     ("runner", "x"), ("task_source", "x"), ("task_source", None)],
)  # fmt: skip
def test_an_argument_of_another_type_is_refused(world: World, argument: str, given: object) -> None:
    options: Any = {argument: given}
    with pytest.raises(InvalidArgument) as refused:
        worker_for(world, lambda _: None, **options)
    assert refused.value.argument == argument
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["on_start", "on_stop", "on_task_end", "run_time_limit", "on_idle", "termination_notice"]
)
def test_a_hook_that_is_a_coroutine_function_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def hook(*_: object) -> None:
        """Do nothing: a worker would not await the coroutine."""

    monkeypatch.setattr(WorkerLoop, name, hook)
    with pytest.raises(InvalidArgument, match=f"{name}: .*expected a plain function"):
        worker_for(world, lambda _: None)


def log_of_class(caplog: pytest.LogCaptureFixture, **attributes: object) -> list[str]:
    """Make a worker of a class `Builder` with these attributes; return what it logs."""
    kind: Any = type("Builder", (WorkerLoop,), {"run_task": of_task, **attributes})
    kind(root_url="https://tc.example.com", task_queue_id="proj/linux", worker_group="g", worker_id="w")
    return caplog.messages


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("on_task_ended", "on_task_end"),
        ("run_timelimit", "run_time_limit"),
        ("on_termination_notice", "termination_notice"),
        ("payload_shema", "payload_schema"),
        ("payloadSchema", "payload_schema"),
        ("setting_type", "settings_type"),
    ],
)
def test_a_misspelled_hook_or_attribute_is_logged_with_the_closest_one(
    caplog: pytest.LogCaptureFixture, name: str, closest: str
) -> None:
    assert log_of_class(caplog, **{name: of_task}) == [
        f"Builder.{name}: the worker does not use it; the closest name that it uses is {closest}"
    ]


def test_a_method_that_is_named_like_a_hook_and_is_none_is_logged_with_all_hooks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [logged] = log_of_class(caplog, on_run_ended=of_task)
    assert logged == (
        "Builder.on_run_ended: the worker does not call it; the methods that it calls are run_task, "
        "on_start, on_stop, on_task_end, run_time_limit, on_idle, termination_notice"
    )


@pytest.mark.parametrize("name", ["max_run_time", "concurrency"])
def test_a_setting_that_is_an_attribute_of_the_class_is_logged(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    assert log_of_class(caplog, **{name: 60}) == [
        f"Builder.{name} has no effect: give settings as arguments, in environment variables or in a file"
    ]


def test_attributes_that_a_class_uses_itself_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def init(worker: WorkerLoop, **settings: Any) -> None:
        WorkerLoop.__init__(worker, concurrency=2, **settings)

    own: dict[str, object] = {
        "__init__": init,
        "concurrency": 2,  # which its `__init__` passes to its base
        "max_run_time": property(str),
        "payload_schema": {},
        "payload_schemas": {},
        "_on_task_ended": of_task,
        "build": of_task,
    }
    assert log_of_class(caplog, **own) == []


def test_hooks_of_other_base_classes_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    consumer = type("Consumer", (), {"on_message": of_task})
    template: Any = type("Template", (consumer, WorkerLoop), {"run_task": of_task, "on_build": of_task})
    kind: Any = type("Builder", (template,), {"on_build": of_task, "on_message": of_task})
    kind(root_url="https://tc.example.com", task_queue_id="proj/linux", worker_group="g", worker_id="w")
    assert caplog.messages == []


def without_self() -> None:
    """Take no arguments, like a method whose author has forgotten `self`."""


def with_self(_: object) -> None:
    """Take only `self`."""


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        (
            "run_task",
            with_self,
            "(too many positional arguments); expected def run_task(self, task)",
        ),
        ("on_stop", without_self, "(invalid method signature); expected def on_stop(self)"),
        (
            "on_idle",
            with_self,
            "(too many positional arguments); expected def on_idle(self, seconds)",
        ),
        ("on_start", None, "(None is not callable); expected def on_start(self)"),
    ],
)
def test_a_method_that_the_worker_cannot_call_is_refused_before_a_run_notices_it(
    name: str, method: object, message: str
) -> None:
    class Odd(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            """Complete every task."""

    setattr(Odd, name, method)
    with pytest.raises(InvalidArgument) as refused:
        Odd(root_url="https://tc.example.com", task_queue_id="proj/linux", worker_group="g", worker_id="w")
    assert str(refused.value) == f"{name}: wrong parameters {message}"


def with_database(handler: Callable[[Any, TaskRun, str], None]) -> Any:
    """Decorate a handler, as a user may: add an argument."""

    @wraps(handler)
    def run_task(worker: WorkerLoop, task: TaskRun) -> None:
        handler(worker, task, "database")

    return run_task


def of_task(worker: WorkerLoop, task: TaskRun) -> None:
    """Handle a task."""


def of_database(worker: WorkerLoop, task: TaskRun, database: str) -> None:
    """Handle a task; needs one more argument than a handler gets."""


class Unreadable:
    """Has no readable signature: annotated with a name that only type checkers import, as in Python 3.14."""

    def __call__(self, _: object) -> None:
        """Accept the task."""

    @property
    def __signature__(self) -> object:
        message = "name 'TaskRun' is not defined"
        raise NameError(message)


@pytest.mark.parametrize(
    "handler",
    [
        with_database(of_database),
        singledispatchmethod(of_task),
        partialmethod(of_database, database="database"),
        Mock(),
        Unreadable(),
        min,
    ],
    ids=["decorated", "singledispatchmethod", "partialmethod", "mock", "annotations", "no signature"],
)
def test_a_method_that_the_worker_can_call_is_accepted(handler: Any) -> None:
    class Unusual(WorkerLoop):
        run_task: Any = handler

    Unusual(root_url="https://tc.example.com", task_queue_id="proj/linux", worker_group="g", worker_id="w")


class Unprintable(Exception):
    """An exception whose `__str__` fails, as if it returns an attribute that is None."""

    def __str__(self) -> str:
        message: Any = None
        text: str = message
        return text


class UnprintableFailure(Unprintable, outcomes.TaskFailed):
    """An outcome whose `__str__` fails."""


class Unformattable(SyntaxError):
    """An exception whose traceback Python cannot format."""

    def __init__(self) -> None:
        super().__init__("an odd one")
        self.lineno: Any = 1
        self.text: Any = 5


class Exiting(ValueError):
    """An exception whose text ends the process."""

    def __str__(self) -> str:
        return sys.exit("there is no text")


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (Unprintable, "internal-error", "(its __str__ raises TypeError)"),
        (UnprintableFailure, "failed", "(its __str__ raises TypeError)"),
        (Exiting, "internal-error", "(its __str__ raises SystemExit)"),
        (Unformattable, "internal-error", "an odd one"),
    ],
)
def test_a_run_ends_as_usual_if_its_error_cannot_be_shown(
    world: World, caplog: pytest.LogCaptureFixture, error: type[Exception], outcome: str, text: str
) -> None:
    ends: list[TaskEnd] = []

    class Ending(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            del task
            raise error

        def on_task_end(self, end: TaskEnd) -> None:
            ends.append(end)

    task_id = world.create()
    with caplog.at_level("INFO"):
        serve_one(world, Ending)
    assert [each.outcome for each in ends] == reasons(world, task_id) == [outcome]
    assert error.__name__ in log_of(world, task_id)
    assert f"ended: {outcome}" in caplog.text
    assert f"{error.__name__}: {text}" in caplog.text
    assert "its claim will expire" not in caplog.text


class TestPayloads:
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"target": {"type": "string"}, "jobs": {"type": "integer", "minimum": 1}},
        "required": ["target"],
    }

    def test_one_that_is_off_the_schema_is_malformed_and_every_violation_explained(
        self, world: World
    ) -> None:
        task_id = world.create({"target": 7, "jobs": 0})
        called: list[TaskRun] = []
        work(world, called.append, schema=self.SCHEMA)
        assert reasons(world, task_id) == ["malformed-payload"]
        log = log_of(world, task_id)
        assert "$.target" in log
        assert "$.jobs" in log
        assert called == []

    def test_one_that_is_on_the_schema_is_worked_on(self, world: World) -> None:
        task_id = world.create({"target": "all"})
        work(world, lambda _: None, schema=self.SCHEMA)
        assert reasons(world, task_id) == ["completed"]

    def test_the_schema_may_be_set_when_the_settings_are_known(self, world: World) -> None:
        """As in an `__init__` that reads the schema from a file that a setting names."""
        worker, task_id = worker_for(world, lambda _: None, max_tasks=1), world.create({"target": 7})
        setattr(worker, "payload_schema", self.SCHEMA)  # noqa: B010 - type checkers refuse it
        assert run_handler(worker, {"target": 7}).outcome == "malformed-payload"
        worker.run()
        assert reasons(world, task_id) == ["malformed-payload"]

    def test_one_that_is_huge_is_malformed_like_others(self, world: World) -> None:
        task_id = world.create({"target": ["x" * 1000] * 8000})
        work(world, lambda _: None, schema=self.SCHEMA)
        assert reasons(world, task_id) == ["malformed-payload"]

    def test_one_that_is_nested_deeply_is_malformed_like_others(self, world: World) -> None:
        nested: Any = {}
        for _ in range(300):
            nested = {"x": nested}
        task_id = world.create({"target": "all", "deep": nested})
        work(world, lambda _: None, schema=self.SCHEMA)
        assert reasons(world, task_id) == ["malformed-payload"]

    def test_a_schema_that_is_wrong_is_an_error_before_anything_happens(self, world: World) -> None:
        with pytest.raises(InvalidArgument, match=r"payload_schema.*properties"):
            worker_for(world, lambda _: None, schema={"properties": {"a": {"type": "nothing"}}})


class TestIntermittence:
    def test_the_handler_is_called_again_with_everything_fresh(self, world: World) -> None:
        task_id = world.create()
        directories: list[Path] = []

        def handler(task: TaskRun) -> None:
            directories.append(task.work_directory)
            assert list(task.work_directory.iterdir()) == []
            (task.work_directory / "file").touch()
            if len(directories) < 3:
                task.upload_artifact("public/of-a-failed-try", b"no")
                raise outcomes.IntermittentTask

        work(world, handler, intermittent_attempts=3)
        assert reasons(world, task_id) == ["completed"]
        assert len(directories) == 3
        assert not any(each.exists() for each in directories)
        assert "public/of-a-failed-try" not in artifact_names(world, task_id)

    def test_the_handler_finds_the_payload_as_it_was(self, world: World) -> None:
        task_id = world.create({"steps": ["a", "b"]})
        tries: list[int] = []

        def handler(task: TaskRun) -> None:
            tries.append(len(task.payload["steps"]))
            task.payload["steps"].clear()
            if len(tries) < 2:
                raise outcomes.IntermittentTask

        work(world, handler, intermittent_attempts=2)
        assert reasons(world, task_id) == ["completed"]
        assert tries == [2, 2]

    def test_a_run_that_was_lost_between_two_tries_is_not_tried_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_id = world.create()
        start_over = RunResources.start_over
        tries: list[TaskRun] = []

        def handler(task: TaskRun) -> None:
            tries.append(task)
            raise outcomes.IntermittentTask

        def start_over_when_lost(resources: RunResources) -> None:
            world.queue.cancel_task(task_id)
            assert resources.canceled.wait(WAIT)
            start_over(resources)

        monkeypatch.setattr(RunResources, "start_over", start_over_when_lost)
        work(world, handler, intermittent_attempts=2)
        assert reasons(world, task_id) == ["canceled"]
        assert len(tries) == 1

    def test_a_task_that_is_intermittent_in_each_attempt_is_reported_as_intermittent(
        self, world: World
    ) -> None:
        task_id = world.create()
        calls: list[TaskRun] = []

        def handler(task: TaskRun) -> None:
            calls.append(task)
            raise outcomes.IntermittentTask("never")

        work(world, handler, intermittent_attempts=2)
        assert reasons(world, task_id) == ["intermittent-task", "None"]
        assert len(calls) == 2
        assert "the task asks for a retry (attempts left: 1): IntermittentTask: never" in log_of(
            world, task_id
        )


class TestTimes:
    def test_a_run_that_takes_too_long_has_failed(self, world: World) -> None:
        task_id = world.create()
        seen: list[str] = []

        def handler(task: TaskRun) -> None:
            task.canceled.wait(WAIT)
            seen.append(str(task.canceled.reason))
            task.canceled.check()

        work(world, handler, max_run_time=0.2)
        assert reasons(world, task_id) == ["failed"]
        assert "longer than max_run_time, 0.2 s" in seen[0]
        assert "longer than max_run_time, 0.2 s" in log_of(world, task_id)

    def test_the_log_begins_with_the_run_even_if_its_handler_writes_nothing(self, world: World) -> None:
        task_id = world.create()

        def handler(_: TaskRun) -> None:
            clock.advance(seconds=100)

        worker = worker_for(world, handler, max_tasks=1)
        worker.clock = clock = MovableClock()
        with Working(world, worker) as working:
            working.wait_for_end()
        first, last = (
            datetime.fromisoformat(line.split()[0]) for line in log_of(world, task_id).splitlines()
        )
        assert last - first >= timedelta(seconds=100)

    def test_the_time_of_all_tries_counts(self, world: World) -> None:
        task_id = world.create()
        cancelled: list[bool] = []

        def handler(task: TaskRun) -> None:
            if cancelled:  # not in the first try: the limit may begin a little before it
                clock.advance(seconds=100)
            cancelled.append(task.canceled.wait(WAIT if len(cancelled) == 3 else 0))
            raise outcomes.IntermittentTask

        worker = worker_for(world, handler, max_tasks=1, max_run_time=250, intermittent_attempts=4)
        worker.clock = clock = MovableClock()
        with Working(world, worker) as working:
            working.wait_for_end()
        assert cancelled == [False, False, False, True]
        assert reasons(world, task_id) == ["failed"]

    def test_a_command_of_a_run_that_takes_too_long_is_ended(self, world: World) -> None:
        task_id = world.create()
        work(world, lambda task: task.run_command(["sleep", "60"]), max_run_time=0.2)
        assert reasons(world, task_id) == ["failed"]

    @pytest.mark.parametrize("error", [TimeoutError("mine"), asyncio.CancelledError("mine")])
    def test_a_handlers_own_timeouts_and_cancellations_are_its_own(
        self, world: World, error: BaseException
    ) -> None:
        task_id = world.create()

        async def handler(task: TaskRun) -> None:
            del task
            raise error

        work(world, awaited=handler)
        assert reasons(world, task_id) == ["internal-error"]

    def test_a_handler_that_wants_to_end_the_process_ends_its_run_only(self, world: World) -> None:
        first, second = world.create(), world.create()
        tasks: list[str] = []

        async def handler(task: TaskRun) -> None:
            tasks.append(task.task_id)
            if len(tasks) == 1:
                raise SystemExit(3)

        work(world, awaited=handler, max_tasks=2)
        assert reasons(world, first) == ["internal-error"]
        assert reasons(world, second) == ["completed"]

    def test_a_subtask_of_a_handler_that_wants_to_end_the_process_ends_its_run_only(
        self, world: World
    ) -> None:
        first, second = world.create(), world.create()
        tasks: list[str] = []

        async def exiting() -> None:
            raise SystemExit(3)

        async def handler(task: TaskRun) -> None:
            tasks.append(task.task_id)
            if len(tasks) == 1:
                await asyncio.gather(exiting())

        work(world, awaited=handler, max_tasks=2)
        assert reasons(world, first) == ["internal-error"]
        assert reasons(world, second) == ["completed"]


class TestWhatAHandlerGives:
    def test_a_coroutine_that_nobody_runs_is_not_a_completed_task(self, world: World) -> None:
        async def inner(task: TaskRun) -> None:
            del task

        check_not_completed(world, inner, "declare run_task as `async def`")

    def test_a_generator_is_not_a_completed_task(self, world: World) -> None:
        def inner(task: TaskRun) -> Iterator[None]:
            del task
            yield

        check_not_completed(world, inner, "run_task must not `yield`")

    def test_an_asynchronous_generator_is_not_a_completed_task(self, world: World) -> None:
        async def inner(task: TaskRun) -> AsyncIterator[None]:
            del task
            yield

        check_not_completed(world, inner, "run_task must not `yield`")

    def test_a_coroutine_within_a_coroutine_is_not_a_completed_task(self, world: World) -> None:
        async def inner() -> None:
            pass

        async def handler(task: TaskRun) -> Any:
            del task
            return inner()

        task_id = world.create()

        class Doubly(WorkerLoop):
            async def run_task(self, task: TaskRun) -> None:
                given: None = await handler(task)
                return given

        serve_one(world, Doubly)
        assert reasons(world, task_id) == ["internal-error"]

    def test_commands_that_fail_side_by_side_are_a_failed_task(self, world: World) -> None:
        task_id = world.create()

        async def handler(task: TaskRun) -> None:
            async with asyncio.TaskGroup() as together:
                together.create_task(task.run_command_async(["false"]))
                together.create_task(task.run_command_async(["true"]))

        work(world, awaited=handler)
        assert reasons(world, task_id) == ["failed"]


def check_not_completed(world: World, function: Callable[[TaskRun], Any], advice: str) -> None:
    """Check that a handler which returns what `function` returns ends as an internal error with `advice`."""

    class Giving(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            given: None = function(task)
            return given

    task_id = world.create()
    serve_one(world, Giving)
    assert reasons(world, task_id) == ["internal-error"]
    assert f"that was not run; {advice}" in log_of(world, task_id)


class TestNotAwaited:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("run_command_async", (["false"],)),
            ("upload_artifact_async", ("public/x", b"x")),
            ("download_artifact_async", ("x", "public/x")),
            ("upstream_artifacts_async", ()),
        ],
    )
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_method_that_was_called_without_await_is_an_internal_error(
        self,
        world: World,
        name: str,
        arguments: tuple[Any, ...],
        is_async: bool,  # noqa: FBT001 - a parameter of the test
    ) -> None:
        class Plain(WorkerLoop):
            def run_task(self, task: TaskRun) -> None:
                getattr(task, name)(*arguments)

        class Asynchronous(WorkerLoop):
            async def run_task(self, task: TaskRun) -> None:
                getattr(task, name)(*arguments)

        task_id = world.create()
        serve_one(world, Asynchronous if is_async else Plain)
        assert reasons(world, task_id) == ["internal-error"]
        log = log_of(world, task_id)
        assert f"TypeError: {name} was called and not awaited; write `await task.{name}(…)`" in log
        assert f"or `task.{name.removesuffix('_async')}(…)` if run_task is not `async def`" in log

    def test_an_upload_that_has_begun_and_not_ended_is_an_internal_error(self, world: World) -> None:
        class Leaving(WorkerLoop):
            async def run_task(self, task: TaskRun) -> None:
                reading = asyncio.Event()

                async def source() -> AsyncIterator[bytes]:
                    reading.set()
                    await asyncio.Event().wait()
                    yield b""

                self.call = asyncio.create_task(task.upload_artifact_async("public/x", source()))
                await reading.wait()

        task_id = world.create()
        serve_one(world, Leaving)
        assert reasons(world, task_id) == ["internal-error"]
        assert "TypeError: upload_artifact_async was called and not awaited" in log_of(world, task_id)

    def test_a_call_that_was_canceled_before_it_began_is_not_an_error(self, world: World) -> None:
        class Canceling(WorkerLoop):
            async def run_task(self, task: TaskRun) -> None:
                call = asyncio.create_task(task.run_command_async(["false"]))
                call.cancel()
                await asyncio.wait([call])

        task_id = world.create()
        serve_one(world, Canceling)
        assert reasons(world, task_id) == ["completed"]


class TestUploads:
    def test_declared_artifacts_and_the_log_are_up_when_the_task_is_completed(self, world: World) -> None:
        task_id = world.create()
        up: list[set[str]] = []
        world.local.subscribe(
            lambda message: up.append(set()) if "task-completed" in message.exchange else None
        )

        def handler(task: TaskRun) -> None:
            (task.work_directory / "out.txt").write_text("from a file")
            task.upload_artifact("public/out.txt", "out.txt")
            task.upload_artifact("private/bytes", b"from memory", content_type="text/plain")

        work(world, handler)
        assert reasons(world, task_id) == ["completed"]
        assert len(up) == 1
        assert artifact(world, task_id, "public/out.txt") == "from a file"
        assert artifact(world, task_id, "private/bytes") == "from memory"

    def test_a_failed_task_has_its_artifacts_too(self, world: World) -> None:
        task_id = world.create()

        def handler(task: TaskRun) -> None:
            task.upload_artifact("public/why.txt", b"because")
            task.run_command(["false"])

        work(world, handler)
        assert reasons(world, task_id) == ["failed"]
        assert artifact(world, task_id, "public/why.txt") == "because"

    def test_an_exception_is_reported_first_and_its_artifacts_follow(self, world: World) -> None:
        task_id = world.create()
        order: list[str] = []
        world.local.subscribe(lambda message: order.append(message.exchange.rpartition("/")[2]))

        def handler(task: TaskRun) -> None:
            task.upload_artifact("public/why.txt", b"because")
            raise outcomes.InternalError("broken")

        work(world, handler)
        assert artifact(world, task_id, "public/why.txt") == "because"
        assert order.index("task-exception") < order.index("artifact-created")

    def test_a_missing_file_makes_the_task_fail_and_says_so_in_its_place(self, world: World) -> None:
        task_id = world.create()
        work(world, lambda task: task.upload_artifact("public/out.txt", "nowhere.txt"))
        assert reasons(world, task_id) == ["failed"]
        found = world.queue.artifact(task_id, 0, "public/out.txt")
        assert getattr(found, "reason") == "file-missing-on-worker"  # noqa: B009 - of the kind that has one
        assert "nowhere.txt" in log_of(world, task_id)

    @pytest.mark.parametrize(
        "fault",
        [
            Respond("storage.put", 1000, status=503),
            Respond("storage.put", 1000, status=200, html=True),
            Respond("storage.put", 1000, status=200, headers={"ETag": f'"{"0" * 32}"'}),
            Respond("storage.put", 1000, status=200, headers={"ETag": '"not-md5"'}),
        ],
        ids=["an error", "a login page", "the ETag of other content", "nothing stored"],
    )
    def test_storage_that_fails_or_lies_never_lets_a_task_be_completed(
        self, world: World, fault: Respond
    ) -> None:
        task_id = world.create()
        world.local.faults.add(fault)

        def handler(task: TaskRun) -> None:
            task.upload_artifact("public/out.txt", b"x")

        def is_resolved_a_second_later() -> bool:
            world.local.clock.advance(seconds=1)
            return world.run(task_id).reason_resolved is not None

        worker = worker_for(world, handler, max_tasks=1, upload_timeout=30)
        worker.clock = world.local.clock
        with Working(world, worker):
            until(is_resolved_a_second_later)
            world.local.faults.clear()
        assert reasons(world, task_id) == ["resource-unavailable"]

    def test_one_bad_artifact_does_not_keep_the_others_back(self, world: World) -> None:
        task_id = world.create()

        def handler(task: TaskRun) -> None:
            task.upload_artifact("public/bad.txt", "nowhere.txt")
            for number in range(20):
                task.upload_artifact(f"public/good-{number}.txt", b"x")

        work(world, handler)
        names = artifact_names(world, task_id)
        assert {f"public/good-{number}.txt" for number in range(20)} < names

    @pytest.mark.parametrize("name", ["", "a/../b", "public/logs/live.log", "public/logs/live_backing.log"])
    def test_a_name_that_cannot_be_is_refused_at_once(self, world: World, name: str) -> None:
        task_id = world.create()
        refused: list[InvalidArgument] = []

        def handler(task: TaskRun) -> None:
            with pytest.raises(InvalidArgument) as caught:
                task.upload_artifact(name, b"x")
            refused.append(caught.value)

        work(world, handler)
        assert reasons(world, task_id) == ["completed"]
        assert refused[0].argument == "name"

    def test_a_log_that_cannot_be_read_is_not_a_run_that_nobody_ends(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: TaskLog) -> None:
            message = "no log today"
            raise RuntimeError(message)

        task_id = world.create()
        monkeypatch.setattr(TaskLog, "checkpoint", broken)
        work(world, lambda _: None)
        assert reasons(world, task_id) == ["internal-error"]


def siblings(task: TaskRun) -> list[Path]:
    """Return the entries of the directory that has the run's directory."""
    return list(task.work_directory.parent.iterdir())


class TestTaskRun:
    def test_has_all_that_is_known_about_the_run(self, world: World) -> None:
        task_id = world.create({"a": 1}, scopes=["some:scope"])
        found: dict[str, Any] = {}

        def handler(task: TaskRun) -> None:
            found.update(
                task_id=task.task_id,
                run_id=task.run_id,
                group=task.task_group_id,
                payload=task.payload,
                scopes=task.scopes,
                owner=task.definition["metadata"]["owner"],
                lives=(task.expires - task.deadline).total_seconds(),
                client_id=task.credentials.client_id,
            )

        work(world, handler)
        assert found.pop("client_id").startswith(f"task-client/{task_id}/0/on/group/worker/until/")
        assert found == {
            "task_id": task_id,
            "run_id": 0,
            "group": task_id,
            "payload": {"a": 1},
            "scopes": ("some:scope",),
            "owner": "tester@example.com",
            "lives": 20 * 3600,
        }

    def test_its_client_makes_artifacts_but_cannot_resolve(self, world: World) -> None:
        from taskqueue_client.errors import InsufficientScopes

        task_id = world.create()

        def handler(task: TaskRun) -> None:
            task.queue.create_artifact(
                task.task_id,
                task.run_id,
                "public/elsewhere",
                {
                    "storageType": "reference",
                    "url": "https://example.com",
                    "expires": task.definition["expires"],
                    "contentType": "text/html",
                },
            )
            with pytest.raises(InsufficientScopes):
                task.queue.report_completed(task.task_id, task.run_id)

        work(world, handler)
        assert reasons(world, task_id) == ["completed"]
        assert "public/elsewhere" in artifact_names(world, task_id)

    def test_its_async_client_works_in_the_handlers_loop(self, world: World) -> None:
        task_id = world.create()
        states: list[str] = []

        async def handler(task: TaskRun) -> None:
            states.append((await task.async_queue.status(task.task_id)).status.state)

        work(world, awaited=handler)
        assert states == ["running"]
        assert reasons(world, task_id) == ["completed"]

    def test_a_thread_that_outlives_the_handler_makes_no_new_directory(self, world: World) -> None:
        first, second = world.create(), world.create()
        left: list[TaskRun] = []

        def handler(task: TaskRun) -> None:
            if not left:
                task.run_command(["true"])
                left.append(task)
                return
            (before,) = left
            until(lambda: not any(before.task_id in each.name for each in siblings(task)))
            with pytest.raises(outcomes.InternalError, match="has ended"):
                before.run_command(["true"])
            assert not any(before.task_id in each.name for each in siblings(task))

        work(world, handler, max_tasks=2)
        assert reasons(world, first) == ["completed"]
        assert reasons(world, second) == ["completed"]

    def test_secrets_do_not_get_into_the_log(self, world: World) -> None:
        task_id = world.create()

        def handler(task: TaskRun) -> None:
            task.register_secret("hunter2-and-more")
            task.log.info("the password is hunter2-and-more")
            task.run_command(["echo", "hunter2-and-more"])

        work(world, handler)
        assert "hunter2" not in log_of(world, task_id)

    def test_the_run_s_own_credentials_do_not_get_into_the_log(self, world: World) -> None:
        task_id = world.create()
        tokens: list[str] = []

        def handler(task: TaskRun) -> None:
            tokens.append(task.credentials.access_token)
            task.log.info("the token is %s", task.credentials.access_token)

        work(world, handler)
        (token,) = tokens
        assert "the token is" in log_of(world, task_id)
        assert token not in log_of(world, task_id)

    def test_credentials_that_the_worker_gets_during_a_run_do_not_get_into_the_log(
        self, world: World
    ) -> None:
        task_id = world.create()
        renewed = temporary_credentials(world.local.credentials, ["*"])

        def handler(task: TaskRun) -> None:
            worker.credentials = renewed
            task.log.info("the token is %s", renewed.access_token)

        worker = worker_for(world, handler, max_tasks=1)
        worker.serve()
        assert "the token is" in log_of(world, task_id)
        assert renewed.access_token not in log_of(world, task_id)


def test_all_clients_of_a_worker_learn_at_once_that_its_clock_is_wrong(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.local.clock.advance(hours=3)
    task_id = world.create()
    service = datetime.fromtimestamp(world.local.clock.now(), UTC)
    caplog.clear()
    found: list[datetime] = []

    async def handler(task: TaskRun) -> None:
        found.extend([task.queue.now(), task.async_queue.now()])
        task.upload_artifact("public/x", b"x", expires="1 hour")  # 2 hours ago, by the machine's clock
        await task.async_queue.status(task.task_id)
        await asyncio.to_thread(task.queue.status, task.task_id)

    work(world, awaited=handler)
    assert reasons(world, task_id) == ["completed"]
    expires = next(each.expires for each in world.queue.iter_artifacts(task_id, 0) if each.name == "public/x")
    for moment in (*found, expires - timedelta(hours=1)):
        assert abs(moment - service) < timedelta(minutes=1)
    warnings = [each for each in caplog.messages if "this machine's clock is" in each]
    assert len(warnings) == 1


@pytest.mark.parametrize(("pid", "warned"), [(1, 1), (2, 0)])
def test_a_worker_warns_if_nobody_would_reap_what_commands_leave_behind(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, pid: int, warned: int
) -> None:
    world.create()
    monkeypatch.setattr(os, "getpid", lambda: pid)
    work(world, lambda _: None)
    assert sum("docker run --init" in each for each in caplog.messages) == warned


def test_runs_share_the_worker_up_to_its_concurrency(world: World) -> None:
    tasks = [world.create() for _ in range(4)]
    together = threading.Barrier(4, timeout=WAIT)
    work(world, lambda _: together.wait(), concurrency=4, max_tasks=4)
    assert [reasons(world, task_id) for task_id in tasks] == [["completed"]] * 4


def test_it_ends_after_some_time_without_work(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    idle: list[float] = []
    worker = worker_for(world, lambda _: None, max_idle=600.0)
    worker.clock = clock = world.local.clock
    monkeypatch.setattr(worker, "on_idle", idle.append)
    clock.hold()

    def told_after_a_second() -> bool:
        clock.advance(seconds=1)
        return bool(idle)

    with Working(world, worker) as working:
        until(lambda: world.queue.list_workers("test-provisioner/test-worker").workers)
        until(told_after_a_second)
        while working.is_alive(within=0.05):
            clock.advance(seconds=60)
        working.wait_for_end()
    assert 20 <= idle[0] < 600
    assert "shutting down: no more claims, and no runs to wait for" in caplog.messages


@pytest.mark.parametrize("where", ["main thread", "another thread"])
def test_only_a_worker_outside_of_the_main_thread_looks_whether_the_program_ends(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches: list[str] = []

    async def program_ended() -> None:
        watches.append(threading.current_thread().name)
        await asyncio.Event().wait()

    monkeypatch.setattr(shutdown, "program_ended", program_ended)
    world.create()
    worker = worker_for(world, lambda _: None, max_tasks=1)
    if where == "main thread":
        worker.run()
    else:
        thread = threading.Thread(target=worker.run, name="of the worker")
        thread.start()
        thread.join(WAIT)
    assert watches == ([] if where == "main thread" else ["of the worker"])
