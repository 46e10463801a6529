"""Listeners: typed messages from the Queue's exchanges, with automatic reconnects."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from taskqueue_client import _arguments as arguments
from taskqueue_client._protocol.threads_and_tasks import end_other_tasks
from taskqueue_client.clock import Clock, SystemClock

from ._supervisor import Supervisor, WrongFunction, awaitable, check_finished, within
from .event import Counts, DuplicateFilter, Event, Gap, State, StateChange, UnreadableMessage
from .exchanges import Binding
from .settings import PulseSettings, make_plan

if TYPE_CHECKING:
    from ._broker_session import Delivery

_LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
HookResult = TypeVar("HookResult")
"""The result of a reconcile hook; an awaitable is awaited."""


class _Consumer(ABC, Generic[HookResult]):
    """The arguments and the state of both listeners."""

    def __init__(
        self,
        settings: PulseSettings,
        bindings: Iterable[Binding | Iterable[Binding]],
        *,
        queue: str | None = None,
        prefetch: int = 50,
        redeliveries: int = 1,
        duplicates: DuplicateFilter | None = None,
        reconcile: Callable[[Gap], HookResult] | None = None,
        on_state: Callable[[StateChange], object] | None = None,
        check_interval: float = 60,
        wait_initial: float = 1,
        wait_max: float = 60,
        clock: Clock | None = None,
    ) -> None:
        arguments.number("redeliveries", redeliveries, least=0)
        arguments.check_kind("duplicates", duplicates, DuplicateFilter | None, "a DuplicateFilter, or None")
        arguments.check_kind("clock", clock, Clock | None)
        if on_state is not None:
            arguments.check_callback("on_state", on_state)
        self._redeliveries = redeliveries
        self._duplicates = duplicates
        self._clock = clock or SystemClock()
        self._counts = Counts()
        self._current: Delivery | None = None
        self._stopped = False
        self._is_running = False
        self._opened = False
        self._waiting: asyncio.Task[Any] | None = None
        self._supervisor = Supervisor(
            make_plan(settings, bindings, queue, prefetch),
            self._counts,
            reconcile=None if reconcile is None else self._asynchronous(reconcile),
            on_state=on_state,
            check_interval=check_interval,
            wait_initial=wait_initial,
            wait_max=wait_max,
            clock=self._clock,
        )

    @staticmethod
    @abstractmethod
    def _asynchronous(hook: Callable[[Gap], HookResult]) -> Callable[[Gap], Awaitable[object]]:
        """Return a coroutine function that calls the hook."""

    def __repr__(self) -> str:
        if not hasattr(self, "_supervisor"):  # a traceback may show the local variables of `__init__`
            return super().__repr__()
        settings = self._supervisor.plan.settings
        return f"<{type(self).__name__} {settings} {self.queue or '(no queue yet)'} {self.state}>"

    @property
    def state(self) -> State:
        """The state of the connection."""
        return self._supervisor.state

    @property
    def stopped(self) -> bool:
        """Whether the listener was stopped and hands over no more events."""
        return self._stopped

    @property
    def buffered(self) -> int:
        """The number of received messages that were not handed over; at most `prefetch` per connection."""
        return len(self._supervisor.buffer)

    @property
    def counts(self) -> Counts:
        """Counters of messages."""
        return self._counts

    @property
    def queue(self) -> str | None:
        """The full name of the queue; None before a queue without a name was declared."""
        return self._supervisor.queue

    def reject(self) -> None:
        """Return the current event to the queue, or drop it if it was delivered too often."""
        self._on_loop_thread(lambda: self._fail(leaving=False))

    def _open_once(self) -> None:
        """Refuse to enter a second block: it would receive nothing, or share the queue of the first one."""
        if self._opened:
            raise RuntimeError("the listener was opened before; create another one")
        self._opened = True

    async def _open(self) -> None:
        self._supervisor.start()
        try:
            while not (self._counts.connections or self._stopped):
                await self._supervisor.next_change()
        except BaseException:
            await self._supervisor.close()
            self._opened = False  # nothing was received, so the program may retry
            raise

    async def _close(self, error: BaseException | None) -> None:
        self._supervisor.raise_if_elsewhere()
        if self._is_running:
            self._current = None  # the event returns to the queue: its handler may still fail
        elif isinstance(error, Exception):
            self._fail(leaving=True)
        elif error is None:
            self._acknowledge()
        self._stop()  # also ends the wait of a task or thread for an event
        failure = await self._supervisor.close()
        if failure is not None and error is None:
            raise failure

    async def _get(self, timeout: float | str | None) -> Event | None:  # noqa: ASYNC109 - measured on `clock`
        limit = arguments.seconds("timeout", timeout)
        if self._waiting is not None and not self._waiting.cancelling():
            raise RuntimeError(
                "the listener is already waiting for an event: use it in one task or thread, "
                "as reading an event acknowledges the one before"
            )
        self._waiting = waiting = asyncio.current_task()
        try:
            self._acknowledge()
            if not await self._is_available(limit):
                return None
            self._current = delivery = self._supervisor.buffer.popleft()
            self._counts.received += 1
            self._counts.unreadable += isinstance(delivery.event.message, UnreadableMessage)
            return delivery.event
        finally:
            if self._waiting is waiting:
                self._waiting = None

    def _stop(self) -> None:
        self._stopped = True
        self._supervisor.changed.set()

    def _take_current(self) -> Delivery | None:
        delivery, self._current = self._current, None
        return delivery

    def _acknowledge(self) -> None:
        if (delivery := self._take_current()) is None:
            return
        self._counts.acknowledged += 1
        if self._duplicates is not None:
            self._duplicates.remember(delivery.event)
        delivery.session.acknowledge(delivery.tag)

    def _on_loop_thread(self, callback: Callable[[], None]) -> None:
        callback()

    @contextmanager
    def _running(self) -> Generator[None]:
        """Let `_close` know that the current event is one of `run`."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    @contextmanager
    def _handling(self, event: Event) -> Generator[None]:
        """Reject an event whose handler fails; put it back if the handler is interrupted, as by Ctrl-C."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, WrongFunction) or not isinstance(error, Exception):
                self._on_loop_thread(self._put_back)
                raise
            _LOG.exception("handler failed for %s", event)
            self.reject()

    def _put_back(self) -> None:
        """Put the current event back: the next `get` returns it, or closing returns it to the queue."""
        if self._current is not None:
            self._supervisor.buffer.appendleft(self._current)
            self._current = None

    def _fail(self, *, leaving: bool) -> None:
        if (delivery := self._take_current()) is None:
            return
        if delivery.event.redeliveries >= self._redeliveries:
            self._counts.dropped += 1
            deliveries = delivery.event.redeliveries + 1
            _LOG.error("message dropped: its handler failed in delivery %d: %s", deliveries, delivery.event)
            delivery.session.reject(delivery.tag, requeue=False)
            return
        self._counts.returned += 1
        if not leaving:  # otherwise closing returns it: rejected now, it would be delivered here again
            self._supervisor.redeliver(delivery)

    async def _is_available(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - measured on `clock`
        """Wait, and return whether there is an event to hand over."""
        if timeout is None:
            await self._until_available()
        else:
            try:
                await within(self._clock, timeout, self._until_available())
            except TimeoutError:
                self._supervisor.raise_if_over()  # it may be a TimeoutError of `on_state`
        return bool(self._supervisor.buffer) and not self._stopped

    async def _until_available(self) -> None:
        """Wait until there is an event to hand over, or the listener is stopped."""
        self._drop_duplicates()
        while not self._supervisor.buffer and not self._stopped:
            await self._supervisor.next_change()
            self._drop_duplicates()

    def _drop_duplicates(self) -> None:
        if self._duplicates is None:
            return
        buffer = self._supervisor.buffer
        while buffer and self._duplicates.knows(buffer[0].event):
            delivery = buffer.popleft()
            self._counts.duplicates += 1
            delivery.session.acknowledge(delivery.tag)


class AsyncListener(_Consumer[Awaitable[object]]):
    """Receives typed messages from the Queue's exchanges, at least once, in `async with` and `async for`.

    Entering the `async with` block returns when the queue and its bindings are declared. Going on to the
    next event acknowledges the current one, and so does leaving the block. Leaving the block by an
    exception returns the current event to the queue, or drops it if it was delivered `redeliveries` times
    before. Leaving by cancellation always returns it, and so does leaving while a handler of `run` still
    works on it. Events that were not handed over return to the queue.

    A listener is opened once and read by one task: reading an event acknowledges the one before.

    If the connection ends, the broker does not respond, or the queue is deleted, the listener connects,
    declares and binds again, and calls `on_state`.

    Args:
        settings: The broker.
        bindings: The messages to receive: bindings made by the exchanges of this package, `for_route`,
            `for_task` and `for_group`.
        queue: The name of a durable queue, `<name>` of `queue/<user>/<name>`. It keeps messages while no
            listener is connected; listeners of one queue share its messages. Bindings are added to a
            durable queue and never removed. By default the queue ends with the connection.
        prefetch: The largest number of messages that are received but not acknowledged. RabbitMQ takes
            all of them back if one is not acknowledged within its `consumer_timeout` (30 minutes) from its
            delivery: the handlers of `prefetch` messages together must take less time.
        redeliveries: How often a message whose handler failed is delivered again before it is dropped. Each
            delivery counts, also if a lost connection interrupted it, or the listener ended before it handed
            the message over: use a larger number if messages are to be retried after restarts.
        duplicates: Leaves out events that were acknowledged before.
        reconcile: Called with the `Gap` when the listener is connected again: messages may have been lost,
            so read the status of the tasks that matter. If it raises, the listener reconnects and calls it
            again. An asynchronous function; a `Listener` calls a plain function on a separate thread.
        on_state: Called with each `StateChange`; must not block.
        check_interval: Seconds between checks of the connection, the bindings and the length of the queue.
        wait_initial: Seconds before the first reconnect, doubled for each retry, with jitter. A message or a
            successful check resets the wait.
        wait_max: The longest wait between reconnects, in seconds.
        clock: The clock for all waiting.

    Raises:
        InvalidArgument: An argument is not allowed.
        ImportError: aio-pika is not installed (the extra `events`).
    """

    @staticmethod
    def _asynchronous(hook: Callable[[Gap], Awaitable[object]]) -> Callable[[Gap], Awaitable[object]]:
        arguments.check_function("reconcile", hook)
        return lambda gap: awaitable("reconcile", hook(gap))

    async def __aenter__(self) -> Self:
        """Connect, retrying until there is a broker or the listener is stopped.

        Raises:
            BrokerRefused: The broker refused the user, the virtual host, an exchange or the queue.
            OSError: The `ca_file` of `settings` cannot be read.
            RuntimeError: The listener was opened before.
        """
        self._open_once()
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def get(self, timeout: float | str | None = None) -> Event | None:  # noqa: ASYNC109 - measured on `clock`
        """Acknowledge the current event and wait for the next one. Cancellation loses no event.

        Args:
            timeout: In seconds, or text such as `5 minutes`; no limit by default.

        Returns:
            The event; None after the timeout, or if the listener was stopped.

        Raises:
            RuntimeError: Another task waits for an event of this listener, or another loop has opened it.
            Exception: An error raised by `on_state`.
        """
        return await self._get(timeout)

    async def run(self, handler: Callable[[Event], Awaitable[object]]) -> None:
        """Await `handler` for each event until the listener is stopped.

        If the handler raises, the error is logged and the event rejected; see `reject`. If it is canceled,
        the next `get` returns the event again, or closing the listener returns it to the queue.

        Raises:
            InvalidArgument: `handler` is not a function.
        """
        arguments.check_function("handler", handler)
        with self._running():
            async for event in self:
                with self._handling(event):
                    await awaitable("handler", handler(event))

    def stop(self) -> None:
        """End the iteration before the next event. Call it on the event loop's thread."""
        self._stop()


class Listener(_Consumer[object]):
    """Receives typed messages from the Queue's exchanges, at least once, in `with` and `for`.

    The arguments are those of `AsyncListener`, and the functions are not asynchronous. Connection and
    acknowledgments are handled on a separate thread, where `on_state` is called; `reconcile` is called on a
    third thread, where it may block. One thread reads the events, in the process that opened the listener.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _returned: Event | None = None

    @staticmethod
    def _asynchronous(hook: Callable[[Gap], object]) -> Callable[[Gap], Awaitable[object]]:
        arguments.check_callback("reconcile", hook)  # now, not in weeks, when there is a gap

        async def call(gap: Gap) -> None:
            check_finished("reconcile", await asyncio.to_thread(hook, gap))

        return call

    def __enter__(self) -> Self:
        """Connect, as an `AsyncListener` does."""
        self._open_once()
        self._process = os.getpid()
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(loop,), name="events listener", daemon=True)
        self._thread.start()
        try:
            self._call(self._open)
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != os.getpid():  # a forked child: the parent still uses the connection
            return
        try:
            self._call(self._close, error)
        finally:
            self._end_loop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def get(self, timeout: float | str | None = None) -> Event | None:
        """Acknowledge the current event and wait for the next one.

        Args:
            timeout: In seconds, or text such as `5 minutes`; no limit by default.

        Returns:
            The event; None after the timeout, or if the listener was stopped.

        Raises:
            RuntimeError: Another thread is waiting for an event of this listener, or the listener's own
                thread called this method, in `on_state`.
            Exception: An error raised by `on_state`.
        """
        self._returned = self._call(self._get, timeout)
        return self._returned

    def run(self, handler: Callable[[Event], object]) -> None:
        """Call `handler` on this thread for each event until the listener is stopped.

        If the handler raises, the error is logged and the event rejected; see `reject`. If it is interrupted,
        as by Ctrl-C, the next `get` returns the event again, or closing the listener returns it to the queue.

        Raises:
            InvalidArgument: `handler` is not a function, or an asynchronous one.
        """
        arguments.check_callback("handler", handler)
        with self._running():
            for event in self:
                with self._handling(event):
                    check_finished("handler", handler(event))
                if self._loop is None:  # the block was left meanwhile
                    return

    def stop(self) -> None:
        """End the iteration before the next event. Any thread, and a signal handler, may call it."""
        self._stopped = True  # also if there is no event loop yet
        self._on_loop_thread(self._stop)

    def _take_current(self) -> Delivery | None:
        """Return the current event; put it back if Ctrl-C or a signal came before `get` returned it."""
        if self._current is not None and self._current.event is not self._returned:
            self._put_back()
        return super()._take_current()

    def _put_back(self) -> None:
        self._returned = None
        super()._put_back()

    def _call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = self._running_loop()
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "the listener cannot be read in `on_state`, which is called on the listener's own thread"
            )
        coroutine = method(*args, **kwargs)
        ended: SimpleQueue[asyncio.Task[T]] = SimpleQueue()  # Ctrl-C may leave the lock of a Future locked
        try:
            loop.call_soon_threadsafe(lambda: loop.create_task(coroutine).add_done_callback(ended.put))
            return ended.get().result()
        except BaseException:  # Ctrl-C on this thread: without this, the coroutine would take the next event
            self._on_loop_thread(lambda: _end(coroutine))
            raise

    def _on_loop_thread(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # closed: there is no iteration to end
            self._running_loop().call_soon_threadsafe(callback)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the listener is not open: use it within `with`")
        if self._process != os.getpid():
            raise RuntimeError(
                "the listener belongs to the parent process: create another one in the forked child"
            )
        return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop().run_forever()
            runner.run(end_other_tasks())

    def _end_loop(self) -> None:
        loop, self._loop = self._running_loop(), None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()


def _end(coroutine: Coroutine[Any, Any, object]) -> None:
    """Cancel the task of a coroutine; close the coroutine if Ctrl-C came before or after its task."""
    task = next((each for each in asyncio.all_tasks() if each.get_coro() is coroutine), None)
    (task.cancel if task else coroutine.close)()
