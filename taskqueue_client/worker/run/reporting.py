"""Reporting a run to the Queue, until the report has succeeded or the claim is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import random
from typing import Any, cast

from msgspec.structs import replace

from taskqueue_client import calls
from taskqueue_client._client_base import with_retries
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import PolicyRetries, RetryPolicy, is_conflict
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.clock import Clock
from taskqueue_client.errors import CallFailed, RequestConflict
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker.claims.claimed_run import (
    RECLAIM_BETWEEN,
    ClaimedRun,
    ClaimEvent,
    ClaimState,
    attempt_timeout,
    cause_of,
    retry_in,
)
from taskqueue_client.worker.outcomes import UPLOADED_BEFORE, LossReason
from taskqueue_client.worker.worker_log import counted, log

FRESH = 0.95
"""The part of a lease that must be left before the report of an exception; with less, the run is reclaimed
first. Artifacts are uploaded for 24 minutes after such a report, with credentials that work until 5 minutes
after the lease ends: of a lease of 20 minutes, 19 are needed."""


_ONCE = PolicyRetries(RetryPolicy(attempts=1))


class Reporter:
    """Reports one run.

    Args:
        run: The run. The keeper does not reclaim it any more once it is being reported.
        queue: A client with the run's credentials.
        reclaim: Makes one attempt to reclaim the run; returns the error, if any.
    """

    def __init__(
        self,
        run: ClaimedRun,
        queue: AsyncQueue,
        reclaim: Callable[[ClaimedRun], Awaitable[Exception | None]],
        clock: Clock,
    ) -> None:
        self._run = run
        self._queue = with_retries(queue, _ONCE)  # retried here, for as long as the lease lasts
        self._reclaim = reclaim
        self._clock = clock

    async def report(self, reason: ReasonResolved) -> ClaimState:
        """Report the run if this worker still has the claim; return the state afterwards."""
        if self._run.apply(ClaimEvent.RESOLVE):
            if reason not in UPLOADED_BEFORE:  # a resolved run cannot be reclaimed
                error = await self._reclaim_if_less_than(FRESH)
                if error is not None:
                    log.warning("cannot reclaim %s before its report: %s", self._run, cause_of(error))
            await self._retry(reason)
        return self._run.state

    async def _retry(self, reason: ReasonResolved) -> None:
        run, failures, last = self._run, 0, "it was not reported"
        while left := run.lease.left(self._clock.monotonic()):
            error = await self._report_once(reason, attempt_timeout(left))
            if error is None:
                return
            if not failures:  # one line for each outage: the last retries follow closely
                log.warning("cannot report %s as %s, retrying: %s", run, reason, error)
            failures += 1
            last = f"its report failed {counted(failures, 'time')}, last error: {error}"
            await self._reclaim_if_less_than(1 - RECLAIM_BETWEEN[0])
            left = run.lease.left(self._clock.monotonic())
            await self._clock.sleep_async(min(retry_in(failures, left, random()), left))  # noqa: S311 - spreads calls, keeps no secret
        if failures and await self._resolved_as() == reason:  # the responses were lost
            run.apply(ClaimEvent.CONFIRMED)
        why = f"its lease ended ({run.lease.length:.1f} s); {last}"
        run.apply(ClaimEvent.LEASE_ENDED, why, LossReason.LEASE_ENDED)

    async def _reclaim_if_less_than(self, part: float) -> Exception | None:
        """Make one attempt to reclaim the run if less than a part of its lease is left; return the error.

        If an earlier attempt has reported the run, the Queue refuses to reclaim it, which changes nothing.
        """
        run = self._run
        if run.lease.left(self._clock.monotonic()) < run.lease.length * part:
            return await self._reclaim(run)
        return None

    async def _report_once(self, reason: ReasonResolved, timeout: float) -> str | None:  # noqa: ASYNC109 - of one attempt among several
        """Make one attempt; return the error if another attempt may succeed."""
        run = self._run
        try:
            async with asyncio.timeout(timeout):
                await self._queue.send(report_of(run.task_id, run.run_id, reason))
        except Exception as error:  # noqa: BLE001 - whatever happens, the claim lasts until its lease ends
            if is_conflict(error):
                await self._check_conflict(reason, error)
                return None
            return cause_of(error)
        run.apply(ClaimEvent.CONFIRMED)
        return None

    async def _check_conflict(self, reason: ReasonResolved, refusal: RequestConflict) -> None:
        """Handle a 409, which is no refusal if an earlier attempt, whose response was lost, has succeeded."""
        resolved = await self._resolved_as()
        if resolved == reason:
            self._run.apply(ClaimEvent.CONFIRMED)
        else:
            why = f"the Queue has resolved the run as {resolved}" if resolved else refusal.message
            self._run.apply(ClaimEvent.REPORT_REFUSED, why, LossReason.of(resolved))

    async def _resolved_as(self) -> ReasonResolved | None:
        run = self._run
        left = max(run.lease.left(self._clock.monotonic()), 1.0)
        try:
            response = await self._queue.with_options(attempts=6, timeout=left).status(run.task_id)
        except CallFailed as error:
            log.warning("cannot look up how %s was resolved: %s", run, error)
            return None
        return next(
            (each.reason_resolved for each in response.status.runs if each.run_id == run.run_id), None
        )


def report_of(task_id: str, run_id: int, reason: ReasonResolved) -> Call[Any]:
    """Return the call that reports a run.

    Any JSON object in the response, or 204 without a body, says that the run is resolved. The status is not
    decoded: one that this version cannot read would have the report retried until the lease ends.
    """
    if reason is ReasonResolved.COMPLETED:
        call = calls.report_completed(task_id, run_id)
    elif reason is ReasonResolved.FAILED:
        call = calls.report_failed(task_id, run_id)
    else:
        call = calls.report_exception(task_id, run_id, cast("calls.ExceptionReason", reason))
    return replace(call, returns=dict[str, Any] | None)
