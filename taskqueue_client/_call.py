"""A request before any I/O, and how a client's method is made of one.

An endpoint is declared once, as a pure function from its arguments to a `Call`. `blocking` and
`awaited` turn it into a typed method of either client. A conversation of several calls is a
generator, `answer = yield from call`, that either client drives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from functools import wraps
from types import CoroutineType, GenericAlias
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, get_args

import msgspec

P = ParamSpec("P")
R = TypeVar("R")

SUCCESS = frozenset({200, 201, 204})
"""The statuses that carry an endpoint's answer, unless the endpoint says otherwise."""


class Call(msgspec.Struct, Generic[R], frozen=True):
    """One call: where it goes, what it carries, and what comes back.

    Args:
        endpoint: The name in the service's reference: `createTask`, `object.createUpload`.
        method: The HTTP method in upper case.
        path: Percent-encoded, below `/api/<service>/v1`.
        returns: The struct to decode the answer into; `NoneType` if the answer is empty.
        query: The query parameters that were given.
        body: What to send as JSON.
        service: `queue`, `object` or `auth`.
        accepts: The statuses that carry the answer.
        check: Run before the first attempt, unless checking is off, with the service's time in seconds
            since the epoch, or NaN if it is not known.
    """

    endpoint: str
    method: str
    path: str
    returns: type[R]
    query: Mapping[str, str] = {}
    body: object = None
    service: str = "queue"
    accepts: frozenset[int] = SUCCESS
    check: Callable[[float], object] | None = None

    def __iter__(self) -> Steps[R]:
        """Make `answer = yield from call` read, and type, like `answer = await call`."""
        answer: R = yield self
        return answer


Steps = Generator[Call[Any], Any, R]
"""A conversation of several calls that ends in an R: written once, run by either client."""


class Caller(Protocol):
    """A client that blocks until it has the answer."""

    def send(self, call: Call[R], /) -> R: ...


class AsyncCaller(Protocol):
    """A client whose answers are awaited."""

    async def send(self, call: Call[R], /) -> R: ...


def converse(client: Caller, steps: Steps[R]) -> R:
    """Drive a conversation: an answer, or the error of a call, goes back into the generator."""
    try:
        call = next(steps)
        while True:
            try:
                answer = client.send(call)
            except Exception as error:  # noqa: BLE001 - the conversation decides what to do about it
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic


async def converse_async(client: AsyncCaller, steps: Steps[R]) -> R:
    """`converse`, awaited."""
    try:
        call = next(steps)
        while True:
            try:
                answer = await client.send(call)
            except Exception as error:  # noqa: BLE001 - the conversation decides what to do about it
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic


def blocking(describe: Callable[P, Call[R] | Steps[R]]) -> Callable[Concatenate[Caller, P], R]:
    """The method of a `Caller` that makes the calls which `describe` describes."""

    @wraps(describe)
    def method(client: Caller, /, *args: P.args, **kwargs: P.kwargs) -> R:
        described = describe(*args, **kwargs)
        return client.send(described) if isinstance(described, Call) else converse(client, described)

    return signed(method, describe)


def awaited(
    describe: Callable[P, Call[R] | Steps[R]],
) -> Callable[Concatenate[AsyncCaller, P], CoroutineType[Any, Any, R]]:
    """The method of an `AsyncCaller` that makes the calls which `describe` describes."""

    @wraps(describe)
    async def method(client: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> R:
        described = describe(*args, **kwargs)
        if isinstance(described, Call):
            return await client.send(described)
        return await converse_async(client, described)

    return signed(method, describe)  # type: ignore[return-value] # an async def's type is Coroutine


M = TypeVar("M", bound=Callable[..., Any])


def signed(method: M, describe: Callable[..., object], kind: type | None = None) -> M:
    """The method, with `self` and what it gives in its signature, for help(), autospec and Sphinx.

    Args:
        method: The method.
        describe: The function that it is made of.
        kind: What it gives one of what `describe` ends in; that itself when left out.
    """
    # Evaluated, as nobody evaluates the texts in a `__signature__`, not even `eval_str`.
    signature = inspect.signature(describe, eval_str=True)
    answer = get_args(signature.return_annotation)[-1]
    gives = answer if kind is None else GenericAlias(kind, answer)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = signature.parameters.values()
    method.__signature__ = signature.replace(  # type: ignore[attr-defined] # functions take attributes
        parameters=[me, *parameters], return_annotation=gives
    )
    method.__annotations__ = {**{each.name: each.annotation for each in parameters}, "return": gives}
    return method
