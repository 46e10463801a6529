"""Checks of the kind of an argument, for callers whose code no type checker reads."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction
from types import NoneType, UnionType
from typing import Any, get_args

from .errors import InvalidArgument


def check_kind(argument: str, given: object, kind: type | UnionType, allowed: str = "") -> None:
    """Raise InvalidArgument unless an argument is of a kind. True and False are not numbers."""
    kinds: tuple[Any, ...] = get_args(kind) or (kind,)
    if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
        names = ["None" if each is NoneType else each.__name__ for each in kinds]
        raise InvalidArgument(argument, given, allowed or " or ".join(names))


def check_kinds(arguments: Mapping[str, object], /, **kinds: type | UnionType) -> None:
    """Check the kinds of several arguments; see `check_kind`."""
    for name, kind in kinds.items():
        check_kind(name, arguments[name], kind)


def check_callback(argument: str, given: object) -> None:
    """Raise InvalidArgument unless an argument is a function, not an asynchronous one: nobody awaits it."""
    if given is not None and (not callable(given) or iscoroutinefunction(given)):
        raise InvalidArgument(argument, given, "a function that is not asynchronous")
