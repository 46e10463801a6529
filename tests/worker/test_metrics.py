"""The metrics of a worker, and how Prometheus reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import Counter, Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.registry import REGISTRY

from taskqueue_client import __version__
from taskqueue_client.local import LocalQueue
from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker.monitor import PREFIX, Vitals, WorkerMetrics
from taskqueue_client.worker.outcomes import LossReason
from tests.worker.queue_world import TASK_QUEUE_ID, World

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""The `Accept` header of Prometheus."""

VITALS = Vitals(
    has_claimed=True,
    since_claim=5.0,
    is_shutting_down=False,
    claimed=2,
    lease_left=600.0,
    stuck=0,
    slots=2,
    blocked=0.0,
    credentials_left=3600.0,
    clock_offset=0.0,
)


def metrics_of(vitals: Vitals = VITALS) -> WorkerMetrics:
    return WorkerMetrics([WorkerIdentity(TASK_QUEUE_ID, "rack", "w1")], lambda: vitals)


@pytest.fixture
def metrics() -> WorkerMetrics:
    return metrics_of()


read_openmetrics = cast(
    "Callable[[str], Iterable[Metric]]",
    openmetrics.text_string_to_metric_families,  # pyright: ignore[reportUnknownMemberType] # it has no types
)


def families(metrics: WorkerMetrics, accept: str = OPENMETRICS) -> dict[str, Metric]:
    body, _ = metrics.exposition(accept)
    read = read_openmetrics if accept else read_text
    return {family.name: family for family in read(body.decode())}


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    """Return the value of a sample of the worker; None if there is none."""
    samples = [each for family in families(metrics).values() for each in family.samples]
    found = [each.value for each in samples if each.name == PREFIX + name and each.labels == labels]
    return found[0] if found else None


def test_the_metrics_are_openmetrics_if_the_request_accepts_it(metrics: WorkerMetrics) -> None:
    body, content_type = metrics.exposition(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    assert families(metrics)["taskqueue_worker_tasks"].type == "counter"


def test_the_metrics_are_prometheus_text_for_everybody_else(metrics: WorkerMetrics) -> None:
    body, content_type = metrics.exposition()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# TYPE taskqueue_worker_tasks_total counter\n" in body
    assert families(metrics, "").keys() >= {
        "taskqueue_worker_tasks",
        "taskqueue_worker_task_duration_seconds",
    }


@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
@pytest.mark.parametrize("version", ["x", "1.x", "1..0", ""])
def test_a_version_that_is_not_a_number_is_not_an_error(
    metrics: WorkerMetrics, kind: str, version: str
) -> None:
    text, content_type = metrics.exposition(f"{kind};version={version}")
    assert b"taskqueue_worker_tasks" in text
    assert content_type.startswith(("text/plain; version=0.0.4", "application/openmetrics-text; version="))


def documented() -> dict[str, tuple[str, set[str]]]:
    """Return the types and labels of the metrics in the table of the documentation."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md"
    _, _, rest = page.read_text().partition("| name | type | labels | meaning |\n|---|---|---|---|\n")
    table, _, _ = rest.partition("\n\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name.strip("`"): (kind, set(labels.replace("`", "").split())) for name, kind, labels, _ in rows}


def test_the_table_of_the_documentation_has_the_names_types_and_labels_of_all_metrics(
    metrics: WorkerMetrics,
) -> None:
    shown: dict[str, tuple[str, set[str]]] = {}
    for family in families(metrics).values():
        if family.name.startswith(PREFIX) or family.name == PREFIX.rstrip("_"):
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            shown[(family.name + suffix).removeprefix(PREFIX)] = (family.type, labels)
    assert shown == documented()


def test_a_run_is_counted_and_timed_by_its_outcome(metrics: WorkerMetrics) -> None:
    metrics.ended(TASK_QUEUE_ID, "completed", "", 42.0)
    where = {"task_queue_id": TASK_QUEUE_ID, "outcome": "completed"}
    assert value(metrics, "tasks_total", **where, reason="") == 1
    assert value(metrics, "task_duration_seconds_sum", **where) == 42
    assert value(metrics, "task_duration_seconds_bucket", **where, le="15.0") == 0
    assert value(metrics, "task_duration_seconds_bucket", **where, le="60.0") == 1


def test_the_time_that_a_run_was_pending_is_taken_from_the_queue() -> None:
    with LocalQueue() as local:
        world, metrics = World(local), metrics_of()
        world.create()
        local.clock.advance(seconds=90)
        claims = world.queue.claim_work(TASK_QUEUE_ID, worker_group="rack", worker_id="w1").tasks
        world.close()
    metrics.claimed(claims[0])
    waited = value(metrics, "queue_wait_seconds_sum", task_queue_id=TASK_QUEUE_ID)
    assert waited == pytest.approx(90, abs=30)
    assert value(metrics, "claims_total", task_queue_id=TASK_QUEUE_ID) == 1


def test_a_claim_without_the_time_of_its_start_is_counted_all_the_same(metrics: WorkerMetrics) -> None:
    with LocalQueue() as local:
        world = World(local)
        world.create()
        claims = world.queue.claim_work(TASK_QUEUE_ID, worker_group="rack", worker_id="w1").tasks
        world.close()
    claims[0].status.runs.clear()
    metrics.claimed(claims[0])
    assert value(metrics, "claims_total", task_queue_id=TASK_QUEUE_ID) == 1
    assert value(metrics, "queue_wait_seconds_count", task_queue_id=TASK_QUEUE_ID) == 0


@pytest.mark.parametrize(
    "outcome",
    [
        "completed",
        "failed",
        "malformed-payload",
        "resource-unavailable",
        "intermittent-task",
        "internal-error",
        "worker-shutdown",
    ],
)
def test_each_outcome_is_shown_from_the_start(metrics: WorkerMetrics, outcome: str) -> None:
    assert value(metrics, "tasks_total", task_queue_id=TASK_QUEUE_ID, outcome=outcome, reason="") == 0


@pytest.mark.parametrize("reason", LossReason)
def test_lost_runs_are_counted_by_their_reason(metrics: WorkerMetrics, reason: LossReason) -> None:
    lost = {"task_queue_id": TASK_QUEUE_ID, "outcome": "lost", "reason": reason.value}
    assert value(metrics, "tasks_total", **lost) == 0
    metrics.ended(TASK_QUEUE_ID, "lost", reason.value, 1.0)
    assert value(metrics, "tasks_total", **lost) == 1


def test_failures_of_uploads_and_reclaims_are_counted(metrics: WorkerMetrics) -> None:
    metrics.uploads.labels("failed").inc()
    metrics.reclaims.labels("failed").inc()
    metrics.uploaded_bytes.inc(1.5e12)
    assert value(metrics, "uploads_total", result="failed") == 1
    assert value(metrics, "uploads_total", result="invalid") == 0
    assert value(metrics, "reclaims_total", result="failed") == 1
    assert value(metrics, "uploaded_bytes_total") == 1.5e12


def test_the_info_names_the_versions_and_the_worker(metrics: WorkerMetrics) -> None:
    (sample,) = families(metrics)["taskqueue_worker"].samples
    assert sample.labels["version"] == __version__
    assert (sample.labels["worker_group"], sample.labels["worker_id"]) == ("rack", "w1")


def test_a_gauge_without_a_value_is_not_shown() -> None:
    nothing = replace(
        VITALS, since_claim=None, lease_left=None, claimed=0, credentials_left=None, clock_offset=None
    )
    metrics = metrics_of(nothing)
    assert value(metrics, "credentials_left_seconds") is None
    assert value(metrics, "clock_offset_seconds") is None
    assert value(metrics, "claim_call_age_seconds") is None
    assert value(metrics, "lease_left_seconds") is None
    assert value(metrics, "tasks_claimed") == 0


def test_metrics_that_users_register_are_shown_too(metrics: WorkerMetrics) -> None:
    own = Counter("builder_cache_hits_total", "Builds that were cached.")
    try:
        own.inc(3)
        (total,) = [
            each
            for each in families(metrics)["builder_cache_hits"].samples
            if each.name == "builder_cache_hits_total"
        ]
        assert total.value == 3
    finally:
        REGISTRY.unregister(own)


def test_two_workers_of_a_process_count_for_themselves(metrics: WorkerMetrics) -> None:
    other = metrics_of()
    metrics.uploaded_bytes.inc(5)
    assert value(other, "uploaded_bytes_total") == 0


def test_counting_in_many_threads_loses_nothing(metrics: WorkerMetrics) -> None:
    def count() -> None:
        for _ in range(2000):
            metrics.uploaded_bytes.inc()
            metrics.lateness.observe(0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert value(metrics, "uploaded_bytes_total") == 8000
    assert value(metrics, "reclaim_lateness_seconds_count") == 8000
