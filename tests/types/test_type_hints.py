"""`typing.get_type_hints` works for what is public: libraries that check or inject arguments call it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Unpack, get_type_hints

import taskqueue_client
from taskqueue_client.worker import WorkerArguments, WorkerLoop, WorkerSettings
from tests.words.test_public_names import documented

FIXTURES = "taskqueue_client.testing"
"""Not checked: pytest loads this module in each run of tests, so it imports the worker only on demand.
pytest injects its fixtures by name."""

_PRIVATE = re.compile(r"_(?!_)")


def _public() -> Iterator[tuple[str, object]]:
    """Yield the public classes and functions, and the methods of the classes."""
    names = {(module, name) for module, names in documented().items() for name in names}
    for module, name in names | {("taskqueue_client", name) for name in taskqueue_client.__all__}:
        if module in {"", FIXTURES}:
            continue
        value = getattr(importlib.import_module(module), name)
        if _is_own(value):
            yield f"{module}.{name}", value
        if inspect.isclass(value) and _is_own(value):
            yield from ((f"{module}.{name}.{each}", method) for each, method in _methods(value))


def _methods(owner: type) -> Iterator[tuple[str, object]]:
    for name in dir(owner):
        value = inspect.getattr_static(owner, name)
        for each in (value.fget, value.fset) if isinstance(value, property) else (getattr(owner, name),):
            method = getattr(each, "__func__", each)
            if _is_own(method) and not _PRIVATE.match(name):
                yield name, method


def _is_own(value: object) -> bool:
    is_annotated = inspect.isclass(value) or inspect.isfunction(value)
    return is_annotated and value.__module__.startswith("taskqueue_client")


def _fails(value: object) -> bool:
    try:
        get_type_hints(value)
    except NameError:
        return True
    return False


def test_the_arguments_for_subclasses_of_workers_are_those_of_workers() -> None:
    named = get_type_hints(WorkerLoop.__init__)
    settings, result = named.pop("settings"), named.pop("return")
    assert (settings, result) == (Unpack[WorkerSettings], type(None))
    assert get_type_hints(WorkerArguments) == {**named, **get_type_hints(WorkerSettings)}


def test_the_type_hints_of_all_public_classes_functions_and_methods_can_be_evaluated() -> None:
    public = dict(_public())
    assert {"taskqueue_client.TaskRun.proxy", "taskqueue_client.graph.plan_graph"} <= public.keys()
    assert [name for name, value in public.items() if _fails(value)] == []
