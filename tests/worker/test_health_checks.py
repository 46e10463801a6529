"""Health checks, metrics and logs of a worker while it runs."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from taskqueue_client import temporary_credentials
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Respond
from taskqueue_client.worker import monitor
from taskqueue_client.worker.commands import linux_processes
from taskqueue_client.worker.run import handlers
from taskqueue_client.worker.run.lifecycle import TaskEnd
from taskqueue_client.worker.run.task_run import TaskRun
from tests.servers import file_limit, reserved_port
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import Working, worker_for


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


def status(port: int, page: str) -> int:
    """Return the status of the response for a page; 0 if there is no response."""
    try:
        return requests.get(f"http://127.0.0.1:{port}/{page}", timeout=WAIT).status_code
    except requests.ConnectionError:
        return 0


def test_a_worker_is_ready_after_the_first_response_of_the_queue_and_counts_its_work(
    world: World, port: int
) -> None:
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=502, after=True))
    world.create()
    world.create()
    finish = threading.Event()

    def handler(task: TaskRun) -> None:
        del task
        assert finish.wait(WAIT)

    with Working(world, worker_for(world, handler, metrics_port=port)):
        until(lambda: status(port, "ready") == 200)
        assert status(port, "live") == 200
        page = f"http://127.0.0.1:{port}/metrics"
        until(lambda: "tasks_claimed 1" in requests.get(page, timeout=WAIT).text)  # counted after it is ready
        held = requests.get(page, timeout=WAIT).text
        finish.set()
        labels = f'outcome="completed",reason="",task_queue_id="{TASK_QUEUE_ID}"'
        until(lambda: f"tasks_total{{{labels}}} 1.0" in requests.get(page, timeout=WAIT).text)
    assert f'claim_calls_total{{result="unknown",task_queue_id="{TASK_QUEUE_ID}"}} 1' in held
    assert f'claims_total{{task_queue_id="{TASK_QUEUE_ID}"}} 1.0' in held


def shown(port: int, name: str) -> float | None:
    """Return the value of a sample of the worker, with its labels in the name; None if there is none."""
    page = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=WAIT).text
    values = [
        line.split(" ")[1] for line in page.splitlines() if line.startswith(f"taskqueue_worker_{name} ")
    ]
    return float(values[0]) if values else None


def test_the_time_left_of_the_credentials_is_shown_by_the_clock_of_the_queue(world: World, port: int) -> None:
    world.local.clock.advance(seconds=7200)
    own = world.local.credentials
    lifetime = timedelta(hours=3)
    with Working(world, worker_for(world, lambda _: None, metrics_port=port)) as working:
        until(lambda: status(port, "metrics") == 200)
        assert shown(port, "credentials_left_seconds") is None  # they do not expire
        working.worker.credentials = temporary_credentials(own, ["*"], lifetime=lifetime)
        until(lambda: shown(port, "credentials_left_seconds") is not None)
        left = shown(port, "credentials_left_seconds")
        assert left is not None
        assert 3500 < left < 3700


def test_the_offset_of_the_machine_s_clock_is_shown(world: World, port: int) -> None:
    world.local.clock.advance(seconds=7200)
    world.create()  # without a task, the worker would become ready only after 20 s
    with Working(world, worker_for(world, lambda _: None, metrics_port=port)):
        until(lambda: status(port, "ready") == 200)
        assert shown(port, "clock_offset_seconds") == pytest.approx(7200, abs=60)


def test_an_upload_that_fails_because_of_the_task_is_not_counted_as_one_of_the_worker(
    world: World, port: int
) -> None:
    world.create()
    with Working(
        world, worker_for(world, lambda task: task.upload_artifact("x", Path("none")), metrics_port=port)
    ):
        until(lambda: status(port, "metrics") == 200)
        until(lambda: shown(port, 'uploads_total{result="invalid"}') == 1)
        assert shown(port, 'uploads_total{result="failed"}') == 0


def test_an_upload_that_storage_refuses_is_counted_as_failed(world: World, port: int) -> None:
    world.local.faults.add(Respond(endpoint="storage.put", status=403, times=99))
    world.create()
    with Working(world, worker_for(world, lambda task: task.upload_artifact("x", b"x"), metrics_port=port)):
        until(lambda: status(port, "metrics") == 200)
        until(lambda: shown(port, 'uploads_total{result="failed"}'))
        assert shown(port, 'uploads_total{result="invalid"}') == 0


def test_a_worker_whose_handler_does_not_stop_is_not_live_until_it_does(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "HANDLER_GRACE", 0.01)
    finish = threading.Event()
    task_id = world.create()

    def handler(_: TaskRun) -> None:
        world.queue.cancel_task(task_id)
        assert finish.wait(WAIT)

    with Working(world, worker_for(world, handler, metrics_port=port, termination_grace=0.01)):
        until(lambda: status(port, "live") == 503)
        page = f"http://127.0.0.1:{port}/metrics"
        assert "taskqueue_worker_handlers_stuck 1.0" in requests.get(page, timeout=WAIT).text
        finish.set()
        until(lambda: status(port, "live") == 200)


def test_a_worker_whose_hook_does_not_return_is_not_live_until_it_does(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = threading.Event()
    worker = worker_for(world, lambda _: None, metrics_port=port)

    def on_task_end(_: TaskEnd) -> None:
        assert finish.wait(WAIT)

    monkeypatch.setattr(worker, "on_task_end", on_task_end)
    monkeypatch.setattr(monitor, "LIVE_WITHIN", 0.01)
    world.create()

    def is_blocked() -> bool:
        page = requests.get(f"http://127.0.0.1:{port}/live", timeout=WAIT)
        return "has blocked the worker" in page.text

    with Working(world, worker):
        until(lambda: status(port, "live") and is_blocked())
        finish.set()
        until(lambda: not is_blocked())


def test_a_worker_that_cannot_reach_the_queue_is_alive_but_not_ready(world: World, port: int) -> None:
    with LocalQueue() as elsewhere:
        closed = elsewhere.root_url
    with Working(world, worker_for(world, lambda _: None, root_url=closed, metrics_port=port)):
        until(lambda: status(port, "live") == 200)
        assert status(port, "ready") == 503


@pytest.mark.parametrize(("concurrency", "is_warned"), [(10, False), (50, True)])
def test_a_limit_of_file_descriptors_that_is_too_low_is_named_at_the_start(
    world: World, caplog: pytest.LogCaptureFixture, concurrency: int, *, is_warned: bool
) -> None:
    worker = worker_for(world, lambda _: None, max_idle=0.01, concurrency=concurrency)
    with file_limit(200), Working(world, worker) as working:
        working.wait_for_end()
    assert (
        "50 runs at a time may need 650 file descriptors, and the limit is 200" in caplog.text
    ) == is_warned


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, []),
        ({"metrics_host": "localhost", "metrics_port": 0}, []),
        ({"live_log": True, "live_log_url": "http://logs.example.com"}, []),
        ({"metrics_host": "localhost"}, ["the setting metrics_host has no effect without metrics_port"]),
        ({"chain_of_trust": "requested"}, ["the setting chain_of_trust has no effect without signing_key"]),
        (
            {"live_log_port": 1, "live_log_host": "localhost"},
            [f"the setting live_log_{each} has no effect without live_log" for each in ("host", "port")],
        ),
    ],
)
def test_a_setting_without_effect_is_named_at_the_start(
    world: World, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], named: list[str]
) -> None:
    with Working(world, worker_for(world, lambda _: None, max_idle=0.01, **settings)) as working:
        working.wait_for_end()
    assert [each for each in caplog.messages if "has no effect" in each] == named


@pytest.mark.parametrize(("shown", "is_warned"), [("its own", False), ("1", True), ("nothing", True)])
def test_a_proc_without_the_worker_s_processes_is_named_at_the_start(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shown: str,
    *,
    is_warned: bool,
) -> None:
    monkeypatch.setattr(linux_processes, "PROC", tmp_path)
    if shown != "nothing":
        (tmp_path / "self").symlink_to(str(os.getpid()) if shown == "its own" else shown)
    with Working(world, worker_for(world, lambda _: None, max_idle=0.01)) as working:
        working.wait_for_end()
    assert ("daemons that commands leave behind may outlive their run" in caplog.text) == is_warned


@pytest.mark.parametrize(("encoding", "is_warned"), [("utf-8", False), ("ascii", True)])
def test_a_locale_without_unicode_is_named_at_the_start(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    encoding: str,
    *,
    is_warned: bool,
) -> None:
    """Tasks with other characters in a command or file would end as internal-error or malformed-payload."""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    with Working(world, worker_for(world, lambda _: None, max_idle=0.01)) as working:
        working.wait_for_end()
    assert ("characters that ascii lacks: set PYTHONUTF8=1" in caplog.text) == is_warned


def test_a_path_is_not_refused_for_a_lone_surrogate_if_the_locale_lacks_its_characters() -> None:
    program = "from taskqueue_client._arguments import check_path; check_path('path', '\\xe4')"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | locale,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "without NUL, lone surrogates and characters that ascii lacks" in ended.stderr


def test_the_workers_log_says_which_run_a_line_is_about(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create()
    with (
        caplog.at_level(logging.INFO, "taskqueue_client.worker"),
        Working(world, worker_for(world, lambda _: None, max_tasks=1)) as working,
    ):
        working.wait_for_end()
    about = [record for record in caplog.records if getattr(record, "task_id", None) == task_id]
    assert [record.getMessage().split()[2] for record in about] == ["begins", "ended:"]
    assert all(vars(record)["run_id"] == 0 for record in about)


def test_a_port_that_is_taken_ends_the_worker_before_it_claims_anything(world: World) -> None:
    task_id = world.create()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = worker_for(world, lambda _: None, metrics_port=taken.getsockname()[1])
        with pytest.raises(InvalidArgument, match="metrics_port"):
            worker.serve()
    assert world.status(task_id).state == "pending"
    assert not world.queue.list_workers(TASK_QUEUE_ID).workers
