"""Reading tasks and their status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine.jsonb import encode
from taskqueue_client.local.engine.paging import Page
from taskqueue_client.local.engine.records import (
    COLUMNS,
    Task,
    definition_and_status,
    get_task,
    task_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskqueue_client.local.engine.core import Core
    from taskqueue_client.local.refusal import Caller


@dataclass(frozen=True, slots=True)
class Queries:
    """The endpoints that read tasks."""

    core: Core

    def task(self, task_id: str) -> dict[str, Any]:
        """A task's definition."""
        return get_task(self.core.store, task_id).definition()

    def status(self, task_id: str) -> dict[str, Any]:
        """A task's status."""
        return {"status": get_task(self.core.store, task_id).status()}

    def tasks(
        self, caller: Caller, body: dict[str, Any], continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of the definitions of those of the given tasks that exist."""
        return self._many(caller, body, continuation_token, limit, ("tasks", "task", Task.definition))

    def statuses(
        self, caller: Caller, body: dict[str, Any], continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of the statuses of those of the given tasks that exist."""
        return self._many(caller, body, continuation_token, limit, ("statuses", "status", Task.status))

    def list_dependent_tasks(
        self, task_id: str, continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of the tasks that depend on this one and have not expired, ordered by taskId."""
        page = Page.of(continuation_token, limit)
        get_task(self.core.store, task_id)
        rows = self.core.store.rows(
            f"SELECT {COLUMNS} FROM tasks WHERE expires > ? AND task_id IN"  # noqa: S608 - constants
            " (SELECT dependent FROM dependencies WHERE required = ?) ORDER BY sort_key LIMIT ? OFFSET ?",
            self.core.now(),
            task_id,
            *page.window,
        )
        return {
            "taskId": task_id,
            **page.answer("tasks", rows, lambda row: definition_and_status(task_of(row))),
        }

    def _many(
        self,
        caller: Caller,
        body: dict[str, Any],
        continuation_token: str | None,
        limit: int,
        shape: tuple[str, str, Callable[[Task], dict[str, Any]]],
    ) -> dict[str, Any]:
        caller.require(taskIds=body["taskIds"])
        page = Page.of(continuation_token, limit)
        rows = self.core.store.rows(
            f"SELECT {COLUMNS} FROM tasks WHERE task_id IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
            " ORDER BY rowid LIMIT ? OFFSET ?",
            encode(body["taskIds"]).decode(),
            *page.window,
        )
        (many, one, show) = shape

        def item(row: tuple[Any, ...]) -> dict[str, Any]:
            task = task_of(row)
            return {"taskId": task.task_id, one: show(task)}

        return page.answer(many, rows, item)
