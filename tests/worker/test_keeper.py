"""Claiming, reclaiming, losing and resolving runs, against a local queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskqueue_client import Credentials
from taskqueue_client.errors import InsufficientScopes, ServerError
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Delay, Drop, Respond
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimState
from taskqueue_client.worker.outcomes import InternalError, Outcome, TaskFailed, WorkerShutdown, resolution_of
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, QuickRetries, Told, World, running_keeper, until


@pytest.fixture
def quick(world: World) -> QuickRetries:
    """Return the queue's clock, held, for a keeper."""
    return QuickRetries(world.local.clock)


def lost(held: ClaimedRun) -> threading.Event:
    event = threading.Event()
    held.when_lost(lambda _: event.set())
    return event


class TestClaiming:
    def test_asks_for_as_many_runs_as_there_are_free_slots(self, world: World, told: Told) -> None:
        created = {world.create() for _ in range(5)}
        with running_keeper(world, told, concurrency=3) as keeper:
            first = told.runs(3)
            keeper.release_slot(first[0])
            keeper.release_slot(first[1])
            assert {held.task_id for held in [*first, *told.runs(2)]} == created
            assert told.claims.empty()
        assert [held.outage for held in first] == [0, 0, 0]
        assert set(told.asked) == {TASK_QUEUE_ID}

    def test_claims_no_more_than_it_may_in_all(self, world: World, told: Told) -> None:
        for _ in range(3):
            world.create()
        with running_keeper(world, told, concurrency=5, max_tasks=2) as keeper:
            assert len(told.runs(2)) == 2
            keeper.claiming_ended()
        assert told.claims.empty()

    def test_never_repeats_a_claim_whose_response_was_lost(self, world: World, told: Told) -> None:
        orphan, other = world.create(), world.create()
        world.local.faults.add(Respond(endpoint="queue.claimWork", status=502, after=True, html=True))
        with running_keeper(world, told):
            error = told.failures.get(timeout=WAIT)
            assert isinstance(error, ServerError)
            assert error.attempted.outcome_unknown
            assert error.attempts == 1
            assert [held.task_id for held in told.runs(1)] == [other]
        assert world.run(orphan).state == "running"

    def test_goes_on_after_a_connection_that_was_cut(self, world: World, told: Told) -> None:
        world.local.faults.add(Drop(endpoint="queue.claimWork"))
        task_id = world.create()
        with running_keeper(world, told):
            assert told.failures.get(timeout=WAIT).attempted.outcome_unknown
            (run,) = told.runs(1)
        assert run.task_id == task_id
        assert 0.5 <= run.outage < WAIT
        assert set(told.asked) == {TASK_QUEUE_ID}

    @pytest.mark.parametrize("status", [429, 503])
    def test_waits_for_as_long_as_retry_after_says(
        self, world: World, told: Told, caplog: pytest.LogCaptureFixture, status: int
    ) -> None:
        busy = Respond(endpoint="queue.claimWork", status=status, headers={"Retry-After": "1234"}, times=9)
        world.local.faults.add(busy)
        with running_keeper(world, told):
            until(lambda: "retrying in 1234." in caplog.text)
        assert told.failures.qsize() == 1

    def test_waits_at_most_an_hour_whatever_retry_after_says(
        self, world: World, told: Told, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked = {"Retry-After": "99999999999999999999"}
        world.local.faults.add(Respond(endpoint="queue.claimWork", status=503, headers=asked, times=9))
        with running_keeper(world, told):
            until(lambda: "retrying in 3600.0 s" in caplog.text)

    @pytest.mark.parametrize("status", [401, 403])
    def test_claims_at_once_with_new_credentials_after_the_old_ones_were_refused(
        self, world: World, told: Told, caplog: pytest.LogCaptureFixture, status: int
    ) -> None:
        world.create()
        with running_keeper(world, told) as keeper:
            (first,) = told.runs(1)
            refusal = Respond(endpoint="queue.claimWork", status=status, headers={"Retry-After": "1234"})
            world.local.faults.add(refusal)
            keeper.release_slot(first)
            until(lambda: "retrying in 1234." in caplog.text)
            task_id = world.create()
            keeper.use_credentials(world.local.credentials)
            assert [each.task_id for each in told.runs(1)] == [task_id]

    def test_claims_at_once_with_credentials_that_came_while_the_old_ones_were_being_refused(
        self, world: World, told: Told
    ) -> None:
        """Also for the first claim request, whose refusal otherwise ends a worker."""
        outdated = Credentials("worker", "outdated-access-token")
        world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=30))
        task_id = world.create()
        with running_keeper(world, told, credentials=outdated) as keeper:
            until(lambda: not world.local.faults.waiting())
            keeper.use_credentials(world.local.credentials)
            world.local.clock.advance(30)
            assert told.runs(1)[0].task_id == task_id
        assert told.failures.qsize() == 1
        assert told.refusals.empty()

    def test_credentials_that_came_meanwhile_and_are_refused_as_well_are_used_once_at_once(
        self, world: World, told: Told, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.create()
        with running_keeper(world, told) as keeper:
            (first,) = told.runs(1)
            keeper.use_credentials(Credentials("worker", "outdated-access-token"))
            world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=30))
            keeper.release_slot(first)
            until(lambda: not world.local.faults.waiting())
            keeper.use_credentials(Credentials("worker", "another-access-token"))
            world.local.clock.advance(30)
            until(lambda: "cannot claim work, retrying in" in caplog.text)
            assert told.failures.qsize() == 2

    def test_missing_scopes_at_the_start_end_it(self, told: Told) -> None:
        client = Client("worker", "secret-of-the-worker", ["queue:claim-work:*"])
        with LocalQueue(clients=[client], anonymous_scopes=[]) as local:
            world = World(local)
            with running_keeper(
                world, told, credentials=Credentials("worker", "secret-of-the-worker")
            ) as keeper:
                refusal = told.refusals.get(timeout=WAIT)
                assert isinstance(refusal, InsufficientScopes)
                assert "queue:worker-id:group/worker" in str(refusal)
                keeper.claiming_ended()
            world.close()

    @pytest.mark.usefixtures("prompt", "held_clock")
    def test_a_claim_under_way_is_waited_for_when_it_stops(self, world: World, told: Told) -> None:
        world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=0.1, after=True))
        task_id = world.create()
        with running_keeper(world, told) as keeper:
            until(lambda: world.run(task_id).state == "running")
            keeper.stop_claiming()
            world.local.clock.release()
            assert told.runs(1)[0].task_id == task_id
            keeper.claiming_ended()


class TestReclaiming:
    def test_a_lease_is_reclaimed_again_and_again(
        self, world: World, told: Told, quick: QuickRetries
    ) -> None:
        task_id = world.create()
        with running_keeper(world, told, clock=quick):
            (held,) = told.runs(1)
            for _ in range(3):
                quick.let_a_reclaim_be_due()
                told.reclaims.get(timeout=WAIT)
            assert held.has_claim
            assert world.status(task_id).state == "running"
            assert len(world.status(task_id).runs) == 1

    def test_everything_signs_with_the_credentials_of_the_last_reclaim(
        self, world: World, told: Told, quick: QuickRetries
    ) -> None:
        world.create()
        with running_keeper(world, told, clock=quick):
            (held,) = told.runs(1)
            client = held.client(world.queue)
            restricted = held.client(world.queue, ("a-scope",))
            first = held.credentials
            quick.let_a_reclaim_be_due()
            told.reclaims.get(timeout=WAIT)
            assert client.credentials != first
            assert client.credentials == held.credentials == held.queue.credentials
            assert restricted.credentials == held.credentials.restricted_to(["a-scope"])

    @pytest.mark.parametrize(
        "fault",
        [
            Respond(endpoint="queue.reclaimTask", status=502, html=True),
            Respond(endpoint="queue.reclaimTask", status=500, after=True),
            Respond(endpoint="queue.reclaimTask", status=401),
            Respond(endpoint="queue.reclaimTask", status=404, html=True),
            Respond(endpoint="queue.reclaimTask", status=409, html=True),
            Drop(endpoint="queue.reclaimTask"),
            Drop(endpoint="queue.reclaimTask", after=True),
        ],
    )
    def test_only_a_conflict_loses_a_run(
        self, world: World, told: Told, quick: QuickRetries, fault: Respond | Drop
    ) -> None:
        world.local.faults.add(fault)
        task_id = world.create()
        with running_keeper(world, told, clock=quick):
            (held,) = told.runs(1)
            for _ in range(2):
                quick.let_a_reclaim_be_due()
                told.reclaims.get(timeout=WAIT)
            assert told.failed_reclaims.qsize() == 1
            assert held.has_claim
        assert len(world.status(task_id).runs) == 1

    def test_a_refused_reclaim_loses_the_run_and_nothing_else_is_called(
        self, world: World, told: Told, quick: QuickRetries
    ) -> None:
        task_id = world.create()
        with running_keeper(world, told, clock=quick):
            (held,) = told.runs(1)
            event = lost(held)
            world.queue.cancel_task(task_id)
            quick.let_a_reclaim_be_due()
            assert event.wait(WAIT)
            assert held.state is ClaimState.LOST
        assert world.run(task_id).reason_resolved == "canceled"

    def test_a_lease_that_ends_before_the_queue_is_back_loses_the_run(
        self, world: World, told: Told, quick: QuickRetries
    ) -> None:
        world.create()
        world.local.faults.add(Respond(endpoint="queue.reclaimTask", status=503, times=1000))
        with running_keeper(world, told, clock=quick):
            (held,) = told.runs(1)
            event = lost(held)
            quick.let_a_reclaim_be_due()
            assert event.wait(WAIT)
            assert "lease ended" in str(held.lost)
            assert told.failed_reclaims.qsize() >= 2


class TestCancellation:
    def test_is_noticed_with_the_next_look_at_the_statuses(self, world: World, told: Told) -> None:
        kept, canceled = world.create(), world.create()
        with running_keeper(world, told, concurrency=2, poll=0.05):
            held = {each.task_id: each for each in told.runs(2)}
            event = lost(held[canceled])
            world.queue.cancel_task(canceled)
            assert event.wait(WAIT)
            assert "canceled" in str(held[canceled].lost)
            assert held[kept].has_claim

    def test_is_noticed_at_once_with_a_hint(self, world: World, told: Told) -> None:
        task_id = world.create()
        with running_keeper(world, told) as keeper:
            (held,) = told.runs(1)
            event = lost(held)
            keeper.hint_canceled(task_id)
            world.queue.cancel_task(task_id)
            keeper.hint_canceled(task_id)
            assert event.wait(WAIT)

    def test_a_wrong_hint_does_no_harm(self, world: World, told: Told) -> None:
        task_id = world.create()
        with running_keeper(world, told) as keeper:
            (held,) = told.runs(1)
            keeper.hint_canceled(task_id)
            keeper.hint_canceled("fN1SbArXTPSVFNUvaOlinQ")
            assert keeper.resolve(held, ReasonResolved.COMPLETED) is ClaimState.RESOLVED


FAULTS: dict[str, list[Respond | Drop]] = {
    "no fault": [],
    "502 after the change": [Respond(endpoint="queue.report*", status=502, after=True, html=True)],
    "502 before the change": [Respond(endpoint="queue.report*", status=502, times=2)],
    "connection cut": [Drop(endpoint="queue.report*"), Drop(endpoint="queue.report*", after=True)],
    "conflict of a proxy": [Respond(endpoint="queue.report*", status=409, html=True)],
    "conflict after the change": [Respond(endpoint="queue.report*", status=409, after=True)],
}


class TestResolving:
    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("outcome", [None, TaskFailed, InternalError, WorkerShutdown])
    def test_ends_with_the_right_reason_whatever_happens_to_the_call(
        self, world: World, told: Told, fault: str, outcome: type[Outcome] | None
    ) -> None:
        task_id = world.create()
        reason = resolution_of(None if outcome is None else outcome("it ends"))
        assert reason is not None
        for each in FAULTS[fault]:
            world.local.faults.add(each)
        with running_keeper(world, told) as keeper:
            (held,) = told.runs(1)
            assert keeper.resolve(held, reason) is ClaimState.RESOLVED
        assert world.run(task_id).reason_resolved == reason
        assert world.local.faults.waiting() == []

    def test_a_run_that_ended_otherwise_is_lost(self, world: World, told: Told) -> None:
        task_id = world.create()
        with running_keeper(world, told) as keeper:
            (held,) = told.runs(1)
            world.queue.cancel_task(task_id)
            assert keeper.resolve(held, ReasonResolved.COMPLETED) is ClaimState.LOST
            assert "canceled" in str(held.lost)
        assert world.run(task_id).reason_resolved == "canceled"

    def test_a_lost_run_is_not_reported(self, world: World, told: Told) -> None:
        task_id = world.create()
        with running_keeper(world, told, poll=0.05) as keeper:
            (held,) = told.runs(1)
            event = lost(held)
            world.queue.cancel_task(task_id)
            assert event.wait(WAIT)
            world.local.faults.add(Respond(endpoint="queue.report*", status=500))
            assert keeper.resolve(held, ReasonResolved.COMPLETED) is ClaimState.LOST
        assert len(world.local.faults.waiting()) == 1

    def test_goes_on_until_the_lease_ends_and_not_longer(
        self, world: World, told: Told, quick: QuickRetries
    ) -> None:
        world.create()
        world.local.faults.add(Drop(endpoint="queue.report*", times=1000))
        with running_keeper(world, told, clock=quick) as keeper:
            (held,) = told.runs(1)
            assert keeper.resolve(held, ReasonResolved.COMPLETED) is ClaimState.LOST
            assert "lease ended" in str(held.lost)

    def test_reclaim_stops_before_the_report(self, world: World, told: Told, quick: QuickRetries) -> None:
        world.create()
        world.local.faults.add(Delay(endpoint="queue.reportCompleted", seconds=500))
        with running_keeper(world, told, clock=quick) as keeper, ThreadPoolExecutor(1) as thread:
            (held,) = told.runs(1)
            quick.until_a_reclaim_is_planned()  # once a run is being resolved, no reclaim is planned
            resolving = thread.submit(keeper.resolve, held, ReasonResolved.COMPLETED)
            world.until_struck()
            world.run(held.task_id)  # when this has a response, the delay has begun
            quick.let_a_reclaim_be_due()  # the report is still under way when a reclaim would be due
            assert resolving.result(WAIT) is ClaimState.RESOLVED
            assert told.reclaims.empty()
            assert told.failed_reclaims.empty()


def test_a_stopped_keeper_leaves_no_thread_or_connection(world: World, told: Told) -> None:
    world.create()
    before = set(threading.enumerate())
    with running_keeper(world, told):
        told.runs(1)
        assert set(threading.enumerate()) != before
    assert set(threading.enumerate()) <= before
