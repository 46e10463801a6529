"""No request makes the local queue fail, and no refused request changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from taskqueue_client.local.engine import claims_and_reports
from taskqueue_client.local.engine.task_records import get_task
from taskqueue_client.local.http import api
from taskqueue_client.local.http.api import ENDPOINTS
from taskqueue_client.local.http.responses import json_response
from tests.fuzz.request_fuzzer import Findings, fuzz


@pytest.fixture(scope="module")
def found() -> Findings:
    return fuzz(0, 3000)


def test_no_request_makes_the_server_fail_and_no_refused_one_changes_anything(found: Findings) -> None:
    assert found.wrong == []


def test_requests_are_accepted_by_most_endpoints_and_refused_for_every_reason(found: Findings) -> None:
    """Requests that were all refused by the first check would show nothing."""
    assert {200, 303, 400, 401, 403, 404, 409, 421} <= found.statuses.keys()
    assert len([each for each in ENDPOINTS if found.accepted[each.full_name]]) > 0.85 * len(ENDPOINTS)


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


def refuses(body: object) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        return json_response(body, 400)

    return function


def writes_before(function: Callable[..., Any]) -> Callable[..., Any]:
    def planted(store: Any, task_id: str) -> Any:
        store.change("INSERT OR REPLACE INTO task_queues VALUES ('planted/planted', 0, 0)")
        return function(store, task_id)

    return planted


@pytest.mark.parametrize(
    ("module", "name", "planted", "finding"),
    [
        (api, "check_url", raises(ValueError("planted")), "status 500"),
        (api, "_response", raises(ValueError("planted")), "logged "),
        (api, "check_url", raises(asyncio.CancelledError()), "no response"),
        (api, "error_response", refuses({"error": 1}), "not the form of errors"),
        (api, "error_response", refuses({"code": "Traceback"}), "a traceback"),
        (
            *(claims_and_reports, "get_task", writes_before(get_task)),
            "refused, and changed task_queues",
        ),
    ],
)
def test_faults_of_a_queue_are_found(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, planted: Callable[..., Any], finding: str
) -> None:
    monkeypatch.setattr(module, name, planted)
    found = fuzz(0, 100)
    assert any(finding in each for each in found.wrong), found.wrong


def test_a_seed_repeats_the_requests() -> None:
    first, second = fuzz(7, 500), fuzz(7, 500)
    assert (first.statuses, first.accepted) == (second.statuses, second.accepted)
