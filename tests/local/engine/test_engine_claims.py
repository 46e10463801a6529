"""claimWork, claimTask and reclaimTask, and the long poll."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, WORKER, Asker, World, refused

TIMEOUT = 1200


def ids(claims: list[dict[str, Any]]) -> list[str]:
    return [claim["status"]["taskId"] for claim in claims]


async def end(waiting: asyncio.Task[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the claims of a long poll; fail if it does not end."""
    return await asyncio.wait_for(waiting, 10)


async def settle() -> None:
    """Let all tasks of the event loop run until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_claim_has_what_the_worker_needs(world: World) -> None:
    world.clock.advance(0.95)
    task_id = world.create()
    world.sent()
    (claim,) = await world.claim_work()
    names = ["status", "runId", "workerGroup", "workerId", "takenUntil", "task", "credentials"]
    assert list(claim) == names
    assert claim["takenUntil"] == "2026-11-21T10:33:18.95+00:00"
    assert claim["task"] == world.engine.task(task_id)
    assert claim["status"]["runs"] == [
        {
            "runId": 0,
            "state": "running",
            "reasonCreated": "scheduled",
            "workerGroup": GROUP,
            "workerId": WORKER,
            "takenUntil": world.now(TIMEOUT),
            "scheduled": world.now(),
            "started": world.now(),
        }
    ]
    (message,) = world.taken()
    assert message.exchange.endswith("/task-running")
    assert message.body["takenUntil"] == claim["takenUntil"]


async def test_a_runs_credentials_are_named_and_have_the_tasks_scopes(world: World) -> None:
    task_id = world.create(scopes=["b", "a"])
    (claim,) = await world.claim_work()
    certificate = json.loads(claim["credentials"]["certificate"])
    where = f"{task_id}/0"
    assert claim["credentials"]["clientId"] == f"task-client/{where}/on/wg/w1/until/1795257198"
    assert certificate["scopes"] == [
        f"queue:reclaim-task:{where}",
        f"queue:resolve-task:{where}",
        f"queue:create-artifact:{where}",
        "b",
        "a",
    ]
    assert certificate["expiry"] - certificate["start"] == TIMEOUT * 1000


async def test_scopes_are_asked_for_the_queue_and_the_worker_first(world: World) -> None:
    world.create()
    body = {"workerGroup": "g", "workerId": "i", "tasks": 1}
    await world.engine.claim_work(world.caller, QUEUE, body)
    assert world.caller.asked[-1] == {"taskQueueId": QUEUE, "workerGroup": "g", "workerId": "i"}
    with pytest.raises(Refusal):
        await world.engine.claim_work(Asker(refuse=True), QUEUE, {**body, "workerId": "j"})
    assert refused(world.engine.get_worker, QUEUE, ("g", "j")).status == 404


async def test_the_most_urgent_come_first_and_then_the_oldest(world: World) -> None:
    low = [world.create(priority="low") for _ in range(2)]
    top = world.create(priority="highest")
    mid = [world.create(priority="medium") for _ in range(2)]
    assert ids(await world.claim_work(2)) == [top, mid[0]]
    assert ids(await world.claim_work(32)) == [mid[1], *low]


async def test_a_retry_goes_to_the_back_of_its_priority(world: World) -> None:
    first, second = world.create(), world.create()
    await world.claim_work(1)
    world.fail(first, "worker-shutdown")
    assert ids(await world.claim_work(2)) == [second, first]


async def test_only_tasks_before_their_deadline_are_handed_out() -> None:
    world = World(deadline_delay=60)
    late = world.create(deadline=world.now(HOUR))
    good = world.create(deadline=world.now(HOUR + 1))
    world.clock.advance(HOUR)
    assert ids(await world.claim_work(2)) == [good]
    assert world.status(late)["state"] == "pending"
    world.close()


async def test_a_waiting_claim_wakes_as_soon_as_a_task_is_pending(world: World) -> None:
    waiting = asyncio.create_task(world.claim_work(5))
    await settle()
    task_id = world.create()
    assert ids(await end(waiting)) == [task_id]


async def assert_nothing_after_twenty_seconds(world: World) -> None:
    waiting = asyncio.create_task(world.claim_work())
    await settle()
    world.clock.advance(19.9)
    await settle()
    assert not waiting.done()
    world.clock.advance(0.1)
    assert await end(waiting) == []


async def test_a_claim_that_finds_nothing_ends_after_twenty_seconds(world: World) -> None:
    await assert_nothing_after_twenty_seconds(world)


async def test_waiting_claims_are_served_first_come_first_served(world: World) -> None:
    waiting: list[asyncio.Task[list[dict[str, Any]]]] = []
    for name in ("a", "b", "c"):
        waiting.append(asyncio.create_task(world.claim_work(1, worker=name)))
        await settle()
    tasks = [world.create() for _ in range(3)]
    assert [ids(await end(each)) for each in waiting] == [[task_id] for task_id in tasks]


async def test_runs_that_the_first_request_does_not_claim_go_to_the_next(world: World) -> None:
    first = asyncio.create_task(world.claim_work(2, worker="a"))
    await settle()
    second = asyncio.create_task(world.claim_work(2, worker="b"))
    await settle()
    tasks = [world.create() for _ in range(3)]
    assert (ids(await end(first)), ids(await end(second))) == (tasks[:2], tasks[2:])


async def test_a_new_request_does_not_overtake_waiting_ones(world: World) -> None:
    first = asyncio.create_task(world.claim_work(1, worker="a"))
    await settle()
    task_id = world.create()
    newcomer = asyncio.create_task(world.claim_work(1, worker="b"))
    assert ids(await end(first)) == [task_id]
    await settle()
    assert not newcomer.done()
    newcomer.cancel()


async def test_a_client_that_hangs_up_loses_nothing(world: World) -> None:
    gone = asyncio.create_task(world.claim_work(1, worker="a"))
    await settle()
    other = asyncio.create_task(world.claim_work(1, worker="b"))
    await settle()
    task_id = world.create()  # wakes the first poll, which is canceled before it runs again
    gone.cancel()
    assert ids(await end(other)) == [task_id]
    assert world.status(task_id)["runs"][0]["workerId"] == "b"


async def test_a_wait_for_one_queue_ignores_others(world: World) -> None:
    waiting = asyncio.create_task(world.claim_work(queue="prov/other"))
    await settle()
    world.create()
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_claims_wait_for_retries_too(world: World) -> None:
    task_id = world.create()
    await world.claim_work()
    waiting = asyncio.create_task(world.claim_work())
    await settle()
    world.fail(task_id, "intermittent-task")
    (claim,) = await end(waiting)
    assert claim["runId"] == 1


async def test_a_worker_in_quarantine_waits_and_gets_nothing(world: World) -> None:
    world.create()
    await world.claim_work()
    body = {"quarantineUntil": world.now(HOUR)}
    world.engine.quarantine_worker(world.caller, QUEUE, (GROUP, WORKER), body)
    task_id = world.create()
    await assert_nothing_after_twenty_seconds(world)
    assert world.status(task_id)["state"] == "pending"


def test_claim_task_checks_task_scopes_deadline_quarantine_and_run_in_this_order(world: World) -> None:
    body = {"workerGroup": GROUP, "workerId": WORKER}
    nobody = Asker(refuse=True)
    assert refused(world.engine.claim_task, nobody, slugid(), 1, body).status == 404
    task_id = world.create()
    assert refused(world.engine.claim_task, nobody, task_id, 1, body).status == 403
    assert refused(world.engine.claim_task, world.caller, task_id, 1, body).status == 404
    worker = world.caller, QUEUE, (GROUP, WORKER)
    world.engine.declare_worker(*worker, {"expires": world.now(48 * HOUR)})
    world.engine.quarantine_worker(*worker, {"quarantineUntil": world.now(48 * HOUR)})
    quarantined = refused(world.engine.claim_task, world.caller, task_id, 1, body)
    assert (quarantined.status, "quarantine" in quarantined.message) == (409, True)
    world.clock.advance(2 * HOUR)
    assert refused(world.engine.claim_task, nobody, task_id, 1, body).status == 403
    late = refused(world.engine.claim_task, world.caller, task_id, 1, body)
    assert (late.status, "deadline" in late.message) == (409, True)


def test_claim_task_asks_scopes_for_the_queue_and_the_worker(world: World) -> None:
    task_id = world.create()
    world.caller.asked.clear()
    world.claim(task_id)
    expected = {"provisionerId": "prov", "workerType": "wt", "workerGroup": GROUP, "workerId": WORKER}
    assert world.caller.asked == [expected]


def test_the_same_worker_may_claim_its_run_again(world: World) -> None:
    task_id = world.create()
    first = world.claim(task_id)
    world.clock.advance(60)
    world.sent()
    second = world.claim(task_id)
    assert (second["takenUntil"], second["status"]) == (first["takenUntil"], first["status"])
    assert world.sent() == ["task-running"]
    assert refused(world.claim, task_id, 0, "other").status == 409


async def test_a_run_from_claim_work_cannot_be_claimed_by_id(world: World) -> None:
    task_id = world.create()
    await world.claim_work()
    assert refused(world.claim, task_id).status == 409


def test_resolved_and_older_runs_cannot_be_claimed(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "worker-shutdown")
    assert refused(world.claim, task_id, 0).status == 409
    world.claim(task_id, 1)


async def test_claim_task_is_a_conflict_for_a_worker_in_quarantine(world: World) -> None:
    world.create()
    await world.claim_work()
    world.engine.quarantine_worker(world.caller, QUEUE, (GROUP, WORKER), {"quarantineUntil": world.now(HOUR)})
    task_id = world.create()
    assert refused(world.claim, task_id).status == 409
    assert world.status(task_id)["state"] == "pending"


def test_reclaim_extends_the_claim_by_another_timeout(world: World) -> None:
    task_id = world.running()
    world.clock.advance(600)
    world.sent()
    response = world.engine.reclaim_task(world.caller, task_id, 0)
    names = ["status", "runId", "workerGroup", "workerId", "takenUntil", "credentials"]
    assert list(response) == names
    assert response["takenUntil"] == world.now(TIMEOUT) == response["status"]["runs"][0]["takenUntil"]
    assert world.sent() == []
    world.clock.advance(TIMEOUT - 0.001)
    assert world.status(task_id)["state"] == "running"
    world.clock.advance(0.001)
    assert world.status(task_id)["state"] == "pending"


def test_reclaim_works_until_the_resolver_has_acted() -> None:
    world = World(resolver_interval=5)
    task_id = world.running()
    world.clock.advance(TIMEOUT)
    world.clock.advance(1)
    world.engine.reclaim_task(world.caller, task_id, 0)
    world.clock.advance(5)
    assert world.status(task_id)["state"] == "running"
    world.close()


def test_reclaim_is_refused_for_a_run_that_is_missing_resolved_or_not_claimed(world: World) -> None:
    assert refused(world.engine.reclaim_task, world.caller, slugid(), 0).status == 404
    task_id = world.create()
    assert refused(world.engine.reclaim_task, world.caller, task_id, 1).status == 404
    assert refused(world.engine.reclaim_task, world.caller, task_id, 0).status == 409
    world.claim(task_id)
    world.fail(task_id, "worker-shutdown")
    assert refused(world.engine.reclaim_task, world.caller, task_id, 0).status == 409


def test_reclaim_is_refused_from_the_deadline_on() -> None:
    world = World(deadline_delay=60, claim_timeout=3 * HOUR)
    task_id = world.running()
    world.clock.advance(2 * HOUR)
    assert refused(world.engine.reclaim_task, world.caller, task_id, 0).status == 409
    world.engine.report_completed(world.caller, task_id, 0, {})
    world.close()


def test_a_refused_reclaim_leaves_a_claim_that_counts_until_it_expires(world: World) -> None:
    task_id = world.completed()
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0
    refused(world.engine.reclaim_task, world.caller, task_id, 0)
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 1
    world.clock.advance(TIMEOUT)
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0
    assert world.status(task_id)["state"] == "completed"


def test_a_reclaim_makes_worker_and_queue_known_for_a_day(world: World) -> None:
    task_id = world.running()  # by claimTask, which makes no worker known
    with pytest.raises(Refusal):
        world.engine.get_worker(QUEUE, (GROUP, WORKER))
    world.clock.advance(600)
    world.engine.reclaim_task(world.caller, task_id, 0)
    worker = world.engine.get_worker(QUEUE, (GROUP, WORKER))
    assert (worker["lastDateActive"], worker["expires"]) == (world.now(), world.now(24 * HOUR))


@pytest.mark.parametrize("run_id", [0, 1, 2**31 - 1])
def test_a_refused_claim_task_leaves_a_claim_that_counts_until_it_expires(world: World, run_id: int) -> None:
    task_id = world.running()
    world.engine.report_completed(world.caller, task_id, 0, None)
    with pytest.raises(Refusal):
        world.claim(task_id, run_id, worker="other")
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 1
    (claimed,) = world.engine.list_claimed_tasks(QUEUE, None, 1000)["tasks"]
    assert (claimed["runId"], claimed["workerId"]) == (run_id, "other")
    world.clock.advance(1201)
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0
    assert world.status(task_id)["state"] == "completed"


def test_a_claim_task_that_is_refused_in_the_moment_of_the_claim_does_not_change_the_claimants_record(
    world: World,
) -> None:
    task_id = world.running()
    refused(world.claim, task_id, worker="w2")
    (listed,) = world.engine.list_claimed_tasks(QUEUE, None, 10)["tasks"]
    assert listed["workerId"] == WORKER
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.status(task_id)["runs"][0]["reasonResolved"] == "worker-shutdown"


def test_the_record_of_a_run_that_does_not_exist_survives_the_workers_removal(world: World) -> None:
    task_id = world.create()
    with pytest.raises(Refusal):
        world.claim(task_id, 3)
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.status(task_id)["state"] == "pending"


def test_a_repeated_claim_task_has_fresh_credentials_and_its_old_taken_until(world: World) -> None:
    task_id = world.create()
    first = world.claim(task_id)
    world.clock.advance(60)
    second = world.claim(task_id)
    assert second["takenUntil"] == first["takenUntil"]
    starts = [json.loads(claim["credentials"]["certificate"])["start"] for claim in (first, second)]
    untils = [float(claim["credentials"]["clientId"].rpartition("/")[2]) for claim in (first, second)]
    assert (starts[1] - starts[0], untils[1] - untils[0]) == (60_000, 60)
    world.clock.advance(1150)
    assert world.status(task_id)["runs"][0]["reasonResolved"] == "claim-expired"
