"""What a worker counts and measures, in one table."""

from __future__ import annotations

from collections.abc import Callable

from .health import Vitals
from .metrics import Counter, Gauge, Histogram, Metric, exposition
from .outcomes import COMPLETED, RESOLUTIONS

LATENESS_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0)
"""Seconds that a renewal starts after its time: from what any loop takes to what loses short leases."""

LOST = "lost"
"""The outcome of a run that was canceled, or whose claim has expired: it is not reported."""


class WorkerMetrics:
    """What a worker counts and measures; all names begin with `taskqueue_worker_`.

    | name                                  | kind      | what                                               |
    | ------------------------------------- | --------- | -------------------------------------------------- |
    | `tasks_total{outcome}`                | counter   | runs that have ended: `completed`, `failed`, `lost`, or the reason that was reported |
    | `claims_total`                        | counter   | runs that were claimed                             |
    | `claim_calls_total{result}`           | counter   | claim calls: `answered`, `failed`, or `unknown`: runs may have been claimed, nobody can tell |
    | `reclaims_total{result}`              | counter   | tries to renew a lease: `renewed`, `failed`, or `refused`: the run was not ours any more |
    | `reclaim_lateness_seconds`            | histogram | how late renewals began                            |
    | `uploads_total{result}`               | counter   | artifacts and logs: `uploaded`, `failed`           |
    | `uploaded_bytes_total`                | counter   | their size, before compression                     |
    | `tasks_held`                          | gauge     | runs that are held now                             |
    | `claim_call_age_seconds`              | gauge     | how long no claim call was answered; missing while none is due |
    | `lease_left_seconds`                  | gauge     | what is left of the lease that ends first; missing while none is held |

    Args:
        vitals: How the worker is now; called from any thread.
    """  # noqa: E501 - a table has no line breaks

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        reasons = [COMPLETED.reason.value, *(each.reason.value for each in RESOLUTIONS.values() if each)]
        self.vitals = vitals
        self.tasks = Counter(
            "taskqueue_worker_tasks_total", "Runs that have ended.", "outcome", [*reasons, LOST]
        )
        self.claims = Counter("taskqueue_worker_claims_total", "Runs that were claimed.")
        self.claim_calls = Counter(
            "taskqueue_worker_claim_calls_total", "Claim calls.", "result", ["answered", "failed", "unknown"]
        )
        self.reclaims = Counter(
            "taskqueue_worker_reclaims_total",
            "Tries to renew a lease.",
            "result",
            ["renewed", "failed", "refused"],
        )
        self.lateness = Histogram(
            "taskqueue_worker_reclaim_lateness_seconds", "How late renewals began.", LATENESS_BUCKETS
        )
        self.uploads = Counter(
            "taskqueue_worker_uploads_total",
            "Uploads of artifacts and logs.",
            "result",
            ["uploaded", "failed"],
        )
        self.uploaded_bytes = Counter(
            "taskqueue_worker_uploaded_bytes_total", "Bytes uploaded, before compression."
        )

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        vitals = self.vitals()
        metrics: list[Metric] = [
            self.tasks,
            self.claims,
            self.claim_calls,
            self.reclaims,
            self.lateness,
            self.uploads,
            self.uploaded_bytes,
            Gauge("taskqueue_worker_tasks_held", "Runs that are held now.", vitals.held),
            Gauge(
                "taskqueue_worker_claim_call_age_seconds",
                "How long no claim call was answered, while one is due.",
                vitals.since_claim,
            ),
            Gauge(
                "taskqueue_worker_lease_left_seconds",
                "What is left of the lease that ends first.",
                vitals.lease_left,
            ),
        ]
        return exposition(metrics)
