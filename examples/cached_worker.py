r"""A worker with caches that tasks share, protected by scopes, and with a graceful shutdown.

    EXAMPLE_CACHES=/var/cache/worker taskqueue work examples.cached_worker:CachedWorker \
        --task-queue-id proj/linux --worker-group here --worker-id one

A task that wants the cache `cargo` needs the scope `example-worker:cache:cargo`: anybody who could write to
another project's cache could change what it builds. Workers of one machine can share the caches.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from taskqueue_client import MalformedPayload, TaskRun, WorkerLoop, missing_scopes

SCOPE = "example-worker:cache:"
NAME = "^[a-z0-9][a-z0-9-]{0,63}$"  # safe as the name of a directory


PAYLOAD = {
    "type": "object",
    "required": ["command"],
    "additionalProperties": False,
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "caches": {
            "description": "The directory, below the work directory, at which each cache appears.",
            "type": "object",
            "propertyNames": {"pattern": NAME},
            "additionalProperties": {"type": "string", "pattern": NAME},
        },
    },
}


def is_locked(file: IO[str]) -> bool:
    """Lock a file against other tasks and processes; return False if it is locked already."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class CachedWorker(WorkerLoop):
    """Runs `payload.command` with the directories of `payload.caches` in its work directory."""

    payload_schema = PAYLOAD

    caches = Path(os.environ.get("EXAMPLE_CACHES", "caches")).absolute()
    notice = Path("/run/termination-notice")
    """In this example, the file exists once the machine is about to be terminated."""

    def run_task(self, task: TaskRun) -> None:
        """Run the command with its caches, which are kept only if the task is completed."""
        wanted: Mapping[str, str] = task.payload.get("caches", {})
        lacking = missing_scopes(task.scopes, [SCOPE + name for name in wanted])
        if lacking:
            message = f"the task needs the scopes {', '.join(lacking)} for its caches"
            raise MalformedPayload(message)
        if len(set(wanted.values())) < len(wanted):
            message = "payload.caches: two caches have the same directory"
            raise MalformedPayload(message)
        with ExitStack() as mounts:
            for name, directory in sorted(wanted.items()):  # in one order, or two tasks may block each other
                mounts.enter_context(self._mounted(task, name, task.work_directory / directory))
            task.run_command(task.payload["command"])

    @contextmanager
    def _mounted(self, task: TaskRun, name: str, directory: Path) -> Generator[None]:
        """Link a cache into the work directory, for one task at a time; remove it unless the task succeeds.

        A task that is canceled, or stopped because the worker shuts down, does not succeed: `run_command`
        raises the reason when its processes have ended. In use, the cache has another name: if the worker is
        killed, no other task uses what this one has left.
        """
        cache, in_use = self.caches / name, self.caches / f"{name}.in-use"
        self.caches.mkdir(parents=True, exist_ok=True)
        with (self.caches / f"{name}.lock").open("w") as lock:  # unlocked when the process ends
            while not is_locked(lock):
                task.canceled.wait(1)
                task.canceled.check()
            shutil.rmtree(in_use, ignore_errors=True)
            if cache.exists():
                cache.rename(in_use)
            else:
                in_use.mkdir()
            directory.symlink_to(in_use, target_is_directory=True)
            task.log.info("cache %s is at %s", name, directory.name)
            try:
                yield
            except BaseException:
                task.log.info("cache %s is removed, as the task did not succeed", name)
                try:
                    shutil.rmtree(in_use)
                except OSError as error:  # the error of the task matters more
                    task.log.warning("cache %s cannot be removed: %s", name, error)
                raise
            with suppress(FileNotFoundError):  # the task has removed it
                in_use.rename(cache)

    def termination_notice(self) -> float | None:
        """Return the 120 s that many clouds give a spot machine, once there is a notice; None before."""
        return 120.0 if self.notice.exists() else None


if __name__ == "__main__":
    # Without the command line. On SIGTERM or Ctrl-C, the worker claims no more. Runs that have not ended a
    # minute later are stopped and reported as `worker-shutdown`, and the Queue retries them.
    CachedWorker(
        task_queue_id=os.environ["EXAMPLE_TASK_QUEUE"],
        worker_group="examples",
        worker_id=f"cached-{os.getpid()}",
        concurrency=2,
        graceful_shutdown_timeout=60,
    ).run()
