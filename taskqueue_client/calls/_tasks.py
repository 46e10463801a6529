"""Calls about tasks and task groups: read, create and change them; claim, reclaim and resolve runs."""

from __future__ import annotations

from collections.abc import Collection, Generator
from functools import partial
from operator import attrgetter
from typing import Any, Literal, get_args

from taskqueue_client import _arguments as arguments
from taskqueue_client import models
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.paging import Pages
from taskqueue_client._protocol.schemas import check_definition
from taskqueue_client.definitions import PriorityName, TaskDefinition, same_definition
from taskqueue_client.errors import CallFailed, RequestConflict

MOST_TASKS = 32
"""The most tasks that a worker may claim with one call."""

ExceptionReason = Literal[
    models.ReasonResolved.WORKER_SHUTDOWN,
    models.ReasonResolved.MALFORMED_PAYLOAD,
    models.ReasonResolved.RESOURCE_UNAVAILABLE,
    models.ReasonResolved.INTERNAL_ERROR,
    models.ReasonResolved.INTERMITTENT_TASK,
    "worker-shutdown",
    "malformed-payload",
    "resource-unavailable",
    "resources-unavailable",
    "internal-error",
    "intermittent-task",
]
"""The reasons that a worker may report; the other reasons of `ReasonResolved` come from the Queue itself."""

_EXCEPTION_REASONS = [each for each in get_args(ExceptionReason) if isinstance(each, models.ReasonResolved)]


def task(task_id: str) -> Call[dict[str, Any]]:
    """Return the definition of a task, with the Queue's defaults filled in.

    Scopes: `queue:get-task:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task does not exist.
    """
    return Call("task", "GET", _of_task(task_id), dict[str, Any])


def _of_task(task_id: str, *rest: str) -> str:
    return arguments.path("task", arguments.slugid("task_id", task_id), *rest)


def tasks(
    task_ids: Collection[str], *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.TasksPage]:
    """Return one page of the definitions of several tasks; unknown task ids are ignored.

    Scopes: `queue:get-task:<task_id>` for each id. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        InputError: `continuation_token` is not a token of this list.
    """
    body = {"taskIds": arguments.texts("task_ids", task_ids)}
    query = arguments.page_query(continuation_token, limit)
    return Call("tasks", "POST", "/tasks", models.TasksPage, query, body)


def iter_tasks(
    task_ids: Collection[str], *, page_size: int | None = None
) -> Pages[models.TasksPage, models.IdentifiedTask]:
    """Iterate over the definitions of several tasks, requesting further pages; see `tasks`."""
    first = tasks(task_ids, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.tasks, attrgetter("task_id"))


def statuses(
    task_ids: Collection[str], *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.StatusesPage]:
    """Return one page of the statuses of several tasks; unknown task ids are ignored.

    Scopes: `queue:status:<task_id>` for each id. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        InputError: `continuation_token` is not a token of this list.
    """
    body = {"taskIds": arguments.texts("task_ids", task_ids)}
    query = arguments.page_query(continuation_token, limit)
    return Call("statuses", "POST", "/tasks/status", models.StatusesPage, query, body)


def iter_statuses(
    task_ids: Collection[str], *, page_size: int | None = None
) -> Pages[models.StatusesPage, models.IdentifiedStatus]:
    """Iterate over the statuses of several tasks, requesting further pages; see `statuses`."""
    first = statuses(task_ids, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.statuses, attrgetter("task_id"))


def status(task_id: str) -> Call[models.TaskStatusResponse]:
    """Return the status of a task, with all its runs.

    Scopes: `queue:status:<task_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task does not exist.
    """
    return Call("status", "GET", _of_task(task_id, "status"), models.TaskStatusResponse)


def list_dependent_tasks(
    task_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.DependentTasksPage]:
    """Return one page of the tasks that depend on a task, in the order of their ids.

    Scopes: `queue:list-dependent-tasks:<task_id>`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        ResourceNotFound: The task does not exist.
        InputError: `continuation_token` is not a token of this list.
    """
    path = _of_task(task_id, "dependents")
    query = arguments.page_query(continuation_token, limit)
    return Call("listDependentTasks", "GET", path, models.DependentTasksPage, query)


def iter_dependent_tasks(
    task_id: str, *, page_size: int | None = None
) -> Pages[models.DependentTasksPage, models.TaskAndStatus]:
    """Iterate over the tasks that depend on a task; see `list_dependent_tasks`."""
    first = list_dependent_tasks(task_id, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.tasks, attrgetter("status.task_id"))


def create_task(
    task_id: str, definition: TaskDefinition
) -> Generator[Call[Any], Any, models.TaskStatusResponse]:
    """Create a task, and schedule it unless it depends on others.

    Safe to repeat with the same definition. If an attempt ended without a response and the next one is a
    conflict, the stored definition is read; the call succeeds if both are equal.

    Scopes: `queue:create-task:<priority>:<task_queue_id>` of this or a higher priority,
    `queue:create-task:project:<projectId>`, `queue:scheduler-id:<schedulerId>`,
    `queue:route:<route>` for each route, and each of the definition's own scopes.

    Args:
        task_id: A new id, from `slugid()`.
        definition: The task, a dict as in the Queue's schema.

    Raises:
        InvalidDefinition: The Queue would refuse the definition; nothing was sent.
        InputError: The Queue refused the definition's dates, task queue or dependencies.
        RequestConflict: Another task has this id, or the task group has another scheduler or is sealed.
    """
    path, check = _of_task(task_id), partial(check_definition, definition)
    create = Call("createTask", "PUT", path, models.TaskStatusResponse, body=definition, check=check)
    try:
        return (yield from create)
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


def schedule_task(task_id: str) -> Call[models.TaskStatusResponse]:
    """Make an unscheduled task pending, without waiting for its dependencies. Other tasks do not change.

    Scopes: `queue:schedule-task:<schedulerId>/<taskGroupId>/<task_id>`,
    `queue:schedule-task-in-project:<projectId>`, or `queue:schedule-task` together with
    `assume:scheduler-id:<schedulerId>/<taskGroupId>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task does not exist.
        RequestConflict: The task's deadline has passed.
    """
    return _change("scheduleTask", task_id, "schedule")


def rerun_task(task_id: str) -> Call[models.TaskStatusResponse]:
    """Add a run to a resolved task, and restore its retries; make an unscheduled task pending.

    Never retried automatically: each repeat may add a run.

    Scopes: `queue:rerun-task:<schedulerId>/<taskGroupId>/<task_id>`,
    `queue:rerun-task-in-project:<projectId>`, or `queue:rerun-task` together with
    `assume:scheduler-id:<schedulerId>/<taskGroupId>`.

    Raises:
        ResourceNotFound: The task does not exist.
        RequestConflict: The task's deadline has passed, or it has 50 runs.
    """
    return _change("rerunTask", task_id, "rerun")


def cancel_task(task_id: str) -> Call[models.TaskStatusResponse]:
    """Cancel a task: resolve it as `exception` with the reason `canceled`. A resolved task does not change.

    Scopes: `queue:cancel-task:<schedulerId>/<taskGroupId>/<task_id>`,
    `queue:cancel-task-in-project:<projectId>`, or `queue:cancel-task` together with
    `assume:scheduler-id:<schedulerId>/<taskGroupId>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task does not exist.
        RequestConflict: The task's deadline has passed.
    """
    return _change("cancelTask", task_id, "cancel")


def _change(endpoint: str, task_id: str, verb: str) -> Call[models.TaskStatusResponse]:
    return Call(endpoint, "POST", _of_task(task_id, verb), models.TaskStatusResponse)


def change_task_priority(task_id: str, new_priority: PriorityName) -> Call[models.TaskStatusResponse]:
    """Change the priority of a task that has never been resolved.

    Never retried automatically: a repeat would be a conflict, as the task already has the priority.

    Scopes: `queue:change-task-priority:<task_id>`,
    or `queue:change-task-priority-in-queue:<taskQueueId>`.

    Raises:
        ResourceNotFound: The task does not exist.
        RequestConflict: The task's deadline has passed, or the task was resolved before or has this priority.
    """
    path = _of_task(task_id, "priority")
    body = {"newPriority": arguments.one_of("new_priority", new_priority, list(models.Priority))}
    return Call("changeTaskPriority", "POST", path, models.TaskStatusResponse, body=body)


def list_task_group(
    task_group_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.TaskGroupPage]:
    """Return one page of the tasks of a task group, in the order of their ids.

    Scopes: `queue:list-task-group:<task_group_id>`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        ResourceNotFound: The task group does not exist.
        InputError: `continuation_token` is not a token of this list.
    """
    query = arguments.page_query(continuation_token, limit)
    return Call("listTaskGroup", "GET", _of_group(task_group_id, "list"), models.TaskGroupPage, query)


def iter_task_group(
    task_group_id: str, *, page_size: int | None = None
) -> Pages[models.TaskGroupPage, models.TaskAndStatus]:
    """Iterate over the tasks of a group, requesting further pages; see `list_task_group`."""
    first = list_task_group(task_group_id, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.tasks, attrgetter("status.task_id"))


def cancel_task_group(task_group_id: str) -> Call[models.CanceledTaskGroup]:
    """Cancel all tasks of a sealed task group that are not resolved.

    Scopes: `queue:cancel-task-group:<schedulerId>/<task_group_id>`. Safe to repeat: the
    response to a repeat lists only the tasks that it cancels.

    Raises:
        ResourceNotFound: The task group does not exist.
        RequestConflict: The task group is not sealed.
    """
    return Call("cancelTaskGroup", "POST", _of_group(task_group_id, "cancel"), models.CanceledTaskGroup)


def get_task_group(task_group_id: str) -> Call[models.TaskGroup]:
    """Return a task group, without its tasks.

    Scopes: `queue:list-task-group:<task_group_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The task group does not exist.
    """
    return Call("getTaskGroup", "GET", _of_group(task_group_id), models.TaskGroup)


def seal_task_group(task_group_id: str) -> Call[models.TaskGroup]:
    """Seal a task group: no task can be added to it any more.

    Scopes: `queue:seal-task-group:<schedulerId>/<task_group_id>`. Safe to repeat:
    `sealed` keeps the time of the first call.

    Raises:
        ResourceNotFound: The task group has no tasks.
    """
    return Call("sealTaskGroup", "POST", _of_group(task_group_id, "seal"), models.TaskGroup)


def change_task_group_priority(
    task_group_id: str, new_priority: PriorityName
) -> Call[models.TaskGroupPriorityChange]:
    """Change the priority of the tasks of a task group that have never been resolved.

    Scopes: `queue:change-task-group-priority:<schedulerId>/<task_group_id>`. Safe to repeat: a repeat
    changes nothing.

    Raises:
        ResourceNotFound: The task group does not exist.
    """
    body = {"newPriority": arguments.one_of("new_priority", new_priority, list(models.Priority))}
    path = _of_group(task_group_id, "priority")
    return Call("changeTaskGroupPriority", "POST", path, models.TaskGroupPriorityChange, body=body)


def _of_group(task_group_id: str, *verb: str) -> str:
    return arguments.path("task-group", arguments.slugid("task_group_id", task_group_id), *verb)


def claim_work(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    tasks: int = 1,
) -> Call[models.ClaimWorkResponse]:
    """Claim pending tasks, highest priority first; wait up to 20 s for the first one.

    Never retried automatically: if a response is lost, its runs stay claimed until the
    claims expire.

    Scopes: `queue:claim-work:<task_queue_id>` and `queue:worker-id:<worker_group>/<worker_id>`.

    Args:
        task_queue_id: The task queue to claim from; or pass the old pair, the next two arguments.
        provisioner_id: The first part of the task queue id.
        worker_type: The second part of the task queue id.
        worker_group: The worker's group, such as a region.
        worker_id: The worker's id, unique within its group.
        tasks: The most tasks to claim, 1 to 32.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    count = arguments.number("tasks", tasks, least=1, most=MOST_TASKS)
    body = {**_worker(worker_group, worker_id), "tasks": count}
    return Call("claimWork", "POST", arguments.path("claim-work", queue), models.ClaimWorkResponse, body=body)


def claim_task(task_id: str, run_id: int, *, worker_group: str, worker_id: str) -> Call[models.TaskClaim]:
    """Claim one run. Deprecated by the Queue: use `claim_work`.

    Scopes: `queue:claim-task:<taskQueueId>` and `queue:worker-id:<worker_group>/<worker_id>`. Safe to
    repeat by the same worker, which gets new credentials; `taken_until` does not change.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is not pending, or the task's deadline has passed.
        InternalServerError: The worker may be quarantined.
    """
    body = _worker(worker_group, worker_id)
    return Call("claimTask", "POST", _path(task_id, run_id, "claim"), models.TaskClaim, body=body)


def reclaim_task(task_id: str, run_id: int) -> Call[models.TaskReclaim]:
    """Reclaim a run: extend the claim, and return new credentials.

    Scopes: `queue:reclaim-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The claim is lost: stop the run and do not report it.
        InternalServerError: The run may never have been claimed.
    """
    return Call("reclaimTask", "POST", _path(task_id, run_id, "reclaim"), models.TaskReclaim)


def report_completed(task_id: str, run_id: int) -> Call[models.TaskStatusResponse]:
    """Resolve a run as completed: the task has succeeded.

    Scopes: `queue:resolve-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is resolved in another way, or is not running.
    """
    return Call("reportCompleted", "POST", _path(task_id, run_id, "completed"), models.TaskStatusResponse)


def report_failed(task_id: str, run_id: int) -> Call[models.TaskStatusResponse]:
    """Resolve a run as failed: the task itself has failed. It is not retried.

    Scopes: `queue:resolve-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is resolved in another way, or is not running.
    """
    return Call("reportFailed", "POST", _path(task_id, run_id, "failed"), models.TaskStatusResponse)


def report_exception(task_id: str, run_id: int, reason: ExceptionReason) -> Call[models.TaskStatusResponse]:
    """Resolve a run as an exception: the run has ended without a result.

    Scopes: `queue:resolve-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat
    with the same reason.

    Args:
        task_id: The task.
        run_id: The run.
        reason: `worker-shutdown` and `intermittent-task` let the Queue retry the task while it has
            retries left; `malformed-payload`, `resource-unavailable` and `internal-error` do not.
            `resources-unavailable`, as the Queue's interaction document spells it, is sent as
            `resource-unavailable`.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is resolved in another way, or is not running.
    """
    spelled = models.ReasonResolved.RESOURCE_UNAVAILABLE if reason == "resources-unavailable" else reason
    body = {"reason": arguments.one_of("reason", spelled, _EXCEPTION_REASONS)}
    path = _path(task_id, run_id, "exception")
    return Call("reportException", "POST", path, models.TaskStatusResponse, body=body)


def _path(task_id: str, run_id: int, verb: str) -> str:
    task, run = arguments.slugid("task_id", task_id), arguments.number("run_id", run_id)
    return arguments.path("task", task, "runs", run, verb)


def _worker(worker_group: str, worker_id: str) -> dict[str, str | int]:
    return {
        "workerGroup": arguments.identifier("worker_group", worker_group),
        "workerId": arguments.identifier("worker_id", worker_id),
    }
