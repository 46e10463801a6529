"""What the page reads from the store, without a browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from taskqueue_client.local.page.views import Views
from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, WORKER, World, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 1200


@pytest.fixture
def world() -> Iterator[World]:
    made = World(claim_timeout=TIMEOUT)
    yield made
    made.close()


@pytest.fixture
def views(world: World) -> Views:
    return Views(world.core)


def next_moment(world: World, views: Views, name: str) -> float | None:
    """Seconds from now to the moment that the clock's dialog has under this name; None if it has none."""
    moment = views.moments()[name]
    return None if moment is None else round(moment - world.clock.now(), 3)


def test_the_next_claim_expiry_is_that_of_the_latest_reclaim(world: World, views: Views) -> None:
    task_id = world.running()
    world.clock.advance(600)
    world.engine.reclaim_task(world.caller, task_id, 0)
    assert next_moment(world, views, "claimExpiry") == TIMEOUT
    world.clock.advance(TIMEOUT)
    assert world.status(task_id)["runs"][0]["reasonResolved"] == "claim-expired"


def test_a_claim_that_cannot_expire_any_more_is_not_the_next_one(world: World, views: Views) -> None:
    world.fail(world.running(), "worker-shutdown")  # the claim's record stays until it would expire
    refused(world.claim, world.create(), 1)
    world.running(deadline=world.now(TIMEOUT / 2))  # ends as deadline-exceeded
    assert next_moment(world, views, "claimExpiry") is None


def test_a_run_is_shown_at_the_worker_that_has_claimed_it_although_others_tried(
    world: World, views: Views
) -> None:
    task_id = world.running()
    world.clock.advance(60)
    refused(world.claim, task_id, 0, "w2")
    for worker in (WORKER, "w2"):
        until = {"expires": world.now(HOUR)}
        world.engine.declare_worker(world.caller, QUEUE, (GROUP, worker), until)
    running = {each["workerId"]: each["running"] for each in views.overview()["workers"]}
    (run,) = running[WORKER]
    assert (run["taskId"], run["takenUntil"]) == (task_id, world.clock.now() - 60 + TIMEOUT)
    assert running["w2"] == []


def test_the_last_activity_of_a_worker_is_its_latest_request_for_tasks_or_reclaim(
    world: World, views: Views
) -> None:
    def since() -> list[float]:
        return [world.clock.now() - each["lastActive"] for each in views.overview()["workers"]]

    task_id = world.running()
    world.engine.declare_worker(world.caller, QUEUE, (GROUP, WORKER), {"expires": world.now(HOUR)})
    world.clock.advance(100)
    assert since() == [100]
    world.engine.reclaim_task(world.caller, task_id, 0)
    assert since() == [0]
    world.clock.advance(100)
    world.engine.reclaim_task(world.caller, task_id, 0)  # the worker's record may be half an hour old
    assert since() == [0]
    world.create()
    world.clock.advance(100)
    asyncio.run(world.claim_work())
    assert since() == [0]


def test_the_next_deadline_is_that_of_a_task_that_is_not_resolved(world: World, views: Views) -> None:
    world.completed(deadline=world.now(60))
    world.cancel(world.create(deadline=world.now(70)))
    assert next_moment(world, views, "deadline") is None
    task_id = world.create(deadline=world.now(HOUR))
    assert next_moment(world, views, "deadline") == HOUR
    world.clock.advance(HOUR)
    assert world.status(task_id)["runs"][0]["reasonResolved"] == "deadline-exceeded"


def test_pending_dependents_are_due_when_the_resolver_looks_next() -> None:
    world = World(resolver_interval=5)
    views = Views(world.core)
    world.clock.advance(3)
    required = world.running()
    dependent = world.create(dependencies=[required])
    assert next_moment(world, views, "dependencies") is None
    world.engine.report_completed(world.caller, required, 0, {})
    seconds = next_moment(world, views, "dependencies")
    assert seconds == 4
    world.clock.advance(seconds)
    assert world.status(dependent)["state"] == "pending"
    world.close()
