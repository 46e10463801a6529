"""A deployment for the examples: a local queue in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskqueue_client.local import LocalQueue

ROOT = Path(__file__).parents[2]


@pytest.fixture
def deployment(deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> LocalQueue:
    """Return a local queue that the environment names; PATH leads to this installation's commands."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return deployment


@pytest.fixture
def working(deployment: LocalQueue) -> Callable[..., object]:
    """Return a context manager that runs `taskqueue work` with an example's class, and waits for its end."""
    del deployment  # the environment has its variables

    @contextmanager
    def worker(name: str, task_queue_id: str, *options: str) -> Generator[subprocess.Popen[str]]:
        identity = ["--task-queue-id", task_queue_id, "--worker-group", "tests", "--worker-id", "one"]
        with subprocess.Popen(
            ["taskqueue", "work", name, *identity, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
                _, errors = process.communicate(timeout=120)
                assert process.returncode == 0, errors
            finally:
                process.kill()

    return worker
