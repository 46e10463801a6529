"""Shutdowns by signals, `shutdown()` and termination notices, at every stage of a run; and immediate ones."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskqueue_client import Credentials, temporary_credentials
from taskqueue_client.clock import MovableClock, SystemClock
from taskqueue_client.errors import AuthenticationFailed, InsufficientScopes, InvalidArgument
from taskqueue_client.events import PulseSettings
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Delay
from taskqueue_client.worker import session, shutdown, threads
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.loop import WorkerSettings
from taskqueue_client.worker.outcomes import (
    IntermittentTask,
    InternalError,
    MalformedPayload,
    Outcome,
    TaskFailed,
    WorkerShutdown,
)
from taskqueue_client.worker.run import handlers, lifecycle
from taskqueue_client.worker.run.lifecycle import TaskEnd
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.threads import DaemonExecutor, DaemonThreads, Job, ThreadsafeCalls
from tests.worker.gate import gate_before_handlers
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.request_log import Request, requests_noted
from tests.worker.run_outcomes import reasons
from tests.worker.worker_world import Stuck, Working, artifact, artifact_names, log_of, worker_for

HANDED_BACK = ["worker-shutdown", "None"]


def uploading(task: TaskRun) -> None:
    task.upload_artifact("public/x", b"x")


def hand_back(world: World, working: Working) -> None:
    """Advance the clock by the two seconds between a shutdown and its first report, and wait for the end."""
    for _ in range(9):
        if working.is_alive(0.03):
            world.local.clock.advance(seconds=0.25)
    working.wait_for_end()


def claims_answered(requests: list[Request]) -> list[int]:
    """Return the statuses of the responses to claim calls."""
    return [each.status for each in requests if "/claim-work/" in each.path]


class TestStages:
    """Shutdowns, each at another stage of a worker or run."""

    def test_before_it_has_begun(self, world: World) -> None:
        worker = worker_for(world, lambda _: None)
        worker.shutdown()
        worker.serve()
        assert not world.queue.list_workers(TASK_QUEUE_ID).workers

    def test_while_it_begins(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        task_id = world.create()
        worker = worker_for(world, lambda _: None)
        run = session.Session.run

        def told_to_leave(started: session.Session, last: shutdown.Hooks | None) -> Coroutine[Any, Any, None]:
            worker.shutdown()
            return run(started, last)

        monkeypatch.setattr(session.Session, "run", told_to_leave)
        with Working(world, worker) as working:
            working.wait_for_end()
        # a claim call that had begun before may have claimed the run, which is then handed back or completed
        assert reasons(world, task_id) in (["None"], ["completed"], HANDED_BACK)

    def test_by_a_signal_handler_that_interrupts_the_start_of_the_worker(self, world: World) -> None:
        """The program's own signal handler may call `shutdown()` in the middle of anything."""
        worker = worker_for(world, lambda _: None)

        class Interrupted(SystemClock):
            def monotonic(self) -> float:
                if threading.current_thread() is serving:
                    worker.shutdown()
                return super().monotonic()

        worker.clock = Interrupted()
        serving = threading.Thread(target=worker.serve, daemon=True)
        serving.start()
        serving.join(WAIT)
        assert not serving.is_alive()
        assert not world.queue.list_workers(TASK_QUEUE_ID).workers

    @pytest.mark.usefixtures("prompt")
    def test_a_claim_call_that_waits_for_work_is_the_last_one(self, world: World) -> None:
        worker = worker_for(world, lambda _: None)
        with requests_noted(world.local) as requests, Working(world, worker) as working:
            until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)
            worker.shutdown()
            world.local.clock.advance(seconds=21)
            working.wait_for_end()
            until(lambda: claims_answered(requests))
        assert claims_answered(requests) == [200]

    @pytest.mark.usefixtures("prompt")
    def test_a_worker_with_a_run_that_goes_on_is_not_idle(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.create()
        started, finish = threading.Event(), threading.Event()
        idle: list[float] = []

        def handler(_: TaskRun) -> None:
            started.set()
            assert finish.wait(WAIT)

        def has_claimed_nothing() -> bool:
            world.local.clock.advance(seconds=1)
            return len(claims_answered(requests)) > 2  # the first response had the run

        worker = worker_for(world, handler, concurrency=2)
        worker.clock = world.local.clock
        monkeypatch.setattr(worker, "on_idle", idle.append)
        with requests_noted(world.local) as requests, Working(world, worker) as working:
            assert started.wait(WAIT)
            until(has_claimed_nothing)
            worker.shutdown()
            finish.set()
            until(working.has_ended)
        assert idle == []

    @pytest.mark.usefixtures("prompt", "held_clock")
    def test_a_claim_that_arrives_afterwards_is_handed_back_untouched(self, world: World) -> None:
        world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=0.1, after=True))
        task_id = world.create()
        called: list[TaskRun] = []
        worker = worker_for(world, called.append)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            until(lambda: world.status(task_id).state == "running")
            worker.shutdown()
            world.local.clock.release()
            hand_back(world, working)
        assert called == []
        assert reasons(world, task_id) == HANDED_BACK

    def test_a_run_that_was_just_claimed_may_finish_in_time(self, world: World) -> None:
        task_id = world.create()
        worker = worker_for(world, lambda _: None)
        with gate_before_handlers() as gate, Working(world, worker) as working:
            assert gate.reached.wait(WAIT)
            worker.shutdown()
            gate.opened.set()
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]

    def test_a_handler_may_finish_in_time(self, world: World) -> None:
        task_id = world.create()
        started, finish = threading.Event(), threading.Event()

        def handler(task: TaskRun) -> None:
            del task
            started.set()
            assert finish.wait(WAIT)

        worker = worker_for(world, handler, max_tasks=1)
        with Working(world, worker) as working:
            assert started.wait(WAIT)
            worker.shutdown()
            finish.set()
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]

    @pytest.mark.parametrize("kind", ["blocking", "awaited", "command"])
    def test_a_handler_that_goes_on_is_stopped_and_its_run_handed_back_with_its_log(
        self, world: World, kind: str
    ) -> None:
        task_id = world.create()
        started = threading.Event()
        told: list[Outcome | None] = []

        def blocking(task: TaskRun) -> None:
            task.log.info("so far")
            started.set()
            if kind == "command":
                task.run_command(["sleep", "60"])
            assert task.canceled.wait(WAIT)
            told.append(task.canceled.reason)
            task.canceled.check()

        async def awaited(task: TaskRun) -> None:
            task.log.info("so far")
            started.set()
            await asyncio.sleep(WAIT)

        if kind == "awaited":
            worker = worker_for(world, awaited=awaited, max_tasks=1, graceful_shutdown_timeout=0.1)
        else:
            worker = worker_for(world, blocking, max_tasks=1, graceful_shutdown_timeout=0.1)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            assert started.wait(WAIT)
            worker.shutdown()
            hand_back(world, working)
        assert reasons(world, task_id) == HANDED_BACK
        assert "so far" in log_of(world, task_id)
        assert all(isinstance(each, WorkerShutdown) for each in told)

    def test_a_handler_that_returns_because_it_was_stopped_has_not_completed(self, world: World) -> None:
        task_id = world.create()
        started = threading.Event()

        def handler(task: TaskRun) -> None:
            started.set()
            assert task.canceled.wait(WAIT)

        worker = worker_for(world, handler, max_tasks=1, graceful_shutdown_timeout=0)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            assert started.wait(WAIT)
            worker.shutdown()
            hand_back(world, working)
        assert reasons(world, task_id) == HANDED_BACK

    @pytest.mark.parametrize(
        ("within", "ends", "reason"),
        [
            (WAIT, ValueError("no output"), HANDED_BACK),
            (WAIT, MalformedPayload("no such target"), ["malformed-payload"]),
            (WAIT, None, ["completed"]),
            (0.0, ValueError("no output"), ["internal-error"]),
        ],
    )
    def test_a_run_that_fails_after_a_signal_to_its_command_is_handed_back_if_the_worker_shuts_down_too(
        self,
        world: World,
        monkeypatch: pytest.MonkeyPatch,
        within: float,
        ends: Exception | None,
        reason: list[str],
    ) -> None:
        monkeypatch.setattr(shutdown, "SIGNALED_WITHIN", within)
        task_id = world.create()
        signaled = threading.Event()

        def handler(task: TaskRun) -> None:
            task.run_command(["sh", "-c", "kill -TERM $$"], check=False)
            signaled.set()
            if ends is not None:
                raise ends

        worker = worker_for(world, handler)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            assert signaled.wait(WAIT)
            if not within:
                until(lambda: reasons(world, task_id) == reason)
            worker.shutdown()
            hand_back(world, working)
        assert reasons(world, task_id) == reason
        assert ends is None or str(ends) in log_of(world, task_id)

    def test_a_signal_to_a_command_of_an_earlier_attempt_does_not_hand_back_a_run_that_fails(
        self, world: World
    ) -> None:
        task_id = world.create()
        attempted, retried, told = threading.Event(), threading.Event(), threading.Event()

        def handler(task: TaskRun) -> None:
            if not attempted.is_set():
                attempted.set()
                task.run_command(["sh", "-c", "kill -TERM $$"], check=False)
                raise IntermittentTask("no output")
            retried.set()
            assert told.wait(WAIT)
            raise TaskFailed("no output")

        worker = worker_for(world, handler, intermittent_attempts=2)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            assert retried.wait(WAIT)
            worker.shutdown()
            told.set()
            hand_back(world, working)
        assert reasons(world, task_id) == ["failed"]

    def test_a_handler_that_never_ends_does_not_delay_the_end_of_the_worker(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handlers, "HANDLER_GRACE", 0.1)
        task_id = world.create()
        settings: WorkerSettings = {"max_tasks": 1, "graceful_shutdown_timeout": 0, "termination_grace": 0.1}
        with Stuck() as handler, Working(world, worker_for(world, handler, **settings)) as working:
            assert handler.started.wait(WAIT)
            working.worker.shutdown()
            working.wait_for_end()
            assert reasons(world, task_id) == HANDED_BACK

    def test_uploads_may_end_in_time(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="storage.put", seconds=600, times=2))
        worker = worker_for(world, uploading)
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            world.local.clock.advance(seconds=600)
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]
        assert artifact(world, task_id, "public/x") == "x"

    @pytest.mark.usefixtures("held_clock")
    def test_uploads_that_take_too_long_are_given_up_and_the_run_handed_back(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="storage.put", seconds=60))

        def handler(task: TaskRun) -> None:
            task.upload_artifact("public/x", b"x")

        def is_handed_back() -> bool:
            world.local.clock.advance(seconds=0.25)
            return reasons(world, task_id) == HANDED_BACK

        settings: WorkerSettings = {
            "max_tasks": 1,
            "graceful_shutdown_timeout": 0,
            "shutdown_timeout": 600,
        }
        worker = worker_for(world, handler, **settings)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            until(is_handed_back)
            world.local.clock.advance(seconds=60)
            working.wait_for_end()
        assert "public/x" in artifact_names(world, task_id)  # after the report, if possible

    def test_a_report_under_way_is_seen_through(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="queue.reportCompleted", seconds=0.3, real_time=True))
        worker = worker_for(world, lambda _: None, max_tasks=1, graceful_shutdown_timeout=0)
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]

    def test_uploads_after_a_report_are_completed(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="storage.put", seconds=0.3, real_time=True))

        def handler(task: TaskRun) -> None:
            del task
            message = "broken"
            raise InternalError(message)

        worker = worker_for(world, handler, max_tasks=1, graceful_shutdown_timeout=0)
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            working.wait_for_end()
        assert reasons(world, task_id) == ["internal-error"]
        assert "broken" in log_of(world, task_id)


def test_the_second_call_hurries(world: World) -> None:
    task_id = world.create()
    started = threading.Event()

    def handler(task: TaskRun) -> None:
        started.set()
        assert task.canceled.wait(WAIT)
        task.canceled.check()

    worker = worker_for(world, handler, concurrency=2, graceful_shutdown_timeout=3600)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        assert started.wait(WAIT)
        worker.shutdown()
        worker.shutdown()  # does not wait for the claim call of the other slot, either
        hand_back(world, working)
    assert reasons(world, task_id) == HANDED_BACK


def test_the_second_call_does_not_wait_for_a_handler_that_never_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "HURRIED_GRACE", 0.1)
    monkeypatch.setattr(handlers, "HANDLER_GRACE", 3600.0)
    task_id = world.create()
    with (
        Stuck() as handler,
        Working(world, worker_for(world, handler, graceful_shutdown_timeout=3600)) as working,
    ):
        assert handler.started.wait(WAIT)
        working.worker.shutdown()
        working.worker.shutdown()
        working.wait_for_end()
    assert reasons(world, task_id) == HANDED_BACK


def test_a_handler_that_never_ends_and_a_queue_that_does_not_respond_do_not_keep_the_worker_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "HURRIED_GRACE", 0.1)
    monkeypatch.setattr(shutdown, "HURRIED", 0.5)
    world.create()
    world.local.faults.add(Delay(endpoint="queue.reportException", seconds=600))
    with (
        Stuck() as handler,
        Working(world, worker_for(world, handler, graceful_shutdown_timeout=3600)) as working,
    ):
        assert handler.started.wait(WAIT)
        working.worker.shutdown()
        working.worker.shutdown()
        working.wait_for_end()


class TestInAHurry:
    """A second call of `shutdown()`, at stages before and after the handler."""

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a hurried shutdown last longer than a test waits: it must give runs up before its end."""
        monkeypatch.setattr(shutdown, "HURRIED", 2 * WAIT)

    @pytest.mark.usefixtures("prompt")
    def test_a_claim_call_is_not_waited_for(self, world: World) -> None:
        world.local.clock.hold()  # so that nothing else ends it
        worker = worker_for(world, lambda _: None, graceful_shutdown_timeout=3600)
        with Working(world, worker) as working:
            until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)
            worker.shutdown()
            worker.shutdown()
            working.wait_for_end()

    def test_uploads_are_given_up_and_the_run_is_handed_back(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="storage.put", seconds=600, times=2))
        worker = worker_for(world, uploading, graceful_shutdown_timeout=3600)
        worker.clock = world.local.clock
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            worker.shutdown()
            hand_back(world, working)
        assert reasons(world, task_id) == HANDED_BACK

    def test_a_report_under_way_is_seen_through(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="queue.reportCompleted", seconds=600))
        worker = worker_for(world, uploading, graceful_shutdown_timeout=3600)
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            worker.shutdown()
            world.local.clock.advance(seconds=600)
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]

    def test_a_report_without_a_response_is_given_up(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutdown, "HURRIED", 0.1)
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="queue.reportCompleted", seconds=600))
        worker = worker_for(world, uploading, graceful_shutdown_timeout=3600)
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            worker.shutdown()
            working.wait_for_end()
        world.local.clock.advance(seconds=1201)
        assert reasons(world, task_id) == ["claim-expired", "None"]

    def test_uploads_after_a_report_are_canceled(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="storage.put", seconds=600, times=2))

        def handler(task: TaskRun) -> None:
            uploading(task)
            message = "broken"
            raise InternalError(message)

        worker = worker_for(world, handler, graceful_shutdown_timeout=3600)
        with Working(world, worker) as working:
            world.until_struck()
            worker.shutdown()
            worker.shutdown()
            working.wait_for_end()
        assert reasons(world, task_id) == ["internal-error"]


@pytest.mark.parametrize(("left", "has_begun"), [(10.0, False), (10.0, True), (0.0, False)])
def test_a_termination_notice_begins_the_shutdown_or_shortens_it(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    left: float,
    *,
    has_begun: bool,
) -> None:
    task_id = world.create()
    started, noticed = threading.Event(), threading.Event()

    def handler(task: TaskRun) -> None:
        started.set()
        assert task.canceled.wait(WAIT)
        task.canceled.check()

    def notice() -> float | None:
        return left if noticed.wait(WAIT) else None

    worker = worker_for(world, handler, graceful_shutdown_timeout=3600)
    monkeypatch.setattr(worker, "termination_notice", notice)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        assert started.wait(WAIT)
        if has_begun:
            worker.shutdown()
        noticed.set()
        until(lambda: f"termination notice received: {left:.0f} s left" in caplog.text)
        world.local.clock.advance(seconds=5)
        working.wait_for_end()
    assert reasons(world, task_id) == HANDED_BACK


def test_the_first_request_after_a_notice_lets_runs_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a termination notice, a machine that shuts down sends SIGTERM to all programs."""
    task_id, started, finish = world.create(), threading.Event(), threading.Event()

    def handler(_: TaskRun) -> None:
        started.set()
        assert finish.wait(WAIT)

    def notice() -> str | None:
        return "2 hours" if started.wait(WAIT) else None

    worker = worker_for(world, handler, graceful_shutdown_timeout=3600)
    monkeypatch.setattr(worker, "termination_notice", notice)
    with Working(world, worker) as working:
        until(lambda: "termination notice received: 7200 s left" in caplog.text)
        worker.shutdown(within="1 hour")
        finish.set()
        working.wait_for_end()
    assert reasons(world, task_id) == ["completed"]


def test_a_termination_notice_that_hangs_does_not_keep_the_worker_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = world.create()
    responded = threading.Event()
    worker = worker_for(world, lambda _: None, max_tasks=1)
    monkeypatch.setattr(worker, "termination_notice", responded.wait)
    try:
        with Working(world, worker) as working:
            working.wait_for_end()
    finally:
        responded.set()
    assert reasons(world, task_id) == ["completed"]


def test_a_termination_notice_that_fails_is_logged_once_and_called_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(shutdown, "NOTICE_INTERVAL", 0.01)

    def notice() -> float | None:
        asked.append(True)
        if len(asked) < 4:
            message = f"no cloud here, asked {len(asked)}"
            raise OSError(message)
        return 1.0

    worker = worker_for(world, lambda _: None)
    monkeypatch.setattr(worker, "termination_notice", notice)
    with Working(world, worker):
        until(lambda: len(asked) == 4)
    assert caplog.text.count("termination_notice failed") == 1
    assert "no cloud here" in caplog.text


def test_a_bug_that_ends_work_in_the_background_is_logged_at_once_and_the_worker_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def buggy(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(shutdown, "termination_noticed", buggy)
    task_id, logged = world.create(), "a bug ended `watch for termination notices`"
    worker_for(world, lambda _: until(lambda: logged in caplog.text), max_tasks=1).serve()
    assert reasons(world, task_id) == ["completed"]
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.parametrize("notice", [False, "120", math.nan])
def test_a_notice_that_is_not_a_number_is_an_error_of_the_hook_and_no_notice(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, notice: Any
) -> None:
    task_id = world.create()
    notices = iter([notice])
    monkeypatch.setattr(shutdown, "NOTICE_INTERVAL", 0.01)
    worker = worker_for(world, lambda _: until(lambda: refused in caplog.text), max_tasks=1)
    monkeypatch.setattr(worker, "termination_notice", lambda: next(notices, None))
    refused = f"termination_notice: {notice!r} is not valid; expected a number of seconds, whole numbers"
    worker.serve()
    assert reasons(world, task_id) == ["completed"]


@pytest.mark.parametrize("within", [-1, -math.inf, "-1 minute"])
def test_a_shutdown_within_a_time_that_has_passed_stops_the_runs_at_once(
    world: World, within: float | str
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        worker.shutdown(within=within)
        task.canceled.wait()
        task.canceled.check()

    worker = worker_for(world, handler, graceful_shutdown_timeout=3600)
    worker.serve()
    assert reasons(world, task_id)[0] == "worker-shutdown"


def test_a_hint_about_something_else_than_a_task_is_refused_in_the_call(world: World) -> None:
    worker = worker_for(world, lambda _: None, max_tasks=1)
    with pytest.raises(InvalidArgument, match="task_id: 'the task' is not valid; expected a slugid"):
        worker.hint_canceled("the task")


@pytest.mark.parametrize("within", ["30", math.nan, True])
def test_a_time_that_is_not_a_number_is_refused_in_the_call(world: World, within: Any) -> None:
    task_id = world.create()

    def handler(_: TaskRun) -> None:
        with pytest.raises(InvalidArgument, match=f"within: {within!r} is not valid; expected a number"):
            worker.shutdown(within=within)

    worker = worker_for(world, handler, max_tasks=1)
    worker.serve()
    assert reasons(world, task_id) == ["completed"]


def test_a_ctrl_c_that_the_program_does_not_handle_hands_the_runs_of_serve_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were left until their claims expired."""
    monkeypatch.setattr(shutdown, "HANDED_OVER_AFTER", 0.0)
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        task.canceled.wait(WAIT)
        task.canceled.check()

    with pytest.raises(KeyboardInterrupt):
        worker_for(world, handler).serve()
    assert reasons(world, task_id) == HANDED_BACK


def test_a_second_ctrl_c_that_the_program_does_not_handle_names_the_runs_that_stay_claimed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create()
    with Stuck() as stuck:

        def handler(task: TaskRun) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            assert task.canceled.wait(WAIT)
            os.kill(os.getpid(), signal.SIGINT)
            stuck(task)

        with pytest.raises(KeyboardInterrupt):
            worker_for(world, handler).serve()
    line = f"the worker was interrupted; gave up run {task_id}/0: its handler is still running"
    assert caplog.messages.count(line) == 1


class TestStart:
    def test_missing_scopes_are_an_error_that_names_them(self) -> None:
        client = Client("worker", "the-secret-of-a-worker", ["queue:worker-id:*"])
        with LocalQueue(clients=[client], anonymous_scopes=[]) as local:
            world = World(local)
            worker = worker_for(world, lambda _: None)
            worker.credentials = Credentials("worker", "the-secret-of-a-worker")
            with pytest.raises(InsufficientScopes, match=f"queue:claim-work:{TASK_QUEUE_ID}"):
                worker.serve()
            world.close()

    def test_wrong_credentials_are_an_error(self, world: World) -> None:
        worker = worker_for(world, lambda _: None)
        worker.credentials = Credentials("local", "not-its-secret")
        with pytest.raises(AuthenticationFailed):
            worker.serve()

    def test_messages_without_their_extra_are_an_error_when_the_worker_is_made(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "taskqueue_client.events._broker_session", None)
        pulse = PulseSettings(host="localhost", user="worker", password="any", tls=False)
        kind = type(worker_for(world, lambda _: None))
        with pytest.raises(ImportError, match=r"taskqueue_client\[events\]"):
            kind(
                root_url=world.local.root_url,
                pulse=pulse,
                task_queue_id=TASK_QUEUE_ID,
                worker_group="group",
                worker_id="worker",
            )

    @pytest.mark.parametrize("method", ["run", "serve"])
    async def test_a_running_event_loop_is_an_error_that_says_what_to_call(
        self, world: World, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = worker_for(world, lambda _: None)
        started: list[bool] = []
        monkeypatch.setattr(worker, "on_start", lambda: started.append(True))
        with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(worker\.serve\)"):
            getattr(worker, method)()
        assert started == []

    def test_credentials_that_have_expired_are_said_to_have_expired_only(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        yesterday = datetime.now(UTC) - timedelta(days=1)
        expired = temporary_credentials(
            world.local.credentials, ["*"], start=yesterday, lifetime=timedelta(minutes=1)
        )
        with Working(world, worker_for(world, lambda _: None)) as working:
            until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)
            working.worker.credentials = expired
            world.local.clock.advance(seconds=21)  # its first claim request ends
            until(lambda: "own credentials have expired" in caplog.text)
        assert "own credentials expire in" not in caplog.text

    @pytest.mark.parametrize("hours", [-1, 1])
    def test_a_wrong_clock_does_not_make_the_warning_early_or_late_that_credentials_expire(
        self, world: World, caplog: pytest.LogCaptureFixture, hours: int
    ) -> None:
        worker = worker_for(world, lambda _: None)
        worker.clock = clock = MovableClock(world.local.clock.now() + hours * 3600)
        worker.credentials = temporary_credentials(
            world.local.credentials, ["*"], lifetime=timedelta(minutes=30)
        )
        task_id = world.create()
        with Working(world, worker):
            until(lambda: world.run(task_id).state == "completed")
            clock.advance(minutes=26)
            until(lambda: "own credentials expire in" in caplog.text)
            assert "own credentials have expired" not in caplog.text  # the end of the block moves the clock

    def test_credentials_that_expired_while_the_machine_was_suspended_are_not_said_to_expire_later(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker = worker_for(world, lambda _: None)
        worker.clock = clock = NotingClock(world.local.clock.now())
        worker.credentials = temporary_credentials(
            world.local.credentials, ["*"], lifetime=timedelta(minutes=30)
        )
        task_id = world.create()
        with Working(world, worker):
            until(lambda: world.run(task_id).state == "completed")  # so the worker knows the service's time
            clock.advance(seconds=shutdown.FIRST_RESPONSE_INTERVAL)
            until(lambda: any(seconds > 20 * 60 for seconds in clock.sleeps))
            clock.advance(minutes=31)
            until(lambda: "the worker's own credentials" in caplog.text)
        assert "own credentials have expired" in caplog.text
        assert "own credentials expire in" not in caplog.text

    def test_a_queue_that_cannot_be_reached_is_logged_and_called_again(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        with LocalQueue() as elsewhere:
            closed = elsewhere.root_url
        worker = worker_for(world, lambda _: None, root_url=closed, max_tasks=1)
        with Working(world, worker) as working:
            until(lambda: "cannot claim work" in caplog.text)
            again = LocalQueue(
                port=int(closed.rpartition(":")[2]),
                access_token=world.local.access_token,
            )
            with again:
                other = World(again)
                task_id = other.create()
                working.wait_for_end()
                assert reasons(other, task_id) == ["completed"]
                other.close()


SCRIPT = """
    import logging, sys
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop

    class Sleeper(WorkerLoop):
        def run_task(self, task):
            task.log.info("sleeping")
            (task.work_directory / "file").touch()
            print(task.work_directory, flush=True)
            task.run_command(["sleep", "60"])

    root_url, token, grace = sys.argv[1:]
    logging.basicConfig()
    logging.getLogger("taskqueue_client.worker").addFilter(lambda record: "received" in record.msg)
    logging.getLogger("taskqueue_client.worker").setLevel(logging.INFO)
    Sleeper(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        root_url=root_url, credentials=Credentials("local", token), max_tasks=1,
        graceful_shutdown_timeout=float(grace),
    ).run()
    print("left", flush=True)
"""


def start(world: World, grace: float) -> subprocess.Popen[str]:
    """Start a worker in a separate process; return when it runs a command."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(SCRIPT),
            world.local.root_url,
            world.local.access_token,
            str(grace),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_one_begins_the_shutdown(self, world: World, number: signal.Signals) -> None:
        task_id = world.create()
        with start(world, grace=0) as process:
            assert process.stdout is not None
            directory = Path(process.stdout.readline().strip())
            process.send_signal(number)
            assert process.stdout.read().endswith("left\n")
            assert process.wait(WAIT) == 0
        assert reasons(world, task_id) == HANDED_BACK
        assert "sleeping" in log_of(world, task_id)
        assert not directory.exists()

    def test_the_second_one_hurries(self, world: World) -> None:
        task_id = world.create()
        with start(world, grace=3600) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            while "received SIGTERM" not in process.stdout.readline():
                pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT) == 0
        assert reasons(world, task_id) == HANDED_BACK

    @pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
    def test_one_that_is_ignored_at_the_start_stays_ignored_with_a_warning_about_sigterm(
        self, world: World, caplog: pytest.LogCaptureFixture, number: signal.Signals
    ) -> None:
        task_id = world.create()
        caplog.set_level(logging.INFO)
        before = signal.signal(number, signal.SIG_IGN)
        try:
            worker_for(world, lambda _: os.kill(os.getpid(), number), max_tasks=1).run()
            assert signal.getsignal(number) is signal.SIG_IGN
        finally:
            signal.signal(number, before)
        assert "received SIG" not in caplog.text
        assert ("SIGTERM will not shut down" in caplog.text) is (number is signal.SIGTERM)
        assert reasons(world, task_id) == ["completed"]

    def test_the_program_s_own_handlers_are_back_when_the_worker_has_ended(self, world: World) -> None:
        def own(number: int, frame: object) -> None:
            """Do nothing."""

        world.create()
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        before = {each: signal.signal(each, own) for each in numbers}
        try:
            worker_for(world, lambda _: None, max_tasks=1).run()
            assert [signal.getsignal(each) for each in numbers] == [own] * 4
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


class SuspendedWake(ThreadsafeCalls):
    """Calls as if their thread is suspended just before it wakes the loop: they wait until `wake`."""

    made: ClassVar[list[SuspendedWake]] = []

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._is_woken = True
        self.made.append(self)

    def wake(self) -> None:
        self._make_calls()


def test_the_last_claim_is_begun_if_the_thread_that_wakes_the_loop_is_suspended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Keeper.claiming_ended

    async def wake_after_the_end(keeper: Keeper) -> None:
        await ended(keeper)
        loop = asyncio.get_running_loop()
        [calls] = SuspendedWake.made
        loop.call_soon(loop.call_soon, calls.wake)  # after the callbacks of tasks that wait for this one

    monkeypatch.setattr(SuspendedWake, "made", [])
    monkeypatch.setattr(session, "ThreadsafeCalls", SuspendedWake)
    monkeypatch.setattr(Keeper, "claiming_ended", wake_after_the_end)
    task_id = world.create()
    worker_for(world, lambda _: None, max_tasks=1).serve()
    assert world.status(task_id).state == "completed"


class OneThreadTooMany(DaemonThreads):
    """Fails to start the first thread, as in a container that has reached its limit of processes."""

    failures = 1

    def start(self, job: Job) -> None:
        self.failures -= 1
        if self.failures >= 0:
            message = "can't start new thread"
            raise RuntimeError(message)
        super().start(job)


class NotingClock(MovableClock):
    """Notes how long each coroutine sleeps, in seconds."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.sleeps: list[float] = []

    async def sleep_async(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await super().sleep_async(seconds)


class NoWaits(SystemClock):
    async def sleep_async(self, seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)


async def test_a_termination_notice_is_still_asked_for_when_no_thread_could_be_started(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook must not run in the event loop's thread instead: if it hangs, it would block the worker."""
    monkeypatch.setattr(threads, "DaemonThreads", OneThreadTooMany)
    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
    asking: list[threading.Thread] = []

    def notice() -> float:
        asking.append(threading.current_thread())
        return 90.0

    assert await shutdown.termination_noticed(notice, NoWaits()) == 90
    assert threading.current_thread() not in asking
    assert "can't start new thread" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), KeyboardInterrupt()])
async def test_a_termination_notice_may_raise_anything(error: BaseException) -> None:
    """asyncio would end the worker for some of these errors, and wait without end for others."""
    asked: list[bool] = []

    def notice() -> float:
        asked.append(True)
        if len(asked) == 1:
            raise error
        return 90.0

    assert await shutdown.termination_noticed(notice, NoWaits()) == 90


async def test_an_error_of_a_termination_notice_is_logged_again_after_a_call_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    responses = iter(
        [None, OSError("no cloud here"), OSError("no cloud here"), None, OSError("no cloud here"), 90]
    )

    def notice() -> float | None:
        response = next(responses)
        if isinstance(response, OSError):
            raise response
        return response

    assert await shutdown.termination_noticed(notice, NoWaits()) == 90
    assert caplog.messages == ["termination_notice failed, retrying"] * 2


def leave(_: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_hook_that_exits_at_the_end_of_a_run_hands_the_other_runs_back(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """The worker must not leave them until their claims expire."""
    quick, slow = world.create({"quick": True}), world.create()
    both = threading.Barrier(2, timeout=WAIT)

    def handler(task: TaskRun) -> None:
        both.wait()
        if not task.payload.get("quick"):
            task.canceled.wait(WAIT)

    def on_task_end(_: TaskEnd) -> None:
        raise error

    worker = worker_for(world, handler, concurrency=2, graceful_shutdown_timeout=0)
    monkeypatch.setattr(worker, "on_task_end", on_task_end)
    with Working(world, worker) as working:
        until(working.has_ended)
        with pytest.raises(type(error)):
            working.wait_for_end()
    assert (reasons(world, quick), reasons(world, slow)) == (["completed"], HANDED_BACK)
    assert f"on_task_end raised {type(error).__name__}: shutting down" in caplog.messages


@pytest.mark.parametrize("error", [SystemExit(3), OSError("the disk is gone")])
def test_a_run_whose_end_shuts_the_worker_down_does_not_count_as_one_that_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """The shutdown begins in a hook that exits, or when `max_internal_errors` is reached."""
    caplog.set_level("INFO")
    world.create()

    def fail(_: object) -> None:
        raise error

    is_error = isinstance(error, OSError)
    worker = worker_for(world, fail if is_error else uploading, max_internal_errors=1)
    if not is_error:
        monkeypatch.setattr(worker, "on_task_end", fail)
    with Working(world, worker) as working:
        until(working.has_ended)
        with pytest.raises((SystemExit, InternalError)):
            working.wait_for_end()
    assert "shutting down: no more claims, and no runs to wait for" in caplog.messages


@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError()])
def test_a_hook_that_raises_anything_else_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    tasks = [world.create(), world.create()]

    def on_task_end(_: TaskEnd) -> None:
        raise error

    worker = worker_for(world, lambda _: None, max_tasks=2)
    monkeypatch.setattr(worker, "on_task_end", on_task_end)
    with Working(world, worker) as working:
        until(working.has_ended)
        working.wait_for_end()
    assert [reasons(world, each) for each in tasks] == [["completed"], ["completed"]]
    assert caplog.messages.count("on_task_end failed") == 2


def test_a_hook_that_exits_when_there_is_no_work_ends_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_for(world, uploading)
    monkeypatch.setattr(worker, "on_idle", leave)
    with Working(world, worker) as working:
        until(working.has_ended)
        with pytest.raises(SystemExit, match="3"):
            working.wait_for_end()


async def test_a_call_that_fails_is_reported_and_the_calls_after_it_are_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, made = ThreadsafeCalls(asyncio.get_running_loop()), asyncio.Event()
    calls.call(int, "not a number")
    calls.call(made.set)
    async with asyncio.timeout(WAIT):
        await made.wait()
    (record,) = caplog.records
    assert record.getMessage().startswith("a call of <class 'int'> failed")
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError
