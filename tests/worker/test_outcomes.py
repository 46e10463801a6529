"""The report for each exception that a handler raises."""

from __future__ import annotations

import asyncio

import pytest

from taskqueue_client.errors import InvalidArgument, TaskQueueError
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker import outcomes
from taskqueue_client.worker.outcomes import (
    UPLOADED_BEFORE,
    LossReason,
    Outcome,
    outcome_for,
    outcome_of,
    resolution_of,
)
from taskqueue_client.worker.run.reporting import report_of

TABLE = [
    (None, "reportCompleted", "completed"),
    (outcomes.TaskFailed("red"), "reportFailed", "failed"),
    (outcomes.MalformedPayload("bad"), "reportException", "malformed-payload"),
    (outcomes.ResourceUnavailable("no"), "reportException", "resource-unavailable"),
    (outcomes.IntermittentTask("again"), "reportException", "intermittent-task"),
    (outcomes.InternalError("oops"), "reportException", "internal-error"),
    (outcomes.WorkerShutdown("bye"), "reportException", "worker-shutdown"),
    (ValueError("a bug"), "reportException", "internal-error"),
    (TimeoutError(), "reportException", "internal-error"),
    (asyncio.CancelledError(), "reportException", "internal-error"),
    (SystemExit(0), "reportException", "internal-error"),
]


@pytest.mark.parametrize(("outcome", "endpoint", "reason"), TABLE)
def test_each_outcome_has_its_reason_and_order(
    outcome: BaseException | None, endpoint: str, reason: str
) -> None:
    assert resolution_of(outcome) == reason
    assert (reason in UPLOADED_BEFORE) is (endpoint != "reportException")


def test_a_lost_claim_is_reported_to_nobody() -> None:
    assert resolution_of(outcomes.ClaimLost("gone")) is None


def test_an_outcome_of_ones_own_counts_as_what_it_is_derived_from() -> None:
    class FlakyNetwork(outcomes.IntermittentTask):
        pass

    assert resolution_of(FlakyNetwork("dns")) is ReasonResolved.INTERMITTENT_TASK


@pytest.mark.parametrize(("outcome", "endpoint", "reason"), TABLE)
def test_the_call_is_the_endpoints_and_carries_a_reason_only_for_exceptions(
    outcome: BaseException | None, endpoint: str, reason: str
) -> None:
    resolution = resolution_of(outcome)
    assert resolution is not None
    call = report_of("fN1SbArXTPSVFNUvaOlinQ", 2, resolution)
    assert call.endpoint == endpoint
    assert call.body == ({"reason": reason} if endpoint == "reportException" else None)


@pytest.mark.parametrize("reason", ["resource-unavailable", "resources-unavailable"])
def test_a_reason_is_known_in_both_spellings(reason: str) -> None:
    assert outcome_for(reason) is outcomes.ResourceUnavailable


def test_an_unknown_reason_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="intermittent-task"):
        outcome_for("bad-luck")


def test_everything_a_handler_may_raise_is_one_of_our_errors() -> None:
    assert issubclass(Outcome, TaskQueueError)


def test_a_group_of_outcomes_that_are_reported_alike_is_the_first_of_them() -> None:
    first, second = outcomes.TaskFailed("red"), outcomes.TaskFailed("too")
    assert outcome_of(ExceptionGroup("", [ExceptionGroup("", [first]), second]), {}) is first


@pytest.mark.parametrize("other", [ValueError("a bug"), outcomes.MalformedPayload("bad"), SystemExit(1)])
def test_any_other_group_is_an_internal_error(other: BaseException) -> None:
    group = BaseExceptionGroup("", [outcomes.TaskFailed("red"), other])
    assert outcome_of(group, {}) is group
    assert resolution_of(group) is ReasonResolved.INTERNAL_ERROR


def test_an_exception_that_is_not_a_group_is_returned_unchanged() -> None:
    bug = ValueError("a bug")
    assert outcome_of(bug, {}) is bug
    assert outcome_of(None, {}) is None


def test_a_run_is_canceled_in_a_condition_when_the_event_is_set() -> None:
    """So `while not task.canceled` works; an event of `threading` would always be true."""
    canceled = outcomes.Canceled()
    assert not canceled
    canceled.cancel(outcomes.WorkerShutdown())
    assert canceled


def test_a_handler_that_checks_whether_it_should_stop_learns_why_the_claim_was_lost() -> None:
    canceled = outcomes.Canceled()
    canceled.cancel(outcomes.ClaimLost("the task was canceled", reason=LossReason.CANCELED))
    with pytest.raises(outcomes.ClaimLost, match="the task was canceled") as raised:
        canceled.check()
    assert raised.value.reason is LossReason.CANCELED
    assert raised.value is not canceled.reason, "raising the stored one would add frames of each caller to it"
