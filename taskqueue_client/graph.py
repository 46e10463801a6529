"""Task graphs: tasks that depend on each other, checked as a whole, submitted in order, and followed.

>>> from taskqueue_client import Queue
>>> from taskqueue_client.graph import follow_group, plan_graph, submit_graph
>>> about = {"owner": "me@example.com", "source": "https://example.com"}
>>> graph = plan_graph({
...     "defaults": {"taskQueueId": "proj/linux", "metadata": about},
...     "tasks": {
...         "fetch": {},
...         "build": {"payload": {"sources": {"task-reference": "<fetch>"}}, "dependencies": ["fetch"]},
...     },
... })
>>> with Queue.from_env() as queue:
...     created = submit_graph(queue, graph)
...     for members in follow_group(queue, graph.task_group_id):
...         print(sorted(f"{member.task['metadata']['name']} {member.status.state}" for member in members))
...         break
['build unscheduled', 'fetch pending']
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, cast

from taskqueue_client import _arguments as arguments
from taskqueue_client._dates import is_date_time, moment_of, timestamp
from taskqueue_client._following import are_settled, blocked_tasks, follow, follow_group, follow_group_async
from taskqueue_client._protocol.conversation import (
    AsyncClient,
    Client,
    Conversation,
    Together,
    converse,
    converse_async,
)
from taskqueue_client._protocol.schemas import definition_problems, expiry_problems
from taskqueue_client.calls import create_task, status
from taskqueue_client.calls import task as read_task
from taskqueue_client.definitions import TaskDefinition, same_definition, up_to_date
from taskqueue_client.errors import (
    CallFailed,
    InvalidArgument,
    InvalidDefinition,
    Problem,
    RequestConflict,
    TaskQueueError,
)
from taskqueue_client.models import TaskStatus
from taskqueue_client.slugid import is_slugid, slugid, slugid_of

__all__ = [
    "Graph", "GraphTask", "SubmissionFailed", "are_settled", "blocked_tasks", "follow", "follow_group",
    "follow_group_async", "plan_graph", "plan_task", "submit_graph", "submit_graph_async",
]  # fmt: skip

_KEYS = ("defaults", "taskGroupId", "tasks")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_SEED = re.compile(r"(?s).+")
_NOT_REFERENCES = (["artifact-reference"], ["task_reference"], ["taskReference"])
_REFERENCE = re.compile(r"<([^<>]*)>")

CONCURRENCY = 16
"""How many tasks are created at the same time."""

_FEW = 20  # the most names in an error, wrong names with a suggestion, and cycles that are reported


@dataclass(frozen=True, slots=True)
class GraphTask:
    """A task of a graph, ready to be created.

    Attributes:
        name: The task's name within the graph.
        task_id: The task's id, the same each time the graph is submitted.
        definition: The complete definition, with task ids as dependencies.
    """

    name: str
    task_id: str
    definition: TaskDefinition


@dataclass(frozen=True, slots=True)
class Graph:
    """Tasks of one task group, each after its dependencies."""

    task_group_id: str
    tasks: tuple[GraphTask, ...]

    @property
    def task_ids(self) -> dict[str, str]:
        """The task ids by name."""
        return {task.name: task.task_id for task in self.tasks}


def plan_graph(
    document: Mapping[str, Any], *, created: datetime | str | None = None, seed: str | None = None
) -> Graph:
    """Return the graph that a document describes, checked; nothing is sent.

    The document has `tasks`, an object of task definitions by name, and may have `defaults` and
    `taskGroupId`. A definition is as for `Queue.create_task`, with these differences:

    - missing keys come from `defaults`, key by key also within objects such as `metadata`;
    - `dependencies` are names of the graph's tasks, or ids of tasks that exist; a task that depends on itself
      is held back until somebody schedules it (`schedule_task`);
    - `{"task-reference": "<build>"}` in the payload becomes the string, with the id of the dependency `build`
      in the place of `<build>`, as in taskgraph;
    - `created` and `deadline` (default: `1 day`) may be missing;
    - dates may also be datetimes with a time zone, or distances like `2 hours`;
    - `metadata.name` may be missing: it is the task's name; `metadata.description` may be missing.

    Args:
        document: The content of a YAML or JSON file.
        created: When the tasks are created, in the forms that `task_definition` takes; default: now.
            `queue.now()` is right even if this machine's clock is wrong.
        seed: Text from which the ids are derived, with the names of the tasks: planned again with the same
            seed, such as the id of a decision task, the graph has the same ids. By default, ids are random.

    Raises:
        InvalidArgument: `created` cannot be parsed, or `seed` is empty.
        InvalidDefinition: With every problem: an unknown dependency, a dependency cycle, a task of the graph
            that expires before a dependent's deadline, and whatever the Queue would refuse in a definition.
    """
    _check_object(document)
    if seed is not None:
        arguments.text("seed", seed, _SEED, "a string that is not empty")
    problems = [*_shape_problems(document), *_circular_defaults(document)]
    given = document.get("taskGroupId")
    group = given if isinstance(given, str) and is_slugid(given) else slugid_of(seed, "")
    tasks = _tasks_of(document, group)
    allowed = _allowed_dependencies(tasks)
    for name, task in tasks.items():
        problems += _task_problems(f"$.tasks.{name}", task, group, allowed)
    order = _in_order(tasks, problems)
    ids = {name: slugid_of(seed, name) for name in order}
    writer = _Writer(ids, created, problems)
    planned = [
        GraphTask(name, ids[name], writer.definition(name, tasks[name], f"$.tasks.{name}", group))
        for name in order
    ]
    problems += expiry_problems({task.task_id: (task.name, task.definition) for task in planned})
    _raise_any(problems)
    return Graph(group, tuple(planned))


def plan_task(document: Mapping[str, Any], *, created: datetime | str | None = None) -> Graph:
    """Return a graph of one task, named `task`.

    The document is a task definition; the same keys are optional as in a graph.

    Args:
        document: The content of a YAML or JSON file.
        created: As for `plan_graph`.

    Raises:
        InvalidArgument: `created` cannot be parsed.
        InvalidDefinition: With every problem.
    """
    _check_object(document)
    task_id = slugid()
    group = document.get("taskGroupId", task_id)
    problems = [*_task_problems("$", {"taskGroupId": group, **document}, group, lambda _: "")]
    writer = _Writer({}, created, problems)
    definition = writer.definition("task", document, "$", group)
    _raise_any(problems)
    return Graph(group, (GraphTask("task", task_id, definition),))


def _check_object(document: object) -> None:
    if not isinstance(document, Mapping):
        raise InvalidDefinition([Problem("$", document, "an object")])


def _raise_any(problems: list[Problem]) -> None:
    if problems:
        raise InvalidDefinition(problems)


def _tasks_of(document: Mapping[str, Any], group: str) -> dict[str, dict[str, Any]]:
    """Return the tasks with the keys of `defaults`, without those that `_shape_problems` reports."""
    given: object = document.get("defaults")
    if given is not None and not isinstance(given, Mapping):
        return {}
    defaults = {**cast("Mapping[str, Any]", given or {}), "taskGroupId": group}
    return {
        name: _merged(defaults, cast("Mapping[str, Any]", task))
        for name, task in _named_tasks(document).items()
        if isinstance(name, str) and _NAME.fullmatch(name) and isinstance(task, Mapping)
    }


def _named_tasks(document: Mapping[str, Any]) -> Mapping[object, object]:
    given: object = document.get("tasks")
    return cast("Mapping[object, object]", given) if isinstance(given, Mapping) else {}


def _shape_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of the document outside of the definitions."""
    for key in document:
        if key not in _KEYS:
            yield Problem(f"$.{key}", document[key], "", f"unknown key; known keys: {', '.join(_KEYS)}")
    defaults: object = document.get("defaults")
    group = document.get("taskGroupId")
    if defaults is not None and not isinstance(defaults, Mapping):
        yield Problem("$.defaults", defaults, "an object")
    elif defaults and (given := cast("Mapping[str, Any]", defaults).get("taskGroupId")) not in (None, group):
        yield Problem("$.defaults.taskGroupId", given, "", "not allowed here; set $.taskGroupId instead")
    if group is not None and not (isinstance(group, str) and is_slugid(group)):
        yield Problem("$.taskGroupId", group, "a slugid, or no key for a new task group")
    tasks = _named_tasks(document)
    if not tasks:
        yield Problem("$.tasks", document.get("tasks"), "an object of one or more task definitions by name")
    for name, task in tasks.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            yield Problem("$.tasks", name, "a name of a-z A-Z 0-9 _ . : / -, with a letter or digit first")
        elif not isinstance(task, Mapping):
            yield Problem(f"$.tasks.{name}", task, "a task definition (an object)")


def _circular_defaults(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each task that would depend on itself because of the defaults, and never run."""
    given: object = document.get("defaults")
    defaults: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    tasks = _named_tasks(document)
    for name in _dependencies(defaults):
        task = tasks.get(name)
        if isinstance(task, Mapping) and "dependencies" not in cast("Mapping[object, object]", task):
            found = f"task {name!r} would wait for itself; give it its own `dependencies`, such as []"
            yield Problem("$.defaults.dependencies", name, "", found)


def _task_problems(
    path: str, task: Mapping[str, Any], group: str, allowed_instead: Callable[[str], str]
) -> Iterator[Problem]:
    """Yield the problems of a definition's `taskGroupId` and `dependencies`; see `_allowed_dependencies`."""
    if task["taskGroupId"] != group:
        allowed = "no key, or the value of $.taskGroupId: all tasks of a graph are in one task group"
        yield Problem(f"{path}.taskGroupId", task["taskGroupId"], allowed)
    dependencies: object = task.get("dependencies", [])
    if not isinstance(dependencies, list | tuple):
        yield Problem(f"{path}.dependencies", dependencies, "a list of task names and task ids")
        return
    for index, each in enumerate(cast("Sequence[object]", dependencies)):
        where = f"{path}.dependencies[{index}]"
        if not isinstance(each, str):
            yield Problem(where, each, "a task name or a task id")
        elif not is_slugid(each) and (allowed := allowed_instead(each)):
            yield Problem(where, each, allowed)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given` with the missing keys taken from `defaults`, also within objects."""
    merged = {**defaults, **given}
    for key in defaults.keys() & given.keys():
        if isinstance(defaults[key], Mapping) and isinstance(given[key], Mapping):
            merged[key] = _merged(defaults[key], given[key])
    return merged


def _in_order(tasks: Mapping[str, Mapping[str, Any]], problems: list[Problem]) -> list[str]:
    """Return the names, each after its dependencies; add cycles of two and more tasks to the problems."""
    edges = {name: [each for each in _dependencies(task) if each != name] for name, task in tasks.items()}
    for _ in range(_FEW):
        try:
            order = [name for name in TopologicalSorter(edges).static_order() if name in tasks]
            return order if len(edges) == len(tasks) else list(tasks)
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
        # The first name is also the last; its dependencies are shown.
        path, given = f"$.tasks.{circle[0]}.dependencies", [edges.pop(name) for name in circle[1:]][-1]
        if len(circle) > _FEW:
            circle[_FEW // 2 : -_FEW // 2] = [f"({len(circle) - _FEW:,} more)"]
        problems.append(Problem(path, given, "", f"dependency cycle: {' → '.join(circle)}"))
    return list(tasks)


def _dependencies(task: Mapping[str, Any]) -> list[str]:
    """Return the dependencies that are strings."""
    given = task.get("dependencies", [])
    dependencies = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
    return [each for each in dependencies if isinstance(each, str)]


def _allowed_dependencies(names: Collection[str]) -> Callable[[str], str]:
    """Return a function that returns what is allowed instead of a dependency; "" if the dependency is right.

    All tasks of a large graph may have wrong dependencies: to find similar names must not take minutes.
    """
    expected = f"a task id or a name of this graph ({arguments.some_of(names, _FEW)})"
    hints: dict[str, str] = {}

    def allowed_instead(given: str) -> str:
        if given in names:
            return ""
        if given not in hints and len(hints) < _FEW:
            similar = difflib.get_close_matches(given, names, n=1)
            hints[given] = f"; did you mean {similar[0]!r}?" if similar else ""
        return expected + hints.get(given, "")

    return allowed_instead


class _Writer:
    """Completes and checks definitions."""

    def __init__(
        self, ids: Mapping[str, str], created: datetime | str | None, problems: list[Problem]
    ) -> None:
        self._ids = ids
        self._moment = datetime.now(UTC) if created is None else moment_of("created", created)
        self._problems = problems

    def definition(self, name: str, task: Mapping[str, Any], path: str, group: str) -> TaskDefinition:
        given: dict[str, Any] = {
            "created": timestamp(self._moment),
            "deadline": "1 day",
            "payload": {},
            **task,
            "taskGroupId": group,
        }
        dependencies = {each: self._ids.get(each, each) for each in _dependencies(task)}
        known = [each for each in dependencies.values() if is_slugid(each) or not self._ids]
        given["dependencies"] = known
        try:
            given["payload"] = self._resolved(given["payload"], f"{path}.payload", dependencies)
        except RecursionError:
            finding = "lists and objects are nested too deeply"
            self._problems.append(Problem(f"{path}.payload", None, "", finding))
            given["payload"] = {}
        if isinstance(given.get("metadata"), Mapping):
            given["metadata"] = {"name": name, "description": "", **given["metadata"]}
        dates = {key: self._date(given[key]) for key in ("created", "deadline", "expires") if key in given}
        definition = cast("TaskDefinition", {**given, **dates})
        self._problems += definition_problems(path, definition)
        return definition

    def _date(self, given: Any) -> Any:
        """Return a datetime or a distance such as `2 hours` as a date, and anything else unchanged."""
        is_distance = isinstance(given, str) and not is_date_time(given)
        if is_distance or isinstance(given, datetime):
            with suppress(InvalidArgument):
                return timestamp(moment_of("date", given, lambda: self._moment))
        return given

    def _resolved(self, value: Any, path: str, ids: Mapping[str, str]) -> Any:
        if isinstance(value, Mapping):
            members = cast("Mapping[str, Any]", value)
            if list(members) == ["task-reference"]:
                return self._with_ids(members["task-reference"], path, ids)
            if list(members) in _NOT_REFERENCES and _REFERENCE.search(str(members)):
                self._problems.append(Problem(path, members, "task-reference, the only kind of reference"))
            return {key: self._resolved(each, f"{path}.{key}", ids) for key, each in members.items()}
        if isinstance(value, (list, tuple)):
            items = cast("Iterable[object]", value)
            return [self._resolved(each, f"{path}[{index}]", ids) for index, each in enumerate(items)]
        return value

    def _with_ids(self, text: object, path: str, ids: Mapping[str, str]) -> object:
        if isinstance(text, str):
            return _REFERENCE.sub(partial(self._referenced, path, ids), text)
        allowed = "a string, with names of dependencies in <>"
        self._problems.append(Problem(f"{path}.task-reference", text, allowed))
        return text

    def _referenced(self, path: str, ids: Mapping[str, str], found: re.Match[str]) -> str:
        if found[1] not in ids:
            known = arguments.some_of(ids, _FEW) or "the task has none"
            self._problems.append(Problem(path, found[0], f"a name of the task's dependencies ({known})"))
        return ids.get(found[1], found[0])


class SubmissionFailed(TaskQueueError):
    """A task of a graph could not be created.

    Submit the same `Graph` again to create the rest: tasks that exist are left as they are.

    Attributes:
        graph: The graph.
        name: The name of the task whose creation failed.
        created: The names of the tasks that were created.
        unknown: The names of tasks that may have been created, `name` among them if no response says that it
            was not. Up to 16 tasks are created at the same time, and `submit_graph_async` cancels the others.
        error: The error of the call, also in `__cause__`, which pickle drops.
    """

    def __init__(
        self, graph: Graph, name: str, created: tuple[str, ...], error: TaskQueueError, *unknown: str
    ) -> None:
        super().__init__(graph, name, created, error, *unknown)
        self.graph = graph
        self.name = name
        self.created = created
        self.error = error
        self.unknown = unknown

    def __str__(self) -> str:
        was = "may have been" if self.name in self.unknown else "was not"
        more = f", and {len(self.unknown)} may have been," if self.unknown else ""
        count = f"{len(self.created)} of {len(self.graph.tasks)} tasks were created{more}"
        group = self.graph.task_group_id
        return f"task {self.name!r} {was} created: {self.error} ({count} in task group {group})"


class _Timed(Protocol):
    def now(self) -> datetime: ...


class _TimedClient(Client, _Timed, Protocol): ...


class _TimedAsyncClient(AsyncClient, _Timed, Protocol): ...


def submit_graph(queue: _TimedClient, graph: Graph) -> dict[str, TaskStatus]:
    """Create all tasks of a graph, each after its dependencies, up to 16 at the same time.

    Safe to repeat until the deadlines of the tasks. A task that exists is left as it is, also in a sealed
    task group and with another priority or other dates. `created` of the other tasks is the time of the call
    if the graph was planned more than 14 minutes ago.

    Scopes: those of `create_task` for each task, and `queue:get-task:<task_id>` to find a task that exists.

    Args:
        queue: The client.
        graph: A graph from `plan_graph`. To submit it again from another process, store it with `pickle`, or
            plan it with a `seed`.

    Returns:
        The status of each task by its name, as it was when the task was created or found.

    Raises:
        InvalidArgument: `graph` is not a graph from `plan_graph`.
        SubmissionFailed: A task could not be created. The tasks that it depends on exist.
    """
    return converse(queue, _creation(queue, graph))


async def submit_graph_async(queue: _TimedAsyncClient, graph: Graph) -> dict[str, TaskStatus]:
    """Create all tasks of a graph with an asynchronous client; see `submit_graph`."""
    return await converse_async(queue, _creation(queue, graph))


def _creation(queue: _Timed, graph: Graph) -> Conversation[dict[str, TaskStatus]]:
    if not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may not check types
        raise InvalidArgument("graph", type(graph), "a graph from plan_graph")
    statuses: dict[str, TaskStatus] = {}
    refused, begun = set[str](), set[str]()

    def creation(task: GraphTask) -> Conversation[None]:
        begun.add(task.name)
        try:
            statuses[task.name] = yield from _created(queue, task)
        except (CallFailed, InvalidArgument) as error:
            if not (isinstance(error, CallFailed) and error.attempted.outcome_unknown):
                refused.add(task.name)
            raise SubmissionFailed(graph, task.name, (), error) from error

    try:
        for wave in _waves(graph.tasks):
            together = Together(map(creation, wave), min(len(wave), CONCURRENCY))
            yield from together if len(wave) > 1 else creation(wave[0])
    except SubmissionFailed as failed:
        created = tuple(task.name for task in graph.tasks if task.name in statuses)
        unclear = begun - refused - statuses.keys()
        unknown = (task.name for task in graph.tasks if task.name in unclear)
        raise SubmissionFailed(graph, failed.name, created, failed.error, *unknown) from failed.error
    return {task.name: statuses[task.name] for task in graph.tasks}


def _waves(tasks: Iterable[GraphTask]) -> list[list[GraphTask]]:
    """Return the tasks in groups, each of which depends on earlier groups only."""
    waves: list[list[GraphTask]] = []
    depths: dict[str, int] = {}
    for task in tasks:
        dependencies = task.definition.get("dependencies", ())
        depth = 1 + max((depths[each] for each in dependencies if each in depths), default=-1)
        depths[task.task_id] = depth
        if depth == len(waves):
            waves.append([])
        waves[depth].append(task)
    return waves


def _created(queue: _Timed, task: GraphTask) -> Conversation[TaskStatus]:
    try:
        response = yield from create_task(task.task_id, up_to_date(task.definition, queue.now()))
    except RequestConflict:
        if not (yield from _exists(task)):
            raise
        response = yield from status(task.task_id)
    return response.status


def _exists(task: GraphTask) -> Conversation[bool]:
    """Return whether the Queue has the task, maybe with another priority, or the dates of an older plan."""
    try:
        stored = yield from read_task(task.task_id)
    except CallFailed:
        return False
    kept = {key: stored[key] for key in ("created", "deadline", "expires", "priority") if key in stored}
    return same_definition(cast("TaskDefinition", {**task.definition, **kept}), task.task_id, stored)
