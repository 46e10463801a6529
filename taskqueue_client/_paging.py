"""Lists that come in pages: walked to their end by either client, one page at a time, as needed.

A function that describes such a walk gives the first page's call, so that bad arguments are refused at
once. `iterated` and `async_iterated` turn it into a method of a client. Whoever goes on with an iterator
after an error gets what follows the last item: it asks for the same page again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from ._call import AsyncCaller, Call, Caller, signed
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
        return _Walk(client, describe(*args, **kwargs))

    return signed(method, describe, Iterator)


class _Unfolded(Generic[Item]):
    """What is left of a list: the rest of a page, and the pages after it."""

    def __init__(self, pages: Pages[Any, Item]) -> None:
        self.items: Iterator[Item] = iter(())
        self.pages: Pages[Any, Item] | None = pages

    def turn(self, pages: Pages[PageT, Item], page: PageT) -> None:
        """Go on with a page, now that it has come."""
        self.items = iter(pages.items(page))
        self.pages = pages.after(page)


class _Walk(Iterator[Item]):
    """Through all items. No generator: one ends with the first error, as if the list were over.

    This asks for the same page again when it is asked to go on.
    """

    def __init__(self, client: Caller, pages: Pages[Any, Item]) -> None:
        self._client = client
        self._left = _Unfolded(pages)

    def __next__(self) -> Item:
        left = self._left
        while True:
            for item in left.items:
                return item
            if left.pages is None:
                raise StopIteration
            left.turn(left.pages, self._client.send(left.pages.call))


def async_iterated(
    describe: Callable[P, Pages[PageT, Item]],
) -> Callable[Concatenate[AsyncCaller, P], AsyncIterator[Item]]:
    """The method of an `AsyncCaller` that walks through the pages which `describe` describes."""

    @wraps(describe)
    def method(client: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Item]:
        return _AsyncWalk(client, describe(*args, **kwargs))

    return signed(method, describe, AsyncIterator)


class _AsyncWalk(AsyncIterator[Item]):
    """`_Walk`, awaited. A generator that is left half-way would need a loop to be cleaned up by, too."""

    def __init__(self, client: AsyncCaller, pages: Pages[Any, Item]) -> None:
        self._client = client
        self._left = _Unfolded(pages)

    async def __anext__(self) -> Item:
        left = self._left
        while True:
            for item in left.items:
                return item
            if left.pages is None:
                raise StopAsyncIteration
            left.turn(left.pages, await self._client.send(left.pages.call))
