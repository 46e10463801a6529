"""Calls about tasks: read them, create them, and change what is to become of them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from taskqueue_client._call import Call, Steps
from taskqueue_client._paging import Pages
from taskqueue_client.definitions import PriorityName, TaskDefinition, same_definition
from taskqueue_client.errors import CallFailed, RequestConflict
from taskqueue_client.models import (
    DependentTasksPage,
    IdentifiedStatus,
    IdentifiedTask,
    Priority,
    StatusesPage,
    TaskAndStatus,
    TasksPage,
    TaskStatusResponse,
)
from taskqueue_client.schemas import check_definition

from . import _arguments as arguments


def task(task_id: str) -> Call[dict[str, Any]]:
    """The definition of a task, with all of the Queue's defaults filled in.

    Scopes: `queue:get-task:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task.
    """
    path = arguments.path("task", arguments.slugid("task_id", task_id))
    return Call("task", "GET", path, dict[str, Any])


def tasks(
    task_ids: Collection[str], *, continuation_token: str | None = None, limit: int | None = None
) -> Call[TasksPage]:
    """One page of the definitions of several tasks; ids of unknown tasks are passed over.

    Scopes: `queue:get-task:<task_id>` for each id. Safe to repeat.

    Raises:
        InputError: The token is not one.
    """
    body = {"taskIds": arguments.texts("task_ids", task_ids)}
    query = arguments.page_query(continuation_token, limit)
    return Call("tasks", "POST", "/tasks", TasksPage, query, body)


def iter_tasks(
    task_ids: Collection[str], *, page_size: int | None = None
) -> Pages[TasksPage, IdentifiedTask]:
    """The definitions of several tasks, page after page; see `tasks`."""
    return Pages(tasks(task_ids, limit=page_size), lambda page: page.tasks)


def statuses(
    task_ids: Collection[str], *, continuation_token: str | None = None, limit: int | None = None
) -> Call[StatusesPage]:
    """One page of the statuses of several tasks; ids of unknown tasks are passed over.

    Scopes: `queue:status:<task_id>` for each id. Safe to repeat.

    Raises:
        InputError: The token is not one.
    """
    body = {"taskIds": arguments.texts("task_ids", task_ids)}
    query = arguments.page_query(continuation_token, limit)
    return Call("statuses", "POST", "/tasks/status", StatusesPage, query, body)


def iter_statuses(
    task_ids: Collection[str], *, page_size: int | None = None
) -> Pages[StatusesPage, IdentifiedStatus]:
    """The statuses of several tasks, page after page; see `statuses`."""
    return Pages(statuses(task_ids, limit=page_size), lambda page: page.statuses)


def status(task_id: str) -> Call[TaskStatusResponse]:
    """The status of a task, with all of its runs.

    Scopes: `queue:status:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task.
    """
    path = arguments.path("task", arguments.slugid("task_id", task_id), "status")
    return Call("status", "GET", path, TaskStatusResponse)


def list_dependent_tasks(
    task_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[DependentTasksPage]:
    """One page of the tasks that depend on a task, in the order of their ids.

    Scopes: `queue:list-dependent-tasks:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task.
        InputError: The token is not one.
    """
    path = arguments.path("task", arguments.slugid("task_id", task_id), "dependents")
    query = arguments.page_query(continuation_token, limit)
    return Call("listDependentTasks", "GET", path, DependentTasksPage, query)


def iter_dependent_tasks(
    task_id: str, *, page_size: int | None = None
) -> Pages[DependentTasksPage, TaskAndStatus]:
    """The tasks that depend on a task, page after page; see `list_dependent_tasks`."""
    return Pages(list_dependent_tasks(task_id, limit=page_size), lambda page: page.tasks)


def create_task(task_id: str, definition: TaskDefinition) -> Steps[TaskStatusResponse]:
    """Create a task, and schedule it unless it depends on others.

    Safe to repeat with the same definition. If an attempt ended without an answer and the next one is
    a conflict, the stored definition is read, and an equal one is success.

    Scopes: `queue:create-task:<priority>:<task_queue_id>` of this or a higher priority,
    `queue:create-task:project:<projectId>`, `queue:scheduler-id:<schedulerId>`,
    `queue:route:<route>` for each route, and each of the definition's own scopes.

    Args:
        task_id: A fresh id, from `slugid()`.
        definition: The task, as the dict of the Queue's own schema.

    Raises:
        InvalidDefinition: The Queue would refuse the definition.
        InputError: It does, for its dates, its task queue or its dependencies.
        RequestConflict: The id is in use for another task, the group has another scheduler, or it is
            sealed.
    """
    path = arguments.path("task", arguments.slugid("task_id", task_id))
    check = partial(check_definition, definition)
    try:
        return (yield from Call("createTask", "PUT", path, TaskStatusResponse, body=definition, check=check))
    except RequestConflict as conflict:
        if not conflict.attempted.outcome_unknown:
            raise
        try:
            stored = yield from task(task_id)
        except CallFailed as unknown:
            raise conflict from unknown
        if not same_definition(definition, task_id, stored):
            raise
        return (yield from status(task_id))


def schedule_task(task_id: str) -> Call[TaskStatusResponse]:
    """Make an unscheduled task pending, whatever it depends on; other tasks stay as they are.

    Scopes: `queue:schedule-task:<schedulerId>/<taskGroupId>/<task_id>`,
    or `queue:schedule-task-in-project:<projectId>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task.
        RequestConflict: The task's deadline has passed.
    """
    return _change("scheduleTask", task_id, "schedule")


def rerun_task(task_id: str) -> Call[TaskStatusResponse]:
    """Add a run to a resolved task, and restore its retries; make an unscheduled task pending.

    Never repeated by itself: each repeat may add a run.

    Scopes: `queue:rerun-task:<schedulerId>/<taskGroupId>/<task_id>`,
    or `queue:rerun-task-in-project:<projectId>`.

    Raises:
        ResourceNotFound: There is no such task.
        RequestConflict: The task's deadline has passed, or it has had 50 runs.
    """
    return _change("rerunTask", task_id, "rerun")


def cancel_task(task_id: str) -> Call[TaskStatusResponse]:
    """Resolve a task as `exception`, `canceled`; a resolved one stays as it is.

    Scopes: `queue:cancel-task:<schedulerId>/<taskGroupId>/<task_id>`,
    or `queue:cancel-task-in-project:<projectId>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such task.
        RequestConflict: The task's deadline has passed.
    """
    return _change("cancelTask", task_id, "cancel")


def _change(endpoint: str, task_id: str, verb: str) -> Call[TaskStatusResponse]:
    path = arguments.path("task", arguments.slugid("task_id", task_id), verb)
    return Call(endpoint, "POST", path, TaskStatusResponse)


def change_task_priority(task_id: str, new_priority: PriorityName) -> Call[TaskStatusResponse]:
    """Change the priority of a task that has never been resolved.

    Never repeated by itself: the task has the priority then, which is a conflict.

    Scopes: `queue:change-task-priority:<task_id>`,
    or `queue:change-task-priority-in-queue:<taskQueueId>`.

    Raises:
        ResourceNotFound: There is no such task.
        RequestConflict: The task's deadline has passed, it was resolved once, or it has that priority.
    """
    path = arguments.path("task", arguments.slugid("task_id", task_id), "priority")
    body = {"newPriority": arguments.one_of("new_priority", new_priority, list(Priority))}
    return Call("changeTaskPriority", "POST", path, TaskStatusResponse, body=body)
