"""A run that this worker holds, as the keeper and the rest of the worker share it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from taskqueue_client._transport import Client
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.credentials import Credentials
from taskqueue_client.lease import Lease
from taskqueue_client.models import TaskClaim

from .outcomes import ClaimLost
from .run_state import HELD_IN, Event, State, after

C = TypeVar("C", bound=Client)


class LiveCredentials:
    """The credentials of a run, replaced by each renewal; safe to use from any thread.

    Attributes:
        current: What the last claim or renewal gave.
    """

    __slots__ = ("_followers", "_lock", "_watchers", "current")

    def __init__(self, credentials: Credentials) -> None:
        self.current = credentials
        self._followers: list[tuple[Client, tuple[str, ...] | None]] = []
        self._watchers: list[Callable[[Credentials], object]] = []
        self._lock = threading.Lock()

    def watch(self, tell: Callable[[Credentials], object]) -> None:
        """Tell of the current ones, and of each that replaces them."""
        with self._lock:
            self._watchers.append(tell)
            tell(self.current)

    def client(self, client: C, authorized_scopes: tuple[str, ...] | None = None) -> C:
        """A copy of a client that always signs with the current ones, restricted to some scopes if given."""
        with self._lock:
            follower = client.with_credentials(_restricted(self.current, authorized_scopes))
            self._followers.append((follower, authorized_scopes))
        return follower

    def replace(self, credentials: Credentials) -> None:
        """Use other ones from now on, in calls under way too."""
        with self._lock:
            self.current = credentials
            for follower, scopes in self._followers:
                follower.credentials = _restricted(credentials, scopes)
            for tell in self._watchers:
                tell(credentials)


def _restricted(credentials: Credentials, scopes: tuple[str, ...] | None) -> Credentials:
    return credentials if scopes is None else credentials.restricted_to(scopes)


class HeldRun:
    """A claimed run. Safe to use from any thread.

    Attributes:
        claim: As the service gave it.
        lease: How long it is ours.
        state: Where it stands.
        credentials: What everything on behalf of the run signs with.
        lost: Why it is not ours any more; None as long as it is.
    """

    __slots__ = (
        "_client",
        "_lock",
        "_queue",
        "_when_lost",
        "claim",
        "credentials",
        "lease",
        "lost",
        "state",
    )

    def __init__(self, claim: TaskClaim, lease: Lease, queue: AsyncQueue) -> None:
        self.claim = claim
        self.lease = lease
        self.state = State.CLAIMED
        self.credentials = LiveCredentials(claim.credentials)
        self._client = queue
        self._queue: AsyncQueue | None = None
        self.lost: ClaimLost | None = None
        self._when_lost: Callable[[ClaimLost], object] | None = None
        self._lock = threading.Lock()

    @property
    def task_id(self) -> str:
        """The task."""
        return self.claim.status.task_id

    @property
    def run_id(self) -> int:
        """The run."""
        return self.claim.run_id

    @property
    def queue(self) -> AsyncQueue:
        """The keeper's client for the run: one attempt a call, as the keeper counts them by the lease."""
        if self._queue is None:  # many runs end before their first renewal
            self._queue = self.credentials.client(self._client)
        return self._queue

    @property
    def is_held(self) -> bool:
        """Whether it is still ours."""
        return self.state in HELD_IN

    def __str__(self) -> str:
        return f"{self.task_id}/{self.run_id}"

    def when_lost(self, callback: Callable[[ClaimLost], object]) -> None:
        """Call `callback` when the run is lost, in the thread where it is; at once if it already is."""
        with self._lock:
            lost = self.lost
            if self.is_held:
                self._when_lost = callback
        if lost is not None:
            callback(lost)

    def apply(self, event: Event, reason: str = "") -> bool:
        """Let something happen; tell whether it changed anything.

        Args:
            event: What happens.
            reason: Why, for an event that loses the run.
        """
        with self._lock:
            before, self.state = self.state, after(self.state, event)
            if self.state is before:
                return False
            if self.state in HELD_IN:
                return True
            callback, self._when_lost = self._when_lost, None  # who is told refers to the run: free both
            if self.state is not State.LOST:
                return True
            lost = self.lost = ClaimLost(f"run {self} is not ours any more: {reason}")
        if callback is not None:
            callback(lost)
        return True
