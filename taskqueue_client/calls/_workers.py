"""Calls about task queues and the workers that serve them.

Where a task queue is asked for, give its id, or the old pair `provisioner_id` and `worker_type` by
keyword.
"""

from __future__ import annotations

from datetime import datetime

from taskqueue_client._call import Call
from taskqueue_client._paging import Pages
from taskqueue_client.models import (
    ClaimedTask,
    ClaimedTasksPage,
    PendingTask,
    PendingTasks,
    PendingTasksPage,
    Provisioner,
    ProvisionersPage,
    TaskQueue,
    TaskQueueCounts,
    TaskQueuesPage,
    Worker,
    WorkersPage,
    WorkerSummary,
    WorkerType,
    WorkerTypesPage,
)

from . import _arguments as arguments


def list_provisioners(
    *, continuation_token: str | None = None, limit: int | None = None
) -> Call[ProvisionersPage]:
    """The provisioners whose task queues workers have asked for work lately, 1000 at most.

    Deprecated by the Queue, which neither gives nor takes a token here.

    Scopes: `queue:list-provisioners`. Safe to repeat.
    """
    query = arguments.page_query(continuation_token, limit)
    return Call("listProvisioners", "GET", "/provisioners", ProvisionersPage, query)


def iter_provisioners(*, page_size: int | None = None) -> Pages[ProvisionersPage, Provisioner]:
    """The provisioners, as far as the Queue gives them; see `list_provisioners`."""
    return Pages(list_provisioners(limit=page_size), lambda page: page.provisioners)


def get_provisioner(provisioner_id: str) -> Call[Provisioner]:
    """What is known about a provisioner. Deprecated by the Queue.

    Scopes: `queue:get-provisioner:<provisioner_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: None of its task queues is known.
    """
    path = arguments.path("provisioners", arguments.identifier("provisioner_id", provisioner_id))
    return Call("getProvisioner", "GET", path, Provisioner)


def pending_tasks(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[PendingTasks]:
    """How many tasks wait in a task queue. Deprecated by the Queue: use `task_queue_counts`.

    Scopes: `queue:pending-count:<task_queue_id>`. Safe to repeat. An unknown task queue has none.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    return Call("pendingTasks", "GET", arguments.path("pending", queue), PendingTasks)


def task_queue_counts(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[TaskQueueCounts]:
    """How many tasks of a task queue wait, and how many are claimed.

    Scopes: `queue:pending-count:<task_queue_id>` and `queue:claimed-count:<task_queue_id>`. Safe to
    repeat. An unknown task queue has none.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    return Call("taskQueueCounts", "GET", arguments.path("task-queues", queue, "counts"), TaskQueueCounts)


def list_pending_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    continuation_token: str | None = None,
    limit: int | None = None,
) -> Call[PendingTasksPage]:
    """One page of the runs that wait in a task queue, oldest first.

    Scopes: `queue:pending-list:<task_queue_id>`. Safe to repeat. Pages may overlap by a run.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    query = arguments.page_query(continuation_token, limit)
    path = arguments.path("task-queues", queue, "pending")
    return Call("listPendingTasks", "GET", path, PendingTasksPage, query)


def iter_pending_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    page_size: int | None = None,
) -> Pages[PendingTasksPage, PendingTask]:
    """The runs that wait in a task queue, page after page; see `list_pending_tasks`."""
    first = list_pending_tasks(
        task_queue_id, provisioner_id=provisioner_id, worker_type=worker_type, limit=page_size
    )
    return Pages(first, lambda page: page.tasks)


def list_claimed_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    continuation_token: str | None = None,
    limit: int | None = None,
) -> Call[ClaimedTasksPage]:
    """One page of the runs of a task queue that workers hold.

    Scopes: `queue:claimed-list:<task_queue_id>`. Safe to repeat.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    query = arguments.page_query(continuation_token, limit)
    path = arguments.path("task-queues", queue, "claimed")
    return Call("listClaimedTasks", "GET", path, ClaimedTasksPage, query)


def iter_claimed_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    page_size: int | None = None,
) -> Pages[ClaimedTasksPage, ClaimedTask]:
    """The runs of a task queue that workers hold, page after page; see `list_claimed_tasks`."""
    first = list_claimed_tasks(
        task_queue_id, provisioner_id=provisioner_id, worker_type=worker_type, limit=page_size
    )
    return Pages(first, lambda page: page.tasks)


def list_worker_types(
    provisioner_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[WorkerTypesPage]:
    """One page of the task queues of a provisioner. Deprecated by the Queue: use `list_task_queues`.

    Scopes: `queue:list-worker-types:<provisioner_id>`. Safe to repeat.

    Raises:
        InputError: The token is not one.
    """
    provisioner = arguments.identifier("provisioner_id", provisioner_id)
    query = arguments.page_query(continuation_token, limit)
    path = arguments.path("provisioners", provisioner, "worker-types")
    return Call("listWorkerTypes", "GET", path, WorkerTypesPage, query)


def iter_worker_types(
    provisioner_id: str, *, page_size: int | None = None
) -> Pages[WorkerTypesPage, WorkerType]:
    """The task queues of a provisioner, page after page; see `list_worker_types`."""
    return Pages(list_worker_types(provisioner_id, limit=page_size), lambda page: page.worker_types)


def get_worker_type(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[WorkerType]:
    """What is known about a task queue. Deprecated by the Queue: use `get_task_queue`.

    Scopes: `queue:get-worker-type:<task_queue_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: No worker has asked for work there lately.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type)
    return Call("getWorkerType", "GET", path, WorkerType)


def list_task_queues(
    *, continuation_token: str | None = None, limit: int | None = None
) -> Call[TaskQueuesPage]:
    """One page of the task queues that workers have asked for work lately.

    Scopes: `queue:list-task-queues`. Safe to repeat.

    Raises:
        InputError: The token is not one.
    """
    query = arguments.page_query(continuation_token, limit)
    return Call("listTaskQueues", "GET", "/task-queues", TaskQueuesPage, query)


def iter_task_queues(*, page_size: int | None = None) -> Pages[TaskQueuesPage, TaskQueue]:
    """The task queues, page after page; see `list_task_queues`."""
    return Pages(list_task_queues(limit=page_size), lambda page: page.task_queues)


def get_task_queue(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[TaskQueue]:
    """What is known about a task queue.

    Scopes: `queue:get-task-queue:<task_queue_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: No worker has asked for work there lately.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    return Call("getTaskQueue", "GET", arguments.path("task-queues", queue), TaskQueue)


def list_workers(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    quarantined: bool | None = None,
    continuation_token: str | None = None,
    limit: int | None = None,
) -> Call[WorkersPage]:
    """One page of the workers of a task queue. Deprecated by the Queue.

    Scopes: `queue:list-workers:<task_queue_id>`. Safe to repeat.

    Args:
        task_queue_id: The task queue; or give the old pair, as the next two.
        provisioner_id: The first part of a task queue id.
        worker_type: The second part.
        quarantined: Only workers that are in quarantine, or only those that are not.
        continuation_token: The token of the page before.
        limit: How many workers the Queue looks at for one page, 1000 at most.

    Raises:
        InputError: The token is not one.
    """
    query = arguments.page_query(continuation_token, limit)
    if quarantined is not None:
        query["quarantined"] = "true" if quarantined else "false"
    path = _of_pair(task_queue_id, provisioner_id, worker_type, "workers")
    return Call("listWorkers", "GET", path, WorkersPage, query)


def iter_workers(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    quarantined: bool | None = None,
    page_size: int | None = None,
) -> Pages[WorkersPage, WorkerSummary]:
    """The workers of a task queue, page after page; see `list_workers`."""
    first = list_workers(
        task_queue_id,
        provisioner_id=provisioner_id,
        worker_type=worker_type,
        quarantined=quarantined,
        limit=page_size,
    )
    return Pages(first, lambda page: page.workers)


def get_worker(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
) -> Call[Worker]:
    """What is known about a worker, such as its last tasks. Deprecated by the Queue.

    Scopes: `queue:get-worker:<task_queue_id>/<worker_group>/<worker_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The worker has not asked for work lately.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type, "workers", *_worker(worker_group, worker_id))
    return Call("getWorker", "GET", path, Worker)


def quarantine_worker(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    quarantine_until: datetime | str,
    quarantine_info: str | None = None,
) -> Call[Worker]:
    """Give a worker no work until some time; a time in the past lets it work again.

    Never repeated by itself: each repeat adds an entry to the worker's history.

    Scopes: `queue:quarantine-worker:<task_queue_id>/<worker_group>/<worker_id>`.

    Args:
        task_queue_id: The task queue; or give the old pair, as the next two.
        provisioner_id: The first part of a task queue id.
        worker_type: The second part.
        worker_group: The worker's group.
        worker_id: The worker.
        quarantine_until: When the quarantine ends.
        quarantine_info: Why, in at most 4000 characters.

    Raises:
        ResourceNotFound: The worker is not known.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type, "workers", *_worker(worker_group, worker_id))
    body = {"quarantineUntil": arguments.moment("quarantine_until", quarantine_until)}
    if quarantine_info is not None:
        body["quarantineInfo"] = quarantine_info
    return Call("quarantineWorker", "PUT", path, Worker, body=body)


def declare_worker(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    expires: datetime | str,
) -> Call[Worker]:
    """Tell the Queue of a worker, or that it is there for longer.

    Scopes: `queue:declare-worker:<task_queue_id>/<worker_group>/<worker_id>#expires`. Safe to repeat.

    Raises:
        InternalServerError: Also if `expires` is past.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type, *_worker(worker_group, worker_id))
    body = {"expires": arguments.moment("expires", expires)}
    return Call("declareWorker", "PUT", path, Worker, body=body)


def _of_pair(
    task_queue_id: str | None, provisioner_id: str | None, worker_type: str | None, *rest: str
) -> str:
    provisioner, worker = arguments.task_queue_pair(task_queue_id, provisioner_id, worker_type)
    return arguments.path("provisioners", provisioner, "worker-types", worker, *rest)


def _worker(worker_group: str, worker_id: str) -> tuple[str, str]:
    return (
        arguments.identifier("worker_group", worker_group),
        arguments.identifier("worker_id", worker_id),
    )
