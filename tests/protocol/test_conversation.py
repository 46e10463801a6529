"""Conversations of several steps, performed for a synchronous and for an asynchronous client."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from taskqueue_client import Credentials, calls
from taskqueue_client._protocol import threads_and_tasks
from taskqueue_client._protocol.conversation import (
    Call,
    CallAs,
    Conversation,
    Item,
    Pause,
    Together,
    Work,
    converse,
    converse_async,
    iterate,
    iterate_async,
)
from taskqueue_client._protocol.threads_and_tasks import end_other_tasks, end_tasks
from taskqueue_client.clock import MovableClock

R = TypeVar("R")
Perform = Callable[[Conversation[Any]], Any]
Items = Callable[[Conversation[None]], list[Any]]

OTHERS = Credentials("somebody-else", "secret")


class Client:
    """Responds to each call with its endpoint and with the client id that would sign it."""

    def __init__(self, client_id: str = "me") -> None:
        self.client_id = client_id

    def with_credentials(self, credentials: Credentials | None) -> Client:
        return Client(credentials.client_id if credentials else "nobody")

    def send(self, call: Call[Any]) -> Any:
        return call.endpoint, self.client_id


class AsyncClient:
    def __init__(self, client_id: str = "me") -> None:
        self.client_id = client_id

    def with_credentials(self, credentials: Credentials | None) -> AsyncClient:
        return AsyncClient(credentials.client_id if credentials else "nobody")

    async def send(self, call: Call[Any]) -> Any:
        return call.endpoint, self.client_id


class NotingClock(MovableClock):
    """Records the length of each sleep, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock() -> NotingClock:
    return NotingClock()


@pytest.fixture(params=["synchronous", "asynchronous"])
def perform(request: pytest.FixtureRequest) -> Perform:
    if request.param == "synchronous":
        return lambda conversation: converse(Client(), conversation)
    return lambda conversation: asyncio.run(converse_async(AsyncClient(), conversation))


@pytest.fixture(params=["synchronous", "asynchronous"])
def items(request: pytest.FixtureRequest) -> Items:
    """A function that returns the items of a stream."""

    async def of_both(stream: Conversation[None]) -> list[Any]:
        return [each async for each in iterate_async(AsyncClient(), stream)]

    if request.param == "synchronous":
        return lambda stream: list(iterate(Client(), stream))
    return lambda stream: asyncio.run(of_both(stream))


def failing() -> int:
    raise LookupError


def test_each_step_gives_its_result(perform: Perform) -> None:
    def conversation() -> Conversation[tuple[object, ...]]:
        ours = yield from calls.ping()
        theirs = yield from CallAs(calls.ping(), OTHERS)
        return ours, theirs, (yield from Work(lambda: 7))

    assert perform(conversation()) == (("ping", "me"), ("ping", "somebody-else"), 7)


def test_a_pause_waits_on_the_given_clock(clock: NotingClock, perform: Perform) -> None:
    def conversation() -> Conversation[None]:
        yield from Pause(3600, clock)

    perform(conversation())
    assert clock.slept == [3600]


def test_an_error_of_a_step_is_raised_where_the_step_was_yielded(perform: Perform) -> None:
    def conversation() -> Conversation[str]:
        try:
            yield from Work(failing)
        except LookupError:
            return "handled"
        return "not raised"

    assert perform(conversation()) == "handled"


def test_an_error_that_the_conversation_does_not_handle_is_the_callers(perform: Perform) -> None:
    with pytest.raises(LookupError):
        perform(iter_work(failing))


def iter_work(run: Callable[[], R]) -> Conversation[R]:
    return (yield from Work(run))


def test_conversations_run_together_and_give_their_results_in_order(perform: Perform) -> None:
    meeting = threading.Barrier(2, timeout=10)

    def conversation(number: int) -> Conversation[int]:
        yield from Work(meeting.wait)
        return number

    assert perform(iter_together((conversation(number) for number in range(6)), 2)) == [0, 1, 2, 3, 4, 5]


def iter_together(conversations: Iterator[Conversation[R]], concurrency: int) -> Conversation[list[R]]:
    return (yield from Together(conversations, concurrency))


def test_conversations_run_together_in_an_event_loop_on_another_thread() -> None:
    def conversation() -> Conversation[object]:
        name = yield from Work(str, run_async=name_of_thread)
        return (yield from calls.ping()), name

    async def name_of_thread() -> str:
        return f"{threading.current_thread().name} in {span.get()}"

    def many() -> Conversation[list[object]]:
        return (yield from Together((conversation() for _ in range(3)), 2, nullcontext(AsyncClient("it"))))

    span = ContextVar("span", default="none")
    span.set("the caller's span")
    found = converse(Client(), many())
    assert found == [(("ping", "it"), "conversations_0 in the caller's span")] * 3


def test_the_first_error_of_conversations_that_run_together_is_raised(perform: Perform) -> None:
    with pytest.raises(LookupError):
        perform(iter_together((iter_work(each) for each in (failing, int)), 1))


def test_the_error_of_conversations_that_run_together_keeps_its_cause(perform: Perform) -> None:
    def conversation() -> Conversation[None]:
        yield from Pause(0)
        raise KeyError from OSError("the cause")

    with pytest.raises(KeyError) as caught:
        perform(iter_together((conversation() for _ in range(2)), 2))
    assert isinstance(caught.value.__cause__, OSError)


def test_conversations_that_run_together_make_calls_too(perform: Perform) -> None:
    def conversation() -> Conversation[object]:
        return (yield from calls.ping())

    assert perform(iter_together(iter([conversation()]), 1)) == [("ping", "me")]


def test_after_an_error_no_conversation_is_started(perform: Perform) -> None:
    began: list[int] = []

    def conversation(number: int) -> Conversation[None]:
        began.append(number)
        yield from Work(int)

    others: list[Conversation[Any]] = [conversation(number) for number in range(5)]
    with pytest.raises(LookupError):
        perform(iter_together(iter([iter_work(failing), *others]), 1))
    assert began == []


def test_a_ctrl_c_waits_for_the_conversations_that_have_begun() -> None:
    begun, ended = threading.Barrier(3, timeout=10), list[int]()

    def conversation(number: int) -> Conversation[None]:
        yield from Work(begun.wait)
        yield from Work(lambda: interrupting.join(10))
        ended.append(number)

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        converse(Client(), iter_together((conversation(number) for number in range(2)), 2))
    assert sorted(ended) == [0, 1]


def limit_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process start only so many more threads."""
    start, left = threading.Thread.start, [None] * count

    def limited(self: threading.Thread) -> None:
        if not left:
            message = "can't start new thread"
            raise RuntimeError(message)
        left.pop()
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("started", [0, 1])
def test_where_no_thread_can_be_started_conversations_run_on_those_that_there_are(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a program that has too many threads, or that is about to end."""
    limit_threads(monkeypatch, started)
    assert converse(Client(), iter_together((iter_work(lambda: 5) for _ in range(3)), 2)) == [5, 5, 5]


def test_where_no_thread_can_be_started_an_event_loop_does_work_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if an executor could start one thread before: it does the work that it has kept only once."""
    released, done = threading.Event(), list[str]()
    limit_threads(monkeypatch, 1)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(released.wait, 10)
        work = Work(lambda: done.append(threading.current_thread().name), threads=lambda: threads)
        asyncio.run(converse_async(AsyncClient(), iter(work)))
        released.set()
    assert done == [threading.main_thread().name]


def test_a_stream_gives_items_between_its_other_steps(items: Items) -> None:
    def stream() -> Conversation[None]:
        yield from Item("first")
        yield from Item((yield from calls.ping()))
        try:
            yield from Work(failing)
        except LookupError:
            yield from Item("failed")

    assert items(stream()) == ["first", ("ping", "me"), "failed"]


def test_a_stream_may_be_empty_and_may_end_with_another_step(items: Items) -> None:
    def stream() -> Conversation[None]:
        yield from Work(int)

    assert items(stream()) == []
    assert items(iter_nothing()) == []


def iter_nothing() -> Conversation[None]:
    yield from ()


def test_a_conversation_that_is_not_a_stream_cannot_give_items(perform: Perform) -> None:
    def stream() -> Conversation[None]:
        yield from Item("first")

    with pytest.raises(TypeError, match=r"Item.*first"):
        perform(stream())


def test_work_has_a_variant_for_event_loops() -> None:
    async def in_the_loop() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    work = Work(failing, run_async=in_the_loop)  # type: ignore[type-var, arg-type, unused-ignore] # never run
    assert asyncio.run(converse_async(AsyncClient(), iter(work))) == threading.main_thread().name


def test_work_of_a_canceled_conversation_is_stopped_and_the_conversation_cleans_up() -> None:
    begun, wanted, released = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        wanted.wait(10)

    def conversation() -> Conversation[None]:
        try:
            yield from Work(work, stop=wanted.set)
        except asyncio.CancelledError:
            yield from Work(released.set)
            raise

    async def main() -> None:
        task = asyncio.create_task(converse_async(AsyncClient(), conversation()))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert wanted.is_set()
    assert released.is_set()


def test_a_result_that_nobody_waits_for_is_closed() -> None:
    begun, wanted = threading.Event(), threading.Event()

    class Opened:
        closed = threading.Event()

        def close(self) -> None:
            self.closed.set()

    def opening() -> Opened:
        begun.set()
        wanted.wait(10)
        return Opened()

    async def main() -> None:
        task = asyncio.create_task(converse_async(AsyncClient(), iter(Work(opening, stop=wanted.set))))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert Opened.closed.is_set()


async def test_a_task_that_loses_a_cancellation_is_canceled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_and_tasks, "_PATIENCE", 0.01)
    lost = asyncio.Event()

    async def lose_one() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(lose_one())
    await asyncio.sleep(0)
    await end_tasks(task)
    assert lost.is_set()
    assert task.cancelled()


async def test_tasks_that_begin_when_others_end_are_ended_too() -> None:
    begun: list[asyncio.Task[None]] = []

    async def wait() -> None:
        await asyncio.Event().wait()

    def begin(_: object) -> None:
        begun.append(asyncio.create_task(wait()))

    first = asyncio.create_task(wait())
    first.add_done_callback(begin)
    await end_other_tasks()
    assert first.cancelled()
    assert [each.cancelled() for each in begun] == [True]
