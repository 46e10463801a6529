"""Fixtures: an emulator of Azure storage, and a local queue that puts messages about tasks into it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator

import pytest

from taskqueue_client.local import LocalQueue
from tests.legacy.azurite import MAIN, Azurite
from tests.legacy.storage_view import StorageView
from tests.worker.queue_world import World


@pytest.fixture(scope="session")
def emulator_installed() -> None:
    """Skip the test if node, Azurite or the client library of Azure is not installed."""
    pytest.importorskip("azure.storage.queue", reason="azure-storage-queue is not installed")
    missing = "node" if shutil.which("node") is None else "" if MAIN.exists() else f"azurite ({MAIN})"
    if missing:
        if os.environ.get("TASKQUEUE_REQUIRE_NODE") == "1":
            pytest.fail(f"{missing} is not installed")
        pytest.skip(f"{missing} is not installed")


@pytest.fixture(scope="session")
def azurite(
    emulator_installed: None,  # noqa: ARG001 - skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Azurite]:
    """An emulator for all tests: each test uses another task queue."""
    emulator = Azurite(tmp_path_factory.mktemp("azurite"))
    yield emulator
    emulator.kill()


@pytest.fixture
def own_azurite(
    emulator_installed: None,  # noqa: ARG001 - skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Azurite]:
    """An emulator for one test, which may kill it."""
    emulator = Azurite(tmp_path_factory.mktemp("own_azurite"))
    yield emulator
    emulator.kill()


@pytest.fixture
def world(azurite: Azurite) -> Iterator[World]:
    with LocalQueue(legacy_azure=azurite.connection_string) as local:
        world = World(local)
        yield world
        world.close()


_numbers = itertools.count()


@pytest.fixture
def task_queue_id() -> str:
    """A task queue that no other test uses."""
    return f"legacy-{os.getpid()}/worker-{next(_numbers)}"


@pytest.fixture
def storage(azurite: Azurite, task_queue_id: str) -> Iterator[StorageView]:
    view = StorageView(azurite, task_queue_id)
    yield view
    view.close()
