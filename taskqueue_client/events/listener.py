"""Listening to the Queue's messages for as long as it takes, whatever the broker does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import InvalidArgument

from ._plan import make_plan
from ._supervisor import Supervisor
from ._within import within
from .duplicates import DuplicateFilter
from .event import Event, UnreadableMessage
from .exchanges import Binding
from .settings import PulseSettings
from .state import Counts, Gap, State, StateChange

if TYPE_CHECKING:
    from ._session import Delivery

_LOG = logging.getLogger(__name__)


class Listener:
    """Typed messages from the Queue's exchanges, at least once.

    Use it with `async with`, which returns when messages can come in, and iterate over it. Going on
    to the next event acknowledges the one before; so does leaving the block. Leaving the block by an
    exception gives the event at hand back to the queue, once: an event that came back before is
    dropped. Leaving by cancellation just gives it back. All that was not handed over goes back, too.

    When the connection ends, or the broker does not answer, or the queue is deleted, the listener
    connects, declares and binds again, and says so to `on_state`.

    Args:
        settings: The broker.
        bindings: What to listen to, as the exchanges of this package and `for_route`, `for_task` and
            `for_group` give it.
        queue: The name of a durable queue, `<name>` for `queue/<user>/<name>`. It keeps messages
            while nobody listens, and listeners to one queue share its messages. Bindings are only
            ever added to it. Without a name, the queue lasts as long as the connection.
        prefetch: The most messages that are here and not acknowledged; the rest waits at the broker.
            RabbitMQ takes back what is not acknowledged within its `consumer_timeout` (30 minutes).
        redeliveries: How often a message that failed may have come back before it is dropped. It also
            came back when it was here while a connection ended.
        duplicates: Leaves out what it knows; it is told of each event that was dealt with.
        reconcile: Called when the listener listens again, with the time in which messages may have
            been missed; it can read the status of what matters. When it fails, the listener connects
            again and calls it again.
        on_state: Called at each change of state.
        check_interval: Seconds between asking the broker for a sign of life and for the length of
            the queue.
        wait_initial: Seconds before the first attempt to connect again; doubled for each further
            one, and shortened by up to half at random.
        wait_max: The most seconds between attempts.
        clock: What all waiting goes by.

    Raises:
        InvalidArgument: A value that cannot be.
        ImportError: aio-pika is not installed.
    """

    def __init__(
        self,
        settings: PulseSettings,
        bindings: Iterable[Binding | Iterable[Binding]],
        *,
        queue: str | None = None,
        prefetch: int = 50,
        redeliveries: int = 1,
        duplicates: DuplicateFilter | None = None,
        reconcile: Callable[[Gap], Awaitable[object]] | None = None,
        on_state: Callable[[StateChange], object] | None = None,
        check_interval: float = 60,
        wait_initial: float = 1,
        wait_max: float = 60,
        clock: Clock | None = None,
    ) -> None:
        if redeliveries < 0:
            raise InvalidArgument("redeliveries", redeliveries, "0 or more")
        self._redeliveries = redeliveries
        self._duplicates = duplicates
        self._clock = clock or SystemClock()
        self._counts = Counts()
        self._at_hand: Delivery | None = None
        self._stopped = False
        self._supervisor = Supervisor(
            make_plan(settings, bindings, queue, prefetch),
            self._counts,
            reconcile=reconcile,
            on_state=on_state,
            check_interval=check_interval,
            wait_initial=wait_initial,
            wait_max=wait_max,
            clock=self._clock,
        )

    def __repr__(self) -> str:
        settings = self._supervisor.plan.settings
        return f"<Listener {settings} {self.queue or '(no queue yet)'} {self.state}>"

    @property
    def state(self) -> State:
        """Where it stands with its broker."""
        return self._supervisor.state

    @property
    def stopped(self) -> bool:
        """Whether no further event will be handed over."""
        return self._stopped

    @property
    def buffered(self) -> int:
        """How many messages are here and were not handed over; less than `prefetch`, or as many."""
        return len(self._supervisor.buffer)

    @property
    def counts(self) -> Counts:
        """What happened to messages so far."""
        return self._counts

    @property
    def queue(self) -> str | None:
        """The full name of the queue; None before one that lasts as long as the connection."""
        return self._supervisor.queue

    async def __aenter__(self) -> Self:
        """Begin to listen, however long it takes until there is a broker.

        Raises:
            BrokerRefused: The broker does not know the user, the virtual host or an exchange, or
                does not let the user have the queue.
        """
        self._supervisor.start()
        try:
            while not self._counts.connections:
                await self._supervisor.next_change()
        except BaseException:
            await self._supervisor.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._fail(leaving=True)
        elif error is None:
            self._acknowledge()
        self._stopped = True
        failure = await self._supervisor.close()
        if failure is not None and error is None:
            raise failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def get(self, timeout: float | None = None) -> Event | None:  # noqa: ASYNC109 - on our clock
        """Acknowledge the event before, and wait for the next one.

        Cancelling it loses no event.

        Args:
            timeout: In seconds; without one, wait for as long as it takes.

        Returns:
            The event; None if the time is up or the listener was stopped.

        Raises:
            Exception: What `on_state` raised.
        """
        self._acknowledge()
        if timeout is None:
            return await self._next_event()
        try:
            await within(self._clock, timeout, self._until_there_is_one())
        except TimeoutError:
            return None
        return await self._next_event()

    async def run(self, handler: Callable[[Event], Awaitable[object]]) -> None:
        """Await `handler` for each event until the listener is stopped.

        An event whose handler raises goes back to the queue, once: if it came back before, it is
        dropped. Either is logged and counted, and the next event's turn comes.
        """
        async for event in self:
            with rejecting(self.reject, event):
                await handler(event)

    def reject(self) -> None:
        """Say that the event at hand failed: it goes back to the queue, or is dropped."""
        self._fail(leaving=False)

    def stop(self) -> None:
        """End the iteration before the next event. To be called on the event loop's thread."""
        self._stopped = True
        self._supervisor.changed.set()

    def _acknowledge(self) -> None:
        delivery, self._at_hand = self._at_hand, None
        if delivery is None:
            return
        self._counts.acknowledged += 1
        if self._duplicates is not None:
            self._duplicates.remember(delivery.event)
        delivery.session.acknowledge(delivery.tag)

    def _fail(self, *, leaving: bool) -> None:
        delivery, self._at_hand = self._at_hand, None
        if delivery is None:
            return
        requeue = delivery.event.redeliveries < self._redeliveries
        if requeue:
            self._counts.returned += 1
        else:
            self._counts.dropped += 1
            _LOG.error("dropped a message that failed again: %s", delivery.event)
        if not (leaving and requeue):  # leaving returns it; giving it back before would bring it here again
            delivery.session.reject(delivery.tag, requeue=requeue)

    async def _next_event(self) -> Event | None:
        await self._until_there_is_one()
        if self._stopped:
            return None
        self._at_hand = self._supervisor.buffer.popleft()
        event = self._at_hand.event
        self._counts.received += 1
        self._counts.unreadable += isinstance(event.message, UnreadableMessage)
        return event

    async def _until_there_is_one(self) -> None:
        """Wait until there is an event to hand over, or none will be."""
        self._leave_out_duplicates()
        while not self._supervisor.buffer and not self._stopped:
            await self._supervisor.next_change()
            self._leave_out_duplicates()

    def _leave_out_duplicates(self) -> None:
        if self._duplicates is None:
            return
        buffer = self._supervisor.buffer
        while buffer and self._duplicates.knows(buffer[0].event):
            delivery = buffer.popleft()
            self._counts.duplicates += 1
            delivery.session.acknowledge(delivery.tag)


@contextmanager
def rejecting(reject: Callable[[], None], event: Event) -> Generator[None]:
    """Go on after a handler's error: it is logged, and what it was about is rejected."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, it is the handler's, and it is logged
        _LOG.exception("the handler failed for %s", event)
        reject()
