"""The table of endpoints, against the services' own reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client.local.endpoints import Endpoint
from taskqueue_client.local.http.api import ENDPOINTS, ROUTES

if TYPE_CHECKING:
    from pathlib import Path

_REFERENCES = {"queue": "data/api.json", "object": "data/object/api.json"}


def _reference(contract: Path, service: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((contract / _REFERENCES[service]).read_text())["entries"]
    return sorted(entries, key=lambda entry: str(entry["name"]))


def _as_reference(endpoint: Endpoint) -> dict[str, Any]:
    schema = (
        {"input": endpoint.schema.removeprefix(f"{endpoint.service}/") + ".json#"} if endpoint.schema else {}
    )
    scopes = {"scopes": endpoint.scopes} if endpoint.scopes else {}
    return {
        "name": endpoint.name,
        "method": endpoint.method.lower(),
        "route": endpoint.route,
        "query": sorted(endpoint.query),
        "args": [*endpoint.parameters],
        **scopes,
        **schema,
    }


@pytest.mark.parametrize("service", ["queue", "object"])
def test_the_table_is_the_reference(contract: Path, service: str) -> None:
    keys = ("name", "method", "route", "query", "args", "scopes", "input")
    expected = [{key: entry[key] for key in keys if key in entry} for entry in _reference(contract, service)]
    for entry in expected:
        entry["query"] = sorted(entry["query"])
    newer = {"taskQueueCountsBatch"}  # than the recorded reference
    ours = [_as_reference(each) for each in ENDPOINTS if each.service == service and each.name not in newer]
    assert sorted(ours, key=lambda entry: str(entry["name"])) == expected


@pytest.mark.parametrize(
    ("method", "path", "name", "params"),
    [
        ("GET", "/task-queues/p%2Fw", "getTaskQueue", {"taskQueueId": "p/w"}),
        ("GET", "/task-queues/p/w/counts", "taskQueueCounts", {"taskQueueId": "p/w"}),
        ("GET", "/task-queues/p%2Fw/counts", "taskQueueCounts", {"taskQueueId": "p/w"}),
        ("GET", "/task-queues/", "listTaskQueues", {}),
        ("GET", "/ping/", "ping", {}),
        ("POST", "/claim-work/p/w", "claimWork", {"taskQueueId": "p/w"}),
        ("POST", "/claim-work/p/w/", "claimWork", {"taskQueueId": "p/w/"}),
        ("GET", "/task/T/runs/0/artifacts", "listArtifacts", {"taskId": "T", "runId": "0"}),
        ("GET", "/task/T/runs/0/artifacts/", "getArtifact", {"taskId": "T", "runId": "0", "name": ""}),
        ("POST", "/task/T/runs/0/artifacts/", "createArtifact", {"taskId": "T", "runId": "0", "name": ""}),
        ("GET", "/task/T/artifacts/a//b%2Fc/", "getLatestArtifact", {"taskId": "T", "name": "a//b/c/"}),
        ("HEAD", "/task/T", "task", {"taskId": "T"}),
        ("POST", "/tasks/status", "statuses", {}),
        (
            "PUT",
            "/provisioners/p/worker-types/w/g/i",
            "declareWorker",
            {"provisionerId": "p", "workerType": "w", "workerGroup": "g", "workerId": "i"},
        ),
    ],
)
def test_a_path_finds_its_endpoint(method: str, path: str, name: str, params: dict[str, str]) -> None:
    match = ROUTES.find(method, "/api/queue/v1" + path)
    assert match is not None
    assert (match.endpoint.name, match.params) == (name, params)


def test_scopes_are_checked_first_where_the_url_determines_them(contract: Path) -> None:
    table = (contract / "endpoints.md").read_text()
    rows = [row.replace("\\|", "").split("|") for row in table.splitlines() if row.startswith("| `")]
    stated = {row[1].split("`")[1]: row[6].strip() for row in rows if len(row) == 11}
    ours = {endpoint.name: endpoint for endpoint in ENDPOINTS if endpoint.service == "queue"}
    assert len(stated) == 45
    assert {name: "P" if ours[name].is_checked_first else "H" for name in stated} == {
        name: stage[0] for name, stage in stated.items()
    }
