"""Messages that libraries log in a handler go to the task's log."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import logging.config
import threading

import pytest

from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.worker_runner import JsonFormatter
from tests.worker.queue_world import WAIT, World, until
from tests.worker.run_outcomes import reasons
from tests.worker.worker_world import Working, log_of, work, worker_for

library = logging.getLogger("some.library")


@pytest.fixture
def world(world: World, caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO)
    return world


def messages(world: World, task_id: str) -> list[str]:
    """Return the messages of the library in the task's log, without times."""
    lines = log_of(world, task_id).splitlines()
    return [line.partition(" ")[2] for line in lines if "some.library" in line]


def test_messages_of_a_library_in_a_handlers_thread_go_to_the_tasks_log(world: World) -> None:
    task_id = world.create()
    work(world, lambda _: library.info("hello %s", "world"), capture_logging=True)
    assert messages(world, task_id) == ["INFO some.library: hello world"]


def test_without_the_setting_it_does_not(world: World) -> None:
    task_id = world.create()
    work(world, lambda _: library.info("hello"))
    assert messages(world, task_id) == []


def test_messages_of_tasks_and_their_threads_go_to_the_log_of_their_own_run(world: World) -> None:
    names = ["a", "b", "c"]
    task_ids = [world.create({"name": name}) for name in names]
    together = asyncio.Barrier(len(names))

    async def handler(task: TaskRun) -> None:
        name = task.payload["name"]

        async def child() -> None:
            library.info("%s in a child task", name)

        await together.wait()
        library.info("%s in the handler", name)
        await asyncio.gather(child(), asyncio.to_thread(library.info, "%s in a thread", name))

    work(world, awaited=handler, capture_logging=True, concurrency=3, max_tasks=3)
    for name, task_id in zip(names, task_ids, strict=True):
        assert sorted(messages(world, task_id)) == [
            f"INFO some.library: {name} in a child task",
            f"INFO some.library: {name} in a thread",
            f"INFO some.library: {name} in the handler",
        ]


def test_a_line_of_json_about_a_message_of_a_handler_names_its_run(world: World) -> None:
    task_ids = [world.create({"name": name}) for name in "abc"]
    together = asyncio.Barrier(len(task_ids))
    lines: list[dict[str, object]] = []

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter().document(record))

    async def handler(task: TaskRun) -> None:
        await together.wait()
        library.info(task.payload["name"])

    logging.getLogger().addHandler(shown := Shown())
    try:
        work(world, awaited=handler, concurrency=3, max_tasks=3)
        library.info("outside")
    finally:
        logging.getLogger().removeHandler(shown)
    named = {line["message"]: (line.get("task_id"), line.get("run_id")) for line in lines}
    assert {name: named[name] for name in ("a", "b", "c", "outside")} == {
        **{name: (task_id, 0) for name, task_id in zip("abc", task_ids, strict=True)},
        "outside": (None, None),
    }


def test_a_thread_that_a_handler_starts_needs_its_context(world: World) -> None:
    task_id = world.create()

    def handler(_: TaskRun) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(library.info, "with its context"))
        thread.start()
        thread.join(WAIT)

    work(world, handler, capture_logging=True)
    assert messages(world, task_id) == ["INFO some.library: with its context"]


def test_secrets_are_masked_and_tracebacks_shown(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.register_secret("hunter2hunter2")
        try:
            raise ValueError("hunter2hunter2")  # noqa: TRY301 - to be logged below
        except ValueError:
            library.exception("login failed")

    work(world, handler, capture_logging=True)
    assert messages(world, task_id) == ["ERROR some.library: login failed"]
    assert "ValueError: [masked]" in log_of(world, task_id)
    assert "hunter2" not in log_of(world, task_id)


def test_the_workers_own_messages_and_those_outside_of_handlers_do_not(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        logging.getLogger("taskqueue_client.worker").warning("about the worker")
        thread = threading.Thread(target=library.info, args=("of another thread",))
        thread.start()
        thread.join(WAIT)
        task.log.info("of the task")

    work(world, handler, capture_logging=True)
    text = log_of(world, task_id)
    assert "INFO of the task" in text
    assert "about the worker" not in text
    assert messages(world, task_id) == []


def test_a_message_whose_arguments_do_not_fit_is_told_in_the_log_of_the_task_and_fails_no_run(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "disabled", False)
    task_id = world.create()
    broken = logging.makeLogRecord({"name": "some.library", "msg": "%d", "args": ("text",), "levelno": 20})

    def handler(_: TaskRun) -> None:
        for each in logging.getLogger().handlers:
            if type(each).__name__ == "LoggingCapture":
                each.handle(broken)

    work(world, handler, capture_logging=True)
    assert reasons(world, task_id) == ["completed"]
    assert "cannot be formatted: TypeError: %d format" in log_of(world, task_id)
    assert "text" not in capsys.readouterr().err  # it may be a secret


def test_a_handler_that_configures_logging_anew_takes_no_messages_from_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    tasks = [world.create() for _ in range(2)]

    def handler(_: TaskRun) -> None:
        library.info("hello")
        logging.basicConfig(force=True)

    work(world, handler, capture_logging=True, max_tasks=2)
    assert [messages(world, each) for each in tasks] == [["INFO some.library: hello"]] * 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_configures_logging_anew_does_not_disable_the_log_of_the_worker(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    for logger in logging.getLogger().manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            monkeypatch.setattr(logger, "disabled", logger.disabled)
    task_id = world.create()
    configured, told = threading.Event(), threading.Event()

    def handler(_: TaskRun) -> None:
        logging.config.dictConfig({"version": 1})  # which disables existing loggers by default
        configured.set()
        assert told.wait(WAIT)

    async def awaited(task: TaskRun) -> None:
        handler(task)

    worker = worker_for(world, None if is_async else handler, awaited=awaited if is_async else None)
    with Working(world, worker) as working:
        assert configured.wait(WAIT)
        worker.shutdown()
        until(lambda: "shutting down: no more claims; 1 run" in caplog.text)
        told.set()
        until(working.has_ended)
    lines = [each.message for each in caplog.records if each.name == "taskqueue_client.worker"]
    assert any(line.startswith(f"run {task_id}/0 ended: completed") for line in lines)
    assert lines[-1] == "the worker has ended"


def test_nothing_is_captured_after_the_worker(world: World) -> None:
    before = list(logging.getLogger().handlers)
    world.create()
    work(world, lambda _: None, capture_logging=True)
    assert logging.getLogger().handlers == before
