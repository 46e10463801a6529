"""Following tasks until nothing will change by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.models import TaskAndStatus, TaskState, TaskStatus

_UNSUCCESSFUL = frozenset({TaskState.FAILED, TaskState.EXCEPTION})
_RESOLVED = frozenset({TaskState.COMPLETED, *_UNSUCCESSFUL})
_PATIENCE = 10
"""Times as long as an answer takes, until the next question: following must not become a load."""


def follow_group(
    queue: Queue, task_group_id: str, *, interval: float = 2.0, clock: Clock | None = None
) -> Iterator[list[TaskAndStatus]]:
    """What is in a group, at first and after each change, until nothing will change by itself.

    That is when each task is resolved or blocked (see `blocked_tasks`).

    Args:
        queue: The client to ask.
        task_group_id: The task group.
        interval: Seconds between two questions, at least; a large group is asked for less often.
        clock: What the waiting goes by.

    Raises:
        CallFailed: The Queue refused, or did not answer.
    """
    return follow(lambda: list(queue.iter_task_group(task_group_id)), interval=interval, clock=clock)


def follow(
    look: Callable[[], list[TaskAndStatus]], *, interval: float = 2.0, clock: Clock | None = None
) -> Iterator[list[TaskAndStatus]]:
    """`follow_group` for whatever tasks `look` finds."""
    clock = clock or SystemClock()
    last: list[TaskStatus] | None = None
    while True:
        begun = clock.monotonic()
        members = look()
        statuses = [member.status for member in members]
        if statuses != last:
            yield members
        if are_settled(members):
            return
        last = statuses
        clock.sleep(max(interval, _PATIENCE * (clock.monotonic() - begun)))


def are_settled(members: Iterable[TaskAndStatus]) -> bool:
    """Whether each task is resolved, or blocked by one that is not going to be completed."""
    members = list(members)
    blocked = blocked_tasks(members)
    return all(member.status.state in _RESOLVED or member.status.task_id in blocked for member in members)


def blocked_tasks(members: Iterable[TaskAndStatus]) -> frozenset[str]:
    """The ids of unscheduled tasks that wait for a dependency in vain.

    They stay so until their deadline, unless somebody reruns the dependency or schedules them.

    Args:
        members: Tasks; dependencies that are not among them are taken for able to complete.
    """
    states = {member.status.task_id: member.status.state for member in members}
    waiting = [member for member in members if member.status.state is TaskState.UNSCHEDULED]
    blocked: set[str] = set()
    while found := {
        member.status.task_id
        for member in waiting
        if member.status.task_id not in blocked and _waits_in_vain(member.task, states, blocked)
    }:
        blocked |= found
    return frozenset(blocked)


def _waits_in_vain(task: Mapping[str, Any], states: Mapping[str, TaskState], blocked: set[str]) -> bool:
    needs_success = task["requires"] == "all-completed"
    return any(
        dependency in blocked or (needs_success and states.get(dependency) in _UNSUCCESSFUL)
        for dependency in task["dependencies"]
    )
