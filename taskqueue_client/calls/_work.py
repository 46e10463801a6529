"""Calls that workers make: claim runs, reclaim and resolve them."""

from __future__ import annotations

from typing import Literal

from taskqueue_client._protocol.conversation import Call
from taskqueue_client.models import (
    ClaimWorkResponse,
    ReasonResolved,
    TaskClaim,
    TaskReclaim,
    TaskStatusResponse,
)

from . import _arguments as arguments

MOST_TASKS = 32
"""The number of tasks that a worker may claim with one call, at most."""

ExceptionReason = (
    ReasonResolved
    | Literal[
        "worker-shutdown",
        "malformed-payload",
        "resource-unavailable",
        "resources-unavailable",
        "internal-error",
        "intermittent-task",
    ]
)

_EXCEPTION_REASONS = [
    ReasonResolved.WORKER_SHUTDOWN,
    ReasonResolved.MALFORMED_PAYLOAD,
    ReasonResolved.RESOURCE_UNAVAILABLE,
    ReasonResolved.INTERNAL_ERROR,
    ReasonResolved.INTERMITTENT_TASK,
]


def claim_work(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    tasks: int = 1,
) -> Call[ClaimWorkResponse]:
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
        tasks: The number of tasks to claim at most, 1 to 32.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    count = arguments.number("tasks", tasks, least=1, most=MOST_TASKS)
    body = {**_worker(worker_group, worker_id), "tasks": count}
    return Call("claimWork", "POST", arguments.path("claim-work", queue), ClaimWorkResponse, body=body)


def claim_task(task_id: str, run_id: int, *, worker_group: str, worker_id: str) -> Call[TaskClaim]:
    """Claim one run. Deprecated by the Queue: use `claim_work`.

    Scopes: `queue:claim-task:<taskQueueId>` and `queue:worker-id:<worker_group>/<worker_id>`. Safe to
    repeat by the same worker, which gets new credentials; `taken_until` does not change.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is not pending, or the task's deadline has passed.
        InternalServerError: The worker may be quarantined.
    """
    body = _worker(worker_group, worker_id)
    return Call("claimTask", "POST", _path(task_id, run_id, "claim"), TaskClaim, body=body)


def reclaim_task(task_id: str, run_id: int) -> Call[TaskReclaim]:
    """Reclaim a run: extend the claim, and return new credentials.

    Scopes: `queue:reclaim-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The claim is lost: stop the run and do not report it.
        InternalServerError: The run may never have been claimed.
    """
    return Call("reclaimTask", "POST", _path(task_id, run_id, "reclaim"), TaskReclaim)


def report_completed(task_id: str, run_id: int) -> Call[TaskStatusResponse]:
    """Resolve a run as completed: the task has succeeded.

    Scopes: `queue:resolve-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is resolved in another way, or is not running.
    """
    return Call("reportCompleted", "POST", _path(task_id, run_id, "completed"), TaskStatusResponse)


def report_failed(task_id: str, run_id: int) -> Call[TaskStatusResponse]:
    """Resolve a run as failed: the task itself has failed. It is not retried.

    Scopes: `queue:resolve-task:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Raises:
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is resolved in another way, or is not running.
    """
    return Call("reportFailed", "POST", _path(task_id, run_id, "failed"), TaskStatusResponse)


def report_exception(task_id: str, run_id: int, reason: ExceptionReason) -> Call[TaskStatusResponse]:
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
    spelled = ReasonResolved.RESOURCE_UNAVAILABLE if reason == "resources-unavailable" else reason
    body = {"reason": arguments.one_of("reason", spelled, _EXCEPTION_REASONS)}
    path = _path(task_id, run_id, "exception")
    return Call("reportException", "POST", path, TaskStatusResponse, body=body)


def _path(task_id: str, run_id: int, verb: str) -> str:
    task, run = arguments.slugid("task_id", task_id), arguments.number("run_id", run_id)
    return arguments.path("task", task, "runs", run, verb)


def _worker(worker_group: str, worker_id: str) -> dict[str, str | int]:
    return {
        "workerGroup": arguments.identifier("worker_group", worker_group),
        "workerId": arguments.identifier("worker_id", worker_id),
    }
