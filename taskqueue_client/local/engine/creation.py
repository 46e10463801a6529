"""createTask: completing the definition, checking it, and making task, group and first run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskqueue_client.local import messages, times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import queue
from taskqueue_client.local.javascript_values import in_database_order
from taskqueue_client.local.refusal import conflict, refuse
from taskqueue_client.local.request_schemas import REQUEST_SCHEMAS
from taskqueue_client.scopes import ScopeExpression

from .core import Core, Json
from .run_transitions import add_run, append_run, enqueue
from .scheduling import check_dependencies, join_group, track_again, track_dependencies
from .store import sort_key
from .task_records import COLUMNS, PRIORITIES, Task, encode_runs, find_task

_OF_PRIORITY = "queue:create-task:<priority>:<provisionerId>/<workerType>"
_SCOPES: ScopeExpression = {
    "AllOf": [
        {"for": "scope", "in": "scopes", "each": "<scope>"},
        {"for": "route", "in": "routes", "each": "queue:route:<route>"},
        "queue:create-task:project:<projectId>",
        "queue:scheduler-id:<schedulerId>",
        {"AnyOf": [{"for": "priority", "in": "priorities", "each": _OF_PRIORITY}]},
    ]
}

_DRIFT = 15 * times.MINUTE  # how far a creator's clock may be off
_LATEST_DEADLINE = 5 * times.DAY
_FIELDS = tuple(REQUEST_SCHEMAS["queue/v1/create-task-request"]["properties"])


@queue("PUT", "/task/<taskId>", _SCOPES, schema="create-task-request")
def create_task(core: Core, caller: Caller, task_id: str, body: Json) -> Json:
    """Create a task, unless it exists with the same definition; return its status.

    `body` is changed: missing keys (`taskQueueId` or its two parts, `taskGroupId`, `expires`) are added, and
    dates get the form in which they are stored. The order of the checks is the service's.
    """
    _complete_queue_id(body)
    most = core.settings.max_dependencies
    if len(body["dependencies"]) > most:
        refuse("InputError", f"`dependencies` cannot have more than {most} elements")
    caller.require(**_scope_params(body))
    body.setdefault("taskGroupId", task_id)
    with core.transition() as now:
        deadline, expires = _complete_dates(body, now)
        _check_scopes(body["scopes"])
        task = _new_task(task_id, body, deadline, expires)
        join_group(core, task.task_group_id, task.scheduler_id, task.expires)
        stored = find_task(core.store, task_id)
        if stored:
            _check_same(core, stored, task, body["requires"], now)
        else:
            stored = _insert(core, task, body, now)
        core.send(messages.defined, stored)
        if stored.runs and stored.runs[0].state == "pending":
            core.send(messages.pending, stored, stored.runs[0])
    return {"status": stored.status()}


def _check_same(core: Core, stored: Task, task: Task, requires: str, now: int) -> None:
    """Refuse another definition; schedule the stored task if its dependencies have been satisfied since."""
    if (stored.encoded_definition, stored.priority) != (task.encoded_definition, task.priority):
        conflict(f"taskId `{task.task_id}` is in use by a task with another definition.")
    if not stored.runs and track_again(core, task.task_id, requires):
        add_run(core, stored, "scheduled", now)


def _insert(core: Core, task: Task, body: Json, now: int) -> Task:
    states = check_dependencies(core, task.task_id, body["dependencies"], task.deadline)
    is_free = track_dependencies(core, task, states, body["requires"])
    if is_free:
        append_run(task, "scheduled", now)
    *plain, runs, definition = msgspec.structs.astuple(task)
    row = (sort_key(task.task_id), *plain, encode_runs(runs), definition)
    core.store.insert(f"tasks (sort_key, {COLUMNS})", *row)
    if is_free:
        enqueue(core, task, now)
    return task


def _complete_dates(body: Json, now: int) -> tuple[int, int]:
    """Check the dates in `body`, and give them their stored form; return `deadline` and `expires` in ms."""
    created = times.parse(body["created"], "created")
    deadline = times.parse(body["deadline"], "deadline")
    rules = {
        "`created` cannot be in the past (max 15min drift)": created >= now - _DRIFT,
        "`created` cannot be in the future (max 15min drift)": created <= now + _DRIFT,
        "`deadline` cannot be before `created`": created <= deadline,
        "`deadline` cannot be in the past": deadline >= now,
        "`deadline` cannot be more than 5 days into the future": deadline <= now + _LATEST_DEADLINE + _DRIFT,
    }
    for message, holds in rules.items():
        if not holds:
            refuse("InputError", message)
    body.setdefault("expires", times.text(times.add_years(deadline, 1)))
    expires = times.parse(body["expires"], "expires")
    if expires < deadline:
        refuse("InputError", "`expires` cannot be before `deadline`")
    body.update(created=times.text(created), deadline=times.text(deadline), expires=times.text(expires))
    return deadline, expires


def _complete_queue_id(body: Json) -> None:
    """Fill in `taskQueueId`, or `provisionerId` and `workerType`, from the form that the request has."""
    if "provisionerId" in body and "workerType" in body:
        body.setdefault("taskQueueId", f"{body['provisionerId']}/{body['workerType']}")
    elif "taskQueueId" in body:
        body["provisionerId"], body["workerType"] = body["taskQueueId"].split("/")
    else:
        refuse("InputError", "Either `taskQueueId` or both `provisionerId` and `workerType` must be given")
    if body["taskQueueId"] != f"{body['provisionerId']}/{body['workerType']}":
        refuse(
            "InputError", "`taskQueueId` must be `provisionerId`/`workerType`, or only one form may be given"
        )


def _scope_params(body: Json) -> Json:
    """Return the values of the scope expression; the scope for a higher priority allows a lower one, too."""
    names = ("scopes", "routes", "projectId", "schedulerId", "provisionerId", "workerType")
    enough = PRIORITIES[PRIORITIES.index(body["priority"]) :]
    return {**{name: body[name] for name in names}, "priorities": list(reversed(enough))}


def _check_scopes(scopes: Sequence[str]) -> None:
    if wrong := [scope for scope in scopes if scope.endswith("**")]:
        refuse("InputError", f"`scopes` must not end with two stars, as {wrong[0]!r} does")


def _new_task(task_id: str, body: Json, deadline: int, expires: int) -> Task:
    return Task(
        task_id=task_id,
        task_queue_id=body["taskQueueId"],
        scheduler_id=body["schedulerId"],
        project_id=body["projectId"],
        task_group_id=body["taskGroupId"],
        priority=PRIORITIES.index(body["priority"]),
        deadline=deadline,
        expires=expires,
        retries=int(body["retries"]),
        retries_left=int(body["retries"]),
        claimed_by_id=0,
        ever_resolved=0,
        runs=[],
        encoded_definition=_encoded_definition(body),
    )


def _encoded_definition(body: Json) -> bytes:
    """Return the definition with the keys in the service's order, without `priority`, which can change."""
    try:
        definition = {name: None if name == "priority" else in_database_order(body[name]) for name in _FIELDS}
        return msgspec.json.encode(definition)
    except RecursionError:
        refuse("MalformedPayload", "`payload` or `extra` is nested deeper than Python can handle")
