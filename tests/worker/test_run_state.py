"""The states of a held run, against a plain model of what the Queue promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskqueue_client.worker.run_state import HELD_IN, RENEWED_IN, Event, State, after

FINAL = {State.RESOLVED, State.LOST}


class HeldRunMachine(RuleBasedStateMachine):
    """A run between its claim and its end, with everything that can happen to it in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State.CLAIMED
        self.started = self.resolving = False
        self.ended_as: State | None = None

    @initialize()
    def claimed(self) -> None:
        assert self.state in RENEWED_IN

    def _apply(self, event: Event) -> None:
        self.state = after(self.state, event)
        if self.ended_as is None and self.state in FINAL:
            self.ended_as = self.state

    @rule()
    @precondition(lambda self: self.state is State.CLAIMED)
    def start(self) -> None:
        self._apply(Event.START)
        self.started = True
        assert self.state is State.RUNNING

    @rule()
    def resolve(self) -> None:
        before = self.state
        self._apply(Event.RESOLVE)
        if before in RENEWED_IN:
            self.resolving = True
            assert self.state is State.RESOLVING

    @rule()
    def a_renewal_is_refused(self) -> None:
        before = self.state
        self._apply(Event.RENEWAL_REFUSED)
        assert self.state is (State.LOST if before in RENEWED_IN else before)

    @rule()
    def the_resolution_is_confirmed(self) -> None:
        before = self.state
        self._apply(Event.CONFIRMED)
        assert self.state is (State.RESOLVED if before is State.RESOLVING else before)

    @rule()
    def the_resolution_is_refused(self) -> None:
        before = self.state
        self._apply(Event.RESOLUTION_REFUSED)
        assert self.state is (State.LOST if before is State.RESOLVING else before)

    @rule()
    def the_lease_ends(self) -> None:
        before = self.state
        self._apply(Event.LEASE_ENDED)
        assert self.state is (State.LOST if before in HELD_IN else before)

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        assert self.ended_as is None or self.state is self.ended_as

    @invariant()
    def only_what_was_reported_is_resolved(self) -> None:
        assert self.state is not State.RESOLVED or self.resolving

    @invariant()
    def nothing_is_renewed_while_it_is_reported(self) -> None:
        assert not (self.resolving and self.state in RENEWED_IN)


TestHeldRun = HeldRunMachine.TestCase


@given(st.sampled_from(State), st.sampled_from(Event))
def test_every_event_is_allowed_in_every_state(state: State, event: Event) -> None:
    assert after(state, event) in State


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", sorted(FINAL, key=str))
def test_nothing_changes_a_run_that_has_ended(state: State, event: Event) -> None:
    assert after(state, event) is state
