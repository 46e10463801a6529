"""The state of a worker: its metrics, over prometheus_client, its health, and the HTTP server for both.

`docs/how-to/metrics.md` has a table of the names, labels and meanings of metrics; a test compares the table
with this module. The health is whether the worker takes work, and whether it should be restarted.
"""

from __future__ import annotations

import os
import platform
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import chain, product
from typing import Any, NamedTuple, TypeVar, cast

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from taskqueue_client._transport.network import forget_in_children
from taskqueue_client._version import __version__
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import ReasonResolved, TaskClaim
from taskqueue_client.worker.config import WorkerIdentity, address_of, cannot_listen
from taskqueue_client.worker.outcomes import LOST, RESOLUTIONS, LossReason
from taskqueue_client.worker.worker_log import log

M = TypeVar("M", Counter, Histogram)

PREFIX = "taskqueue_worker_"

LATENESS_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0)
"""Seconds by which a reclaim begins late: from the delay of any event loop to one that loses short leases."""

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
        credentials_left: What is left of the worker's own credentials; None if they do not expire, or while
            the Queue's time is unknown.
        clock_offset: By how much the Queue's clock is ahead of this machine's; None while that is unknown.
    """

    has_claimed: bool
    since_claim: float | None
    is_shutting_down: bool
    claimed: int
    lease_left: float | None
    stuck: int
    slots: int
    blocked: float
    credentials_left: float | None
    clock_offset: float | None


class _Labels(NamedTuple):
    """Labels of a metric that go together, and the values that are shown from the start."""

    names: tuple[str, ...]
    values: Sequence[tuple[str, ...]]


def _label(name: str, *values: str) -> _Labels:
    return _Labels((name,), [(each,) for each in values])


_OUTCOMES = [ReasonResolved.COMPLETED.value, *(each.value for each in RESOLUTIONS.values() if each), LOST]

_END = _Labels(
    ("outcome", "reason"),
    [*((each, "") for each in _OUTCOMES if each != LOST), *((LOST, each.value) for each in LossReason)],
)
"""The outcomes with the reasons of lost claims."""


class WorkerMetrics:
    """The metrics of a worker. All labels are shown from the start, so that a rise from 0 is seen.

    Args:
        identities: The worker with each of its task queues.
        vitals: Returns the worker's state; called from any thread.
    """

    def __init__(self, identities: Sequence[WorkerIdentity], vitals: Callable[[], Vitals]) -> None:
        self.vitals = vitals
        self._registry = CollectorRegistry()
        self._registry.register(REGISTRY)  # metrics of the program, its libraries and the process
        self._registry.register(self)
        queue = _label("task_queue_id", *(each.task_queue_id for each in identities))
        counter, histogram = partial(self._added, Counter), partial(self._added, Histogram)
        self._tasks = counter("tasks", "Runs that have ended.", queue, _END)
        self._durations = histogram(
            "task_duration_seconds",
            "From the claim of a run to its end.",
            *(queue, _label("outcome", *_OUTCOMES)),
            buckets=DURATION_BUCKETS,
        )
        self._waits = histogram(
            "queue_wait_seconds", "How long claimed runs had been pending.", queue, buckets=WAIT_BUCKETS
        )
        self._claims = counter("claims", "Runs that were claimed.", queue)
        self.claim_calls = counter(
            "claim_calls", "Claim requests.", queue, _label("result", "responded", "failed", "unknown")
        )
        self.reclaims = counter(
            "reclaims", "Attempts to reclaim a run.", _label("result", "reclaimed", "failed", "refused")
        )
        self.lateness = histogram(
            "reclaim_lateness_seconds", "How late reclaims began.", buckets=LATENESS_BUCKETS
        )
        self.uploads = counter(
            "uploads", "Uploads of artifacts and logs.", _label("result", "uploaded", "failed", "invalid")
        )
        self.uploaded_bytes = counter("uploaded_bytes", "Bytes uploaded, before compression.")
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

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the worker's state as gauges, which have no sample while their value is None."""
        vitals = self.vitals()
        for name, meaning, value in (
            ("tasks_claimed", "Runs that are claimed now.", vitals.claimed),
            (
                "claim_call_age_seconds",
                "How long a claim request has been due without a response.",
                vitals.since_claim,
            ),
            ("lease_left_seconds", "What is left of the lease that ends first.", vitals.lease_left),
            (
                "credentials_left_seconds",
                "What is left of the worker's own credentials.",
                vitals.credentials_left,
            ),
            (
                "clock_offset_seconds",
                "By how much the Queue's clock is ahead of this machine's.",
                vitals.clock_offset,
            ),
            ("handlers_stuck", "Handlers that do not stop, though their runs have ended.", vitals.stuck),
        ):
            yield GaugeMetricFamily(PREFIX + name, meaning, value)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics, and the content type: OpenMetrics, or Prometheus' text format."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # prometheus_client compares versions, and "1.x" has a part that is not a number
            encode, content_type = choose_encoder("")
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

    def _added(self, kind: type[M], name: str, meaning: str, *labels: _Labels, **options: Any) -> M:
        """Create a metric with all of its series, so that they are shown before anything is counted."""
        names = [name for each in labels for name in each.names]
        try:
            metric = kind(PREFIX + name, meaning, names, registry=self._registry, **options)
            for values in product(*(each.values for each in labels)) if labels else ():
                metric.labels(*chain.from_iterable(values))
        except OSError as error:  # prometheus_client keeps the values in files if it finds this variable
            variable = "PROMETHEUS_MULTIPROC_DIR"
            given = os.environ.get(variable)
            raise InvalidArgument(variable, given, "a directory to write metrics to", str(error)) from error
        return metric


READY_WITHIN = 60.0
"""Seconds without a response to a claim request, or with a blocked event loop, after which a worker is not
ready. A claim request takes 20 s when there is no work, and three in a row do not fail by chance."""

LIVE_WITHIN = 600.0
"""Seconds of the same after which the worker should be restarted: the worker may hang, and not the Queue."""

MOST_CONNECTIONS = 50
"""The most connections to the monitor: each takes a thread and a file descriptor, which tasks need, too."""

_TEXT = "text/plain; charset=utf-8"


def live_problems(vitals: Vitals) -> list[str]:
    """Return why a worker should be restarted; an empty list if it should not."""
    return _problems(vitals, LIVE_WITHIN)


def ready_problems(vitals: Vitals) -> list[str]:
    """Return why a worker does not take work; an empty list if it does."""
    problems = _problems(vitals, READY_WITHIN)
    if vitals.is_shutting_down:
        problems.append("the worker is shutting down")
    if not vitals.has_claimed:
        problems.append("no response to a claim request yet")
    return problems


def _problems(vitals: Vitals, within: float) -> list[str]:
    """Return what is wrong with a worker. A worker may wait, or be blocked, for up to `within` seconds."""
    problems: list[str] = []
    if vitals.since_claim is not None and vitals.since_claim > within:
        problems.append(f"no response to a claim request for {vitals.since_claim:.0f} s")
    if vitals.lease_left is not None and vitals.lease_left < 0:
        problems.append(f"a lease ended {-vitals.lease_left:.0f} s ago, and its run is still being worked on")
    if vitals.stuck >= vitals.slots:
        problems.append("handlers of runs that have ended do not stop, and hold all slots")
    if vitals.blocked > within:
        problems.append(
            f"a hook, or the reader of the worker's log, has blocked the worker for {vitals.blocked:.0f} s"
        )
    return problems


class Monitor(socketserver.ThreadingTCPServer):
    """Serves `/metrics`, `/live` and `/ready`, on separate threads, from `start` until its context is left.

    `/live` and `/ready` respond with 200, or with 503 and the reasons, one per line.
    """

    allow_reuse_address = True
    daemon_threads = True  # not waited for: a metric of the program may hang

    def __init__(self, metrics: WorkerMetrics, host: str, port: int) -> None:
        self.metrics = metrics
        self._connections: dict[Any, None] = {}  # the oldest first
        self._thread = threading.Thread(target=self.serve_forever, args=(_LOOK,), name="monitor", daemon=True)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise cannot_listen("metrics", host, port, error) from error
        forget_in_children(self)
        self.port = self.server_address[1]

    def start(self) -> None:
        """Start to respond. Connections that were made before have waited."""
        self._thread.start()
        address = address_of(str(self.server_address[0]), self.port)
        log.info("serving /metrics, /live and /ready on %s", address)

    def forget(self) -> None:
        """See `Forked`: a child that outlives the worker would keep its port."""
        self.socket.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note a connection, and serve it. For each one beyond `MOST_CONNECTIONS`, end the oldest one."""
        self._connections[request] = None
        for oldest in list(self._connections)[:-MOST_CONNECTIONS]:
            self._connections.pop(oldest, None)
            _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Note the end of a connection."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening, and end open connections: a slow client must not delay the end of the worker."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        for each in list(self._connections):
            _end(each)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error for debugging only: clients may disconnect at any time."""
        del request
        log.debug("monitor: %s: %s", client_address, sys.exception())


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


_LOOK = 0.2  # seconds between looks whether the server is to be closed


class _Handler(BaseHTTPRequestHandler):
    server_version = "taskqueue_client"
    sys_version = ""
    timeout = 2  # seconds: a client that sends nothing must not delay `server_close`

    def do_GET(self) -> None:
        try:
            status, content_type, body = self._page()
        except Exception:
            log.exception("cannot serve %s", self.path)
            status, content_type = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT
            body = b"see the worker's log\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _page(self) -> tuple[HTTPStatus, str, bytes]:
        metrics, path = cast("Monitor", self.server).metrics, self.path.partition("?")[0]
        if path == "/metrics":
            body, content_type = metrics.exposition(self.headers.get("Accept", ""))
            return HTTPStatus.OK, content_type, body
        if path not in {"/live", "/ready"}:
            return HTTPStatus.NOT_FOUND, _TEXT, b"not found; paths: /metrics /live /ready\n"
        problems = (live_problems if path == "/live" else ready_problems)(metrics.vitals())
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return status, _TEXT, ("\n".join(problems or ["ok"]) + "\n").encode()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server has
        log.debug("monitor: %s", format % args)
