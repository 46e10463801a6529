"""A movable clock that follows the machine's."""

from __future__ import annotations

import time

import pytest

from taskqueue_client.clock import MovableMachineClock


def test_it_follows_a_machine_that_slept_and_keeps_what_it_was_moved_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = MovableMachineClock()
    clock.advance(100)
    machine = time.time
    monkeypatch.setattr(time, "time", lambda: machine() + 3600)  # an hour in which the monotonic clock stood
    assert clock.now() == pytest.approx(machine() + 3700, abs=5)


def test_it_stands_still_while_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovableMachineClock()
    clock.hold()
    held = clock.now()
    machine = time.time
    monkeypatch.setattr(time, "time", lambda: machine() + 3600)
    assert clock.now() == held
