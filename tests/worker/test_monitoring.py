"""The pages `/live`, `/ready` and `/metrics` of a worker."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
import requests

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker import monitor as monitor_module
from taskqueue_client.worker.monitor import (
    LIVE_WITHIN,
    READY_WITHIN,
    Monitor,
    Vitals,
    WorkerMetrics,
    live_problems,
    ready_problems,
)
from tests.worker.queue_world import WAIT, until
from tests.worker.running_commands import open_descriptors

WELL = Vitals(
    has_claimed=True,
    since_claim=5.0,
    is_shutting_down=False,
    claimed=2,
    lease_left=600.0,
    stuck=0,
    slots=2,
    blocked=0.0,
    credentials_left=None,
    clock_offset=None,
)


class Worker:
    """A worker whose vitals a test can change."""

    def __init__(self) -> None:
        self.vitals: Vitals = WELL
        self.metrics = WorkerMetrics([WorkerIdentity("proj/linux", "rack", "w1")], lambda: self.vitals)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def monitor(worker: Worker) -> Iterator[Monitor]:
    with Monitor(worker.metrics, "127.0.0.1", 0) as started:
        started.start()
        yield started


def get(monitor: Monitor, path: str) -> requests.Response:
    return requests.get(f"http://127.0.0.1:{monitor.port}{path}", timeout=30)


def test_a_worker_that_is_well_is_live_and_ready(monitor: Monitor) -> None:
    for path in ("/live", "/ready"):
        answer = get(monitor, path)
        assert (answer.status_code, answer.text) == (200, "ok\n")


def test_a_worker_without_a_response_to_its_claims_is_not_ready_and_later_not_live(
    worker: Worker, monitor: Monitor
) -> None:
    worker.vitals = replace(WELL, since_claim=READY_WITHIN + 1)
    assert (get(monitor, "/ready").status_code, get(monitor, "/live").status_code) == (503, 200)
    assert get(monitor, "/ready").text == "no response to a claim request for 61 s\n"
    worker.vitals = replace(WELL, since_claim=LIVE_WITHIN + 1)
    assert (get(monitor, "/ready").status_code, get(monitor, "/live").status_code) == (503, 503)


def test_a_worker_that_has_not_claimed_yet_is_live_but_not_ready() -> None:
    vitals = replace(WELL, has_claimed=False, claimed=0, lease_left=None)
    assert live_problems(vitals) == []
    assert ready_problems(vitals) == ["no response to a claim request yet"]


def test_a_worker_with_no_free_slots_needs_no_claims() -> None:
    vitals = replace(WELL, since_claim=None)
    assert live_problems(vitals) == ready_problems(vitals) == []


@pytest.mark.parametrize(("stuck", "is_live"), [(1, True), (2, False)])
def test_a_worker_with_stuck_handlers_in_all_slots_is_not_live(stuck: int, *, is_live: bool) -> None:
    problems = live_problems(replace(WELL, stuck=stuck, since_claim=None))
    assert problems == (
        [] if is_live else ["handlers of runs that have ended do not stop, and hold all slots"]
    )


def test_a_worker_that_shuts_down_is_live_but_not_ready() -> None:
    vitals = replace(WELL, since_claim=None, is_shutting_down=True)
    assert live_problems(vitals) == []
    assert ready_problems(vitals) == ["the worker is shutting down"]


def test_a_lease_that_has_ended_means_that_its_keeper_hangs() -> None:
    vitals = replace(WELL, lease_left=-3.0)
    assert live_problems(vitals) == ["a lease ended 3 s ago, and its run is still being worked on"]
    assert ready_problems(vitals) == live_problems(vitals)


def test_a_worker_whose_event_loop_is_blocked_is_not_ready_and_later_not_live() -> None:
    words = "a hook, or the reader of the worker's log, has blocked the worker for {} s"
    vitals = replace(WELL, since_claim=None, blocked=READY_WITHIN + 1)
    assert (live_problems(vitals), ready_problems(vitals)) == ([], [words.format(61)])
    vitals = replace(vitals, blocked=LIVE_WITHIN + 1)
    assert live_problems(vitals) == ready_problems(vitals) == [words.format(601)]


def test_vitals_that_cannot_be_read_are_a_500(monitor: Monitor, worker: Worker) -> None:
    del worker.vitals
    for path in ("/live", "/ready", "/metrics"):
        assert get(monitor, path).status_code == 500


def test_the_response_to_another_path_lists_the_paths(monitor: Monitor) -> None:
    answer = get(monitor, "/")
    assert (answer.status_code, answer.text) == (404, "not found; paths: /metrics /live /ready\n")


def test_a_load_balancer_may_ask_for_the_status_only(monitor: Monitor) -> None:
    with socket.create_connection(("127.0.0.1", monitor.port), timeout=30) as connection:
        connection.sendall(b"HEAD /live HTTP/1.0\r\n\r\n")
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0].endswith(b"200 OK")
    assert b"Content-Length: 3" in head
    assert body == b""


def test_other_methods_are_refused(monitor: Monitor) -> None:
    assert requests.post(f"http://127.0.0.1:{monitor.port}/live", timeout=30).status_code == 501


def test_a_response_does_not_say_what_it_runs_on(monitor: Monitor) -> None:
    assert "Python" not in get(monitor, "/live").headers["Server"]


def test_a_client_that_says_nothing_does_not_keep_others_waiting(monitor: Monitor) -> None:
    with socket.create_connection(("127.0.0.1", monitor.port)):
        assert get(monitor, "/live").status_code == 200


def test_requests_that_never_end_use_few_descriptors_and_exclude_nobody(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(monitor.RequestHandlerClass, "timeout", None)  # as if these clients never pause
    with ExitStack() as stack:
        address = "127.0.0.1", monitor.port
        slow = [stack.enter_context(socket.create_connection(address, WAIT)) for _ in range(20)]
        for each in slow:
            with suppress(ConnectionError):
                each.sendall(b"G")
        for each in slow[:15]:
            with suppress(ConnectionError):
                assert each.recv(1) == b""
        assert get(monitor, "/live").status_code == 200


def test_a_client_that_goes_away_harms_nobody(monitor: Monitor, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", monitor.port)) as client:
        client.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
        )  # closing resets the connection
        client.sendall(b"GET /metr")
    assert get(monitor, "/live").status_code == 200
    assert capfd.readouterr().err == ""


def test_a_client_that_sends_slowly_does_not_keep_the_monitor_from_closing(worker: Worker) -> None:
    gone = threading.Event()

    def drip(client: socket.socket) -> None:
        with suppress(OSError):
            while not gone.wait(0.05):
                client.sendall(b"x")

    with Monitor(worker.metrics, "127.0.0.1", 0) as monitor:
        monitor.start()
        client = socket.create_connection(("127.0.0.1", monitor.port))
        client.sendall(b"GET /")
        assert get(monitor, "/live").status_code == 200  # then `client` has been accepted before
        dripping = threading.Thread(target=drip, args=[client])
        dripping.start()
        closing = threading.Thread(target=monitor.server_close, daemon=True)
        closing.start()
        closing.join(30)
        is_closed = not closing.is_alive()
        gone.set()
        dripping.join()
        client.close()
    assert is_closed


def test_vitals_that_hang_do_not_keep_the_monitor_from_closing() -> None:
    is_asked, may_end = threading.Event(), threading.Event()

    def hang() -> Vitals:
        is_asked.set()
        may_end.wait()
        return WELL

    metrics = WorkerMetrics([WorkerIdentity("proj/linux", "rack", "w1")], hang)
    with (
        Monitor(metrics, "127.0.0.1", 0) as monitor,
        socket.create_connection(("127.0.0.1", monitor.port)) as client,
    ):
        monitor.start()
        client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        assert is_asked.wait(30)
        closing = threading.Thread(target=monitor.server_close)
        closing.start()
        closing.join(5)
        is_closed = not closing.is_alive()
        may_end.set()
        closing.join()
    assert is_closed


def test_closing_ends_its_threads_and_connections(worker: Worker) -> None:
    descriptors, threads = open_descriptors(), set(threading.enumerate())
    with Monitor(worker.metrics, "127.0.0.1", 0) as monitor:
        monitor.start()
        port = monitor.port
        get(monitor, "/live")
    until(lambda: set(threading.enumerate()) <= threads)
    assert open_descriptors() <= descriptors
    with Monitor(worker.metrics, "127.0.0.1", port) as again:
        again.start()
        assert get(again, "/live").status_code == 200


def test_a_port_that_is_taken_is_an_error_that_names_it(worker: Worker, monitor: Monitor) -> None:
    with pytest.raises(
        InvalidArgument, match=r"metrics_port: cannot listen on .*; expected a free port of 127.0.0.1"
    ):
        Monitor(worker.metrics, "127.0.0.1", monitor.port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no host"])
def test_a_host_that_is_not_of_this_machine_is_an_error_that_names_the_setting(
    worker: Worker, host: str
) -> None:
    with pytest.raises(InvalidArgument, match=r"metrics_host: cannot listen on .*; expected a name or addre"):
        Monitor(worker.metrics, host, 0)


def test_the_log_says_at_which_address_the_monitor_serves(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "taskqueue_client.worker"),
        Monitor(worker.metrics, "127.0.0.1", 0) as monitor,
    ):
        monitor.start()
    assert caplog.messages == [f"serving /metrics, /live and /ready on 127.0.0.1:{monitor.port}"]


def test_the_monitor_serves_over_ip_version_6_too(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    try:
        monitor = Monitor(worker.metrics, "::1", 0)
    except InvalidArgument as error:
        pytest.skip(f"no IPv6 here: {error}")
    with caplog.at_level(logging.INFO, "taskqueue_client.worker"), monitor:
        monitor.start()
        assert f"on [::1]:{monitor.port}" in caplog.text
        assert requests.get(f"http://[::1]:{monitor.port}/live", timeout=30).text == "ok\n"
