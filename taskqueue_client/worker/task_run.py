"""`TaskRun`: what a handler is given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack, cast

import msgspec

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.client import Queue
from taskqueue_client.credentials import Credentials
from taskqueue_client.models import TaskClaim

from .cancelled import Cancelled
from .command import Command, CommandOptions, CommandResult, run_command, run_command_async
from .declared import ArtifactOptions, Content
from .run_resources import RunResources


class TaskRun:
    """One run of a task, and all that is needed to do what it says.

    Methods may be called from any thread. `queue`, `work_directory` and the log are made when they are
    first used, so that a run that waits costs little.

    Args:
        resources: What belongs to the run, and is given up after it.
    """

    def __init__(self, resources: RunResources) -> None:
        self._resources = resources
        self._definition: dict[str, Any] | None = None

    @property
    def _claim(self) -> TaskClaim:
        return self._resources.held.claim

    @property
    def task_id(self) -> str:
        """The task."""
        return self._claim.status.task_id

    @property
    def run_id(self) -> int:
        """Which of its runs this is: 0 is the first."""
        return self._claim.run_id

    @property
    def task_group_id(self) -> str:
        """The group of tasks that it belongs to."""
        return self._claim.status.task_group_id

    @property
    def definition(self) -> dict[str, Any]:
        """The task as it was created, with everything that was left out filled in; the handler's own copy."""
        if self._definition is None:
            self._definition = cast(
                "dict[str, Any]", msgspec.to_builtins(self._claim.task)
            )  # copies any depth
        return self._definition

    @property
    def payload(self) -> dict[str, Any]:
        """What to do; satisfies the worker's `payload_schema`."""
        payload: dict[str, Any] = self.definition["payload"]
        return payload

    @property
    def scopes(self) -> tuple[str, ...]:
        """What the task may do."""
        return self._resources.scopes

    @property
    def deadline(self) -> datetime:
        """When the Queue ends the task, whatever its state."""
        return self._claim.status.deadline

    @property
    def expires(self) -> datetime:
        """When the task and everything that belongs to it is forgotten."""
        return self._claim.status.expires

    @property
    def credentials(self) -> Credentials:
        """The run's own credentials as they are now: they change with each renewal of the claim."""
        return self._resources.held.credentials.current

    @property
    def queue(self) -> Queue:
        """A client that acts on behalf of the task: with its scopes, and for artifacts of this run."""
        return self._resources.queue

    @property
    def async_queue(self) -> AsyncQueue:
        """The same for an asynchronous handler."""
        return self._resources.async_queue

    @property
    def cancelled(self) -> Cancelled:
        """Set when the handler should stop: look at it, wait for it, or let `check` raise the reason."""
        return self._resources.cancelled

    @property
    def log(self) -> logging.Logger:
        """Writes to the task's log, which becomes the artifact `public/logs/live_backing.log`."""
        return self._resources.log.logger

    @property
    def work_directory(self) -> Path:
        """A directory of the run's own, removed after it."""
        return self._resources.work_directory

    def register_secret(self, secret: str) -> None:
        """Mask a text wherever it would appear in the task's log."""
        self._resources.log.register_secret(secret)

    def upload_artifact(self, name: str, source: Content, **options: Unpack[ArtifactOptions]) -> None:
        """Declare an artifact: it goes up when the handler has ended, however it ends.

        A run is completed only if all of them are up. One whose file is missing or unreadable makes the
        run fail, and gets an artifact that says so; if storage cannot be reached, the run ends as
        `resource-unavailable`, and otherwise as `internal-error`. To upload at once, use `queue`.

        Args:
            name: Such as `public/build.zip`; declaring a name again replaces what was declared.
            source: A path, relative to the work directory, or bytes.
            **options: `content_type`, `expires`, `storage` and `compress` of `Queue.upload_artifact`;
                artifacts are kept as long as the task unless `expires` says otherwise.

        Raises:
            InvalidArgument: The name cannot be an artifact's, or is one of the log's.
        """
        self._resources.declare(name, source, options)

    def run_command(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        **options: Unpack[CommandOptions],
    ) -> CommandResult:
        """Run a command in the work directory, and wait for its end; `command.run_command` says how.

        Args:
            command: A program and its arguments; with `shell=True`, a text for `/bin/sh`.
            env: Added to the worker's environment, which is passed on without its secrets.
            **options: `shell`, `cwd`, `timeout` and `check` of `command.CommandOptions`.

        Raises:
            CommandFailed: It did not exit with 0, unless `check` is off; a `TaskFailed`, as the next two.
            CommandTimedOut: It took longer than `timeout` seconds.
            CommandNotStarted: There is no such program.
            Outcome: The run is cancelled, and the command was ended.
        """
        return run_command(command, self._resources.command_context(env), **options)

    async def run_command_async(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        **options: Unpack[CommandOptions],
    ) -> CommandResult:
        """`run_command`, awaited."""
        return await run_command_async(command, self._resources.command_context(env), **options)

    def __repr__(self) -> str:
        return f"<TaskRun {self._resources.held}>"
