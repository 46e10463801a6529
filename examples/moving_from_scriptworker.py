r"""A worker in place of scriptworker, for the unchanged script `checksum_script.py`.

taskqueue work examples.moving_from_scriptworker:ScriptWorker \
        --task-queue-id proj/scripts --worker-group here --worker-id one
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from taskqueue_client import (
    IntermittentTask,
    InternalError,
    MalformedPayload,
    ResourceUnavailable,
    TaskFailed,
    TaskRun,
    WorkerLoop,
    WorkerShutdown,
)
from taskqueue_client.scopes import satisfies
from taskqueue_client.worker import Outcome

SCRIPT = [sys.executable, str(Path(__file__).with_name("checksum_script.py"))]

OUTCOMES: dict[int | None, type[Outcome]] = {
    2: WorkerShutdown,
    3: MalformedPayload,
    4: ResourceUnavailable,
    5: InternalError,
    7: IntermittentTask,
    241: IntermittentTask,
    245: IntermittentTask,
}
"""The exit codes that scriptworker reports as exceptions, except 6 (superseded).

After all other codes except 0, and after signals, the task has failed.
"""

PAYLOAD = {
    "type": "object",
    "required": ["channel", "upstreamArtifacts"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "pattern": "^[a-z]+$"},
        "maxRunTime": {"type": "integer", "minimum": 1, "maximum": 3600},
        "upstreamArtifacts": {"type": "array", "items": {"required": ["paths"]}},
    },
}


class ScriptWorker(WorkerLoop):
    """Runs the script with files as scriptworker has them, and reports its exit code."""

    payload_schema = PAYLOAD

    def run_task(self, task: TaskRun) -> None:
        """Check scopes, download, run the script, and declare its artifacts."""
        check_scopes(task)
        task.upstream_artifacts(to="cot")
        config = write_files(task)
        timeout = task.payload.get("maxRunTime", 600)
        result = task.run_command([*SCRIPT, str(config)], check=False, timeout=timeout)
        task.upload_artifacts("", "artifacts")
        if result.exit_code != 0:
            outcome = OUTCOMES.get(result.exit_code, TaskFailed)
            raise outcome(result.end)


def check_scopes(task: TaskRun) -> None:
    """Require the scope of the channel, which `project:demo:*` includes."""
    required = f"project:demo:publish:{task.payload['channel']}"
    if not satisfies(task.scopes, required):
        found = ", ".join(task.scopes) or "none"
        message = f"task.scopes: {required} is missing; found: {found}"
        raise MalformedPayload(message)


def write_files(task: TaskRun) -> Path:
    """Write `task.json` and `config.json`, and return the path of the latter."""
    artifact_dir = task.work_directory / "artifacts"
    artifact_dir.mkdir()
    (task.work_directory / "task.json").write_text(json.dumps(task.definition))
    config = task.work_directory / "config.json"
    directories = {"work_dir": task.work_directory, "artifact_dir": artifact_dir}
    config.write_text(json.dumps({key: str(path) for key, path in directories.items()}))
    return config
