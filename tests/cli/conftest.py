"""Fixtures of the tests of the command line."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.clock import SystemClock
from tests.cli.command import Report, Worker


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process retry calls without a pause."""

    def sleep(*_: object) -> None: ...

    async def sleep_async(*_: object) -> None: ...

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    monkeypatch.setattr(SystemClock, "sleep_async", sleep_async)


@pytest.fixture
def definition() -> dict[str, Any]:
    """The shortest task definition that `submit` accepts."""
    return {
        "taskQueueId": "proj/linux",
        "metadata": {"owner": "me@example.com", "source": "https://example.com/source"},
    }


@pytest.fixture
def worker(queue: Queue) -> Any:
    """Reports tasks of proj/linux by their names on a thread; the end of the block waits for all reports."""

    @contextmanager
    def working(**reports: Report) -> Generator[None]:
        thread = threading.Thread(target=Worker(queue, reports).work)
        thread.start()
        yield
        thread.join()

    return working


@pytest.fixture
def running(queue: Queue, task_factory: Any) -> tuple[str, Queue]:
    """The id of a running task, and a client with the credentials of its run."""
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux"))
    (claim,) = queue.claim_work("proj/linux", worker_group="g", worker_id="w").tasks
    return task_id, queue.with_credentials(claim.credentials)
