"""The records of tasks and runs, their form in responses, and the endpoints that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from taskqueue_client.local import times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import each, queue
from taskqueue_client.local.refusal import existing, refuse

from .core import Core, Json
from .pages import offset_page
from .store import Store

PRIORITIES = ("lowest", "very-low", "low", "medium", "high", "very-high", "highest")
"""All priorities, the least urgent first; a stored priority is an index into this."""

COLUMNS = (
    "task_id, task_queue_id, scheduler_id, project_id, task_group_id, priority, deadline, expires, retries,"
    " retries_left, claimed_by_id, ever_resolved, runs, definition"
)
"""The columns of `tasks` that make a `Task`, in the order of its fields."""

_GIVEN = "task_id IN (SELECT value FROM json_each(?)) ORDER BY rowid"


class Run(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One run, its fields in the order in which the Queue shows them; times are strings."""

    run_id: int
    state: str
    reason_created: str
    reason_resolved: str | None = None
    worker_group: str | None = None
    worker_id: str | None = None
    taken_until: str | None = None
    scheduled: str
    started: str | None = None
    resolved: str | None = None

    @property
    def worker(self) -> tuple[str, str] | None:
        """Worker group and id; None for a run that was never claimed."""
        return None if self.worker_group is None else (self.worker_group, cast("str", self.worker_id))

    @property
    def is_resolved(self) -> bool:
        """Whether the run is in a final state."""
        return self.state not in {"pending", "running"}


class Extract(msgspec.Struct):
    """The parts of a definition that messages and credentials need."""

    routes: list[str]
    scopes: list[str]
    tags: dict[str, str]


_decode_runs = msgspec.json.Decoder(list[Run]).decode
_decode_extract = msgspec.json.Decoder(Extract).decode
_decode_definition = msgspec.json.Decoder(Json).decode
encode_runs = msgspec.json.Encoder().encode


class Task(msgspec.Struct):
    """A row of `tasks`, with its runs; times are milliseconds."""

    task_id: str
    task_queue_id: str
    scheduler_id: str
    project_id: str
    task_group_id: str
    priority: int
    deadline: int
    expires: int
    retries: int
    retries_left: int
    claimed_by_id: int
    ever_resolved: int
    runs: list[Run]
    encoded_definition: bytes

    @property
    def state(self) -> str:
        """The last run's state; `unscheduled` without runs."""
        return _state(self.runs)

    def run(self, run_id: int) -> Run:
        """Return a run by its number."""
        if run_id >= len(self.runs):
            refuse("ResourceNotFound", f"Task `{self.task_id}` has no run {run_id}.")
        return self.runs[run_id]

    def extract(self) -> Extract:
        """Return routes, scopes and tags."""
        return _decode_extract(self.encoded_definition)

    def definition(self) -> Json:
        """Return the definition with all its fields, as `task` returns it."""
        definition = _decode_definition(self.encoded_definition)
        definition["priority"] = PRIORITIES[self.priority]
        return definition

    def status(self) -> Json:
        """Return the status as the Queue returns it."""
        return {
            "taskId": self.task_id,
            **queue_names(self.task_queue_id),
            "schedulerId": self.scheduler_id,
            "projectId": self.project_id,
            "taskGroupId": self.task_group_id,
            "priority": PRIORITIES[self.priority],
            "deadline": times.text(self.deadline),
            "expires": times.text(self.expires),
            "retriesLeft": self.retries_left,
            "state": self.state,
            "runs": [msgspec.to_builtins(run) for run in self.runs],
        }

    def listed(self) -> Json:
        """Return status and definition, as lists have them."""
        return {"status": self.status(), "task": self.definition()}


def queue_names(task_queue_id: str) -> dict[str, str]:
    """Return the names of a task queue, as they stand in responses."""
    provisioner_id, worker_type = task_queue_id.split("/")
    return {"provisionerId": provisioner_id, "workerType": worker_type, "taskQueueId": task_queue_id}


def _state(runs: list[Run]) -> str:
    return runs[-1].state if runs else "unscheduled"


def task_of(row: tuple[Any, ...]) -> Task:
    """Return the task in a row of `COLUMNS`."""
    *plain, runs, definition = row
    fields: list[Any] = [*plain, _decode_runs(runs), definition]
    return Task(*fields)


def find_task(store: Store, task_id: str) -> Task | None:
    """Return a task by its id; None if it does not exist."""
    row = store.row(f"SELECT {COLUMNS} FROM tasks WHERE task_id = ?", task_id)  # noqa: S608 - no input in it
    return task_of(row) if row else None


def find_expiry_and_state(store: Store, task_id: str) -> tuple[int, str] | None:
    """Return the expiry and state of a task, or None; quicker than `find_task` for long definitions."""
    row = store.row("SELECT expires, runs FROM tasks WHERE task_id = ?", task_id)
    return (row[0], _state(_decode_runs(row[1]))) if row else None


def get_task(store: Store, task_id: str) -> Task:
    """Return a task by its id."""
    message = f"`{task_id}` does not correspond to a task that exists.\nAre you sure this task exists?"
    return existing(find_task(store, task_id), message)


def save_runs(store: Store, task: Task) -> None:
    """Store the runs of a task, and the other columns that change with its runs."""
    sql = "UPDATE tasks SET runs = ?, retries_left = ?, claimed_by_id = ? WHERE task_id = ?"
    store.change(sql, encode_runs(task.runs), task.retries_left, task.claimed_by_id, task.task_id)


@queue("GET", "/task/<taskId>", "queue:get-task:<taskId>")
def task(core: Core, task_id: str) -> Json:
    """Return a task's definition."""
    return get_task(core.store, task_id).definition()


@queue("GET", "/task/<taskId>/status", "queue:status:<taskId>")
def status(core: Core, task_id: str) -> Json:
    """Return a task's status."""
    return {"status": get_task(core.store, task_id).status()}


@queue("POST", "/tasks", each("taskId", "taskIds", "queue:get-task:<taskId>"), schema="tasks-request")
def tasks(core: Core, caller: Caller, body: Json, token: str | None, limit: int) -> Json:
    """Return a page of the definitions of the given tasks, without tasks that do not exist."""

    def item(task: Task) -> Json:
        return {"taskId": task.task_id, "task": task.definition()}

    caller.require(taskIds=body["taskIds"])
    return task_page(core, "tasks", item, token, limit, _GIVEN, msgspec.json.encode(body["taskIds"]).decode())


@queue("POST", "/tasks/status", each("taskId", "taskIds", "queue:status:<taskId>"), schema="tasks-request")
def statuses(core: Core, caller: Caller, body: Json, token: str | None, limit: int) -> Json:
    """Return a page of the statuses of the given tasks, without tasks that do not exist."""

    def item(task: Task) -> Json:
        return {"taskId": task.task_id, "status": task.status()}

    caller.require(taskIds=body["taskIds"])
    return task_page(
        core, "statuses", item, token, limit, _GIVEN, msgspec.json.encode(body["taskIds"]).decode()
    )


@queue("GET", "/task/<taskId>/dependents", "queue:list-dependent-tasks:<taskId>")
def list_dependent_tasks(core: Core, task_id: str, token: str | None, limit: int) -> Json:
    """Return a page of the tasks that depend on this one and have not expired, ordered by taskId."""
    where = (
        "expires > ? AND task_id IN (SELECT dependent FROM dependencies WHERE required = ?) ORDER BY sort_key"
    )
    page = task_page(core, "tasks", Task.listed, token, limit, where, core.now(), task_id)
    get_task(core.store, task_id)
    return {"taskId": task_id, **page}


def task_page(
    core: Core, key: str, item: Callable[[Task], Any], token: str | None, limit: int, where: str, *values: Any
) -> Json:
    """Return the body of a response with a page of tasks; `where` ends with their order.

    Only ids are sorted, not whole rows, which may have long definitions.
    """
    sql = f"SELECT task_id FROM tasks WHERE {where}"  # noqa: S608 - constants
    return offset_page(core, key, lambda row: item(get_task(core.store, *row)), token, limit, sql, *values)
