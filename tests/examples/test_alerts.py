"""The alert rules for Prometheus name only metrics that a worker has, and that the documentation explains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker.monitoring.monitor import Vitals, WorkerMetrics

ROOT = Path(__file__).parents[2]
GROUPS: list[dict[str, Any]] = yaml.safe_load((ROOT / "examples/deploy/alerts.yml").read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
TABLE = set(
    re.findall(
        r"^\| `(\w+)` \| (?:counter|gauge|histogram)",
        (ROOT / "docs/how-to/metrics.md").read_text(),
        re.MULTILINE,
    )
)


@pytest.fixture(scope="module")
def labels() -> dict[str, set[tuple[str, str]]]:
    """The labels with their values of each sample of a worker."""
    vitals = Vitals(
        has_claimed=True,
        since_claim=1.0,
        is_shutting_down=False,
        claimed=1,
        lease_left=60.0,
        stuck=0,
        slots=2,
        blocked=0.0,
    )
    body, _ = WorkerMetrics([WorkerIdentity("proj/linux", "rack", "w1")], lambda: vitals).exposition()
    found: dict[str, set[tuple[str, str]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels.items())
    return found


@pytest.mark.parametrize("alert", RULES.keys() - {"TaskqueueWorkerDown"})
def test_each_alert_names_metrics_and_labels_that_exist(
    alert: str, labels: dict[str, set[tuple[str, str]]]
) -> None:
    expression = RULES[alert]["expr"]
    names = set(re.findall(r"taskqueue_worker_(\w+)", expression))
    assert names
    assert names <= TABLE
    known = set[tuple[str, str]]().union(*(labels[f"taskqueue_worker_{name}"] for name in names))
    for label, values in re.findall(r'(\w+)(?:=|!=|=~|!~)"([^"]*)"', expression):
        assert {(label, value) for value in values.split("|")} <= known


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in RULES.values())


def test_the_rule_for_workers_that_are_down_names_the_job_of_the_documentation() -> None:
    assert 'up{job="taskqueue-workers"}' in RULES["TaskqueueWorkerDown"]["expr"]
    assert "job_name: taskqueue-workers" in (ROOT / "docs/how-to/metrics.md").read_text()
