"""One run from its claim to its end, in the order that its outcome asks for; and all runs of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimState
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.commands.masking import Secrets, masked_text
from taskqueue_client.worker.commands.task_log import LogView, TaskLog
from taskqueue_client.worker.monitor import WorkerMetrics
from taskqueue_client.worker.outcomes import (
    LOST,
    UPLOADED_BEFORE,
    ClaimLost,
    LossReason,
    Outcome,
    TaskFailed,
    WorkerShutdown,
    resolution_of,
    summary_of,
    text_of,
    traceback_of,
)
from taskqueue_client.worker.threads import ThreadsafeCalls
from taskqueue_client.worker.worker_log import counted, log

from .artifact_uploads import ArtifactUploads
from .declared_artifacts import with_failed_upload
from .handlers import Attempts, HandlerCall
from .log_checkpoints import LogCheckpoints
from .reporting import Reporter
from .run_resources import RunResources, SharedResources
from .upload_retries import RetryBudget

if TYPE_CHECKING:
    from taskqueue_client.worker.features.chain_of_trust import SigningKey

HURRIED_GRACE = 5.0
"""Seconds for handlers and their commands to end after the second request to shut down: runs can still be
reported."""

_NOT_RETRIED = frozenset({ReasonResolved.FAILED, ReasonResolved.INTERNAL_ERROR})
"""How runs usually end when a signal has ended a command: the Queue does not retry them."""

SLOW_REMOVAL = 60.0
"""Seconds between warnings that the files of a run are still being removed."""

UPLOAD_WINDOW = 24 * 60.0
"""Seconds for uploads after the report of an exception: the Queue takes artifacts for 25 minutes."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a run ended.

    Attributes:
        task_id: The task.
        run_id: The run of the task.
        outcome: What was reported, such as `completed` or `internal-error`; or `lost`.
        error: What the handler raised, or the failure that counts instead; None if there was none.
        seconds: The time from the claim to the end, reports and uploads included.
    """

    task_id: str
    run_id: int
    outcome: str
    error: BaseException | None
    seconds: float


@dataclass(frozen=True, slots=True)
class RunContext:
    """The objects that all runs of a worker share.

    Attributes:
        queue: The client for uploads and reports, in the loop of the runs.
        retry_clock: The clock of the waits between attempts to upload or report.
        told_to_shut_down: Returns whether the worker was told to shut down, or is told within a second.
        before_worker_shutdown: Waits, so that no other worker that shuts down claims a run that is given up.
        ended: Called with how a run ended, and with the secrets that texts about it may contain.
        signing_key: The key that signs chains of trust; None: nothing is signed.
    """

    shared: SharedResources
    keeper: Keeper
    queue: AsyncQueue
    call_handler: Callable[[RunResources], HandlerCall]
    calls: ThreadsafeCalls
    metrics: WorkerMetrics
    retry_clock: Clock
    told_to_shut_down: Callable[[], Awaitable[bool]]
    before_worker_shutdown: Callable[[], Awaitable[object]]
    ended: Callable[[TaskEnd, Secrets], object]
    signing_key: SigningKey | None


class RunLifecycle:
    """Takes one run from its claim to its end, in the loop that it is made in.

    Attributes:
        stage: The run's present activity, for the log.
        is_stuck: The run has ended, but its handler does not stop.
    """

    def __init__(self, run: ClaimedRun, context: RunContext) -> None:
        self.run = run
        self.stage = "its handler is still running"
        self.is_stuck = False
        self._is_given_up = False
        self._resources = RunResources(run, context.shared)
        self._context = context
        self._clock = context.shared.clock
        self._log: TaskLog
        self._attempts = Attempts(self._resources, context.call_handler)
        self._until_stopped: asyncio.Timeout | None = None
        # Made now, as the machine's clock may be set while the handler works.
        until_deadline = run.claim.status.deadline - context.queue.now()
        timeout = context.shared.config.upload_timeout
        self._budget = RetryBudget(run, timeout, until_deadline, context.retry_clock)
        self._uploads_if_any: ArtifactUploads | None = None
        self._late_uploads: asyncio.Task[Outcome | None] | None = None
        run.when_lost(self._stop_from_any_thread)

    @property
    def _uploads(self) -> ArtifactUploads:
        """The uploads of the run, made at the first upload: a run that only waits has none."""
        if self._uploads_if_any is None:  # not a cached property, which takes 0.8 kB of each run
            context, key = self._context, self._context.signing_key
            chain = None if key is None else key.chain_for(self.run.claim, context.shared.config)
            queue = self.run.client(context.queue)
            self._uploads_if_any = ArtifactUploads(
                self._resources, queue, self._budget, context.metrics, chain
            )
        return self._uploads_if_any

    def stop(self, reason: Outcome) -> None:
        """Stop the handler and the uploads before the report: the claim is lost, or the worker shuts down."""
        if self._attempts.stop(reason) and self._until_stopped is not None:
            self._until_stopped.reschedule(asyncio.get_running_loop().time())

    def _stop_from_any_thread(self, reason: Outcome) -> None:
        self._context.calls.call(self.stop, reason)

    def hurry(self) -> None:
        """Cancel uploads after the report, and soon abandon a handler that does not end."""
        asyncio.get_running_loop().call_later(HURRIED_GRACE, self.abandon_handler)
        if self._late_uploads is not None:
            self._late_uploads.cancel()

    def abandon_handler(self) -> None:
        """Wait no longer for a handler that was asked to stop."""
        self._attempts.abandon()

    def give_up(self, why: str) -> None:
        """Name the run in the log, once: the worker ends before the run does."""
        if not self._is_given_up:
            self._is_given_up = True
            log.warning("%s; gave up run %s: %s", why, self.run, self.stage)

    async def resolve(self) -> None:
        """Take the run from claim to report and uploads. Raises nothing: errors decide how it ends."""
        started = self._clock.monotonic()
        queue = self.run.claim.status.task_queue_id
        log.info("run %s begins (%s)", self.run, queue)
        try:
            self._log = self._resources.log  # made now: its first line has the time of the run's start
            outcome, error = await self._resolve(await self._handle())
            seconds = self._clock.monotonic() - started
            self._note(TaskEnd(self.run.task_id, self.run.run_id, outcome, error, seconds))
        except asyncio.CancelledError:
            self._attempts.call = None  # the worker ends without waiting for the handler
            self.give_up("the worker was interrupted")
        except Exception:
            log.exception("run %s cannot be resolved because of a bug, its claim will expire", self.run)
        finally:
            self.run.trace.end()

    async def _handle(self) -> BaseException | None:
        """Call the handler, again if the task asks for a retry; return what it raised in the end."""
        if self._attempts.stopped is not None:
            return self._attempts.stopped
        checkpoints, url = self._log_checkpoints(), self._resources.serve_log()
        reference = None if url is None else asyncio.create_task(self._uploads.refer_to(url))
        try:
            return await self._attempts.result()
        finally:
            await checkpoints.stop()
            if reference is not None:
                reference.cancel()  # or it could be created late, and replace the link that is made next
                await asyncio.wait([reference])

    def _log_checkpoints(self) -> LogCheckpoints:
        compress = self._resources.compress_log
        checkpoints = LogCheckpoints(self.run, compress, self._upload_checkpoint, self._clock)
        if interval := self._context.shared.config.log_checkpoint_interval:
            checkpoints.start(interval, self.run.outage)
        return checkpoints

    async def _upload_checkpoint(self, view: LogView) -> None:
        await self._uploads.checkpoint(view)  # `_uploads` is not made before the handler has begun

    async def _resolve(self, error: BaseException | None) -> tuple[str, BaseException | None]:
        """Report the run and upload its artifacts; return how it ended."""
        error = await self._unless_shut_down(error)
        explain(self._log, error)
        reason = resolution_of(error)
        if reason in UPLOADED_BEFORE:
            error = await self._after_uploads(error)
            reason = resolution_of(error)
        if reason is None or not await self._reported(reason):
            return LOST, self.run.lost or error
        if reason not in UPLOADED_BEFORE:
            await self._upload_late()
        return reason.value, error

    async def _unless_shut_down(self, error: BaseException | None) -> BaseException | None:
        """Return `WorkerShutdown`, not `error`, if the signal that ended a command reached the worker, too.

        Service managers such as systemd send a signal to all processes of a service at the same moment.
        """
        signaled = self._resources.signaled
        if signaled and resolution_of(error) in _NOT_RETRIED and await self._context.told_to_shut_down():
            explain(self._log, error)
            return WorkerShutdown(f"{signaled[-1]}, and the worker was told to shut down")
        return error

    async def _reported(self, reason: ReasonResolved) -> bool:
        if reason is ReasonResolved.WORKER_SHUTDOWN:
            self.stage = "it waits for the end of the open claim request"
            await self._context.before_worker_shutdown()
        self.stage = f"its report as {reason} has not succeeded"
        context = self._context
        reporter = Reporter(self.run, self._uploads.queue, context.keeper.reclaim, context.retry_clock)
        return await reporter.report(reason) is ClaimState.RESOLVED

    async def _after_uploads(self, error: BaseException | None) -> BaseException | None:
        """Upload everything; return how the run ends: as `error` says, unless a failed upload counts more."""
        self.stage = "its artifacts are being uploaded"
        error = await self._upload(error, self._uploads.everything())
        signs = self._context.signing_key is not None
        if signs and (error is None or isinstance(error, TaskFailed)):
            error = await self._upload(error, self._uploads.chain_of_trust())
        return error

    async def _upload(
        self, error: BaseException | None, uploading: Coroutine[Any, Any, Outcome | None]
    ) -> BaseException | None:
        """Perform some of the uploads; return how the run ends."""
        failure = with_failed_upload(error, await self._unless_stopped(uploading))
        if failure is error:
            return error
        explain(self._log, failure)
        if isinstance(failure, TaskFailed):  # the log now explains it, and must be uploaded before the report
            return await self._unless_stopped(self._uploads.log()) or failure
        return failure

    async def _unless_stopped(self, uploading: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
        """Return how the uploads end, or the reason to stop if it comes first."""
        if self._attempts.stopped is not None:
            uploading.close()
            return self._attempts.stopped
        until_stopped = self._until_stopped = asyncio.timeout(None)
        try:
            async with until_stopped:
                return await uploading
        except TimeoutError:
            if not until_stopped.expired():
                raise
            return self._attempts.stopped
        finally:
            self._until_stopped = None

    async def _upload_late(self) -> None:
        """Upload what is possible after the report of an exception, for as long as the Queue takes it."""
        self.stage = "it is reported, and its artifacts are being uploaded"
        self._budget.reported()
        self._late_uploads = asyncio.create_task(self._uploads.everything())
        await asyncio.wait([self._late_uploads], timeout=UPLOAD_WINDOW)
        await end_tasks(self._late_uploads)
        if self._late_uploads.cancelled():
            log.warning("not all artifacts of %s were uploaded in time", self.run)
            return
        failure = self._late_uploads.exception() or self._late_uploads.result()
        if failure is not None and not isinstance(failure, TaskFailed):  # a missing file is the task's fault
            message = f"an upload of run {self.run} failed after its report: {text_of(failure)}"
            self._log_end(logging.WARNING, message, None)

    async def clean_up(self, left_behind: asyncio.Future[None]) -> None:
        """Remove everything that belongs to the run; wait for that until `left_behind` is done.

        A handler that is still running keeps its slot, and so does a run whose files are being removed.
        """
        call = self._attempts.call
        if call is not None and not call.ended.done():
            self.is_stuck = True
            with suppress(asyncio.CancelledError):
                await asyncio.wait([call.ended])
            self.is_stuck = False
        try:
            if not self._resources.close_at_once():
                await self._close(left_behind)
        finally:
            # Not before: the next run may need the room on the disk that this one's work directory takes.
            self._context.keeper.release_slot(self.run)

    async def _close(self, left_behind: asyncio.Future[None]) -> None:
        self.stage = "its work directory is being removed"
        closing = asyncio.create_task(asyncio.to_thread(self._resources.close))
        until: list[asyncio.Future[None]] = [closing, left_behind]
        started = self._clock.monotonic()
        while not any(each.done() for each in until):
            with suppress(asyncio.CancelledError):
                done, _ = await asyncio.wait(until, timeout=SLOW_REMOVAL, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    seconds = self._clock.monotonic() - started
                    message = "the files of %s are still being removed after %.0f s; it keeps its slot"
                    log.warning(message, self.run, seconds)

    def _note(self, end: TaskEnd) -> None:
        """Count the run, and say in the worker's log how it ended."""
        outcome, error = end.outcome, end.error
        reason = ""
        if outcome == LOST:
            reason = (error.reason if isinstance(error, ClaimLost) else LossReason.OTHER).value
        queue = self.run.claim.status.task_queue_id
        self._context.metrics.ended(queue, outcome, reason, end.seconds)
        self.run.trace.set_outcome(outcome, reason, error)
        level = logging.INFO if outcome in {"completed", "failed"} else logging.WARNING
        is_bug = outcome == ReasonResolved.INTERNAL_ERROR.value
        message = (
            f"run {self.run} ended: {outcome}{f' ({reason})' if reason else ''} after {end.seconds:.1f} s, "
            f"{counted(self._uploads.count, 'artifact')}"
            f"{f': {summary_of(error)}' if error is not None else ''}"
        )
        self._log_end(logging.ERROR if is_bug else level, message, error if is_bug else None)
        self._context.ended(end, self._log.secrets)

    def _log_end(self, level: int, message: str, bug: BaseException | None) -> None:
        """Log how the run ended, without secrets: the handler's error may hold some."""
        if not log.isEnabledFor(level):
            return
        secrets = self._log.secrets
        exc_info = None if bug is None else (type(bug), bug, bug.__traceback__)
        text = masked_text(message, secrets)
        fields = {"task_id": self.run.task_id, "run_id": self.run.run_id}
        record = log.makeRecord(log.name, level, __file__, 0, text, (), exc_info, extra=fields)
        if bug is not None:  # formatters write this text instead of the traceback that they would make
            record.exc_text = masked_text(traceback_of(bug), secrets)
        log.handle(record)


def explain(log: TaskLog, error: BaseException | None) -> None:
    """Say in the task's log how the run ends. Uploads may still fail when the handler has succeeded."""
    if error is None:
        log.say("the handler succeeded")
    elif isinstance(error, ClaimLost):
        pass  # the log is not uploaded
    elif isinstance(error, Outcome):
        log.logger.error("%s", summary_of(error))
    else:
        log.logger.error("the worker's handler failed\n%s", traceback_of(error))


class LiveRuns:
    """The runs that have not ended, in the loop that this is made in.

    Attributes:
        unresolved: How many runs are neither resolved nor lost.
    """

    def __init__(self, on_resolved: Callable[[], None], clock: Clock) -> None:
        self.unresolved = 0
        self._left_behind: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_resolved = on_resolved
        self._clock = clock
        self._tasks: dict[RunLifecycle, asyncio.Task[None]] = {}
        self._idle_since = clock.monotonic()

    def __iter__(self) -> Iterator[RunLifecycle]:
        """Iterate over the runs of this moment; from any thread."""
        return iter(list(self._tasks))

    def begin(self, lifecycle: RunLifecycle) -> None:
        """Begin to take a run to its end."""
        self.unresolved += 1
        self._tasks[lifecycle] = asyncio.create_task(
            self._live(lifecycle), context=lifecycle.run.trace.context.copy()
        )

    def idle_for(self) -> float:
        """Return for how many seconds there has been no unresolved run."""
        return 0.0 if self.unresolved else self._clock.monotonic() - self._idle_since

    async def end(self, timed_out: asyncio.Future[str]) -> None:
        """Cancel the asyncio tasks of the runs that are left, and wait for them.

        A run is left if its handler does not end, if it was given up, or if it still cleans up, for which
        there is time until `timed_out` is done.
        """
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            cleaned_up: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
            until: list[asyncio.Future[Any]] = [cleaned_up, timed_out]
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        self._left_behind.set_result(None)
        if any(not task.done() for task in tasks):
            await asyncio.wait(tasks)

    async def _live(self, lifecycle: RunLifecycle) -> None:
        try:
            try:
                await lifecycle.resolve()
            finally:
                self.unresolved -= 1
                self._idle_since = self._clock.monotonic()
                self._on_resolved()
                await lifecycle.clean_up(self._left_behind)
        finally:
            del self._tasks[lifecycle]
