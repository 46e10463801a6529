"""The background processes: claims, deadlines, dependencies, removed workers, expirers."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.local import times
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, START, WORKER, World, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = 24 * HOUR
TIMEOUT = 1200


@pytest.fixture
def production() -> Iterator[World]:
    """A world with the delays of the real service."""
    made = World(deadline_delay=60, resolver_interval=5)
    yield made
    made.close()


def test_a_claim_that_runs_out_is_retried(world: World) -> None:
    task_id = world.running()
    world.sent()
    world.clock.advance(TIMEOUT)
    status = world.status(task_id)
    assert (status["state"], status["retriesLeft"]) == ("pending", 4)
    assert status["runs"][0]["reasonResolved"] == "claim-expired"
    assert status["runs"][1]["reasonCreated"] == "retry"
    assert world.sent() == ["task-exception", "task-pending"]


def test_the_last_claim_that_runs_out_ends_the_task(world: World) -> None:
    task_id = world.running(retries=0)
    world.sent()
    world.clock.advance(TIMEOUT)
    assert world.status(task_id)["state"] == "exception"
    assert world.sent() == ["task-exception", "task-group-resolved"]


def test_a_claim_that_expires_at_the_deadline_ends_as_deadline_exceeded(world: World) -> None:
    task_id = world.running(deadline=world.now(TIMEOUT))
    world.clock.advance(TIMEOUT)
    (run,) = world.status(task_id)["runs"]
    assert run["reasonResolved"] == "deadline-exceeded"


def test_a_refused_reclaim_of_an_expired_claim_announces_it_again(world: World) -> None:
    task_id = world.running()
    world.clock.advance(TIMEOUT)
    with pytest.raises(Refusal):
        world.engine.reclaim_task(world.caller, task_id, 0)
    world.sent()
    world.clock.advance(TIMEOUT)
    assert world.sent() == ["task-exception", "task-pending"]
    assert len(world.status(task_id)["runs"]) == 2


def test_an_expired_claim_two_runs_ago_is_not_announced_again(world: World) -> None:
    task_id = world.running()
    world.clock.advance(TIMEOUT)
    with pytest.raises(Refusal):
        world.engine.reclaim_task(world.caller, task_id, 0)
    world.claim(task_id, 1)
    world.fail(task_id, "worker-shutdown", run_id=1)
    world.sent()
    world.clock.advance(TIMEOUT)
    assert world.sent() == []


def test_after_a_jump_of_the_clock_each_change_has_its_own_time(world: World) -> None:
    task_id = world.running(retries=1)
    claimed_until, deadline = world.now(TIMEOUT), world.now(2 * HOUR)
    dependent = world.create(
        dependencies=[task_id], requires="all-resolved", deadline=world.now(3 * HOUR), taskGroupId=task_id
    )
    world.sent()
    world.clock.advance(days=1)
    first, second = world.status(task_id)["runs"]
    assert (first["reasonResolved"], first["resolved"]) == ("claim-expired", claimed_until)
    assert (second["reasonCreated"], second["scheduled"]) == ("retry", claimed_until)
    assert (second["reasonResolved"], second["resolved"]) == ("deadline-exceeded", deadline)
    (run,) = world.status(dependent)["runs"]
    assert (run["scheduled"], run["reasonResolved"]) == (deadline, "deadline-exceeded")
    assert world.sent() == [
        *("task-exception", "task-pending"),  # the claim expires
        *("task-pending", "task-exception"),  # the deadline: the dependent is scheduled, the task ends
        *("task-group-resolved", "task-exception"),  # the dependent's deadline
    ]
    assert world.now() == times.text(int((START + DAY) * 1000))


def test_in_production_runs_end_when_a_resolver_looks_next(production: World) -> None:
    task_id = production.running(retries=1, deadline=production.now(HOUR + 1))
    production.clock.advance(days=1)
    first, second = production.status(task_id)["runs"]
    late = -START % 5  # the resolvers look at every multiple of five seconds
    moments = [START + TIMEOUT + late, START + HOUR + 1 + 60 - 1 + late]
    assert [first["resolved"], second["resolved"]] == [times.text(int(each * 1000)) for each in moments]


@pytest.fixture
def patient() -> Iterator[World]:
    """A world in which claims outlast deadlines."""
    made = World(claim_timeout=3 * HOUR)
    yield made
    made.close()


@pytest.mark.parametrize("state", ["unscheduled", "pending", "running"])
def test_the_deadline_ends_tasks_that_are_not_resolved(patient: World, state: str) -> None:
    task_id = slugid()
    patient.create(task_id, dependencies=[task_id] if state == "unscheduled" else [])
    if state == "running":
        patient.claim(task_id)
    patient.sent()
    patient.clock.advance(2 * HOUR)
    status = patient.status(task_id)
    (run,) = status["runs"]
    assert (status["state"], run["reasonResolved"]) == ("exception", "deadline-exceeded")
    assert status["retriesLeft"] == 5
    group, exception = patient.taken()
    assert group.exchange.endswith("/task-group-resolved")
    assert exception.routing_key == f"primary.{task_id}.0._._.prov.wt.sched.{task_id}._"
    assert "workerGroup" not in exception.body
    counts = patient.engine.task_queue_counts(QUEUE)
    assert counts["pendingTasks"] == 0
    assert counts["claimedTasks"] == (1 if state == "running" else 0)


def test_the_deadline_does_not_change_resolved_tasks(world: World) -> None:
    task_id = world.completed()
    before = world.status(task_id)
    world.sent()
    world.clock.advance(3 * HOUR)
    assert world.status(task_id) == before
    assert world.sent() == []


def test_dependents_run_as_soon_as_all_they_need_is_completed(world: World) -> None:
    first, second = world.running(), world.running()
    dependent = world.create(dependencies=[first, second])
    world.sent()
    world.engine.report_completed(world.caller, first, 0, {})
    assert world.status(dependent)["state"] == "unscheduled"
    world.engine.report_completed(world.caller, second, 0, {})
    assert world.status(dependent)["runs"][0]["reasonCreated"] == "scheduled"
    names = world.sent()
    assert names == [
        "task-completed",
        "task-group-resolved",
        "task-completed",
        "task-pending",
        "task-group-resolved",
    ]


@pytest.mark.parametrize("requires", ["all-completed", "all-resolved"])
def test_a_failure_satisfies_only_all_resolved(world: World, requires: str) -> None:
    required = world.running()
    dependent = world.create(dependencies=[required], requires=requires)
    world.engine.report_failed(world.caller, required, 0)
    expected = "pending" if requires == "all-resolved" else "unscheduled"
    assert world.status(dependent)["state"] == expected


def test_a_failed_dependency_that_is_rerun_and_completes_satisfies(world: World) -> None:
    required = world.running()
    world.engine.report_failed(world.caller, required, 0)
    dependent = world.create(dependencies=[required])
    world.rerun(required)
    world.claim(required, 1)
    world.engine.report_completed(world.caller, required, 1, {})
    assert world.status(dependent)["state"] == "pending"


def test_a_satisfied_dependency_stays_satisfied(world: World) -> None:
    first, second = world.running(), world.running()
    dependent = world.create(dependencies=[first, second])
    world.engine.report_completed(world.caller, first, 0, {})
    world.rerun(first)
    world.engine.report_completed(world.caller, second, 0, {})
    assert world.status(dependent)["state"] == "pending"


def test_dependents_are_scheduled_in_the_order_of_their_ids(world: World) -> None:
    required = world.running()
    ids = ["aeG" + slugid()[3:], "RoV" + slugid()[3:], "f08" + slugid()[3:], "Iej" + slugid()[3:]]
    for task_id in ids:
        world.create(task_id, dependencies=[required])
    world.sent()
    world.engine.report_completed(world.caller, required, 0, {})
    pending = [m.body["status"]["taskId"][:3] for m in world.taken() if m.exchange.endswith("task-pending")]
    assert pending == ["aeG", "f08", "Iej", "RoV"]


def test_a_dependent_past_its_deadline_stays_unscheduled(production: World) -> None:
    required = production.running(deadline=production.now(4 * HOUR))
    dependent = production.create(dependencies=[required], deadline=production.now(600))
    production.clock.advance(601)
    production.engine.report_completed(production.caller, required, 0, {})
    production.clock.advance(5)
    assert production.status(dependent)["state"] == "unscheduled"
    production.clock.advance(60)
    assert production.status(dependent)["state"] == "exception"


def test_a_group_is_resolved_once_each_of_its_tasks_was_resolved_at_least_once(world: World) -> None:
    group = world.running()
    other = world.create(taskGroupId=group, dependencies=[group])
    world.sent()
    world.engine.report_completed(world.caller, group, 0, {})
    assert "task-group-resolved" not in world.sent()
    world.cancel(other)
    assert "task-group-resolved" in world.sent()
    world.rerun(group)
    world.cancel(other)
    assert "task-group-resolved" in world.sent()


def test_only_the_runs_of_a_removed_worker_are_retried(world: World) -> None:
    mine, last, other = world.running(), world.running(retries=0), world.create()
    world.claim(other, worker="w2")
    world.sent()
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.status(mine)["runs"][0]["reasonResolved"] == "worker-shutdown"
    assert world.status(mine)["runs"][1]["reasonCreated"] == "retry"
    assert world.status(last)["state"] == "exception"
    assert world.status(other)["state"] == "running"
    assert sorted(world.sent()) == ["task-exception", "task-exception", "task-group-resolved", "task-pending"]
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.sent() == []
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 1


def test_a_run_that_a_worker_has_ended_by_its_shutdown_is_announced_again_at_its_removal(
    world: World,
) -> None:
    task_id = world.running()
    world.sent()
    status = world.fail(task_id, "worker-shutdown")
    sent = world.taken()
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.taken() == sent
    assert world.status(task_id) == status
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.sent() == []


def test_a_removal_after_the_retry_was_claimed_resolves_the_task_for_dependents(world: World) -> None:
    required = world.running()
    dependent = world.create(dependencies=[required], requires="all-resolved")
    world.fail(required, "worker-shutdown")
    world.claim(required, 1, worker="w2")
    world.sent()
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.sent() == ["task-exception", "task-pending", "task-group-resolved"]
    assert world.status(dependent)["state"] == "pending"
    assert world.status(required)["state"] == "running"


@pytest.mark.parametrize("reason", ["intermittent-task", "internal-error"])
def test_a_run_that_a_worker_has_ended_for_another_reason_is_not_announced_again(
    world: World, reason: str
) -> None:
    task_id = world.running()
    status = world.fail(task_id, reason)
    world.sent()
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.sent() == []
    assert world.status(task_id) == status
    assert world.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0


def test_the_end_of_a_removed_workers_run_is_announced_for_each_record_of_its_claim(world: World) -> None:
    task_id = world.running()
    world.clock.advance(60)
    world.engine.reclaim_task(world.caller, task_id, 0)
    world.sent()
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.sent() == ["task-exception", "task-pending"] * 2
    assert len(world.status(task_id)["runs"]) == 2


def test_a_claim_that_ran_out_is_listed_until_a_resolver_has_seen_it_but_does_not_count(
    production: World,
) -> None:
    production.clock.advance(3)
    task_id = production.running()
    production.clock.advance(TIMEOUT)
    (listed,) = production.engine.list_claimed_tasks(QUEUE, None, 1000)["tasks"]
    assert listed["taskId"] == task_id
    assert production.engine.task_queue_counts(QUEUE)["claimedTasks"] == 0
    production.clock.advance(5)
    assert production.engine.list_claimed_tasks(QUEUE, None, 1000) == {"tasks": []}


def test_a_pending_task_past_its_deadline_is_listed_until_a_resolver_has_seen_it_but_does_not_count(
    production: World,
) -> None:
    task_id = production.create(deadline=production.now(HOUR))
    production.clock.advance(HOUR)
    (listed,) = production.engine.list_pending_tasks(QUEUE, None, 1000)["tasks"]
    assert listed["taskId"] == task_id
    assert production.engine.task_queue_counts(QUEUE)["pendingTasks"] == 0
    production.clock.advance(65)
    assert production.engine.list_pending_tasks(QUEUE, None, 1000) == {"tasks": []}


def test_production_resolvers_act_at_their_next_look(production: World) -> None:
    required = production.running()
    dependent = production.create(dependencies=[required])
    production.clock.advance(1)
    production.engine.report_completed(production.caller, required, 0, {})
    production.clock.advance(0.5)
    assert production.status(dependent)["state"] == "unscheduled"
    due = production.background.next_due()
    production.clock.advance(due - production.clock.now())
    assert production.status(dependent)["state"] == "pending"


def test_a_rerun_in_the_millisecond_of_the_deadline_meets_the_deadline_too(world: World) -> None:
    task_id = world.completed()
    world.clock.advance(2 * HOUR)
    assert world.rerun(task_id)["state"] == "pending"
    world.sent()
    world.clock.advance(0.001)
    assert [run["reasonResolved"] for run in world.status(task_id)["runs"]] == [
        "completed",
        "deadline-exceeded",
    ]
    assert world.sent() == ["task-group-resolved", "task-exception"]


@pytest.mark.parametrize("requires", ["all-completed", "all-resolved"])
def test_a_repeated_creation_sees_a_resolution_before_the_resolver(production: World, requires: str) -> None:
    first, second = production.running(), production.running()
    definition = production.definition(dependencies=[first, second], requires=requires)
    task_id = production.create(**definition)
    production.engine.report_completed(production.caller, first, 0, {})
    production.create(task_id, **definition)
    assert production.status(task_id)["state"] == "unscheduled"
    production.engine.report_failed(production.caller, second, 0)
    production.sent()
    production.create(task_id, **definition)
    seen = ["task-pending"] if requires == "all-resolved" else []
    assert production.sent() == ["task-defined", *seen]
    production.clock.advance(5)
    runs = production.status(task_id)["runs"]
    assert [run["reasonCreated"] for run in runs] == ["scheduled"] * len(seen)
    production.rerun(second)
    production.claim(second, 1)
    production.engine.report_completed(production.caller, second, 1, {})
    production.create(task_id, **definition)
    assert len(production.status(task_id)["runs"]) == 1


@pytest.mark.parametrize("together", [501, 100, 1])
def test_the_deadlines_of_many_tasks_are_handled_batch_by_batch(world: World, together: int) -> None:
    """Requests are served between two batches: the alarm is set again at once."""
    deadlines = [world.now(HOUR + number // together) for number in range(501)]
    tasks = [world.create(deadline=deadline) for deadline in deadlines]
    world.clock.advance(2 * HOUR)
    assert [world.status(task_id)["state"] for task_id in tasks].count("pending") == 1
    assert world.background.next_due() < world.clock.now()
    assert world.background.run_due() is False
    assert [world.status(task_id)["runs"][0]["resolved"] for task_id in tasks] == deadlines


def test_next_due_says_when_there_is_something_to_do(world: World) -> None:
    night = world.background.next_due()
    task_id = world.create()
    assert world.background.next_due() == world.clock.now() + 2 * HOUR
    world.claim(task_id)
    assert world.background.next_due() == world.clock.now() + TIMEOUT
    world.engine.report_completed(world.caller, task_id, 0, {})
    world.clock.advance(2 * HOUR)
    assert world.background.next_due() == night


def test_the_nightly_job_removes_expired_records(world: World) -> None:
    gone = world.completed(expires=world.now(2 * HOUR))
    stays = world.completed(expires=world.now(5 * DAY))
    world.clock.advance(days=2)
    assert world.status(stays)["state"] == "completed"
    for read in (world.engine.status, world.engine.get_task_group):
        with pytest.raises(Refusal) as caught:
            read(gone)
        assert caught.value.status == 404
    world.create(gone, created=world.now())


def test_a_task_is_served_until_the_night_after_it_has_expired_however_far_the_clock_jumps(
    world: World,
) -> None:
    artifact: dict[str, Any] = {"contentType": "a/b", "expires": world.now(23 * HOUR)}
    task_id = world.running(expires=world.now(23 * HOUR))
    made = world.artifact(task_id, "public/x", "object", **artifact)
    world.storage.objects.finish_upload(world.caller, made["name"], {**made, "hashes": {}})
    world.clock.advance(days=1)  # the nightly jobs ran eight hours before the task expired
    assert world.status(task_id)["state"] == "exception"
    assert world.storage.objects.is_finished(made["name"])
    world.clock.advance(days=1)
    assert refused(world.engine.status, task_id).status == 404
    assert not world.storage.objects.is_finished(made["name"])


def test_nightly_jobs_that_failed_are_repeated_at_once(world: World) -> None:
    gone = world.completed(expires=world.now(2 * HOUR))
    world.store.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE DELETE ON tasks BEGIN SELECT RAISE(FAIL, 'full'); END"
    )
    with pytest.raises(sqlite3.Error, match="full"):
        world.clock.advance(days=2)
    world.store.connection.execute("DROP TRIGGER full")
    assert world.background.next_due() < world.clock.now()
    world.background.run_due()
    assert refused(world.engine.status, gone).status == 404


def test_the_nightly_jobs_go_on_when_a_clock_that_was_a_year_ahead_is_set_right(world: World) -> None:
    """The service's jobs run every night of the clock, whatever it showed before."""
    night = world.background.next_due()
    world.clock.advance(days=365)
    world.core.clock = world.clock = MovableClock(START, held=True)
    world.background.run_due()
    assert world.background.next_due() == night
    gone = world.completed(expires=world.now(2 * HOUR))
    world.clock.advance(days=2)
    world.background.run_due()
    assert refused(world.engine.status, gone).status == 404


def test_everything_that_has_expired_is_removed_at_ten_past_one(world: World) -> None:
    task_id = world.completed(expires=world.now(3 * HOUR))
    night = START // DAY * DAY + DAY + HOUR + 600
    world.clock.advance(night - START - 0.001)
    assert world.status(task_id)["state"] == "completed"
    world.clock.advance(0.001)
    assert refused(world.engine.status, task_id).status == 404


def test_expired_tasks_stay_for_half_an_hour(world: World) -> None:
    task_id = world.completed(expires=world.now(2 * HOUR))
    world.clock.advance(2 * HOUR + 1800)
    world.background.expire()
    assert world.status(task_id)["state"] == "completed"
    world.clock.advance(0.001)
    world.background.expire()
    with pytest.raises(Refusal):
        world.status(task_id)


def test_a_task_can_be_created_again_between_two_batches_of_the_nightly_jobs() -> None:
    world = World(claim_timeout=20 * DAY)
    required = world.completed(expires=world.now(5 * DAY))
    terms = {"dependencies": [required], "expires": world.now(2 * HOUR)}
    tasks = [world.running(**terms) for _ in range(501)]
    world.clock.advance(2 * HOUR)
    world.background.run_due()  # handles the deadline of the last task
    world.clock.advance(days=2)
    left = {task_id for (task_id,) in world.store.rows("SELECT task_id FROM tasks")} - {required}
    assert len(left) == 1
    assert world.background.next_due() < world.clock.now()
    again = next(task_id for task_id in tasks if task_id not in left)
    world.create(again, dependencies=[required, again])
    world.background.run_due()
    world.background.worker_removed(QUEUE, GROUP, WORKER)
    assert world.status(again)["state"] == "unscheduled"
    assert world.store.value("SELECT count(*) FROM tasks") == 2
    assert world.background.next_due() > world.clock.now()
    world.close()


def test_the_data_of_expired_artifacts_goes_with_their_records_batch_by_batch(world: World) -> None:
    task_id = world.running(expires=world.now(5 * DAY))
    for number in range(501):
        world.artifact(task_id, f"public/{number}", "s3", contentType="text/plain")
        key = f"{task_id}/0/public/{number}"
        world.storage.buckets.save("public-bucket", key, b"x", {})
    counts = "SELECT (SELECT count(*) FROM artifacts), (SELECT count(*) FROM bodies)"
    world.clock.advance(days=2)
    assert world.store.row(counts) == (1, 1)
    world.background.run_due()
    assert world.store.row(counts) == (0, 0)


def test_objects_expire_batch_by_batch(world: World) -> None:
    task_id = world.running(expires=world.now(5 * DAY))
    for number in range(501):
        world.artifact(task_id, f"public/{number}", "object", contentType="text/plain")
    world.clock.advance(days=2)
    assert world.store.value("SELECT count(*) FROM objects") == 1
    world.background.run_due()
    world.background.run_due()
    assert world.store.value("SELECT count(*) FROM objects") == 0
    assert world.store.value("SELECT count(*) FROM artifacts") == 0


def test_the_nightly_jobs_clear_every_table(world: World) -> None:
    required = world.running()
    world.create(dependencies=[required])
    world.artifact(required, "public/log", "s3", contentType="text/plain")
    body = {"expires": world.now(DAY)}
    world.engine.declare_worker(world.caller, QUEUE, (GROUP, WORKER), body)
    world.clock.advance(days=400)
    tables = ("tasks", "task_groups", "dependencies", "pending", "claims", "resolved", "artifacts")
    for table in (*tables, "task_queues", "workers"):
        assert world.store.value(f"SELECT count(*) FROM {table}") == 0, table
