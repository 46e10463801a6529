"""The listener for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from taskqueue_client.clock import Clock

from .duplicates import DuplicateFilter
from .event import Event
from .exchanges import Binding
from .listener import Listener, rejecting
from .settings import PulseSettings
from .state import Counts, Gap, State, StateChange

P = ParamSpec("P")
T = TypeVar("T")


class BlockingListener:
    """A `Listener` on a thread of its own, for `with` and `for`.

    The arguments are those of `Listener`. `reconcile` blocks instead of being awaited, and runs on
    yet another thread; `on_state` is called on the listener's thread and must not block.
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
        reconcile: Callable[[Gap], object] | None = None,
        on_state: Callable[[StateChange], object] | None = None,
        check_interval: float = 60,
        wait_initial: float = 1,
        wait_max: float = 60,
        clock: Clock | None = None,
    ) -> None:
        self._listener = Listener(
            settings,
            bindings,
            queue=queue,
            prefetch=prefetch,
            redeliveries=redeliveries,
            duplicates=duplicates,
            reconcile=None if reconcile is None else _on_a_thread(reconcile),
            on_state=on_state,
            check_interval=check_interval,
            wait_initial=wait_initial,
            wait_max=wait_max,
            clock=clock,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._turn, name="events listener", daemon=True)
        self._turning = threading.Event()

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._listener)[1:]}"

    @property
    def state(self) -> State:
        """Where it stands with its broker."""
        return self._listener.state

    @property
    def stopped(self) -> bool:
        """Whether no further event will be handed over."""
        return self._listener.stopped

    @property
    def counts(self) -> Counts:
        """What happened to messages so far."""
        return self._listener.counts

    @property
    def queue(self) -> str | None:
        """The full name of the queue; None before one that lasts as long as the connection."""
        return self._listener.queue

    def __enter__(self) -> Self:
        """Begin to listen, however long it takes until there is a broker.

        Raises:
            BrokerRefused: As `Listener` says.
        """
        self._thread.start()
        self._turning.wait()
        try:
            self._call(self._listener.__aenter__)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._listener.__aexit__, kind, error, trace)
        finally:
            self._end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def get(self, timeout: float | None = None) -> Event | None:
        """Acknowledge the event before, and wait for the next one; see `Listener.get`."""
        return self._call(self._listener.get, timeout)

    def run(self, handler: Callable[[Event], object]) -> None:
        """Call `handler`, on this thread, for each event until stopped; see `Listener.run`."""
        for event in self:
            with rejecting(self.reject, event):
                handler(event)

    def reject(self) -> None:
        """Say that the event at hand failed: it goes back to the queue, or is dropped."""
        self._on_its_thread(self._listener.reject)

    def stop(self) -> None:
        """End the iteration before the next event. Any thread, and a signal handler, may call it."""
        self._on_its_thread(self._listener.stop)

    def _call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = self._running_loop()
        future = asyncio.run_coroutine_threadsafe(method(*args, **kwargs), loop)
        try:
            return future.result()
        except BaseException:  # such as Ctrl-C here: it must not go on there
            future.cancel()
            raise

    def _on_its_thread(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # closed: nobody iterates any more
            self._running_loop().call_soon_threadsafe(callback)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            message = "a listener listens within `with`"
            raise RuntimeError(message)
        return self._loop

    def _turn(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(self._turning.set)
            self._loop.run_forever()

    def _end(self) -> None:
        loop, self._loop = self._running_loop(), None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()


def _on_a_thread(hook: Callable[[Gap], object]) -> Callable[[Gap], Awaitable[object]]:
    async def reconcile(gap: Gap) -> None:
        await asyncio.to_thread(hook, gap)

    return reconcile
