"""A transfer as a conversation: written once, performed by either client.

It is a generator that yields what it wants done (a call, a wait, a PUT, work that blocks) and is sent
the result. `performing` does that on the caller's thread, `awaiting` from an event loop, on whose thread
nothing blocks.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from taskqueue_client._call import AsyncCaller, Call, Caller
from taskqueue_client._retry import RetryPolicy
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials

from .cancellation import Cancellation
from .connections import Timeouts
from .sources import Source
from .storage import Put, Storage

R = TypeVar("R")

StorageName = Literal["s3", "object"]


class _Step(Generic[R]):
    """Makes `result = yield from step` read, and type, like `result = await step`."""

    __slots__ = ()

    def __iter__(self) -> Generator[Self, Any, R]:
        result: R = yield self
        return result


@dataclass(frozen=True, slots=True)
class Authorized(_Step[R]):
    """A call with credentials that are not the client's own."""

    call: Call[R]
    credentials: Credentials | None


@dataclass(frozen=True, slots=True)
class Work(_Step[R]):
    """Something that blocks: on a disk, on storage, or on a processor."""

    do: Callable[[Storage, Cancellation], R]


@dataclass(frozen=True, slots=True)
class Sending(_Step[dict[str, str]]):
    """One attempt at a PUT; gives the hashes of what was sent."""

    put: Put


@dataclass(frozen=True, slots=True)
class Pause(_Step[None]):
    """A wait, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Collecting(_Step[Source]):
    """Puts what an asynchronous iterable gives into a temporary file."""

    blocks: AsyncIterable[bytes]


Step = Call[Any] | Authorized[Any] | Work[Any] | Sending | Pause | Collecting

Steps = Generator[Step, Any, R]
"""A conversation that ends in an R."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What transfers need to know of a client.

    Attributes:
        retry: How often transfers are tried, and how long they may stand still. A body takes as long as
            it takes, so the policy's `timeout`, which is for calls, does not count.
        clock: What waits between attempts are on.
        server_time: The service's time, in seconds since the epoch.
        storage: Where artifacts go unless a call says otherwise.
    """

    retry: RetryPolicy
    clock: Clock
    server_time: Callable[[], float]
    storage: StorageName

    @property
    def timeouts(self) -> Timeouts:
        """Of one attempt."""
        return Timeouts(self.retry.connect_timeout, self.retry.read_timeout)


class Client(Caller, Protocol):
    """A client that blocks, as far as transfers know it."""

    @property
    def storage(self) -> Storage:
        """Where artifacts go."""
        ...

    @property
    def transfer_settings(self) -> Settings:
        """How they go there."""
        ...

    def with_credentials(self, credentials: Credentials | None) -> Caller:
        """A client for somebody else, over the same connections."""
        ...


class AsyncClient(AsyncCaller, Protocol):
    """A client whose answers are awaited, as far as transfers know it."""

    @property
    def storage(self) -> Storage:
        """Where artifacts go."""
        ...

    @property
    def transfer_settings(self) -> Settings:
        """How they go there."""
        ...

    def with_credentials(self, credentials: Credentials | None) -> AsyncCaller:
        """A client for somebody else, over the same connections."""
        ...


def releasing(release: Callable[[], object], steps: Steps[R]) -> Steps[R]:
    """The result of `steps`, after which `release` is called whatever happened.

    Removing a large file takes long enough to be done on a thread.
    """
    try:
        result = yield from steps
    except GeneratorExit:  # nobody performs any more steps
        release()
        raise
    except BaseException:
        yield from Work(lambda _storage, _cancellation: release())
        raise
    yield from Work(lambda _storage, _cancellation: release())
    return result
