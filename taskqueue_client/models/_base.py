"""What all answers have in common: structs that never change, and enumerations that stay open."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import msgspec

_URLS = frozenset({"url", "put_url"})


class Model(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What the Queue answered: frozen, in snake_case, blind to fields that it does not know.

    Answers are trees, so that the garbage collector has nothing to look for in them.

    The repr leaves out the query of a URL, which may be a signature.
    """

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What `rich` shows, which would look at the fields otherwise."""
        return [(name, _shown(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


def _shown(name: str, value: object) -> object:
    if name in _URLS and "?" in str(value):
        return str(value).partition("?")[0] + "?<redacted>"
    return value


class OpenEnum(StrEnum):
    """An enumeration whose values are text; one that this version does not know reads as itself."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value, value
        return member
