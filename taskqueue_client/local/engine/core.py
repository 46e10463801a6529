"""The shared parts of the engine: store, clock, settings, transactions with their messages, long polls."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from taskqueue_client.clock import Clock
from taskqueue_client.local.messages import Audience, Message
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.local.times import milliseconds

from .store import Store

if TYPE_CHECKING:
    from taskqueue_client.local.storage import ArtifactStorage

P = ParamSpec("P")

Json = dict[str, Any]
"""A JSON object, such as the body of a request or of a response."""

IssueCredentials = Callable[[str, list[str], int, int], Json]
"""Makes named temporary credentials in the queue's name: client id, scopes, start and expiry in ms."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a deployment; durations are in seconds.

    Attributes:
        claim_timeout: The time until a claim expires (`TASK_CLAIM_TIMEOUT`).
        deadline_delay: The time from a task's deadline until the task is resolved.
        resolver_interval: The interval at which resolvers look for work; 0: they work at once.
        max_dependencies: The largest number of dependencies; the service enforces no less than 10,000.
    """

    claim_timeout: float = 1200
    deadline_delay: float = 0
    resolver_interval: float = 0
    max_dependencies: int = 10_000


@dataclass(slots=True)
class Core:
    """The state and the services that all endpoints and resolvers share.

    Attributes:
        audience: Gets each message after its transition was committed, in order.
        noted: When a worker or a task queue was last recorded as active, in ms; not stored.
        seen: When a worker of a task queue last asked for tasks or reclaimed, in ms; not stored.
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
    seen: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    on_resolved: Callable[[], object] = field(default=lambda: None)
    _outbox: list[Message] = field(default_factory=list[Message])
    _pending: set[str] = field(default_factory=set[str])
    _resolved: bool = False
    _as_of: int | None = None

    def __post_init__(self) -> None:
        self.long_polls = LongPolls(self.clock)

    def now(self) -> int:
        """Return the milliseconds since the epoch."""
        return milliseconds(self.clock.now()) if self._as_of is None else self._as_of

    @contextmanager
    def as_of(self, moment: int) -> Generator[None]:
        """Make `now` return a past moment, in milliseconds, while the block runs."""
        self._as_of = moment
        try:
            yield
        finally:
            self._as_of = None

    @contextmanager
    def transition(self) -> Generator[int]:
        """Run the block as one transaction with its messages; yield the time of all its changes, in ms.

        A `Refusal` keeps the changes that were made before it, as in the service; any other exception
        undoes them. No messages are sent in either case.
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
        """Make a message, and publish it once the transition is committed; do nothing without listeners."""
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
        self.long_polls.wake(pending)
        for message in outbox:
            self.audience.publish(message)
        if resolved:
            self.on_resolved()

    def _forget(self) -> None:
        self._outbox, self._pending, self._resolved = [], set(), False


Claim = TypeVar("Claim")


class LongPolls:
    """The claimWork requests that wait for tasks, first come, first served.

    Only the first request of a task queue is woken; it wakes the next one when it ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_queue: defaultdict[str, deque[asyncio.Event]] = defaultdict(deque)

    def wake(self, task_queue_ids: set[str]) -> None:
        """Let the first request of each of these task queues look for tasks."""
        for task_queue_id in task_queue_ids & self._by_queue.keys():
            self._by_queue[task_queue_id][0].set()

    async def wait(self, task_queue_id: str, seconds: float, claim: Callable[[], list[Claim]]) -> list[Claim]:
        """Call `claim` each time this request is woken, until it returns claims; `[]` after `seconds`."""
        if task_queue_id not in self._by_queue and (claims := claim()):
            return claims
        turn = asyncio.Event()
        self._by_queue[task_queue_id].append(turn)
        timer = asyncio.create_task(self._clock.sleep_async(seconds), name=f"long poll of {task_queue_id}")
        timer.add_done_callback(lambda _: turn.set())
        try:
            while True:
                await turn.wait()
                turn.clear()
                claims = claim()
                if claims or timer.done():
                    return claims
        finally:
            timer.cancel()
            self._leave(task_queue_id, turn)

    def _leave(self, task_queue_id: str, turn: asyncio.Event) -> None:
        turns = self._by_queue[task_queue_id]
        turns.remove(turn)
        if turns:
            turns[0].set()
        else:
            del self._by_queue[task_queue_id]
