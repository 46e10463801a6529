"""When tasks run: dependencies, scheduleTask, rerunTask, cancelTask, changes of priority, and task groups."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from taskqueue_client.local import messages, times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import queue
from taskqueue_client.local.messages import group_message
from taskqueue_client.local.refusal import conflict, existing, refuse
from taskqueue_client.scopes import ScopeExpression

from .core import Core, Json
from .run_transitions import MAX_RUNS, add_run, cancel, drop_claims, note_resolution
from .task_records import (
    COLUMNS,
    PRIORITIES,
    Task,
    find_expiry_and_state,
    find_task,
    get_task,
    task_of,
    task_page,
)

GROUP = "SELECT scheduler_id, expires, sealed FROM task_groups WHERE task_group_id = ?"
"""Selects the record of a task group."""

_ENOUGH = {"all-resolved": {"completed", "failed", "exception"}, "all-completed": {"completed"}}
"""By the `requires` of a task: the states in which a dependency is satisfied."""


def check_dependencies(core: Core, task_id: str, dependencies: list[str], deadline: int) -> dict[str, str]:
    """Return the states of the tasks that a new task depends on; it may depend on itself."""
    found = {required: find_expiry_and_state(core.store, required) for required in dependencies}
    found[task_id] = deadline, "unscheduled"
    if missing := [required for required, record in found.items() if record is None]:
        refuse("InputError", "`task.dependencies` must exist; these do not:\n" + _listed(missing))
    records = {required: record for required, record in found.items() if record}
    if expiring := [required for required, (expires, _) in records.items() if expires < deadline]:
        rule = "`task.dependencies` must not expire before `deadline`; these do:\n"
        refuse("InputError", rule + _listed(expiring))
    return {required: records[required][1] for required in dependencies}


def track_dependencies(core: Core, task: Task, states: dict[str, str], requires: str) -> bool:
    """Record a new task's dependencies and their states; return whether all are satisfied."""
    enough = _ENOUGH[requires]
    for required, state in states.items():
        core.store.insert("dependencies", required, task.task_id, requires, state in enough, task.expires)
    return enough.issuperset(states.values())


def track_again(core: Core, task_id: str, requires: str) -> bool:
    """Mark dependencies that have been satisfied since; return whether the task can run because of that."""
    waiting = "SELECT required FROM dependencies WHERE dependent = ? AND satisfied = 0"
    satisfied = [
        required
        for (required,) in core.store.rows(waiting, task_id)
        if (found := find_expiry_and_state(core.store, required)) and found[1] in _ENOUGH[requires]
    ]
    satisfy = "UPDATE dependencies SET satisfied = 1 WHERE required = ? AND dependent = ?"
    for required in satisfied:
        core.store.change(satisfy, required, task_id)
    return bool(satisfied) and not _is_blocked(core, task_id)


def resolve_task(core: Core, task_id: str, task_group_id: str, resolution: str, now: int) -> None:
    """Schedule the dependents of a resolved task; send a message if its whole group is resolved."""
    for (dependent,) in _newly_satisfied(core, task_id, resolution, now):
        if not _is_blocked(core, dependent):
            _schedule(core, dependent, now)
    core.store.change("UPDATE tasks SET ever_resolved = 1 WHERE task_id = ?", task_id)
    left = "SELECT 1 FROM tasks WHERE task_group_id = ? AND ever_resolved = 0 LIMIT 1"
    if core.store.row(left, task_group_id) is None:
        send_group(core, "task-group-resolved", task_group_id)


def _listed(task_ids: list[str]) -> str:
    return "\n".join(f" * {task_id}" for task_id in task_ids)


def _is_blocked(core: Core, dependent: str) -> bool:
    unsatisfied = "SELECT 1 FROM dependencies WHERE dependent = ? AND satisfied = 0 LIMIT 1"
    return core.store.row(unsatisfied, dependent) is not None


def _newly_satisfied(core: Core, required: str, resolution: str, now: int) -> list[tuple[Any, ...]]:
    waiting = (
        "required = ? AND satisfied = 0 AND (requires = 'all-resolved' OR ? = 'completed') AND expires >= ?"
    )
    values = (required, resolution, now)
    select = f"SELECT dependent FROM dependencies WHERE {waiting} ORDER BY sort_key(dependent)"  # noqa: S608 - constants
    dependents = core.store.rows(select, *values)
    core.store.change(f"UPDATE dependencies SET satisfied = 1 WHERE {waiting}", *values)  # noqa: S608 - constants
    return dependents


def _schedule(core: Core, task_id: str, now: int) -> None:
    task = find_task(core.store, task_id)
    if task is None or task.deadline < now or task.runs:
        return
    core.send(messages.pending, task, add_run(core, task, "scheduled", now))


def _in_group(verb: str) -> ScopeExpression:
    """Return the scopes that allow `verb` on a task: for the task, its project, or its scheduler."""
    return {
        "AnyOf": [
            f"queue:{verb}-task:<schedulerId>/<taskGroupId>/<taskId>",
            f"queue:{verb}-task-in-project:<projectId>",
            {"AllOf": [f"queue:{verb}-task", "assume:scheduler-id:<schedulerId>/<taskGroupId>"]},
        ]
    }


@queue("POST", "/task/<taskId>/schedule", _in_group("schedule"))
def schedule_task(core: Core, caller: Caller, task_id: str) -> Json:
    """Make an unscheduled task pending, whatever it depends on; do nothing for other tasks."""
    with _changing(core, caller, task_id) as (task, now):
        if not task.runs:
            core.send(messages.pending, task, add_run(core, task, "scheduled", now))
    return {"status": task.status()}


@queue("POST", "/task/<taskId>/rerun", _in_group("rerun"))
def rerun_task(core: Core, caller: Caller, task_id: str) -> Json:
    """Add a run to a task that is unscheduled or resolved; if one is pending, send its message again."""
    with _changing(core, caller, task_id) as (task, now):
        if not task.runs or task.runs[-1].is_resolved:
            _add_rerun(core, task, now)
        if task.state == "pending":
            core.send(messages.pending, task, task.runs[-1])
    return {"status": task.status()}


@queue("POST", "/task/<taskId>/cancel", _in_group("cancel"))
def cancel_task(core: Core, caller: Caller, task_id: str) -> Json:
    """Cancel a task that is not resolved; a repeated call sends the message again."""
    with _changing(core, caller, task_id) as (task, now):
        cancel(core, task, "canceled", now)
        if task.runs[-1].reason_resolved == "canceled":
            drop_claims(core, task_id, task.runs[-1].run_id)
            note_resolution(core, task, "exception", now)
            core.send(messages.resolved, task, task.runs[-1])
    return {"status": task.status()}


@contextmanager
def _changing(core: Core, caller: Caller, task_id: str) -> Generator[tuple[Task, int]]:
    """Check scopes and deadline of a task; run the block as a transition, with the task and the time."""
    task = get_task(core.store, task_id)
    ids = {"schedulerId": task.scheduler_id, "taskGroupId": task.task_group_id, "projectId": task.project_id}
    caller.require(taskId=task_id, **ids)
    with core.transition() as now:
        if task.deadline < now:
            conflict(
                f"Task `{task_id}` is past its deadline: it can be neither scheduled, rerun nor canceled."
            )
        yield task, now


def _add_rerun(core: Core, task: Task, now: int) -> None:
    if len(task.runs) >= MAX_RUNS:
        conflict(f"Task `{task.task_id}` has {MAX_RUNS} runs and cannot get another.")
    task.retries_left = min(task.retries, MAX_RUNS - len(task.runs) - 1)
    add_run(core, task, "rerun", now)


_CHANGE_PRIORITY: ScopeExpression = {
    "AnyOf": ["queue:change-task-priority:<taskId>", "queue:change-task-priority-in-queue:<taskQueueId>"]
}


@queue("POST", "/task/<taskId>/priority", _CHANGE_PRIORITY, schema="change-task-priority-request")
def change_task_priority(core: Core, caller: Caller, task_id: str, body: Json) -> Json:
    """Change the priority of a task: in its definition, and in the order of pending runs."""
    task = get_task(core.store, task_id)
    caller.require(taskId=task_id, taskQueueId=task.task_queue_id)
    old, new = task.priority, PRIORITIES.index(body["newPriority"])
    with core.transition() as now:
        if task.deadline <= now:
            conflict(f"Task `{task_id}` is past its deadline: its priority cannot be changed.")
        if task.ever_resolved or old == new:
            conflict(f"Task `{task_id}` is already resolved, or has this priority already.")
        _set(core, [task_id], new)
        task.priority = new
        core.send(messages.priority_changed, task, PRIORITIES[old], PRIORITIES[new])
    return {"status": task.status()}


def _set(core: Core, task_ids: Iterable[str], priority: int) -> None:
    for task_id in task_ids:
        core.store.change("UPDATE tasks SET priority = ? WHERE task_id = ?", priority, task_id)
        core.store.change("UPDATE pending SET priority = ? WHERE task_id = ?", priority, task_id)


def join_group(core: Core, task_group_id: str, scheduler_id: str, task_expires: int) -> None:
    """Create the group of a new task; if it exists, let it expire after the task."""
    expires = min(task_expires + times.HOUR, times.LATEST)
    if core.store.insert("task_groups", task_group_id, scheduler_id, expires, None, verb="INSERT OR IGNORE"):
        return
    ((owner, group_expires, sealed),) = core.store.rows(GROUP, task_group_id)
    if owner != scheduler_id:
        conflict(f"Task group `{task_group_id}` has schedulerId `{owner}`, not `{scheduler_id}`.")
    if task_expires > group_expires:
        extend = "UPDATE task_groups SET expires = ? WHERE task_group_id = ?"
        core.store.change(extend, expires, task_group_id)
    if sealed is not None:
        conflict(f"Task group `{task_group_id}` is sealed and does not accept new tasks.")


def send_group(core: Core, exchange: str, task_group_id: str) -> None:
    """Send a message with the group's record; do nothing if the group has expired."""
    if record := _find_group(core, task_group_id):
        core.send(group_message, exchange, record)


@queue("GET", "/task-group/<taskGroupId>", "queue:list-task-group:<taskGroupId>")
def get_task_group(core: Core, task_group_id: str) -> Json:
    """Return the group's record."""
    return existing(_find_group(core, task_group_id), f"No task-group with taskGroupId: `{task_group_id}`")


@queue("GET", "/task-group/<taskGroupId>/list", "queue:list-task-group:<taskGroupId>")
def list_task_group(core: Core, task_group_id: str, token: str | None, limit: int) -> Json:
    """Return a page of the group's tasks, ordered by taskId."""
    where = "task_group_id = ? ORDER BY sort_key"
    page = task_page(core, "tasks", Task.listed, token, limit, where, task_group_id)
    return {**get_task_group(core, task_group_id), **page}


@queue("POST", "/task-group/<taskGroupId>/seal", "queue:seal-task-group:<schedulerId>/<taskGroupId>")
def seal_task_group(core: Core, caller: Caller, task_group_id: str) -> Json:
    """Seal a group: it refuses new tasks for ever. A repeated call keeps the time of the first."""
    _authorize(caller, get_task_group(core, task_group_id))
    with core.transition() as now:
        sql = "UPDATE task_groups SET sealed = ifnull(sealed, ?) WHERE task_group_id = ?"
        core.store.change(sql, now, task_group_id)
        send_group(core, "task-group-sealed", task_group_id)
    return get_task_group(core, task_group_id)


@queue("POST", "/task-group/<taskGroupId>/cancel", "queue:cancel-task-group:<schedulerId>/<taskGroupId>")
def cancel_task_group(core: Core, caller: Caller, task_group_id: str) -> Json:
    """Cancel every task of a sealed group that is not resolved and whose deadline is in the future."""
    record = get_task_group(core, task_group_id)
    if "sealed" not in record:
        conflict(f"Task group `{task_group_id}` is not sealed: only a sealed group can be canceled.")
    _authorize(caller, record)
    in_order = f"SELECT {COLUMNS} FROM tasks WHERE task_group_id = ? AND deadline > ? ORDER BY rowid"  # noqa: S608 - constants
    size = "SELECT count(*) FROM tasks WHERE task_group_id = ?"
    with core.transition() as now:
        tasks = [task_of(row) for row in core.store.rows(in_order, task_group_id, now)]
        task_ids = [task.task_id for task in tasks if _cancel(core, task, now)]
    return {
        "taskGroupSize": core.store.value(size, task_group_id),
        "taskIds": task_ids,
        "cancelledCount": len(task_ids),
        "taskGroupId": task_group_id,
    }


def _authorize(caller: Caller, record: Json) -> None:
    caller.require(schedulerId=record["schedulerId"], taskGroupId=record["taskGroupId"])


def _cancel(core: Core, task: Task, now: int) -> bool:
    run = cancel(core, task, "canceled", now)
    if run:
        drop_claims(core, task.task_id, run.run_id)
        note_resolution(core, task, "exception", now)
        core.send(messages.canceled_with_group, task, run)
    return run is not None


def _find_group(core: Core, task_group_id: str) -> Json | None:
    row = core.store.row(GROUP, task_group_id)
    if row is None:
        return None
    scheduler_id, expires, sealed = row
    record = {"taskGroupId": task_group_id, "schedulerId": scheduler_id, "expires": times.text(expires)}
    return record if sealed is None else {**record, "sealed": times.text(sealed)}


@queue(
    "POST",
    "/task-group/<taskGroupId>/priority",
    "queue:change-task-group-priority:<schedulerId>/<taskGroupId>",
    schema="change-task-priority-request",
)
def change_task_group_priority(core: Core, caller: Caller, task_group_id: str, body: Json) -> Json:
    """Change the priority of a group's tasks that were never resolved and are not past their deadline."""
    record = get_task_group(core, task_group_id)
    _authorize(caller, record)
    new_priority: str = body["newPriority"]
    priority = PRIORITIES.index(new_priority)
    changeable = (
        "SELECT task_id FROM tasks WHERE task_group_id = ? AND ever_resolved = 0 AND deadline > ?"
        " AND priority <> ? ORDER BY sort_key"
    )
    with core.transition() as now:
        task_ids = [task_id for (task_id,) in core.store.rows(changeable, task_group_id, now, priority)]
        _set(core, task_ids, priority)
        outcome = {
            "taskGroupId": task_group_id,
            "schedulerId": record["schedulerId"],
            "newPriority": new_priority,
            "tasksAffected": len(task_ids),
        }
        core.send(group_message, "task-group-priority-changed", outcome)
    return {**outcome, "taskIds": task_ids}
