"""Keep a session with the broker: connect, watch the connection, reconnect."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from taskqueue_client._protocol.threads_and_tasks import end_tasks, is_canceled
from taskqueue_client.clock import Clock
from taskqueue_client.errors import BrokerLost, BrokerRefused, InvalidArgument, QueueDeleted, ReconcileFailed

from .event import Counts, Gap, State, StateChange
from .settings import Plan

if TYPE_CHECKING:
    from ._broker_session import BrokerSession, Delivery

_LOG = logging.getLogger(__name__)

RESPONSE_TIMEOUT: Final = 30.0
"""Seconds the broker has for connecting and declaring, and for each check."""
BINDING_TIMEOUT: Final = 1.0
"""Seconds for each binding, which takes a round trip; in total at least `RESPONSE_TIMEOUT`."""
MOST_DOUBLINGS: Final = 16
"""How often the wait between retries is doubled; bounds the power of two in a long outage."""

T = TypeVar("T")


class WrongFunction(TypeError):
    """A hook or handler is asynchronous and must not be, or the other way round. Ends the listener."""


def awaitable(argument: str, returned: object) -> Awaitable[object]:
    """Return what an asynchronous function has returned, to be awaited.

    Raises:
        WrongFunction: The function is not asynchronous.
    """
    if not isawaitable(returned):
        raise WrongFunction(
            f"{argument}: returned {type(returned).__name__}; an AsyncListener needs an asynchronous function"
        )
    return returned


def check_finished(argument: str, returned: object) -> None:
    """Check, by what a function has returned, that it is not asynchronous.

    Raises:
        WrongFunction: The function is asynchronous: only its coroutine was made, and nothing has run.
    """
    if iscoroutine(returned):
        returned.close()  # without a warning that it was not awaited, as the error says so
        raise WrongFunction(f"{argument}: returned a coroutine, which only an AsyncListener awaits")


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; raise TimeoutError after some seconds on `clock`, which tests can move."""
    task, alarm = asyncio.create_task(work), asyncio.create_task(clock.sleep_async(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"timed out after {seconds:g} s")
        return task.result()
    finally:
        task.cancel()
        alarm.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


class Supervisor:
    """Opens one session after the other and buffers their messages.

    The arguments are those of `AsyncListener`.

    Attributes:
        buffer: Messages that were received but not handed over, in order.
        changed: Set when a message arrives, when the state changes, and at the end.
    """

    def __init__(
        self,
        plan: Plan,
        counts: Counts,
        *,
        reconcile: Callable[[Gap], Awaitable[object]] | None,
        on_state: Callable[[StateChange], object] | None,
        check_interval: float,
        wait_initial: float,
        wait_max: float,
        clock: Clock,
    ) -> None:
        _check_numbers(check_interval=check_interval, wait_initial=wait_initial, wait_max=wait_max)
        self.plan = plan
        self.state = State.CONNECTING
        self.buffer: deque[Delivery] = deque()
        self.changed = asyncio.Event()
        self._session_type = session_type()
        self._counts = counts
        self._reconcile = reconcile
        self._on_state = on_state
        self._check_interval = check_interval
        self._time_to_bind = max(RESPONSE_TIMEOUT, BINDING_TIMEOUT * len(plan.bindings))
        self._wait_initial = wait_initial
        self._wait_max = wait_max
        self._clock = clock
        self._session: BrokerSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._parked: list[Delivery] = []  # of an ended session: the queue may deliver these again
        self._lost: tuple[float, float] | None = None  # the begin of a gap, on both clocks
        self._queue_was_lost = False  # in the gap
        self._was_deleted = False  # the durable queue, which is not handled yet
        self._failures = 0
        self._redelivering: WeakSet[BrokerSession] = WeakSet()  # sessions of a durable queue that exists

    @property
    def queue(self) -> str | None:
        """The full name of the queue, once known."""
        return self.plan.queue or (self._session.queue if self._session else None)

    def redeliver(self, delivery: Delivery) -> None:
        """Deliver a rejected message again: by its queue if that counts deliveries, else from the buffer."""
        if delivery.session not in self._redelivering:
            self.buffer.appendleft(delivery.again())
        elif delivery.session.ended.done():
            self._parked.append(delivery.again())
        else:
            delivery.session.reject(delivery.tag, requeue=True)

    def start(self) -> None:
        self.changed = asyncio.Event()  # a refused listener may be opened again, by another event loop
        self._task = asyncio.create_task(self._supervise(), name="events listener")
        self._task.add_done_callback(lambda _: self.changed.set())

    async def next_change(self) -> None:
        self.raise_if_over()
        self.changed.clear()
        await self.changed.wait()
        self.raise_if_over()

    async def close(self) -> BaseException | None:
        """Close; return the error that ended the supervision before, if any."""
        if self._task is None or self.state is State.CLOSED:
            return None
        await end_tasks(self._task)
        self.buffer.clear()
        self._change(StateChange(State.CLOSED))
        return None if self._task.cancelled() else self._task.exception()

    def raise_if_over(self) -> None:
        if self._task is None:
            raise RuntimeError("the listener is not open: use it within `async with`")
        self._check_loop(self._task)
        if self._task.done():
            self._task.result()

    def raise_if_elsewhere(self) -> None:
        """Raise a RuntimeError if another event loop closes an open listener: it would wait forever."""
        if self._task is not None and not self._task.done():
            self._check_loop(self._task)

    @staticmethod
    def _check_loop(task: asyncio.Task[None]) -> None:
        if task.get_loop() is not asyncio.get_running_loop():
            raise RuntimeError("the listener was opened in another event loop: open one in each loop")

    def _deliver(self, delivery: Delivery) -> None:
        if self.state in {State.LISTENING, State.LAGGING}:  # not while a reconcile hook may still fail
            self._failures = 0
        self.buffer.append(delivery)
        self.changed.set()

    async def _supervise(self) -> None:
        while True:
            self._change(StateChange(State.CONNECTING))
            reason = await self._listen()
            if isinstance(reason, BrokerRefused) and not self._counts.connections:
                raise reason  # a refused first connection: retries would be refused as well
            if self._counts.connections:
                self._queue_was_lost |= self._session_type.lost_bindings(reason)
            if isinstance(reason, QueueDeleted):
                self._handle_deletion()
            wait = self._next_wait()
            state = State.QUEUE_DELETED if isinstance(reason, QueueDeleted) else State.DISCONNECTED
            self._change(StateChange(state, reason, retry_in=wait))
            await self._clock.sleep_async(wait)

    def _next_wait(self) -> float:
        longest = min(self._wait_max, self._wait_initial * 2.0 ** min(self._failures, MOST_DOUBLINGS))
        self._failures += 1
        return longest * random.uniform(0.5, 1)  # noqa: S311 - jitter, not cryptography

    async def _listen(self) -> Exception:
        """Connect and receive messages; return why the session ended."""
        async with AsyncExitStack() as at_end:
            try:
                session = await within(self._clock, self._time_to_bind, self._open(at_end))
            except TimeoutError:
                return BrokerLost(f"{self.plan.settings}: not connected within {self._time_to_bind:g} s")
            except (BrokerLost, BrokerRefused) as error:
                return error
            except OSError as error:
                if not self._counts.connections:
                    raise
                return error  # `ca_file` is unreadable, maybe while it is replaced
            self._session = session
            try:
                await self._begin(session)
                return await self._watch(session)
            except (BrokerLost, BrokerRefused, ReconcileFailed) as error:
                return error

    async def _open(self, at_end: AsyncExitStack) -> BrokerSession:
        """Open a session, which `at_end` closes: a caller that is canceled now does not receive it."""
        resumes = self._counts.connections > 0
        session = await self._session_type.open(
            self.plan, self._deliver, self._note_deletion, resumes=resumes
        )
        at_end.push_async_callback(session.close)
        at_end.callback(self._park, session)  # before it is closed
        return session

    async def _begin(self, session: BrokerSession) -> None:
        queue_was_lost = self._was_deleted or self.plan.queue is None
        if self._was_deleted:
            self._change(StateChange(State.QUEUE_DELETED, QueueDeleted(f"{session.queue} was deleted")))
        self._unpark(session, queue_was_lost=queue_was_lost)
        if queue_was_lost:
            self._handle_deletion()
        if self.plan.queue is not None:
            self._redelivering.add(session)
        session.ended.add_done_callback(lambda _: self._note_loss())  # also while a reconcile hook runs
        await self._end_gap()
        self._counts.connections += 1
        self._change(StateChange(State.LISTENING))

    def _note_deletion(self) -> None:
        self._was_deleted = self.plan.queue is not None

    def _handle_deletion(self) -> None:
        self._was_deleted, self._queue_was_lost = False, True
        self._redelivering.clear()
        self.buffer.extend(self._parked)  # now: another listener may declare the queue again
        self._parked = []

    def _note_loss(self) -> None:
        if self._counts.connections:
            self._lost = self._lost or (self._clock.now(), self._clock.monotonic())

    async def _end_gap(self) -> None:
        gap, self._lost = self._lost, None  # the connection may end again while the hook runs
        if gap is not None:
            (began, lost), now = gap, self._clock.now()
            began = min(began, now - (self._clock.monotonic() - lost))  # the clock may have been set back
            try:
                await self._catch_up(Gap(began, now, self._queue_was_lost))
            except BaseException:
                self._lost = gap
                raise
        self._queue_was_lost = False

    async def _catch_up(self, gap: Gap) -> None:
        if self._reconcile is None:
            return
        try:
            await self._reconcile(gap)
        except WrongFunction:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_canceled():
                raise
            _LOG.exception("the reconcile hook failed")
            raise ReconcileFailed(f"the reconcile hook failed: {error!r}") from error

    async def _watch(self, session: BrokerSession) -> Exception:
        """Check the connection at intervals until the session ends."""
        backlog = session.backlog_at_start
        while True:
            with suppress(TimeoutError):
                await within(self._clock, self._check_interval, asyncio.wait([session.ended]))
                return session.ended.result()
            backlog = await self._check(session, backlog)

    async def _check(self, session: BrokerSession, before: int) -> int:
        try:
            backlog = await within(self._clock, RESPONSE_TIMEOUT, session.check())
        except TimeoutError as error:
            raise BrokerLost(f"the broker did not respond within {RESPONSE_TIMEOUT:g} s") from error
        await self._bind_again(session)
        self._failures = 0
        state = State.LAGGING if backlog > before and self.buffer else State.LISTENING
        if state is not self.state:
            self._change(StateChange(state, backlog=backlog))
        return backlog

    async def _bind_again(self, session: BrokerSession) -> None:
        try:
            await within(self._clock, self._time_to_bind, session.bind_again())
        except TimeoutError as error:
            raise BrokerLost(f"the broker did not bind within {self._time_to_bind:g} s") from error
        except BrokerRefused as error:
            _LOG.warning("messages may be lost, as the check could not bind the queue again: %s", error)
            self._note_loss()
            self._queue_was_lost = True
        else:
            await self._end_gap()

    def _park(self, session: BrokerSession) -> None:
        """Set aside the session's messages that were not handed over: the queue may deliver them again."""
        self._note_loss()  # closing may take seconds
        older, newer = self._split(session)
        self._parked += newer
        self.buffer.extend(older)

    def _unpark(self, session: BrokerSession, *, queue_was_lost: bool) -> None:
        """Drop the messages that were set aside, or put them before newer messages if the queue was lost."""
        older, newer = self._split(session)
        self.buffer.extend([*older, *(self._parked if queue_was_lost else ()), *newer])
        self._parked = []

    def _split(self, session: BrokerSession) -> tuple[list[Delivery], list[Delivery]]:
        """Empty the buffer; return the messages of other sessions, and those of this one."""
        held = list(self.buffer)
        self.buffer.clear()
        return [each for each in held if each.session is not session], [
            each for each in held if each.session is session
        ]

    def _change(self, change: StateChange) -> None:
        self.state = change.state
        level = logging.INFO if change.reason is None else logging.WARNING
        _LOG.log(level, "%s: %s", change.state, change.reason or self.plan.settings)
        if self._on_state is not None:
            self._on_state(change)
        self.changed.set()


def session_type() -> type[BrokerSession]:
    try:
        from ._broker_session import BrokerSession  # noqa: PLC0415 - the rest of this package works without the extra
    except ImportError as error:
        raise ImportError('listeners need aio-pika: pip install "taskqueue_client[events]"') from error
    return BrokerSession


def _check_numbers(**numbers: object) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not number > 0:
            raise InvalidArgument(name, number, "a number of seconds, more than 0")
