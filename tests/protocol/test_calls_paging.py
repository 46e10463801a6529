"""Lists are walked to their end, one page at a time."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar, assert_type, cast, get_type_hints

import msgspec
import pytest

from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.paging import iterated, iterated_async
from taskqueue_client.errors import Attempted, ConnectionFailed, InvalidArgument
from taskqueue_client.models import (
    Artifact,
    ArtifactsPage,
    IdentifiedTask,
    PendingTask,
    PendingTasksPage,
    TaskQueuesPage,
    WorkersPage,
    WorkerSummary,
)
from tests.protocol.calls_contract import SLUGID

R = TypeVar("R")


class Shelf:
    """Responds to calls with a list of pages in turn, and records the calls."""

    iter_tasks = iterated(calls.iter_tasks)
    iter_workers = iterated(calls.iter_workers)
    iter_artifacts = iterated(calls.iter_artifacts)

    def __init__(self, pages: Sequence[object]) -> None:
        self._pages = iter(pages)
        self.asked: list[Call[Any]] = []

    def send(self, call: Call[R], /) -> R:
        self.asked.append(call)
        page = next(self._pages)
        if isinstance(page, Exception):
            raise page
        return cast("R", page)


class AsyncShelf:
    """An asynchronous `Shelf`."""

    iter_workers = iterated_async(calls.iter_workers)
    iter_artifacts = iterated_async(calls.iter_artifacts)

    def __init__(self, pages: Sequence[object]) -> None:
        self.shelf = Shelf(pages)

    async def send(self, call: Call[R], /) -> R:
        return self.shelf.send(call)


def _worker(name: str) -> WorkerSummary:
    return WorkerSummary(worker_group="g", worker_id=name, first_claim=datetime(2026, 1, 1, tzinfo=UTC))


PAGES = [
    WorkersPage(workers=[_worker("a"), _worker("b")], continuation_token="one"),
    WorkersPage(workers=[], continuation_token="two"),
    WorkersPage(workers=[_worker("c")]),
]
TOKENS = [None, "one", "two"]


def test_all_pages_are_walked_through_also_after_an_empty_one() -> None:
    shelf = Shelf(PAGES)
    assert [worker.worker_id for worker in shelf.iter_workers("p/w")] == ["a", "b", "c"]
    assert [call.query.get("continuationToken") for call in shelf.asked] == TOKENS


async def test_all_pages_are_walked_through_when_awaited() -> None:
    shelf = AsyncShelf(PAGES)
    assert [worker.worker_id async for worker in shelf.iter_workers("p/w")] == ["a", "b", "c"]
    assert [call.query.get("continuationToken") for call in shelf.shelf.asked] == TOKENS


def test_every_page_is_asked_for_with_the_same_query_and_body() -> None:
    page = calls.tasks([SLUGID]).returns
    shelf = Shelf([page(tasks=[], continuation_token="t"), page(tasks=[])])
    assert list(shelf.iter_tasks([SLUGID], page_size=7)) == []
    assert [call.query.get("limit") for call in shelf.asked] == ["7", "7"]
    assert [call.body for call in shelf.asked] == [{"taskIds": [SLUGID]}] * 2


class PendingRuns:
    """Pending runs of a few milliseconds. As in the service, a token is only a time in milliseconds.

    Args:
        moments: When each run became pending, in milliseconds.
    """

    iter_pending_tasks = iterated(calls.iter_pending_tasks)

    def __init__(self, *moments: int) -> None:
        self._runs = [
            PendingTask(task_id=f"{number}", run_id=0, task={}, inserted=datetime.fromtimestamp(moment, UTC))
            for number, moment in enumerate(moments)
        ]

    def send(self, call: Call[R], /) -> R:
        first = datetime.fromisoformat(call.query.get("continuationToken", "1970-01-01T00:00:00+00:00"))
        rest = [run for run in self._runs if run.inserted >= first]
        page = rest[: int(call.query["limit"])]
        token = page[-1].inserted.isoformat() if len(rest) > len(page) else None
        return cast("R", PendingTasksPage(tasks=page, continuation_token=token))


@pytest.mark.parametrize("page_size", range(1, 8))
def test_each_pending_run_is_returned_once_although_pages_overlap(page_size: int) -> None:
    runs = PendingRuns(1, 1, 1, 2, 3, 3).iter_pending_tasks("p/w", page_size=page_size)
    assert "".join(run.task_id for run in islice(runs, 20)) == "012345"


def test_each_worker_is_returned_once_although_others_are_added_meanwhile() -> None:
    moved = msgspec.structs.replace(_worker("b"), last_date_active=datetime.now(UTC))
    shelf = Shelf(
        [
            WorkersPage(workers=[_worker("a"), _worker("b")], continuation_token="one"),
            WorkersPage(workers=[_worker("aa"), _worker("b")], continuation_token="two"),
            WorkersPage(workers=[_worker("ab"), moved, _worker("a"), _worker("c")]),
        ]
    )
    workers = [worker.worker_id for worker in shelf.iter_workers("p/w")]
    assert workers == ["a", "b", "aa", "ab", "c"]


def test_a_page_is_not_asked_for_before_it_is_needed() -> None:
    shelf = Shelf(PAGES)
    workers = shelf.iter_workers("p/w")
    assert shelf.asked == []
    assert [next(workers).worker_id, next(workers).worker_id] == ["a", "b"]
    assert len(shelf.asked) == 1


async def test_an_asynchronous_iteration_can_be_interrupted_and_resumed() -> None:
    shelf = AsyncShelf(PAGES)
    workers = shelf.iter_workers("p/w")
    async for worker in workers:
        assert worker.worker_id == "a"
        break
    assert [worker.worker_id async for worker in workers] == ["b", "c"]


LOST = ConnectionFailed(Attempted("listWorkers", "GET", "http://h"), "lost")
LOSING = [PAGES[0], LOST, LOST, *PAGES[1:]]


def test_a_walk_goes_on_with_the_page_that_was_lost() -> None:
    workers = Shelf(LOSING).iter_workers("p/w")
    assert [next(workers).worker_id, next(workers).worker_id] == ["a", "b"]
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            next(workers)
    assert [worker.worker_id for worker in workers] == ["c"]


async def test_an_async_walk_goes_on_with_the_page_that_was_lost() -> None:
    workers = AsyncShelf(LOSING).iter_workers("p/w")
    assert [(await anext(workers)).worker_id, (await anext(workers)).worker_id] == ["a", "b"]
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await anext(workers)
    assert [worker.worker_id async for worker in workers] == ["c"]


@pytest.mark.parametrize("shelf", [Shelf([]), AsyncShelf([])], ids=["synchronous", "asynchronous"])
def test_a_bad_argument_is_refused_before_the_first_step(shelf: Shelf | AsyncShelf) -> None:
    with pytest.raises(InvalidArgument, match="run_id"):
        shelf.iter_artifacts(SLUGID, -1)


@pytest.mark.parametrize("shelf", [Shelf([]), AsyncShelf([])], ids=["synchronous", "asynchronous"])
def test_a_page_size_of_0_is_refused_as_the_list_would_look_empty(shelf: Shelf | AsyncShelf) -> None:
    with pytest.raises(
        InvalidArgument, match="page_size: 0 is not valid; expected a whole number, 1 or more"
    ):
        shelf.iter_workers("p/w", page_size=0)


def test_each_list_has_its_iterator_of_the_same_arguments() -> None:
    lists = [name for name in vars(calls) if name.startswith("list_")] + ["list_tasks", "list_statuses"]
    for name in lists:
        listed = getattr(calls, name, None) or getattr(calls, name.removeprefix("list_"))
        iterator = getattr(calls, name.replace("list_", "iter_"))
        given = set(inspect.signature(listed).parameters) - {"continuation_token", "limit"}
        # the Queue has no second page of provisioners: with a page size, some would be missing
        paged = set[str]() if name == "list_provisioners" else {"page_size"}
        assert given | paged == set(inspect.signature(iterator).parameters)
    assert len(lists) == 12


def test_help_shows_self_and_what_is_iterated_over() -> None:
    shown = str(inspect.signature(Shelf.iter_artifacts))
    assert shown.startswith("(self, /, task_id: str, run_id: int, *, page_size: int | None = None)")
    assert get_type_hints(Shelf.iter_artifacts)["return"] == Iterator[Artifact]
    assert get_type_hints(AsyncShelf.iter_workers)["return"] == AsyncIterator[WorkerSummary]
    assert Shelf.iter_artifacts.__doc__ == calls.iter_artifacts.__doc__


def test_both_kinds_of_iterators_are_typed() -> None:
    assert_type(Shelf([]).iter_tasks([]), Iterator[IdentifiedTask])
    assert_type(AsyncShelf([]).iter_workers("p/w"), AsyncIterator[WorkerSummary])
    assert_type(calls.list_task_queues(), Call[TaskQueuesPage])
    assert_type(calls.list_artifacts(SLUGID, 0), Call[ArtifactsPage])
