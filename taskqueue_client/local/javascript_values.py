"""JSON values and base64, as the service's JavaScript and its database read and write them.

Numbers are doubles. The database sorts the keys of an object by length, then by bytes; JavaScript then puts
keys that are array indices first.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard, cast

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_END_OF_INDICES = 2**32 - 1  # JavaScript's array indices are 0 to 2**32 - 2

_STANDARD = str.maketrans("-_", "+/")
_OTHER = re.compile(r"[^A-Za-z0-9+/]+")
_GROUP = 4


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether `value` is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether `value` is a JSON array."""
    return isinstance(value, list)


def is_given(value: object) -> bool:
    """Return whether a value counts as true in JavaScript, where an empty list does, too."""
    return value not in (None, False, 0, "")


def in_database_order(value: Any) -> Any:
    """Return a copy of a JSON value with its keys in the order in which they come back from the database."""
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return {key: in_database_order(given[key]) for key in _in_order(given)}
    if isinstance(value, list):
        return [in_database_order(element) for element in cast("Sequence[Any]", value)]
    return value


def _in_order(keys: Iterable[str]) -> Iterable[str]:
    names = sorted(keys)
    if not names or (names[0] >= ":" and "".join(names).isascii()):  # no key begins with a digit
        return sorted(names, key=len)
    return sorted(names, key=_key_order)


def _key_order(key: str) -> tuple[bool, int, bytes]:
    encoded = key.encode(errors="surrogatepass")
    is_index = _INDEX.fullmatch(key) is not None and int(key) < _END_OF_INDICES
    return not is_index, len(encoded), encoded  # of indices, the shorter one is the smaller one


def decode_base64(text: str) -> bytes:
    """Return the bytes of standard or URL-safe base64, padded or not.

    The text ends at the first `=`. Characters before it that are not base64 are ignored, and so is a last
    character that has too few bits for a byte.
    """
    digits = _OTHER.sub("", text.partition("=")[0].translate(_STANDARD))
    if len(digits) % _GROUP == 1:
        digits = digits[:-1]
    return b64decode(digits + "=" * (-len(digits) % _GROUP))
