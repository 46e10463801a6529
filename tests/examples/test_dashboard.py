"""Grafana can import the dashboard; workers expose the metrics that it and the alert rules name."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker.monitor import Vitals, WorkerMetrics

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples/deploy/grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES: dict[str, dict[str, Any]] = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "examples/deploy/alerts.yml").read_text())
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]
}
ON_CALL = (ROOT / "docs/how-to/on-call.md").read_text()
GRAFANAS_OWN = {"__rate_interval", "__all"}
WIDTH = 24


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[tuple[str, str]]]:
    """Return the names of all samples of a worker, each with its pairs of label and value."""
    vitals = Vitals(
        has_claimed=True,
        since_claim=1.0,
        is_shutting_down=False,
        claimed=1,
        lease_left=60.0,
        stuck=0,
        slots=2,
        blocked=0.0,
        credentials_left=3600.0,
        clock_offset=0.0,
    )
    body, _ = WorkerMetrics([WorkerIdentity("proj/linux", "rack", "w1")], lambda: vitals).exposition()
    found: dict[str, set[tuple[str, str]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels.items())
    return found


@pytest.mark.parametrize("query", [*QUERIES, VARIABLES["task_queue_id"]["query"]])
def test_each_metric_that_the_dashboard_names_is_exposed_with_its_labels(
    query: str, exposed: dict[str, set[tuple[str, str]]]
) -> None:
    names = re.findall(r"taskqueue_worker_\w+", query)
    assert names
    assert set(names) <= exposed.keys()
    used = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query))
    for group in re.findall(r"by \(([^)]*)\)", query):
        used |= set(group.split(", "))
    assert used <= {label for name in names for label, _ in exposed[name]}


def test_each_value_of_a_label_that_the_dashboard_asks_for_is_known() -> None:
    asked = set(re.findall(r'outcome="([\w-]+)"', " ".join(QUERIES)))
    assert asked == {"lost", "internal-error", "completed"}


@pytest.mark.parametrize("query", QUERIES)
def test_the_brackets_of_each_query_are_closed(query: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert query.count(opening) == query.count(closing)


def test_the_dashboard_has_what_grafana_needs_to_import_it() -> None:
    assert DASHBOARD["title"]
    assert re.fullmatch(r"[\w-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["schemaVersion"] >= 30
    assert {"from", "to"} == DASHBOARD["time"].keys()
    assert "id" not in DASHBOARD, "the id belongs to the Grafana that exported the dashboard"


def test_each_panel_has_what_grafana_needs_to_draw_it() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["type"] in {"stat", "timeseries", "table"}
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_panels_fit_the_grid_and_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    assert all(each["x"] + each["w"] <= WIDTH for each in places)
    cells = [
        cell
        for each in places
        for cell in itertools.product(
            range(each["x"], each["x"] + each["w"]), range(each["y"], each["y"] + each["h"])
        )
    ]
    assert len(set(cells)) == len(cells)


def test_each_variable_that_is_used_is_defined() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - GRAFANAS_OWN == VARIABLES.keys()


@pytest.mark.parametrize("alert", sorted(RULES.keys() - {"TaskqueueWorkerDown"}))
def test_each_alert_names_metrics_and_labels_that_exist(
    alert: str, exposed: dict[str, set[tuple[str, str]]]
) -> None:
    expression = RULES[alert]["expr"]
    names = set(re.findall(r"taskqueue_worker_\w+", expression))
    assert names
    assert names <= exposed.keys()
    known = set[tuple[str, str]]().union(*(exposed[name] for name in names))
    for label, values in re.findall(r'(\w+)(?:=|!=|=~|!~)"([^"]*)"', expression):
        assert {(label, value) for value in values.split("|")} <= known


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in RULES.values())


def test_the_page_for_operators_names_each_alert_and_only_metrics_that_exist(
    exposed: dict[str, set[tuple[str, str]]],
) -> None:
    assert sorted(re.findall(r"`(Taskqueue\w+)`", ON_CALL)) == sorted(RULES)
    names = re.findall(r"taskqueue_worker_\w+", ON_CALL)
    assert names
    assert set(names) <= exposed.keys()


def test_the_alert_about_workers_that_are_down_names_the_job_of_the_documentation() -> None:
    assert 'up{job="taskqueue-workers"}' in RULES["TaskqueueWorkerDown"]["expr"]
    assert "job_name: taskqueue-workers" in (ROOT / "docs/how-to/metrics.md").read_text()
