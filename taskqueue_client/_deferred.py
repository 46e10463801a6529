"""Methods whose modules are imported when they are first looked at, because that costs time."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


class Deferred:
    """Stands in a class for a method, and puts the real one in its place at the first access.

    Args:
        module: Where the function is.
        make_method: What makes a method of the function; it is one as it stands when left out.
    """

    def __init__(self, module: str, make_method: Callable[[Any], Any] | None = None) -> None:
        self._module = module
        self._make_method = make_method

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        method = getattr(import_module(self._module), self._name)
        if self._make_method is not None:
            method = self._make_method(method)
        setattr(self._owner, self._name, method)
        return getattr(owner if instance is None else instance, self._name)
