"""The queue restarts at each stage of a run: the run ends once, as its handler ended, with its artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue_client.local.faults import Delay
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.gate import gate_before_handlers
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, until
from tests.worker.run_outcomes import LOG, OUTCOMES, RestartedWorld, check
from tests.worker.worker_world import Working, artifact, artifact_names, worker_for

HOURS = 3600.0
"""Seconds of a delay that never ends by itself: the restart cuts it."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RestartedWorld]:
    world = RestartedWorld(tmp_path)
    yield world
    world.close()


def uploading_and(outcome: str) -> Callable[[TaskRun], object]:
    """Return a handler that declares an artifact, and has the given outcome."""

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", b"from the first run")
        OUTCOMES[outcome][0](task)

    return handler


def check_once(world: RestartedWorld, task_id: str, outcome: str) -> None:
    """Check that the run was resolved once, as its handler ended, and has all artifacts."""
    check(world, task_id, outcome)
    how = {"completed": "task-completed", "failed": "task-failed"}.get(OUTCOMES[outcome][1], "task-exception")
    assert world.resolved == {(task_id, 0, how)}
    assert artifact_names(world, task_id) == {*LOG, "public/x"}
    assert artifact(world, task_id, "public/x") == "from the first run"


def is_resolved(world: RestartedWorld, task_id: str) -> bool:
    return world.run(task_id).reason_resolved is not None


def has_artifact(world: RestartedWorld, task_id: str) -> bool:
    return bool(artifact_names(world, task_id))


def always(world: RestartedWorld, task_id: str) -> bool:
    del world, task_id
    return True


Stage = tuple[Delay, Callable[[RestartedWorld, str], bool]]

UPLOADING: dict[str, Stage] = {
    "an artifact is created, the response under way": (
        Delay(endpoint="queue.createArtifact", seconds=HOURS, after=True),
        has_artifact,
    ),
    "its content under way": (Delay(endpoint="storage.put", seconds=HOURS), always),
}
REPORTING: dict[str, Stage] = {
    "the report under way": (Delay(endpoint="queue.report*", seconds=HOURS), always),
    "reported, the response under way": (
        Delay(endpoint="queue.report*", seconds=HOURS, after=True),
        is_resolved,
    ),
}


def check_stage(world: RestartedWorld, outcome: str, stage: Stage) -> None:
    fault, is_reached = stage
    world.local.faults.add(fault)
    task_id = world.create()
    with Working(world, worker_for(world, uploading_and(outcome), max_tasks=1)) as working:
        world.until_struck()
        until(lambda: is_reached(world, task_id))
        world.restart()
        working.wait_for_end()
    check_once(world, task_id, outcome)


@pytest.mark.parametrize("stage", REPORTING)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_while_a_report_is_sent(world: RestartedWorld, outcome: str, stage: str) -> None:
    check_stage(world, outcome, REPORTING[stage])


@pytest.mark.parametrize("stage", UPLOADING)
@pytest.mark.parametrize("outcome", ["return", "TaskFailed", "InternalError", "IntermittentTask"])
def test_while_artifacts_go_up(world: RestartedWorld, outcome: str, stage: str) -> None:
    """These outcomes differ in the order of report and uploads, and in the next state of the task."""
    check_stage(world, outcome, UPLOADING[stage])


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_while_the_handler_runs(world: RestartedWorld, outcome: str) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        world.restart()
        uploading_and(outcome)(task)

    with Working(world, worker_for(world, handler, max_tasks=1)) as working:
        working.wait_for_end()
    check_once(world, task_id, outcome)


def test_while_the_claim_call_waits_for_work(world: RestartedWorld) -> None:
    with Working(world, worker_for(world, uploading_and("return"), max_tasks=1)) as working:
        until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)
        world.restart()
        task_id = world.create()
        working.wait_for_end()
    check_once(world, task_id, "return")


def test_while_the_response_of_the_claim_call_is_under_way(world: RestartedWorld) -> None:
    """Nobody works on this run: the task is retried when its claim has expired."""
    world.local.faults.add(Delay(endpoint="queue.claimWork", seconds=HOURS, after=True))
    task_id = world.create()
    runs: list[int] = []
    with Working(world, worker_for(world, lambda task: runs.append(task.run_id), max_tasks=1)) as working:
        until(lambda: world.status(task_id).state == "running")
        world.restart()
        world.local.clock.advance(seconds=1201)
        working.wait_for_end()
    assert runs == [1]
    assert [str(run.reason_resolved) for run in world.status(task_id).runs] == ["claim-expired", "completed"]
    assert world.resolved == {(task_id, 0, "task-exception"), (task_id, 1, "task-completed")}


def test_between_the_claim_and_the_handler(world: RestartedWorld) -> None:
    task_id = world.create()
    worker = worker_for(world, uploading_and("return"), max_tasks=1)
    with gate_before_handlers() as gate, Working(world, worker) as working:
        assert gate.reached.wait(WAIT)
        world.restart()
        gate.opened.set()
        working.wait_for_end()
    check_once(world, task_id, "return")
