"""Pages of lists, and the two kinds of continuation token.

Offset lists carry the next row's offset as Hashids; index lists carry the last row's key as base64 of a
JSON array. A token comes back only if there was a further row when the page was read.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from taskqueue_client.local.engine import hashids
from taskqueue_client.local.refusal import bad_input

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PAGE = 1000
_MAX_OFFSET = 2**53
_ALPHANUMERIC = re.compile(r"[A-Za-z0-9]*")

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page:
    """Which rows of an offset list to read."""

    offset: int
    size: int

    @classmethod
    def of(cls, continuation_token: str | None, limit: int) -> Page:
        """The page asked for.

        Raises:
            Refusal: `InputError`: the token holds characters that no token has.
        """
        return cls(_offset(continuation_token or ""), page_size(limit))

    @property
    def window(self) -> tuple[int, int]:
        """Values for SQL's `LIMIT ? OFFSET ?`: one row more than the page holds."""
        return self.size + 1, self.offset

    def answer(self, key: str, rows: list[Row], item: Callable[[Row], Any]) -> dict[str, Any]:
        """The body of an answer: the page's rows under `key`, and a token if there are more rows."""
        token = hashids.encode(self.offset + self.size)
        return page_of(key, rows, self.size, item, lambda _: token)


def page_size(limit: int) -> int:
    """The number of rows in a page for which the caller gave `limit`."""
    return min(limit, MAX_PAGE)


def page_of(
    key: str, rows: list[Row], size: int, item: Callable[[Row], Any], token: Callable[[Row], str]
) -> dict[str, Any]:
    """The body of an answer, from up to `size` + 1 rows; `token` makes one from the page's last row."""
    page = rows[:size]
    more = {"continuationToken": token(page[-1])} if page and len(rows) > size else {}
    return {key: [item(row) for row in page], **more}


def encode_index(*key: str | int) -> str:
    """The token of an index list whose page ends with the row of this key."""
    return b64encode(msgspec.json.encode(key)).decode()


def decode_index(token: str | None, kind: type[Row]) -> Row | None:
    """The key in an index list's token; None without a token, and for garbage."""
    try:
        return msgspec.json.decode(b64decode(token or ""), type=kind)
    except (msgspec.DecodeError, ValueError):
        return None


def _offset(token: str) -> int:
    if not _ALPHANUMERIC.fullmatch(token):
        message = "`continuationToken` must be one that the previous page's answer gave"
        raise bad_input(message)
    return min(hashids.decode(token) or 0, _MAX_OFFSET)
