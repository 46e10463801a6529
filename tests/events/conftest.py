"""Fixtures: a broker, a publisher, and a wire between the broker and a listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.events import AsyncListener, PulseSettings, State, StateChange
from taskqueue_client.local import LocalQueue
from taskqueue_client.slugid import slugid
from tests.events.messages_published import Publisher
from tests.events.proxy import Proxy


@pytest.fixture
def settings(broker_url: str) -> PulseSettings:
    """The settings for a direct connection to the broker."""
    return PulseSettings.from_url(broker_url)


@pytest.fixture
async def publisher(broker_url: str) -> AsyncIterator[Publisher]:
    """A publisher in place of the Queue, with its own connection to the broker."""
    publisher = await Publisher.connect(broker_url)
    yield publisher
    await publisher.close()


@pytest.fixture
async def wire(settings: PulseSettings) -> AsyncIterator[Proxy]:
    """A wire to the broker, which the test can cut."""
    proxy = Proxy(settings.host, settings.effective_port)
    await proxy.open()
    yield proxy
    proxy.speak()
    await proxy.shut()


@pytest.fixture
def through_wire(settings: PulseSettings, wire: Proxy) -> PulseSettings:
    """The settings for a connection to the broker through the wire."""
    return PulseSettings(
        host="127.0.0.1",
        port=wire.port,
        tls=False,
        user=settings.user,
        password=settings.password,
        vhost=settings.vhost,
    )


@pytest.fixture
def local(broker_url: str) -> Iterator[LocalQueue]:
    """A local queue that publishes messages."""
    with LocalQueue(amqp_url=broker_url) as local:
        yield local


@pytest.fixture
def pool() -> str:
    """The id of a task queue that no other test uses."""
    return f"test-{slugid()}/w"


@pytest.fixture
async def queue(publisher: Publisher, settings: PulseSettings) -> AsyncIterator[str]:
    """The name of a durable queue, which is deleted after the test."""
    name = f"test-{slugid()}"
    yield name
    await publisher.channel.queue_delete(f"queue/{settings.user}/{name}")


class States:
    """The states that a listener reported, and a way to wait for one."""

    def __init__(self) -> None:
        self.changes: list[StateChange] = []
        self._changed = asyncio.Event()

    def __call__(self, change: StateChange) -> None:
        self.changes.append(change)
        self._changed.set()

    @property
    def names(self) -> list[State]:
        return [change.state for change in self.changes]

    async def until(self, met: Callable[[list[State]], bool]) -> None:
        """Wait until `met` returns True for the states so far."""
        while not met(self.names):
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 60)


@pytest.fixture
async def states() -> States:
    """A recorder of states, to be passed as `on_state`."""
    return States()


async def until_buffered(listener: AsyncListener, count: int) -> None:
    """Wait until the listener has received `count` messages that it has not yielded yet."""
    while listener.buffered < count:
        await listener._supervisor.next_change()  # pyright: ignore[reportPrivateUsage] # as its iteration does


class WatchedClock(MovableClock):
    """A held clock that knows who sleeps on it."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.slept: list[float] = []
        self._sleepers: list[float] = []
        self._began = asyncio.Event()

    async def sleep_async(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._sleepers.append(seconds)
        self._began.set()
        try:
            await super().sleep_async(seconds)
        finally:
            self._sleepers.remove(seconds)

    async def sleeper(self, least: float = 0, most: float | None = None) -> float:
        """Wait until somebody sleeps for `least` to `most` seconds; return for how long."""
        most = most or least or float("inf")
        while not (found := [each for each in self._sleepers if least <= each <= most]):
            self._began.clear()
            await asyncio.wait_for(self._began.wait(), 60)
        return found[0]

    async def move_a_sleeper(self, least: float = 0, most: float | None = None) -> None:
        """Wait for a sleeper, as `sleeper` does, and advance the clock by the time of its sleep."""
        length = await self.sleeper(least, most)
        await asyncio.sleep(0)  # now the sleeper, which had only begun, waits on the clock
        self.advance(length)
