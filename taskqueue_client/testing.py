"""The pytest plugin: a local queue for each test that asks for one, and clients that talk to it.

Nothing has to be imported: pytest finds the fixtures when the package is installed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

async_fixture: Callable[..., Any] = pytest.fixture
with suppress(ImportError):  # else whatever runs the asynchronous tests takes care of fixtures, too
    from pytest_asyncio import fixture as async_fixture

if TYPE_CHECKING:
    from taskqueue_client import AsyncQueue, Queue
    from taskqueue_client.definitions import TaskDefinition
    from taskqueue_client.local import LocalQueue

TaskFactory = Callable[..., "TaskDefinition"]


@pytest.fixture
def local_queue() -> Iterator[LocalQueue]:
    """A queue in memory, on a free port of this machine and on a clock that the test can move."""
    from taskqueue_client.local import LocalQueue  # noqa: PLC0415 - tests that need no queue don't pay for it

    with LocalQueue() as local:
        yield local


@pytest.fixture
def queue(local_queue: LocalQueue) -> Iterator[Queue]:
    """A client of the local queue with all scopes."""
    from taskqueue_client import Queue  # noqa: PLC0415 - as above

    with Queue(local_queue.root_url, local_queue.credentials) as client:
        yield client


@async_fixture
async def async_queue(local_queue: LocalQueue) -> AsyncIterator[AsyncQueue]:
    """An asynchronous client of the local queue with all scopes; needs pytest-asyncio or the like."""
    from taskqueue_client import AsyncQueue  # noqa: PLC0415 - as above

    async with AsyncQueue(local_queue.root_url, local_queue.credentials) as client:
        yield client


@pytest.fixture
def task_factory(local_queue: LocalQueue) -> TaskFactory:
    """Makes task definitions: valid as they are, with any key replaced or added by name."""

    def make_task(**changes: Any) -> TaskDefinition:
        now = datetime.fromtimestamp(local_queue.clock.now(), UTC)
        definition: dict[str, Any] = {
            "taskQueueId": "test-provisioner/test-worker",
            "created": _iso(now),
            "deadline": _iso(now + timedelta(hours=1)),
            "expires": _iso(now + timedelta(days=1)),
            "payload": {},
            "metadata": {
                "name": "test task",
                "description": "made by a test",
                "owner": "tester@example.com",
                "source": "https://example.com/source",
            },
            **changes,
        }
        return cast("TaskDefinition", definition)

    return make_task


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
