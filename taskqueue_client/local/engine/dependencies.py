"""Dependencies between tasks: who waits for whom, and what a resolution sets free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import announce
from taskqueue_client.local.engine.groups import send_group
from taskqueue_client.local.engine.records import Task, find_expiry_and_state, find_task
from taskqueue_client.local.engine.transitions import add_run
from taskqueue_client.local.refusal import bad_input

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core

_ENOUGH = {"all-resolved": {"completed", "failed", "exception"}, "all-completed": {"completed"}}
"""By what a task requires: the states of a dependency that satisfy it."""


def check_dependencies(core: Core, task_id: str, dependencies: list[str], deadline: int) -> dict[str, str]:
    """The states of the tasks that a new task depends on; it may depend on itself.

    Raises:
        Refusal: `InputError`: one does not exist, or expires before the new task's deadline.
    """
    found = {required: find_expiry_and_state(core.store, required) for required in dependencies}
    found[task_id] = deadline, "unscheduled"
    missing = [required for required, record in found.items() if record is None]
    if missing:
        message = "`task.dependencies` must exist; these do not:\n" + _listed(missing)
        raise bad_input(message)
    records = {required: record for required, record in found.items() if record}
    expiring = [required for required, (expires, _) in records.items() if expires < deadline]
    if expiring:
        raise bad_input(
            "`task.dependencies` must not expire before `deadline`; these do:\n" + _listed(expiring)
        )
    return {required: records[required][1] for required in dependencies}


def track_dependencies(core: Core, task: Task, states: dict[str, str], requires: str) -> bool:
    """Record a new task's dependencies and their states; whether they let it run at once."""
    enough = _ENOUGH[requires]
    for required, state in states.items():
        core.store.change(
            "INSERT INTO dependencies (required, dependent, requires, satisfied, expires)"
            " VALUES (?, ?, ?, ?, ?)",
            required,
            task.task_id,
            requires,
            state in enough,
            task.expires,
        )
    return enough.issuperset(states.values())


def track_again(core: Core, task_id: str, requires: str) -> bool:
    """Mark what has been satisfied since, without the resolver; whether that lets the task run."""
    waiting = "SELECT required FROM dependencies WHERE dependent = ? AND satisfied = 0"
    satisfied = [
        required
        for (required,) in core.store.rows(waiting, task_id)
        if (found := find_expiry_and_state(core.store, required)) and found[1] in _ENOUGH[requires]
    ]
    for required in satisfied:
        core.store.change(
            "UPDATE dependencies SET satisfied = 1 WHERE required = ? AND dependent = ?", required, task_id
        )
    return bool(satisfied) and not _is_blocked(core, task_id)


def resolve_task(core: Core, task_id: str, task_group_id: str, resolution: str, now: int) -> None:
    """Schedule what waited for a resolved task, and tell of its group if nothing in it is left to do."""
    for (dependent,) in _newly_satisfied(core, task_id, resolution, now):
        if not _is_blocked(core, dependent):
            _schedule(core, dependent, now)
    core.store.change("UPDATE tasks SET ever_resolved = 1 WHERE task_id = ?", task_id)
    left = core.store.value(
        "SELECT 1 FROM tasks WHERE task_group_id = ? AND ever_resolved = 0 LIMIT 1", task_group_id
    )
    if not left:
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
    dependents = core.store.rows(
        f"SELECT dependent FROM dependencies WHERE {waiting} ORDER BY sort_key(dependent)",  # noqa: S608 - constants
        *values,
    )
    core.store.change(f"UPDATE dependencies SET satisfied = 1 WHERE {waiting}", *values)  # noqa: S608 - constants
    return dependents


def _schedule(core: Core, task_id: str, now: int) -> None:
    task = find_task(core.store, task_id)
    if task is None or task.deadline < now or task.runs:
        return
    core.send(announce.pending, task, add_run(core, task, "scheduled", now))
