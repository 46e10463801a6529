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
    """A queue that the environment names, in which this installation's commands are found."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return deployment


@pytest.fixture
def working(deployment: LocalQueue) -> Callable[..., object]:
    """`taskqueue work` with an example's class, while the block is entered."""
    del deployment  # its variables are in the environment

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
