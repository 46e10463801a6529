"""Every way in which a handler can end, with the resulting states; and a queue that can be restarted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from taskqueue_client import slugid
from taskqueue_client.clock import MovableClock
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.messages import Message
from taskqueue_client.worker import outcomes
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import World
from tests.worker.worker_world import artifact_names


def raising(error: BaseException) -> Callable[[TaskRun], None]:
    def handler(task: TaskRun) -> None:
        del task
        raise error

    return handler


def failing_command(task: TaskRun) -> None:
    task.run_command(["false"])


OUTCOMES: dict[str, tuple[Callable[[TaskRun], object], str, list[str]]] = {
    "return": (lambda _: None, "completed", ["completed"]),
    "TaskFailed": (raising(outcomes.TaskFailed("red")), "failed", ["failed"]),
    "command": (failing_command, "failed", ["failed"]),
    "MalformedPayload": (raising(outcomes.MalformedPayload("bad")), "exception", ["malformed-payload"]),
    "ResourceUnavailable": (
        raising(outcomes.outcome_for("resources-unavailable")("gone")),
        "exception",
        ["resource-unavailable"],
    ),
    "InternalError": (raising(outcomes.InternalError("oops")), "exception", ["internal-error"]),
    "bug": (raising(ValueError("a bug")), "exception", ["internal-error"]),
    "IntermittentTask": (
        raising(outcomes.IntermittentTask("flaky")),
        "pending",
        ["intermittent-task", "None"],
    ),
    "WorkerShutdown": (raising(outcomes.WorkerShutdown("bye")), "pending", ["worker-shutdown", "None"]),
}

LOG = {"public/logs/live.log", "public/logs/live_backing.log"}


def reasons(world: World, task_id: str) -> list[str]:
    return [str(run.reason_resolved) for run in world.status(task_id).runs]


def check(world: World, task_id: str, outcome: str) -> None:
    """Check that a task has the state and the runs that follow from an outcome, and a log."""
    _, state, expected = OUTCOMES[outcome]
    assert world.status(task_id).state == state
    assert reasons(world, task_id) == expected
    assert artifact_names(world, task_id) >= LOG


class RestartedWorld(World):
    """A local queue on a file, and its messages about resolved runs.

    Attributes:
        resolved: The messages about resolved runs: task, run, and exchange (`task-…`).
    """

    def __init__(self, directory: Path) -> None:
        self._file = str(directory / "queue.sqlite")
        self._access_token = slugid() + slugid()
        self._clock = MovableClock()
        self.resolved: set[tuple[str, int, str]] = set()
        super().__init__(self._started(0))

    def restart(self) -> None:
        """Stop the queue, which cuts its requests, and start it again at the same URL, without faults."""
        port = int(self.local.root_url.rpartition(":")[2])
        self.local.stop()
        self.local = self._started(port)

    def close(self) -> None:
        super().close()
        self.local.stop()

    def _started(self, port: int) -> LocalQueue:
        local = LocalQueue(db=self._file, port=port, access_token=self._access_token, clock=self._clock)
        local.subscribe(self._note)
        local.start()
        return local

    def _note(self, message: Message) -> None:
        how = message.exchange.rpartition("/")[2]
        if how in {"task-completed", "task-failed", "task-exception"}:
            self.resolved.add((message.body["status"]["taskId"], message.body["runId"], how))
