"""Lost runs: the handler is stopped, and neither artifacts nor reports follow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import pytest

from taskqueue_client.local.faults import Delay
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.claimed_run import RECLAIM_BETWEEN, ClaimState
from taskqueue_client.worker.outcomes import ClaimLost, InternalError, Outcome, TaskFailed
from taskqueue_client.worker.run import handlers
from taskqueue_client.worker.run.reporting import Reporter
from taskqueue_client.worker.run.run_resources import RunResources
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import WAIT, World, until
from tests.worker.request_log import requests_noted
from tests.worker.running_commands import in_shell
from tests.worker.worker_world import Working, artifact_names, work, worker_for


def check_lost(world: World, task_id: str) -> None:
    (run,) = world.status(task_id).runs
    assert run.reason_resolved == "canceled"
    assert artifact_names(world, task_id) == set()


def is_running(pid: str) -> bool:
    """Return whether a process is alive, and not a zombie."""
    try:
        status = Path("/proc", pid, "stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def test_a_blocking_handler_is_canceled(world: World) -> None:
    task_id = world.create()
    started = threading.Event()
    told: list[Outcome | None] = []

    def handler(task: TaskRun) -> None:
        started.set()
        assert task.canceled.wait(WAIT)
        told.append(task.canceled.reason)
        task.upload_artifact("public/x", b"x")
        task.canceled.check()

    with Working(world, worker_for(world, handler, max_tasks=1)) as working:
        assert started.wait(WAIT)
        world.queue.cancel_task(task_id)
        working.wait_for_end()
    assert isinstance(told[0], ClaimLost)
    assert "canceled" in str(told[0])
    check_lost(world, task_id)


@pytest.mark.parametrize("swallows", [False, True])
def test_an_awaited_handler_is_cancelled(world: World, *, swallows: bool) -> None:
    task_id = world.create()
    started, cancelled = threading.Event(), threading.Event()

    async def handler(task: TaskRun) -> None:
        del task
        started.set()
        try:
            await asyncio.sleep(WAIT)
        except asyncio.CancelledError:
            cancelled.set()
            if not swallows:
                raise

    with Working(world, worker_for(world, awaited=handler, max_tasks=1)) as working:
        assert started.wait(WAIT)
        world.queue.cancel_task(task_id)
        working.wait_for_end()
    assert cancelled.is_set()
    check_lost(world, task_id)


def test_its_command_is_ended_with_all_that_it_has_started(world: World, tmp_path: Path) -> None:
    task_id = world.create()
    pids = tmp_path / "pids"
    word = in_shell(pids)
    script = f"trap '' TERM; (echo $BASHPID >> {word}; sleep 60) & echo $$ >> {word}; wait; sleep 60"

    def handler(task: TaskRun) -> None:
        task.run_command(["bash", "-c", script])

    with Working(world, worker_for(world, handler, max_tasks=1, termination_grace=0.2)) as working:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        world.queue.cancel_task(task_id)
        working.wait_for_end()
    assert not any(is_running(pid) for pid in pids.read_text().split())
    check_lost(world, task_id)


def test_the_slot_is_free_again(world: World) -> None:
    first = world.create()
    started = threading.Event()

    def handler(task: TaskRun) -> None:
        started.set()
        if task.task_id == first:
            assert task.canceled.wait(WAIT)

    with Working(world, worker_for(world, handler, max_tasks=2)) as working:
        assert started.wait(WAIT)
        second = world.create()
        world.queue.cancel_task(first)
        working.wait_for_end()
    check_lost(world, first)
    assert world.run(second).reason_resolved == "completed"


@pytest.mark.usefixtures("held_clock")
def test_uploads_are_given_up(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="storage.put", seconds=1))

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", b"x")

    with Working(world, worker_for(world, handler, max_tasks=1)) as working:
        world.until_struck()
        world.queue.cancel_task(task_id)
        working.wait_for_end()
    assert world.run(task_id).reason_resolved == "canceled"


@pytest.mark.usefixtures("held_clock")
@pytest.mark.parametrize("endpoint", ["queue.reportCompleted", "queue.reportException"])
def test_a_report_that_comes_too_late_changes_nothing(world: World, endpoint: str) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint=endpoint, seconds=0.1))

    def handler(task: TaskRun) -> None:
        del task
        if endpoint == "queue.reportException":
            message = "broken"
            raise InternalError(message)

    worker = worker_for(world, handler, max_tasks=1, cancellation_poll_interval=60)
    with Working(world, worker) as working:
        world.until_struck()
        world.queue.cancel_task(task_id)
        world.local.clock.release()
        working.wait_for_end()
    (run,) = world.status(task_id).runs
    assert run.reason_resolved == "canceled"


class Conflict(NamedTuple):
    """A way in which a worker learns that somebody else has resolved its run.

    Attributes:
        held_up: The delayed call during which somebody else resolves the run; None: during its handler.
        known: How many artifacts the queue knows by then.
        raises: How the handler ends.
        resolve: Resolves the run.
        reason: The reason with which the run is resolved.
        refused: The ends of the paths of requests that the queue refuses.
        hung_up: The requests of these that the worker may cancel before the queue has refused them.
    """

    held_up: Delay | None
    known: int
    raises: Outcome | None
    resolve: Callable[[World, str], object]
    reason: str
    refused: set[str]
    hung_up: AbstractSet[str] = frozenset()


def cancel(world: World, task_id: str) -> None:
    world.queue.cancel_task(task_id)


def report_completed(world: World, task_id: str) -> None:
    """Resolve the run so that the queue refuses further artifacts, which it takes for a canceled run."""
    world.queue.report_completed(task_id, 0)


NEXT_RECLAIM = 1200 * max(RECLAIM_BETWEEN)
"""Seconds from a claim to the latest moment of its first reclaim."""

ARTIFACTS = {"public%2Fx", "public%2Flogs%2Flive_backing.log", "public%2Flogs%2Flive.log"}
CONFLICTS = {
    "reclaimTask, by a handler": Conflict(None, 0, None, cancel, "canceled", {"reclaim"}),
    "reclaimTask, by uploads": Conflict(
        Delay(endpoint="storage.put", seconds=2 * NEXT_RECLAIM, times=2),
        3,
        None,
        cancel,
        "canceled",
        {"reclaim"},
    ),
    "createArtifact": Conflict(
        Delay(endpoint="queue.createArtifact", seconds=500, times=3),
        0,
        None,
        report_completed,
        "completed",
        {*ARTIFACTS, "failed"},
        ARTIFACTS,  # when the first is refused, the worker cancels the others
    ),
    "reportCompleted": Conflict(
        Delay(endpoint="queue.reportCompleted", seconds=500), 3, None, cancel, "canceled", {"completed"}
    ),
    "reportFailed": Conflict(
        Delay(endpoint="queue.reportFailed", seconds=500),
        3,
        TaskFailed("red"),
        cancel,
        "canceled",
        {"failed"},
    ),
    "reportException": Conflict(
        Delay(endpoint="queue.reportException", seconds=500),
        0,
        InternalError("oops"),
        cancel,
        "canceled",
        {"exception"},
    ),
}


@pytest.mark.parametrize("stage", CONFLICTS)
def test_a_conflict_ends_a_run_at_each_stage_and_nothing_follows(world: World, stage: str) -> None:
    conflict = CONFLICTS[stage]
    clock = world.local.clock
    first, second = world.create(), world.create()
    if conflict.held_up is not None:
        world.local.faults.add(conflict.held_up)
    started = threading.Event()

    def handler(task: TaskRun) -> None:
        started.set()
        if task.task_id == first:
            task.upload_artifact("public/x", b"x")
            if conflict.held_up is None:
                assert task.canceled.wait(WAIT)
            if conflict.raises is not None:
                raise conflict.raises

    worker = worker_for(world, handler, max_tasks=2, cancellation_poll_interval=3600)
    worker.clock = clock
    with requests_noted(world.local) as requests, Working(world, worker) as working:
        assert started.wait(WAIT)
        world.until_struck()
        until(lambda: len(artifact_names(world, first)) == conflict.known)
        conflict.resolve(world, first)
        clock.advance(
            NEXT_RECLAIM if conflict.held_up is None else min(conflict.held_up.seconds, NEXT_RECLAIM)
        )
        working.wait_for_end()
        (run,) = world.status(first).runs
        assert run.reason_resolved == conflict.reason
        assert len(artifact_names(world, first)) == conflict.known
        assert world.run(second).reason_resolved == "completed"
    ends = "/cancel", f"{first}/runs/0/completed"
    resolved = next(at for at, each in enumerate(requests) if each.path.endswith(ends) and each.status == 200)
    later = [each for each in requests[resolved + 1 :] if first in each.path and each.method != "GET"]
    refused = {each.path.rpartition("/")[2] for each in later}
    assert conflict.refused - conflict.hung_up <= refused <= conflict.refused
    assert not conflict.hung_up or refused & conflict.hung_up
    assert {each.status for each in later} <= ({409, 400} if conflict.hung_up else {409})


@pytest.mark.usefixtures("held_clock")
def test_a_claim_that_was_canceled_on_its_way_is_given_up(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=0.1, after=True))

    def handler(task: TaskRun) -> None:
        assert task.canceled.wait(WAIT)

    with Working(world, worker_for(world, handler, max_tasks=1)) as working:
        until(lambda: world.status(task_id).state == "running")
        world.queue.cancel_task(task_id)
        world.local.clock.release()
        working.wait_for_end()
    check_lost(world, task_id)


def test_a_hint_that_a_task_was_canceled_stops_its_run(world: World) -> None:
    task_id = world.create()
    started = threading.Event()

    def handler(task: TaskRun) -> None:
        started.set()
        assert task.canceled.wait(WAIT)

    worker = worker_for(world, handler, max_tasks=1, cancellation_poll_interval=3600)
    with Working(world, worker) as working:
        assert started.wait(WAIT)
        world.queue.cancel_task(task_id)
        worker.hint_canceled(task_id)
        working.wait_for_end()
    check_lost(world, task_id)


def test_an_awaited_handler_that_was_cancelled_before_its_first_step_gives_its_slot_back(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another handler blocks the event loop from before this one can begin until it should have stopped."""
    monkeypatch.setattr(handlers, "HANDLER_GRACE", 0.1)
    first = world.create()
    holding, let_go, has_begun = threading.Event(), threading.Event(), threading.Event()
    called: list[str] = []

    async def handler(task: TaskRun) -> None:
        called.append(task.task_id)
        if task.task_id == first:
            holding.set()
            assert let_go.wait(WAIT)
            assert await asyncio.to_thread(has_begun.wait, WAIT)
        has_begun.set()

    worker = worker_for(world, awaited=handler, concurrency=2, max_tasks=3, termination_grace=0.1)
    with Working(world, worker) as working:
        assert holding.wait(WAIT)
        second = world.create()
        until(lambda: world.status(second).state == "running")
        world.queue.cancel_task(second)
        until(lambda: f"{second}/0 is still running" in caplog.text)
        let_go.set()
        third = world.create()
        working.wait_for_end()
    assert called == [first, third]
    assert world.run(first).reason_resolved == "completed"


def test_nothing_is_uploaded_for_a_run_that_is_canceled_while_its_proxies_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_commands = RunResources.end_commands

    def cancel_and_end(resources: RunResources) -> None:
        world.queue.cancel_task(resources.run.task_id)
        assert resources.canceled.wait(WAIT)
        end_commands(resources)

    def handler(task: TaskRun) -> None:
        task.proxy()
        task.upload_artifact("public/x", b"x")

    monkeypatch.setattr(RunResources, "end_commands", cancel_and_end)
    task_id = world.create()
    with requests_noted(world.local) as requests:
        work(world, handler)
    assert world.run(task_id).reason_resolved == "canceled"
    assert not [each for each in requests if "/artifacts/" in each.path]


def test_a_run_that_cannot_be_resolved_because_of_a_bug_is_logged_and_the_worker_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    report = Reporter.report

    async def fail_once(_: Reporter, __: ReasonResolved) -> ClaimState:
        monkeypatch.setattr(Reporter, "report", report)
        raise ZeroDivisionError

    monkeypatch.setattr(Reporter, "report", fail_once)
    first, second = world.create(), world.create()
    work(world, lambda _: None, max_tasks=2)
    assert f"run {first}/0 cannot be resolved because of a bug, its claim will expire" in caplog.messages
    assert "ZeroDivisionError" in caplog.text
    assert [world.status(each).state for each in (first, second)] == ["running", "completed"]
