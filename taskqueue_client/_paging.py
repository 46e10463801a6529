"""Lists that come in pages: walked to their end by either client, one page at a time, as needed.

A function that describes such a walk gives the first page's call, so that bad arguments are refused at
once. `iterated` and `async_iterated` turn it into a method of a client.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from ._call import AsyncCaller, Call, Caller
from .models import Page

P = ParamSpec("P")
PageT = TypeVar("PageT", bound=Page)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Pages(Generic[PageT, Item]):
    """The pages of a list from some page on.

    Args:
        call: What asks for that page.
        items: What the list holds, given a page.
    """

    call: Call[PageT]
    items: Callable[[PageT], Sequence[Item]]

    def after(self, page: PageT) -> Pages[PageT, Item] | None:
        """The pages that follow; None if it was the last one."""
        if not page.continuation_token:
            return None
        query = {**self.call.query, "continuationToken": page.continuation_token}
        return replace(self, call=msgspec.structs.replace(self.call, query=query))


def iterated(
    describe: Callable[P, Pages[PageT, Item]],
) -> Callable[Concatenate[Caller, P], Iterator[Item]]:
    """The method of a `Caller` that walks through the pages which `describe` describes."""

    @wraps(describe)
    def method(client: Caller, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        return _walk(client, describe(*args, **kwargs))

    return _signed(method, describe, "Iterator")


def _walk(client: Caller, pages: Pages[PageT, Item] | None) -> Iterator[Item]:
    while pages is not None:
        page = client.send(pages.call)
        yield from pages.items(page)
        pages = pages.after(page)


def async_iterated(
    describe: Callable[P, Pages[PageT, Item]],
) -> Callable[Concatenate[AsyncCaller, P], AsyncIterator[Item]]:
    """The method of an `AsyncCaller` that walks through the pages which `describe` describes."""

    @wraps(describe)
    def method(client: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Item]:
        return _AsyncWalk(client, describe(*args, **kwargs))

    return _signed(method, describe, "AsyncIterator")


class _AsyncWalk(AsyncIterator[Item]):
    """`_walk`, awaited. No generator: one that is left half-way needs a loop to be cleaned up by."""

    def __init__(self, client: AsyncCaller, pages: Pages[Any, Item]) -> None:
        self._client = client
        self._pages: Pages[Any, Item] | None = pages
        self._items: Iterator[Item] = iter(())

    async def __anext__(self) -> Item:
        while True:
            for item in self._items:
                return item
            if self._pages is None:
                raise StopAsyncIteration
            page = await self._client.send(self._pages.call)
            self._items = iter(self._pages.items(page))
            self._pages = self._pages.after(page)


M = TypeVar("M", bound=Callable[..., Any])


def _signed(method: M, describe: Callable[..., object], kind: str) -> M:
    """The method, with `self` and what it iterates over in its signature, for help() and Sphinx."""
    signature = inspect.signature(describe)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    item = str(signature.return_annotation).removesuffix("]").rpartition(", ")[2]
    method.__signature__ = signature.replace(  # type: ignore[attr-defined] # functions take attributes
        parameters=[me, *signature.parameters.values()], return_annotation=f"{kind}[{item}]"
    )
    return method
