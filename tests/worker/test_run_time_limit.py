"""The time limit of a run, by its task or its worker, and how the run ends after it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import pytest

from taskqueue_client.worker.config import TimeoutOutcome
from taskqueue_client.worker.loop import WorkerLoop
from taskqueue_client.worker.outcomes import IntermittentTask, MalformedPayload
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import WAIT, World
from tests.worker.run_outcomes import reasons
from tests.worker.worker_world import log_of, serve_one


class Limited(WorkerLoop):
    """Waits until it is stopped, or for as long as the payload says."""

    def run_time_limit(self, task: TaskRun) -> float | None:
        if task.payload.get("malformed"):
            message = "payload.maxRunTime: not a number of seconds"
            raise MalformedPayload(message)
        return cast("float | None", task.payload.get("maxRunTime"))

    def run_task(self, task: TaskRun) -> None:
        if task.payload.get("command"):
            task.run_command(["sleep", "60"])
        task.canceled.wait(task.payload.get("works", WAIT))


class Awaiting(Limited):
    """The same as a coroutine."""

    async def run_task(self, task: TaskRun) -> None:  # type: ignore[override] # mypy takes the base's for a plain method  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(task.payload.get("works", WAIT))


def ended(world: World, kind: type[WorkerLoop], payload: dict[str, Any], **settings: Any) -> tuple[str, str]:
    """Run a task; return how its run ended, and the log."""
    task_id = world.create(payload)
    serve_one(world, kind, termination_grace=1, **settings)
    return reasons(world, task_id)[0], log_of(world, task_id)


@pytest.mark.parametrize("kind", [Limited, Awaiting])
def test_a_run_that_takes_longer_than_its_task_allows_has_failed(
    world: World, kind: type[WorkerLoop]
) -> None:
    reason, log = ended(world, kind, {"maxRunTime": 0.1})
    assert reason == "failed"
    assert "the run took longer than run_time_limit, 0.1 s" in log


def test_a_command_is_ended_at_the_time_limit_of_its_run(world: World) -> None:
    assert ended(world, Limited, {"maxRunTime": 0.1, "command": True})[0] == "failed"


@pytest.mark.parametrize("kind", [Limited, Awaiting])
@pytest.mark.parametrize(
    "outcome", ["malformed-payload", "resource-unavailable", "intermittent-task", "internal-error"]
)
def test_the_worker_chooses_how_a_run_ends_that_takes_too_long(
    world: World, kind: type[WorkerLoop], outcome: TimeoutOutcome
) -> None:
    assert ended(world, kind, {"maxRunTime": 0.1}, max_run_time_outcome=outcome)[0] == outcome


def test_a_run_that_took_too_long_is_not_repeated_by_the_worker(world: World) -> None:
    settings: dict[str, Any] = {"max_run_time_outcome": "intermittent-task", "intermittent_attempts": 5}
    reason, log = ended(world, Limited, {"maxRunTime": 0.1}, **settings)
    assert reason == "intermittent-task"
    assert "attempts left" not in log
    assert IntermittentTask.__name__ in log


@pytest.mark.parametrize(("own", "most", "source"), [(0.1, 60, "run_time_limit"), (60, 0.1, "max_run_time")])
def test_the_shorter_of_both_limits_counts(world: World, own: float, most: float, source: str) -> None:
    reason, log = ended(world, Limited, {"maxRunTime": own}, max_run_time=most)
    assert reason == "failed"
    assert f"longer than {source}, 0.1 s" in log


def test_a_run_without_a_limit_takes_its_time(world: World) -> None:
    assert ended(world, Limited, {"works": 0.3})[0] == "completed"


def test_a_limit_in_the_payload_that_is_not_valid_is_a_malformed_payload(world: World) -> None:
    reason, log = ended(world, Limited, {"maxRunTime": -1})
    assert reason == "malformed-payload"
    assert "$.maxRunTime: -1 is not valid" in log


def test_the_hook_may_raise_an_outcome(world: World) -> None:
    assert ended(world, Limited, {"malformed": True})[0] == "malformed-payload"


class Negative(Limited):
    def run_time_limit(self, task: TaskRun) -> float | None:
        del task
        return -2


def test_a_limit_of_the_worker_that_is_not_valid_is_an_internal_error(world: World) -> None:
    reason, log = ended(world, Negative, {"maxRunTime": 1})
    assert reason == "internal-error"
    assert "run_time_limit: -2 is not valid" in log


class Exiting(WorkerLoop):
    def run_time_limit(self, task: TaskRun) -> float | None:
        sys.exit(f"no limit for {task.task_id}")

    def run_task(self, task: TaskRun) -> None:
        raise AssertionError(task)


class Interrupting(Exiting):
    def run_time_limit(self, task: TaskRun) -> float | None:
        raise KeyboardInterrupt(task.task_id)


@pytest.mark.parametrize(("kind", "name"), [(Exiting, "SystemExit"), (Interrupting, "KeyboardInterrupt")])
def test_a_hook_that_exits_ends_its_run_and_not_the_worker(
    world: World, kind: type[WorkerLoop], name: str
) -> None:
    reason, log = ended(world, kind, {})
    assert reason == "internal-error"
    assert f"run_time_limit raised {name}: " in log
