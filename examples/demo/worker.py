r"""The demo's worker: gets sources, from a directory or from another task, and runs a command on them.

taskqueue work examples.demo.worker:PipelineWorker \
        --task-queue-id proj/pipeline --worker-group here --worker-id one
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from taskqueue_client import ResourceUnavailable, TaskRun, WorkerLoop
from taskqueue_client.errors import ErrorArtifact, ResourceExpired, ResourceNotFound

PROJECTS = Path(__file__).parent
SOURCES = "public/sources.tar.gz"


PAYLOAD = {
    "type": "object",
    "required": ["sources", "command"],
    "additionalProperties": False,
    "properties": {
        "sources": {
            "description": "The name of a directory beside this module, or a task with the sources.",
            "oneOf": [
                {"required": ["directory"], "properties": {"directory": {"enum": ["project"]}}},
                {"required": ["task"], "properties": {"task": {"type": "string"}}},
            ],
        },
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "artifacts": {
            "description": "The file, relative to the work directory, of each artifact.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
    },
}


class PipelineWorker(WorkerLoop):
    """Runs `payload.command` where the sources are."""

    payload_schema = PAYLOAD

    def run_task(self, task: TaskRun) -> None:
        """Get the sources, declare the artifacts, and run the command."""
        self._fetch(task)
        for name, path in task.payload.get("artifacts", {}).items():
            task.upload_artifact(name, path, storage="object")  # which keeps hashes of what it stores
        task.run_command(task.payload["command"])

    @staticmethod
    def _fetch(task: TaskRun) -> None:
        sources = task.payload["sources"]
        archive = task.work_directory / "sources.tar.gz"
        if "directory" in sources:
            with tarfile.open(archive, "w:gz") as tar:
                tar.add(PROJECTS / sources["directory"], arcname=".", filter=_without_caches)
            task.upload_artifact(SOURCES, archive, storage="object")
        else:
            try:
                task.download_artifact(sources["task"], SOURCES, to=archive.name)
            except (ErrorArtifact, ResourceExpired, ResourceNotFound) as error:
                raise ResourceUnavailable(str(error)) from error
        task.run_command(["tar", "-xzf", archive.name])
        task.log.info("%s has %d bytes", SOURCES, archive.stat().st_size)


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member
