"""Follow the tasks of a group until each is resolved or blocked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, cast

from taskqueue_client._arguments import check_kind
from taskqueue_client._dates import instant
from taskqueue_client._protocol.conversation import (
    AsyncClient,
    Client,
    Conversation,
    Item,
    Pause,
    Work,
    iterate,
    iterate_async,
)
from taskqueue_client.calls import iter_task_group
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import RunState, TaskAndStatus, TaskState, TaskStatus
from taskqueue_client.models.tasks import RESOLVED

_UNSUCCESSFUL = RESOLVED - {TaskState.COMPLETED}
_PATIENCE = 10
"""The pause before the next request, as a multiple of the time that the last request took: following must
not become a load for the Queue."""

_LONGEST_PAUSE = 60.0  # in seconds; a response may have taken minutes because of an outage that has ended


def follow_group(
    queue: Client, task_group_id: str, *, interval: float = 2.0, clock: Clock | None = None
) -> Generator[list[TaskAndStatus]]:
    """Yield the tasks of a group, at first and after each change, until each is resolved or blocked.

    See `blocked_tasks`. A task that the caller reruns after the last list is not followed: call this again.

    Args:
        queue: The client.
        task_group_id: The task group.
        interval: The least number of seconds between two requests; a large group is requested less often.
        clock: The clock to wait on; default: the machine's.

    Raises:
        InvalidArgument: `interval` is not a number of seconds.
        CallFailed: A call failed.
    """
    return iterate(queue, _changes(lambda: iter_task_group(task_group_id).everything(), interval, clock))


def follow_group_async(
    queue: AsyncClient, task_group_id: str, *, interval: float = 2.0, clock: Clock | None = None
) -> AsyncGenerator[list[TaskAndStatus]]:
    """`follow_group` with an asynchronous client, for `async for`."""
    return iterate_async(
        queue, _changes(lambda: iter_task_group(task_group_id).everything(), interval, clock)
    )


def follow(
    look: Callable[[], list[TaskAndStatus]], *, interval: float = 2.0, clock: Clock | None = None
) -> Generator[list[TaskAndStatus]]:
    """Yield the tasks that `look` returns, as `follow_group` does those of a group."""
    stream = _changes(lambda: iter(Work(look)), interval, clock)
    return iterate(cast("Client", None), stream)  # there is no call to send


def _changes(
    look: Callable[[], Conversation[list[TaskAndStatus]]], interval: float, clock: Clock | None
) -> Conversation[None]:
    """Yield the tasks that `look` reads, at first and after each change; checks the interval at once."""
    allowed = "a number of seconds, 0 or more"
    check_kind("interval", interval, int | float, allowed)
    if not 0 <= interval < math.inf:
        raise InvalidArgument("interval", interval, allowed)
    return _changes_seen(look, interval, clock or SystemClock())


def _changes_seen(
    look: Callable[[], Conversation[list[TaskAndStatus]]], interval: float, clock: Clock
) -> Conversation[None]:
    last: list[TaskStatus] | None = None
    while True:
        begun = clock.monotonic()
        members = yield from look()
        statuses = [member.status for member in members]
        if statuses != last:
            yield from Item(members)
        if are_settled(members):
            return
        last = statuses
        pause = min(_PATIENCE * (clock.monotonic() - begun), _LONGEST_PAUSE)
        yield from Pause(max(interval, pause), clock)


def are_settled(members: Iterable[TaskAndStatus]) -> bool:
    """Return whether each task is resolved, or blocked by a dependency that will not be completed."""
    members = list(members)
    blocked = blocked_tasks(members)
    return all(member.status.state in RESOLVED or member.status.task_id in blocked for member in members)


def blocked_tasks(members: Iterable[TaskAndStatus]) -> frozenset[str]:
    """Return the ids of unscheduled tasks with a dependency that will not be completed.

    These tasks stay unscheduled until their deadline, unless the dependency is rerun or they are scheduled.
    A task that depends on itself is not among them: it waits for `schedule_task`.

    Args:
        members: Tasks; dependencies that are not among them are assumed to be able to complete.
    """
    members = list(members)
    statuses = {member.status.task_id: member.status for member in members}
    waiting = [member for member in members if member.status.state is TaskState.UNSCHEDULED]
    dependents: defaultdict[str, list[str]] = defaultdict(list)
    for member in waiting:
        for dependency in member.task["dependencies"]:
            dependents[dependency].append(member.status.task_id)
    found = [
        member.status.task_id
        for member in waiting
        if any(True for _ in failed_dependencies(member.task, statuses))
    ]
    blocked: set[str] = set()
    while found:
        task_id = found.pop()
        if task_id not in blocked:
            blocked.add(task_id)
            found += dependents[task_id]
    return frozenset(blocked)


def failed_dependencies(task: Mapping[str, Any], statuses: Mapping[str, TaskStatus]) -> Iterator[str]:
    """Yield the ids of the dependencies that have failed, if the task requires that they are completed."""
    if task["requires"] != "all-completed":
        return
    for dependency in task["dependencies"]:
        status = statuses.get(dependency)
        if status is not None and status.state in _UNSUCCESSFUL and not _was_completed(status, task):
            yield dependency


def _was_completed(dependency: TaskStatus, task: Mapping[str, Any]) -> bool:
    """Return whether a dependency was completed when a task was created, or later.

    Such a dependency satisfies the task for ever, even if a rerun of the dependency fails.
    """
    created = instant(task["created"]) if len(dependency.runs) > 1 else None
    return created is not None and any(
        run.state is RunState.COMPLETED and rerun.scheduled >= created
        for run, rerun in pairwise(dependency.runs)
    )
