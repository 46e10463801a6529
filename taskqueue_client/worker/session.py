"""One session of a worker: it starts all parts of the worker, waits for the shutdown, and ends the parts."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from taskqueue_client._client_base import known_time, share_time, with_attributes
from taskqueue_client._version import __version__
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials, expires_at
from taskqueue_client.errors import CallFailed, TaskQueueError, UnreadableResponse
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.cancellation import consume_cancellations
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ReclaimResult
from taskqueue_client.worker.claims.claiming import PROMPT, RESPONSE_TIMEOUT
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.commands.environment import CommandEnvironment
from taskqueue_client.worker.commands.masking import Secrets, masked_text
from taskqueue_client.worker.commands.work_directory import WorkDirectories
from taskqueue_client.worker.monitor import Monitor, Vitals, WorkerMetrics
from taskqueue_client.worker.run.handlers import Handlers
from taskqueue_client.worker.run.lifecycle import LiveRuns, RunContext, RunLifecycle, TaskEnd
from taskqueue_client.worker.run.run_resources import HandlerQueue, SharedResources
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.run.upload_retries import RetryClock
from taskqueue_client.worker.tracing import NO_TRACING, Tracing

from . import shutdown
from .commands.linux_processes import check_proc
from .commands.run_processes import Guardian
from .config import WorkerConfig, files_limit, files_needed, without_effect
from .outcomes import text_of
from .shutdown import Hooks
from .threads import ThreadsafeCalls
from .worker_log import counted, log
from .worker_runner import WorkerRunner

if TYPE_CHECKING:
    from .features.live_log import LiveLogs
    from .loop import WorkerLoop
    from .payload import PayloadSchema

EXPIRY_WARNING = 300.0
"""The worker warns so many seconds before its credentials expire. A runner replaces them earlier."""

_ALL_ADDRESSES = {"0.0.0.0", "::"}  # noqa: S104 - nothing listens here
"""They stand for all addresses of this machine, and are of no use in a URL for other machines."""


class Session:
    """A session, in the event loop that it is made in. Await `run` before the loop does anything else.

    The methods that are not coroutines may be called from any thread, before `run` and until it returns.
    """

    def __init__(
        self, worker: WorkerLoop, credentials: Credentials | None, schema: PayloadSchema | None
    ) -> None:
        self._worker = worker
        self._schema = schema
        config = worker.config
        self._calls = ThreadsafeCalls(asyncio.get_running_loop())
        self._credentials = credentials
        self._secrets = Secrets.of(credentials)
        self._retry_clock = RetryClock(worker.clock)
        self._runs = LiveRuns(self._check_finished, worker.clock)
        self._failure: TaskQueueError | SystemExit | KeyboardInterrupt | None = None
        self._finished = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._metrics = WorkerMetrics(config.identities, self._vitals)
        self._tracing = _tracing_of(config, worker.root_url)
        self._hooks = Hooks()
        self._errors = shutdown.RepeatedErrors(config.max_internal_errors)

    def shutdown(self, within: float | None = None) -> None:
        """Begin to shut down; called again, hurry."""
        self._calls.call(lambda: self._shutdown.request(within))

    def terminate(self, within: float | None) -> None:
        """Begin to shut down; called again, stop the runs earlier if `within` ends earlier."""
        self._calls.call(lambda: self._shutdown.terminate(within))

    def forget_calls(self) -> None:
        """Drop the calls of other methods that have had no effect yet: `run` has ended, or never began."""
        self._calls.forget()

    def hint_canceled(self, task_id: str) -> None:
        """See `WorkerLoop.hint_canceled`."""
        self._calls.call(lambda: self._keeper.hint_canceled(task_id))

    def use_credentials(self, credentials: Credentials) -> None:
        """Use other credentials for the worker's own calls."""
        self._secrets.add_credentials(credentials)
        self._calls.call(self._use_credentials, credentials)

    async def run(self, last: Hooks | None) -> None:
        """Work until the end of the shutdown. Raises what `WorkerLoop.run` does, and `SystemExit` of a hook.

        Afterwards, signals interrupt the hooks of `last`; if `last` is None, signals are not handled.
        """
        handled = shutdown.signals_handled(self._on_signal, self._hooks, last) if last else nullcontext()
        with handled, self._hooks.watched():
            async with AsyncExitStack() as stack:
                try:
                    await self._start(stack)
                except Exception as error:
                    report_error(self._worker.runner, error, self._secrets)
                    raise
                await self._shutdown.until(self._finished)
        was_refused = self._failure is not None and not self._shutdown.has_begun
        if self._worker.runner is not None and not (self._shutdown.was_asked or was_refused):
            self._worker.runner.request_shutdown()  # not if refused: another machine would be, too
        if self._failure is not None:
            raise self._failure
        await self._claiming
        log.info("the worker has ended")

    # Events of the keeper, in its thread

    def claimed(self, task_queue_id: str, runs: list[ClaimedRun]) -> None:
        """See `KeeperEvents`."""
        self._metrics.claim_calls.labels(task_queue_id, "responded").inc()
        for run in runs:
            self._metrics.claimed(run.claim)
        self._calls.call(self._begin if runs else self._on_idle, runs)

    def claim_failed(self, task_queue_id: str, error: CallFailed) -> None:
        """See `KeeperEvents`."""
        lost = error.attempted.outcome_unknown or isinstance(error, UnreadableResponse)
        self._metrics.claim_calls.labels(task_queue_id, "unknown" if lost else "failed").inc()

    def claiming_refused(self, error: CallFailed) -> None:
        """See `KeeperEvents`."""
        self._fail(error)

    def reclaim_began(self, late: float) -> None:
        """See `KeeperEvents`."""
        self._metrics.lateness.observe(late)

    def reclaim_ended(self, result: ReclaimResult) -> None:
        """See `KeeperEvents`."""
        self._metrics.reclaims.labels(result).inc()

    def _vitals(self) -> Vitals:
        """Return the worker's state; called from any thread."""
        now = self._worker.clock.monotonic()
        ends = [each.run.lease.ends for each in self._runs if each.run.has_claim]
        return Vitals(
            has_claimed=self._keeper.claiming.has_claimed,
            since_claim=self._keeper.claiming.seconds_without_response(),
            is_shutting_down=self._shutdown.has_begun,
            claimed=len(ends),
            lease_left=min(ends) - now if ends else None,
            stuck=sum(each.is_stuck for each in self._runs),
            slots=self._worker.config.concurrency,
            blocked=self._calls.blocked_for(now),
            credentials_left=self._credentials_left(),
            clock_offset=self._clock_offset(),
        )

    def _credentials_left(self) -> float | None:
        """Return for how many seconds the worker's own credentials are valid; None if that is unknown."""
        expires = expires_at(self._credentials)
        left = math.nan if expires is None else expires - known_time(self._queue)
        return None if math.isnan(left) else left

    def _clock_offset(self) -> float | None:
        """Return by how many seconds the Queue's clock is ahead; None if that is unknown."""
        offset = known_time(self._queue) - self._worker.clock.now()
        return None if math.isnan(offset) else float(round(offset))

    # Start and end

    async def _start(self, stack: AsyncExitStack) -> None:
        """Start all parts without yielding to the event loop: calls from other threads use any of them."""
        worker = self._worker
        if worker.signing_key is not None:
            worker.signing_key.check_hidden()
            worker.signing_key.mask(self._secrets)
        self._log_start()
        shared = self._enter_shared(stack)
        monitor = self._make_monitor(stack)  # before anything is claimed, as the port may be taken
        handlers = Handlers(
            worker.run_task, shared.async_queue, self._calls, capture_logging=worker.config.capture_logging
        )
        await stack.enter_async_context(handlers)
        uploads = await stack.enter_async_context(self._make_queue(None, self._retry_clock))
        self._start_keeper(stack)
        self._context = self._make_context(shared, handlers, uploads)
        if monitor is not None:
            monitor.start()
        self._watch()

    def _enter_shared(self, stack: AsyncExitStack) -> SharedResources:
        """Make the resources that all runs share; the stack closes them."""
        worker, config = self._worker, self._worker.config
        live_logs = self._serve_logs(stack)  # before anything is claimed, as the port may be taken
        storage, tracing, clock = config.artifact_storage, config.tracing, worker.clock
        queue = Queue(worker.root_url, clock=clock, artifact_storage=storage, tracing=tracing)
        self._queue = stack.enter_context(queue)
        directories = WorkDirectories(config.work_directory, keep=config.keep_work_directories)
        stack.push_async_callback(directories.close_in_time)
        return SharedResources(
            config=config,
            directories=directories,
            guardian=stack.enter_context(closing(Guardian(f"{directories.path}/"))),
            queue=queue,
            async_queue=with_attributes(HandlerQueue, self._make_queue(None, clock)),
            clock=clock,
            environment=CommandEnvironment(config.pass_environment),
            secrets=self._secrets,
            live_logs=live_logs,
            tracing=self._tracing,
            schema=self._schema,
            run_time_limit=self._run_time_limit,
        )

    def _run_time_limit(self, task: TaskRun) -> float | str | None:
        return self._hooks.call("run_time_limit", partial(self._worker.run_time_limit, task))

    def _serve_logs(self, stack: AsyncExitStack) -> LiveLogs | None:
        config = self._worker.config
        if not config.live_log:
            return None
        from .features.live_log import LiveLogs  # noqa: PLC0415 - few workers serve logs

        live_logs = LiveLogs(
            config.live_log_host, config.live_log_port, config.live_log_url, runs=config.concurrency
        )
        stack.callback(live_logs.close)
        log.info("serving the logs of runs at %s", live_logs.url)
        if config.live_log_url is None and config.live_log_host in _ALL_ADDRESSES:
            log.warning(
                "live.log leads to %s, which no other machine can reach: set live_log_url, such as "
                "http://NAME-OF-THIS-MACHINE:PORT",
                live_logs.url,
            )
        return live_logs

    def _make_monitor(self, stack: AsyncExitStack) -> Monitor | None:
        config = self._worker.config
        if config.metrics_port is None:
            return None
        return stack.enter_context(Monitor(self._metrics, config.metrics_host, config.metrics_port))

    def _start_keeper(self, stack: AsyncExitStack) -> None:
        worker = self._worker
        self._keeper = Keeper(
            partial(self._make_queue, self._credentials, worker.clock),
            worker.config,
            self,
            worker.clock,
            worker.task_source,
            self._tracing,
        )
        stack.push_async_callback(asyncio.to_thread, self._keeper.stop)
        self._shutdown = shutdown.Shutdown(
            worker.config, self._keeper, self._runs, worker.clock, self._retry_clock
        )
        self._shutdown.timed_out.add_done_callback(lambda _: self._finished.set())
        stack.push_async_callback(self._end_tasks)

    def _make_context(self, shared: SharedResources, handlers: Handlers, uploads: AsyncQueue) -> RunContext:
        return RunContext(
            shared=shared,
            keeper=self._keeper,
            queue=uploads,
            call_handler=handlers.call,
            calls=self._calls,
            metrics=self._metrics,
            retry_clock=self._retry_clock,
            told_to_shut_down=self._shutdown.is_asked,
            before_worker_shutdown=self._until_handed_over,
            ended=self._on_end_of_run,
            signing_key=self._worker.signing_key,
        )

    def _watch(self) -> None:
        """Watch, in the background, for the end of claiming and for reasons to shut down."""
        worker = self._worker
        self._claiming = asyncio.create_task(self._claiming_ended())
        self._claiming.add_done_callback(self._check_finished)
        self._expiry = self._in_background("warning of expiry", self._warn_of_expiry())
        self._in_background("watch for termination notices", self._watch_for_notice())
        if threading.current_thread() is not threading.main_thread():
            self._in_background("watch of the program", self._watch_program())
        if worker.config.max_idle is not None:
            self._in_background("max_idle", self._shut_down_when_idle(worker.config.max_idle))
        if worker.pulse is not None:
            hint, own = self._keeper.hint_canceled, worker.config.identities
            self._in_background("cancellation messages", consume_cancellations(worker.pulse, own, hint))

    async def _claiming_ended(self) -> None:
        """Wait until there are no more claim requests, and all claimed runs have begun.

        The keeper's thread passes claims to this loop in calls, which may be delayed. Without the second
        wait, the worker would end before it gets the last of them.
        """
        await self._keeper.claiming_ended()
        begun = asyncio.Event()
        self._calls.call(begun.set)
        await begun.wait()

    def _log_start(self) -> None:
        config = self._worker.config
        log.info(
            "worker %s/%s starts: taskqueue_client %s, root URL %s, task queue %s, concurrency %d, "
            "artifact storage %s",
            *(config.worker_group, config.worker_id, __version__, self._worker.root_url),
            *(", ".join(config.task_queue_ids), config.concurrency, config.artifact_storage),
        )
        for name, missing in without_effect(config):
            log.warning("the setting %s has no effect without %s", name, missing)
        if os.getpid() == 1:
            log.warning(
                "the worker is the first process of its container: processes that commands leave behind stay "
                "as zombies, until no more can be started; use `docker run --init`, or tini"
            )
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            log.warning(
                "commands and paths of files cannot have characters that %s lacks: set PYTHONUTF8=1, or a "
                "locale such as LC_ALL=C.UTF-8",
                encoding,
            )
        try:
            check_proc()
        except OSError as error:
            log.warning(
                "daemons that commands leave behind may outlive their run, as /proc does not show the "
                "processes of this PID namespace: %s",
                error,
            )
        limit, needed = files_limit(), files_needed(config.concurrency)
        if limit < needed:
            log.warning(
                "%s at a time may need %d file descriptors, and the limit is %d: raise it (`ulimit -n`, "
                "`LimitNOFILE=` of systemd), or set a lower concurrency",
                *(counted(config.concurrency, "run"), needed, limit),
            )

    def _make_queue(self, credentials: Credentials | None, clock: Clock) -> AsyncQueue:
        """Make another client. The clients of a worker share what they know of the service's time."""
        worker, config = self._worker, self._worker.config
        storage, tracing = config.artifact_storage, config.tracing
        queue = AsyncQueue(
            worker.root_url, credentials, clock=clock, artifact_storage=storage, tracing=tracing
        )
        share_time(self._queue, queue)
        return queue

    def _in_background(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._end_of_background)
        return task

    def _end_of_background(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a bug ended `%s`, the worker continues without it", task.get_name(), exc_info=error)

    def _use_credentials(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._keeper.use_credentials(credentials)
        self._expiry.cancel()
        self._expiry = self._in_background("warning of expiry", self._warn_of_expiry())
        log.info("the worker's own credentials were replaced: client %s", credentials.client_id)

    async def _warn_of_expiry(self) -> None:
        """Say that the worker's own credentials expire, in time to replace them."""
        credentials, sleep = self._credentials, self._worker.clock.sleep_async
        if credentials is None or expires_at(credentials) is None:
            return
        while (left := self._credentials_left()) is None:  # not by this machine's clock: it may be wrong
            await sleep(shutdown.FIRST_RESPONSE_INTERVAL)
        await sleep(max(left - EXPIRY_WARNING, 0))
        left = self._credentials_left() or 0.0  # less than expected if the machine was suspended
        if left > 0:
            log.warning(
                "the worker's own credentials expire in %.0f s (client %s): claim requests will then be "
                "refused",
                *(left, credentials.client_id),
            )
            await sleep(left)
        log.error("the worker's own credentials have expired (client %s)", credentials.client_id)

    async def _end_tasks(self) -> None:
        """End runs and background tasks, and wait: the consumer of messages closes its connection."""
        background = list(self._background)
        for task in background:
            task.cancel()
        await self._runs.end(self._shutdown.timed_out)
        ended: asyncio.Future[Any] = asyncio.gather(*background, return_exceptions=True)
        until: list[asyncio.Future[Any]] = [ended, self._shutdown.timed_out]
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)

    # Runs

    def _begin(self, runs: list[ClaimedRun]) -> None:
        for run in runs:
            lifecycle = RunLifecycle(run, self._context)
            if self._shutdown.has_begun:
                lifecycle.stop(shutdown.shutting_down())
            self._runs.begin(lifecycle)

    def _fail(self, error: TaskQueueError) -> None:
        """Note the error that ends the worker, and report it to the runner."""
        self._failure = self._failure or error
        report_error(self._worker.runner, error, self._secrets)

    def _on_end_of_run(self, end: TaskEnd, secrets: Secrets) -> None:
        self._call_hook("on_task_end", partial(self._worker.on_task_end, end))
        if end.outcome == ReasonResolved.INTERNAL_ERROR.value and end.error is not None:
            report_error(self._worker.runner, end.error, secrets, taskId=end.task_id, runId=end.run_id)
        if self._failure is None and (error := self._errors.too_many(end)) is not None:
            self._failure = error
            log.error("%s", masked_text(str(error), secrets))
            report_error(self._worker.runner, error, secrets)
            self._shut_down_soon(asked=False)

    def _check_finished(self, _: object = None) -> None:
        if self._claiming.done() and not self._runs.unresolved:
            self._finished.set()

    def _on_idle(self, _: list[ClaimedRun]) -> None:
        if not (self._runs.unresolved or self._shutdown.has_begun):
            self._call_hook("on_idle", partial(self._worker.on_idle, self._runs.idle_for()))

    def _call_hook(self, name: str, hook: Callable[[], object]) -> None:
        """Call a hook of the worker. If the hook calls `sys.exit`, the worker first ends its runs."""
        try:
            self._hooks.call(name, hook)
        except (SystemExit, KeyboardInterrupt) as error:
            log.warning("%s raised %s: shutting down", name, type(error).__name__)
            self._failure = self._failure or error
            self._shut_down_soon(asked=True)
        except BaseException:
            log.exception("%s failed", name)

    def _shut_down_soon(self, *, asked: bool) -> None:
        """Begin to shut down in the loop's next turn, when a run that has just ended is no longer counted."""
        if not self._shutdown.has_begun:
            asyncio.get_running_loop().call_soon(partial(self._shutdown.begin, asked=asked))

    async def _shut_down_when_idle(self, limit: float) -> None:
        # A claim request finds work within `PROMPT`; a second task queue is asked after twice as long.
        limit = max(limit, PROMPT if len(self._worker.config.task_queue_ids) == 1 else 3 * PROMPT)
        claiming, clock, most = self._keeper.claiming, self._worker.clock, limit + RESPONSE_TIMEOUT
        await shutdown.first_response(self._context.queue, claiming, clock)
        responded = clock.monotonic()
        # A request that is open after a failed one is waited for: its result tells whether there is work.
        while (idle := min(self._runs.idle_for(), clock.monotonic() - responded)) < (
            most if claiming.is_retrying else limit
        ):
            await clock.sleep_async(limit - idle if idle < limit else shutdown.FIRST_RESPONSE_INTERVAL)
        if not self._shutdown.has_begun:
            failure = claiming.failure
            self._shutdown.begin(asked=False)  # before logging, which may take seconds
            if failure is None:
                log.info("shutting down after %.1f s without work (max_idle)", idle)
            else:
                log.error("shutting down after %.1f s without a task (max_idle): %s", idle, failure)
                self._fail(failure)  # it is unknown whether there is work

    # Shutting down

    def _on_signal(self, number: signal.Signals) -> None:
        self._shutdown.on_signal(number)

    async def _until_handed_over(self) -> None:
        """Wait, so that a run that is given up is not claimed by another worker that shuts down, too."""
        if self._shutdown.has_begun:
            await asyncio.wait([self._claiming])
            await self._shutdown.until_handed_over()

    async def _watch_program(self) -> None:
        await shutdown.program_ended()
        log.warning("the program ends while the worker runs: shutting down; join the worker's thread")
        self._shutdown.begin(0.0)

    async def _watch_for_notice(self) -> None:
        left = await shutdown.termination_noticed(self._worker.termination_notice, self._worker.clock)
        self._shutdown.on_notice(left)


def report_error(
    runner: WorkerRunner | None, error: BaseException, secrets: Secrets, **extra: object
) -> None:
    """Have the runner report an error, if there is a runner."""
    if runner is not None:
        runner.report_error(type(error).__name__, masked_text(text_of(error), secrets), extra)


def _tracing_of(config: WorkerConfig, root_url: str) -> Tracing:
    if not config.tracing:
        return NO_TRACING
    from .run_spans import OpenTelemetryTracing  # noqa: PLC0415 - only if tracing is on

    return OpenTelemetryTracing(config.identities[0], root_url)
