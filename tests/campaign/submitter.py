"""The client of a campaign: creates the planned tasks, cancels some, and waits until all have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from taskqueue_client import AsyncQueue, Credentials, task_definition
from taskqueue_client._protocol.retry import RetryPolicy
from taskqueue_client.definitions import TaskDefinition
from taskqueue_client.errors import InputError, TaskQueueError
from taskqueue_client.models import TaskStatus

from .checker import blocked_tasks
from .evidence import ReceivedMessage, StoredTask
from .fleet import TOKEN, Place
from .task_plan import PlannedTask

_AT_ONCE = 8
_FORGOTTEN = 60.0
"""Seconds after which a task no longer counts as active: the message about its end may have been lost."""

_PATIENT = RetryPolicy(attempts=100, timeout=240, wait_max=2)
_ENDS = frozenset({"completed", "failed", "exception"})


class Submitter:
    """Creates tasks while few are active.

    Args:
        place: The directory and addresses of the campaign.
        plan: The tasks to create.
        backlog: How many tasks may be active.
        deadline: Seconds from the creation to the deadline of tasks that must exceed it.

    Attributes:
        created: The tasks that were created.
        failures: The calls that failed after all retries.
    """

    def __init__(self, place: Place, plan: Iterator[PlannedTask], backlog: int, deadline: float) -> None:
        self.created: dict[str, PlannedTask] = {}
        self.failures: list[str] = []
        self._place = place
        self._plan = plan
        self._backlog = backlog
        self._deadline = f"{round(deadline)} seconds"
        self._queue = AsyncQueue(place.root_url, Credentials("local", TOKEN), retry=_PATIENT)
        self._active: dict[str, float] = {}
        self._submissions: dict[str, asyncio.Task[None]] = {}
        self._cancellations: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Semaphore(_AT_ONCE)

    async def submit_until(self, moment: float) -> None:
        """Create tasks until a moment, in seconds since the epoch."""
        while time.time() < moment:
            await asyncio.sleep(0.02)
            now = time.time()
            self._active = {each: since for each, since in self._active.items() if now - since < _FORGOTTEN}
            under_way = sum(not each.done() for each in self._submissions.values())
            if len(self._active) < self._backlog and under_way < 2 * _AT_ONCE:
                task = next(self._plan)
                needed = [self._submissions[each] for each in task.dependencies]
                self._submissions[task.task_id] = asyncio.create_task(self._submit(task, needed))
        await asyncio.gather(*self._submissions.values())

    async def _submit(self, task: PlannedTask, needed: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*needed)
        async with self._ready:
            try:
                await self._queue.create_task(task.task_id, self._definition(task))
            except TaskQueueError as error:
                if not (task.kind == "deadline" and isinstance(error, InputError)):
                    self.failures.append(f"createTask of {task.task_id}: {error}")
                return
        self.created[task.task_id] = task

    def _definition(self, task: PlannedTask) -> TaskDefinition:
        return task_definition(
            self._place.task_queue_id,
            task.payload,
            name=task.kind,
            owner="campaign@example.com",
            source="https://example.com/campaign",
            deadline=self._deadline if task.kind == "deadline" else "1 day",
            expires="7 days",
            dependencies=list(task.dependencies),
            requires="all-resolved" if task.requires == "all-resolved" else "all-completed",
            retries=task.retries,
            taskGroupId=task.group,
            schedulerId="campaign",
        )

    def note(self, message: ReceivedMessage) -> None:
        """Count active tasks by a message; cancel a task that was planned to be canceled when it runs."""
        if message.state in _ENDS:
            self._active.pop(message.task_id, None)
        else:
            self._active.setdefault(message.task_id, time.time())
        planned = self.created.get(message.task_id)
        if message.exchange == "task-running" and planned is not None and planned.kind == "canceled":
            cancellation = asyncio.create_task(self._cancel(message.task_id))
            self._cancellations.add(cancellation)

    async def _cancel(self, task_id: str) -> None:
        try:
            await self._queue.cancel_task(task_id)
        except TaskQueueError as error:
            self.failures.append(f"cancelTask of {task_id}: {error}")

    async def drain(self, moment: float) -> None:
        """Return when all tasks that are not blocked have ended, at the latest at a moment."""
        ended: dict[str, StoredTask] = {}
        while time.time() < moment:
            left = [each for each in self.created if each not in ended]
            blocked = blocked_tasks(self.created, ended)
            if not set(left) - blocked:
                return
            async for status in self._queue.iter_statuses(left[:500]):
                if status.status.state in _ENDS:
                    ended[status.task_id] = _stored(status.status)
                elif self.created[status.task_id].kind == "canceled" and status.status.state == "running":
                    await self._cancel(status.task_id)
            await asyncio.sleep(1)

    async def close(self) -> None:
        """Wait for cancellations under way, and close the connections."""
        await asyncio.gather(*self._cancellations)
        await self._queue.close()


def _stored(status: TaskStatus) -> StoredTask:
    return StoredTask(0, status.retries_left, status.runs)
