"""One run from its claim to its end: handler, uploads and report, in the order that the outcome asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.direct import DirectSender
from taskqueue_client.clock import Clock

from .config import WorkerConfig
from .handler_call import HandlerCall
from .held_run import HeldRun
from .inbox import Inbox
from .keeper import Keeper
from .outcomes import (
    ClaimLost,
    IntermittentTask,
    MalformedPayload,
    Outcome,
    Resolution,
    TaskFailed,
    Uploads,
    meant_by,
    resolution_of,
)
from .payload import PayloadSchema, too_deep
from .resolving import Resolver
from .run_resources import RunResources
from .run_state import Event, State
from .task_run import TaskRun
from .uploading import Uploading
from .worker_metrics import LOST, WorkerMetrics

log = logging.getLogger("taskqueue_client.worker")

HANDLER_GRACE = 10.0
"""Seconds, beyond those that its commands get, for a handler to clean up after it was told to stop."""

HURRIED_GRACE = 5.0
"""The same, commands and all, in a hurry: there is still time to report the run before the worker is gone."""

UPLOAD_WINDOW = 24 * 60.0
"""Seconds: the Queue takes artifacts of an exception for 25 minutes after the report."""


@dataclass(frozen=True, slots=True)
class Host:
    """What all runs of a worker share.

    Attributes:
        config: How the worker is set up.
        keeper: Where runs are held.
        queue: For uploads and reports, in the loop that conducts runs.
        schema: What payloads must satisfy; None if anything goes that is at most 100 levels deep.
        call_handler: Starts a handler.
        sender: Sends small artifacts.
        inbox: Of the loop that conducts runs.
        metrics: What is counted.
        clock: Where time comes from.
    """

    config: WorkerConfig
    keeper: Keeper
    queue: AsyncQueue
    schema: PayloadSchema | None
    call_handler: Callable[[TaskRun], HandlerCall]
    sender: DirectSender
    inbox: Inbox
    metrics: WorkerMetrics
    clock: Clock


class Conduct:
    """Conducts one run, in the loop that it is made in.

    Args:
        held: The run.
        resources: What belongs to it, and is given up after it.
        host: What all runs share.

    Attributes:
        held: The run.
        concluded: Done when the run was reported and everything is up, or when it was lost.
    """

    def __init__(self, held: HeldRun, resources: RunResources, host: Host) -> None:
        self.held = held
        self._resources = resources
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[Outcome] = self._loop.create_future()
        self._hurried: asyncio.Future[None] = self._loop.create_future()
        self._until_stopped: asyncio.Timeout | None = None
        self._call: HandlerCall | None = None
        self._late_uploads: asyncio.Task[Outcome | None] | None = None
        self.concluded: asyncio.Future[None] = self._loop.create_future()
        held.when_lost(lambda lost: host.inbox.call(self.stop, lost))

    @cached_property
    def _queue(self) -> AsyncQueue:
        return self.held.credentials.client(self._host.queue)

    @cached_property
    def _uploading(self) -> Uploading:
        return Uploading(self._resources, self._queue, self._host.sender, self._host.metrics)

    @cached_property
    def _resolver(self) -> Resolver:
        return Resolver(self.held, self._queue, self._host.keeper.renew, self._host.clock)

    def stop(self, reason: Outcome) -> None:
        """Stop what is done for the run: the claim is lost, or the worker leaves."""
        self._resources.cancelled.cancel(reason)
        if self._stopped.done():
            return
        self._stopped.set_result(reason)
        if self._until_stopped is not None:
            self._until_stopped.reschedule(self._loop.time())

    def hurry(self) -> None:
        """Give up the uploads that follow a report, and soon a handler that does not end."""
        self._loop.call_later(HURRIED_GRACE, self._lose_patience)
        if self._late_uploads is not None:
            self._late_uploads.cancel()

    def _lose_patience(self) -> None:
        if not self._hurried.done():
            self._hurried.set_result(None)

    async def run(self) -> None:
        """From the claim to the end. Raises nothing: whatever goes wrong is how the run ends."""
        log.info("run %s begins", self.held, extra=self._about)
        try:
            ended_as = await self._conclude(await self._handle())
            self._host.metrics.tasks.add(of=ended_as)
            log.info("run %s has ended: %s", self.held, ended_as, extra=self._about)
        except asyncio.CancelledError:
            self._call = None  # the worker leaves now: nobody waits for the handler any more
        except Exception:
            log.exception("run %s cannot be ended; its claim will expire", self.held, extra=self._about)
        finally:
            self.concluded.set_result(None)
            await self._clean_up()

    async def _handle(self) -> BaseException | None:
        """Call the handler, again if the task asks for it; what it raised in the end."""
        if self._stopped.done():
            return self._stopped.result()
        self.held.apply(Event.START)
        try:
            interval = self._host.config.log_checkpoint_interval
            async with nullcontext() if interval is None else self._log_checkpoints(interval):
                self._check_payload()
                return await self._try_handler()
        except Exception as error:  # noqa: BLE001 - the run ends with it
            return error

    @asynccontextmanager
    async def _log_checkpoints(self, interval: float) -> AsyncGenerator[None]:
        """Upload the log so far now and then."""
        task = asyncio.create_task(self._upload_log_every(interval))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _upload_log_every(self, interval: float) -> None:
        while True:
            await self._host.clock.sleep_async(interval)
            await self._uploading.log_so_far()

    async def _try_handler(self) -> BaseException | None:
        left = self._host.config.intermittent_attempts
        over = self._time_limit()
        try:
            while True:
                raised = await self._call_handler(over)
                left -= 1
                if not (left and isinstance(raised, IntermittentTask)):
                    return raised
                self._log.warning("the task asks to be tried again, tries left: %d: %s", left, raised)
                await asyncio.to_thread(self._resources.start_over)
                if self._stopped.done():
                    return self._stopped.result()
        finally:
            over.cancel()

    def _time_limit(self) -> asyncio.Future[None]:
        """Done when all tries together have taken longer than `max_run_time`."""
        limit = self._host.config.max_run_time
        if limit is None:
            return self._loop.create_future()
        return asyncio.create_task(self._host.clock.sleep_async(limit))

    def _check_payload(self) -> None:
        schema, payload = self._host.schema, self.held.claim.task["payload"]
        problems = too_deep(payload) if schema is None else schema.violations(payload)
        if problems:
            words = "".join(f"\n  {each}" for each in problems)
            message = f"the payload has {len(problems)} problems:{words}"
            raise MalformedPayload(message)

    async def _call_handler(self, over: asyncio.Future[None]) -> BaseException | None:
        self._call = call = self._host.call_handler(TaskRun(self._resources))
        _ = self._uploading, self._resolver  # made now, while the handler works
        first: list[asyncio.Future[Any]] = [call.ended, self._stopped, over]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if over.done() and not call.ended.done():
            limit = self._host.config.max_run_time
            self._resources.cancelled.cancel(TaskFailed(f"it has run for longer than {limit} s"))
        if not call.ended.done():
            await self._interrupt(call)
        return self._judged(call)

    async def _interrupt(self, call: HandlerCall) -> None:
        call.interrupt()
        grace = self._host.config.termination_grace + HANDLER_GRACE
        ending: list[asyncio.Future[Any]] = [call.ended, self._hurried]
        await asyncio.wait(ending, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not call.ended.done():
            log.warning("the handler of %s was told to stop, and goes on", self.held)

    def _judged(self, call: HandlerCall) -> BaseException | None:
        """How the handler ended. A reason to stop counts more than what came of it.

        That it returned says nothing then: `while not task.cancelled.is_set()` does.
        """
        return self._resources.cancelled.reason or meant_by(call.ended.result())

    async def _conclude(self, outcome: BaseException | None) -> str:
        """Report the run and upload what belongs to it; what it was reported as, or that it was lost."""
        self._explain(outcome)
        resolution = resolution_of(outcome)
        if resolution is not None and resolution.uploads is Uploads.BEFORE_REPORT:
            resolution = resolution_of(await self._after_uploads(outcome))
        if resolution is None or not await self._reported(resolution):
            return LOST
        if resolution.uploads is Uploads.AFTER_REPORT:
            await self._upload_late()
        return resolution.reason.value

    async def _reported(self, resolution: Resolution) -> bool:
        return await self._resolver.resolve(resolution) is State.RESOLVED

    async def _after_uploads(self, outcome: BaseException | None) -> BaseException | None:
        """Upload everything; how the run ends, which is as before only if that succeeds."""
        failure = await self._unless_stopped(self._uploading.everything())
        if failure is None or (isinstance(failure, TaskFailed) and isinstance(outcome, TaskFailed)):
            return outcome
        self._explain(failure)
        if isinstance(failure, TaskFailed):  # the log is to say so, and cannot go up after the report
            return await self._unless_stopped(self._uploading.log()) or failure
        return failure

    async def _unless_stopped(self, uploading: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
        """How the uploads end; the reason to stop where there is one first."""
        if self._stopped.done():
            uploading.close()
            return self._stopped.result()
        try:
            async with asyncio.timeout(None) as self._until_stopped:
                return await uploading
        except TimeoutError:
            if not self._stopped.done():
                raise
            return self._stopped.result()
        finally:
            self._until_stopped = None

    async def _upload_late(self) -> None:
        """After the report of an exception: at best effort, for as long as the Queue takes it."""
        self._late_uploads = asyncio.create_task(self._uploading.everything())
        await asyncio.wait([self._late_uploads], timeout=UPLOAD_WINDOW)
        if not self._late_uploads.done():
            self._late_uploads.cancel()
            await asyncio.wait([self._late_uploads])
        if self._late_uploads.cancelled():
            log.warning("not all artifacts of %s were uploaded in time", self.held)

    async def _clean_up(self) -> None:
        """Give everything up; a handler that goes on keeps its slot, but not the worker."""
        if self._call is not None and not self._call.ended.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._call.ended])
        self._host.keeper.let_go(self.held)
        if self._resources.close_at_once():
            return
        closing = asyncio.create_task(asyncio.to_thread(self._resources.close))
        while not closing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([closing])

    def _explain(self, outcome: BaseException | None) -> None:
        """Say in the task's log how the run ends."""
        if outcome is None:
            self._resources.log.say("the task is completed")
        elif isinstance(outcome, ClaimLost):
            pass  # nobody will read it
        elif isinstance(outcome, Outcome):
            self._log.error("%s: %s", type(outcome).__name__, outcome)
        else:
            self._log.error("the worker's handler failed", exc_info=outcome)

    @property
    def _about(self) -> dict[str, object]:
        """For whoever formats the worker's log: which run a line is about."""
        return {"task_id": self.held.task_id, "run_id": self.held.run_id}

    @property
    def _log(self) -> logging.Logger:
        return self._resources.log.logger
