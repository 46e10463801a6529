"""The states of a held run, and what may happen in each: pure.

    CLAIMED ──start──▶ RUNNING ──resolve──▶ RESOLVING ──resolved──▶ RESOLVED
       │                  │                     │
       └──────────────────┴──────── lose ───────┴──────────────────▶ LOST

Renewal stops when resolving begins, so a renewal that is refused after that says nothing: the run may be
resolved because we have just done so. Only the refusal of the resolution itself does, and the end of the
lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where a held run stands."""

    CLAIMED = "claimed"
    RUNNING = "running"
    RESOLVING = "resolving"
    RESOLVED = "resolved"
    LOST = "lost"


class Event(Enum):
    """What happens to a held run."""

    START = "start"
    """Its handler is called."""
    RESOLVE = "resolve"
    """Its outcome is known, and about to be reported."""
    CONFIRMED = "confirmed"
    """The service has it as resolved as it was meant."""
    RENEWAL_REFUSED = "renewal-refused"
    """The service says that it is not ours, when asked to renew it or for its status."""
    RESOLUTION_REFUSED = "resolution-refused"
    """The service has it as resolved otherwise."""
    LEASE_ENDED = "lease-ended"
    """Nobody could be reached until the lease was over: another worker may have it by now."""


_NEXT: Mapping[State, Mapping[Event, State]] = {
    State.CLAIMED: {
        Event.START: State.RUNNING,
        Event.RESOLVE: State.RESOLVING,
        Event.RENEWAL_REFUSED: State.LOST,
        Event.LEASE_ENDED: State.LOST,
    },
    State.RUNNING: {
        Event.RESOLVE: State.RESOLVING,
        Event.RENEWAL_REFUSED: State.LOST,
        Event.LEASE_ENDED: State.LOST,
    },
    State.RESOLVING: {
        Event.CONFIRMED: State.RESOLVED,
        Event.RESOLUTION_REFUSED: State.LOST,
        Event.LEASE_ENDED: State.LOST,
    },
}
"""Everything else changes nothing: it comes too late."""

RENEWED_IN = frozenset({State.CLAIMED, State.RUNNING})
"""The states in which a run's lease is renewed."""

HELD_IN = frozenset({*RENEWED_IN, State.RESOLVING})
"""The states in which a run is ours."""


def after(state: State, event: Event) -> State:
    """The state that follows; the same one where the event comes too late to matter."""
    return _NEXT.get(state, {}).get(event, state)
