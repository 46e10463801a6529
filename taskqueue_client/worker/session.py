"""One life of a worker: from its start to its end, with everything that it starts and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack, closing, nullcontext
from functools import partial
from typing import Any, Protocol

from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.direct import DirectSender
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import CallFailed, UnreadableAnswer
from taskqueue_client.events.settings import PulseSettings

from .claiming import WorkerIdentity
from .conduct import Conduct, Host
from .config import WorkerConfig
from .direct_queue import DirectQueue
from .guardian import Guardian
from .handler_call import BlockingCall
from .handler_threads import HandlerThreads
from .handlers import Handlers
from .health import Vitals
from .held_run import HeldRun
from .inbox import Inbox
from .keeper import Keeper, KeeperSettings
from .monitoring import Monitor
from .outcomes import WorkerShutdown
from .payload import PayloadSchema
from .run_resources import RunResources, SharedResources
from .shutdown import NOTICE_INTERVAL, TIME_TO_REPORT, signals_handled
from .task_run import TaskRun
from .work_directory import WorkDirectories
from .worker_metrics import WorkerMetrics

log = logging.getLogger("taskqueue_client.worker")

HURRIED = 10.0
"""Seconds after a second signal at which the worker leaves, whatever is not done: then the claims that it
still holds expire."""


class Worker(Protocol):
    """What a session needs of the worker whose life it is."""

    config: WorkerConfig
    root_url: str
    pulse: PulseSettings | None
    clock: Clock
    schema: PayloadSchema | None

    def run_task(self, task: TaskRun) -> Coroutine[Any, Any, None] | None:
        """See `WorkerLoop`."""
        ...

    def on_idle(self, seconds: float) -> None:
        """See `WorkerLoop`."""
        ...

    def termination_notice(self) -> float | None:
        """See `WorkerLoop`."""
        ...


class Session:
    """Runs a worker, in the loop that it is made in, which must not turn before `run`.

    The methods that are not coroutines may be called from any thread, before `run` and until it returns.

    Args:
        worker: Whose life it is.
        credentials: The worker's own.
    """

    def __init__(self, worker: Worker, credentials: Credentials | None) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(self._loop)
        self._credentials = credentials
        self._runs: dict[Conduct, asyncio.Task[None]] = {}
        self._unconcluded = 0
        self._leaving = False
        self._failure: CallFailed | None = None
        self._idle_since = worker.clock.monotonic()
        self._finished = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._notice_threads = HandlerThreads()
        self._metrics = WorkerMetrics(self._vitals)

    def shutdown(self, within: float | None = None) -> None:
        """Begin to leave; if that has begun, hurry."""
        self._inbox.call(self._shut_down, within)

    def hint_cancelled(self, task_id: str) -> None:
        """See `WorkerLoop.hint_cancelled`."""
        self._inbox.call(lambda: self._keeper.hint_cancelled(task_id))

    def use_credentials(self, credentials: Credentials) -> None:
        """Make the worker's own calls with other credentials."""
        self._inbox.call(lambda: self._keeper.use_credentials(credentials))

    async def run(self, *, signals: bool) -> None:
        """Work until it is time to leave.

        Raises:
            ApiError: The Queue's first answer was a refusal.
        """
        with signals_handled(self._on_signal) if signals else nullcontext():
            async with AsyncExitStack() as stack:
                await self._start(stack)
                await self._finished.wait()
        if self._failure is not None:
            raise self._failure
        await self._claiming

    # What the keeper tells, in its own thread

    def claimed(self, runs: list[HeldRun]) -> None:
        """See `KeeperEvents`."""
        self._metrics.claim_calls.add(of="answered")
        self._metrics.claims.add(len(runs))
        self._inbox.call(self._begin if runs else self._idle, runs)

    def claim_failed(self, error: CallFailed) -> None:
        """See `KeeperEvents`."""
        lost = error.attempted.outcome_unknown or isinstance(error, UnreadableAnswer)
        self._metrics.claim_calls.add(of="unknown" if lost else "failed")

    def refused(self, error: CallFailed) -> None:
        """See `KeeperEvents`."""
        self._failure = error

    def renewed(self, late: float) -> None:
        """See `KeeperEvents`."""
        self._metrics.reclaims.add(of="renewed")
        self._metrics.lateness.observe(late)

    def renewal_failed(self) -> None:
        """See `KeeperEvents`."""
        self._metrics.reclaims.add(of="failed")

    def renewal_refused(self) -> None:
        """See `KeeperEvents`."""
        self._metrics.reclaims.add(of="refused")

    def _vitals(self) -> Vitals:
        """How the worker is; called from any thread."""
        now = self._worker.clock.monotonic()
        ends = [conduct.held.lease.ends for conduct in list(self._runs) if conduct.held.is_held]
        return Vitals(
            has_claimed=self._keeper.has_claimed,
            since_claim=self._keeper.unanswered_for(),
            is_leaving=self._leaving,
            held=len(ends),
            lease_left=min(ends) - now if ends else None,
        )

    # Start and end

    async def _start(self, stack: AsyncExitStack) -> None:
        """Start everything. Nothing here lets the loop turn: what the inbox brings finds all of it there."""
        worker, config = self._worker, self._worker.config
        directories = WorkDirectories(config.work_directory, keep=config.keep_work_directories)
        stack.callback(self._notice_threads.close)
        async_queue = self._make_queue_of_handlers()
        self._shared = SharedResources(
            config=config,
            directories=stack.enter_context(directories),
            root_url=worker.root_url,
            guardian=stack.enter_context(closing(Guardian())),
            queue=stack.enter_context(
                Queue(worker.root_url, artifact_storage=config.artifact_storage, clock=worker.clock)
            ),
            async_queue=async_queue,
            clock=worker.clock,
        )
        monitor = None
        if config.metrics_port is not None:  # before anything is claimed, as the port may be taken
            monitor = Monitor(self._metrics, config.metrics_host, config.metrics_port)
            stack.callback(monitor.close)
        handlers = await stack.enter_async_context(Handlers(worker.run_task, async_queue, self._inbox))
        uploads = await stack.enter_async_context(self._make_queue_of_runs())
        # Connections of its own: storage that hangs does not hold up the reports.
        sender = DirectSender(stack.enter_context(closing(uploads.storage.exchanges())))
        self._keeper = Keeper(self._make_queue_of_worker, self._keeper_settings(), self, worker.clock)
        stack.push_async_callback(asyncio.to_thread, self._keeper.stop)
        stack.push_async_callback(self._cancel_what_is_left)
        self._host = Host(
            config=config,
            keeper=self._keeper,
            queue=uploads,
            schema=worker.schema,
            call_handler=handlers.call,
            sender=sender,
            inbox=self._inbox,
            metrics=self._metrics,
            clock=worker.clock,
        )
        if monitor is not None:
            monitor.start()
            log.info("serving /metrics, /live and /ready on port %d", monitor.port)
        self._claiming = asyncio.create_task(self._keeper.claiming_ended())
        self._claiming.add_done_callback(self._look_for_the_end)
        self._in_background(self._watch_for_notice())
        if worker.pulse is not None:
            self._in_background(self._hear_of_cancellations(worker.pulse))

    def _make_queue_of_handlers(self) -> AsyncQueue:
        worker, storage = self._worker, self._worker.config.artifact_storage
        return AsyncQueue(worker.root_url, artifact_storage=storage, clock=worker.clock)

    def _make_queue_of_runs(self) -> DirectQueue:
        worker, storage = self._worker, self._worker.config.artifact_storage
        return DirectQueue(worker.root_url, artifact_storage=storage, clock=worker.clock)

    def _make_queue_of_worker(self) -> DirectQueue:
        return DirectQueue(self._worker.root_url, self._credentials, clock=self._worker.clock)

    def _keeper_settings(self) -> KeeperSettings:
        config = self._worker.config
        return KeeperSettings(
            identity=WorkerIdentity(config.task_queue_id, config.worker_group, config.worker_id),
            concurrency=config.concurrency,
            max_tasks=config.max_tasks,
            cancellation_poll_interval=config.cancellation_poll_interval,
        )

    async def _cancel_what_is_left(self) -> None:
        """Handlers that never end, and what was given up in a hurry."""
        tasks = [*self._runs.values(), *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Runs

    def _begin(self, runs: list[HeldRun]) -> None:
        for held in runs:
            conduct = Conduct(held, RunResources(held, self._shared), self._host)
            if self._leaving:
                conduct.stop(WorkerShutdown("the worker is leaving"))
            self._unconcluded += 1
            self._runs[conduct] = task = asyncio.create_task(conduct.run())
            conduct.concluded.add_done_callback(self._run_concluded)
            task.add_done_callback(partial(self._run_ended, conduct))

    def _run_concluded(self, _: object) -> None:
        self._unconcluded -= 1
        self._idle_since = self._worker.clock.monotonic()
        self._look_for_the_end()

    def _run_ended(self, conduct: Conduct, task: asyncio.Task[None]) -> None:
        del self._runs[conduct]
        if not task.cancelled():
            task.result()

    def _look_for_the_end(self, _: object = None) -> None:
        if self._claiming.done() and not self._unconcluded:
            self._finished.set()

    def _idle(self, _: list[HeldRun]) -> None:
        if self._unconcluded or self._leaving:
            return
        seconds = self._worker.clock.monotonic() - self._idle_since
        try:
            self._worker.on_idle(seconds)
        except Exception:
            log.exception("on_idle failed")
        if self._worker.config.max_idle is not None and seconds >= self._worker.config.max_idle:
            log.info("leaving after %.0f s without work", seconds)
            self._shut_down()

    # Leaving

    def _on_signal(self, name: str) -> None:
        log.info("received %s; %s", name, "hurrying" if self._leaving else "leaving")
        self._shut_down()

    def _shut_down(self, within: float | None = None) -> None:
        if self._leaving:
            self._hurry()
            return
        self._leaving = True
        self._keeper.stop_claiming()
        grace = self._worker.config.graceful_shutdown_timeout if within is None else within
        log.info("runs may go on for %.0f s; a claim call under way is waited for", grace)
        self._in_background(self._stop_runs_after(grace))

    async def _stop_runs_after(self, seconds: float) -> None:
        await self._worker.clock.sleep_async(seconds)
        self._stop_runs()

    def _stop_runs(self) -> None:
        for conduct in self._runs:
            conduct.stop(WorkerShutdown("the worker is leaving"))

    def _hurry(self) -> None:
        self._keeper.hang_up()
        self._stop_runs()
        for conduct in self._runs:
            conduct.hurry()
        self._loop.call_later(HURRIED, self._finished.set)

    async def _hear_of_cancellations(self, pulse: PulseSettings) -> None:
        from .hearing import hear_of_cancellations  # noqa: PLC0415 - most workers have no broker

        identity = self._keeper_settings().identity
        await hear_of_cancellations(pulse, identity, self._keeper.hint_cancelled)

    async def _watch_for_notice(self) -> None:
        while (left := await self._notice()) is None:
            await self._worker.clock.sleep_async(NOTICE_INTERVAL)
        if not self._leaving:
            log.warning("the machine goes away in %.0f s", left)
            grace = self._worker.config.graceful_shutdown_timeout
            self._shut_down(min(grace, max(left - TIME_TO_REPORT, 0)))

    async def _notice(self) -> float | None:
        """What the worker's hook says. Its thread is a daemon: one that hangs does not hold the worker."""
        said: list[float | None] = []

        def ask() -> None:
            said.append(self._worker.termination_notice())

        asked = BlockingCall("termination notice", ask, self._notice_threads, self._inbox)
        await asyncio.wait([asked.ended])
        if (error := asked.ended.result()) is not None:
            log.error("termination_notice failed", exc_info=error)
        return said[0] if said else None
