"""How uploads of a run are retried: storage or the Queue may fail for minutes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import random
from typing import Any

import tenacity  # not at the first retry: without a free file descriptor, that import would fail the upload

from taskqueue_client._client_base import with_retries
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import (
    RetryPolicy,
    Schedule,
    Timeouts,
    asked_to_wait,
    error_of,
    is_outage,
    may_repeat,
)
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import InternalServerError
from taskqueue_client.worker.claims.claimed_run import retry_in
from taskqueue_client.worker.worker_log import log

BEFORE_DEADLINE = 30.0
"""Seconds before the task's deadline at which uploads are given up, so that the run can still be reported."""

QUIET = 10.0
"""Seconds after which retries of an upload are logged: most failures have ended by then."""

HURRIED_LEAST = 1.0
"""Seconds that the wait between two attempts may always take, also shortly before the end of the worker."""

MOST_500 = 4
"""How often the Queue may refuse with 500 to create or finish an object artifact. It refuses each attempt so
after it has created the artifact and the response was lost, or if the artifact has a `contentLength`."""

_POLICY = RetryPolicy()
_TIMEOUTS = Timeouts(_POLICY.connect_timeout, _POLICY.read_timeout, _POLICY.timeout)
"""The timeouts of each attempt, which are those of the first attempt of any client."""


class RetryClock:
    """The clock of the client that uploads and reports: the end of the worker shortens its waits.

    A worker that is shut down just after an outage reports what it has, instead of waiting for too long.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = math.inf
        self._hurried = asyncio.Event()
        self.now, self.monotonic, self.sleep = clock.now, clock.monotonic, clock.sleep

    def hurry(self, left: float) -> None:
        """End all waits now, in this clock's loop: the worker ends in `left` seconds.

        Each later wait takes at most a third of the time that is left then.
        """
        self._ends = self.monotonic() + left
        self._hurried.set()
        self._hurried = asyncio.Event()

    async def sleep_async(self, seconds: float) -> None:
        """Wait for so many seconds at most."""
        seconds = min(seconds, max((self._ends - self.monotonic()) / 3, HURRIED_LEAST))
        sleeping = asyncio.create_task(self._clock.sleep_async(seconds))
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            ended, _ = await asyncio.wait([sleeping, hurried], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            hurried.cancel()
        for each in ended:
            each.result()


class RetryBudget:
    """The time for retries of one run's uploads: each has `timeout` seconds from its first failure.

    When one upload was given up after this time, the others are not retried until one has succeeded.
    Otherwise a run with a thousand artifacts would wait for `timeout` again and again.

    Args:
        run: The run's name in the log.
        until_deadline: The time from now to the task's deadline; uploads are given up a little earlier.
    """

    __slots__ = ("_gives_up_at", "_has_given_up", "_has_warned", "_run", "_timeout", "clock")

    def __init__(self, run: object, timeout: float, until_deadline: timedelta, clock: Clock) -> None:
        self._run = run
        self._timeout = timeout
        # On the monotonic clock: the machine's clock may be set during an outage.
        self._gives_up_at = clock.monotonic() + until_deadline.total_seconds() - BEFORE_DEADLINE
        self._has_given_up = False
        self._has_warned = False
        self.clock = clock

    def client(self, queue: AsyncQueue, name: str) -> AsyncQueue:
        """Return a client like `queue` for the upload of one artifact, `name` in the log."""
        return with_retries(queue, UploadRetries(self, name))

    def left(self) -> float:
        """Return for how many seconds an upload that fails now is retried."""
        left = 0.0 if self._has_given_up else self._timeout
        return max(min(left, self._gives_up_at - self.clock.monotonic()), 0.0)

    def give_up(self) -> None:
        """Note that an upload was retried for as long as allowed, and failed."""
        self._has_given_up = True

    def warn(self, name: str, seconds: float, error: BaseException | None) -> None:
        """Log that an upload is retried; only the first one of those that fail at the same time."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "cannot upload %s of %s, retrying for up to %.0f s: %s", name, self._run, seconds, error
            )

    def succeeded(self) -> None:
        """Note that an upload has succeeded."""
        self._has_given_up = self._has_warned = False

    def reported(self) -> None:
        """Begin anew after the report: the deadline does not matter any more."""
        self._has_given_up = self._has_warned = False
        self._gives_up_at = math.inf


@dataclass(eq=False, repr=False)
class UploadRetries:
    """How the calls and transfers of one upload are retried; see `Retries`."""

    _budget: RetryBudget
    _name: str
    _ends: float | None = None
    _quiet_until: float = 0.0
    _refused: int = 0

    def attempt_timeouts(self, call: Call[Any], elapsed: float) -> Timeouts:
        """See `Retries`."""
        del call, elapsed
        return _TIMEOUTS

    def may_retry(self, call: Call[Any], error: BaseException) -> bool:
        """See `Retries`."""
        return may_repeat(call) and is_outage(error)

    def of_call(self, call: Call[Any], elapsed: Callable[[], float]) -> Schedule:
        """See `Retries`."""
        del elapsed
        stop = self._stop_object if call.endpoint == "finishArtifact" else self._stop
        return self._schedule(partial(self.may_retry, call), stop)

    def of_transfer(self, may_retry: Callable[[BaseException], bool]) -> Schedule:
        """See `Retries`."""
        return self._schedule(may_retry, self._stop_object)

    def _schedule(
        self, may_retry: Callable[[BaseException], bool], stop: Callable[[tenacity.RetryCallState], bool]
    ) -> Schedule:
        return {"wait": self._wait, "stop": stop, "retry": tenacity.retry_if_exception(may_retry)}

    def _wait(self, state: tenacity.RetryCallState) -> float:
        grown = retry_in(state.attempt_number, self._left(), random())  # noqa: S311 - spreads calls, keeps no secret
        return max(grown, asked_to_wait(error_of(state)))

    def _left(self) -> float:
        """Note a failure; return for how many more seconds the upload is retried."""
        now = self._budget.clock.monotonic()
        if self._ends is None:
            self._ends, self._quiet_until = now + self._budget.left(), now + QUIET
        return self._ends - now

    def _stop(self, state: tenacity.RetryCallState) -> bool:
        """Return whether the next attempt would come too late."""
        left = self._left()
        if state.upcoming_sleep >= left:
            self._budget.give_up()
            return True
        if self._budget.clock.monotonic() >= self._quiet_until:
            self._budget.warn(self._name, left, error_of(state))
        return False

    def _stop_object(self, state: tenacity.RetryCallState) -> bool:
        """Return whether a transfer, or a call about an object artifact, is not retried any more."""
        self._refused += isinstance(error_of(state), InternalServerError)
        return self._refused >= MOST_500 or self._stop(state)
