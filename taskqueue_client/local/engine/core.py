"""What the parts of the engine share: the store, the clock, the settings, and transitions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec

from taskqueue_client.local.engine.times import SECOND
from taskqueue_client.local.messages import Message
from taskqueue_client.local.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Generator

    from taskqueue_client.clock import Clock
    from taskqueue_client.local.audience import Audience
    from taskqueue_client.local.engine.store import Store
    from taskqueue_client.local.storage import Storage


P = ParamSpec("P")

IssueCredentials = Callable[[str, list[str], int, int], dict[str, Any]]
"""Makes named temporary credentials in the queue's name: client id, scopes, start and expiry in ms."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a deployment is configured; durations are seconds.

    Attributes:
        claim_timeout: How long a claim holds (`TASK_CLAIM_TIMEOUT`).
        deadline_delay: How long after its deadline a task is resolved.
        resolver_interval: How often the resolvers look for work; 0 means at once.
        max_task_deadline_days: How far ahead a deadline may lie (`MAX_TASK_DEADLINE_DAYS`).
        worker_info_interval: How often a worker's and a task queue's activity is written down.
        long_poll: How long claimWork waits for a task.
    """

    claim_timeout: float = 1200
    deadline_delay: float = 0
    resolver_interval: float = 0
    max_task_deadline_days: float = 5
    worker_info_interval: float = 1800
    long_poll: float = 20


@dataclass(slots=True)
class Core:
    """The shared part.

    Attributes:
        audience: Gets each message after its transition was committed, in order.
        on_pending: Called after the commit with each task queue that got a pending task.
        on_resolved: Called after the commit of a transition that resolved tasks.
    """

    store: Store
    clock: Clock
    settings: Settings
    storage: Storage
    issue_credentials: IssueCredentials
    audience: Audience
    on_pending: Callable[[str], object] = field(default=lambda _: None)
    on_resolved: Callable[[], object] = field(default=lambda: None)
    _outbox: list[Message] = field(default_factory=list[Message])
    _pending: set[str] = field(default_factory=set[str])
    _resolved: bool = False
    _as_of: int | None = None

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.clock.now() * SECOND) if self._as_of is None else self._as_of

    @contextmanager
    def as_of(self, moment: int) -> Generator[None]:
        """Do the block at a moment that has passed, as if it had been noticed then; in milliseconds."""
        self._as_of = moment
        try:
            yield
        finally:
            self._as_of = None

    @contextmanager
    def transition(self) -> Generator[int]:
        """One transaction and the messages that belong to it; gives the time that all of it happens at.

        What was written before a refusal stays, as it does in the service; any other exception undoes
        the transition. No messages are sent after either.
        """
        try:
            with self.store.transaction(keep=Refusal):
                yield self.now()
        except BaseException:
            self._forget()
            raise
        self._after_commit()

    def send(self, make: Callable[P, Message], *args: P.args, **kwargs: P.kwargs) -> None:
        """Publish what `make` makes now once the transition is committed; nothing if nobody listens."""
        if self.audience:
            self._outbox.append(make(*args, **kwargs))

    def note_pending(self, task_queue_id: str) -> None:
        """A run of this queue becomes pending with the transition."""
        self._pending.add(task_queue_id)

    def note_resolved(self) -> None:
        """The dependency resolver gets work with the transition."""
        self._resolved = True

    def _after_commit(self) -> None:
        messages, pending, resolved = self._outbox, self._pending, self._resolved
        self._forget()
        for task_queue_id in pending:
            self.on_pending(task_queue_id)
        for message in messages:
            self.audience.publish(message)
        if resolved:
            self.on_resolved()

    def _forget(self) -> None:
        self._outbox, self._pending, self._resolved = [], set(), False
