"""Task groups: the record, and the calls that concern all tasks of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local import messages, times
from taskqueue_client.local.messages import group_message
from taskqueue_client.local.refusal import Caller, refuse

from .pages import OffsetPage
from .task_records import COLUMNS, Task, definition_and_status, task_of
from .transitions import cancel, drop_claims, note_resolution

if TYPE_CHECKING:
    from .core import Core


def join_group(core: Core, task_group_id: str, scheduler_id: str, task_expires: int) -> None:
    """Make the group of a new task, or let it last as long as the task.

    Raises:
        Refusal: `RequestConflict`: the group belongs to another scheduler, or is sealed.
    """
    expires = min(task_expires + times.HOUR, times.LATEST)
    is_new = core.store.change(
        "INSERT OR IGNORE INTO task_groups VALUES (?, ?, ?, NULL)", task_group_id, scheduler_id, expires
    )
    if is_new:
        return
    ((owner, group_expires, sealed),) = core.store.rows(
        "SELECT scheduler_id, expires, sealed FROM task_groups WHERE task_group_id = ?", task_group_id
    )
    if owner != scheduler_id:
        refuse(
            "RequestConflict",
            f"Task group `{task_group_id}` has schedulerId `{owner}`, not `{scheduler_id}`.",
        )
    if task_expires > group_expires:
        core.store.change(
            "UPDATE task_groups SET expires = ? WHERE task_group_id = ?", expires, task_group_id
        )
    if sealed is not None:
        refuse("RequestConflict", f"Task group `{task_group_id}` is sealed: no task can be added to it.")


def send_group(core: Core, exchange: str, task_group_id: str) -> None:
    """Send a message with the group's record; nothing if the group has expired."""
    record = _find_group(core, task_group_id)
    if record:
        core.send(group_message, exchange, record)


def get_task_group(core: Core, task_group_id: str) -> dict[str, Any]:
    """Return the group's record.

    Raises:
        Refusal: `ResourceNotFound`.
    """
    record = _find_group(core, task_group_id)
    if record is None:
        refuse("ResourceNotFound", f"No task-group with taskGroupId: `{task_group_id}`")
    return record


def list_task_group(
    core: Core, task_group_id: str, continuation_token: str | None, limit: int
) -> dict[str, Any]:
    """Return a page of the group's tasks, ordered by taskId."""
    page = OffsetPage.of(continuation_token, limit)
    record = get_task_group(core, task_group_id)
    rows = core.store.rows(
        f"SELECT {COLUMNS} FROM tasks WHERE task_group_id = ? ORDER BY sort_key LIMIT ? OFFSET ?",  # noqa: S608 - constants
        task_group_id,
        *page.window,
    )
    return {**record, **page.response("tasks", rows, lambda row: definition_and_status(task_of(row)))}


def seal_task_group(core: Core, caller: Caller, task_group_id: str) -> dict[str, Any]:
    """Refuse further tasks, for ever; a repeated call keeps the first time."""
    _authorize(caller, get_task_group(core, task_group_id))
    with core.transition() as now:
        core.store.change(
            "UPDATE task_groups SET sealed = ifnull(sealed, ?) WHERE task_group_id = ?",
            now,
            task_group_id,
        )
        send_group(core, "task-group-sealed", task_group_id)
    return get_task_group(core, task_group_id)


def cancel_task_group(core: Core, caller: Caller, task_group_id: str) -> dict[str, Any]:
    """Cancel every task of a sealed group that is not resolved and whose deadline is in the future."""
    record = get_task_group(core, task_group_id)
    if "sealed" not in record:
        refuse(
            "RequestConflict",
            f"Task group `{task_group_id}` is not sealed: only a sealed group can be canceled.",
        )
    _authorize(caller, record)
    with core.transition() as now:
        tasks = [task for task in _created_tasks(core, task_group_id, now) if _cancel(core, task, now)]
    return {
        "taskGroupSize": _size(core, task_group_id),
        "taskIds": [task.task_id for task in tasks],
        "cancelledCount": len(tasks),
        "taskGroupId": task_group_id,
    }


def _authorize(caller: Caller, record: dict[str, Any]) -> None:
    caller.require(schedulerId=record["schedulerId"], taskGroupId=record["taskGroupId"])


def _created_tasks(core: Core, task_group_id: str, now: int) -> list[Task]:
    """Return the group's tasks whose deadline is in the future, in the order of their creation."""
    rows = core.store.rows(
        f"SELECT {COLUMNS} FROM tasks WHERE task_group_id = ? AND deadline > ? ORDER BY rowid",  # noqa: S608 - constants
        task_group_id,
        now,
    )
    return [task_of(row) for row in rows]


def _cancel(core: Core, task: Task, now: int) -> bool:
    run = cancel(core, task, "canceled", now)
    if run:
        drop_claims(core, task.task_id, run.run_id)
        note_resolution(core, task, "exception", now)
        core.send(messages.canceled_with_group, task, run)
    return run is not None


def _size(core: Core, task_group_id: str) -> int:
    size: int = core.store.value("SELECT count(*) FROM tasks WHERE task_group_id = ?", task_group_id)
    return size


def _find_group(core: Core, task_group_id: str) -> dict[str, Any] | None:
    row = core.store.row(
        "SELECT scheduler_id, expires, sealed FROM task_groups WHERE task_group_id = ?", task_group_id
    )
    if row is None:
        return None
    scheduler_id, expires, sealed = row
    record = {"taskGroupId": task_group_id, "schedulerId": scheduler_id, "expires": times.text(expires)}
    return record if sealed is None else {**record, "sealed": times.text(sealed)}
