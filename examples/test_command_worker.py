"""Tests of a worker, with the fixtures that come with the package: `local_queue`, `queue`, `task_factory`.

    pytest examples/test_command_worker.py

Nothing is mocked: the tasks are in a queue of this process, and the worker claims, runs and reports them.
"""
# ruff: noqa: D103, S101 - a test's name is its sentence

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from examples.command_worker import CommandWorker
from taskqueue_client import Queue, slugid
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.messages import Message
from taskqueue_client.models import Run
from taskqueue_client.testing import TaskFactory

RunPayload = Callable[[dict[str, Any]], tuple[str, Run]]


@pytest.fixture
def run_payload(
    local_queue: LocalQueue, queue: Queue, task_factory: TaskFactory, tmp_path: Path
) -> RunPayload:
    """Has a worker run one task; gives its id, and how its run ended."""

    def run(payload: dict[str, Any]) -> tuple[str, Run]:
        task_id = slugid()
        queue.create_task(task_id, task_factory(payload=payload))
        worker = CommandWorker(
            root_url=local_queue.root_url,
            credentials=local_queue.credentials,
            task_queue_id="test-provisioner/test-worker",
            worker_group="tests",
            worker_id="one",
            max_tasks=1,
            cancellation_poll_interval=0.1,
            work_directory=tmp_path,
        )
        worker.serve()
        return task_id, queue.status(task_id).status.runs[-1]

    return run


def test_a_command_that_succeeds_completes_the_task(run_payload: RunPayload, queue: Queue) -> None:
    payload = {"command": ["sh", "-c", "echo $COLOUR > out"], "env": {"COLOUR": "blue"}}
    task_id, run = run_payload({**payload, "artifacts": {"public/out.txt": "out"}})
    assert run.reason_resolved == "completed"
    assert queue.download_artifact(task_id, "public/out.txt").content == b"blue\n"


def test_a_command_that_fails_fails_the_task_and_its_output_is_in_the_log(
    run_payload: RunPayload, queue: Queue
) -> None:
    task_id, run = run_payload({"command": ["sh", "-c", "echo out of flour; exit 3"]})
    assert run.reason_resolved == "failed"
    assert b"out of flour" in queue.download_artifact(task_id, "public/logs/live.log").content


def test_a_payload_with_a_typing_error_is_malformed(run_payload: RunPayload, queue: Queue) -> None:
    task_id, run = run_payload({"comand": ["true"]})
    assert run.reason_resolved == "malformed-payload"
    assert b"comand" in queue.download_artifact(task_id, "public/logs/live.log").content


def test_a_task_that_is_canceled_while_it_runs_is_stopped(
    run_payload: RunPayload, local_queue: LocalQueue, queue: Queue
) -> None:
    started: SimpleQueue[str] = SimpleQueue()

    def note(message: Message) -> None:
        if message.exchange.endswith("/task-running"):
            started.put(message.body["status"]["taskId"])

    local_queue.subscribe(note)
    canceling = threading.Thread(target=lambda: queue.cancel_task(started.get()))
    canceling.start()
    _, run = run_payload({"command": ["sleep", "600"]})
    canceling.join()
    assert run.reason_resolved == "canceled"
