"""Workers, task queues, provisioners, counts and the lists of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, WORKER, Asker, refused

if TYPE_CHECKING:
    from tests.local.engine.engine_world import World

DAY = 24 * HOUR
ALL = 1000


async def seen(world: World, worker: str = WORKER, queue: str = QUEUE) -> None:
    """Make a worker known by claimWork."""
    world.create(taskQueueId=queue)
    await world.claim_work(queue=queue, worker=worker)


def declare(world: World, worker: str, seconds: float, queue: str = QUEUE) -> dict[str, Any]:
    body = {"expires": world.now(seconds)}
    declared: dict[str, Any] = world.engine.declare_worker(world.caller, queue, (GROUP, worker), body)
    return declared


def quarantine(world: World, seconds: float, **more: str) -> dict[str, Any]:
    body = {"quarantineUntil": world.now(seconds), **more}
    args = (world.caller, QUEUE, (GROUP, WORKER), body)
    shown: dict[str, Any] = world.engine.quarantine_worker(*args)
    return shown


def get(world: World, worker: str = WORKER) -> dict[str, Any]:
    shown: dict[str, Any] = world.engine.get_worker(QUEUE, (GROUP, worker))
    return shown


def workers(world: World, *, quarantined: bool | None = None) -> list[str]:
    listed = world.engine.list_workers(QUEUE, None, ALL, quarantined)["workers"]
    return [worker["workerId"] for worker in listed]


async def test_claim_work_makes_worker_and_queue_known_for_a_day(world: World) -> None:
    task_id = world.create()
    assert refused(world.engine.get_task_queue, QUEUE).status == 404
    await world.claim_work()
    assert world.engine.get_task_queue(QUEUE) == {
        "taskQueueId": QUEUE,
        "expires": world.now(DAY),
        "lastDateActive": world.now(),
        "description": "",
        "stability": "experimental",
    }
    assert get(world) == {
        "taskQueueId": QUEUE,
        "workerGroup": GROUP,
        "workerId": WORKER,
        "quarantineUntil": "2016-11-21T10:13:18.000Z",
        "expires": world.now(DAY),
        "firstClaim": world.now(),
        "recentTasks": [{"runId": 0, "taskId": task_id}],
        "lastDateActive": world.now(),
        "provisionerId": "prov",
        "workerType": "wt",
    }


async def test_activity_is_written_down_every_half_hour(world: World) -> None:
    await seen(world)
    first = world.now()
    world.clock.advance(1799)
    await seen(world)
    assert get(world)["lastDateActive"] == first
    world.clock.advance(1)
    await seen(world)
    assert get(world)["lastDateActive"] == world.now()
    assert get(world)["firstClaim"] == first
    assert world.engine.get_task_queue(QUEUE)["lastDateActive"] == world.now()


async def test_a_declaration_does_not_delay_the_record_of_activity(world: World) -> None:
    declare(world, WORKER, 60)
    world.clock.advance(30)
    await seen(world)
    assert get(world)["expires"] == world.engine.get_task_queue(QUEUE)["expires"] == world.now(DAY)
    assert get(world)["lastDateActive"] == world.now()
    world.clock.advance(1790)
    declare(world, WORKER, 60)
    world.clock.advance(10)
    await seen(world)
    assert get(world)["lastDateActive"] == world.engine.get_task_queue(QUEUE)["lastDateActive"] == world.now()


async def test_activity_of_a_queue_and_of_each_worker_is_written_down_separately(world: World) -> None:
    await seen(world, "w1")
    world.clock.advance(1200)
    await seen(world, "w2")
    late = world.now()
    world.clock.advance(600)
    await seen(world, "w2")
    assert world.engine.get_task_queue(QUEUE)["lastDateActive"] == world.now()
    assert get(world, "w2")["lastDateActive"] == late


def test_claim_task_makes_a_declared_queue_known_for_five_days(world: World) -> None:
    declare(world, WORKER, HOUR)
    world.running()
    assert world.engine.get_task_queue(QUEUE)["expires"] == world.now(5 * DAY)


def test_a_claim_that_a_quarantine_forbids_does_not_count_as_activity(world: World) -> None:
    declare(world, WORKER, 2 * HOUR)
    quarantine(world, 2 * HOUR)
    before = world.engine.get_task_queue(QUEUE)
    world.clock.advance(HOUR)
    task_id = world.create()
    assert refused(world.claim, task_id).status == 409
    assert world.engine.get_task_queue(QUEUE) == before


def test_claim_task_makes_the_queue_known_for_five_days_and_no_worker(world: World) -> None:
    world.running()
    assert world.engine.get_task_queue(QUEUE)["expires"] == world.now(5 * DAY)
    assert refused(get, world).status == 404


async def test_the_last_twenty_tasks_are_remembered(world: World) -> None:
    await seen(world)
    tasks = [world.running() for _ in range(25)]
    recent = get(world)["recentTasks"]
    assert [entry["taskId"] for entry in recent] == tasks[-20:]
    (listed,) = world.engine.list_workers(QUEUE, None, ALL, None)["workers"]
    assert list(listed) == ["workerGroup", "workerId", "firstClaim", "lastDateActive", "latestTask"]
    assert listed["latestTask"] == {"runId": 0, "taskId": tasks[-1]}


def test_declaring_makes_a_worker_known_and_never_shortens_its_life(world: World) -> None:
    world.caller.asked.clear()
    assert declare(world, "w2", HOUR)["expires"] == world.now(HOUR)
    assert world.caller.asked == [{"properties": ["expires"]}]
    assert world.engine.get_task_queue(QUEUE)["expires"] == world.now(HOUR)
    assert declare(world, "w2", HOUR / 2)["expires"] == world.now(HOUR)
    assert declare(world, "w2", 2 * HOUR)["expires"] == world.now(2 * HOUR)
    body = {"expires": world.now(-1)}
    assert refused(world.engine.declare_worker, world.caller, QUEUE, (GROUP, "w3"), body).code == "InputError"
    assert refused(get, world, "w3").status == 404
    refusal = refused(world.engine.declare_worker, Asker(refuse=True), QUEUE, (GROUP, "w3"), body)
    assert refusal.status == 403


def test_declaring_a_known_worker_until_a_past_date_only_notes_its_activity(world: World) -> None:
    """The service stores the later of the old and new date, and responds with 400 if both have passed."""
    declare(world, WORKER, HOUR)
    world.clock.advance(HOUR / 2)
    worker = declare(world, WORKER, -1)
    assert worker["expires"] == world.now(HOUR / 2)
    assert worker["lastDateActive"] == world.now()
    quarantine(world, 3 * DAY)
    world.clock.advance(2 * DAY)
    assert declare(world, WORKER, -1)["quarantineUntil"] == world.now(DAY)
    world.clock.advance(2 * DAY)
    body = {"expires": world.now()}
    expired = refused(world.engine.declare_worker, world.caller, QUEUE, (GROUP, WORKER), body)
    assert expired.code == "InputError"


@pytest.mark.parametrize("worker_type", ["Linux", "linux_64", "linux-", "9", "-", "x\n"])
def test_a_worker_of_a_type_that_no_task_can_have_is_not_declared(world: World, worker_type: str) -> None:
    body = {"expires": world.now(HOUR)}
    address = (f"prov/{worker_type}", (GROUP, WORKER))
    refusal = refused(world.engine.declare_worker, Asker(refuse=True), *address, body)
    assert refusal.status == 403
    assert refused(world.engine.declare_worker, world.caller, *address, body).code == "InputError"
    assert world.engine.list_task_queues(None, ALL) == {"taskQueues": []}


def test_an_expired_worker_or_queue_is_not_found(world: World) -> None:
    declare(world, WORKER, HOUR)
    world.clock.advance(HOUR)
    assert refused(get, world).status == 404
    assert refused(world.engine.get_task_queue, QUEUE).status == 404
    assert refused(world.engine.get_worker_type, QUEUE).status == 404
    assert refused(world.engine.get_provisioner, "prov").status == 404
    assert world.engine.list_task_queues(None, ALL) == {"taskQueues": []}
    world.clock.advance(0.001)
    assert workers(world) == []


def test_quarantine_is_for_known_workers(world: World) -> None:
    assert refused(quarantine, world, HOUR).status == 404
    declare(world, WORKER, HOUR)
    worker = quarantine(world, 2 * DAY, quarantineInfo="disk is full")
    assert worker["quarantineUntil"] == world.now(2 * DAY)
    assert worker["expires"] == world.now(DAY)
    assert "quarantineDetails" not in worker


def test_each_quarantine_is_remembered(world: World) -> None:
    declare(world, WORKER, HOUR)
    quarantine(world, 2 * DAY, quarantineInfo="disk is full")
    quarantine(world, -1, quarantineInfo="")
    details = world.store.value("SELECT quarantine_details FROM workers")
    first = f'[{{"clientId":"tester","updatedAt":"{world.now()}","quarantineUntil":"{world.now(2 * DAY)}"'
    assert details.decode().startswith(first + ',"quarantineInfo":"disk is full"}')
    assert details.decode().endswith('"quarantineInfo":"[unspecified]"}]')


def test_workers_are_listed_by_their_quarantine(world: World) -> None:
    declare(world, WORKER, HOUR)
    declare(world, "W0", HOUR)
    quarantine(world, 2 * DAY)
    assert workers(world) == ["W0", WORKER]
    assert workers(world, quarantined=True) == [WORKER]
    assert workers(world, quarantined=False) == ["W0"]
    quarantine(world, -1)
    assert workers(world, quarantined=True) == []


def test_a_worker_in_quarantine_stays_visible_until_its_end(world: World) -> None:
    declare(world, WORKER, HOUR)
    quarantine(world, 3 * DAY)
    world.clock.advance(2 * DAY)
    assert workers(world) == [WORKER]
    declare(world, "other", HOUR)
    assert get(world)["workerId"] == WORKER
    world.clock.advance(DAY + 0.001)
    assert workers(world) == []


def test_in_the_millisecond_of_its_expiry_a_worker_is_listed(world: World) -> None:
    declare(world, WORKER, HOUR)
    world.clock.advance(HOUR)
    assert workers(world) == workers(world, quarantined=False) == [WORKER]
    world.clock.advance(0.001)
    assert workers(world) == []


def test_in_the_millisecond_of_its_end_a_quarantine_filters_the_list_and_does_nothing_else(
    world: World,
) -> None:
    declare(world, WORKER, HOUR)
    quarantine(world, 0)
    (listed,) = world.engine.list_workers(QUEUE, None, ALL, quarantined=True)["workers"]
    assert "quarantineUntil" not in listed
    assert workers(world, quarantined=False) == []
    task_id = world.running()
    assert world.status(task_id)["state"] == "running"


def test_a_page_of_workers_may_be_empty_although_others_follow(world: World) -> None:
    declare(world, "a", HOUR)
    declare(world, "b", 2 * HOUR)
    world.clock.advance(HOUR + 0.001)
    page = world.engine.list_workers(QUEUE, None, 1, None)
    assert page["workers"] == []
    page = world.engine.list_workers(QUEUE, page["continuationToken"], 1, None)
    assert [worker["workerId"] for worker in page["workers"]] == ["b"]
    assert "continuationToken" not in page


def test_queues_are_seen_by_provisioner_and_worker_type(world: World) -> None:
    for queue in ("prov/b", "prov/a", "prov2/c", "pro/d"):
        declare(world, WORKER, HOUR, queue)
    engine = world.engine
    listed = [queue["taskQueueId"] for queue in engine.list_task_queues(None, ALL)["taskQueues"]]
    assert listed == ["pro/d", "prov2/c", "prov/a", "prov/b"]
    types = engine.list_worker_types("prov", None, ALL)["workerTypes"]
    assert [kind["workerType"] for kind in types] == ["a", "b"]
    assert engine.get_worker_type("prov/b") == types[1]
    assert list(types[0]) == [
        "taskQueueId",
        "expires",
        "lastDateActive",
        "description",
        "stability",
        "provisionerId",
        "workerType",
    ]
    first = engine.list_worker_types("prov", None, 1)
    assert engine.list_worker_types("prov", first["continuationToken"], 1)["workerTypes"] == types[1:]


def test_provisioners_are_summed_up_from_their_queues(world: World) -> None:
    declare(world, WORKER, HOUR, "prov/a")
    world.clock.advance(1)
    declare(world, WORKER, 2 * HOUR, "prov/b")
    declare(world, WORKER, HOUR, "other/b")
    engine = world.engine
    assert engine.get_provisioner("prov") == {
        "provisionerId": "prov",
        "expires": world.now(2 * HOUR),
        "lastDateActive": world.now(),
        "description": "",
        "stability": "experimental",
    }
    listed = engine.list_provisioners(None, ALL)["provisioners"]
    assert [one["provisionerId"] for one in listed] == ["other", "prov"]
    assert engine.list_provisioners(None, 1) == {"provisioners": listed[:1]}
    assert engine.list_provisioners(None, 0) == {"provisioners": listed}


def test_provisioners_stand_in_the_order_of_their_first_task_queues(world: World) -> None:
    for queue in ("prov/b", "prov2/c", "pro/d", "prov/d"):
        declare(world, WORKER, HOUR, queue)
    queues = [queue["taskQueueId"] for queue in world.engine.list_task_queues(None, ALL)["taskQueues"]]
    assert queues == ["pro/d", "prov2/c", "prov/b", "prov/d"]
    listed = world.engine.list_provisioners(None, ALL)["provisioners"]
    assert [one["provisionerId"] for one in listed] == ["pro", "prov2", "prov"]


def test_an_unknown_queue_counts_zero(world: World) -> None:
    ids = {"provisionerId": "no", "workerType": "such", "taskQueueId": "no/such"}
    assert world.engine.pending_tasks("no/such") == {**ids, "pendingTasks": 0}
    assert world.engine.task_queue_counts("no/such") == {**ids, "pendingTasks": 0, "claimedTasks": 0}


def test_counts_follow_the_tasks(world: World) -> None:
    world.create()
    world.running()
    counts = world.engine.task_queue_counts(QUEUE)
    assert (counts["pendingTasks"], counts["claimedTasks"]) == (1, 1)


def test_pending_tasks_are_listed_by_age_page_by_page(world: World) -> None:
    tasks = [world.create(priority=priority) for priority in ("low", "highest", "lowest")]
    engine = world.engine
    first = engine.list_pending_tasks(QUEUE, None, 1)
    assert first["tasks"] == [
        {"taskId": tasks[0], "runId": 0, "task": engine.task(tasks[0]), "inserted": world.now()}
    ]
    second = engine.list_pending_tasks(QUEUE, first["continuationToken"], 1)
    third = engine.list_pending_tasks(QUEUE, second["continuationToken"], 1)
    assert [page["tasks"][0]["taskId"] for page in (second, third)] == tasks[1:]
    assert "continuationToken" not in third
    assert engine.list_pending_tasks(QUEUE, "rubbish", 1) == first


@pytest.mark.parametrize("name", ["list_pending_tasks", "list_claimed_tasks"])
def test_tasks_of_the_same_millisecond_are_listed_once(world: World, name: str) -> None:
    tasks = [world.running() if name == "list_claimed_tasks" else world.create() for _ in range(3)]
    listed: list[str] = []
    token: str | None = None
    for _ in tasks:
        page = getattr(world.engine, name)(QUEUE, token, 1)
        listed += [task["taskId"] for task in page["tasks"]]
        token = page.get("continuationToken")
    assert (sorted(listed), token) == (sorted(tasks), None)


def test_a_page_of_pending_tasks_goes_on_though_its_last_one_was_claimed(world: World) -> None:
    tasks: list[str] = []
    for _ in range(3):
        tasks.append(world.create())
        world.clock.advance(1)
    first = world.engine.list_pending_tasks(QUEUE, None, 1)
    world.claim(tasks[0])
    rest = world.engine.list_pending_tasks(QUEUE, first["continuationToken"], ALL)
    assert [task["taskId"] for task in rest["tasks"]] == tasks[1:]


def test_the_task_that_ended_a_page_does_not_come_again_with_a_later_run(world: World) -> None:
    retried, other = world.create(), world.create()
    first = world.engine.list_pending_tasks(QUEUE, None, 1)
    world.clock.advance(1)
    world.claim(retried)
    world.fail(retried, "worker-shutdown")
    rest = world.engine.list_pending_tasks(QUEUE, first["continuationToken"], ALL)
    assert [task["taskId"] for task in rest["tasks"]] == [other]


def test_the_task_that_ended_a_page_does_not_come_again_with_a_later_claim(world: World) -> None:
    reclaimed = world.running()
    world.clock.advance(1)
    other = world.running()
    first = world.engine.list_claimed_tasks(QUEUE, None, 1)
    world.clock.advance(1)
    world.engine.reclaim_task(world.caller, reclaimed, 0)
    rest = world.engine.list_claimed_tasks(QUEUE, first["continuationToken"], ALL)
    assert [task["taskId"] for task in rest["tasks"]] == [other]


def test_claimed_tasks_are_listed_by_their_latest_claim(world: World) -> None:
    tasks: list[str] = []
    for _ in range(3):
        tasks.append(world.running())
        world.clock.advance(1)
    world.engine.reclaim_task(world.caller, tasks[0], 0)
    engine = world.engine
    page = engine.list_claimed_tasks(QUEUE, None, 2)
    assert [task["taskId"] for task in page["tasks"]] == tasks[1:]
    rest = engine.list_claimed_tasks(QUEUE, page["continuationToken"], 2)
    assert rest["tasks"] == [
        {
            "taskId": tasks[0],
            "runId": 0,
            "workerGroup": GROUP,
            "workerId": WORKER,
            "claimed": world.now(),
            "task": engine.task(tasks[0]),
        }
    ]
    assert engine.list_claimed_tasks(QUEUE, None, 0) == {"tasks": []}


def test_of_two_runs_claimed_at_the_same_time_the_later_one_is_listed(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "intermittent-task")
    world.claim(task_id, run_id=1, worker="w2")
    (claimed,) = world.engine.list_claimed_tasks(QUEUE, None, ALL)["tasks"]
    assert (claimed["runId"], claimed["workerId"]) == (1, "w2")


async def test_workers_whose_records_are_removed_by_night_leave_nothing_in_memory(world: World) -> None:
    await seen(world, "kept")
    declare(world, "kept", 30 * DAY)
    await seen(world, "gone")
    await seen(world, "gone-too", "prov/other")
    world.claim(world.create(), worker="without-a-record")
    world.clock.advance(3 * DAY)
    assert list(world.core.seen) == [(QUEUE, GROUP, "kept")]
    assert not world.core.noted
