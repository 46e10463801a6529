"""Clocks that can be moved, also one that follows the machine's."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from taskqueue_client.clock import MovableClock, MovableMachineClock


def test_a_moved_clock_stays_ahead_of_the_machine_after_the_machine_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = MovableMachineClock()
    clock.advance(100)
    machine = time.time
    monkeypatch.setattr(time, "time", lambda: machine() + 3600)  # an hour of the machine's sleep
    assert clock.now() == pytest.approx(machine() + 3700, abs=5)


def test_a_held_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovableMachineClock()
    clock.hold()
    held = clock.now()
    machine = time.time
    monkeypatch.setattr(time, "time", lambda: machine() + 3600)
    assert clock.now() == held


def test_a_clock_that_is_held_and_released_keeps_its_time_whenever_the_machine_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, machine, asleep = MovableMachineClock(), time.time, 3600
    monkeypatch.setattr(time, "time", lambda: machine() + asleep)
    before = clock.now()
    for _ in range(2):  # the second time changes nothing
        clock.hold()
        assert clock.now() == pytest.approx(before, abs=5)
    asleep += 3600  # while the clock is held
    for _ in range(2):
        clock.release()
        assert clock.now() == pytest.approx(before, abs=5)
    asleep += 3600
    assert clock.now() == pytest.approx(before + 3600, abs=5)


@pytest.mark.parametrize(
    "step", [-1.0, math.inf, math.nan, pytest.param(10**400, id="too large for a float")]
)
def test_a_clock_is_moved_forward_only_and_not_for_ever(step: float) -> None:
    clock = MovableClock(start=1000.0, held=True)
    with pytest.raises(ValueError, match="expected 0 or more"):
        clock.advance(step)
    assert clock.now() == 1000.0


@pytest.mark.parametrize("turns", range(5))
async def test_a_wait_is_canceled_while_the_clock_moves(turns: int) -> None:
    clock = MovableClock()
    waiting = asyncio.create_task(clock.sleep_async(60))
    await asyncio.sleep(0)
    clock.advance(seconds=1)
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=5)
    assert waiting.cancelled()


def test_a_library_that_freezes_the_time_does_not_move_a_running_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With freezegun, the monotonic clock jumps to the frozen time: a local queue would remove its tasks."""
    clock = MovableClock()
    before = clock.now()
    monkeypatch.setattr(time, "monotonic", lambda: 1.8e9)  # seconds since the epoch, as by freezegun
    assert clock.now() - before < 3600
