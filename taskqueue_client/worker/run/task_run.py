"""`TaskRun`: the argument of a handler."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial, wraps
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from taskqueue_client._arguments import encoded
from taskqueue_client._protocol.conversation import Conversation, converse, converse_async
from taskqueue_client._protocol.threads_and_tasks import AsyncResult
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.downloading import DownloadResult
from taskqueue_client.artifacts.sources import Content
from taskqueue_client.client import Queue
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.commands.command import (
    Command,
    CommandOptions,
    CommandResult,
    run_command,
    run_command_async,
)
from taskqueue_client.worker.config import check_names
from taskqueue_client.worker.features.upstream import (
    DownloadOptions,
    UpstreamArtifact,
    UpstreamOptions,
    downloading_to,
    downloading_upstream,
    upstream_of_payload,
    upstream_tasks,
    with_outcomes_of_the_task,
)
from taskqueue_client.worker.outcomes import Canceled

from .declared_artifacts import ArtifactOptions, DeclaredArtifacts
from .run_resources import RunResources

P = ParamSpec("P")
T = TypeVar("T")


_AWAITED_TO_THE_END = {"upload_artifact_async"}
"""Methods whose calls must end before the handler does. A command need not: the worker ends it."""


class UnawaitedCalls:
    """Calls of asynchronous methods that have not begun, or not ended.

    A handler that forgets an `await` must not complete its task without the command or artifact.
    """

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[Coroutine[Any, Any, Any], str] = {}

    def note(self, name: str, method: Callable[[], AsyncResult[Any, Any, T]]) -> AsyncResult[Any, Any, T]:
        """Return the call of a method, which is noted until it begins, or ends."""

        async def begin() -> T:
            if name not in _AWAITED_TO_THE_END:
                del names[call]
                return await method()
            try:
                return await method()
            finally:
                del names[call]

        begin.__qualname__ = name  # in warnings about the call
        names, call = self._names, begin()
        names[call] = name
        return call

    def check(self, returned: object) -> None:
        """Raise a TypeError if a handler has not awaited a call, or `returned` a coroutine or generator."""
        is_awaitable = inspect.isawaitable(returned)
        if is_awaitable or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            if inspect.iscoroutine(returned):
                returned.close()  # or Python warns that it was never awaited
            advice = "declare run_task as `async def`" if is_awaitable else "run_task must not `yield`"
            raise TypeError(f"run_task returned a {type(returned).__name__} that was not run; {advice}")
        for call, name in list(self._names.items()):  # a copy, as another thread may end a call
            state = inspect.getcoroutinestate(call)
            if state == inspect.CORO_CREATED:
                call.close()  # or Python warns that it was never awaited
            if state != inspect.CORO_CLOSED:  # a call that was canceled before it began is closed, too
                plain = name.removesuffix("_async")
                advice = f"write `await task.{name}(…)`, or `task.{plain}(…)` if run_task is not `async def`"
                raise TypeError(f"{name} was called and not awaited; {advice}")


class TaskRun:
    """One run of a task: its definition, its clients, its log, its commands and its artifacts.

    Methods may be called from any thread. `queue`, `work_directory` and the log are made when they are
    first used, so that a run that waits costs little.

    Args:
        resources: The run's resources, which are removed after the run.
        calls: Notes the calls of asynchronous methods.
    """

    def __init__(self, resources: RunResources, calls: UnawaitedCalls) -> None:
        self._resources = resources
        self._attempt = resources.attempt
        self._calls = calls
        self._definition: dict[str, Any] | None = None

    @staticmethod
    def _noting_unawaited(
        method: Callable[Concatenate[TaskRun, P], AsyncResult[Any, Any, T]],
    ) -> Callable[Concatenate[TaskRun, P], AsyncResult[Any, Any, T]]:
        """Note which calls of a method are not awaited."""

        @wraps(method)
        def call(self: TaskRun, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[Any, Any, T]:
            return self._calls.note(method.__name__, partial(method, self, *args, **kwargs))

        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(call)  # for `create_autospec`
        return call

    @property
    def _artifacts(self) -> DeclaredArtifacts:
        """The artifacts that this call of the handler declares."""
        artifacts = self._resources.artifacts
        self._resources.check_attempt(self._attempt)  # afterwards: the next attempt may begin at any time
        return artifacts

    @property
    def _claim(self) -> TaskClaim:
        return self._resources.run.claim

    @property
    def task_id(self) -> str:
        """The task's identifier."""
        return self._claim.status.task_id

    @property
    def run_id(self) -> int:
        """The run's number: 0 is the first run of the task."""
        return self._claim.run_id

    @property
    def task_group_id(self) -> str:
        """The identifier of the task's group."""
        return self._claim.status.task_group_id

    @property
    def definition(self) -> dict[str, Any]:
        """The task definition with all defaults filled in; the handler's own copy."""
        if self._definition is None:
            self._definition = self._resources.definition()
        return self._definition

    @property
    def payload(self) -> dict[str, Any]:
        """The task's payload, which satisfies the worker's `payload_schema`."""
        payload: dict[str, Any] = self.definition["payload"]
        return payload

    @property
    def scopes(self) -> tuple[str, ...]:
        """The task's scopes."""
        return self._resources.scopes

    @property
    def deadline(self) -> datetime:
        """The time at which the Queue resolves the task if it is not resolved yet."""
        return self._claim.status.deadline

    @property
    def expires(self) -> datetime:
        """The time at which the Queue removes the task and its artifacts."""
        return self._claim.status.expires

    @property
    def credentials(self) -> Credentials:
        """The run's current credentials; each reclaim replaces them."""
        return self._resources.run.credentials

    @property
    def queue(self) -> Queue:
        """A client with the task's scopes, which may also create artifacts of this run."""
        return self._resources.queue

    @property
    def async_queue(self) -> AsyncQueue:
        """The asynchronous client with the same scopes, for the running event loop.

        The runs of an asynchronous handler share its connections, which `close` leaves open. In another
        loop, it has separate ones, which are closed at the end of `asyncio.run`.
        """
        return self._resources.async_queue

    @property
    def canceled(self) -> Canceled:
        """Set when the handler should stop: look at it, wait for it, or let `check` raise the reason."""
        return self._resources.canceled

    @property
    def log(self) -> logging.Logger:
        """A logger for the task's log, which becomes the artifact `public/logs/live_backing.log`."""
        return self._resources.log.logger

    @property
    def work_directory(self) -> Path:
        """The run's directory, removed after the run."""
        directory = self._resources.work_directory
        self._resources.check_attempt(self._attempt)  # afterwards: the next attempt may begin at any time
        return directory

    def register_secret(self, secret: str) -> None:
        """Mask a text, and each of its lines of 8 characters and more, in the task's log from now on.

        Only the text as it is given is found, not its form in base64 or in a URL.

        Raises:
            InvalidArgument: `secret` is not a str, or is empty or white space. The error does not show it.
        """
        self._resources.log.secrets.add(secret)

    def upload_artifact(
        self,
        name: str,
        source: Content | None = None,
        *,
        text: str | None = None,
        **options: Unpack[ArtifactOptions],
    ) -> None:
        """Declare an artifact, which is uploaded when the handler has ended, whatever the outcome.

        A run is completed only if all its artifacts are uploaded. A file that is missing, unreadable, not a
        regular file, changed during the upload or too large for storage makes the run `failed`, and so does a
        link that leads out of the work directory, or another artifact that the task has given this name. If
        storage cannot be reached for `upload_timeout`, the run ends as `resource-unavailable`; after another
        failure, as `internal-error`. An error artifact says why there is no content. To upload at once, use
        `queue`.

        Args:
            name: The artifact's name, such as `public/build.zip`. Declaring a name again replaces it.
            source: A path (also as a `str`), relative to the work directory; bytes; a file opened in binary
                mode, read now from its position; or an iterable of bytes, read now. A file that a path
                leads to is read when the handler has ended. It must be inside the work directory.
            text: The content instead of `source`, encoded as UTF-8. Bytes that are not UTF-8, which
                `os.fsdecode` and `run_command` turn into surrogates, are stored as they were.
            **options: `content_type`, `expires`, `storage`, `compress` and `allow_outside`: see
                `ArtifactOptions`.

        Raises:
            InvalidArgument: The name cannot be an artifact's, or is reserved (log, chain of trust); the
                source is a path that leads out of the work directory; or an option is not allowed.
            OSError: The content cannot be read now, or the disk is full.
            TaskFailed: The task has changed the worker's directory, so that content cannot be stored.
            InternalError: The handler, or this call of it, has ended: a thread that it has left behind
                declares the artifact.
        """
        content = _one_of(source, text)
        self._artifacts.declare(name, content, lambda: self.work_directory, options)

    @_noting_unawaited
    async def upload_artifact_async(
        self,
        name: str,
        source: Content | None = None,
        *,
        text: str | None = None,
        **options: Unpack[ArtifactOptions],
    ) -> None:
        """Declare an artifact as `upload_artifact` does, reading content without blocking the event loop.

        The source may be an asynchronous iterable, too.
        """
        content = _one_of(source, text)
        if isinstance(content, AsyncIterable):
            await self._artifacts.declare_async(name, content, options)
        else:
            await asyncio.to_thread(self.upload_artifact, name, content, **options)

    def upload_artifacts(
        self, prefix: str, directory: str | PathLike[str], **options: Unpack[ArtifactOptions]
    ) -> list[str]:
        """Declare all files of a directory as artifacts, as `upload_artifact` does for one.

        Directories that are symbolic links are not entered; the task's log names them. A file that is a link
        out of the work directory, or not a regular file, makes the run `failed`, not `internal-error`, and so
        does a directory that is unreadable or missing; the other files are uploaded. If `directory` itself is
        unreadable, missing or a file, the error artifact has the name `prefix`.

        Args:
            prefix: The beginning of the artifacts' names: with `public`, the file `dist/a/b.zip` of the
                directory `dist` becomes `public/a/b.zip`; with an empty text, `a/b.zip`.
            directory: The directory, relative to the work directory.
            **options: As for `upload_artifact`.

        Returns:
            The artifacts' names.

        Raises:
            InvalidArgument: The prefix or an option is not allowed, or the directory leads out of the work
                directory.
            TaskFailed: The name of a file cannot be that of an artifact; the other files are declared.
            OSError: A directory cannot be read for a reason that lies with the machine, such as too many
                open files.
        """
        return self._artifacts.declare_directory(prefix, directory, self.work_directory, options)

    def describe_environment(self, properties: Mapping[str, str]) -> None:
        """Say in the chain of trust in which environment the run takes place, if the run is signed.

        If the task has the tag `worker-implementation: docker-worker`, scriptworker compares the property
        `imageArtifactHash`, which is `sha256:` and the hash of the image's file in hex, with the artifact of
        the task that has built the image.

        Args:
            properties: Properties of `environment` by name. Those of earlier calls stay.

        Raises:
            InvalidArgument: A name or a value is not a str, or has lone surrogates.
            InternalError: The handler, or this call of it, has ended.
        """
        self._artifacts.describe_environment(properties)

    def download_artifact(
        self, task_id: str, name: str, **options: Unpack[DownloadOptions]
    ) -> DownloadResult:
        """Download and verify an artifact of any task with the scopes of this task.

        During an outage of the Queue or of storage, the download is retried for two minutes.

        Args:
            task_id: The task that has the artifact.
            name: The artifact's name.
            **options: `to`, relative to the work directory, `run_id`, `max_bytes`, `verified_by` and
                `allow_outside`: see `DownloadOptions`.

        Raises:
            InvalidArgument: An option is unknown, or `to` leads out of the work directory.
            Exception: As `Queue.download_artifact`.
        """
        queue = self.queue.with_options(attempts=self._resources.shared.download_attempts)
        return converse(queue, self._downloading(queue, task_id, name, options))

    @_noting_unawaited
    async def download_artifact_async(
        self, task_id: str, name: str, **options: Unpack[DownloadOptions]
    ) -> DownloadResult:
        """Download an artifact as `download_artifact` does, without blocking the event loop."""
        queue = self.async_queue.with_options(attempts=self._resources.shared.download_attempts)
        return await converse_async(queue, self._downloading(queue, task_id, name, options))

    def _downloading(
        self, queue: Queue | AsyncQueue, task_id: str, name: str, options: DownloadOptions
    ) -> Conversation[DownloadResult]:
        check_names(options, DownloadOptions.__optional_keys__)
        return downloading_to(queue, self.work_directory, task_id, name, self._resources.tracing, **options)

    def upstream_artifacts(
        self, upstream: Iterable[Mapping[str, Any]] | None = None, **options: Unpack[UpstreamOptions]
    ) -> list[UpstreamArtifact]:
        """Download and verify artifacts of other tasks: each to TASK_ID/NAME in a directory.

        During an outage of the Queue or of storage, downloads are retried for two minutes.

        Args:
            upstream: The tasks, each as `{"taskId": …, "paths": […]}`. Without `paths`, all artifacts of the
                task's latest run are downloaded; `*` in a path stands for any text. With `"optional": True`,
                artifacts that do not exist are skipped, and named in the task's log. `taskType` and
                `formats` are passed on. Default: `payload["upstreamArtifacts"]`, which has the same form, and
                may name only dependencies of the task and the decision task, whose id is that of the group.
            **options: `to`, relative to the work directory, `concurrency`, `verified_by` and
                `allow_outside`: see `UpstreamOptions`.

        Returns:
            The artifacts in order, each once: one that several entries name has the `formats` of all of them,
            and is optional if all say so.

        Raises:
            MalformedPayload: `payload["upstreamArtifacts"]` is missing, does not have this form, leads out of
                the directory or names another task, the task lacks a scope to read an artifact in it, or an
                artifact in it fails the verification that `verified_by` asks for.
            ResourceUnavailable: An artifact in `payload["upstreamArtifacts"]` does not exist, has expired, or
                has no content or a name that no file can have; the server of a reference does not send the
                content; or a pattern matches nothing.
            InvalidArgument: An argument is not allowed, or an artifact in `upstream` has a name that no file
                in the directory can have.
            ResourceNotFound: An artifact in `upstream` does not exist.
            ChainOfTrustError: An artifact in `upstream` fails the verification.
            Exception: As `Queue.download_artifact`.
        """
        queue = self.queue.with_options(attempts=self._resources.shared.download_attempts)
        return converse(queue, self._downloading_upstream(queue, upstream, options))

    @_noting_unawaited
    async def upstream_artifacts_async(
        self, upstream: Iterable[Mapping[str, Any]] | None = None, **options: Unpack[UpstreamOptions]
    ) -> list[UpstreamArtifact]:
        """Download artifacts as `upstream_artifacts` does, without blocking the event loop."""
        queue = self.async_queue.with_options(attempts=self._resources.shared.download_attempts)
        return await converse_async(queue, self._downloading_upstream(queue, upstream, options))

    def _downloading_upstream(
        self,
        queue: Queue | AsyncQueue,
        upstream: Iterable[Mapping[str, Any]] | None,
        options: UpstreamOptions,
    ) -> Conversation[list[UpstreamArtifact]]:
        check_names(options, UpstreamOptions.__optional_keys__)
        if upstream is None:
            allowed = {*self.definition["dependencies"], self.task_group_id}
            tasks = upstream_of_payload(self.payload, allowed)
        else:
            tasks = upstream_tasks(upstream)
        tracing = self._resources.tracing
        steps = downloading_upstream(queue, self.work_directory, tasks, self.log, tracing, **options)
        return with_outcomes_of_the_task(steps) if upstream is None else steps

    def proxy(self, *, plain: bool = False, host: str = "127.0.0.1") -> AbstractContextManager[str]:
        """Start a proxy on this machine through which programs call the deployment on behalf of the task.

        `with task.proxy() as url:` gives the value for `TASKCLUSTER_PROXY_URL`. The proxy signs with the
        run's current credentials: the scopes of the task, and creating artifacts of this run. It stops at
        the end of the block, or of this call of the handler. `run_command(…, proxy=True)` starts its own.

        Args:
            plain: Make the URL `http://HOST:PORT`, for programs that cannot keep a path in a root URL. Every
                process that reaches the address can then make calls on behalf of the task: all of the
                machine, and with the address of a bridge all containers on it, those of other tasks, too.
            host: The address to listen on, which is in the URL, too. For programs in a container, give that
                of the bridge of containers, such as `172.17.0.1`.

        Raises:
            InternalError: The handler, or this call of it, has ended: a thread that it has left behind starts
                the proxy; or the worker cannot start a thread.
            InvalidArgument: `plain` is not a bool, or `host` not an IPv4 address.
            OSError: `host` is not an address of this machine, or no file descriptor is free.
        """
        return self._resources.proxy(self._attempt, plain=plain, host=host)

    def run_command(
        self, command: Command, *, proxy: bool = False, **options: Unpack[CommandOptions]
    ) -> CommandResult:
        """Run a command in the work directory, and wait for its end.

        Its output goes to the task's log as it comes. Its environment is a small part of the worker's
        (see the setting `pass_environment`), `env`, and `TASK_ID`, `RUN_ID`, `TASK_GROUP_ID`,
        `TASK_WORKDIR` and `TASKCLUSTER_ROOT_URL`. Processes of its group and their children that it leaves
        behind are ended with it, all others at the end of the run.

        Args:
            command: A program and its arguments; with `shell=True`, a text for `/bin/sh`.
            proxy: Set `TASKCLUSTER_PROXY_URL`, through which the command calls the deployment on behalf of
                the task.
            **options: `env`, `pass_credentials`, `shell`, `cwd`, `input`, `capture`, `timeout`, `check`
                and `keep_children`: see `CommandOptions`.

        Raises:
            CommandFailed: The command did not exit with 0, and `check` is on. This and the next three errors
                are kinds of `TaskFailed`.
            CommandTimedOut: The command took longer than `timeout` seconds.
            CommandOutputTooLarge: The command printed more than `capture` can keep.
            CommandNotStarted: The program is missing or not executable, or `cwd` is not a directory.
            Outcome: The run is canceled, and the command was ended.
            InternalError: The command cannot be killed, the worker has no memory, disk space, processes or
                file descriptors left to start it, or no `/dev/null`, something else in this process waits
                for its children, or the handler, or this call of it, has ended.
            InvalidArgument: The command or an option is not valid, or `env` contains credentials.
        """
        context = self._resources.command_context(self._attempt, proxy=proxy)
        return run_command(command, context, **options)

    @_noting_unawaited
    async def run_command_async(
        self, command: Command, *, proxy: bool = False, **options: Unpack[CommandOptions]
    ) -> CommandResult:
        """Run a command as `run_command` does, without blocking the event loop."""
        context = self._resources.command_context(self._attempt, proxy=proxy)
        return await run_command_async(command, context, **options)

    def __repr__(self) -> str:
        return f"<TaskRun {self._resources.run}>"


def _one_of(source: Content | None, text: str | None) -> Content:
    if text is not None and source is None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] # says the caller
            raise InvalidArgument("text", text, "a str; pass other content as `source`")
        return encoded("text", text)
    if text is not None or source is None:
        finding = "missing" if text is None else "given together with `text`"
        raise InvalidArgument("source", source, "either source or text", finding)
    return source
