"""Conversations: operations of several calls, as generators that both clients perform.

A conversation is a generator that does no I/O. It yields steps and receives their results:

>>> from taskqueue_client import calls
>>> from taskqueue_client.models import TaskStatus
>>> def status_later(task_id: str, size: Callable[[], int]) -> Conversation[tuple[TaskStatus, int]]:
...     yield from Pause(0.5)  # a wait
...     response = yield from calls.status(task_id)  # a Call: the client sends it
...     return response.status, (yield from Work(size))  # Work: blocks, so it runs on a thread in asyncio

An error of a step is raised at its `yield`, where the conversation may handle it. `converse` performs a
conversation on the caller's thread, `converse_async` in an event loop. A conversation that also yields
`Item`s is a stream; `iterate` and `iterate_async` perform it and yield the items.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, closing, suppress
from contextvars import copy_context
from functools import update_wrapper
from threading import Event, Lock, main_thread
from types import CoroutineType, GenericAlias
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, get_args

import msgspec

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import InvalidArgument

from .threads_and_tasks import NO_THREAD, AsyncResult, call_on_threads

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

P = ParamSpec("P")
R = TypeVar("R")

STOPPING_TIMEOUT = 5.0
"""Seconds that a canceled conversation waits for `Work` that was told to stop: it may be connecting, or
inside an iterator of the caller's. After that, nobody waits for its thread."""

SUCCESS = frozenset({200, 201, 204})
"""The statuses that mean success, by default."""


class _Step(msgspec.Struct, Generic[R], frozen=True):
    """Makes `result = yield from step` read, and type, like `result = await step`."""

    def __iter__(self) -> Generator[Self, Any, R]:
        result: R = yield self
        return result


class Call(_Step[R], frozen=True):
    """One API request.

    Args:
        endpoint: The name in the service's reference: `createTask`, `object.createUpload`.
        method: The HTTP method in upper case.
        path: Percent-encoded, below `/api/<service>/v1`.
        returns: The struct to decode the response into; `NoneType` if the response is empty, and a union with
            None if it may be empty (204).
        query: The query parameters.
        body: The request body, before it is encoded as JSON; None without a body.
        service: `queue`, `object` or `auth`; empty for `<root URL>/v1`, where the first Queue was.
        accepts: The statuses that mean success.
        check: Checks the body and returns its JSON; called before the first attempt, unless checking is off,
            with the service's time in seconds since the epoch, or NaN if it is not known.
        headers: Headers of this call alone. They are not signed.
    """

    endpoint: str
    method: str
    path: str
    returns: type[R]
    query: Mapping[str, str] = {}
    body: object = None
    service: str = "queue"
    accepts: frozenset[int] = SUCCESS
    check: Callable[[float], bytes] | None = None
    headers: Mapping[str, str] = {}


class CallAs(_Step[R], frozen=True):
    """A call that is signed with other credentials than the client's; not signed with None."""

    call: Call[R]
    credentials: Credentials | None


class Work(_Step[R], frozen=True):
    """A function that blocks: on a disk, on a network connection, or on a processor.

    Attributes:
        run: The function. `converse_async` calls it on a thread.
        stop: Called from another thread if the result is not needed any more; makes `run` end soon. A
            result that comes after that is closed if it has a `close` method.
        run_async: An equivalent of `run`, which `converse_async` awaits in the event loop instead.
        threads: Returns the executor in which `converse_async` calls `run`; default: that of the event loop.
    """

    run: Callable[[], R]
    stop: Callable[[], object] | None = None
    run_async: Callable[[], Awaitable[R]] | None = None
    threads: Callable[[], Executor] | None = None


class Pause(_Step[None], frozen=True):
    """A wait on a clock, by default the machine's."""

    seconds: float
    clock: Clock | None = None


class Together(_Step[list[R]], frozen=True):
    """Several conversations at the same time. Returns their results in order.

    After the first error, no further conversation is started, and the error is raised.

    Attributes:
        in_loop: The client with which `converse` performs them in a new event loop, on one thread; None: on
            several threads, with the client of `converse`.
    """

    conversations: Iterable[Conversation[R]]
    concurrency: int
    in_loop: AbstractAsyncContextManager[AsyncClient] | None = None


class Item(_Step[None], frozen=True):
    """A value that a stream yields to its caller. Only `iterate` and `iterate_async` perform it."""

    value: Any


Step = Call[Any] | CallAs[Any] | Work[Any] | Pause | Together[Any] | Item

Conversation = Generator[Step, Any, R]
"""A conversation that returns an R."""


class Caller(Protocol):
    def send(self, call: Call[R], /) -> R: ...


class AsyncCaller(Protocol):
    async def send(self, call: Call[R], /) -> R: ...


class Client(Caller, Protocol):
    """The methods of a synchronous client that conversations use."""

    def with_credentials(self, credentials: Credentials | None) -> Caller: ...


class AsyncClient(AsyncCaller, Protocol):
    """The methods of an asynchronous client that conversations use."""

    def with_credentials(self, credentials: Credentials | None) -> AsyncCaller: ...


def converse(client: Client, conversation: Conversation[R]) -> R:
    """Perform a conversation on this thread and return its result."""
    try:
        step = next(conversation)
        while True:
            step = _next_step(client, conversation, step)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic
    finally:
        conversation.close()


def iterate(client: Client, stream: Conversation[None]) -> Generator[Any]:
    """Perform a stream on this thread and yield its items."""
    with closing(stream):
        step = next(stream, None)
        while step is not None:
            try:
                if isinstance(step, Item):
                    yield step.value
                    step = next(stream)
                else:
                    step = _next_step(client, stream, step)
            except StopIteration:
                return


def _next_step(client: Client, conversation: Conversation[Any], step: Step) -> Step:
    try:
        result = _perform(client, step)
    except BaseException as error:  # noqa: BLE001 - the conversation decides what to do about it
        return conversation.throw(error)
    return conversation.send(result)


def _perform(client: Client, step: Step) -> Any:
    match step:
        case Call():
            return _sent(client, step)
        case CallAs():
            return client.with_credentials(step.credentials).send(step.call)
        case Work():
            return step.run()
        case Pause():
            return (step.clock or SystemClock()).sleep(step.seconds)
        case Together():
            if step.in_loop is None:
                return _together_in_threads(client, step)
            return _together_in_loop(step.in_loop, step)
        case Item():
            raise TypeError(step)


def _sent(client: Client, call: Call[Any]) -> Any:
    response: object = client.send(call)
    if isinstance(response, CoroutineType):
        response.close()  # nothing was sent
        allowed = "a Queue; for an AsyncQueue, use the function whose name ends with _async"
        raise InvalidArgument("queue", type(client), allowed)
    return response


def _together_in_loop(client: AbstractAsyncContextManager[AsyncClient], step: Together[R]) -> list[R]:
    """Perform conversations in an event loop on another thread.

    So an error that a signal handler raises on this thread is not raised in a conversation.
    """
    import asyncio  # noqa: PLC0415 - costs 20 ms that most synchronous programs do not need

    async def together() -> None:
        async with client as opened:
            found.extend(await _together_async(opened, step))

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(together())

    def stop() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(loop.stop)

    found: list[R] = []
    loop = asyncio.new_event_loop()
    call_on_threads(run, 1, stop)
    return found


def _together_in_threads(client: Client, step: Together[R]) -> list[R]:
    results: dict[int, R] = {}
    left, lock, stopped = iter(enumerate(step.conversations)), Lock(), Event()

    def work() -> None:
        try:
            for position, conversation in iter(take, None):
                results[position] = copy_context().run(converse, client, conversation)
        except BaseException:
            stopped.set()
            raise

    def take() -> tuple[int, Conversation[R]] | None:
        with lock:
            return None if stopped.is_set() else next(left, None)

    call_on_threads(work, step.concurrency, stopped.set)
    return [results[position] for position in range(len(results))]


async def converse_async(client: AsyncClient, conversation: Conversation[R]) -> R:
    """Perform a conversation in the running event loop and return its result.

    When it is canceled, the `CancelledError` is raised in the conversation.
    """
    import asyncio  # noqa: PLC0415 - costs 20 ms that the synchronous client does not need

    try:
        step = next(conversation)
        while True:
            try:
                result = await _perform_async(client, step)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the conversation decides what to do about it
                step = conversation.throw(error)
            else:
                step = conversation.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic
    finally:
        conversation.close()


async def iterate_async(client: AsyncClient, stream: Conversation[None]) -> AsyncGenerator[Any]:
    """Perform a stream in the running event loop and yield its items."""
    import asyncio  # noqa: PLC0415 - as above

    with closing(stream):
        step = next(stream, None)
        while step is not None:
            try:
                if isinstance(step, Item):
                    yield step.value
                    step = next(stream)
                    continue
                try:
                    result = await _perform_async(client, step)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
                    step = stream.throw(error)
                else:
                    step = stream.send(result)
            except StopIteration:
                return


async def _perform_async(client: AsyncClient, step: Step) -> Any:
    match step:
        case Call():
            return await _sending(client, step)
        case CallAs():
            return await client.with_credentials(step.credentials).send(step.call)
        case Work():
            return await (on_thread(step) if step.run_async is None else step.run_async())
        case Pause():
            return await (step.clock or SystemClock()).sleep_async(step.seconds)
        case Together():
            return await _together_async(client, step)
        case Item():
            raise TypeError(step)


def _sending(client: AsyncClient, call: Call[Any]) -> Awaitable[Any]:
    response = client.send(call)
    if not hasattr(response, "__await__"):  # a response of a synchronous client
        allowed = "an AsyncQueue; for a Queue, use the function whose name does not end with _async"
        raise InvalidArgument("queue", type(client), allowed)
    return response


async def _together_async(client: AsyncClient, step: Together[R]) -> list[R]:
    import asyncio  # noqa: PLC0415 - loaded already

    results: dict[int, R] = {}
    left = iter(enumerate(step.conversations))

    async def work() -> None:
        for position, conversation in left:
            results[position] = await converse_async(client, conversation)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(step.concurrency):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
    return [results[position] for position in range(len(results))]


async def on_thread(work: Work[R]) -> R:
    """Run `Work` on a thread; on cancellation, stop it and wait up to `STOPPING_TIMEOUT` for its end.

    If no more threads can be started, it runs in the event loop; see `call_on_threads`.
    """
    import asyncio  # noqa: PLC0415 - loaded already

    left = [work.run]

    def run() -> R:  # once: an executor that cannot start a thread keeps the call, and may make it later
        return left.pop()()

    try:
        threads = None if work.threads is None else work.threads()
        future = asyncio.get_running_loop().run_in_executor(threads, run)
    except RuntimeError as error:
        if str(error) != NO_THREAD and main_thread().is_alive():
            raise
        return run()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if work.stop is not None:
            work.stop()
        future.add_done_callback(_discard)
        await asyncio.wait([future], timeout=STOPPING_TIMEOUT)
        raise


def _discard(future: asyncio.Future[Any]) -> None:
    """Drop the result of a future: retrieve the error, which asyncio would log, or close the result."""
    if future.cancelled() or future.exception():
        return
    if callable(close := getattr(future.result(), "close", None)):
        close()


def called(describe: Callable[P, Call[R] | Conversation[R]]) -> Callable[Concatenate[Client, P], R]:
    """Return the method of a synchronous client that performs what `describe` describes."""

    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        described = describe(*args, **kwargs)
        return client.send(described) if isinstance(described, Call) else converse(client, described)

    return with_signature(method, describe)


def called_async(
    describe: Callable[P, Call[R] | Conversation[R]],
) -> Callable[Concatenate[AsyncClient, P], AsyncResult[Any, Any, R]]:
    """Return the method of an asynchronous client that performs what `describe` describes."""

    async def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        described = describe(*args, **kwargs)
        if isinstance(described, Call):
            return await client.send(described)
        return await converse_async(client, described)

    return with_signature(method, describe)


def performed(
    describe: Callable[Concatenate[Any, P], Conversation[R]],
) -> Callable[Concatenate[Client, P], R]:
    """Return the method of a synchronous client; like `called`, but `describe` takes the client."""

    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return converse(client, describe(client, *args, **kwargs))

    return with_signature(method, describe)


def performed_async(
    describe: Callable[Concatenate[Any, P], Conversation[R]],
) -> Callable[Concatenate[AsyncClient, P], AsyncResult[Any, Any, R]]:
    """Return the method of an asynchronous client; like `called_async`, but `describe` takes the client."""

    async def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await converse_async(client, describe(client, *args, **kwargs))

    return with_signature(method, describe)


def streamed(
    describe: Callable[Concatenate[Any, P], Conversation[None]],
) -> Callable[Concatenate[Client, P], Generator[bytes]]:
    """Return the method of a synchronous client that performs a stream and yields its items, bytes."""

    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[bytes]:
        return iterate(client, describe(client, *args, **kwargs))

    return with_signature(method, describe, Generator, bytes)


def streamed_async(
    describe: Callable[Concatenate[Any, P], Conversation[None]],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[bytes]]:
    """Return the method of an asynchronous client that performs a stream and yields its items, bytes."""

    def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[bytes]:
        return iterate_async(client, describe(client, *args, **kwargs))

    return with_signature(method, describe, AsyncGenerator, bytes)


M = TypeVar("M", bound=Callable[..., Any])

_CLIENT = re.compile(r"^ *client: The client\.\n", re.MULTILINE)
"""The line of a docstring about the argument `client`, which is `self` in the method."""


def with_signature(
    method: M, describe: Callable[..., object], kind: type | None = None, item: type | None = None
) -> M:
    """Return the method with the name, docstring and signature for help(), autospec and Sphinx.

    Args:
        method: The method.
        describe: The function that the method is made of, and whose name and docstring it gets.
        kind: The generic type of the method's result, such as `Iterator[item]`; default: the result is an
            `item` itself.
        item: A type; default: the last type parameter of what `describe` returns, such as R of a `Call[R]`.
    """
    update_wrapper(method, describe)
    # `eval_str` here: annotations that are strings in a `__signature__` are never evaluated later.
    signature = inspect.signature(describe, eval_str=True)
    response = get_args(signature.return_annotation)[-1]
    gives = response if kind is None else GenericAlias(kind, item or response)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [each for each in signature.parameters.values() if each.kind is not each.POSITIONAL_ONLY]
    method.__signature__ = signature.replace(  # type: ignore[attr-defined] # functions take attributes
        parameters=[me, *parameters], return_annotation=gives
    )
    method.__doc__ = _CLIENT.sub("", method.__doc__ or "")
    method.__annotations__ = {**{each.name: each.annotation for each in parameters}, "return": gives}
    return method
