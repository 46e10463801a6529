"""The shared parts of the engine: store, clock, settings, long polls, and the changes of a run's state."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from taskqueue_client.local import messages, times
from taskqueue_client.local.messages import Message
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.local.times import SECOND

from .task_records import Run, Task, save_runs

if TYPE_CHECKING:
    from collections.abc import Generator

    from taskqueue_client.clock import Clock
    from taskqueue_client.local.messages import Audience
    from taskqueue_client.local.storage import ArtifactStorage

    from .store import Store

P = ParamSpec("P")

IssueCredentials = Callable[[str, list[str], int, int], dict[str, Any]]
"""Makes named temporary credentials in the queue's name: client id, scopes, start and expiry in ms."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a deployment; durations are in seconds.

    Attributes:
        claim_timeout: The time until a claim expires (`TASK_CLAIM_TIMEOUT`).
        deadline_delay: The time from a task's deadline until the task is resolved.
        resolver_interval: The interval at which resolvers look for work; 0: they work at once.
        max_dependencies: The largest number of dependencies; the service enforces no less than 10,000.
        max_task_deadline_days: The latest deadline, in days from now (`MAX_TASK_DEADLINE_DAYS`).
        worker_info_interval: The interval at which the activity of workers and task queues is stored.
        long_poll: The time for which claimWork waits for a task.
    """

    claim_timeout: float = 1200
    deadline_delay: float = 0
    resolver_interval: float = 0
    max_task_deadline_days: float = 5
    max_dependencies: int = 10_000
    worker_info_interval: float = 1800
    long_poll: float = 20


@dataclass(slots=True)
class Core:
    """The state and the services that all endpoints and resolvers share.

    Attributes:
        audience: Gets each message after its transition was committed, in order.
        long_polls: The claimWork requests that wait for tasks.
        noted: When a worker or a task queue was last recorded as active, in ms; not stored.
        on_resolved: Called after the commit of a transition that resolved tasks.
    """

    store: Store
    clock: Clock
    settings: Settings
    storage: ArtifactStorage
    issue_credentials: IssueCredentials
    audience: Audience
    long_polls: LongPolls = field(init=False)
    noted: dict[str, int] = field(default_factory=dict[str, int])
    on_resolved: Callable[[], object] = field(default=lambda: None)
    _outbox: list[Message] = field(default_factory=list[Message])
    _pending: set[str] = field(default_factory=set[str])
    _resolved: bool = False
    _as_of: int | None = None

    def __post_init__(self) -> None:
        self.long_polls = LongPolls(self.clock)

    def now(self) -> int:
        """Return the milliseconds since the epoch."""
        return int(self.clock.now() * SECOND) if self._as_of is None else self._as_of

    @contextmanager
    def as_of(self, moment: int) -> Generator[None]:
        """Let the time be a past moment, in milliseconds, while the block runs."""
        self._as_of = moment
        try:
            yield
        finally:
            self._as_of = None

    @contextmanager
    def transition(self) -> Generator[int]:
        """Run the block as one transaction with its messages; give the time at which all of it happens.

        A refusal keeps the changes before it, as in the service; any other exception undoes the
        transition. No messages are sent after either.
        """
        try:
            with self.store.transaction(keep=Refusal):
                yield self.now()
                for message in self._outbox:
                    for store in self.audience.stores:
                        store(message)
        except BaseException as error:
            self._forget()
            if not isinstance(error, Refusal):
                self.noted.clear()
            raise
        self._after_commit()

    def send(self, make: Callable[P, Message], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make a message, and publish it once the transition is committed; nothing without listeners."""
        if self.audience.listeners:
            self._outbox.append(make(*args, **kwargs))

    def note_pending(self, task_queue_id: str) -> None:
        """Wake a claimWork request after the transition: a run of the task queue becomes pending."""
        self._pending.add(task_queue_id)

    def note_resolved(self) -> None:
        """Call `on_resolved` after the transition: the dependency resolver gets work."""
        self._resolved = True

    def _after_commit(self) -> None:
        outbox, pending, resolved = self._outbox, self._pending, self._resolved
        self._forget()
        for task_queue_id in pending & self.long_polls.by_queue.keys():
            self.long_polls.wake(task_queue_id)
        for message in outbox:
            self.audience.publish(message)
        if resolved:
            self.on_resolved()

    def _forget(self) -> None:
        self._outbox, self._pending, self._resolved = [], set(), False


Claims = TypeVar("Claims")


class LongPolls:
    """The claimWork requests that wait for tasks, first come, first served.

    Only the first request of a task queue is woken; it wakes the next one when it ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_queue: defaultdict[str, deque[asyncio.Event]] = defaultdict(deque)

    def wake(self, task_queue_id: str) -> None:
        """Let the first request of a task queue look for tasks."""
        self.by_queue[task_queue_id][0].set()

    async def wait(
        self, task_queue_id: str, seconds: float, claim: Callable[[], list[Claims]]
    ) -> list[Claims]:
        """Call `claim` when it is this request's turn, until it returns claims; `[]` after `seconds`.

        Nothing is claimed for a canceled request.
        """
        if task_queue_id not in self.by_queue and (claims := claim()):
            return claims
        turn = asyncio.Event()
        self.by_queue[task_queue_id].append(turn)
        timer = asyncio.create_task(self._clock.sleep_async(seconds), name=f"long poll of {task_queue_id}")
        timer.add_done_callback(lambda _: turn.set())
        try:
            return await self._until(turn, timer, claim)
        finally:
            timer.cancel()
            self._leave(task_queue_id, turn)

    async def _until(
        self, turn: asyncio.Event, timer: asyncio.Task[None], claim: Callable[[], list[Claims]]
    ) -> list[Claims]:
        while True:
            await turn.wait()
            turn.clear()
            claims = claim()
            if claims or timer.done():
                return claims

    def _leave(self, task_queue_id: str, turn: asyncio.Event) -> None:
        turns = self.by_queue[task_queue_id]
        turns.remove(turn)
        if turns:
            turns[0].set()
        else:
            del self.by_queue[task_queue_id]


MAX_RUNS = 50

RETRIES = {"claim-expired": "retry", "worker-shutdown": "retry", "intermittent-task": "task-retry"}
"""The reasons of exceptions that are retried, with the `reasonCreated` of the retry."""


def add_run(core: Core, task: Task, reason: str, now: int) -> Run:
    """Add a pending run, last in the order of its priority."""
    run = append_run(task, reason, now)
    save_runs(core.store, task)
    enqueue(core, task, now)
    return run


def append_run(task: Task, reason: str, now: int) -> Run:
    """Add a pending run, without storing it."""
    run = Run(run_id=len(task.runs), state="pending", reason_created=reason, scheduled=times.text(now))
    task.runs.append(run)
    return run


def enqueue(core: Core, task: Task, now: int) -> None:
    """Make a task's new run the last pending one of its priority, unless its deadline has passed."""
    if task.deadline <= now:
        # in the very millisecond of the deadline a rerun is allowed, and its resolver may have been there
        core.store.change("UPDATE tasks SET deadline_open = 1 WHERE task_id = ?", task.task_id)
        return
    core.store.change(
        "INSERT INTO pending (task_queue_id, priority, inserted, expires, task_id, run_id)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        task.task_queue_id,
        task.priority,
        now,
        task.deadline,
        task.task_id,
        task.runs[-1].run_id,
    )
    core.note_pending(task.task_queue_id)


def cancel(core: Core, task: Task, reason: str, now: int) -> Run | None:
    """Resolve a task as an exception, and return its last run; None if it was resolved before."""
    if not task.runs:
        return _add_ended_run(core, task, reason, now)
    run = task.runs[-1]
    if run.is_resolved:
        return None
    finish(core, task, run, reason, now)
    return run


def _add_ended_run(core: Core, task: Task, reason: str, now: int) -> Run:
    """Add the run of a task that is resolved before it was scheduled."""
    moment = times.text(now)
    run = Run(
        run_id=0,
        state="exception",
        reason_created="exception",
        reason_resolved=reason,
        scheduled=moment,
        resolved=moment,
    )
    task.runs.append(run)
    save_runs(core.store, task)
    return run


def start(core: Core, task: Task, run: Run, worker: tuple[str, str], now: int) -> int:
    """Give a pending run to a worker; return when its claim expires, in milliseconds."""
    taken_until = record_claim(core, task, run.run_id, worker, now)
    run.state = "running"
    run.worker_group, run.worker_id = worker
    run.taken_until = times.text(taken_until)
    run.started = times.text(now)
    save_runs(core.store, task)
    _leave_queue(core, task, run)
    return taken_until


def record_claim(
    core: Core, task: Task, run_id: int, worker: tuple[str, str], now: int, *, is_granted: bool = True
) -> int:
    """Write a claim record that starts now; return when the claim expires, in milliseconds.

    On a held clock, two workers may claim at the same time: a claim that may yet be refused (`is_granted` is
    false) does not replace that of the other worker.
    """
    taken_until = now + int(core.settings.claim_timeout * times.SECOND)
    insert = "INSERT OR REPLACE" if is_granted else "INSERT OR IGNORE"
    core.store.change(
        f"{insert} INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)",
        task.task_id,
        run_id,
        taken_until,
        task.task_queue_id,
        *worker,
        now,
    )
    return taken_until


def finish(core: Core, task: Task, run: Run, reason: str, now: int) -> None:
    """Resolve a run: as `exception`, unless the reason is `completed` or `failed`."""
    was_pending = run.state == "pending"
    run.state = reason if reason in {"completed", "failed"} else "exception"
    run.reason_resolved, run.resolved = reason, times.text(now)
    save_runs(core.store, task)
    if was_pending:
        _leave_queue(core, task, run)


def finish_with_exception(core: Core, task: Task, run: Run, reason: str, now: int) -> None:
    """Resolve a run as an exception; add a retry if the reason and `retriesLeft` allow that."""
    finish(core, task, run, reason, now)
    if reason in RETRIES and task.retries_left > 0:
        task.retries_left -= 1
        add_run(core, task, RETRIES[reason], now)


def send_exception(core: Core, task: Task, run: Run) -> bool:
    """Send the message about a run's exception, and that about its retry; return whether there is one."""
    core.send(messages.resolved, task, run)
    last, is_retry = task.runs[-1], task.runs[-1].reason_created in RETRIES.values()
    is_retried = run.run_id == len(task.runs) - 2 and last.state == "pending" and is_retry
    if is_retried:
        core.send(messages.pending, task, last)
    return is_retried


def drop_claims(core: Core, task_id: str, run_id: int) -> None:
    """Forget all claims of a run."""
    core.store.change("DELETE FROM claims WHERE task_id = ? AND run_id = ?", task_id, run_id)


def note_resolution(core: Core, task: Task, resolution: str, now: int) -> None:
    """Store a task's resolution for the dependency resolver."""
    core.store.change(
        "INSERT INTO resolved (task_id, task_group_id, resolution, inserted) VALUES (?, ?, ?, ?)",
        task.task_id,
        task.task_group_id,
        resolution,
        now,
    )
    core.note_resolved()


def _leave_queue(core: Core, task: Task, run: Run) -> None:
    core.store.change("DELETE FROM pending WHERE task_id = ? AND run_id = ?", task.task_id, run.run_id)
