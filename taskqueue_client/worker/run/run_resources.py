"""The resources of a run: log, work directory, processes, clients, declared artifacts, proxies."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from taskqueue_client._arguments import check_kind
from taskqueue_client._client_base import with_attributes
from taskqueue_client._protocol.api_responses import MAX_RESPONSE, Response
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.asynchronous import AsyncTransport, own_transport
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock
from taskqueue_client.models._base import decoded
from taskqueue_client.worker.claims.claimed_run import C, ClaimedRun
from taskqueue_client.worker.commands.command import CommandContext
from taskqueue_client.worker.commands.environment import CommandEnvironment, protect_process
from taskqueue_client.worker.commands.masking import Secrets
from taskqueue_client.worker.commands.run_processes import Guardian, RunProcesses
from taskqueue_client.worker.commands.task_log import KEPT_IN_MEMORY, TaskLog
from taskqueue_client.worker.commands.work_directory import WorkDirectories
from taskqueue_client.worker.config import WorkerConfig
from taskqueue_client.worker.outcomes import Canceled, InternalError
from taskqueue_client.worker.payload import PayloadSchema
from taskqueue_client.worker.threads import current_loop
from taskqueue_client.worker.tracing import Tracing
from taskqueue_client.worker.worker_log import log

from .declared_artifacts import DeclaredArtifacts
from .log_checkpoints import CompressedLog

if TYPE_CHECKING:
    from taskqueue_client.artifacts.storage import Storage
    from taskqueue_client.worker.features.live_log import LiveLogs
    from taskqueue_client.worker.features.proxy import TaskProxy

    from .task_run import TaskRun


class HandlerQueue(AsyncQueue):
    """The asynchronous client of handlers, which can be used after `close` as well.

    Attributes:
        loop: The event loop of coroutine handlers, in which the runs of a worker share connections; None:
            the handler is a plain function.
        is_shared: Whether other runs use the connections, so that `close` leaves them open.
    """

    loop: asyncio.AbstractEventLoop | None = None
    is_shared = True

    async def close(self) -> None:
        """Close the connections, unless other runs use them; a later call opens new ones."""
        if not self.is_shared:
            await super().close()

    async def close_connections(self) -> None:
        """Close the connections of all runs when the worker ends."""
        await super().close()

    def beside(self) -> HandlerQueue:
        """Return a copy with separate connections, which are closed with the event loop that uses them."""
        other = with_attributes(HandlerQueue, self)
        other.is_shared = False
        other._storages = {}  # noqa: SLF001 - an object of this class
        other._transport = _LoopTransport(self._network, other._storages)  # noqa: SLF001 - as above
        return other


class _LoopTransport:
    """An `AsyncTransport` for several event loops. Each loop has its own connections, closed when it ends.

    Once a loop has ended, its connections cannot be closed any more, and stay until garbage collection.
    """

    def __init__(self, network: NetworkSettings, storages: Mapping[Any, Storage]) -> None:
        self._network = network
        self._storages = storages
        self._opened: dict[asyncio.AbstractEventLoop, tuple[AsyncTransport, AsyncGenerator[None]]] = {}

    async def request(self, request: Request, timeouts: Timeouts, max_body: int = MAX_RESPONSE) -> Response:
        """See `AsyncTransport.request`."""
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            self._opened[loop] = own_transport(self._network), self._closed_with(loop)
            await anext(self._opened[loop][1])
        return await self._opened[loop][0].request(request, timeouts, max_body)

    async def _closed_with(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
        """Close a loop's connections when `asyncio.run` closes this, as all generators that have begun."""
        try:
            yield
        finally:
            connections, _ = self._opened.pop(loop)
            for storage in self._storages.values():
                await storage.aclose()
            await connections.aclose()

    async def aclose(self) -> None:
        """See `AsyncTransport.aclose`."""
        if opened := self._opened.get(asyncio.get_running_loop()):
            await opened[1].aclose()


@dataclass(frozen=True, slots=True)
class SharedResources:
    """The resources that the runs of a worker share.

    Attributes:
        directories: Creates the directories of runs; their logs are there, too.
        guardian: Ends commands if this process is killed.
        queue: A client without credentials; each run has a copy with its own credentials.
        async_queue: The same for asynchronous code.
        environment: The variables of the worker that commands get.
        secrets: Texts to mask in the logs of all runs.
        live_logs: Serves logs while they grow; None: the worker does not.
        schema: The schema of payloads; None: a payload may be anything that is at most 100 levels deep.
        run_time_limit: The worker's hook of this name.
        download_attempts: Attempts of a download by a handler. The default takes two minutes: a restart of
            the Queue or of storage must not end the run as `internal-error`, which is not retried.
    """

    config: WorkerConfig
    directories: WorkDirectories
    guardian: Guardian
    queue: Queue
    async_queue: HandlerQueue
    clock: Clock
    environment: CommandEnvironment
    secrets: Secrets
    live_logs: LiveLogs | None
    tracing: Tracing
    schema: PayloadSchema | None
    run_time_limit: Callable[[TaskRun], float | str | None]
    download_attempts: int = 12


class RunResources:
    """The resources of one run. Most are created at their first use, from any thread.

    A child that a handler forks may only use resources that exist: the worker would not see what it adds.

    Attributes:
        attempt: The number of the present call of the handler: 1 for the first one.
        compressed_log: The log as gzip, from its first checkpoint on.
        is_hurried: Processes are killed without waiting for their end, as the worker is about to end.
        processes: What finds and ends the processes of commands; None before the first one, and when all
            have ended.
        signaled: See `CommandContext`.
    """

    def __init__(self, run: ClaimedRun, shared: SharedResources) -> None:
        self.run = run
        self.shared, self.tracing = shared, shared.tracing
        self._process = os.getpid()
        self._canceled: Canceled | None = None
        self._artifacts: DeclaredArtifacts | None = None
        self._log: TaskLog | None = None
        self.compressed_log: CompressedLog | None = None
        self._live_url: str | None = None
        self._work_directory: Path | None = None
        self.attempt = 1
        self.is_hurried = False
        self.processes: RunProcesses | None = None
        self.signaled: list[str] = []
        self._proxies: list[TaskProxy] = []
        self._command_proxy: TaskProxy | None = None
        self._has_ended = False
        self._queue: Queue | None = None
        self._async_queues: dict[asyncio.AbstractEventLoop | None, AsyncQueue] = {}
        self._lock = threading.RLock()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a TaskRun cannot be pickled or copied: pass what another process needs, such as task.payload"
        )

    def _check_process(self) -> None:
        """Refuse to a forked child what only the worker's own process can do."""
        if os.getpid() != self._process:
            raise InternalError(
                "a forked child cannot declare artifacts, run commands, or make a proxy or work directory "
                f"for run {self.run}; let the handler do it, or upload with task.queue"
            )

    @property
    def _own_lock(self) -> AbstractContextManager[object]:
        """The lock; in a forked child no lock, as a thread of the parent may have held it at the fork."""
        return self._lock if os.getpid() == self._process else nullcontext()

    def check_attempt(self, attempt: int) -> None:
        """Raise InternalError for code that is left from an earlier call of the handler."""
        if attempt != self.attempt:
            raise InternalError(
                f"attempt {attempt} of run {self.run} has ended: only attempt {self.attempt} can use the "
                "work directory, declare artifacts, and start commands and proxies now"
            )

    @property
    def artifacts(self) -> DeclaredArtifacts:
        """The artifacts that its handler has declared."""
        self._check_process()
        if (found := self._artifacts) is not None:  # the next attempt may begin at any time
            return found
        with self._lock:
            if self._artifacts is None:
                self._artifacts = DeclaredArtifacts(self.run, self.shared, self.attempt, self.log)
            return self._artifacts

    @property
    def canceled(self) -> Canceled:
        """Set when its handler should stop."""
        if self._canceled is not None:  # without the lock, which is held while a proxy starts: loops use this
            return self._canceled
        with self._own_lock:
            if self._canceled is None:
                self._canceled = Canceled()
            return self._canceled

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of the task."""
        return tuple(self.definition()["scopes"])

    def definition(self) -> dict[str, Any]:
        """Return the task definition, decoded for each caller: keeping it would take memory for each run."""
        definition: dict[str, Any] = decoded(self.run.claim.task_json)
        return definition

    @property
    def log(self) -> TaskLog:
        """The task's log, which begins with the run and the worker."""
        if self._log is not None:  # a forked child may never get the lock
            return self._log
        with self._lock:
            if self._log is None:
                directories = self.shared.directories
                self._log = TaskLog(
                    directories.path / f"{self._name}.log",
                    self.shared.clock,
                    self.shared.secrets,
                    kept_in_memory=KEPT_IN_MEMORY if self.shared.live_logs is None else 0,
                    before_file=directories.restore,
                )
                self.run.watch_credentials(self._log.secrets.add_credentials)
                config, queue = self.shared.config, self.run.claim.status.task_queue_id
                self._log.say(
                    f"run {self.run.run_id} of task {self.run.task_id}, "
                    f"on worker {config.worker_group}/{config.worker_id} of {queue}"
                )
            return self._log

    def serve_log(self) -> str | None:
        """Serve the log over HTTP, if the worker serves logs; return its URL, else None."""
        if self.shared.live_logs is not None:
            self._live_url = self.shared.live_logs.add(self.log.path)
        return self._live_url

    def compress_log(self) -> CompressedLog:
        """Return the log as gzip, which is made at the first call, and grows with the log."""
        self.compressed_log = self.compressed_log or CompressedLog(self.log)
        return self.compressed_log

    @property
    def queue(self) -> Queue:
        """A client with the scopes of the task."""
        with self._own_lock:
            if self._queue is None:
                self._queue = self._client(self.shared.queue)
            return self._queue

    @property
    def async_queue(self) -> AsyncQueue:
        """The asynchronous client with the same scopes, for the running event loop.

        A loop that the handler has started, such as by `asyncio.run`, gets separate connections: if it opened
        connections that runs share, they would belong to that loop, and later runs could not use them.
        """
        loop, shared, clients = current_loop(), self.shared.async_queue, self._async_queues
        with self._own_lock:
            if loop not in clients:
                ended = [each for each in clients if each is not None and each.is_closed()]
                if loop is not None and loop is shared.loop:
                    clients[loop] = self._client(shared)
                else:  # clients get new credentials until the run ends, so that of an ended loop is reused
                    clients[loop] = clients.pop(ended[0]) if ended else self._client(shared.beside())
            return clients[loop]

    def _client(self, client: C) -> C:
        """Return a copy of a client that signs with the scopes of `_allowed`.

        In a forked child, its credentials are not replaced: no thread does it, and a thread of the parent
        may have held the lock for it at the fork.
        """
        if os.getpid() == self._process:
            return self.run.client(client, self._allowed)
        return client.with_credentials(self.run.credentials.restricted_to(self._allowed))

    @property
    def _allowed(self) -> tuple[str, ...]:
        """The scopes of the task, and the one for creating artifacts. Only the worker may resolve the run."""
        return (*self.scopes, f"queue:create-artifact:{self.run}")

    @property
    def work_directory(self) -> Path:
        """The run's directory.

        Raises:
            InternalError: The run has ended, and a thread that its handler has left behind asks for it; or a
                forked child asks for it, and the handler has not asked before.
        """
        if self._work_directory is not None:
            return self._work_directory
        self._check_process()
        with self._lock:
            if self._has_ended:
                raise InternalError(f"run {self.run} has ended, and its directory is gone")
            if self._work_directory is None:
                self._work_directory = self.shared.directories.make(self._name)
            return self._work_directory

    def _remove(self, path: Path | None) -> None:
        """Remove a directory. Without the lock: it may take minutes, and loops wait for the lock, too."""
        if path is not None:
            try:
                self.shared.directories.remove(path)
            except OSError as error:
                log.warning("cannot remove all of %s: %s", path, error)

    def proxy(self, attempt: int, *, plain: bool = False, host: str = "127.0.0.1") -> TaskProxy:
        """Start a proxy as `TaskRun.proxy` describes, until it is closed or the attempt ends."""
        from taskqueue_client.worker.features.proxy import TaskProxy  # noqa: PLC0415 - few runs need it

        self._check_process()
        check_kind("plain", plain, bool)
        self.check_attempt(attempt)
        run, url = self.run, self.shared.queue.root_url
        signing = (url, run.credentials, self._allowed, lambda: run.queue.now().timestamp())
        runs = self.shared.config.concurrency
        proxy = TaskProxy(*signing, plain=plain, host=host, run=run, runs=runs)
        with self._lock:
            is_late = self._has_ended or attempt != self.attempt
            if not is_late:
                for closed in [each for each in self._proxies if each.is_closed]:
                    self._proxies.remove(closed)
                    run.forget_watcher(closed.use_credentials)
                self._proxies.append(proxy)
        if is_late:  # so nobody else would close it
            proxy.close()
            self.check_attempt(attempt)
            raise InternalError(f"run {run} has ended, and its proxies are closed")
        if proxy.path:
            self.log.secrets.add(proxy.path[1:])  # without the slash, which programs encode or remove
        run.watch_credentials(proxy.use_credentials)
        return proxy

    def _proxy_variables(self, attempt: int) -> dict[str, str]:
        """Return the variables that lead a command to the proxy that all commands of the run share."""
        with self._lock:
            if self._command_proxy is None:
                self._command_proxy = self.proxy(attempt)
            return {"TASKCLUSTER_PROXY_URL": self._command_proxy.url}

    def command_context(self, attempt: int, *, proxy: bool = False) -> CommandContext:
        """Return what a command needs of the run."""
        self._check_process()
        check_kind("proxy", proxy, bool)
        self.check_attempt(attempt)
        protect_process()
        variables = {
            "TASK_ID": self.run.task_id,
            "RUN_ID": str(self.run.run_id),
            "TASK_GROUP_ID": self.run.claim.status.task_group_id,
            "TASKCLUSTER_ROOT_URL": self.shared.queue.root_url,
            "TASK_WORKDIR": str(self.work_directory),
            **(self._proxy_variables(attempt) if proxy else {}),
        }
        with self._lock:
            self.check_attempt(attempt)
            if self._work_directory is None:  # since then, the run has ended
                raise InternalError(f"the handler of run {self.run} has ended: no more commands can be run")
            if self.processes is None:
                mark = f"{self.shared.directories.path}/{self.run}/"
                self.processes = RunProcesses(mark, self.shared.guardian)
            directory, processes = self._work_directory, self.processes  # `start_over` replaces both
        return CommandContext(
            log=self.log,
            canceled=self.canceled,
            guardian=self.shared.guardian,
            processes=processes,
            work_directory=directory,
            environment=self.shared.environment,
            variables=variables,
            grace=self.shared.config.termination_grace,
            signaled=self.signaled,
            tracing=self.tracing,
        )

    def clean_up_at_once(self) -> None:
        """If commands have left no processes, note their end, and remove the work directory if it is empty.

        Called in the handler's thread: another one takes longer, and the event loop would wait for the disk.
        """
        processes = self.processes
        if os.getpid() != self._process:
            return
        with suppress(OSError):  # `end_commands` logs it later
            if processes is None or processes.end_at_once():
                with self._lock:
                    if self.processes is processes:
                        self.processes, path = None, self._work_directory
                        if path is not None and self.shared.directories.remove_empty(path):
                            self._work_directory = None

    @property
    def has_commands(self) -> bool:
        """Whether `end_commands` has something to do."""
        return self.processes is not None or self._proxies != []

    def end_commands(self) -> None:
        """End proxies, and processes that commands have left running; takes up to `termination_grace`."""
        with self._lock:
            processes, self.processes = self.processes, None
            proxies, self._proxies, self._command_proxy = self._proxies, [], None
        with ExitStack() as last_first:
            if processes is not None:
                last_first.callback(self._end_processes, processes)
            for each in proxies:
                last_first.callback(each.close)

    def _end_processes(self, processes: RunProcesses) -> None:
        try:
            if count := processes.end(self.shared.config.termination_grace, lambda: self.is_hurried):
                self.log.logger.warning("ended processes that commands had left running: %d", count)
        except OSError as error:
            log.warning("processes of run %s continue until this worker ends: %s", self.run, error)

    def start_over(self) -> None:
        """Discard what an attempt has left, before the next one; the log continues."""
        with self._lock:  # first, as code that the attempt has left behind may still be running
            artifacts, self._artifacts = self.artifacts, None
            path, self._work_directory = self._work_directory, None
            self.attempt += 1
        self.end_commands()
        self.signaled.clear()
        self._remove(artifacts.clear())
        self._remove(path)

    def close_at_once(self) -> bool:
        """Close, unless that takes time; return whether all is closed."""
        if self.has_commands or self.artifacts.directory is not None or self._work_directory is not None:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Remove all files, and end the processes and proxies of the run."""
        with self._lock:
            self._has_ended = True
            # Before `end_commands`: a thread that is still running could start commands that nobody ends.
            path, self._work_directory = self._work_directory, None
        directory = self.artifacts.clear()
        self.end_commands()
        self._remove(directory)
        self._remove(path)
        if self.shared.live_logs is not None and self._live_url is not None:
            self.shared.live_logs.remove(self._live_url)
        with self._lock:
            for each in (self._log, self.compressed_log):
                try:
                    if each is not None:
                        each.remove()
                except OSError as error:
                    log.warning("cannot remove a log of run %s: %s", self.run, error)

    @property
    def _name(self) -> str:
        """The name of the run's files, which differs for each attempt: those of earlier ones may be kept."""
        return f"{self.run.task_id}-{self.run.run_id}-{self.attempt}"
