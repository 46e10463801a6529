"""What a worker tells those who watch it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import requests

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.health import LIVE_WITHIN, READY_WITHIN, Vitals, live_problems, ready_problems
from taskqueue_client.worker.monitoring import Monitor
from taskqueue_client.worker.worker_metrics import WorkerMetrics
from tests.worker.running_commands import open_descriptors

WELL = Vitals(has_claimed=True, since_claim=5.0, is_leaving=False, held=2, lease_left=600.0)


class Worker:
    """Whose vitals a test can change."""

    def __init__(self) -> None:
        self.vitals: Vitals = WELL
        self.metrics = WorkerMetrics(lambda: self.vitals)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def monitor(worker: Worker) -> Iterator[Monitor]:
    with Monitor(worker.metrics, "127.0.0.1", 0) as started:
        yield started


def get(monitor: Monitor, path: str) -> requests.Response:
    return requests.get(f"http://127.0.0.1:{monitor.port}{path}", timeout=30)


def samples(worker: Worker) -> dict[str, str]:
    lines = worker.metrics.text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_worker_that_is_well_is_live_and_ready(monitor: Monitor) -> None:
    for path in ("/live", "/ready"):
        answer = get(monitor, path)
        assert (answer.status_code, answer.text) == (200, "ok\n")


def test_a_worker_without_an_answer_to_its_claims_is_not_ready_and_later_not_live(
    worker: Worker, monitor: Monitor
) -> None:
    worker.vitals = replace(WELL, since_claim=READY_WITHIN + 1)
    assert (get(monitor, "/ready").status_code, get(monitor, "/live").status_code) == (503, 200)
    assert get(monitor, "/ready").text == "no claim call was answered for 61 s\n"
    worker.vitals = replace(WELL, since_claim=LIVE_WITHIN + 1)
    assert (get(monitor, "/ready").status_code, get(monitor, "/live").status_code) == (503, 503)


def test_a_worker_that_has_not_claimed_yet_is_live_but_not_ready() -> None:
    vitals = replace(WELL, has_claimed=False, held=0, lease_left=None)
    assert live_problems(vitals) == []
    assert ready_problems(vitals) == ["no claim call was answered yet"]


def test_a_worker_with_no_free_slots_needs_no_claims() -> None:
    vitals = replace(WELL, since_claim=None)
    assert live_problems(vitals) == ready_problems(vitals) == []


def test_a_worker_that_leaves_is_live_but_not_ready() -> None:
    vitals = replace(WELL, since_claim=None, is_leaving=True)
    assert live_problems(vitals) == []
    assert ready_problems(vitals) == ["the worker is leaving"]


def test_a_lease_that_is_over_means_that_its_keeper_hangs() -> None:
    vitals = replace(WELL, lease_left=-3.0)
    assert live_problems(vitals) == ["a lease has been over for 3 s, and its run is still held"]
    assert ready_problems(vitals) == live_problems(vitals)


def test_vitals_that_cannot_be_had_are_not_taken_for_good_ones(
    monitor: Monitor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Vitals:
        raise RuntimeError

    monkeypatch.setattr(worker.metrics, "vitals", broken)
    for path in ("/live", "/ready", "/metrics"):
        assert get(monitor, path).status_code == 500


def test_metrics_are_in_prometheus_text_format(worker: Worker, monitor: Monitor) -> None:
    worker.metrics.tasks.add(of="completed")
    answer = get(monitor, "/metrics?any=query")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text.startswith(
        "# HELP taskqueue_worker_tasks_total Runs that have ended.\n"
        "# TYPE taskqueue_worker_tasks_total counter\n"
        'taskqueue_worker_tasks_total{outcome="completed"} 1\n'
        'taskqueue_worker_tasks_total{outcome="failed"} 0\n'
    )
    assert answer.text.endswith("taskqueue_worker_lease_left_seconds 600\n")


def test_what_is_counted_is_shown(worker: Worker) -> None:
    metrics = worker.metrics
    metrics.claims.add(3)
    metrics.claim_calls.add(of="unknown")
    metrics.reclaims.add(of="refused")
    metrics.uploads.add(of="failed")
    metrics.uploaded_bytes.add(1.5e12)
    metrics.tasks.add(of="lost")
    shown = samples(worker)
    assert shown["taskqueue_worker_claims_total"] == "3"
    assert shown['taskqueue_worker_claim_calls_total{result="unknown"}'] == "1"
    assert shown['taskqueue_worker_claim_calls_total{result="answered"}'] == "0"
    assert shown['taskqueue_worker_reclaims_total{result="refused"}'] == "1"
    assert shown['taskqueue_worker_uploads_total{result="failed"}'] == "1"
    assert shown["taskqueue_worker_uploaded_bytes_total"] == "1500000000000"
    assert shown['taskqueue_worker_tasks_total{outcome="lost"}'] == "1"


def test_each_reason_that_can_be_reported_is_an_outcome(worker: Worker) -> None:
    for outcome in (
        "completed",
        "failed",
        "malformed-payload",
        "resource-unavailable",
        "intermittent-task",
        "internal-error",
        "worker-shutdown",
        "lost",
    ):
        worker.metrics.tasks.add(of=outcome)
        assert worker.metrics.tasks.value(outcome) == 1


def test_what_is_not_in_the_table_cannot_be_counted(worker: Worker) -> None:
    with pytest.raises(KeyError):
        worker.metrics.tasks.add(of="misspelt")


def test_lateness_is_a_histogram(worker: Worker) -> None:
    for late in (0.0, 0.25, 0.3, 1000.0):
        worker.metrics.lateness.observe(late)
    name = "taskqueue_worker_reclaim_lateness_seconds"
    shown = {key: value for key, value in samples(worker).items() if key.startswith(name)}
    assert shown == {
        f'{name}_bucket{{le="0.01"}}': "1",
        f'{name}_bucket{{le="0.05"}}': "1",
        f'{name}_bucket{{le="0.25"}}': "2",
        f'{name}_bucket{{le="1"}}': "3",
        f'{name}_bucket{{le="5"}}': "3",
        f'{name}_bucket{{le="15"}}': "3",
        f'{name}_bucket{{le="60"}}': "3",
        f'{name}_bucket{{le="+Inf"}}': "4",
        f"{name}_sum": "1000.55",
        f"{name}_count": "4",
    }


def test_what_is_not_known_is_not_shown(worker: Worker) -> None:
    worker.vitals = replace(WELL, since_claim=None, lease_left=None, held=0)
    shown = samples(worker)
    assert "taskqueue_worker_claim_call_age_seconds" not in shown
    assert "taskqueue_worker_lease_left_seconds" not in shown
    assert shown["taskqueue_worker_tasks_held"] == "0"


def test_counting_in_many_threads_loses_nothing(worker: Worker) -> None:
    def count() -> None:
        for _ in range(2000):
            worker.metrics.claims.add()
            worker.metrics.lateness.observe(0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert worker.metrics.claims.value() == 8000
    assert samples(worker)["taskqueue_worker_reclaim_lateness_seconds_count"] == "8000"


def test_the_table_of_metrics_is_complete(worker: Worker) -> None:
    names = {
        line.split()[2].removeprefix("taskqueue_worker_")
        for line in worker.metrics.text().splitlines()
        if "# TYPE" in line
    }
    rows = [
        line.split("`")[1]
        for line in (WorkerMetrics.__doc__ or "").splitlines()
        if line.strip().startswith("| `")
    ]
    assert {row.partition("{")[0] for row in rows} == names


def test_another_path_is_told_what_there_is(monitor: Monitor) -> None:
    answer = get(monitor, "/")
    assert (answer.status_code, answer.text) == (404, "there are: /metrics /live /ready\n")


def test_other_methods_are_refused(monitor: Monitor) -> None:
    assert requests.post(f"http://127.0.0.1:{monitor.port}/live", timeout=30).status_code == 501


def test_an_answer_does_not_say_what_it_runs_on(monitor: Monitor) -> None:
    assert "Python" not in get(monitor, "/live").headers["Server"]


def test_a_client_that_says_nothing_does_not_keep_others_waiting(monitor: Monitor) -> None:
    with socket.create_connection(("127.0.0.1", monitor.port)):
        assert get(monitor, "/live").status_code == 200


def test_a_client_that_goes_away_harms_nobody(monitor: Monitor, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", monitor.port)) as client:
        client.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
        )  # it resets the connection
        client.sendall(b"GET /metr")
    assert get(monitor, "/live").status_code == 200
    assert capfd.readouterr().err == ""


def test_a_client_that_speaks_slowly_does_not_keep_it_from_closing(worker: Worker) -> None:
    gone = threading.Event()

    def drip(client: socket.socket) -> None:
        with suppress(OSError):
            while not gone.wait(0.05):
                client.sendall(b"x")

    with Monitor(worker.metrics, "127.0.0.1", 0) as monitor:
        client = socket.create_connection(("127.0.0.1", monitor.port))
        client.sendall(b"GET /")
        assert get(monitor, "/live").status_code == 200  # so that the other one has been accepted
        dripping = threading.Thread(target=drip, args=[client])
        dripping.start()
        closing = threading.Thread(target=monitor.close, daemon=True)
        closing.start()
        closing.join(30)
        is_closed = not closing.is_alive()
        gone.set()
        dripping.join()
        client.close()
    assert is_closed


def test_nothing_is_left_when_it_is_closed(worker: Worker) -> None:
    descriptors, threads = open_descriptors(), set(threading.enumerate())
    with Monitor(worker.metrics, "127.0.0.1", 0) as monitor:
        port = monitor.port
        get(monitor, "/live")
    assert set(threading.enumerate()) <= threads
    assert open_descriptors() <= descriptors
    with Monitor(worker.metrics, "127.0.0.1", port) as again:
        assert get(again, "/live").status_code == 200


def test_a_port_that_is_taken_is_an_error_that_names_it(worker: Worker, monitor: Monitor) -> None:
    with pytest.raises(InvalidArgument, match=f"metrics_port={monitor.port} .*a free port of 127.0.0.1"):
        Monitor(worker.metrics, "127.0.0.1", monitor.port)


def test_a_host_that_is_none_is_an_error(worker: Worker) -> None:
    with pytest.raises(InvalidArgument, match="metrics_port=0"):
        Monitor(worker.metrics, "192.0.2.1", 0)


def test_it_speaks_ip_version_6_too(worker: Worker) -> None:
    try:
        monitor = Monitor(worker.metrics, "::1", 0)
    except InvalidArgument as error:
        pytest.skip(f"no IPv6 here: {error}")
    with monitor:
        assert requests.get(f"http://[::1]:{monitor.port}/live", timeout=30).text == "ok\n"
