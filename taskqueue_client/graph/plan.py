"""A graph of tasks as a document describes it: completed, put in order, and checked as a whole."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from taskqueue_client._dates import is_date_time, timestamp
from taskqueue_client.definitions import TaskDefinition, from_now
from taskqueue_client.errors import InvalidArgument, InvalidDefinition, Problem
from taskqueue_client.schemas import check_definition
from taskqueue_client.slugid import is_slugid, slugid

_KEYS = ("defaults", "taskGroupId", "tasks")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_REFERENCE = re.compile(r"<([^<>]*)>")
_DEADLINE = "1 day"


@dataclass(frozen=True, slots=True)
class GraphTask:
    """A task of a graph, ready to be created.

    Attributes:
        name: Its name within the graph.
        task_id: Its id, which it keeps however often it is submitted.
        definition: What is sent, with the ids of the tasks that it depends on.
    """

    name: str
    task_id: str
    definition: TaskDefinition


@dataclass(frozen=True, slots=True)
class Graph:
    """Tasks of one group, each after those that it depends on."""

    task_group_id: str
    tasks: tuple[GraphTask, ...]

    @property
    def task_ids(self) -> dict[str, str]:
        """The id of each task by its name."""
        return {task.name: task.task_id for task in self.tasks}


def plan_graph(document: Mapping[str, Any], *, created: datetime | None = None) -> Graph:
    """The graph that a document describes, checked; nothing is sent.

    The document has `tasks`, an object of task definitions by name, and may have `defaults` and
    `taskGroupId`. Compared with what `Queue.create_task` takes, in a definition

    - what is missing comes from `defaults`, key by key also within objects such as `metadata`;
    - `dependencies` are names of the graph's tasks, or ids of tasks that exist;
    - `{"task-reference": "<build>"}` in the payload stands for the text with the id of the dependency
      `build` in it, as it does for taskgraph;
    - `created` may be missing, and `deadline` (a day) and `expires` may be like `2 hours`;
    - `metadata.name` may be missing: it is the task's name; `metadata.description` may be missing.

    Args:
        document: As it comes from YAML or JSON.
        created: When the tasks are made; now, when left out. `queue.now()` is right even if this
            machine's clock is not.

    Raises:
        InvalidDefinition: With every problem: an unknown dependency, a cycle, and whatever the Queue
            would not accept in a definition.
    """
    _raise_any(_shape_problems(document))
    group: str = document.get("taskGroupId") or slugid()
    defaults: dict[str, Any] = {"taskGroupId": group, **(document.get("defaults") or {})}
    tasks: dict[str, dict[str, Any]] = {
        name: _merged(defaults, task) for name, task in document["tasks"].items()
    }
    paths = {name: f"$.tasks.{name}" for name in tasks}
    _raise_any(each for name, task in tasks.items() for each in _task_problems(paths[name], task, group))
    ids = {name: slugid() for name in tasks}
    writer = _Writer(ids, created or datetime.now(UTC))
    planned = [
        GraphTask(name, ids[name], writer.definition(name, tasks[name], paths[name]))
        for name in _in_order(tasks)
    ]
    _raise_any(each for task in planned for each in _definition_problems(paths[task.name], task.definition))
    return Graph(group, tuple(planned))


def plan_task(document: Mapping[str, Any], *, created: datetime | None = None) -> Graph:
    """The graph of the one task, named `task`, that a document describes.

    The document is a task definition, in which may be missing what may be missing in those of a graph.

    Args:
        document: As it comes from YAML or JSON.
        created: As for `plan_graph`.

    Raises:
        InvalidDefinition: With every problem.
    """
    task_id = slugid()
    task = {"taskGroupId": task_id, **document}
    _raise_any(_task_problems("$", task, task["taskGroupId"]))
    definition = _Writer({}, created or datetime.now(UTC)).definition("task", task, "$")
    _raise_any(_definition_problems("$", definition))
    return Graph(task["taskGroupId"], (GraphTask("task", task_id, definition),))


def _raise_any(problems: Iterable[Problem]) -> None:
    if found := list(problems):
        raise InvalidDefinition(found)


def _shape_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the document around the definitions."""
    for key in document:
        if key not in _KEYS:
            yield Problem(f"$.{key}", document[key], f"no such key; there are {', '.join(_KEYS)}")
    defaults: object = document.get("defaults")
    if defaults is not None and not isinstance(defaults, Mapping):
        yield Problem("$.defaults", defaults, "an object")
    group = document.get("taskGroupId")
    if group is not None and not (isinstance(group, str) and is_slugid(group)):
        yield Problem("$.taskGroupId", group, "the id of a task group, or nothing for a new one")
    given: object = document.get("tasks")
    tasks: Mapping[object, object] = (
        cast("Mapping[object, object]", given) if isinstance(given, Mapping) else {}
    )
    if not tasks:
        yield Problem("$.tasks", document.get("tasks"), "an object with a task definition for each name")
    for name, task in tasks.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            yield Problem("$.tasks", name, "names of letters, digits and _.:/-")
        elif not isinstance(task, Mapping):
            yield Problem(f"$.tasks.{name}", task, "a task definition, which is an object")


def _task_problems(path: str, task: Mapping[str, Any], group: str) -> Iterator[Problem]:
    """What is wrong with what makes a definition part of a graph."""
    if task["taskGroupId"] != group:
        yield Problem(f"{path}.taskGroupId", task["taskGroupId"], "one group: beside tasks, not here")
    dependencies: object = task.get("dependencies", [])
    if not isinstance(dependencies, list):
        yield Problem(f"{path}.dependencies", dependencies, "a list of names")
        return
    for index, each in enumerate(cast("list[object]", dependencies)):
        if not isinstance(each, str):
            yield Problem(f"{path}.dependencies[{index}]", each, "a name")


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and what is not given from the defaults."""
    merged = {**defaults, **given}
    for key in defaults.keys() & given.keys():
        if isinstance(defaults[key], Mapping) and isinstance(given[key], Mapping):
            merged[key] = _merged(defaults[key], given[key])
    return merged


def _in_order(tasks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names, each after its dependencies."""
    edges = {name: [each for each in _dependencies(task) if each in tasks] for name, task in tasks.items()}
    _raise_any(
        _unknown_dependency(name, index, dependency, tasks)
        for name, task in tasks.items()
        for index, dependency in enumerate(_dependencies(task))
        if dependency not in tasks and not is_slugid(dependency)
    )
    try:
        return list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        circle: list[str] = error.args[1]
    needs = " needs ".join(reversed(circle))
    raise InvalidDefinition(
        [Problem(f"$.tasks.{circle[0]}.dependencies", edges[circle[0]], f"no cycle: {needs}")]
    )


def _dependencies(task: Mapping[str, Any]) -> list[str]:
    return cast("list[str]", task.get("dependencies", []))


def _unknown_dependency(name: str, index: int, given: str, names: Iterable[str]) -> Problem:
    similar = difflib.get_close_matches(given, names, n=1)
    hint = f"; is {similar[0]!r} meant?" if similar else ""
    path = f"$.tasks.{name}.dependencies[{index}]"
    return Problem(path, given, f"the name of a task of this graph ({', '.join(names)}) or a task id{hint}")


class _Writer:
    """Completes definitions.

    Args:
        ids: The task ids by name.
        moment: When the tasks are made.
    """

    def __init__(self, ids: Mapping[str, str], moment: datetime) -> None:
        self._ids = ids
        self._moment = moment

    def definition(self, name: str, task: Mapping[str, Any], path: str) -> TaskDefinition:
        """What the Queue is sent for a task."""
        given: dict[str, Any] = {
            "created": timestamp(self._moment),
            "deadline": _DEADLINE,
            "payload": {},
            **task,
        }
        dependencies = {each: self._ids.get(each, each) for each in _dependencies(task)}
        given["dependencies"] = list(dependencies.values())
        given["payload"] = _resolved(given["payload"], f"{path}.payload", dependencies)
        if isinstance(given.get("metadata"), Mapping):
            given["metadata"] = {"name": name, "description": "", **given["metadata"]}
        dates = {key: self._date(given[key]) for key in ("created", "deadline", "expires") if key in given}
        return cast("TaskDefinition", {**given, **dates})

    def _date(self, given: Any) -> Any:
        """A date, also if it is given by its distance from now; what is neither stays as it is."""
        if not isinstance(given, str) or is_date_time(given):
            return given
        try:
            return from_now(given, self._moment)
        except InvalidArgument:
            return given


def _resolved(value: Any, path: str, ids: Mapping[str, str]) -> Any:
    """The value, with ids in place of references."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        if list(members) == ["task-reference"]:
            return _REFERENCE.sub(partial(_referenced, path, ids), str(members["task-reference"]))
        return {key: _resolved(each, f"{path}.{key}", ids) for key, each in members.items()}
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [_resolved(each, f"{path}[{index}]", ids) for index, each in enumerate(items)]
    return value


def _referenced(path: str, ids: Mapping[str, str], found: re.Match[str]) -> str:
    if found[1] not in ids:
        known = ", ".join(ids) or "it has none"
        raise InvalidDefinition([Problem(path, found[0], f"a dependency of the task ({known})")])
    return ids[found[1]]


def _definition_problems(path: str, definition: TaskDefinition) -> Iterator[Problem]:
    try:
        check_definition(definition, math.nan)
    except InvalidDefinition as error:
        for problem in error.problems:
            yield Problem(path + problem.path[1:], problem.given, problem.allowed)
