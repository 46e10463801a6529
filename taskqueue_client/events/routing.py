"""Routing keys: the words that say what a message is about, and the patterns that match them.

Fields, their order and sizes: the routing keys in the reference of the Queue's exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from taskqueue_client.errors import InvalidArgument

KIND: Final = "primary"
"""The first word of every routing key; keys of a task's routes begin with `route`."""

MISSING: Final = "_"
"""What stands for a field that has no value, such as the worker of a pending run."""

LONGEST_KEY: Final = 255
"""Bytes in an AMQP routing key."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a routing key.

    Attributes:
        name: In snake_case.
        size: The most characters that a value has.
        several_words: The value may hold dots, so that only `#` matches it.
    """

    name: str
    size: int
    several_words: bool = False


_RESERVED = Field("reserved", 1, several_words=True)

TASK_FIELDS: Final = (
    Field("task_id", 22),
    Field("run_id", 3),
    Field("worker_group", 38),
    Field("worker_id", 38),
    Field("provisioner_id", 38),
    Field("worker_type", 38),
    Field("scheduler_id", 38),
    Field("task_group_id", 22),
    _RESERVED,
)
"""What follows the kind in the key of a message about a task."""

GROUP_FIELDS: Final = (Field("task_group_id", 22), Field("scheduler_id", 38), _RESERVED)
"""What follows the kind in the key of a message about a task group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRoutingKey:
    """The routing key of a message about a task.

    Attributes:
        run_id: The run that the message is about, if it is about one.
        worker_group: With `worker_id`, the worker that has, or had, the run, if any.
        reserved: For words that future Queues add.
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
        """`<provisioner_id>/<worker_type>`."""
        return f"{self.provisioner_id}/{self.worker_type}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The fields of a key.

        Raises:
            InvalidArgument: It is not the key of a message about a task.
        """
        words = _split(text, TASK_FIELDS)
        return cls(
            task_id=words[1],
            run_id=_run_id(text, words[2]),
            worker_group=None if words[3] == MISSING else words[3],
            worker_id=None if words[4] == MISSING else words[4],
            provisioner_id=words[5],
            worker_type=words[6],
            scheduler_id=words[7],
            task_group_id=words[8],
            reserved=words[9],
        )

    def build(self) -> str:
        """The key as it is published.

        Raises:
            InvalidArgument: A value has a dot, or is empty or too long.
        """
        return _join(TASK_FIELDS, {field.name: getattr(self, field.name) for field in TASK_FIELDS})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoutingKey:
    """The routing key of a message about a task group."""

    task_group_id: str
    scheduler_id: str
    reserved: str = MISSING

    @classmethod
    def parse(cls, text: str) -> Self:
        """The fields of a key.

        Raises:
            InvalidArgument: It is not the key of a message about a task group.
        """
        words = _split(text, GROUP_FIELDS)
        return cls(task_group_id=words[1], scheduler_id=words[2], reserved=words[3])

    def build(self) -> str:
        """The key as it is published.

        Raises:
            InvalidArgument: A value has a dot, or is empty or too long.
        """
        return _join(GROUP_FIELDS, {field.name: getattr(self, field.name) for field in GROUP_FIELDS})


RoutingKey = TaskRoutingKey | GroupRoutingKey


def pattern(fields: tuple[Field, ...], values: Mapping[str, str | int | None]) -> str:
    """The pattern that matches keys with these values and anything in the other fields.

    Raises:
        InvalidArgument: A value has a dot or a wildcard, or is empty or too long.
    """
    return ".".join([KIND, *(_matching(field, values.get(field.name)) for field in fields)])


def route_pattern(route: str) -> str:
    """The pattern that matches messages of tasks with this route, which may hold `*` and `#`.

    Raises:
        InvalidArgument: The route is empty or too long, or has an empty word.
    """
    key = f"route.{route}"
    if "" in route.split(".") or len(key.encode()) > LONGEST_KEY:
        allowed = f"words joined by dots, at most {LONGEST_KEY - len('route.')} bytes"
        raise InvalidArgument("route", route, allowed)
    return key


def _split(text: str, fields: tuple[Field, ...]) -> list[str]:
    words = text.split(".", len(fields))
    if len(words) != len(fields) + 1 or words[0] != KIND or "" in words:
        names = ".".join([KIND, *(f"<{field.name}>" for field in fields)])
        raise InvalidArgument("routing_key", text, names)
    return words


def _run_id(text: str, word: str) -> int | None:
    if word == MISSING:
        return None
    if not (word.isascii() and word.isdecimal()):
        raise InvalidArgument("routing_key", text, f"a number or {MISSING} as run_id, not {word!r}")
    return int(word)


def _join(fields: tuple[Field, ...], values: Mapping[str, str | int | None]) -> str:
    words = [
        MISSING if (value := values[field.name]) is None else _word(field, str(value)) for field in fields
    ]
    return ".".join([KIND, *words])


def _matching(field: Field, value: str | int | None) -> str:
    if value is None:
        return "#" if field.several_words else "*"
    return _word(field, str(value))


def _word(field: Field, value: str) -> str:
    """The value as it stands in a key; the reserved field grows with what future Queues put there."""
    if not field.several_words and (not 0 < len(value) <= field.size or set(value) & set(".*#")):
        raise InvalidArgument(field.name, value, f"1 to {field.size} characters, none of them a dot, * or #")
    return value
