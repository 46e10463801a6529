"""The steps of waiting for a task or a group, written once for both kinds of client.

What the Queue says is what counts: messages only tell when to look, or spare a look. Some messages
are sent at best effort, so that there is a look now and then even while listening.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from taskqueue_client.clock import Clock
from taskqueue_client.models.messages import TaskGroupResolvedMessage, TaskMessage
from taskqueue_client.models.status import TaskState, TaskStatus

from .blocking import BlockingListener
from .errors import WaitTimedOut
from .event import Event
from .listener import Listener

POLL: Final = 15.0
"""Seconds between looks without a listener; each is shortened by up to half at random."""
POLL_WHILE_LISTENING: Final = 60.0
"""Seconds between looks with one."""

_RESOLVED: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.EXCEPTION})
_BEFORE: Final = {TaskState.UNSCHEDULED: 0, TaskState.PENDING: 1, TaskState.RUNNING: 2}

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Look:
    """A step: ask the Queue. Its answer is the status, or the list of them."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait so many seconds. Its answer is the event that came meanwhile, or None."""

    seconds: float


Steps = Generator[Look | Pause, Any, R]


class Wait:
    """When to look, and when to give up.

    Args:
        clock: What it goes by.
        timeout: In seconds; None for no limit.
        poll: The longest pause between two looks, in seconds.
    """

    def __init__(self, clock: Clock, timeout: float | None, poll: float) -> None:
        self._clock = clock
        self._timeout = math.inf if timeout is None else timeout
        self._deadline = clock.monotonic() + self._timeout
        self._poll = poll
        self._looked = -math.inf
        self._next_look = -math.inf

    def look_soon(self) -> None:
        """Make the next step a look."""
        self._next_look = -math.inf

    def step(self, where: str) -> Look | Pause:
        """What to do next.

        Args:
            where: Where the matter stands, for the error.

        Raises:
            WaitTimedOut: The last look, at the time limit, is over.
        """
        now = self._clock.monotonic()
        if self._looked >= self._deadline:
            message = f"{where} after {self._timeout:g} s"
            raise WaitTimedOut(message)
        if now < self._next_look:
            return Pause(self._next_look - now)
        self._looked = now
        pause = self._poll * random.uniform(0.5, 1)  # noqa: S311 - it spreads looks, it hides nothing
        self._next_look = min(now + pause, max(now, self._deadline))
        return Look()


def until_task_is_resolved(
    task_id: str, wait: Wait, on_progress: Callable[[TaskStatus], object]
) -> Steps[TaskStatus]:
    """Look and listen until a task is resolved."""
    status: TaskStatus | None = None
    while status is None or status.state not in _RESOLVED:
        where = f"task {task_id} is {status.state}" if status else f"nothing is known of task {task_id}"
        told = _told((yield wait.step(where)))
        if told is not None and told.task_id == task_id and _further(told, status):
            status = told
            on_progress(status)
    return status


def until_group_is_resolved(
    task_group_id: str, wait: Wait, on_progress: Callable[[Counter[TaskState]], object]
) -> Steps[list[TaskStatus]]:
    """Look and listen until every task of a group is resolved."""
    known: dict[str, TaskStatus] = {}
    reported: Counter[TaskState] = Counter()
    while True:
        answer: list[TaskStatus] | Event | None = yield wait.step(f"{task_group_id} is at {dict(reported)}")
        if isinstance(answer, list):
            known = {status.task_id: status for status in answer}
        elif _is_news(answer, task_group_id, known):
            wait.look_soon()
        states = Counter(status.state for status in known.values())
        if states != reported:
            reported = states
            on_progress(states)
        if isinstance(answer, list) and states.keys() <= _RESOLVED:
            return answer


def _is_news(event: Event | None, task_group_id: str, known: dict[str, TaskStatus]) -> bool:
    """Take in an event of the group; whether it looks as if all were resolved now."""
    if event is not None and isinstance(event.message, TaskGroupResolvedMessage):
        return event.message.task_group_id == task_group_id
    status = _told(event)
    if status is None or status.task_group_id != task_group_id:
        return False
    if _further(status, known.get(status.task_id)):
        known[status.task_id] = status
    return all(each.state in _RESOLVED for each in known.values())


def _told(answer: TaskStatus | Event | None) -> TaskStatus | None:
    """The status in an answer or in an event."""
    if isinstance(answer, Event):
        return answer.message.status if isinstance(answer.message, TaskMessage) else None
    return answer


def _further(status: TaskStatus, known: TaskStatus | None) -> bool:
    """Whether a status is later than the one that is known: messages may come late, and repeat."""
    return known is None or _progress(status) > _progress(known)


def _progress(status: TaskStatus) -> tuple[int, int]:
    return len(status.runs), _BEFORE.get(status.state, len(_BEFORE))


def drive(steps: Steps[R], look: Callable[[], object], listener: BlockingListener | None, clock: Clock) -> R:
    """Take the steps, blocking."""
    answer: object = None
    try:
        while True:
            step = steps.send(answer)
            if isinstance(step, Look):
                answer = look()
            elif listener is None or listener.stopped:
                answer = None
                clock.sleep(step.seconds)
            else:
                answer = listener.get(step.seconds)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic


async def drive_async(
    steps: Steps[R], look: Callable[[], Awaitable[object]], listener: Listener | None, clock: Clock
) -> R:
    """Take the steps, awaiting."""
    answer: object = None
    try:
        while True:
            step = steps.send(answer)
            if isinstance(step, Look):
                answer = await look()
            elif listener is None or listener.stopped:
                answer = None
                await clock.sleep_async(step.seconds)
            else:
                answer = await listener.get(step.seconds)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic
