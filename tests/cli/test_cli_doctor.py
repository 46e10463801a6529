"""`taskqueue doctor`: what is wrong, in plain words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskqueue_client import Credentials, temporary_credentials
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.local import Client, LocalQueue
from tests.cli.command import run, run_json


def verdicts(*arguments: str) -> dict[str, tuple[str, str]]:
    """Verdict and message of each check."""
    findings: list[dict[str, Any]] = run_json("doctor", *arguments)
    return {each["check"]: (each["verdict"], each["message"]) for each in findings}


def become(monkeypatch: pytest.MonkeyPatch, credentials: Credentials) -> None:
    monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", credentials.client_id)
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", credentials.access_token)
    monkeypatch.setenv("TASKCLUSTER_CERTIFICATE", credentials.certificate or "")


@pytest.mark.usefixtures("deployment")
def test_where_all_is_well_it_says_so() -> None:
    assert run("doctor", "proj/linux").exit_code == ExitStatus.DONE
    assert {verdict for verdict, _ in verdicts("proj/linux").values()} == {"good"}


def test_without_a_root_url_it_names_the_variable() -> None:
    assert run("doctor").exit_code == ExitStatus.NOT_COMPLETED
    (verdict, message) = verdicts()["environment"]
    assert verdict == "wrong"
    assert "TASKCLUSTER_ROOT_URL is not set" in message


def test_a_queue_that_does_not_answer_is_named(deployment: LocalQueue) -> None:
    root_url = deployment.root_url
    deployment.stop()
    verdict, message = verdicts()["service"]
    assert verdict == "wrong"
    assert f"cannot reach {root_url}" in message


@pytest.mark.usefixtures("deployment")
def test_a_wrong_token_is_noticed_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "not-the-token")
    found = verdicts("proj/linux")
    assert found["credentials"][0] == "wrong"
    assert "check TASKCLUSTER_CLIENT_ID and _ACCESS_TOKEN" in found["credentials"][1]
    assert "not-the-token" not in str(found)


@pytest.mark.usefixtures("deployment")
def test_no_credentials_are_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKCLUSTER_CLIENT_ID")
    monkeypatch.delenv("TASKCLUSTER_ACCESS_TOKEN")
    assert verdicts()["credentials"][0] == "note"


def test_a_clock_that_is_wrong_is_measured(deployment: LocalQueue) -> None:
    deployment.clock.advance(minutes=10)
    verdict, message = verdicts()["clock"]
    assert verdict == "wrong"
    assert "s behind the service's" in message


def test_temporary_credentials_near_their_end_are_worth_a_note(
    deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = deployment.credentials
    become(monkeypatch, temporary_credentials(issuer, ["*"], lifetime=timedelta(minutes=10)))
    verdict, message = verdicts()["certificate"]
    assert verdict == "note"
    assert "last 5 more minutes" in message


def test_expired_credentials_are_named(deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, temporary_credentials(deployment.credentials, ["*"], lifetime=timedelta(minutes=1)))
    assert verdicts()["certificate"] == ("wrong", "the temporary credentials have expired: get new ones")


def test_missing_scopes_for_a_task_queue_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    scopes = ["queue:claim-work:proj/*", "queue:pending-count:*", "queue:claimed-count:*"]
    with LocalQueue(clients=[Client("w", "w-token", scopes)]) as local:
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        become(monkeypatch, Credentials("w", "w-token"))
        found = verdicts("proj/linux", "--worker-group", "rack", "--worker-id", "one")
    assert found["scopes to work"] == ("note", "missing: queue:worker-id:rack/one")
    assert found["scopes to submit"] == (
        "note",
        "missing: queue:create-task:lowest:proj/linux, queue:create-task:project:none, queue:scheduler-id:-",
    )
