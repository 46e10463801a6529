"""The shutdown of a worker: its steps and their times."""

from __future__ import annotations

import asyncio
import math
import signal
from dataclasses import dataclass

from taskqueue_client.clock import Clock

from .claims.keeper import Keeper
from .config import WorkerConfig
from .outcomes import WorkerShutdown
from .run.lifecycle import LiveRuns
from .run.upload_retries import RetryClock
from .shutdown_reasons import AT_ONCE
from .worker_log import log

HANDED_OVER_AFTER = 2.0
"""Seconds between the start of a shutdown and the first `worker-shutdown` report. Workers that are told at
the same moment have ended their claim requests by then (`task_source.PROMPT`), so none of them claims a run
that another one gives up: each would use up one of the task's retries."""

TO_REPORT = 20.0
"""Seconds, beyond `termination_grace`, that are kept for handlers to end, reports and logs."""

TO_REPORT_UNENDED = 5.0
"""Seconds before the end of a shutdown at which runs are reported whose handlers have not ended."""

HURRIED = 10.0
"""Seconds from a second request to shut down to the end of the worker; claims that it still has expire."""


@dataclass(frozen=True, slots=True)
class ShutdownPlan:
    """The steps of a shutdown, in seconds from its start.

    Attributes:
        stop_runs: Runs that have not ended are stopped.
        abandon_handlers: Runs whose handlers have not ended are reported.
        end: The worker ends, whatever hangs.
    """

    stop_runs: float
    abandon_handlers: float
    end: float

    @classmethod
    def of(cls, config: WorkerConfig, within: float | None, left: float | None) -> ShutdownPlan:
        """Return the plan of one shutdown.

        Args:
            config: The worker's settings.
            within: Seconds that runs may go on; None: `graceful_shutdown_timeout`.
            left: Seconds until the machine ends; None: unknown.
        """
        grace = config.graceful_shutdown_timeout if within is None else within
        to_end = config.termination_grace + TO_REPORT
        end = grace + to_end if config.shutdown_timeout is None else config.shutdown_timeout
        end = end if left is None else min(left, end)
        return cls(
            stop_runs=min(grace, end - min(to_end, end / 2)),
            abandon_handlers=end - min(TO_REPORT_UNENDED, end / 4),
            end=end,
        )

    def __str__(self) -> str:
        if self.end == math.inf:  # as worker-runner asks with `finish-tasks: true`
            return "until they end"
        return f"for {self.stop_runs:.0f} s, and the worker ends within {self.end:.0f} s"


class Shutdown:
    """The shutdown of a worker, in the loop that it is made in.

    Args:
        keeper: Claims and reclaims runs.
        retry_clock: The clock of the waits between attempts to upload or report, which this makes shorter.

    Attributes:
        was_asked: Whether the worker was told to shut down, so that it did not decide that itself.
        timed_out: Gets the reason when the worker ends, whatever hangs.
    """

    def __init__(
        self, config: WorkerConfig, keeper: Keeper, runs: LiveRuns, clock: Clock, retry_clock: RetryClock
    ) -> None:
        self.was_asked = self._was_requested = False
        self.timed_out: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._retry_clock = retry_clock
        self._config = config
        self._keeper = keeper
        self._runs = runs
        self._clock = clock
        self._began: float | None = None
        self._following: asyncio.Task[None] | None = None
        self._stop_at = self._end_at = math.inf
        self._runs_stopped = False

    @property
    def has_begun(self) -> bool:
        """Whether the shutdown has begun."""
        return self._began is not None

    def on_signal(self, number: signal.Signals) -> None:
        """Take it as a request, and a signal to stop at once as two."""
        log.info("received %s", number.name)
        if number is AT_ONCE and not self._was_requested:
            self.request(0.0)
        self.request()

    def request(self, within: float | None = None) -> None:
        """Begin; requested again, hurry. What a notice, the runner or the worker begins is no request."""
        if self._was_requested:
            self._hurry()
        else:
            self._was_requested = True
            self.begin(within)

    def terminate(self, within: float | None) -> None:
        """Begin, as the runner asks."""
        log.warning("the runner asks to shut down")
        self.begin(within)

    def on_notice(self, left: float) -> None:
        """Begin: the machine ends in `left` seconds."""
        log.warning("termination notice received: %.0f s left", left)
        self.begin(left=left)

    def begin(self, within: float | None = None, left: float | None = None, *, asked: bool = True) -> None:
        """Begin to shut down; if that has begun, take its steps earlier, but not later.

        Args:
            within: Seconds that runs may go on; None: `graceful_shutdown_timeout`.
            left: Seconds until the machine ends; None: unknown.
            asked: Whether the worker was told to.
        """
        self.was_asked |= asked
        if self.has_begun:
            self._bring_forward(within, left)
            return
        self._began = self._clock.monotonic()
        self._keeper.stop_claiming()
        self._follow(ShutdownPlan.of(self._config, within, left))

    async def until_handed_over(self) -> None:
        """Wait until `HANDED_OVER_AFTER` has passed since the shutdown began."""
        passed = self._clock.monotonic() - (self._began or 0.0)
        await self._clock.sleep_async(max(HANDED_OVER_AFTER - passed, 0))

    def _bring_forward(self, within: float | None, left: float | None) -> None:
        now = self._clock.monotonic()
        until_stop, until_end = self._stop_at - now, self._end_at - now
        if within is None:
            within = self._config.graceful_shutdown_timeout if left is None else math.inf
        left = math.inf if left is None else left
        if not self._runs_stopped and (within < until_stop or left < until_end):
            self._follow(ShutdownPlan.of(self._config, min(within, until_stop), min(left, until_end)))

    def _follow(self, plan: ShutdownPlan) -> None:
        if not self._runs.unresolved:
            log.info("shutting down: no more claims, and no runs to wait for")
        else:
            log.info(
                "shutting down: no more claims; %d runs may go on %s; ask again (second signal, Ctrl-C) to "
                "stop the runs now",
                *(self._runs.unresolved, plan),
            )
        self._retry_clock.hurry(plan.end)
        now = self._clock.monotonic()
        self._stop_at, self._end_at = now + plan.stop_runs, now + plan.end
        if self._following is not None:
            self._following.cancel()
        self._following = asyncio.create_task(self._take_steps(plan))

    async def _take_steps(self, plan: ShutdownPlan) -> None:
        sleep = self._clock.sleep_async
        await sleep(plan.stop_runs)
        self._stop_runs()
        await sleep(plan.abandon_handlers - plan.stop_runs)
        for each in self._runs:
            each.abandon_handler()
        await sleep(plan.end - plan.abandon_handlers)
        self._time_out(f"the shutdown timed out after {plan.end:.0f} s")

    def _stop_runs(self) -> None:
        self._runs_stopped = True
        for each in self._runs:
            each.stop(shutting_down())

    def _hurry(self) -> None:
        log.info("stopping all runs now: the worker ends within %.0f s", HURRIED)
        self._keeper.abort_claiming()
        self._retry_clock.hurry(HURRIED)
        self._stop_runs()
        for each in self._runs:
            each.hurry()
        words = f"the worker did not end within {HURRIED:.0f} s after the second request to shut down"
        asyncio.get_running_loop().call_later(HURRIED, self._time_out, words)

    def _time_out(self, why: str) -> None:
        if self.timed_out.done():
            return
        for each in self._runs:
            log.warning("%s; gave up run %s: %s", why, each.run, each.stage)
        self.timed_out.set_result(why)


def shutting_down() -> WorkerShutdown:
    """Return the reason to stop a run."""
    return WorkerShutdown("the worker is shutting down")
