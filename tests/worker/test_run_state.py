"""The states of a claimed run, against a table of what the Queue promises."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskqueue_client import AsyncQueue
from taskqueue_client._protocol.lease import Lease
from taskqueue_client.worker.claims.claimed_run import (
    STATES_TO_RECLAIM,
    STATES_WITH_CLAIM,
    ClaimedRun,
    Event,
    State,
    after,
)
from taskqueue_client.worker.outcomes import ClaimLost, LossReason
from tests.worker.test_lease import claim

FINAL = {State.RESOLVED, State.LOST}

PROMISES = {
    (State.CLAIMED, Event.START): State.RUNNING,
    (State.CLAIMED, Event.RESOLVE): State.RESOLVING,
    (State.CLAIMED, Event.RECLAIM_REFUSED): State.LOST,
    (State.CLAIMED, Event.LEASE_ENDED): State.LOST,
    (State.RUNNING, Event.RESOLVE): State.RESOLVING,
    (State.RUNNING, Event.RECLAIM_REFUSED): State.LOST,
    (State.RUNNING, Event.LEASE_ENDED): State.LOST,
    (State.RESOLVING, Event.CONFIRMED): State.RESOLVED,
    (State.RESOLVING, Event.REPORT_REFUSED): State.LOST,
    (State.RESOLVING, Event.LEASE_ENDED): State.LOST,
}
"""Every other event leaves the state as it is. In particular, a reclaim that is refused while the run is
being reported loses nothing: the run may be resolved because this worker has just reported it."""


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_event_leads_from_each_state_to_the_one_that_is_promised(state: State, event: Event) -> None:
    assert after(state, event) is PROMISES.get((state, event), state)


def test_a_run_is_reclaimed_until_it_is_reported_and_claimed_until_it_ends() -> None:
    assert {State.CLAIMED, State.RUNNING} == STATES_TO_RECLAIM
    assert {State.CLAIMED, State.RUNNING, State.RESOLVING} == STATES_WITH_CLAIM


CLAIM = claim(1200)
QUEUE = AsyncQueue("https://example.com")


class ClaimedRunMachine(RuleBasedStateMachine):
    """Runs from their claim to their end, one after the other: most rules lead onwards, one to anything."""

    def __init__(self) -> None:
        super().__init__()
        self._claim()

    def _claim(self) -> None:
        self.told: list[ClaimLost] = []
        self.run = ClaimedRun(CLAIM, Lease(1200, 1200), QUEUE)
        self.run.when_lost(self.told.append)
        self.state = State.CLAIMED

    @precondition(lambda self: self.state in FINAL)
    @rule()
    def claim_another(self) -> None:
        self._claim()

    @precondition(lambda self: self.state is State.CLAIMED)
    @rule()
    def start(self) -> None:
        self._apply(Event.START)

    @precondition(lambda self: self.state in {State.CLAIMED, State.RUNNING})
    @rule()
    def resolve(self) -> None:
        self._apply(Event.RESOLVE)

    @precondition(lambda self: self.state is State.RESOLVING)
    @rule(event=st.sampled_from(Event))
    def something_happens_during_the_report(self, event: Event) -> None:
        self._apply(event)

    @rule(event=st.sampled_from(Event))
    def something_happens(self, event: Event) -> None:
        self._apply(event)

    def _apply(self, event: Event) -> None:
        before, expected = self.state, PROMISES.get((self.state, event), self.state)
        assert self.run.apply(event, "a test", LossReason.OTHER) == (expected is not before)
        assert self.run.state is expected
        self.state = expected

    @invariant()
    def a_claim_is_lost_once_with_its_reason(self) -> None:
        assert self.told == ([self.run.lost] if self.state is State.LOST else [])
        assert (self.run.lost is None) == (self.state is not State.LOST)

    @invariant()
    def a_worker_has_the_claim_until_the_end(self) -> None:
        assert self.run.has_claim == (self.state not in FINAL)

    @invariant()
    def a_late_watcher_is_told_at_once(self) -> None:
        if self.state in FINAL:
            late: list[ClaimLost] = []
            self.run.when_lost(late.append)
            assert late == self.told


TestClaimedRun = ClaimedRunMachine.TestCase
