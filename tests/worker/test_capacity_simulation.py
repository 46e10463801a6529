"""The simulation of fleets runs the worker's own code on a virtual clock."""

from __future__ import annotations

import pytest

from benchmarks.capacity.fleet import Load
from benchmarks.capacity.scenarios import former_policy, outage, steady

LOAD = Load(workers=30, concurrency=4, poll=60.0)


def about(rate: float) -> object:
    return pytest.approx(rate, rel=0.1)


def test_a_steady_fleet_makes_as_many_requests_as_its_settings_say() -> None:
    rates = steady(LOAD, hours=0.5)
    assert rates["report"] == about(LOAD.tasks_per_second)
    assert rates["createArtifact"] == about(3 * rates["report"])
    assert rates["statuses"] == about(LOAD.workers / LOAD.poll)


def test_only_runs_that_last_until_the_first_checkpoint_upload_their_log_twice() -> None:
    rates = steady(Load(workers=1, concurrency=4, duration=8.0, poll=60.0), hours=1)
    assert rates["createArtifact"] == about(2.49 * rates["report"])  # 49 % of the runs last that long


def test_an_outage_of_five_minutes_loses_no_claim_and_ends_with_a_lower_peak_than_before() -> None:
    with former_policy():
        former = outage(LOAD, minutes=5)
    now = outage(LOAD, minutes=5)
    assert now.lost == 0
    assert now.peaks["report"] < former.peaks["report"]
