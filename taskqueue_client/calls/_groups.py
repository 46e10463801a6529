"""Calls about task groups."""

from __future__ import annotations

from taskqueue_client._call import Call
from taskqueue_client._paging import Pages
from taskqueue_client.definitions import PriorityName
from taskqueue_client.models import (
    CancelledTaskGroup,
    Priority,
    TaskAndStatus,
    TaskGroup,
    TaskGroupPage,
    TaskGroupPriorityChange,
)

from . import _arguments as arguments


def list_task_group(
    task_group_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[TaskGroupPage]:
    """One page of the tasks of a group, in the order of their ids.

    Scopes: `queue:list-task-group:<task_group_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such group.
        InputError: The token is not one.
    """
    query = arguments.page_query(continuation_token, limit)
    return Call("listTaskGroup", "GET", _path(task_group_id, "list"), TaskGroupPage, query)


def iter_task_group(
    task_group_id: str, *, page_size: int | None = None
) -> Pages[TaskGroupPage, TaskAndStatus]:
    """The tasks of a group, page after page; see `list_task_group`."""
    return Pages(list_task_group(task_group_id, limit=page_size), lambda page: page.tasks)


def cancel_task_group(task_group_id: str) -> Call[CancelledTaskGroup]:
    """Cancel all tasks of a sealed group that are not resolved.

    Scopes: `queue:cancel-task-group:<schedulerId>/<task_group_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such group.
        RequestConflict: The group is not sealed.
    """
    return Call("cancelTaskGroup", "POST", _path(task_group_id, "cancel"), CancelledTaskGroup)


def get_task_group(task_group_id: str) -> Call[TaskGroup]:
    """What is known about a group, without its tasks.

    Scopes: `queue:list-task-group:<task_group_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: There is no such group.
    """
    return Call("getTaskGroup", "GET", _path(task_group_id), TaskGroup)


def seal_task_group(task_group_id: str) -> Call[TaskGroup]:
    """Let no further task into a group, for good.

    Scopes: `queue:seal-task-group:<schedulerId>/<task_group_id>`. Safe to repeat; the first time stays.

    Raises:
        ResourceNotFound: There is no such group: it begins with its first task.
    """
    return Call("sealTaskGroup", "POST", _path(task_group_id, "seal"), TaskGroup)


def change_task_group_priority(
    task_group_id: str, new_priority: PriorityName
) -> Call[TaskGroupPriorityChange]:
    """Change the priority of the tasks of a group that have never been resolved.

    Scopes: `queue:change-task-group-priority:<schedulerId>/<task_group_id>`. Safe to repeat; a repeat
    finds nothing left to change.

    Raises:
        ResourceNotFound: There is no such group.
    """
    body = {"newPriority": arguments.one_of("new_priority", new_priority, list(Priority))}
    path = _path(task_group_id, "priority")
    return Call("changeTaskGroupPriority", "POST", path, TaskGroupPriorityChange, body=body)


def _path(task_group_id: str, *verb: str) -> str:
    return arguments.path("task-group", arguments.slugid("task_group_id", task_group_id), *verb)
