"""The objects of a run are freed with it, without the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from taskqueue_client.local.faults import Delay, Respond
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimEvent
from taskqueue_client.worker.outcomes import ClaimLost, TaskFailed
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import Told, World, running_keeper, until
from tests.worker.worker_world import AsyncHandler, Handler, artifact_names, work


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_run_that_has_ended_is_freed_at_once(world: World, *, is_awaited: bool) -> None:
    freed: list[weakref.ref[object]] = []

    def handler(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        task.run_command(["true"])
        task.upload_artifact("public/a.txt", b"a")

    async def awaited(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        await task.run_command_async(["true"])
        task.upload_artifact("public/a.txt", b"a")

    for _ in range(2):
        world.create()
    work(world, None if is_awaited else handler, awaited=awaited if is_awaited else None, max_tasks=2)
    assert [each() for each in freed] == [None, None]


@pytest.mark.usefixtures("no_collection")
def test_a_worker_forgets_a_run_that_has_ended_before_the_next_run_ends(world: World) -> None:
    """So the worker neither reclaims the run nor polls its status."""
    first = world.create()

    def handler(task: TaskRun) -> None:
        if task.task_id != first:
            until(lambda: first not in claimed_runs())

    second = world.create()
    work(world, handler, max_tasks=2)
    assert world.run(second).reason_resolved == "completed"


def claimed_runs() -> set[str]:
    """Return the ids of the tasks of all runs in memory."""
    return {each.task_id for each in gc.get_objects() if type(each) is ClaimedRun}


def fails(task: TaskRun) -> None:
    message = f"{task.task_id} has failed"
    raise TaskFailed(message)


def has_a_command_that_fails(task: TaskRun) -> None:
    task.run_command(["false"])


async def fails_awaited(task: TaskRun) -> None:
    fails(task)


async def has_an_awaited_command_that_fails(task: TaskRun) -> None:
    await task.run_command_async(["false"])


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("handler", [fails, has_a_command_that_fails])
def test_a_run_that_has_failed_is_freed_at_once(world: World, handler: Handler) -> None:
    """The traceback of its error refers to the run."""
    freed: list[weakref.ref[object]] = []

    def seen(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        handler(task)

    for _ in range(2):
        world.create()
    work(world, seen, max_tasks=2)
    assert [each() for each in freed] == [None, None]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("handler", [fails_awaited, has_an_awaited_command_that_fails])
def test_a_run_whose_async_handler_has_failed_is_freed_at_once(world: World, handler: AsyncHandler) -> None:
    freed: list[weakref.ref[object]] = []

    async def seen(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        await handler(task)

    for _ in range(2):
        world.create()
    work(world, awaited=seen, max_tasks=2)
    assert [each() for each in freed] == [None, None]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_run_whose_log_or_link_is_refused_is_freed_at_once(world: World, *, is_link: bool) -> None:
    freed: list[weakref.ref[object]] = []
    task_id = world.create()
    if not is_link:
        world.local.faults.add(Respond(endpoint="storage.put", status=413))

    def handler(task: TaskRun) -> None:
        freed.append(weakref.ref(task.canceled))
        if is_link:  # the Queue then refuses the worker's link
            task.queue.create_link_artifact(
                task_id, 0, "public/logs/live.log", "public/x", expires=task.definition["expires"]
            )

    work(world, handler)
    assert [each() for each in freed] == [None]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_run_that_has_uploaded_a_checkpoint_is_freed_at_once(world: World, *, is_under_way: bool) -> None:
    """Also if the end of its handler cancels the upload of the checkpoint."""
    freed: list[weakref.ref[object]] = []
    task_id = world.create()
    if is_under_way:
        world.local.faults.add(Delay(endpoint="storage.put", seconds=3600))

    def handler(task: TaskRun) -> None:
        freed.append(weakref.ref(task))
        if is_under_way:
            world.until_struck()
        else:
            until(lambda: "public/logs/live.log" in artifact_names(world, task_id))
        fails(task)

    work(world, handler, log_checkpoint_interval=0.02)
    assert [each() for each in freed] == [None]


class Heard:
    """Notes the reason why a run was lost."""

    def __init__(self) -> None:
        self.reasons: list[ClaimLost] = []

    def hear(self, reason: ClaimLost) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_lost_run_keeps_no_reference_to_its_callbacks(world: World, *, is_late: bool) -> None:
    world.create()
    told, heard = Told(), Heard()
    with running_keeper(world, told, max_tasks=1):
        (held,) = told.runs(1)
        if is_late:
            held.apply(ClaimEvent.LEASE_ENDED)
        held.when_lost(heard.hear)
        held.apply(ClaimEvent.LEASE_ENDED)
        assert len(heard.reasons) == 1
        freed = weakref.ref(heard)
        del heard
        assert freed() is None
