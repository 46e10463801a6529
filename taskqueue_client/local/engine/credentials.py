"""Temporary credentials that the queue hands out: for runs, uploads and downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import times

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core
    from taskqueue_client.local.engine.records import Run, Task

_UPLOAD_LIFE = 24 * times.HOUR
_DOWNLOAD_LIFE = times.HOUR


def run_credentials(core: Core, task: Task, run: Run, taken_until: int) -> dict[str, Any]:
    """What a worker reclaims and resolves its run with; they hold the task's scopes."""
    where = f"{task.task_id}/{run.run_id}"
    worker = f"{run.worker_group}/{run.worker_id}"
    client_id = f"task-client/{where}/on/{worker}/until/{times.seconds_text(taken_until)}"
    actions = ("reclaim-task", "resolve-task", "create-artifact")
    scopes = [f"queue:{action}:{where}" for action in actions] + task.extract().scopes
    return core.issue_credentials(client_id, scopes, core.now(), taken_until)


def upload_credentials(core: Core, task: Task, run: Run, name: str, expires: int) -> dict[str, Any]:
    """What an object artifact is uploaded with; `name` is the object's."""
    client_id = f"artifact-upload/{task.task_id}/{run.run_id}/on/{run.worker_group}/{run.worker_id}"
    now = core.now()
    scopes = [f"object:upload:{task.project_id}:{name}"]
    return core.issue_credentials(client_id, scopes, now, min(expires, now + _UPLOAD_LIFE))


def download_credentials(core: Core, key: str, name: str) -> dict[str, Any]:
    """What an object artifact is downloaded with.

    Args:
        core: The shared part.
        key: `<taskId>/<runId>/<artifact name>`.
        name: The object's name.
    """
    now = core.now()
    scopes = [f"object:download:{name}"]
    return core.issue_credentials(f"artifact-download/{key}", scopes, now, now + _DOWNLOAD_LIFE)
