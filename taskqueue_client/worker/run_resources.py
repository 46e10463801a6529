"""What belongs to one run and is given up after it: log, work directory, clients, declared artifacts."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials

from .cancelled import Cancelled
from .command import CommandContext
from .config import WorkerConfig
from .declared import ArtifactOptions, Content, Declared, declared
from .environment import command_environment, task_variables
from .guardian import Guardian
from .held_run import HeldRun
from .outcomes import InternalError
from .processes import kill_marked
from .task_log import TaskLog
from .work_directory import WorkDirectories

log = logging.getLogger("taskqueue_client.worker")


@dataclass(frozen=True, slots=True)
class SharedResources:
    """What the runs of a worker share.

    Attributes:
        config: How the worker is set up.
        directories: Where the logs and directories of runs are.
        root_url: The deployment.
        guardian: Ends commands if this process is killed.
        queue: Signs nothing; each run has a copy with its own credentials.
        async_queue: The same for asynchronous handlers.
        clock: Where time comes from.
    """

    config: WorkerConfig
    directories: WorkDirectories
    root_url: str
    guardian: Guardian
    queue: Queue
    async_queue: AsyncQueue
    clock: Clock


class RunResources:
    """What belongs to one run. Most of it is made when it is first asked for, from any thread.

    Args:
        held: The run.
        shared: What all runs share.

    Attributes:
        held: The run.
        cancelled: Set when its handler should stop.
    """

    def __init__(self, held: HeldRun, shared: SharedResources) -> None:
        self.held = held
        self.cancelled = Cancelled()
        self._shared = shared
        self._declared: dict[str, Declared] = {}
        self._log: TaskLog | None = None
        self._work_directory: Path | None = None
        self._tries = 1
        self._has_commands = False
        self._has_ended = False
        self._queue: Queue | None = None
        self._async_queue: AsyncQueue | None = None
        self._lock = threading.RLock()

    @property
    def key(self) -> tuple[str, int]:
        """Task id and run id."""
        return self.held.task_id, self.held.run_id

    @property
    def scopes(self) -> tuple[str, ...]:
        """What the task may do."""
        return tuple(self.held.claim.task["scopes"])

    @property
    def expires(self) -> str:
        """Until when artifacts are kept unless they say otherwise: as long as the task."""
        expires: str = self.held.claim.task["expires"]
        return expires

    @property
    def log(self) -> TaskLog:
        """The task's log, which begins by saying what this is about."""
        with self._lock:
            if self._log is None:
                path = self._shared.directories.path / f"{self._name}.log"
                self._log = TaskLog(path, self._shared.clock)
                self.held.credentials.watch(partial(_mask, self._log))
                config = self._shared.config
                self._log.say(
                    f"run {self.held.run_id} of task {self.held.task_id}, "
                    f"on worker {config.worker_group}/{config.worker_id} of {config.task_queue_id}"
                )
            return self._log

    @property
    def queue(self) -> Queue:
        """A client that acts on behalf of the task."""
        with self._lock:
            if self._queue is None:
                self._queue = self.held.credentials.client(self._shared.queue, self._allowed)
            return self._queue

    @property
    def async_queue(self) -> AsyncQueue:
        """The same for asynchronous handlers."""
        with self._lock:
            if self._async_queue is None:
                self._async_queue = self.held.credentials.client(self._shared.async_queue, self._allowed)
            return self._async_queue

    @property
    def _allowed(self) -> tuple[str, ...]:
        """What the task may do and making artifacts, but not resolving: that is the worker's own."""
        return (*self.scopes, f"queue:create-artifact:{self.held}")

    def declare(self, name: str, source: Content, options: ArtifactOptions) -> None:
        """Note an artifact that is to go up. See `TaskRun.upload_artifact`."""
        content = source if isinstance(source, bytes) else self.work_directory / source
        with self._lock:
            self._declared[name] = declared(name, content, options)

    def declared(self) -> list[Declared]:
        """The artifacts that were declared."""
        with self._lock:
            return list(self._declared.values())

    @property
    def work_directory(self) -> Path:
        """A directory of the run's own.

        Raises:
            InternalError: The run has ended: a thread that its handler has left behind asks for it.
        """
        with self._lock:
            if self._has_ended:
                message = f"run {self.held} has ended, and its directory is gone"
                raise InternalError(message)
            if self._work_directory is None:
                self._work_directory = self._shared.directories.make(self._name)
            return self._work_directory

    def _remove(self, path: Path | None) -> None:
        """Remove a directory. Without the lock: it may take minutes, and loops wait for the lock, too."""
        if path is not None:
            try:
                self._shared.directories.remove(path)
            except OSError as error:
                log.warning("cannot remove all of %s: %s", path, error)

    def command_context(self, env: Mapping[str, str] | None) -> CommandContext:
        """What the run gives to a command."""
        self._has_commands = True
        return CommandContext(
            log=self.log,
            cancelled=self.cancelled,
            guardian=self._shared.guardian,
            work_directory=self.work_directory,
            env=command_environment(os.environ, env or {}, self._variables),
            mark=self._variables,
            grace=self._shared.config.termination_grace,
        )

    def start_over(self) -> None:
        """Forget what a try has left, before the next one; its log goes on."""
        with self._lock:
            self._declared.clear()
            path, self._work_directory = self._work_directory, None
            self._tries += 1
        self._remove(path)

    def close_at_once(self) -> bool:
        """`close`, if that is a matter of microseconds: nothing is in the directory, or there is none."""
        if self._has_commands and self.cancelled.is_set():
            return False
        with self._lock:
            path = self._work_directory
            if path is not None and not self._shared.directories.remove_empty(path):
                return False
            self._work_directory = None
        self.close()
        return True

    def close(self) -> None:
        """Remove everything, and end what commands of a cancelled run have left."""
        if self._has_commands and self.cancelled.is_set():
            kill_marked(self._variables)
        with self._lock:
            self._has_ended = True
            path, self._work_directory = self._work_directory, None
        self._remove(path)
        with self._lock:
            if self._log is not None:
                self._log.remove()

    @property
    def _variables(self) -> dict[str, str]:
        group = self.held.claim.status.task_group_id
        return task_variables(*self.key, group, self._shared.root_url)

    @property
    def _name(self) -> str:
        """Of its files; each try has its own directory, as those of others may be kept."""
        return f"{self.held.task_id}-{self.held.run_id}-{self._tries}"


def _mask(task_log: TaskLog, credentials: Credentials) -> None:
    """Keep the run's own secrets out of its log, though a handler prints them.

    Called by the keeper, which must not wait for a lock of the run's.
    """
    task_log.register_secret(credentials.access_token)
    if credentials.certificate is not None:
        task_log.register_secret(credentials.certificate)
