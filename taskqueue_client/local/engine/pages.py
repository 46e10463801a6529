"""Pages of lists, and the two kinds of continuation token.

The token of an offset list is the next row's offset as Hashids; that of an index list is the last row's key
as base64 of a JSON array. A response has a token only if there was a further row when the page was read.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from taskqueue_client.local.javascript_values import decode_base64
from taskqueue_client.local.refusal import refuse

from .core import Core, Json

_MAX_OFFSET = 2**53
_ALPHANUMERIC = re.compile(r"[A-Za-z0-9]*")

Row = TypeVar("Row")


def offset_page(
    core: Core, key: str, item: Callable[[Any], Any], token: str | None, limit: int, sql: str, *values: Any
) -> Json:
    """Return the body of a response with a page of an offset list; `item` converts each row of the query."""
    if not _ALPHANUMERIC.fullmatch(token or ""):
        refuse("InputError", "`continuationToken` must be the one in the response of the previous page")
    offset = min(decode_offset(token or "") or 0, _MAX_OFFSET)
    rows = core.store.rows(f"{sql} LIMIT ? OFFSET ?", *values, limit + 1, offset)
    return page_of(key, rows, limit, item, lambda _: encode_offset(offset + limit))


def page_of(
    key: str, rows: list[Row], limit: int, item: Callable[[Row], Any], token: Callable[[Row], str]
) -> Json:
    """Return the body of a response with up to `limit` rows; `token` makes its token from the last row."""
    page = rows[:limit]
    more = {"continuationToken": token(page[-1])} if page and len(rows) > limit else {}
    return {key: [item(row) for row in page], **more}


def encode_index(*key: str | int) -> str:
    """Return the token of an index list whose page ends with the row of this key."""
    return b64encode(msgspec.json.encode(key)).decode()


def decode_index(token: str | None, kind: type[Row]) -> Row | None:
    """Return the key in an index list's token; None without a token, or with an invalid one."""
    try:
        return msgspec.json.decode(decode_base64(token or ""), type=kind)
    except (msgspec.DecodeError, ValueError):
        return None


_SALT = "salt"
_MIN_LENGTH = 10
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890"
_SEPARATORS = "cfhistuCFHISTU"
_GUARD_SHARE = 12  # letters of the alphabet for each guard


def encode_offset(number: int) -> str:
    """Return the token of a number >= 0."""
    lottery = _LETTERS[number % 100 % len(_LETTERS)]
    letters = _shuffle(_LETTERS, lottery + _SALT + _LETTERS)
    token = lottery + _digits(number, letters)
    if len(token) < _MIN_LENGTH:
        token = _GUARDS[(number % 100 + ord(token[0])) % len(_GUARDS)] + token
    if len(token) < _MIN_LENGTH:
        token += _GUARDS[(number % 100 + ord(token[2])) % len(_GUARDS)]
    return _pad(token, letters)


def decode_offset(token: str) -> int | None:
    """Return the number of a token; None for a string that `encode_offset` does not make."""
    parts = "".join(" " if char in _GUARDS else char for char in token).split(" ")
    core = parts[1] if len(parts) in (2, 3) else parts[0]
    if not core:
        return None
    letters = _shuffle(_LETTERS, core[0] + _SALT + _LETTERS)
    if not set(core[1:]) <= set(letters):
        return None
    number = 0
    for char in core[1:]:
        number = number * len(letters) + letters.index(char)
    return number if encode_offset(number) == token else None


def _digits(number: int, letters: str) -> str:
    digits = letters[number % len(letters)]
    while number := number // len(letters):
        digits = letters[number % len(letters)] + digits
    return digits


def _pad(token: str, letters: str) -> str:
    half = len(letters) // 2
    while len(token) < _MIN_LENGTH:
        letters = _shuffle(letters, letters)
        token = letters[half:] + token + letters[:half]
        excess = len(token) - _MIN_LENGTH
        if excess > 0:
            token = token[excess // 2 : excess // 2 + _MIN_LENGTH]
    return token


def _shuffle(text: str, salt: str) -> str:
    """Return the text, shuffled as in Hashids: the same text and salt always give the same order."""
    chars = list(text)
    total = 0
    for step, position in enumerate(range(len(chars) - 1, 0, -1)):
        index = step % len(salt)
        total += ord(salt[index])
        other = (ord(salt[index]) + index + total) % position
        chars[position], chars[other] = chars[other], chars[position]
    return "".join(chars)


_SHUFFLED = _shuffle("".join(char for char in _ALPHABET if char not in _SEPARATORS), _SALT)
_GUARDS = _SHUFFLED[: -(-len(_SHUFFLED) // _GUARD_SHARE)]
"""The letters that surround a short token."""
_LETTERS = _SHUFFLED[len(_GUARDS) :]
"""The letters that serve as digits."""
