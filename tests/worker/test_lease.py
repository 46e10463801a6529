"""Leases: their length, when they are reclaimed, and how retries are spread over what is left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.claims.claimed_run import Lease, Reclaimed, attempt_timeout, cause_of, retry_in
from tests.worker.queue_world import iso

SERVER_NOW = datetime(2031, 5, 6, 7, 8, 9, 123000, UTC)
"""The server's time, far from that of the machine that runs the test."""

lengths = st.floats(min_value=1, max_value=86400)
chances = st.floats(min_value=0, max_value=1)


def response(
    seconds: float, *, certificate_age: float = 0.0, with_certificate: bool = True
) -> dict[str, object]:
    """Return a response with the fields that claimWork and reclaimTask share, sent at `SERVER_NOW`."""
    taken_until = SERVER_NOW + timedelta(seconds=seconds)
    start = int((SERVER_NOW.timestamp() - certificate_age) * 1000)
    certificate = msgspec.json.encode({"start": start, "expiry": 0}).decode()
    credentials = {
        "clientId": "c",
        "accessToken": "t",
        "certificate": certificate if with_certificate else None,
    }
    run = {
        "runId": 0,
        "state": "running",
        "reasonCreated": "scheduled",
        "scheduled": iso(SERVER_NOW),
        "started": iso(SERVER_NOW),
        "takenUntil": iso(taken_until),
    }
    status = {
        "taskId": "fN1SbArXTPSVFNUvaOlinQ",
        "provisionerId": "p",
        "workerType": "w",
        "taskGroupId": "g",
        "deadline": iso(taken_until),
        "expires": iso(taken_until),
        "retriesLeft": 1,
        "state": "running",
        "runs": [run],
    }
    return {
        "status": status,
        "runId": 0,
        "workerGroup": "g",
        "workerId": "w",
        "takenUntil": iso(taken_until),
        "credentials": credentials,
    }


def claim(seconds: float, *, certificate_age: float = 0.0, with_certificate: bool = True) -> TaskClaim:
    data = response(seconds, certificate_age=certificate_age, with_certificate=with_certificate)
    return msgspec.json.decode(msgspec.json.encode({**data, "task": {}}), type=TaskClaim)


def reclaim(seconds: float, *, certificate_age: float = 0.0, with_certificate: bool = True) -> Reclaimed:
    data = response(seconds, certificate_age=certificate_age, with_certificate=with_certificate)
    return msgspec.convert(data, Reclaimed)


def test_the_length_is_the_difference_of_two_times_of_the_server() -> None:
    lease = Lease.of_claim(claim(1200), received=50.0)
    assert lease.length == pytest.approx(1200)
    assert lease.ends == pytest.approx(1250)


def test_a_lease_needs_no_certificate() -> None:
    assert Lease.of_claim(claim(1200, with_certificate=False), 0).length == pytest.approx(1200)


@pytest.mark.parametrize(
    "certificate", ["", "{}", "[]", '{"start": "now"}', '{"start": 1e300}', '{"start": -1e17}']
)
def test_a_certificate_that_cannot_be_read_loses_no_lease(certificate: str) -> None:
    granted = claim(1200)
    odd = msgspec.structs.replace(granted.credentials, certificate=certificate)
    assert Lease.of_claim(msgspec.structs.replace(granted, credentials=odd), 0).length == pytest.approx(1200)


def test_credentials_that_are_dated_back_do_not_make_a_lease_longer() -> None:
    lease = Lease.of_claim(claim(1200, certificate_age=900), 0)
    assert lease.length == pytest.approx(1200)
    assert lease.reclaimed(reclaim(1200, certificate_age=900), requested=800.0).length == pytest.approx(1200)


def test_a_reclaimed_lease_counts_from_when_it_was_asked_for() -> None:
    lease = Lease.of_claim(claim(1200), 0).reclaimed(reclaim(1200), requested=700.0)
    assert lease.ends == pytest.approx(1900)


def test_a_reclaim_may_be_shorter_than_the_claim_was() -> None:
    assert Lease.of_claim(claim(1200), 0).reclaimed(reclaim(300), requested=700.0).length == pytest.approx(
        300
    )


def test_a_reclaim_without_certificate_is_as_long_as_the_claim() -> None:
    renewal = reclaim(1200, with_certificate=False)
    assert Lease.of_claim(claim(600), 0).reclaimed(renewal, requested=300.0).ends == pytest.approx(900)


@given(chances)
def test_twenty_minutes_are_first_reclaimed_with_several_minutes_to_spare(chance: float) -> None:
    lease = Lease(1200, ends=1200)
    assert 5 * 60 <= lease.ends - lease.reclaim_at(chance) <= 10 * 60


@given(chances)
def test_a_lease_of_five_seconds_has_time_for_several_attempts(chance: float) -> None:
    left = 5 - Lease(5, ends=5).reclaim_at(chance)
    assert left >= 1.4
    tries = 0
    while left > 0.1:
        tries += 1
        left -= retry_in(tries, left, chance)
    assert tries >= 4


@given(lengths)
def test_leases_that_were_granted_together_are_reclaimed_apart(length: float) -> None:
    lease = Lease(length, ends=length)
    times = sorted(lease.reclaim_at(number / 1000) for number in range(1000))
    assert times[-1] - times[0] >= 0.19 * length


@given(st.integers(min_value=1, max_value=10**6), st.floats(min_value=0, max_value=86400), chances)
def test_a_wait_between_attempts_leaves_time_for_another(failures: int, left: float, chance: float) -> None:
    wait = retry_in(failures, left, chance)
    assert 0.05 <= wait <= max(0.05, 0.5 * left)


def test_waits_grow_with_the_outage_so_that_runs_that_waited_are_not_reclaimed_at_once() -> None:
    waits = [retry_in(failures, 7200.0, 0.5) for failures in range(1, 9)]
    assert waits == [0.25, 1, 4, 16, 64, 256, 300, 300]


@given(st.floats(min_value=0, max_value=86400))
def test_an_attempt_that_hangs_leaves_time_for_another(left: float) -> None:
    assert 0.5 <= attempt_timeout(left) <= 30
    assert attempt_timeout(left) <= max(0.5, left / 3)


def test_a_lease_that_has_ended_has_no_time_left() -> None:
    assert Lease(10, ends=10).left(10.5) == 0
    assert Lease(10, ends=10).left(9.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("error", "cause"),
    [(TimeoutError(), "no response in time"), (MemoryError(), "MemoryError"), (OSError("full"), "full")],
)
def test_the_cause_of_a_failed_attempt_is_named_also_if_it_has_no_text(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause
