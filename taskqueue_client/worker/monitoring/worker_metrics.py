"""The state and the metrics of a worker, over prometheus_client.

`docs/how-to/metrics.md` has a table of their names, labels and meanings, which a test compares with them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from taskqueue_client._version import __version__
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.config import WorkerIdentity
from taskqueue_client.worker.outcomes import COMPLETED, LOST, RESOLUTIONS, LossReason

PREFIX = "taskqueue_worker_"

LATENESS_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0)
"""Seconds by which a reclaim begins late: from what any loop takes to what loses short leases."""

DURATION_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
"""Seconds that a run takes: from a script to the longest builds."""

WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Seconds that a run waits for a worker: from none to a task queue that does not keep up."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """The state of a worker. Times are in seconds.

    Attributes:
        has_claimed: The Queue has responded to a claim request, with or without work.
        since_claim: How long a claim request has been due without a response: since the last response,
            since the worker has had free slots again, or since it started. None while none is due, as all
            slots are taken or the worker is shutting down.
        is_shutting_down: The shutdown has begun.
        claimed: How many runs are claimed.
        lease_left: What is left of the lease that ends first; negative if it has ended; None without a run.
        stuck: How many slots are held by handlers that do not stop, though their runs have ended.
        slots: How many slots there are: the setting `concurrency`.
        blocked: For how long the worker's event loop has been blocked, by a hook or a log handler that waits.
    """

    has_claimed: bool
    since_claim: float | None
    is_shutting_down: bool
    claimed: int
    lease_left: float | None
    stuck: int
    slots: int
    blocked: float


class _Labels(NamedTuple):
    """Labels of a metric that go together, and the values that are shown from the start."""

    names: tuple[str, ...]
    values: Sequence[tuple[str, ...]]


_OUTCOMES = [COMPLETED.reason.value, *(each.reason.value for each in RESOLUTIONS.values() if each), LOST]

_OUTCOME = _Labels(("outcome",), [(each,) for each in _OUTCOMES])

_END = _Labels(
    ("outcome", "reason"),
    [*((each, "") for each in _OUTCOMES if each != LOST), *((LOST, each.value) for each in LossReason)],
)
"""The outcomes with the reasons of lost claims."""


def _result(*values: str) -> _Labels:
    return _Labels(("result",), [(each,) for each in values])


class WorkerMetrics:
    """The metrics of a worker. All labels are shown from the start, so that a rise from 0 is seen.

    Args:
        identities: The worker with each of its task queues.
        vitals: Returns the worker's state; called from any thread.
    """

    def __init__(self, identities: Sequence[WorkerIdentity], vitals: Callable[[], Vitals]) -> None:
        self.vitals = vitals
        self._registry = CollectorRegistry()
        self._registry.register(REGISTRY)  # those of users, of their libraries, and of the process
        self._registry.register(_VitalsCollector(vitals))
        queue = _Labels(("task_queue_id",), [(each.task_queue_id,) for each in identities])
        self._tasks = self._counter("tasks", "Runs that have ended.", queue, _END)
        self._durations = self._histogram(
            "task_duration_seconds", "From the claim of a run to its end.", DURATION_BUCKETS, queue, _OUTCOME
        )
        self._waits = self._histogram(
            "queue_wait_seconds", "How long claimed runs had been pending.", WAIT_BUCKETS, queue
        )
        self._claims = self._counter("claims", "Runs that were claimed.", queue)
        self.claim_calls = self._counter(
            "claim_calls", "Claim requests.", queue, _result("responded", "failed", "unknown")
        )
        self.reclaims = self._counter(
            "reclaims", "Attempts to reclaim a run.", _result("reclaimed", "failed", "refused")
        )
        self.lateness = self._histogram(
            "reclaim_lateness_seconds", "How late reclaims began.", LATENESS_BUCKETS
        )
        self.uploads = self._counter(
            "uploads", "Uploads of artifacts and logs.", _result("uploaded", "failed")
        )
        self.uploaded_bytes = self._counter("uploaded_bytes", "Bytes uploaded, before compression.")
        self._show_worker(identities[0])

    def claimed(self, claim: TaskClaim) -> None:
        """Count a run that was claimed, and how long it had been pending."""
        self._claims.labels(claim.status.task_queue_id).inc()
        for run in claim.status.runs:
            if run.run_id == claim.run_id and run.started is not None:
                wait = (run.started - run.scheduled).total_seconds()
                self._waits.labels(claim.status.task_queue_id).observe(wait)

    def ended(self, task_queue_id: str, outcome: str, reason: str, seconds: float) -> None:
        """Count a run that has ended; `reason` is why its claim was lost, empty if it was not."""
        self._tasks.labels(task_queue_id, outcome, reason).inc()
        self._durations.labels(task_queue_id, outcome).observe(seconds)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics, and the content type: OpenMetrics, or Prometheus' text format."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _show_worker(self, identity: WorkerIdentity) -> None:
        Info(PREFIX.removesuffix("_"), "The worker and its versions.", registry=self._registry).info(
            {
                "version": __version__,
                "python_version": platform.python_version(),
                "worker_group": identity.worker_group,
                "worker_id": identity.worker_id,
            }
        )

    def _counter(self, name: str, meaning: str, *labels: _Labels) -> Counter:
        counter = Counter(PREFIX + name, meaning, _names(labels), registry=self._registry)
        _show(counter, labels)
        return counter

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float], *labels: _Labels) -> Histogram:
        histogram = Histogram(
            PREFIX + name, meaning, _names(labels), buckets=buckets, registry=self._registry
        )
        _show(histogram, labels)
        return histogram


def _names(labels: Sequence[_Labels]) -> list[str]:
    return [name for each in labels for name in each.names]


def _show(metric: Counter | Histogram, labels: Sequence[_Labels]) -> None:
    """Create each series, so that it is shown before anything is counted."""
    for values in product(*(each.values for each in labels)) if labels else ():
        metric.labels(*chain.from_iterable(values))


class _VitalsCollector:
    """The worker's state as gauges, which have no sample while there is nothing to tell."""

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        self._vitals = vitals

    def collect(self) -> Iterator[GaugeMetricFamily]:
        vitals = self._vitals()
        for name, meaning, value in (
            ("tasks_claimed", "Runs that are claimed now.", vitals.claimed),
            (
                "claim_call_age_seconds",
                "How long a claim request has been due without a response.",
                vitals.since_claim,
            ),
            ("lease_left_seconds", "What is left of the lease that ends first.", vitals.lease_left),
            ("handlers_stuck", "Handlers that do not stop, though their runs have ended.", vitals.stuck),
        ):
            yield GaugeMetricFamily(PREFIX + name, meaning, value)
