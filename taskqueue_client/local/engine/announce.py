"""The messages of tasks and runs, made from their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local.messages import Message, RunKey, task_message

if TYPE_CHECKING:
    from taskqueue_client.local.engine.records import Run, Task


def defined(task: Task) -> Message:
    """A task exists; its status is shown as it was before the first run."""
    extract = task.extract()
    status: dict[str, Any] = {
        **task.status(),
        "retriesLeft": task.retries,
        "state": "unscheduled",
        "runs": [],
    }
    return task_message("task-defined", status, extract.routes, RunKey(), {"task": {"tags": extract.tags}})


def pending(task: Task, run: Run) -> Message:
    """A run waits for a worker."""
    extract = task.extract()
    contents = {"task": {"tags": extract.tags}, "runId": run.run_id}
    return task_message("task-pending", task.status(), extract.routes, RunKey(run.run_id), contents)


def running(task: Task, run: Run, taken_until: str) -> Message:
    """A worker has claimed a run; `taken_until` is in the database's form."""
    extract = task.extract()
    contents = {
        "runId": run.run_id,
        **_worker(run),
        "takenUntil": taken_until,
        "task": {"tags": extract.tags},
    }
    return task_message(
        "task-running", task.status(), extract.routes, RunKey(run.run_id, run.worker), contents
    )


def resolved(task: Task, run: Run) -> Message:
    """A run was completed, failed, or ended by an exception."""
    extract = task.extract()
    contents = {"runId": run.run_id, "task": {"tags": extract.tags}, **_worker(run)}
    key = RunKey(run.run_id, run.worker)
    return task_message(f"task-{run.state}", task.status(), extract.routes, key, contents)


def missed_deadline(task: Task, run: Run) -> Message:
    """A run was resolved at the deadline: the message does not name its worker."""
    extract = task.extract()
    contents = {"runId": run.run_id, "task": {"tags": extract.tags}}
    return task_message("task-exception", task.status(), extract.routes, RunKey(run.run_id), contents)


def canceled_with_group(task: Task, run: Run) -> Message:
    """A run was canceled with its group: the message has neither priority nor tags."""
    status = task.status()
    del status["priority"]
    contents: dict[str, Any] = {"runId": run.run_id, "task": {"tags": {}}, **_worker(run)}
    key = RunKey(run.run_id, run.worker)
    return task_message("task-exception", status, task.extract().routes, key, contents)


def priority_changed(task: Task, old_priority: str, new_priority: str) -> Message:
    """A task's priority was changed."""
    contents = {"oldPriority": old_priority, "newPriority": new_priority}
    return task_message("task-priority-changed", task.status(), task.extract().routes, RunKey(), contents)


def artifact_created(task: Task, run: Run, artifact: dict[str, Any]) -> Message:
    """A run has a new artifact that can be read."""
    contents = {"artifact": artifact, **_worker(run), "runId": run.run_id}
    key = RunKey(run.run_id, run.worker)
    return task_message("artifact-created", task.status(), task.extract().routes, key, contents)


def _worker(run: Run) -> dict[str, str]:
    worker = run.worker
    return {"workerGroup": worker[0], "workerId": worker[1]} if worker else {}
