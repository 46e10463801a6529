"""Tests of a worker, with `run_handler` and the fixtures that come with the package.

    pytest examples/test_command_worker.py

`run_handler` calls the handler without a queue. With `run_worker`, nothing is mocked: the tasks are in a
queue of this process, and the worker claims, runs and reports them.
"""
# ruff: noqa: D103, S101 - a test's name is its sentence

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from examples.command_worker import CommandWorker
from taskqueue_client import LocalQueue, Queue
from taskqueue_client.local import Message
from taskqueue_client.testing import TaskRunner, run_handler


def test_a_command_that_succeeds_completes_the_task() -> None:
    payload = {"command": ["sh", "-c", "echo $COLOUR > out"], "env": {"COLOUR": "blue"}}
    result = run_handler(CommandWorker, {**payload, "artifacts": {"public/out.txt": "out"}})
    assert result.outcome == "completed"
    assert result.artifacts == {"public/out.txt": b"blue\n"}


def test_a_command_that_fails_fails_the_task_and_its_output_is_in_the_log() -> None:
    result = run_handler(CommandWorker, {"command": ["sh", "-c", "echo out of flour; exit 3"]})
    assert result.outcome == "failed"
    assert "out of flour" in result.log


def test_a_payload_with_a_typing_error_is_malformed() -> None:
    result = run_handler(CommandWorker, {"comand": ["true"]})
    assert result.outcome == "malformed-payload"
    assert "comand" in result.log


@pytest.mark.parametrize(
    "wrong",
    [{"artifacts": {"public/größe": "x"}}, {"artifacts": {"public/x": "../x"}}, {"env": {"A=B": "x"}}],
    ids=str,
)
def test_a_payload_with_names_that_the_worker_refuses_is_malformed(wrong: dict[str, object]) -> None:
    result = run_handler(CommandWorker, {"command": ["true"], **wrong})
    assert result.outcome == "malformed-payload"
    assert "the payload has 1 problem:" in result.log


def test_a_task_of_a_queue_is_claimed_run_and_reported(run_worker: TaskRunner, queue: Queue) -> None:
    payload = {"command": ["sh", "-c", "echo blue > out"], "artifacts": {"public/out.txt": "out"}}
    result = run_worker(CommandWorker, payload)
    assert result.outcome == "completed"
    assert queue.download_artifact(result.task_id, "public/out.txt").content == b"blue\n"


def test_a_task_that_is_canceled_while_it_runs_is_stopped(
    run_worker: TaskRunner, local_queue: LocalQueue, queue: Queue
) -> None:
    started: SimpleQueue[str] = SimpleQueue()

    def note(message: Message) -> None:
        if message.exchange.endswith("/task-running"):
            started.put(message.body["status"]["taskId"])

    local_queue.subscribe(note)
    canceling = threading.Thread(target=lambda: queue.cancel_task(started.get()))
    canceling.start()
    result = run_worker(CommandWorker, {"command": ["sleep", "600"]})
    canceling.join()
    assert result.outcome == "canceled"
