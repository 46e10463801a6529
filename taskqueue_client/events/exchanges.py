"""The Queue's exchanges, and what to bind a queue to.

An exchange is called to make a binding: `task_completed(task_queue_id="proj/linux")` matches what a
call gives, and anything in the other fields. When each message is sent: the reference of the Queue's
exchanges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models.messages import (
    ArtifactCreatedMessage,
    TaskCompletedMessage,
    TaskDefinedMessage,
    TaskExceptionMessage,
    TaskFailedMessage,
    TaskGroupMessage,
    TaskGroupPriorityChangedMessage,
    TaskGroupResolvedMessage,
    TaskGroupSealedMessage,
    TaskMessage,
    TaskPendingMessage,
    TaskPriorityChangedMessage,
    TaskRunningMessage,
)

from .routing import (
    GROUP_FIELDS,
    TASK_FIELDS,
    GroupRoutingKey,
    RoutingKey,
    TaskRoutingKey,
    pattern,
    route_pattern,
)

PREFIX: Final = "exchange/taskcluster-queue/v1/"
"""What the names of all exchanges of the Queue begin with."""

M_co = TypeVar("M_co", bound="TaskMessage | TaskGroupMessage", covariant=True)


@dataclass(frozen=True, slots=True)
class Binding:
    """Which messages come into a queue.

    Attributes:
        exchange: Its full name.
        routing_key_pattern: What a routing key, or a route of the task, has to match.
    """

    exchange: str
    routing_key_pattern: str


class Exchange(ABC, Generic[M_co]):
    """One of the Queue's exchanges.

    Attributes:
        name: Such as `task-completed`.
        full_name: As the broker knows it.
        message_type: The struct that its messages are read into.
    """

    def __init__(self, name: str, message_type: type[M_co]) -> None:
        self.name = name
        self.full_name = PREFIX + name
        self.message_type = message_type
        self._decoder = msgspec.json.Decoder(message_type)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def read(self, body: bytes) -> M_co:
        """The message of this body.

        Raises:
            msgspec.DecodeError: It is not JSON, or not this exchange's message.
        """
        return self._decoder.decode(body)

    @abstractmethod
    def parse_routing_key(self, text: str) -> RoutingKey:
        """The fields of a message's routing key.

        Raises:
            InvalidArgument: It is not a key of this exchange.
        """


class TaskExchange(Exchange[M_co]):
    """An exchange of messages about a task: call it with what to match, all else matches anything."""

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
        """Match messages with these values in their routing keys.

        Args:
            task_id: The task.
            run_id: The run; messages that are about no run have none.
            worker_group: With `worker_id`, the worker; messages about unclaimed runs have none.
            worker_id: See `worker_group`.
            task_queue_id: `<provisioner_id>/<worker_type>`; give either this or the two.
            provisioner_id: The first part of the task queue's id.
            worker_type: Its second part.
            scheduler_id: The scheduler; `-` where the task's definition names none.
            task_group_id: The task group.

        Raises:
            InvalidArgument: A value has a dot or a wildcard, or is empty or too long.
        """
        if task_queue_id is not None:
            provisioner_id, worker_type = _parts(task_queue_id, provisioner_id, worker_type)
        values = {
            "task_id": task_id,
            "run_id": run_id,
            "worker_group": worker_group,
            "worker_id": worker_id,
            "provisioner_id": provisioner_id,
            "worker_type": worker_type,
            "scheduler_id": scheduler_id,
            "task_group_id": task_group_id,
        }
        return Binding(self.full_name, pattern(TASK_FIELDS, values))

    def parse_routing_key(self, text: str) -> TaskRoutingKey:
        """The fields of a message's routing key."""
        return TaskRoutingKey.parse(text)


class GroupExchange(Exchange[M_co]):
    """An exchange of messages about a task group."""

    def __call__(self, *, task_group_id: str | None = None, scheduler_id: str | None = None) -> Binding:
        """Match messages with these values in their routing keys.

        Raises:
            InvalidArgument: A value has a dot or a wildcard, or is empty or too long.
        """
        values = {"task_group_id": task_group_id, "scheduler_id": scheduler_id}
        return Binding(self.full_name, pattern(GROUP_FIELDS, values))

    def parse_routing_key(self, text: str) -> GroupRoutingKey:
        """The fields of a message's routing key."""
        return GroupRoutingKey.parse(text)


task_defined = TaskExchange("task-defined", TaskDefinedMessage)
task_pending = TaskExchange("task-pending", TaskPendingMessage)
task_running = TaskExchange("task-running", TaskRunningMessage)
artifact_created = TaskExchange("artifact-created", ArtifactCreatedMessage)
task_completed = TaskExchange("task-completed", TaskCompletedMessage)
task_failed = TaskExchange("task-failed", TaskFailedMessage)
task_exception = TaskExchange("task-exception", TaskExceptionMessage)
task_priority_changed = TaskExchange("task-priority-changed", TaskPriorityChangedMessage)
task_group_resolved = GroupExchange("task-group-resolved", TaskGroupResolvedMessage)
task_group_sealed = GroupExchange("task-group-sealed", TaskGroupSealedMessage)
task_group_priority_changed = GroupExchange("task-group-priority-changed", TaskGroupPriorityChangedMessage)

TASK_EXCHANGES: Final[tuple[TaskExchange[TaskMessage], ...]] = (
    task_defined,
    task_pending,
    task_running,
    artifact_created,
    task_completed,
    task_failed,
    task_exception,
    task_priority_changed,
)
"""The exchanges of messages about a task: these carry the task's routes."""

GROUP_EXCHANGES: Final[tuple[GroupExchange[TaskGroupMessage], ...]] = (
    task_group_resolved,
    task_group_sealed,
    task_group_priority_changed,
)
"""The exchanges of messages about a task group: these carry no routes."""

EXCHANGES: Final[tuple[Exchange[TaskMessage | TaskGroupMessage], ...]] = (*TASK_EXCHANGES, *GROUP_EXCHANGES)
"""All of them."""


def for_route(
    route: str, exchanges: Sequence[TaskExchange[TaskMessage]] = TASK_EXCHANGES
) -> tuple[Binding, ...]:
    """Match messages of tasks that have a route like `route` in `task.routes`.

    Args:
        route: Without the `route.` that its routing key begins with; `*` matches one word and `#`
            any number of words.
        exchanges: Where to look; everywhere unless given.

    Raises:
        InvalidArgument: The route is empty or too long, or has an empty word.
    """
    return tuple(Binding(exchange.full_name, route_pattern(route)) for exchange in exchanges)


def for_task(task_id: str) -> tuple[Binding, ...]:
    """Match every message about one task.

    Raises:
        InvalidArgument: That cannot be a task id.
    """
    return tuple(exchange(task_id=task_id) for exchange in TASK_EXCHANGES)


def for_group(task_group_id: str) -> tuple[Binding, ...]:
    """Match every message about one task group, and about its tasks.

    Raises:
        InvalidArgument: That cannot be the id of a task group.
    """
    about_tasks = (exchange(task_group_id=task_group_id) for exchange in TASK_EXCHANGES)
    about_group = (exchange(task_group_id=task_group_id) for exchange in GROUP_EXCHANGES)
    return (*about_tasks, *about_group)


def _parts(task_queue_id: str, provisioner_id: str | None, worker_type: str | None) -> tuple[str, str]:
    if provisioner_id is not None or worker_type is not None:
        allowed = "either this, or provisioner_id and worker_type"
        raise InvalidArgument("task_queue_id", task_queue_id, allowed)
    first, slash, second = task_queue_id.partition("/")
    if not (first and slash and second):
        raise InvalidArgument("task_queue_id", task_queue_id, "<provisioner_id>/<worker_type>")
    return first, second
