"""Claiming, keeping, losing and resolving runs, against a local queue."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue_client import Credentials
from taskqueue_client.errors import InsufficientScopes, ServerError
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Answer, Delay, Drop
from taskqueue_client.worker.held_run import HeldRun
from taskqueue_client.worker.outcomes import (
    COMPLETED,
    RESOLUTIONS,
    InternalError,
    Outcome,
    TaskFailed,
    WorkerShutdown,
)
from taskqueue_client.worker.run_state import State

sys.path.insert(0, str(Path(__file__).parent))

from tests.worker.queue_world import WAIT, Told, World, keeping, until


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def world() -> Iterator[World]:
    """A queue with claims of 20 minutes."""
    with LocalQueue() as local:
        world = World(local)
        yield world
        world.close()


@pytest.fixture
def short() -> Iterator[World]:
    """A queue with claims of one second."""
    with LocalQueue(claim_timeout=1) as local:
        world = World(local)
        yield world
        world.close()


@pytest.fixture
def brief() -> Iterator[World]:
    """A queue with claims of two seconds: a machine that stands still for a moment does not lose them."""
    with LocalQueue(claim_timeout=2) as local:
        world = World(local)
        yield world
        world.close()


def lost(held: HeldRun) -> threading.Event:
    event = threading.Event()
    held.when_lost(lambda _: event.set())
    return event


class TestClaiming:
    def test_asks_for_as_many_runs_as_there_are_free_slots(self, world: World, told: Told) -> None:
        created = {world.create() for _ in range(5)}
        with keeping(world, told, concurrency=3) as keeper:
            first = told.runs(3)
            keeper.let_go(first[0])
            keeper.let_go(first[1])
            assert {held.task_id for held in [*first, *told.runs(2)]} == created
            assert told.claims.empty()

    def test_claims_no_more_than_it_may_in_all(self, world: World, told: Told) -> None:
        for _ in range(3):
            world.create()
        with keeping(world, told, concurrency=5, max_tasks=2) as keeper:
            assert len(told.runs(2)) == 2
            keeper.claiming_ended()
        assert told.claims.empty()

    def test_never_repeats_a_claim_whose_answer_was_lost(self, world: World, told: Told) -> None:
        orphan, other = world.create(), world.create()
        world.local.faults.add(Answer(endpoint="queue.claimWork", status=502, after=True, html=True))
        with keeping(world, told):
            error = told.failures.get(timeout=WAIT)
            assert isinstance(error, ServerError)
            assert error.attempted.outcome_unknown
            assert error.attempts == 1
            assert [held.task_id for held in told.runs(1)] == [other]
        assert world.run(orphan).state == "running"

    def test_goes_on_after_a_connection_that_was_cut(self, world: World, told: Told) -> None:
        world.local.faults.add(Drop(endpoint="queue.claimWork"))
        task_id = world.create()
        with keeping(world, told):
            assert told.failures.get(timeout=WAIT).attempted.outcome_unknown
            assert told.runs(1)[0].task_id == task_id

    def test_missing_scopes_at_the_start_end_it(self, told: Told) -> None:
        client = Client("worker", "secret-of-the-worker", ["queue:claim-work:*"])
        with LocalQueue(clients=[client], anonymous_scopes=[]) as local:
            world = World(local)
            with keeping(world, told, credentials=Credentials("worker", "secret-of-the-worker")) as keeper:
                refusal = told.refusals.get(timeout=WAIT)
                assert isinstance(refusal, InsufficientScopes)
                assert "queue:worker-id:group/worker" in str(refusal)
                keeper.claiming_ended()
            world.close()

    def test_a_claim_under_way_is_waited_for_when_it_stops(self, world: World, told: Told) -> None:
        world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=0.3, after=True, real_time=True))
        task_id = world.create()
        with keeping(world, told) as keeper:
            until(lambda: world.run(task_id).state == "running")
            keeper.stop_claiming()
            assert told.runs(1)[0].task_id == task_id
            keeper.claiming_ended()


class TestRenewing:
    def test_a_short_lease_is_renewed_again_and_again(self, brief: World, told: Told) -> None:
        task_id = brief.create()
        with keeping(brief, told):
            (held,) = told.runs(1)
            for _ in range(3):
                told.renewals.get(timeout=WAIT)
            assert held.is_held
            assert brief.status(task_id).state == "running"
            assert len(brief.status(task_id).runs) == 1

    def test_everything_signs_with_the_credentials_of_the_last_renewal(
        self, brief: World, told: Told
    ) -> None:
        brief.create()
        with keeping(brief, told):
            (held,) = told.runs(1)
            client = held.credentials.client(brief.queue)
            restricted = held.credentials.client(brief.queue, ("a-scope",))
            first = held.credentials.current
            told.renewals.get(timeout=WAIT)
            assert client.credentials != first
            assert client.credentials == held.credentials.current == held.queue.credentials
            assert restricted.credentials == held.credentials.current.restricted_to(["a-scope"])

    @pytest.mark.parametrize(
        "fault",
        [
            Answer(endpoint="queue.reclaimTask", status=502, html=True),
            Answer(endpoint="queue.reclaimTask", status=500, after=True),
            Answer(endpoint="queue.reclaimTask", status=401),
            Answer(endpoint="queue.reclaimTask", status=404, html=True),
            Drop(endpoint="queue.reclaimTask"),
            Drop(endpoint="queue.reclaimTask", after=True),
        ],
    )
    def test_only_a_conflict_loses_a_run(self, brief: World, told: Told, fault: Answer | Drop) -> None:
        brief.local.faults.add(fault)
        task_id = brief.create()
        with keeping(brief, told):
            (held,) = told.runs(1)
            told.failed_renewals.get(timeout=WAIT)
            told.renewals.get(timeout=WAIT)
            told.renewals.get(timeout=WAIT)
            assert held.is_held
        assert len(brief.status(task_id).runs) == 1

    def test_a_refused_renewal_loses_the_run_and_nothing_else_is_called(
        self, brief: World, told: Told
    ) -> None:
        task_id = brief.create()
        with keeping(brief, told):
            (held,) = told.runs(1)
            event = lost(held)
            brief.queue.cancel_task(task_id)
            assert event.wait(WAIT)
            assert held.state is State.LOST
        assert brief.run(task_id).reason_resolved == "canceled"

    def test_a_lease_that_ends_before_the_queue_is_back_loses_the_run(self, short: World, told: Told) -> None:
        short.create()
        short.local.faults.add(Answer(endpoint="queue.reclaimTask", status=503, times=1000))
        with keeping(short, told):
            (held,) = told.runs(1)
            assert lost(held).wait(WAIT)
            assert "lease ended" in str(held.lost)
            assert told.failed_renewals.qsize() >= 2


class TestCancellation:
    def test_is_noticed_with_the_next_look_at_the_statuses(self, world: World, told: Told) -> None:
        kept, canceled = world.create(), world.create()
        with keeping(world, told, concurrency=2, poll=0.05):
            held = {each.task_id: each for each in told.runs(2)}
            event = lost(held[canceled])
            world.queue.cancel_task(canceled)
            assert event.wait(WAIT)
            assert "canceled" in str(held[canceled].lost)
            assert held[kept].is_held

    def test_is_noticed_at_once_with_a_hint(self, world: World, told: Told) -> None:
        task_id = world.create()
        with keeping(world, told) as keeper:
            (held,) = told.runs(1)
            event = lost(held)
            keeper.hint_cancelled(task_id)
            world.queue.cancel_task(task_id)
            keeper.hint_cancelled(task_id)
            assert event.wait(WAIT)

    def test_a_wrong_hint_does_no_harm(self, world: World, told: Told) -> None:
        task_id = world.create()
        with keeping(world, told) as keeper:
            (held,) = told.runs(1)
            keeper.hint_cancelled(task_id)
            keeper.hint_cancelled("fN1SbArXTPSVFNUvaOlinQ")
            assert keeper.resolve(held, COMPLETED) is State.RESOLVED


FAULTS: dict[str, list[Answer | Drop]] = {
    "no fault": [],
    "502 after the change": [Answer(endpoint="queue.report*", status=502, after=True, html=True)],
    "502 before the change": [Answer(endpoint="queue.report*", status=502, times=2)],
    "connection cut": [Drop(endpoint="queue.report*"), Drop(endpoint="queue.report*", after=True)],
    "conflict after the change": [Answer(endpoint="queue.report*", status=409, after=True)],
}


class TestResolving:
    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("outcome", [None, TaskFailed, InternalError, WorkerShutdown])
    def test_ends_with_the_right_reason_whatever_happens_to_the_call(
        self, world: World, told: Told, fault: str, outcome: type[Outcome] | None
    ) -> None:
        task_id = world.create()
        resolution = COMPLETED if outcome is None else RESOLUTIONS[outcome]
        assert resolution is not None
        for each in FAULTS[fault]:
            world.local.faults.add(each)
        with keeping(world, told) as keeper:
            (held,) = told.runs(1)
            assert keeper.resolve(held, resolution) is State.RESOLVED
        assert world.run(task_id).reason_resolved == resolution.reason
        assert world.local.faults.waiting() == []

    def test_a_run_that_ended_otherwise_is_lost(self, world: World, told: Told) -> None:
        task_id = world.create()
        with keeping(world, told) as keeper:
            (held,) = told.runs(1)
            world.queue.cancel_task(task_id)
            assert keeper.resolve(held, COMPLETED) is State.LOST
            assert "canceled" in str(held.lost)
        assert world.run(task_id).reason_resolved == "canceled"

    def test_a_lost_run_is_not_reported(self, brief: World, told: Told) -> None:
        task_id = brief.create()
        with keeping(brief, told, poll=0.05) as keeper:
            (held,) = told.runs(1)
            event = lost(held)
            brief.queue.cancel_task(task_id)
            assert event.wait(WAIT)
            brief.local.faults.add(Answer(endpoint="queue.report*", status=500))
            assert keeper.resolve(held, COMPLETED) is State.LOST
        assert len(brief.local.faults.waiting()) == 1

    def test_goes_on_until_the_lease_ends_and_not_longer(self, short: World, told: Told) -> None:
        short.create()
        short.local.faults.add(Drop(endpoint="queue.report*", times=1000))
        with keeping(short, told) as keeper:
            (held,) = told.runs(1)
            assert keeper.resolve(held, COMPLETED) is State.LOST
            assert "lease ended" in str(held.lost)

    def test_renewal_stops_before_the_report(self, brief: World, told: Told) -> None:
        brief.create()
        slow = Delay(endpoint="queue.reportCompleted", seconds=1.6, times=2, real_time=True)
        brief.local.faults.add(slow)  # the report arrives when a renewal would have been made
        with keeping(brief, told) as keeper:
            (held,) = told.runs(1)
            assert keeper.resolve(held, COMPLETED) is State.RESOLVED
            assert told.renewals.empty()
            assert told.failed_renewals.empty()


def test_nothing_is_left_of_a_keeper(world: World, told: Told) -> None:
    world.create()
    before = set(threading.enumerate())
    with keeping(world, told):
        told.runs(1)
        assert set(threading.enumerate()) != before
    assert set(threading.enumerate()) <= before
