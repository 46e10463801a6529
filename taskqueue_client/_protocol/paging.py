"""Iteration over lists that the Queue returns in pages; each page is requested when it is needed.

A function that describes an iteration returns the first page's call, so that invalid arguments are refused
at once. `iterated` and `iterated_async` make it a method of a client. An iterator may be used after an error:
it requests the same page again and continues with the item after the last one.

A page may repeat items of earlier pages. Most pages begin at a position counted from the start of the list,
so items that are added meanwhile shift the others. The token of `list_pending_tasks` has the time of the last
item in milliseconds, but the Queue's database has microseconds. A claimed run that is reclaimed moves to the
end of its list. To return each item once, an iteration remembers all ids: an item may come again much later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from taskqueue_client.models import Page

from .conversation import AsyncCaller, Call, Caller, Conversation, with_signature

P = ParamSpec("P")
PageT = TypeVar("PageT", bound=Page)
Item = TypeVar("Item")


class Pages(msgspec.Struct, Generic[PageT, Item], frozen=True):
    """The rest of a list that comes in pages.

    Args:
        call: Requests the next page.
        items: Returns the items of a page.
        key: Returns the identifier of an item.
    """

    call: Call[PageT]
    items: Callable[[PageT], Sequence[Item]]
    key: Callable[[Item], Hashable]

    def new_items(self, page: PageT, known: set[Hashable]) -> Iterator[Item]:
        """Yield the items of a page whose keys are not in `known`, and add the keys."""
        for item in self.items(page):
            if (key := self.key(item)) not in known:
                known.add(key)
                yield item

    def after(self, page: PageT) -> Pages[PageT, Item] | None:
        """Return the pages after a page, or None if the page is the last one."""
        token, query = page.continuation_token, self.call.query
        if not token:
            return None
        if token == query.get("continuationToken") and "limit" in query:
            # A page of known items only would lead to the same page for ever: request a larger one.
            query = {**query, "limit": str(2 * int(query["limit"]))}
        call = msgspec.structs.replace(self.call, query={**query, "continuationToken": token})
        return msgspec.structs.replace(self, call=call)

    def everything(self) -> Conversation[list[Item]]:
        """Request all pages, and return their items."""
        found: list[Item] = []
        known = set[Hashable]()
        pages: Pages[PageT, Item] | None = self
        while pages is not None:
            page = yield from pages.call
            found += pages.new_items(page, known)
            pages = pages.after(page)
        return found


def iterated(describe: Callable[P, Pages[PageT, Item]]) -> Callable[Concatenate[Caller, P], Iterator[Item]]:
    """Return the method of a synchronous client that iterates over the pages that `describe` returns."""

    def method(client: Caller, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        return _Walk(client, describe(*args, **kwargs))

    return with_signature(method, describe, Iterator)


class _Walk(Iterator[Item]):
    """Iterates over all items. After an error, `next` repeats the call; a generator would end silently."""

    def __init__(self, client: Caller, pages: Pages[Any, Item]) -> None:
        self._client = client
        self._items: Iterator[Item] = iter(())  # the rest of a page
        self._pages: Pages[Any, Item] | None = pages  # the pages after that page
        self._known = set[Hashable]()

    def __next__(self) -> Item:
        while True:
            for item in self._items:
                return item
            if (pages := self._pages) is None:
                raise StopIteration
            page = self._client.send(pages.call)
            self._items, self._pages = pages.new_items(page, self._known), pages.after(page)


def iterated_async(
    describe: Callable[P, Pages[PageT, Item]],
) -> Callable[Concatenate[AsyncCaller, P], AsyncIterator[Item]]:
    """Return the method of an asynchronous client that iterates over the pages that `describe` returns."""

    def method(client: AsyncCaller, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Item]:
        return _AsyncWalk(client, describe(*args, **kwargs))

    return with_signature(method, describe, AsyncIterator)


class _AsyncWalk(AsyncIterator[Item]):
    """The asynchronous `_Walk`. An unfinished asynchronous generator would need an event loop to end."""

    def __init__(self, client: AsyncCaller, pages: Pages[Any, Item]) -> None:
        self._client = client
        self._items: Iterator[Item] = iter(())
        self._pages: Pages[Any, Item] | None = pages
        self._known = set[Hashable]()

    async def __anext__(self) -> Item:
        while True:
            for item in self._items:
                return item
            if (pages := self._pages) is None:
                raise StopAsyncIteration
            page = await self._client.send(pages.call)
            self._items, self._pages = pages.new_items(page, self._known), pages.after(page)
