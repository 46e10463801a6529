"""createTask: completing the definition, checking it, and making task, group and first run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import announce, times
from taskqueue_client.local.engine.collation import sort_key
from taskqueue_client.local.engine.dependencies import check_dependencies, track_again, track_dependencies
from taskqueue_client.local.engine.groups import join_group
from taskqueue_client.local.engine.jsonb import encode, normalised
from taskqueue_client.local.engine.records import PRIORITIES, Task, encode_runs, find_task
from taskqueue_client.local.engine.transitions import add_run, append_run, line_up
from taskqueue_client.local.refusal import Caller, bad_input, conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskqueue_client.local.engine.core import Core

_DRIFT = 15 * times.MINUTE  # how far a creator's clock may be off
_FIELDS = (
    "provisionerId",
    "workerType",
    "taskQueueId",
    "schedulerId",
    "projectId",
    "taskGroupId",
    "dependencies",
    "requires",
    "routes",
    "priority",
    "retries",
    "created",
    "deadline",
    "expires",
    "scopes",
    "payload",
    "metadata",
    "tags",
    "extra",
)


@dataclass(frozen=True, slots=True)
class Creation:
    """The endpoint that makes tasks."""

    core: Core

    def create_task(self, caller: Caller, task_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make a task, or find it made with the same definition before; answers its status.

        Args:
            caller: Who must hold the task's scopes, and those to create it.
            task_id: The new task's id.
            body: A `create-task-request` with all defaults that its schema gives. What the queue adds
                (the queue id's missing form, `taskGroupId`, `expires`) is filled into it.

        Raises:
            Refusal: `InputError`, `InsufficientScopes`, `RequestConflict`, in the order of the
                service's checks.
        """
        _complete_queue_id(body)
        body.setdefault("taskGroupId", task_id)
        caller.require(**_scope_params(body))
        dates = _Dates.of(body)
        dates.check(self.core.now(), self.core.settings.max_task_deadline_days)
        _check_scopes(body["scopes"])
        task = _new_task(task_id, body, dates)
        with self.core.transition() as now:
            join_group(self.core, task.task_group_id, task.scheduler_id, task.expires)
            stored = self._stored(task, body["requires"], now) or self._insert(task, body, now)
            self.core.send(announce.defined, stored)
            if stored.runs and stored.runs[0].state == "pending":
                self.core.send(announce.pending, stored, stored.runs[0])
        return {"status": stored.status()}

    def _stored(self, task: Task, requires: str, now: int) -> Task | None:
        """The task as it was made before; it runs now if the resolver has yet to see that it can."""
        stored = find_task(self.core.store, task.task_id)
        if stored is None:
            return None
        if (stored.encoded_definition, stored.priority) != (task.encoded_definition, task.priority):
            message = f"taskId `{task.task_id}` is in use by a task with another definition."
            raise conflict(message)
        if not stored.runs and track_again(self.core, task.task_id, requires):
            add_run(self.core, stored, "scheduled", now)
        return stored

    def _insert(self, task: Task, body: dict[str, Any], now: int) -> Task:
        states = check_dependencies(self.core, task.task_id, body["dependencies"], task.deadline)
        is_free = track_dependencies(self.core, task, states, body["requires"])
        if is_free:
            append_run(task, "scheduled", now)
        _insert_row(self.core, task)
        if is_free:
            line_up(self.core, task, now)
        return task


@dataclass(frozen=True, slots=True)
class _Dates:
    created: int
    deadline: int
    expires: int

    @classmethod
    def of(cls, body: dict[str, Any]) -> _Dates:
        """The definition's dates; a missing `expires` becomes a year after the deadline."""
        created = times.parse(body["created"], "created")
        deadline = times.parse(body["deadline"], "deadline")
        if "expires" not in body:
            body["expires"] = times.text(times.add_years(deadline, 1))
        return cls(created, deadline, times.parse(body["expires"], "expires"))

    def check(self, now: int, max_deadline_days: float) -> None:
        last = now + int(max_deadline_days * times.DAY) + _DRIFT
        rules = {
            "`created` cannot be in the past (max 15min drift)": self.created >= now - _DRIFT,
            "`created` cannot be in the future (max 15min drift)": self.created <= now + _DRIFT,
            "`deadline` cannot be before `created`": self.created <= self.deadline,
            "`deadline` cannot be in the past": self.deadline >= now,
            f"`deadline` cannot be more than {max_deadline_days:g} days into the future": self.deadline
            <= last,
            "`expires` cannot be before `deadline`": self.deadline <= self.expires,
        }
        for message, holds in rules.items():
            if not holds:
                raise bad_input(message)


def _complete_queue_id(body: dict[str, Any]) -> None:
    """Fill in `taskQueueId`, or `provisionerId` and `workerType`, from what the request has."""
    if "provisionerId" in body and "workerType" in body:
        body.setdefault("taskQueueId", f"{body['provisionerId']}/{body['workerType']}")
    elif "taskQueueId" in body:
        body["provisionerId"], body["workerType"] = body["taskQueueId"].split("/")
    else:
        message = "Either `taskQueueId` or both `provisionerId` and `workerType` must be given"
        raise bad_input(message)
    if body["taskQueueId"] != f"{body['provisionerId']}/{body['workerType']}":
        message = "`taskQueueId` must be `provisionerId`/`workerType`, or one form must be left out"
        raise bad_input(message)


def _scope_params(body: dict[str, Any]) -> dict[str, Any]:
    """What the endpoint's scope expression is filled with; a higher priority's scope also counts."""
    names = ("scopes", "routes", "projectId", "schedulerId", "provisionerId", "workerType")
    enough = PRIORITIES[PRIORITIES.index(body["priority"]) :]
    return {**{name: body[name] for name in names}, "priorities": list(reversed(enough))}


def _check_scopes(scopes: Sequence[str]) -> None:
    wrong = [scope for scope in scopes if scope.endswith("**")]
    if wrong:
        message = f"`scopes` must not end with two stars, as {wrong[0]!r} does"
        raise bad_input(message)


def _new_task(task_id: str, body: dict[str, Any], dates: _Dates) -> Task:
    return Task(
        task_id=task_id,
        task_queue_id=body["taskQueueId"],
        scheduler_id=body["schedulerId"],
        project_id=body["projectId"],
        task_group_id=body["taskGroupId"],
        priority=PRIORITIES.index(body["priority"]),
        deadline=dates.deadline,
        expires=dates.expires,
        retries=int(body["retries"]),
        retries_left=int(body["retries"]),
        claimed_by_id=0,
        ever_resolved=0,
        runs=[],
        encoded_definition=_encoded_definition(body, dates),
    )


def _encoded_definition(body: dict[str, Any], dates: _Dates) -> bytes:
    """The definition in the server's order; its priority, which can change, is kept in the record."""
    changed = {
        "priority": None,
        "created": times.text(dates.created),
        "deadline": times.text(dates.deadline),
        "expires": times.text(dates.expires),
    }
    return encode({name: changed[name] if name in changed else normalised(body[name]) for name in _FIELDS})


def _insert_row(core: Core, task: Task) -> None:
    core.store.change(
        "INSERT INTO tasks (task_id, sort_key, task_queue_id, scheduler_id, project_id, task_group_id,"
        " priority, deadline, expires, retries, retries_left, runs, definition)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        task.task_id,
        sort_key(task.task_id),
        task.task_queue_id,
        task.scheduler_id,
        task.project_id,
        task.task_group_id,
        task.priority,
        task.deadline,
        task.expires,
        task.retries,
        task.retries_left,
        encode_runs(task.runs),
        task.encoded_definition,
    )
