"""The pauses between attempts at a failing Queue, and what a worker believes meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from taskqueue_client import AsyncQueue, calls
from taskqueue_client.artifacts.artifact_errors import StorageRefused
from taskqueue_client.clock import Clock, MovableClock, SystemClock
from taskqueue_client.errors import Attempted, CallFailed, ConnectionFailed, Refused, ServerError
from taskqueue_client.local.faults import Drop, Respond
from taskqueue_client.models import ReasonResolved, TaskClaim
from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker.claims.cancellation import CancellationWatch
from taskqueue_client.worker.claims.claimed_run import ClaimedRun, ClaimEvent, ClaimState, Lease
from taskqueue_client.worker.claims.claiming import (
    Claiming,
    QueueTaskSource,
    SourceContext,
    TaskSource,
)
from taskqueue_client.worker.claims.reclaiming import Reclaiming
from taskqueue_client.worker.outcomes import LossReason
from taskqueue_client.worker.run.reporting import Reporter
from taskqueue_client.worker.run.upload_retries import RetryBudget, RetryClock
from taskqueue_client.worker.worker_log import log
from tests.client.scripted import Say, ScriptedServer, say
from tests.worker.passing_clock import PassingClock
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, Told, World, iso
from tests.worker.request_log import Request, requests_noted

LEASE = 1200.0
"""The length of a lease that the Queue grants, in seconds."""

GROWING = [0.25, 1, 4, 16, 64]
"""Seconds between attempts to reclaim, report or upload, while most of a lease of 20 minutes is left."""


@pytest.fixture
def clock() -> PassingClock:
    return PassingClock()


@pytest.fixture
async def queue(world: World, clock: PassingClock) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(world.local.root_url, world.local.credentials, clock=clock) as queue:
        yield queue.with_options(attempts=1)


@pytest.fixture
def requests(world: World, clock: PassingClock) -> Iterator[list[Request]]:
    """Yield the requests to which the local queue has responded, with times of the test's clock."""
    with requests_noted(world.local, clock) as requests:
        yield requests


def fail(world: World, endpoint: str, times: int = 10_000, status: int = 503) -> None:
    world.local.faults.add(Respond(endpoint=endpoint, status=status, times=times))


async def claimed(world: World, queue: AsyncQueue, clock: Clock) -> ClaimedRun:
    """Claim a task for a worker that has all the time of the lease left."""
    world.create()
    response = await queue.claim_work(TASK_QUEUE_ID, worker_group="group", worker_id="worker")
    (claim,) = response.tasks
    return ClaimedRun(claim, Lease(LEASE, clock.monotonic() + LEASE), queue)


async def holds(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail after `WAIT` seconds."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 - another thread makes it hold
            await asyncio.sleep(0.001)


def is_spread_around(waits: Sequence[float], nominal: Sequence[float], spread: float) -> bool:
    return all(
        (1 - spread) * middle <= wait <= (1 + spread) * middle
        for wait, middle in zip(waits, nominal, strict=False)
    )


@asynccontextmanager
async def reclaiming(
    run: ClaimedRun, told: Told, clock: PassingClock
) -> AsyncGenerator[Callable[[Callable[[], object]], Awaitable[None]]]:
    """Reclaim a run during the block; yield `holds`, to wait for conditions."""
    reclaims = Reclaiming(told, clock)
    reclaims.start(run)
    try:
        yield holds
    finally:
        await reclaims.stop()


class TestReclaiming:
    async def test_failed_reclaims_are_retried_after_pauses_that_grow_until_the_lease_ends(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        fail(world, "queue.reclaimTask")
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: not run.has_claim)
        first, *waits = clock.sleeps
        assert 0.5 * LEASE <= first <= 0.7 * LEASE
        assert is_spread_around(waits[:5], GROWING, 0.5)
        assert max(waits) <= 0.375 * LEASE
        assert len({round(wait / middle, 6) for wait, middle in zip(waits, GROWING, strict=False)}) > 3
        assert clock.monotonic() == pytest.approx(LEASE)
        assert 10 <= told.failed_reclaims.qsize() <= 100
        assert told.reclaims.empty()
        assert run.lost is not None
        assert run.lost.reason is LossReason.LEASE_ENDED
        assert f"reclaim failed {told.failed_reclaims.qsize()} times, last error: " in str(run.lost)

    async def test_after_a_success_the_pauses_begin_again(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        fail(world, "queue.reclaimTask", times=3)
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: told.reclaims.qsize() >= 1)
            fail(world, "queue.reclaimTask", times=3)
            struck = told.reclaims.qsize()
            await wait_until(lambda: told.failed_reclaims.qsize() >= 6)
            await wait_until(lambda: told.reclaims.qsize() > struck)
        short = [wait for wait in clock.sleeps if wait < 0.4 * LEASE]
        assert is_spread_around(short, [*GROWING[:3], *GROWING[:3]], 0.5)

    @pytest.mark.parametrize("fault", [Respond, Drop])
    async def test_a_failed_reclaim_is_not_a_success(
        self,
        world: World,
        clock: PassingClock,
        told: Told,
        queue: AsyncQueue,
        fault: type[Respond | Drop],
    ) -> None:
        run = await claimed(world, queue, clock)
        lease, credentials = run.lease, run.credentials
        world.local.faults.add(
            Respond(endpoint="queue.reclaimTask", status=500)
            if fault is Respond
            else Drop(endpoint="queue.reclaimTask")
        )
        error = await Reclaiming(told, clock).reclaim_once(run)
        assert error is not None
        assert run.lease == lease
        assert run.credentials == credentials
        assert run.has_claim
        assert told.failed_reclaims.qsize() == 1

    async def test_a_reclaim_succeeds_whatever_another_version_of_the_queue_says_of_the_task(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        claim = (await claimed(world, queue, clock)).claim
        granted = {
            "takenUntil": claim.taken_until,
            "credentials": claim.credentials,
            "status": {"runs": None},
        }
        with ScriptedServer() as server:
            server.otherwise = say(granted)
            async with AsyncQueue(server.root_url, clock=clock) as other:
                run = ClaimedRun(claim, Lease(LEASE, LEASE), other)
                clock.sleep(700)
                assert await Reclaiming(told, clock).reclaim_once(run) is None
        assert run.lease.ends == pytest.approx(700 + LEASE, abs=1)

    async def test_a_reclaim_extends_the_lease_from_the_moment_of_its_request(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        credentials = run.credentials
        clock.sleep(700)
        assert await Reclaiming(told, clock).reclaim_once(run) is None
        assert told.reclaims.qsize() == 1
        assert run.lease.ends == pytest.approx(700 + LEASE, abs=1)
        assert run.credentials != credentials

    async def test_a_successful_reclaim_is_reported_with_its_lateness(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: told.reclaims.qsize() >= 3)
        assert told.late[0] == pytest.approx(0, abs=1e-6)
        assert told.failed_reclaims.empty()
        assert all(0.5 * LEASE - 1 <= wait <= 0.7 * LEASE for wait in clock.sleeps[:3])

    async def test_a_process_that_was_suspended_for_too_long_loses_the_run_and_says_so(
        self, world: World, told: Told, queue: AsyncQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Suspended(PassingClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(seconds + LEASE)

        run = await claimed(world, queue, clock := Suspended())
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: not run.has_claim)
        assert "not scheduled, for example because the process was suspended" in caplog.text

    async def test_failed_reclaims_are_one_line_and_their_success_another(
        self,
        world: World,
        clock: PassingClock,
        told: Told,
        queue: AsyncQueue,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO)
        run = await claimed(world, queue, clock)
        fail(world, "queue.reclaimTask", times=2)
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: told.reclaims.qsize() >= 3)
        failed, recovered = [each for each in caplog.messages if each.startswith(("cannot", "reclaimed"))]
        assert failed.startswith(f"cannot reclaim {run}, retrying: ")
        assert recovered == f"reclaimed {run} after 2 failed attempts"

    async def test_a_refused_reclaim_is_reported_and_ends_the_attempts(
        self, world: World, clock: PassingClock, queue: AsyncQueue, requests: list[Request]
    ) -> None:
        run, told = await claimed(world, queue, clock), Told()
        world.queue.cancel_task(run.task_id)
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: not run.has_claim)
        await holds(lambda: any(each.path.endswith("/reclaim") for each in requests))
        assert sum(each.path.endswith("/reclaim") for each in requests) == 1
        assert told.refused_reclaims.qsize() == 1
        assert told.failed_reclaims.empty()
        assert run.lost is not None
        assert run.lost.reason is LossReason.RECLAIM_REFUSED

    async def test_a_run_that_cannot_be_reclaimed_because_of_a_bug_is_lost(
        self,
        world: World,
        clock: PassingClock,
        queue: AsyncQueue,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        class BrokenEvents(Told):
            def reclaim_began(self, late: float) -> None:
                del late
                message = "a bug in the worker"
                raise ValueError(message)

        run = await claimed(world, queue, clock)
        async with reclaiming(run, BrokenEvents(), clock) as wait_until:
            await wait_until(lambda: not run.has_claim)
        assert run.state is ClaimState.LOST
        assert "a bug in the worker" in str(run.lost)
        assert run.lost is not None
        assert run.lost.reason is LossReason.LEASE_ENDED
        (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert str(run) in record.getMessage()
        assert record.exc_info is not None

    async def test_runs_whose_reclaims_cannot_begin_because_of_a_bug_are_lost(
        self, world: World, told: Told, queue: AsyncQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        class BrokenClock(PassingClock):
            async def sleep_async(self, seconds: float) -> None:
                del seconds
                message = "a bug in the clock"
                raise ValueError(message)

        run = await claimed(world, queue, clock := BrokenClock())
        async with reclaiming(run, told, clock) as wait_until:
            await wait_until(lambda: not run.has_claim)
        assert "a bug in the clock" in str(run.lost)
        assert str(run) in caplog.text

    async def test_each_of_several_runs_is_reclaimed_when_that_is_due(
        self, world: World, told: Told, queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = MovableClock(held=True)
        begin = clock.monotonic()
        chances = iter([0.9, 0.1, 0.5])  # which are 816, 624 and 720 s
        monkeypatch.setattr("taskqueue_client.worker.claims.reclaiming.random", lambda: next(chances, 1.0))
        late, early, between = runs = [await claimed(world, queue, clock) for _ in range(3)]
        reclaims = Reclaiming(told, clock)
        for run in runs:
            reclaims.start(run)

        def reclaimed(count: int) -> bool:
            return told.reclaims.qsize() == count

        for count, (seconds, run) in enumerate(((624, early), (96, between), (96, late)), 1):
            assert run.lease.ends == begin + LEASE
            clock.advance(seconds)
            await holds(partial(reclaimed, count))
            assert run.lease.ends > begin + LEASE
        await reclaims.stop()
        assert told.late == pytest.approx([0, 0, 0], abs=1e-6)

    async def test_a_run_that_is_dropped_is_not_reclaimed_and_not_lost(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        reclaims = Reclaiming(told, clock)
        reclaims.start(run)
        assert reclaims.runs() == [run]
        reclaims.drop(run)
        assert reclaims.runs() == []
        await reclaims.stop()
        assert clock.sleeps == []
        assert run.state is ClaimState.CLAIMED

    async def test_a_run_that_is_being_reported_is_not_reclaimed_any_more(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        fail(world, "queue.reclaimTask", times=2)
        reclaims = Reclaiming(told, clock)
        reclaims.start(run)
        await holds(lambda: told.failed_reclaims.qsize() >= 1)
        run.apply(ClaimEvent.RESOLVE)
        await holds(lambda: not reclaims.runs())
        assert told.reclaims.empty() or run.state is ClaimState.RESOLVING
        assert run.has_claim


@pytest.mark.parametrize("has_run", [True, False])
async def test_a_state_that_is_not_known_or_missing_loses_no_run_until_it_is_resolved(
    world: World,
    clock: PassingClock,
    queue: AsyncQueue,
    caplog: pytest.LogCaptureFixture,
    *,
    has_run: bool,
) -> None:
    run = await claimed(world, queue, clock)
    status = run.claim.status.to_dict()
    resolved = {"state": "withdrawn", "reasonResolved": "new", "resolved": status["deadline"]}
    with ScriptedServer() as server:
        for new in ({"state": "suspended"} if has_run else None, resolved):
            changed = {**status, "runs": [{**status["runs"][0], **new}] if new else []}
            server.script.append(say({"statuses": [{"taskId": run.task_id, "status": changed}]}))
        async with AsyncQueue(server.root_url) as other:
            watch = CancellationWatch(other, lambda: [run], 3600, SystemClock())
            watch.hint()
            await holds(lambda: len(server.script) == 1)
            watch.hint()
            await holds(lambda: not run.has_claim)
            await watch.stop()
    assert "the Queue has resolved the run as withdrawn, new" in str(run.lost)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_poll_for_canceled_runs_that_fails_by_a_bug_is_logged_and_not_the_last(
    world: World, clock: PassingClock, queue: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    odd, run = await claimed(world, queue, clock), await claimed(world, queue, clock)
    odd.task_id = "\ud800"  # no request can contain it
    await queue.cancel_task(run.task_id)
    polled = iter([[odd, run], [odd, run]])
    watch = CancellationWatch(queue, lambda: next(polled, [run]), 100, clock)
    await holds(lambda: not run.has_claim)
    await watch.stop()
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == "cannot poll for canceled runs, retrying"
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("fault", "start"),
    [
        (
            Respond("queue.statuses", status=500, times=5),
            "cannot poll for canceled runs, retrying: statuses ",
        ),
        (
            Respond("queue.statuses", status=403, times=5),
            "not polling for canceled runs: the worker's credentials lack queue:status:<taskId> (HTTP 403)",
        ),
    ],
)
async def test_polls_for_canceled_runs_that_fail_are_one_line_and_their_success_another(
    world: World,
    clock: PassingClock,
    queue: AsyncQueue,
    caplog: pytest.LogCaptureFixture,
    fault: Respond,
    start: str,
) -> None:
    caplog.set_level(logging.INFO, "taskqueue_client.worker")
    run = await claimed(world, queue, clock)
    world.local.faults.add(fault)
    watch = CancellationWatch(queue, lambda: [run], 100, clock)
    await holds(lambda: not world.local.faults.waiting())
    await queue.cancel_task(run.task_id)
    await holds(lambda: not run.has_claim)
    await watch.stop()
    failed, succeeded = [each for each in caplog.messages if "for canceled runs" in each]
    assert failed.startswith(start)
    assert succeeded == "polls for canceled runs succeed again"


class TestReporting:
    async def report(self, run: ClaimedRun, queue: AsyncQueue, clock: PassingClock) -> ClaimState:
        async def reclaim(_: ClaimedRun) -> None: ...

        return await Reporter(run, run.client(queue), reclaim, clock).report(ReasonResolved.COMPLETED)

    async def test_failed_reports_are_retried_after_pauses_that_grow_until_the_lease_ends(
        self,
        world: World,
        clock: PassingClock,
        queue: AsyncQueue,
        requests: list[Request],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        run = await claimed(world, queue, clock)
        fail(world, "queue.reportCompleted")
        assert await self.report(run, queue, clock) is ClaimState.LOST
        assert is_spread_around(clock.sleeps[:5], GROWING, 0.5)
        assert max(clock.sleeps) <= 0.375 * LEASE
        assert clock.monotonic() == pytest.approx(LEASE)
        reports = len(clock.sleeps)
        assert 10 <= reports <= 150
        assert f"its report failed {reports} times, last error: " in str(run.lost)
        assert [each.partition(": ")[0] for each in caplog.messages if "report" in each] == [
            f"cannot report {run} as completed, retrying"
        ]
        assert run.lost is not None
        assert run.lost.reason is LossReason.LEASE_ENDED
        await holds(lambda: sum(each.path.endswith("/completed") for each in requests) == reports)

    async def test_a_report_whose_responses_are_all_lost_has_resolved_the_run(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        world.local.faults.add(Respond(endpoint="queue.reportCompleted", status=502, after=True, times=1000))
        assert await self.report(run, queue, clock) is ClaimState.RESOLVED
        assert clock.monotonic() == pytest.approx(LEASE)

    async def test_a_run_with_most_of_its_lease_left_is_not_reclaimed_between_reports(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run, reclaims = await claimed(world, queue, clock), list[ClaimedRun]()

        async def reclaim(reclaimed: ClaimedRun) -> None:
            reclaims.append(reclaimed)

        fail(world, "queue.reportCompleted", times=3)
        reporter = Reporter(run, run.client(queue), reclaim, clock)
        assert await reporter.report(ReasonResolved.COMPLETED) is ClaimState.RESOLVED
        assert clock.monotonic() < 0.1 * LEASE
        assert reclaims == []

    async def test_a_report_that_succeeds_in_the_end_resolves_the_run(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        fail(world, "queue.reportCompleted", times=6)
        assert await self.report(run, queue, clock) is ClaimState.RESOLVED
        assert len(clock.sleeps) == 6
        assert is_spread_around(clock.sleeps[:5], GROWING, 0.5)
        assert world.run(run.task_id).reason_resolved == "completed"

    @pytest.mark.parametrize("response", [Say(204, b""), say({}, 201), say({"status": {"new": 1}})])
    async def test_the_status_of_a_response_confirms_a_report_whatever_else_it_says(
        self, world: World, clock: PassingClock, queue: AsyncQueue, response: Say
    ) -> None:
        """A Queue of another version has resolved the run: retries would only occupy the slot."""
        run = await claimed(world, queue, clock)
        with ScriptedServer() as server:
            server.otherwise = response
            async with AsyncQueue(server.root_url, clock=clock) as other:
                assert await self.report(run, other, clock) is ClaimState.RESOLVED
        assert len(server.received) == 1

    async def test_a_page_of_a_proxy_confirms_no_report(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        with ScriptedServer() as server:
            server.script.extend([Say(200, b"<html>please log in</html>"), Say(200, b"")])
            server.otherwise = say({})
            async with AsyncQueue(server.root_url, clock=clock) as other:
                assert await self.report(run, other, clock) is ClaimState.RESOLVED
        assert len(server.received) == 3

    async def test_a_refused_report_whose_cause_cannot_be_looked_up_loses_the_run(
        self,
        world: World,
        clock: PassingClock,
        queue: AsyncQueue,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        run = await claimed(world, queue, clock)
        world.queue.cancel_task(run.task_id)
        fail(world, "queue.status", status=500)
        assert await self.report(run, queue, clock) is ClaimState.LOST
        assert f"cannot look up how {run} was resolved" in caplog.text
        assert run.lost is not None
        assert run.lost.reason is LossReason.OTHER
        assert len(clock.sleeps) == 5  # between six attempts to look up the status

    async def test_the_look_at_the_status_ends_with_the_lease(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        world.queue.cancel_task(run.task_id)
        fail(world, "queue.status", status=500)
        run.lease = Lease(LEASE, clock.monotonic() + 1.5)
        assert await self.report(run, queue, clock) is ClaimState.LOST
        assert 0 < clock.monotonic() <= 1.5
        assert len(clock.sleeps) < 5

    async def test_a_report_that_is_refused_because_of_a_cancellation_loses_the_run(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        world.queue.cancel_task(run.task_id)
        assert await self.report(run, queue, clock) is ClaimState.LOST
        assert run.lost is not None
        assert run.lost.reason is LossReason.CANCELED
        assert "canceled" in str(run.lost)


class TestUploading:
    def client(self, run: ClaimedRun, queue: AsyncQueue, clock: PassingClock) -> AsyncQueue:
        budget = RetryBudget(run, 900, timedelta(days=1), clock)
        return budget.client(run.client(queue), "x")

    async def send(self, run: ClaimedRun, queue: AsyncQueue, clock: PassingClock) -> None:
        expires = iso(run.claim.status.expires)
        link: Any = {"storageType": "link", "artifact": "y", "contentType": "text/plain", "expires": expires}
        request = calls.create_artifact(run.task_id, run.run_id, "x", link)
        await self.client(run, queue, clock).send(request)

    async def test_calls_that_fail_are_retried_after_pauses_that_grow_with_the_outage(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        """So after ten minutes of outage, the uploads of a fleet do not all come within half a minute."""
        run = await claimed(world, queue, clock)
        fail(world, "queue.createArtifact")
        with pytest.raises(ServerError) as failed:
            await self.send(run, queue, clock)
        assert failed.value.attempted.attempts == len(clock.sleeps) + 1
        assert is_spread_around(clock.sleeps[:5], GROWING, 0.5)
        assert 64 * 1.5 < max(clock.sleeps) <= 450
        assert 890 <= sum(clock.sleeps) <= 900

    async def test_content_that_storage_refuses_is_sent_again_after_the_same_pauses(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        fail(world, "storage.put")
        with pytest.raises(StorageRefused):
            await self.client(run, queue, clock).upload_artifact(
                run.task_id, run.run_id, "x", b"x", expires=run.claim.status.expires
            )
        assert is_spread_around(clock.sleeps[:5], GROWING, 0.5)
        assert max(clock.sleeps) > 64 * 1.5
        assert 890 <= sum(clock.sleeps) <= 900

    async def test_setting_the_machine_s_clock_during_an_outage_ends_no_retries(
        self, world: World, clock: PassingClock, queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = await claimed(world, queue, clock)
        budget = RetryBudget(run, 900, timedelta(hours=1), clock)
        later = clock.now() + 7200
        monkeypatch.setattr(clock, "now", lambda: later)
        assert budget.left() == 900

    async def test_the_next_call_of_an_upload_begins_with_a_short_pause(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        run = await claimed(world, queue, clock)
        for _ in range(2):
            fail(world, "queue.createArtifact", times=3)
            await self.send(run, queue, clock)
        assert is_spread_around(clock.sleeps, [*GROWING[:3], *GROWING[:3]], 0.5)


class TestRetryClock:
    async def test_waits_end_when_the_worker_shuts_down_and_again_when_it_hurries(self) -> None:
        clock = RetryClock(MovableClock(start=0, held=True))
        for left in (3600.0, 10.0):
            waiting = [asyncio.create_task(clock.sleep_async(300)) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(each.done() for each in waiting)
            clock.hurry(left)
            async with asyncio.timeout(WAIT):
                await asyncio.gather(*waiting)

    @pytest.mark.parametrize(
        ("left", "given", "waits"),
        [
            (3600.0, 300.0, [300.0, 300.0]),
            (30.0, 300.0, [10.0, 20 / 3]),
            (0.0, 300.0, [1.0, 1.0]),
            (30.0, 0.5, [0.5]),
        ],
    )
    async def test_later_waits_take_a_third_of_the_time_until_the_end_of_the_worker(
        self, clock: PassingClock, left: float, given: float, waits: list[float]
    ) -> None:
        retry_clock = RetryClock(clock)
        await retry_clock.sleep_async(1000)
        retry_clock.hurry(left)
        for _ in waits:
            await retry_clock.sleep_async(given)
        assert clock.sleeps == pytest.approx([1000, *waits])

    async def test_a_canceled_wait_leaves_no_timer(self) -> None:
        before = asyncio.all_tasks()
        waiting = asyncio.create_task(RetryClock(SystemClock()).sleep_async(300))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


class Recovering:
    """A task source that fails at first, then has no work once, and does not respond to later calls."""

    def __init__(self, failures: int = 0, error: CallFailed | None = None) -> None:
        self.calls = -failures
        self._error = error or ConnectionFailed(Attempted("claimWork", "POST", "/"), "connection refused")

    async def claim(self, count: int) -> list[TaskClaim]:
        del count
        self.calls += 1
        if self.calls > 1:
            await asyncio.Event().wait()
        if self.calls <= 0:
            raise self._error
        return []

    def stop(self) -> None: ...

    async def close(self) -> None: ...


class TestClaiming:
    @asynccontextmanager
    async def claiming(
        self,
        queue: AsyncQueue,
        told: Told,
        clock: PassingClock,
        *,
        free: int = 1,
        most: int | None = None,
        source: TaskSource | None = None,
    ) -> AsyncGenerator[tuple[Claiming, list[Sequence[TaskClaim]]]]:
        granted: list[Sequence[TaskClaim]] = []
        identity = WorkerIdentity(TASK_QUEUE_ID, "group", "worker")
        context = SourceContext(queue, identity, clock)
        claiming = Claiming(
            source or QueueTaskSource(context),
            context,
            free,
            most,
            granted=granted.append,
            events=told,
        )
        try:
            yield claiming, granted
        finally:
            await claiming.close()

    async def test_failed_claim_requests_are_retried_after_pauses_that_double_up_to_a_minute(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        world.create()
        fail(world, "queue.claimWork", times=12)
        async with self.claiming(queue, told, clock) as (_, granted):
            await holds(lambda: granted)
        waits = clock.sleeps[:12]
        nominal = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60]
        assert is_spread_around(waits, [float(each) for each in nominal], 0.5)
        assert len({round(wait / middle, 6) for wait, middle in zip(waits, nominal, strict=True)}) > 6

    async def test_a_failure_is_not_that_of_a_closed_request_while_a_response_is_noted(
        self, queue: AsyncQueue, told: Told, clock: PassingClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Another thread would end the worker with the failure, for `max_idle`."""
        caplog.set_level(logging.INFO, log.name)
        source, found = Recovering(failures=1), list[bool]()
        async with self.claiming(queue, told, clock, source=source) as (claiming, _):

            def look(record: logging.LogRecord) -> bool:
                if "succeed again" in record.msg:
                    found.append(claiming.is_retrying)
                return True

            log.addFilter(look)
            try:
                await holds(lambda: source.calls > 1)
            finally:
                log.removeFilter(look)
            assert claiming.failure is None
        assert found == [True]

    async def test_the_log_says_once_when_claim_requests_succeed_again(
        self,
        queue: AsyncQueue,
        told: Told,
        clock: PassingClock,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(f"{Claiming.__module__}.random", lambda: 0.5)
        source = Recovering(failures=3)
        async with self.claiming(queue, told, clock, source=source) as (claiming, _):
            await holds(lambda: source.calls > 1)
            assert claiming.has_claimed
        recovered = [each for each in caplog.messages if "again" in each]
        assert recovered == ["claim requests succeed again, after 3 failed attempts in 7 s"]

    @pytest.mark.parametrize(("chance", "pauses"), [(0.0, [0.5, 1, 2]), (1.0, [1.5, 3, 6])])
    async def test_the_pauses_between_claim_requests_are_spread_by_half_to_both_sides(
        self,
        world: World,
        clock: PassingClock,
        told: Told,
        queue: AsyncQueue,
        monkeypatch: pytest.MonkeyPatch,
        chance: float,
        pauses: list[float],
    ) -> None:
        monkeypatch.setattr(f"{Claiming.__module__}.random", lambda: chance)
        world.create()
        fail(world, "queue.claimWork", times=3)
        async with self.claiming(queue, told, clock) as (_, granted):
            await holds(lambda: granted)
        assert clock.sleeps[:3] == pauses

    async def test_the_pauses_between_claim_requests_begin_again_after_a_response(
        self, world: World, clock: PassingClock, told: Told, queue: AsyncQueue
    ) -> None:
        world.create()
        fail(world, "queue.claimWork", times=8)
        async with self.claiming(queue, told, clock, free=2) as (_, granted):
            await holds(lambda: granted)
            fail(world, "queue.claimWork", times=1)  # meets the request after the one that is open now
            clock.sleeps.clear()
            world.create()
            await holds(lambda: len(granted) == 2 or told.failures.qsize() > 8)
        assert all(wait <= 1.5 for wait in clock.sleeps)

    async def test_a_response_without_work_is_a_response(
        self, queue: AsyncQueue, told: Told, clock: PassingClock
    ) -> None:
        source = Recovering()
        async with self.claiming(queue, told, clock, source=source) as (claiming, _):
            await holds(lambda: source.calls == 2)
            assert clock.monotonic() > 0
            assert claiming.seconds_without_response() == 0
            assert claiming.outage() == 0

    @pytest.mark.parametrize("failures", [4, 12])
    async def test_an_outage_is_remembered_for_as_long_as_it_lasted_and_for_three_minutes_at_most(
        self, queue: AsyncQueue, told: Told, clock: PassingClock, failures: int
    ) -> None:
        source = Recovering(failures)
        async with self.claiming(queue, told, clock, source=source) as (claiming, _):
            assert claiming.outage() == 0
            await holds(lambda: source.calls == 2)
            outage, lasted = claiming.outage(), sum(clock.sleeps[:failures])
            assert outage == pytest.approx(min(lasted, 180))
            clock.sleep(outage - (clock.monotonic() - lasted) - 0.01)
            assert claiming.outage() == outage
            clock.sleep(0.02)
            assert claiming.outage() == 0

    @pytest.mark.parametrize(
        ("seconds", "refused", "longest"),
        [
            (10.0, Refused(504, message="Gateway Timeout"), 0.75),
            (10.0, Refused(502, message="Proxy Error Reason: Error reading from remote server"), 0.75),
            (10.0, Refused(503, message="Backend fetch failed"), 0.75),
            (1.0, Refused(504, message="Gateway Timeout"), 90.0),
            (10.0, Refused(503, "ServiceUnavailable", "not a proxy's response"), 90.0),
            (10.0, Refused(500, message="Internal Server Error"), 90.0),
        ],
        ids=["nginx", "Apache", "Varnish", "at once", "the Queue", "another error"],
    )
    async def test_a_long_poll_that_a_proxy_cuts_off_is_not_an_outage(
        self,
        queue: AsyncQueue,
        told: Told,
        clock: PassingClock,
        caplog: pytest.LogCaptureFixture,
        seconds: float,
        refused: Refused,
        longest: float,
    ) -> None:
        source = Recovering(8, ServerError(Attempted("claimWork", "POST", "/", elapsed=seconds), refused))
        async with self.claiming(queue, told, clock, source=source) as (claiming, _):
            await holds(lambda: source.calls == 2)
            assert (claiming.outage() == 0) == (longest < 1)
        waits = [wait - seconds for wait in clock.sleeps[:8]]
        assert longest / 3 <= max(waits) <= longest
        assert ("is a proxy's timeout shorter?" in caplog.text) == (longest < 1)

    async def test_a_loop_that_waits_for_a_free_slot_can_be_stopped(
        self, queue: AsyncQueue, told: Told, clock: PassingClock
    ) -> None:
        async with self.claiming(queue, told, clock, free=0) as (claiming, _):
            await asyncio.sleep(0)
            claiming.stop()
            async with asyncio.timeout(WAIT):
                await claiming.ended()

    async def test_a_claim_counts_as_due_for_as_long_as_every_request_fails(
        self, world: World, clock: PassingClock, queue: AsyncQueue
    ) -> None:
        clock.sleep(100)  # the machine was started a while ago
        world.create()
        fail(world, "queue.claimWork", times=15)
        due: list[float | None] = []

        class Watching(Told):
            def claim_failed(self, task_queue_id: str, error: CallFailed) -> None:
                del task_queue_id, error
                due.append(claiming.seconds_without_response())

        async with self.claiming(queue, Watching(), clock) as (claiming, granted):
            await holds(lambda: granted)
            assert claiming.seconds_without_response() is None
        moments = [each for each in due if each is not None]
        assert len(moments) == 15
        assert moments[0] == 0
        assert all(before < after for before, after in pairwise(moments))
        assert moments[-1] > 200
