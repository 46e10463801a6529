"""Responses are frozen structs that read those of older and newer servers."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client.models import (
    ArtifactContent,
    ClaimWorkResponse,
    CreateArtifactResponse,
    Priority,
    ReasonResolved,
    StorageType,
    TaskClaim,
    TaskState,
    TaskStatus,
    TaskStatusResponse,
)

RUN = {
    "runId": 0,
    "state": "running",
    "reasonCreated": "scheduled",
    "scheduled": "2026-11-21T09:00:00.000Z",
    "takenUntil": "2026-11-21T09:20:53.649Z",
}
STATUS: dict[str, Any] = {
    "taskId": "fN1SbArXTPSVFNUvaOlinQ",
    "provisionerId": "p",
    "workerType": "w",
    "schedulerId": "s",
    "taskGroupId": "fN1SbArXTPSVFNUvaOlinQ",
    "deadline": "2026-11-21T12:00:00.000Z",
    "expires": "2027-11-21T12:00:00.000Z",
    "retriesLeft": 5,
    "state": "running",
    "runs": [RUN],
}
CLAIM = {
    "status": STATUS,
    "runId": 0,
    "workerGroup": "g",
    "workerId": "w",
    "takenUntil": "2026-11-21T09:20:53.95+00:00",
    "task": {"payload": {"camelCase": [1, None]}, "extra": {"unknown": True}},
    "credentials": {"clientId": "c", "accessToken": "the-token", "certificate": '{"expiry": 1795252853950}'},
}


def decoded(document: object, kind: type[Any]) -> Any:
    return msgspec.json.decode(json.dumps(document).encode(), type=kind)


def status(**changes: object) -> TaskStatus:
    read: TaskStatus = decoded({**STATUS, **changes}, TaskStatus)
    return read


def test_a_response_becomes_the_json_that_it_was_read_from() -> None:
    claim = decoded(CLAIM, TaskClaim)
    document = json.loads(json.dumps(claim.to_dict()))
    assert decoded(document, TaskClaim) == claim
    assert document["task"] == CLAIM["task"]
    assert document["status"]["runs"][0]["takenUntil"] == "2026-11-21T09:20:53.649Z"


@pytest.mark.parametrize("time", ["2026-11-21T09:20:53.649Z", "2026-11-21T09:20:53.000Z"])
def test_a_time_is_written_as_the_queue_writes_it(time: str) -> None:
    """Also in a whole second, where `strptime` with `%f` would fail on a time without a fraction."""
    assert status(deadline=time).to_dict()["deadline"] == time


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert status(news=1, runs=[{**RUN, "news": 2}]) == status()


def test_a_state_that_is_not_known_reads_as_itself() -> None:
    state = status(state="paused").state
    assert (state, str(state), f"{state}") == ("paused", "paused", "paused")
    assert isinstance(state, TaskState)
    assert state not in list(TaskState)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_value_of_an_open_enumeration(text: str) -> None:
    value = ReasonResolved(text)
    assert value == text
    assert hash(value) == hash(text)
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value


def test_a_value_that_is_not_text_is_not_a_value_of_an_enumeration() -> None:
    with pytest.raises(ValueError, match="5 is not a valid Priority"):
        Priority(5)  # type: ignore[arg-type] # what is tested


def test_a_known_value_is_the_member() -> None:
    assert status().state is TaskState.RUNNING


def test_times_are_aware_datetimes_in_both_forms_that_the_queue_writes() -> None:
    claim = decoded({"tasks": [CLAIM]}, ClaimWorkResponse).tasks[0]
    assert claim.taken_until == datetime(2026, 11, 21, 9, 20, 53, 950_000, tzinfo=UTC)
    assert claim.status.runs[0].taken_until == datetime(2026, 11, 21, 9, 20, 53, 649_000, tzinfo=UTC)
    assert claim.taken_until.tzinfo is UTC


def test_the_definition_of_a_claimed_task_is_the_plain_dict_that_was_sent() -> None:
    response = decoded({"tasks": [CLAIM]}, ClaimWorkResponse)
    (claim,) = response.tasks
    assert "task" not in vars(claim), "decoded before it was looked at"
    assert claim.task == CLAIM["task"]
    assert claim.task is claim.task
    assert json.loads(bytes(claim.task_json)) == CLAIM["task"]
    assert pickle.loads(pickle.dumps(claim)) == copy.deepcopy(claim) == claim
    assert response.to_dict()["tasks"][0]["task"] == CLAIM["task"]


def test_a_definition_that_cannot_be_read_leaves_the_other_claims_readable() -> None:
    claims = msgspec.json.encode({"tasks": [CLAIM, {**CLAIM, "task": {"payload": "HERE"}}]})
    good, bad = msgspec.json.decode(claims.replace(b'"HERE"', b"1e999"), type=ClaimWorkResponse).tasks
    assert good.task == CLAIM["task"]
    with pytest.raises(msgspec.DecodeError, match="Number out of range"):
        _ = bad.task


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": {**STATUS, "taskId": "../x"}}, r"task_id: '\.\./x' .*; expected a slugid .*tasks\[1\]`"),
        ({"runId": -1}, r"run_id: -1 .*; expected a whole number, 0 or more .*tasks\[1\]`"),
    ],
)
def test_a_claim_whose_ids_would_lead_out_of_a_work_directory_cannot_be_read(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        decoded({"tasks": [CLAIM, {**CLAIM, **change}]}, ClaimWorkResponse)


def test_the_certificate_is_not_decoded() -> None:
    claim = decoded({"tasks": [CLAIM]}, ClaimWorkResponse).tasks[0]
    assert claim.credentials.certificate == '{"expiry": 1795252853950}'


def test_an_old_queues_status_without_task_queue_project_and_priority_is_read() -> None:
    old = status()
    assert (old.task_queue_id, old.project_id, old.priority) == ("p/w", "none", None)
    assert status(taskQueueId="p2/w2").task_queue_id == "p2/w2"


def test_an_unscheduled_task_has_no_runs_and_a_pending_run_no_worker() -> None:
    assert status(state="unscheduled", runs=[]).runs == []
    assert status().runs[0].worker_id is None


def test_a_response_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        status().state = TaskState.FAILED  # type: ignore[misc] # what is tested


def test_a_response_can_be_copied_pickled_and_written_as_the_json_that_it_was() -> None:
    response = TaskStatusResponse(status())
    assert pickle.loads(pickle.dumps(response)) == copy.deepcopy(response) == response
    assert decoded(json.loads(msgspec.json.encode(response)), TaskStatusResponse) == response


def test_an_artifact_of_a_storage_type_that_is_not_known_is_read() -> None:
    content = decoded({"storageType": "tape", "reel": 7}, ArtifactContent)
    assert content.storage_type == "tape"
    assert content.storage_type not in list(StorageType)


def test_no_repr_shows_tokens_certificates_and_signatures() -> None:
    claim = decoded({"tasks": [CLAIM]}, ClaimWorkResponse)
    upload = decoded(
        {"storageType": "s3", "putUrl": "https://s3.example.com/key?X-Amz-Signature=abc"},
        CreateArtifactResponse,
    )
    for shown in (repr(claim), str(claim), repr(claim.__rich_repr__()), f"{claim.tasks[0].credentials}"):
        assert "the-token" not in shown
        assert "1795252853950" not in shown
    assert "https://s3.example.com/key?<redacted>" in repr(upload)
    assert "abc" not in str(upload) + repr(upload.__rich_repr__())


def test_a_repr_shows_all_else() -> None:
    content = ArtifactContent(storage_type=StorageType.S3, url="https://example.com/a")
    assert repr(content).startswith("ArtifactContent(storage_type=<StorageType.S3: 's3'>, url='https://exam")
