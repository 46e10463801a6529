r"""A worker whose tasks are commands: the payload says what to run, and which files to keep.

taskqueue work examples.command_worker:CommandWorker \
        --task-queue-id proj/linux --worker-group here --worker-id one
"""

from __future__ import annotations

from taskqueue_client import TaskRun, WorkerLoop

PAYLOAD = {
    "type": "object",
    "required": ["command"],
    "additionalProperties": False,
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "maxRunTime": {"type": "number", "exclusiveMinimum": 0},
        "artifacts": {
            "description": "The file, relative to the work directory, of each artifact.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
    },
}


class CommandWorker(WorkerLoop):
    """Runs `payload.command`; the task has failed unless it exits with 0."""

    payload_schema = PAYLOAD

    def run_task(self, task: TaskRun) -> None:
        """Declare the artifacts, which are uploaded even if the command fails, and run the command."""
        payload = task.payload
        for name, path in payload.get("artifacts", {}).items():
            task.upload_artifact(name, path)
        task.run_command(payload["command"], env=payload.get("env"), timeout=payload.get("maxRunTime", 3600))
