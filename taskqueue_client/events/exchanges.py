"""The Queue's exchanges, bindings to them, and the routing keys of messages.

Calling an exchange returns a binding: `task_completed(task_queue_id="proj/linux")` matches messages with the
given fields and any value in the other fields. `docs/reference/exchanges.md` says when each message is sent.

The fields of routing keys, their order and their sizes are those of the reference of the Queue's exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import msgspec

from taskqueue_client import _arguments as arguments
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import messages

PREFIX: Final = "exchange/taskcluster-queue/v1/"
"""The prefix of the names of the Queue's exchanges."""

M_co = TypeVar("M_co", bound=messages.TaskMessage | messages.TaskGroupMessage, covariant=True)


@dataclass(frozen=True, slots=True)
class Binding:
    """An exchange and a pattern, which select the messages that an AMQP queue receives.

    Attributes:
        exchange: The full name of the exchange.
        routing_key_pattern: The pattern for a routing key of the message: words joined by dots, `*` for one
            word, `#` for any number of words.
    """

    exchange: str
    routing_key_pattern: str


class Exchange(Generic[M_co]):
    """One of the Queue's exchanges.

    Attributes:
        name: The short name, such as `task-completed`.
        full_name: The name at the broker, `exchange/taskcluster-queue/v1/<name>`.
        message_type: The struct that messages are decoded into.
    """

    def __init__(self, name: str, message_type: type[M_co]) -> None:
        self.name = name
        self.full_name = PREFIX + name
        self.message_type = message_type
        self._decoder = msgspec.json.Decoder(message_type)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def read(self, body: bytes) -> M_co:
        """Return the decoded message.

        Raises:
            msgspec.DecodeError: The body is not JSON, or not a message of this exchange.
        """
        return self._decoder.decode(body)


class TaskExchange(Exchange[M_co]):
    """An exchange of messages about a task. Calling it returns a binding."""

    def __call__(
        self,
        *,
        task_id: str | None = None,
        run_id: int | None = None,
        worker_group: str | None = None,
        worker_id: str | None = None,
        task_queue_id: str | None = None,
        provisioner_id: str | None = None,
        worker_type: str | None = None,
        scheduler_id: str | None = None,
        task_group_id: str | None = None,
    ) -> Binding:
        """Return a binding to messages with these values in their routing keys; None matches any value.

        Args:
            task_id: The task.
            run_id: The run; messages that do not belong to a run, such as `task-defined`, have none.
            worker_group: With `worker_id`, the worker; messages about unclaimed runs, missed deadlines and
                changes of priority have none.
            worker_id: See `worker_group`.
            task_queue_id: `<provisioner_id>/<worker_type>`; excludes the next two arguments.
            provisioner_id: The first part of the task queue's id.
            worker_type: The second part of the task queue's id.
            scheduler_id: The scheduler; `-` if the task's definition does not name one.
            task_group_id: The task group.

        Raises:
            InvalidArgument: A value is empty, too long, or not accepted by the Queue, or `task_queue_id` is
                given together with `provisioner_id` or `worker_type`.
        """
        if task_queue_id is not None:
            provisioner_id, worker_type = arguments.task_queue_pair(
                task_queue_id, provisioner_id, worker_type
            )
        return Binding(self.full_name, pattern(TASK_FIELDS, locals()))  # `locals()`: values by name


class GroupExchange(Exchange[M_co]):
    """An exchange of messages about a task group. Calling it returns a binding."""

    def __call__(self, *, task_group_id: str | None = None, scheduler_id: str | None = None) -> Binding:
        """Return a binding to messages with these values in their routing keys; None matches any value.

        Raises:
            InvalidArgument: A value is empty, too long, or not accepted by the Queue.
        """
        return Binding(self.full_name, pattern(GROUP_FIELDS, locals()))  # as above


task_defined = TaskExchange("task-defined", messages.TaskDefinedMessage)
task_pending = TaskExchange("task-pending", messages.TaskPendingMessage)
task_running = TaskExchange("task-running", messages.TaskRunningMessage)
artifact_created = TaskExchange("artifact-created", messages.ArtifactCreatedMessage)
task_completed = TaskExchange("task-completed", messages.TaskCompletedMessage)
task_failed = TaskExchange("task-failed", messages.TaskFailedMessage)
task_exception = TaskExchange("task-exception", messages.TaskExceptionMessage)
task_priority_changed = TaskExchange("task-priority-changed", messages.TaskPriorityChangedMessage)
task_group_resolved = GroupExchange("task-group-resolved", messages.TaskGroupResolvedMessage)
task_group_sealed = GroupExchange("task-group-sealed", messages.TaskGroupSealedMessage)
task_group_priority_changed = GroupExchange(
    "task-group-priority-changed", messages.TaskGroupPriorityChangedMessage
)

TASK_EXCHANGES: Final[tuple[TaskExchange[messages.TaskMessage], ...]] = (
    task_defined,
    task_pending,
    task_running,
    artifact_created,
    task_completed,
    task_failed,
    task_exception,
    task_priority_changed,
)
"""The exchanges of messages about a task. Their messages carry the task's routes as further routing keys."""

GROUP_EXCHANGES: Final[tuple[GroupExchange[messages.TaskGroupMessage], ...]] = (
    task_group_resolved,
    task_group_sealed,
    task_group_priority_changed,
)
"""The exchanges of messages about a task group. Their messages carry no routes."""

EXCHANGES: Final[tuple[Exchange[messages.TaskMessage | messages.TaskGroupMessage], ...]] = (
    *TASK_EXCHANGES,
    *GROUP_EXCHANGES,
)
"""All exchanges of the Queue."""


def for_route(
    route: str, exchanges: Sequence[TaskExchange[messages.TaskMessage]] = TASK_EXCHANGES
) -> tuple[Binding, ...]:
    """Return bindings to the messages of tasks with a matching route in `task.routes`.

    Args:
        route: The route, without the prefix `route.` of its routing key; `*` matches one word, `#` any
            number of words.
        exchanges: The exchanges to bind to, by default all that publish messages about tasks.

    Raises:
        InvalidArgument: The route is empty or too long, contains an empty word, or begins with `route.`.
    """
    allowed = f"words joined by dots, at most {LONGEST_KEY - len('route.')} bytes"
    route = arguments.text("route", route, _ROUTE, allowed)
    key = f"route.{route}"
    if "" in route.split(".") or len(key.encode()) > LONGEST_KEY:
        raise InvalidArgument("route", route, allowed)
    if route.startswith("route."):  # the binding would match only `route.route.…`
        raise InvalidArgument("route", route, "a route as in a definition, without the prefix 'route.'")
    return tuple(Binding(exchange.full_name, key) for exchange in exchanges)


def for_task(task_id: str) -> tuple[Binding, ...]:
    """Return bindings to all messages about one task.

    Raises:
        InvalidArgument: `task_id` is not a valid task id.
    """
    arguments.slugid("task_id", task_id)  # None would match the messages of all tasks
    return tuple(exchange(task_id=task_id) for exchange in TASK_EXCHANGES)


def for_group(task_group_id: str) -> tuple[Binding, ...]:
    """Return bindings to all messages about a task group and its tasks.

    Raises:
        InvalidArgument: `task_group_id` is not a valid id.
    """
    arguments.slugid("task_group_id", task_group_id)
    about_tasks = (exchange(task_group_id=task_group_id) for exchange in TASK_EXCHANGES)
    about_group = (exchange(task_group_id=task_group_id) for exchange in GROUP_EXCHANGES)
    return (*about_tasks, *about_group)


KIND: Final = "primary"
"""The first word of a message's own routing key; those of a task's routes begin with `route`."""

MISSING: Final = "_"
"""The placeholder of a field without a value, such as the worker of a pending run."""

_VALUE: Final = re.compile(r"[a-zA-Z0-9_-]+")
"""The values that the Queue accepts for the fields of routing keys: no other value matches a message."""
_ROUTE: Final = re.compile(r"[^\ud800-\udfff]+")
"""Routes that UTF-8 can encode."""

LONGEST_KEY: Final = 255
"""The most bytes of an AMQP routing key."""


class _Field(NamedTuple):
    """One field of a routing key: the most characters of a value, and whether the value may have dots."""

    name: str
    size: int
    several_words: bool = False


_RESERVED = _Field("reserved", 1, several_words=True)

TASK_FIELDS: Final = (
    _Field("task_id", 22),
    _Field("run_id", 3),
    _Field("worker_group", 38),
    _Field("worker_id", 38),
    _Field("provisioner_id", 38),
    _Field("worker_type", 38),
    _Field("scheduler_id", 38),
    _Field("task_group_id", 22),
    _RESERVED,
)
"""The fields after the first word in the routing key of a message about a task."""

GROUP_FIELDS: Final = (_Field("task_group_id", 22), _Field("scheduler_id", 38), _RESERVED)
"""The fields after the first word in the routing key of a message about a task group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRoutingKey:
    """The routing key of a message about a task.

    Attributes:
        run_id: The run, or None if the message does not belong to a run.
        worker_group: With `worker_id`, the worker that claimed the run, or None if no worker has.
        reserved: Words that a newer Queue may add; `_` today.
    """

    task_id: str
    provisioner_id: str
    worker_type: str
    scheduler_id: str
    task_group_id: str
    run_id: int | None = None
    worker_group: str | None = None
    worker_id: str | None = None
    reserved: str = MISSING

    @property
    def task_queue_id(self) -> str:
        """The id of the task queue, `<provisioner_id>/<worker_type>`."""
        return f"{self.provisioner_id}/{self.worker_type}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the fields of a routing key.

        Raises:
            InvalidArgument: The text is not the routing key of a message about a task.
        """
        fields: dict[str, Any] = _parsed(text, TASK_FIELDS)
        fields["run_id"] = _run_id(text, fields["run_id"])
        for name in ("worker_group", "worker_id"):
            fields[name] = None if fields[name] == MISSING else fields[name]
        return cls(**fields)

    def __str__(self) -> str:
        return _key_text(self, TASK_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoutingKey:
    """The routing key of a message about a task group."""

    task_group_id: str
    scheduler_id: str
    reserved: str = MISSING

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the fields of a routing key.

        Raises:
            InvalidArgument: The text is not the routing key of a message about a task group.
        """
        return cls(**_parsed(text, GROUP_FIELDS))

    def __str__(self) -> str:
        return _key_text(self, GROUP_FIELDS)


RoutingKey = TaskRoutingKey | GroupRoutingKey


def pattern(fields: tuple[_Field, ...], values: Mapping[str, str | int | None]) -> str:
    """Return the pattern that matches keys with these values and any value in the other fields.

    Raises:
        InvalidArgument: A value is empty, too long, or not accepted by the Queue.
    """
    return ".".join([KIND, *(_matching(field, values.get(field.name)) for field in fields)])


def _parsed(text: str, fields: tuple[_Field, ...]) -> dict[str, str]:
    """Return the words of a routing key by the names of its fields."""
    kind, *words = text.split(".", len(fields))
    if len(words) != len(fields) or kind != KIND or "" in words:
        names = ".".join([KIND, *(f"<{field.name}>" for field in fields)])
        raise InvalidArgument("routing_key", text, names)
    return {field.name: word for field, word in zip(fields, words, strict=True)}


def _run_id(text: str, word: str) -> int | None:
    if word == MISSING:
        return None
    if not (word.isascii() and word.isdecimal()):
        raise InvalidArgument("routing_key", text, f"a number or {MISSING} as run_id, not {word!r}")
    return int(word)


def _key_text(key: RoutingKey, fields: tuple[_Field, ...]) -> str:
    values = (getattr(key, field.name) for field in fields)
    return ".".join([KIND, *(MISSING if value is None else _as_text(value) for value in values)])


def _matching(field: _Field, value: str | int | None) -> str:
    if value is None:
        return "#" if field.several_words else "*"  # which matches one word
    if field.name in {"task_id", "task_group_id"}:
        return arguments.slugid(field.name, value)
    if field.name == "run_id":
        return str(arguments.number(field.name, value, most=10**field.size - 1))
    allowed = f"1 to {field.size} of a-z A-Z 0-9 - _"
    text = arguments.text(field.name, value, _VALUE, allowed)
    if len(text) > field.size:
        raise InvalidArgument(field.name, value, allowed)
    return text


def _as_text(value: object) -> str:
    """Return a value as text; of an enumeration member the value, where `str` would return its name."""
    if isinstance(value, str):
        return str.__str__(value)
    return str(int(value) if isinstance(value, int) else value)
