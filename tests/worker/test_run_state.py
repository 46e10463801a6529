"""The states of a claimed run, against a table of what the Queue promises."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskqueue_client import AsyncQueue, Credentials, Queue
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.claims.claimed_run import (
    ClaimedRun,
    ClaimEvent,
    ClaimState,
    Lease,
)
from taskqueue_client.worker.outcomes import ClaimLost, LossReason
from tests.worker.test_lease import claim

FINAL = {ClaimState.RESOLVED, ClaimState.LOST}

PROMISES = {
    (ClaimState.CLAIMED, ClaimEvent.RESOLVE): ClaimState.RESOLVING,
    (ClaimState.CLAIMED, ClaimEvent.RECLAIM_REFUSED): ClaimState.LOST,
    (ClaimState.CLAIMED, ClaimEvent.LEASE_ENDED): ClaimState.LOST,
    (ClaimState.RESOLVING, ClaimEvent.CONFIRMED): ClaimState.RESOLVED,
    (ClaimState.RESOLVING, ClaimEvent.REPORT_REFUSED): ClaimState.LOST,
    (ClaimState.RESOLVING, ClaimEvent.LEASE_ENDED): ClaimState.LOST,
}
"""Every other event leaves the state as it is. In particular, a reclaim that is refused while the run is
being reported loses nothing: the run may be resolved because this worker has just reported it."""


CLAIM = claim(1200)
QUEUE = AsyncQueue("https://example.com")


@pytest.mark.parametrize("event", ClaimEvent)
@pytest.mark.parametrize("state", ClaimState)
def test_each_event_leads_from_each_state_to_the_one_that_is_promised(
    state: ClaimState, event: ClaimEvent
) -> None:
    run = ClaimedRun(CLAIM, Lease(1200, 1200), QUEUE)
    run.state = state
    run.apply(event, "a test")
    assert run.state is PROMISES.get((state, event), state)


class ClaimedRunMachine(RuleBasedStateMachine):
    """Runs from claim to end, one after the other. Most rules go a step further; one applies any event."""

    def __init__(self) -> None:
        super().__init__()
        self._claim()

    def _claim(self) -> None:
        self.told: list[ClaimLost] = []
        self.run = ClaimedRun(CLAIM, Lease(1200, 1200), QUEUE)
        self.run.when_lost(self.told.append)
        self.state = ClaimState.CLAIMED

    @precondition(lambda self: self.state in FINAL)
    @rule()
    def claim_another(self) -> None:
        self._claim()

    @precondition(lambda self: self.state is ClaimState.CLAIMED)
    @rule()
    def resolve(self) -> None:
        self._apply(ClaimEvent.RESOLVE)

    @precondition(lambda self: self.state is ClaimState.RESOLVING)
    @rule(event=st.sampled_from(ClaimEvent))
    def something_happens_during_the_report(self, event: ClaimEvent) -> None:
        self._apply(event)

    @rule(event=st.sampled_from(ClaimEvent))
    def something_happens(self, event: ClaimEvent) -> None:
        self._apply(event)

    def _apply(self, event: ClaimEvent) -> None:
        before, expected = self.state, PROMISES.get((self.state, event), self.state)
        assert self.run.apply(event, "a test", LossReason.OTHER) == (expected is not before)
        assert self.run.state is expected
        self.state = expected

    @invariant()
    def a_claim_is_lost_once_with_its_reason(self) -> None:
        assert self.told == ([self.run.lost] if self.state is ClaimState.LOST else [])
        assert (self.run.lost is None) == (self.state is not ClaimState.LOST)

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


def test_a_client_that_cannot_be_made_does_not_hinder_later_credentials() -> None:
    run = ClaimedRun(CLAIM, Lease(1200, 1200), QUEUE)
    with pytest.raises(InvalidArgument):
        run.client(Queue("http://tc.example.com"), ("\n",))
    run.use_credentials(Credentials("c", "renewed"))
    assert run.credentials.access_token == "renewed"
