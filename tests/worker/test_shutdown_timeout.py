"""`shutdown_timeout` bounds a shutdown, whatever hangs, and the log names the work that was given up."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socketserver
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.local.faults import Delay
from taskqueue_client.worker import WorkerConfig, shutdown
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.commands import work_directory
from taskqueue_client.worker.loop import WorkerSettings
from taskqueue_client.worker.outcomes import InternalError, WorkerShutdown
from taskqueue_client.worker.run.run_resources import RunResources
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.run.upload_retries import RetryClock
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import Stuck, Working, worker_for


def no_op(task: TaskRun) -> None:
    del task


def large_upload(task: TaskRun) -> None:
    (task.work_directory / "large").write_bytes(bytes(1 << 20))
    task.upload_artifact("public/large", "large")


def failing_upload(task: TaskRun) -> None:
    large_upload(task)
    message = "broken"
    raise InternalError(message)


ANY_STAGE = "it"
"""Runs that are stopped go through several stages until the end of a shutdown."""


@pytest.mark.parametrize(
    ("handler", "endpoint", "stage"),
    [
        (large_upload, "storage.put", ANY_STAGE),
        (failing_upload, "storage.put", "it is reported, and its artifacts are being uploaded"),
        (large_upload, "queue.createArtifact", ANY_STAGE),
        (no_op, "queue.report*", "its report as completed has not succeeded"),
    ],
    ids=["storage before the report", "storage after the report", "the Queue", "the report"],
)
def test_a_worker_ends_in_time_though_a_handler_or_call_hangs(
    world: World, handler: object, endpoint: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create()
    for _ in range(100):
        world.local.faults.add(Delay(endpoint=endpoint, seconds=600))
    worker = worker_for(world, handler, shutdown_timeout=2.0)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING), Working(world, worker) as working:
        world.until_struck(left=99)
        started = time.monotonic()
        worker.shutdown()
        working.wait_for_end()
    assert time.monotonic() - started < 2 + 5
    assert f"gave up run {task_id}/0: {stage}" in caplog.text


@pytest.mark.parametrize("hangs", [False, True])
def test_a_worker_waits_until_the_files_of_a_run_are_removed_but_not_longer_than_the_timeout(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, hangs: bool
) -> None:
    removing, may_remove = threading.Event(), threading.Event()
    remove = RunResources.close

    def held_up(resources: RunResources) -> None:
        removing.set()
        may_remove.wait(WAIT)
        if not hangs:
            remove(resources)

    monkeypatch.setattr(RunResources, "close", held_up)

    def handler(task: TaskRun) -> None:
        (task.work_directory / "x").write_bytes(b"x")

    task_id = world.create()
    worker = worker_for(world, handler, max_tasks=1, shutdown_timeout=1.0 if hangs else 2 * WAIT)
    with Working(world, worker) as working:
        assert removing.wait(WAIT)
        worker.shutdown()
        if not hangs:
            assert working.is_alive(within=0.1)
            may_remove.set()
        working.wait_for_end()
        may_remove.set()
    assert (f"gave up run {task_id}/0: its work directory is being removed" in caplog.text) == hangs


def test_a_worker_ends_in_time_though_its_work_directory_cannot_be_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a network file system that hangs."""
    may_remove = threading.Event()
    remove = work_directory.remove_tree

    def hanging(path: Path) -> None:
        may_remove.wait(WAIT)
        remove(path)

    monkeypatch.setattr(work_directory, "remove_tree", hanging)
    monkeypatch.setattr(work_directory, "TO_END", 0.01)
    world.create()
    worker = worker_for(world, no_op, max_tasks=1)
    with Working(world, worker) as working:
        working.wait_for_end()
    may_remove.set()
    assert "is left behind: its file system does not respond, or it is large" in caplog.text


@pytest.mark.parametrize(
    ("settings", "within", "left", "steps"),
    [
        ({}, None, None, (60, 85, 90)),
        ({}, 300, None, (300, 325, 330)),
        ({}, math.inf, None, (math.inf, math.inf, math.inf)),
        ({"termination_grace": 40}, None, None, (60, 115, 120)),
        ({"shutdown_timeout": 3600}, None, None, (60, 3595, 3600)),
        ({"shutdown_timeout": 80}, None, None, (50, 75, 80)),  # early enough for reports and logs
        ({"shutdown_timeout": 80}, math.inf, None, (50, 75, 80)),
        ({"shutdown_timeout": 8}, None, None, (4, 6, 8)),  # half of a short time, and a quarter of it
        ({"graceful_shutdown_timeout": 3600}, None, 120, (90, 115, 120)),
        ({}, None, 120, (60, 85, 90)),
        ({}, None, 40, (20, 35, 40)),
        ({"shutdown_timeout": 80}, None, 120, (50, 75, 80)),
        ({}, 0, 10, (0, 7.5, 10)),
    ],
)
def test_the_steps_of_a_shutdown_leave_time_for_reports(
    settings: dict[str, Any], within: float | None, left: float | None, steps: tuple[float, ...]
) -> None:
    config = WorkerConfig(task_queue_id="proj/w", worker_group="group", worker_id="worker", **settings)
    plan = shutdown.ShutdownPlan.of(config, within, left)
    assert (plan.stop_runs, plan.abandon_handlers, plan.end) == steps


@pytest.mark.parametrize(
    ("begin", "again", "told"),
    [
        (
            ("terminate", math.inf),
            ("request",),
            "may go on for 60.0 s, and the worker ends within 3600 s; ask again",
        ),
        (("terminate", 20), ("request",), "may go on for 20.0 s, and the worker ends within 3600 s"),
        (("terminate", 20), ("on_notice", 120), "may go on for 20.0 s, and the worker ends within 120 s"),
        (("terminate", 300), ("on_notice", 3000), "may go on for 300.0 s, and the worker ends within 3000 s"),
        (("on_notice", 40), ("terminate", math.inf), "may go on for 20.0 s, and the worker ends within 40 s"),
        (("on_notice", 40), ("terminate", 5), "may go on for 5.0 s, and the worker ends within 40 s"),
        (("on_notice", 40), ("on_notice", 0), "stopping 1 run; the worker ends within 10 s"),
        (("on_notice", 1), ("terminate", 60), "may go on for 0.5 s, and the worker ends within 1 s"),
        (("terminate", 0), ("on_notice", 20), "stopping 1 run; the worker ends within 20 s"),
        (("terminate", 0), ("on_notice", 3600), "stopping 1 run; the worker ends within 3600 s"),
    ],
)
async def test_a_shutdown_that_has_begun_is_shortened_and_never_extended(
    caplog: pytest.LogCaptureFixture, begin: tuple[Any, ...], again: tuple[Any, ...], told: str
) -> None:
    caplog.set_level(logging.INFO)
    await do(shutdown_of(MagicMock(unresolved=1)), begin, again)
    plans = [each for each in caplog.messages if each.startswith("shutting down: ")]
    assert told in plans[-1]


@pytest.mark.parametrize("step", [("terminate", 0), ("on_notice", 120)])
async def test_a_shutdown_that_is_asked_for_twice_in_the_same_way_is_logged_once(
    caplog: pytest.LogCaptureFixture, step: tuple[Any, ...]
) -> None:
    caplog.set_level(logging.INFO)
    await do(shutdown_of(MagicMock(unresolved=1)), step, step)
    assert len([each for each in caplog.messages if each.startswith("shutting down: ")]) == 1


async def settle() -> None:
    """Let the event loop run what is due."""
    for _ in range(10):
        await asyncio.sleep(0)


async def do(begun: shutdown.Shutdown, *steps: tuple[Any, ...]) -> None:
    """Call methods with their arguments; after each, let the event loop run what is due."""
    for method, *arguments in steps:
        getattr(begun, method)(*arguments)
        await settle()


def shutdown_of(
    runs: MagicMock, clock: MovableClock | None = None, retry_clock: RetryClock | None = None
) -> shutdown.Shutdown:
    """Return a shutdown with a timeout of an hour, of a worker that is a minute old."""
    identity: dict[str, Any] = {"task_queue_id": "proj/w", "worker_group": "group", "worker_id": "worker"}
    clock = clock or MovableClock(held=True)
    clock.advance(minutes=1)
    config = WorkerConfig(**identity, shutdown_timeout=3600)
    keeper = create_autospec(Keeper, instance=True)
    return shutdown.Shutdown(config, keeper, runs, clock, retry_clock or RetryClock(clock))


async def test_the_steps_of_a_shutdown_come_at_their_times() -> None:
    clock, run = MovableClock(held=True), MagicMock()
    begun = shutdown_of(runs_of(run), clock)
    await do(begun, ("request", 300))
    assert [await due(clock, run, seconds) for seconds in (299, 1, 3294, 1, 4)] == [
        [],
        ["stop"],
        ["stop"],
        ["stop", "abandon_handler"],
        ["stop", "abandon_handler"],
    ]
    assert isinstance(run.stop.call_args.args[0], WorkerShutdown)
    assert not begun.timed_out.done()
    await due(clock, run, 1)
    assert begun.timed_out.result() == "the shutdown timed out after 3600 s"


def runs_of(run: MagicMock) -> MagicMock:
    """Return the runs of a worker that has only this run."""
    runs = MagicMock(unresolved=1)
    runs.__iter__.side_effect = lambda: iter([run])
    return runs


async def due(clock: MovableClock, run: MagicMock, seconds: float) -> list[str]:
    """Advance the clock; return the names of all methods of the run that were called so far."""
    clock.advance(seconds)
    await settle()
    return [name for name, _, _ in run.method_calls]


@pytest.mark.parametrize(("before", "left"), [(0.0, 2.0), (1.5, 0.5), (2.0, 0.0), (60.0, 0.0)])
async def test_runs_are_handed_over_two_seconds_after_the_beginning(before: float, left: float) -> None:
    """Earlier, another worker that shuts down as well might claim such a run, and use up a second retry."""
    clock = MovableClock(held=True)
    begun = shutdown_of(MagicMock(unresolved=1), clock)
    begun.begin(0)
    clock.advance(before)
    waiting = asyncio.create_task(begun.until_handed_over())
    await settle()
    if left:
        clock.advance(left - 0.25)
        await settle()
        assert not waiting.done()
        clock.advance(0.25)
    await settle()
    assert waiting.done()


async def test_a_signal_to_stop_at_once_lets_no_run_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await do(shutdown_of(MagicMock(unresolved=1)), ("on_signal", signal.SIGQUIT))
    assert caplog.messages == [
        "received SIGQUIT",
        "shutting down: no more claims; stopping 1 run; the worker ends within 3600 s",
        "stopping all runs now: the worker ends within 10 s",
    ]


async def test_the_second_request_ends_the_wait_before_a_report_is_retried() -> None:
    clock = MovableClock(held=True)
    retry_clock = RetryClock(clock)
    begun = shutdown_of(MagicMock(unresolved=1), clock, retry_clock)
    await do(begun, ("request",))
    waiting = asyncio.create_task(retry_clock.sleep_async(600))
    await settle()
    assert not waiting.done()
    await do(begun, ("request",))
    assert waiting.done()


async def test_a_notice_after_the_second_request_does_not_begin_a_longer_shutdown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise, retries of uploads would wait for longer than the worker has left."""
    caplog.set_level(logging.INFO)
    await do(shutdown_of(MagicMock(unresolved=1)), ("request",), ("request",), ("on_notice", 120))
    assert [each.split(":")[0] for each in caplog.messages] == [
        "shutting down",
        "stopping all runs now",
        "termination notice received",
    ]


def test_a_handler_that_does_not_end_is_reported_before_the_timeout(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = world.create()
    with Stuck() as handler, Working(world, worker_for(world, handler, shutdown_timeout=4.0)) as working:
        assert handler.started.wait(WAIT)
        working.worker.shutdown()
        working.wait_for_end()
    assert world.run(task_id).reason_resolved == "worker-shutdown"
    assert f"handler of {task_id}/0 is still running" in caplog.text
    assert "after it was asked to stop; it keeps its slot\n" in caplog.text


STUBBORN = "trap '' TERM; echo > $STARTED; while :; do sleep 1; done"


def stubborn_command(task: TaskRun, started: Path) -> None:
    task.run_command(STUBBORN, shell=True, env={"STARTED": str(started)})


def stubborn_daemon(task: TaskRun, started: Path) -> None:
    env = {"STARTED": str(started), "STUBBORN": STUBBORN}
    # Wait for its own session: until then, it is in the command's process group, and would end with it.
    command = 'setsid sh -c "$STUBBORN" & until [ -e "$STARTED" ]; do sleep 0.01; done'
    task.run_command(command, shell=True, env=env)
    task.canceled.wait()
    task.canceled.check()


@pytest.mark.parametrize("handler", [stubborn_command, stubborn_daemon])
@pytest.mark.parametrize("hurry", [False, True])
def test_a_process_that_ignores_sigterm_is_killed_early_enough_to_report_its_run(
    world: World, tmp_path: Path, handler: Callable[[TaskRun, Path], None], *, hurry: bool
) -> None:
    task_id, started = world.create(), tmp_path / "started"
    settings: WorkerSettings = {"termination_grace": WAIT, "shutdown_timeout": WAIT if hurry else 5.0}
    worker = worker_for(world, lambda task: handler(task, started), **settings)
    with Working(world, worker) as working:
        until(started.exists)
        worker.shutdown()
        if hurry:
            worker.shutdown()
        working.wait_for_end()
    assert world.run(task_id).reason_resolved == "worker-shutdown"


SCRIPT = """
    import logging, sys
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop

    class Worker(WorkerLoop):
        def run_task(self, task):
            if task.payload.get("upload"):
                (task.work_directory / "large").write_bytes(bytes(1 << 20))
                task.upload_artifact("public/large", "large")
            else:
                task.canceled.wait()
                task.canceled.check()

    root_url, token, timeout = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    Worker(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        root_url=root_url, credentials=Credentials("local", token), shutdown_timeout=float(timeout),
        concurrency=2,
    ).run()
    print("left", flush=True)
"""


def start(world: World, timeout: float, root_url: str | None = None) -> subprocess.Popen[str]:
    """Start a worker in a separate process."""
    arguments = [root_url or world.local.root_url, world.local.access_token, str(timeout)]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_process_ends_in_time_though_storage_hangs(world: World) -> None:
    world.create({"upload": True})
    for _ in range(100):
        world.local.faults.add(Delay(endpoint="storage.put", seconds=600))
    with start(world, timeout=3) as process:
        world.until_struck(left=99)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=WAIT)
        assert time.monotonic() - started < 3 + 5
    assert process.returncode == 0
    assert "gave up" in output


def test_the_process_ends_in_time_though_a_claim_response_trickles_in(world: World) -> None:
    trickling, is_over = threading.Event(), threading.Event()

    class Trickle(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request = self.rfile.readline()
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
                while not is_over.wait(0.02):
                    self.wfile.write(b" ")
                    if b"/claim-work/" in request:
                        trickling.set()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Trickle) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            root_url = f"http://127.0.0.1:{server.server_address[1]}"
            with start(world, timeout=3, root_url=root_url) as process:
                assert trickling.wait(WAIT)
                started = time.monotonic()
                process.send_signal(signal.SIGTERM)
                output, _ = process.communicate(timeout=WAIT)
                assert time.monotonic() - started < 3 + 5
        finally:
            is_over.set()
            server.shutdown()
    assert process.returncode == 0
    assert output.endswith("left\n")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_other_signals_shut_down_and_report_the_runs(world: World, number: signal.Signals) -> None:
    """SIGHUP acts like SIGTERM; SIGQUIT stops runs at once."""
    task_id = world.create()
    with start(world, timeout=8 if number == signal.SIGHUP else 3600) as process:
        until(lambda: world.status(task_id).state == "running")
        process.send_signal(number)
        output, _ = process.communicate(timeout=WAIT)
    assert process.returncode == 0
    assert output.endswith("left\n")
    assert world.run(task_id).reason_resolved == "worker-shutdown"


BLOCKED = """
    import sys, threading
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop, shutdown

    shutdown.HOOK_PATIENCE = float(sys.argv.pop())

    class Worker(WorkerLoop):
        def run_task(self, task):
            pass

        def on_task_end(self, end):
            self.block("on_task_end")

        def run_time_limit(self, task):
            self.block("run_time_limit")

        def block(self, hook):
            if hook == blocking:
                print("blocking", flush=True)
                threading.Event().wait()

    _, root_url, token, blocking = sys.argv
    Worker(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        root_url=root_url, credentials=Credentials("local", token),
    ).run()
"""


@pytest.mark.parametrize("patience", [0.0, 1.0])
@pytest.mark.parametrize(
    ("hook", "reason"), [("on_task_end", "completed"), ("run_time_limit", "internal-error")]
)
def test_a_signal_interrupts_a_hook_that_blocks_the_worker(
    world: World, hook: str, reason: str, patience: float
) -> None:
    """Immediately or, if the hook has not blocked the worker for long, some seconds later."""
    task_id = world.create()
    command = [sys.executable, "-c", textwrap.dedent(BLOCKED)]
    arguments = [world.local.root_url, world.local.access_token, hook, str(patience)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocking\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT) == 0
        finally:
            process.kill()
    assert world.run(task_id).reason_resolved == reason


@pytest.mark.parametrize("hook", ["on_task_end", "run_time_limit"])
def test_a_hook_that_blocks_the_worker_is_named_and_shown_again_and_again(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(shutdown, "HOOK_WARNING", 0.02)
    finish = threading.Event()
    worker = worker_for(world, lambda _: None)

    def wait_for_the_network(_: object) -> None:
        assert finish.wait(WAIT)

    monkeypatch.setattr(worker, hook, wait_for_the_network)
    world.create()
    with Working(world, worker):
        until(lambda: caplog.text.count(f"{hook} has blocked the worker for") >= 3)
        finish.set()
    assert "in wait_for_the_network" in caplog.text


def test_a_hook_that_has_returned_is_not_warned_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "HOOK_WARNING", 0.02)
    hooks = shutdown.Hooks()
    with hooks.watched():
        hooks.call("on_idle", lambda: None)
        hooks.call("on_task_end", lambda: until(lambda: "on_task_end" in caplog.text))
    assert "on_idle" not in caplog.text


def test_no_thread_looks_at_the_hooks_of_a_worker_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "HOOK_WARNING", 0.02)
    of_others = set(threading.enumerate())
    with shutdown.Hooks().watched():
        (watching,) = set(threading.enumerate()) - of_others
    watching.join(WAIT)
    assert not watching.is_alive()


def test_a_signal_interrupts_a_hook_only_once_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "HOOK_PATIENCE", 0.0)
    hooks = shutdown.Hooks()

    def hook() -> None:
        with pytest.raises(shutdown.HookInterrupted, match="SIGTERM"):
            hooks.interrupt(signal.SIGTERM, None)
        hooks.interrupt(signal.SIGTERM, None)

    hooks.interrupt(signal.SIGTERM, None)
    hooks.call("on_idle", hook)
    hooks.interrupt(signal.SIGTERM, None)


@pytest.fixture
def no_alarm() -> Iterator[None]:
    """Suspend the alarm of pytest-timeout during the test."""
    before = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.usefixtures("no_alarm")
def test_an_alarm_of_a_hook_itself_is_kept_when_a_signal_comes() -> None:
    hooks, rung = shutdown.Hooks(), threading.Event()

    def ring(*_: object) -> None:
        rung.set()

    def hook() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        hooks.interrupt(signal.SIGTERM, None)
        assert rung.wait(WAIT)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        hooks.call("on_idle", hook)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_alarm")
def test_a_hook_that_returns_in_time_leaves_no_alarm_behind() -> None:
    hooks, before = shutdown.Hooks(), signal.getsignal(signal.SIGALRM)
    hooks.call("on_idle", lambda: hooks.interrupt(signal.SIGTERM, None))
    assert not any(signal.getitimer(signal.ITIMER_REAL))
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.usefixtures("no_alarm")
def test_a_hook_that_begins_after_the_signal_is_interrupted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `on_task_end` of a run that ends during the shutdown."""
    monkeypatch.setattr(shutdown, "HOOK_PATIENCE", 0.05)
    hooks, before = shutdown.Hooks(), signal.getsignal(signal.SIGALRM)
    hooks.interrupt(signal.SIGTERM, None)
    with pytest.raises(shutdown.HookInterrupted, match="SIGTERM"):
        hooks.call("on_idle", lambda: threading.Event().wait(WAIT))
    assert signal.getsignal(signal.SIGALRM) is before


PROGRAM_THAT_ENDS = """
    import logging, sys, threading, time
    from taskqueue_client import Credentials
    from taskqueue_client.worker import WorkerLoop

    class Worker(WorkerLoop):
        def run_task(self, task):
            print(task.work_directory, flush=True)
            task.canceled.wait()
            task.canceled.check()

    root_url, token = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    worker = Worker(
        task_queue_id="test-provisioner/test-worker", worker_group="group", worker_id="worker",
        root_url=root_url, credentials=Credentials("local", token),
    )
    threading.Thread(target=worker.serve).start()
    if sys.stdin.readline() == "drain\\n":
        worker.shutdown(within=3600)
"""


@pytest.mark.parametrize("line", ["\n", "drain\n"])
def test_a_worker_in_a_thread_of_a_program_that_ends_reports_its_runs(world: World, line: str) -> None:
    """Also if it is already shutting down, and would let its runs finish."""
    task_id = world.create()
    script = textwrap.dedent(PROGRAM_THAT_ENDS)
    with subprocess.Popen(
        [sys.executable, "-c", script, world.local.root_url, world.local.access_token],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        until(lambda: world.status(task_id).state == "running")
        output, _ = process.communicate(line, timeout=WAIT)
    assert "Traceback" not in output
    assert "the program ends" in output
    assert process.returncode == 0
    assert world.run(task_id).reason_resolved == "worker-shutdown"
    assert world.queue.list_workers(TASK_QUEUE_ID).workers
