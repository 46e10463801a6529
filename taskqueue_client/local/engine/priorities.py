"""changeTaskPriority and changeTaskGroupPriority: only for tasks that were never resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import announce
from taskqueue_client.local.engine.records import PRIORITIES, get_task
from taskqueue_client.local.messages import group_message
from taskqueue_client.local.refusal import Caller, conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskqueue_client.local.engine.core import Core
    from taskqueue_client.local.engine.groups import Groups


@dataclass(frozen=True, slots=True)
class Priorities:
    """The endpoints that change priorities."""

    core: Core
    groups: Groups

    def change_task_priority(self, caller: Caller, task_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Give a task another priority, in its definition and in the line it waits in."""
        task = get_task(self.core.store, task_id)
        caller.require(taskId=task_id, taskQueueId=task.task_queue_id)
        old, new = task.priority, PRIORITIES.index(body["newPriority"])
        with self.core.transition() as now:
            if task.deadline <= now:
                message = f"Task `{task_id}` is past its deadline: its priority cannot be changed."
                raise conflict(message)
            if task.ever_resolved or old == new:
                message = f"Task `{task_id}` is already resolved, or has this priority already."
                raise conflict(message)
            self._set([task_id], new)
            task.priority = new
            self.core.send(announce.priority_changed, task, PRIORITIES[old], PRIORITIES[new])
        return {"status": task.status()}

    def change_task_group_priority(
        self, caller: Caller, task_group_id: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """Give another priority to all tasks of a group that it can still be changed of."""
        record = self.groups.get_task_group(task_group_id)
        scheduler_id: str = record["schedulerId"]
        caller.require(schedulerId=scheduler_id, taskGroupId=task_group_id)
        new_priority: str = body["newPriority"]
        with self.core.transition() as now:
            task_ids = self._changeable(task_group_id, PRIORITIES.index(new_priority), now)
            self._set(task_ids, PRIORITIES.index(new_priority))
            outcome = {
                "taskGroupId": task_group_id,
                "schedulerId": scheduler_id,
                "newPriority": new_priority,
                "tasksAffected": len(task_ids),
            }
            self.core.send(group_message, "task-group-priority-changed", outcome)
        return {**outcome, "taskIds": task_ids}

    def _changeable(self, task_group_id: str, priority: int, now: int) -> list[str]:
        rows = self.core.store.rows(
            "SELECT task_id FROM tasks WHERE task_group_id = ? AND ever_resolved = 0 AND deadline > ?"
            " AND priority <> ? ORDER BY sort_key",
            task_group_id,
            now,
            priority,
        )
        return [task_id for (task_id,) in rows]

    def _set(self, task_ids: Iterable[str], priority: int) -> None:
        for task_id in task_ids:
            self.core.store.change("UPDATE tasks SET priority = ? WHERE task_id = ?", priority, task_id)
            self.core.store.change("UPDATE pending SET priority = ? WHERE task_id = ?", priority, task_id)
