"""The health of a worker, and its metrics, over prometheus_client.

`docs/how-to/metrics.md` has a table of their names, labels and meanings, which a test compares with them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from taskqueue_client._version import __version__
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.claims.task_source import WorkerIdentity
from taskqueue_client.worker.outcomes import COMPLETED, RESOLUTIONS, LossReason

READY_WITHIN = 60.0
"""Seconds from one response to a claim request to the next. A request takes 20 s when there is no work, and
three in a row do not fail by chance."""

LIVE_WITHIN = 600.0
"""The same, after which the worker should be restarted: the worker, and not the Queue, may be what hangs."""


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
    """

    has_claimed: bool
    since_claim: float | None
    is_shutting_down: bool
    claimed: int
    lease_left: float | None


def live_problems(vitals: Vitals) -> list[str]:
    """Return why a worker should be restarted; an empty list if it should not."""
    problems: list[str] = []
    if vitals.since_claim is not None and vitals.since_claim > LIVE_WITHIN:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    if vitals.lease_left is not None and vitals.lease_left < 0:
        problems.append(f"a lease ended {-vitals.lease_left:.0f} s ago, and its run is still being worked on")
    return problems


def ready_problems(vitals: Vitals) -> list[str]:
    """Return why a worker does not take work; an empty list if it does."""
    problems = live_problems(vitals)
    if vitals.is_shutting_down:
        problems.append("the worker is shutting down")
    if not vitals.has_claimed:
        problems.append("no response to a claim request yet")
    elif vitals.since_claim is not None and READY_WITHIN < vitals.since_claim <= LIVE_WITHIN:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    return problems


PREFIX = "taskqueue_worker_"

LATENESS_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0)
"""Seconds by which a reclaim begins late: from what any loop takes to what loses short leases."""

DURATION_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
"""Seconds that a run takes: from a script to the longest builds."""

WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Seconds that a run waits for a worker: from none to a task queue that does not keep up."""

LOST = "lost"
"""The outcome of a run whose claim is lost: it is not reported."""

_OUTCOMES = [COMPLETED.reason.value, *(each.reason.value for each in RESOLUTIONS.values() if each), LOST]

_ENDS = [*((each, "") for each in _OUTCOMES if each != LOST), *((LOST, each.value) for each in LossReason)]
"""The outcomes with the reasons of lost claims."""


class WorkerMetrics:
    """The metrics of a worker. All labels are shown from the start, so that a rise from 0 is seen.

    Args:
        identity: The worker.
        vitals: Returns the worker's state; called from any thread.
        task_queue_ids: The task queues of the worker; default: that of its identity.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        vitals: Callable[[], Vitals],
        task_queue_ids: Sequence[str] | None = None,
    ) -> None:
        self.vitals = vitals
        self._registry = CollectorRegistry()
        self._registry.register(REGISTRY)  # those of users, of their libraries, and of the process
        self._registry.register(_VitalsCollector(vitals))
        queues = [identity.task_queue_id] if task_queue_ids is None else task_queue_ids
        self._tasks = self._counter(
            "tasks",
            "Runs that have ended.",
            ("task_queue_id", "outcome", "reason"),
            [(queue, *each) for queue in queues for each in _ENDS],
        )
        self._durations = self._histogram(
            "task_duration_seconds",
            "From the claim of a run to its end.",
            DURATION_BUCKETS,
            ("task_queue_id", "outcome"),
            [(queue, each) for queue in queues for each in _OUTCOMES],
        )
        by_queue = [(queue,) for queue in queues]
        self._waits = self._histogram(
            "queue_wait_seconds",
            "How long claimed runs had been pending.",
            WAIT_BUCKETS,
            ("task_queue_id",),
            by_queue,
        )
        self._claims = self._counter("claims", "Runs that were claimed.", ("task_queue_id",), by_queue)
        self.claim_calls = self._counter(
            "claim_calls",
            "Claim requests.",
            ("task_queue_id", "result"),
            [(queue, each) for queue in queues for each in ("responded", "failed", "unknown")],
        )
        self.reclaims = self._counter(
            "reclaims", "Attempts to reclaim a run.", ("result",), [("reclaimed",), ("failed",), ("refused",)]
        )
        self.lateness = self._histogram(
            "reclaim_lateness_seconds", "How late reclaims began.", LATENESS_BUCKETS
        )
        self.uploads = self._counter(
            "uploads", "Uploads of artifacts and logs.", ("result",), [("uploaded",), ("failed",)]
        )
        self.uploaded_bytes = self._counter("uploaded_bytes", "Bytes uploaded, before compression.")
        Info(PREFIX.removesuffix("_"), "The worker and its versions.", registry=self._registry).info(
            {
                "version": __version__,
                "python_version": platform.python_version(),
                "worker_group": identity.worker_group,
                "worker_id": identity.worker_id,
            }
        )

    def claimed(self, claim: TaskClaim) -> None:
        """Count a run that was claimed, and how long it had been pending."""
        self._claims.labels(claim.status.task_queue_id).inc()
        for run in claim.status.runs:
            if run.run_id == claim.run_id and run.started is not None:
                wait = (run.started - run.scheduled).total_seconds()
                self._waits.labels(claim.status.task_queue_id).observe(wait)

    def ended(self, task_queue_id: str, outcome: str, reason: str, seconds: float) -> None:
        """Count a run that has ended.

        Args:
            task_queue_id: Its task queue.
            outcome: What was reported, or `LOST`.
            reason: Why the claim was lost; empty if it was not.
            seconds: How long the run took.
        """
        self._tasks.labels(task_queue_id, outcome, reason).inc()
        self._durations.labels(task_queue_id, outcome).observe(seconds)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics, and the content type: OpenMetrics, or Prometheus' text format.

        Args:
            accept: The header `Accept` of the request.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _counter(
        self, name: str, meaning: str, labels: Sequence[str] = (), shown: Sequence[Sequence[str]] = ()
    ) -> Counter:
        counter = Counter(PREFIX + name, meaning, labels, registry=self._registry)
        for values in shown:
            counter.labels(*values)
        return counter

    def _histogram(
        self,
        name: str,
        meaning: str,
        buckets: Sequence[float],
        labels: Sequence[str] = (),
        shown: Sequence[Sequence[str]] = (),
    ) -> Histogram:
        histogram = Histogram(PREFIX + name, meaning, labels, buckets=buckets, registry=self._registry)
        for values in shown:
            histogram.labels(*values)
        return histogram


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
        ):
            yield GaugeMetricFamily(PREFIX + name, meaning, value)
