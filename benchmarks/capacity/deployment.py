"""A simulated Queue: a limited number of requests per second, tasks that arrive, and outages.

It counts the requests, and responds as the Queue's contract says: a claim lasts 20 minutes, a claim request
waits up to 20 s for work, a run whose claim has expired becomes pending again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from taskqueue_client import errors
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import LONG_POLL_TIMEOUT
from taskqueue_client.credentials import Credentials
from taskqueue_client.models import (
    ClaimWorkResponse,
    ReasonCreated,
    ReasonResolved,
    Run,
    RunState,
    TaskClaim,
    TaskState,
    TaskStatus,
    TaskStatusResponse,
)
from taskqueue_client.worker.claims.claimed_run import Reclaimed

from .virtual_time import VirtualClock

LONG_POLL = 20.0
"""Seconds that a claim request waits for work."""

LATENCY = 0.02
"""Seconds that a request takes if no other one is waiting."""

REFUSAL = 0.01
"""Seconds until a request is refused while the deployment is down."""

_CREDENTIALS = Credentials("run", "token")


class StatusOf(NamedTuple):
    """One item of a `statuses` response."""

    task_id: str
    status: TaskStatus


@dataclass(slots=True)
class _Running:
    """A run that is claimed.

    Attributes:
        until: When the claim expires.
        task: The task's number.
    """

    until: float
    task: int


@dataclass(slots=True)
class Deployment:
    """The Queue of a simulation.

    Args:
        capacity: Requests per second that it can respond to.
        claim_seconds: How long a claim lasts.

    Attributes:
        is_down: Every request is refused at once, as while no replica runs.
        requests: The number of requests that arrived, by kind and second.
        expired: When claims expired.
        resolved: The number of runs that were reported.
        pending: The tasks that wait for a worker.
        clock: The time of the simulation.
    """

    capacity: float = math.inf
    claim_seconds: float = 1200.0
    is_down: bool = False
    requests: dict[str, Counter[int]] = field(default_factory=dict[str, "Counter[int]"])
    expired: list[float] = field(default_factory=list[float])
    resolved: int = 0
    pending: deque[int] = field(default_factory=deque[int])
    clock: VirtualClock = field(default_factory=VirtualClock)
    _running: dict[str, _Running] = field(default_factory=dict[str, _Running])
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque["asyncio.Future[None]"])
    _created: int = 0
    _claims: int = 0
    _free_at: float = 0.0

    def create_tasks(self, count: int = 1) -> None:
        """Let tasks become pending."""
        for _ in range(count):
            self._created += 1
            self._add(self._created)

    async def request(self, call: str) -> None:
        """Let a request arrive, and wait for its turn.

        Raises:
            errors.ConnectionFailed: The deployment is down.
        """
        now = self.clock.monotonic()
        self.requests.setdefault(call, Counter())[int(now)] += 1
        if self.is_down:
            await asyncio.sleep(REFUSAL)
            raise errors.ConnectionFailed(self.attempted(call, now), "connection refused")
        turn = self._free_at = max(self._free_at, now) + 1 / self.capacity
        await asyncio.sleep(turn - now + LATENCY)

    async def claim(self, count: int) -> list[TaskClaim]:
        """Claim up to `count` pending tasks; wait for the first one."""
        await self.request("claimWork")
        if not self.pending:
            await self._wait_for_work()
        return [self._claim(self.pending.popleft()) for _ in range(min(count, len(self.pending)))]

    async def reclaim(self, task_id: str) -> Reclaimed:
        """Extend a claim."""
        await self.request("reclaimTask")
        running = self._checked(task_id, "reclaimTask")
        running.until = self.clock.monotonic() + self.claim_seconds
        _, until = self._moments(running)
        return Reclaimed(taken_until=until, credentials=_CREDENTIALS)

    async def report(self, task_id: str) -> TaskStatusResponse:
        """Resolve a run."""
        await self.request("report")
        self._checked(task_id, "report")
        del self._running[task_id]
        self.resolved += 1
        return TaskStatusResponse(_EXPIRED)

    async def status(self, task_id: str) -> TaskStatusResponse:
        """Return the status of a run: it is running, or its claim has expired."""
        await self.request("status")
        return TaskStatusResponse(self._status_of(task_id))

    async def statuses(self, task_ids: Sequence[str]) -> list[StatusOf]:
        """Return the statuses of several runs."""
        await self.request("statuses")
        return [StatusOf(each, self._status_of(each)) for each in task_ids]

    async def give_up(self, task_id: str) -> None:
        """Let a task be pending again after the report of `worker-shutdown`."""
        await self.request("report")
        self._add(self._running.pop(task_id).task)

    def _add(self, task: int) -> None:
        self.pending.append(task)
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def _wait_for_work(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await asyncio.wait([waiting], timeout=LONG_POLL)
        waiting.cancel()

    def _claim(self, task: int) -> TaskClaim:
        now = self.clock.monotonic()
        self._claims += 1
        task_id = f"{self._claims:08d}Q0C0000000000A"  # has the form of a slugid
        running = self._running[task_id] = _Running(now + self.claim_seconds, task)
        asyncio.get_running_loop().call_at(now + self.claim_seconds, self._expire, task_id)
        started, until = self._moments(running)
        return TaskClaim(
            status=_status(task_id, started, until),
            run_id=0,
            worker_group="g",
            worker_id="w",
            taken_until=until,
            task_json=msgspec.Raw(b"{}"),
            credentials=_CREDENTIALS,
        )

    def _expire(self, task_id: str) -> None:
        running = self._running.get(task_id)
        if running is None:
            return
        if running.until > self.clock.monotonic():
            asyncio.get_running_loop().call_at(running.until, self._expire, task_id)
            return
        self.expired.append(self.clock.monotonic())
        del self._running[task_id]
        self._add(running.task)

    def _checked(self, task_id: str, call: str) -> _Running:
        if task_id not in self._running:
            attempted = self.attempted(call, self.clock.monotonic())
            raise errors.RequestConflict(attempted, errors.Refused(409, "RequestConflict", "claim expired"))
        return self._running[task_id]

    def _status_of(self, task_id: str) -> TaskStatus:
        return _RUNNING if task_id in self._running else _EXPIRED

    def _moments(self, running: _Running) -> tuple[datetime, datetime]:
        """Return the time, and when a claim expires, as the Queue writes them."""
        now = datetime.fromtimestamp(self.clock.now(), UTC)
        return now, now + timedelta(seconds=running.until - self.clock.monotonic())

    def attempted(self, call: str, started: float) -> errors.Attempted:
        """Describe a request that failed."""
        return errors.Attempted(call, "POST", "/", elapsed=self.clock.monotonic() - started)


class SimulatedQueue:
    """The part of `AsyncQueue` that a worker's claiming, reclaiming and reporting use.

    Args:
        deployment: The Queue.
    """

    credentials: Any = None

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def with_options(self, **_: object) -> SimulatedQueue:
        """Return the same client: retries and timeouts are left to the callers here."""
        return self

    def _use_retries(self, _: object) -> None:
        """Do nothing: retries are left to the callers here."""

    def with_credentials(self, _: object) -> SimulatedQueue:
        """Return the same client."""
        return self

    async def claim_work(self, task_queue_id: str, *, tasks: int, **_: object) -> ClaimWorkResponse:
        """See `AsyncQueue.claim_work`."""
        started = self._deployment.clock.monotonic()
        try:
            async with asyncio.timeout(LONG_POLL_TIMEOUT):
                return ClaimWorkResponse(await self._deployment.claim(tasks))
        except TimeoutError:
            attempted = self._deployment.attempted("claimWork", started)
            raise errors.CallTimedOut(attempted, task_queue_id) from None

    async def status(self, task_id: str) -> TaskStatusResponse:
        """See `AsyncQueue.status`."""
        return await self._deployment.status(task_id)

    async def iter_statuses(self, task_ids: Sequence[str]) -> AsyncIterator[StatusOf]:
        """See `AsyncQueue.iter_statuses`."""
        for each in await self._deployment.statuses(task_ids):
            yield each

    async def send(self, call: Call[Any]) -> object:
        """Create an artifact, or reclaim or report a run: the calls that a worker sends in this form."""
        if call.endpoint == "createArtifact":
            await self._deployment.request(call.endpoint)
            return None
        task_id = call.path.removeprefix("/").split("/")[1]
        if call.endpoint == "reclaimTask":
            return await self._deployment.reclaim(task_id)
        return await self._deployment.report(task_id)

    def now(self) -> datetime:
        """Return the time of the simulation."""
        return datetime.fromtimestamp(self._deployment.clock.now(), UTC)


def _status(task_id: str, now: datetime, until: datetime | None) -> TaskStatus:
    """Return the status of a task whose run is claimed until `until`; None: its claim has expired."""
    run = Run(
        run_id=0,
        state=RunState.RUNNING if until else RunState.EXCEPTION,
        reason_created=ReasonCreated.SCHEDULED,
        reason_resolved=None if until else ReasonResolved.CLAIM_EXPIRED,
        scheduled=now,
        started=now,
        taken_until=until,
    )
    return TaskStatus(
        task_id=task_id,
        provisioner_id="p",
        worker_type="w",
        task_group_id="g",
        deadline=now,
        expires=now,
        retries_left=5,
        state=TaskState.RUNNING if until else TaskState.EXCEPTION,
        runs=[run],
        task_queue_id="p/w",
    )


_RUNNING = _status("any", datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(1, UTC))
_EXPIRED = _status("any", datetime.fromtimestamp(0, UTC), None)
"""The statuses that polls for canceled runs find; the polls look at the state only."""
