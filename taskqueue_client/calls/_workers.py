"""Calls about task queues and their workers, the state of the services, and the identity of the caller.

Pass a task queue as its id, or as the old pair `provisioner_id` and `worker_type` by keyword.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from operator import attrgetter
from types import NoneType

from taskqueue_client import _arguments as arguments
from taskqueue_client import models
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.paging import Pages

_INFO = re.compile(r".{0,4000}", re.DOTALL)


def list_provisioners(
    *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.ProvisionersPage]:
    """Return the provisioners whose task queues workers have claimed from lately, 1000 at most.

    Deprecated by the Queue, which does not return or accept a continuation token here.

    Scopes: `queue:list-provisioners`. Safe to repeat. `limit` is the most provisioners to return.
    """
    query = arguments.page_query(continuation_token, limit)
    return Call("listProvisioners", "GET", "/provisioners", models.ProvisionersPage, query)


def iter_provisioners() -> Pages[models.ProvisionersPage, models.Provisioner]:
    """Iterate over the provisioners, 1000 at most; see `list_provisioners`."""
    return Pages(list_provisioners(), lambda page: page.provisioners, attrgetter("provisioner_id"))


def get_provisioner(provisioner_id: str) -> Call[models.Provisioner]:
    """Return a provisioner. Deprecated by the Queue.

    Scopes: `queue:get-provisioner:<provisioner_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: No task queue of the provisioner is known.
    """
    path = arguments.path("provisioners", arguments.identifier("provisioner_id", provisioner_id))
    return Call("getProvisioner", "GET", path, models.Provisioner)


def pending_tasks(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[models.PendingTasks]:
    """Return the number of pending tasks of a task queue. Deprecated by the Queue: use `task_queue_counts`.

    Scopes: `queue:pending-count:<task_queue_id>`. Safe to repeat. The count of an unknown task queue is 0.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    return Call("pendingTasks", "GET", arguments.path("pending", queue), models.PendingTasks)


def task_queue_counts(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[models.TaskQueueCounts]:
    """Return the numbers of pending and of claimed tasks of a task queue.

    Scopes: `queue:pending-count:<task_queue_id>` and `queue:claimed-count:<task_queue_id>`. Safe to
    repeat. The count of an unknown task queue is 0.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    path = arguments.path("task-queues", queue, "counts")
    return Call("taskQueueCounts", "GET", path, models.TaskQueueCounts)


def task_queue_counts_batch(task_queue_ids: Collection[str]) -> Call[models.TaskQueueCountsBatch]:
    """Return the numbers of pending and of claimed tasks of up to 1,000 task queues. Experimental.

    Scopes: `queue:pending-count:<task_queue_id>` and `queue:claimed-count:<task_queue_id>` for each id. Safe
    to repeat. Queues from before September 2026 do not have this endpoint.

    Args:
        task_queue_ids: Ids such as `proj-demo/linux`, each once. The counts come in any order.

    Raises:
        InputValidationError: There are more than 1,000 ids, or one of them twice: split longer lists.
    """
    ids = arguments.texts("task_queue_ids", task_queue_ids)
    body = {"taskQueueIds": [arguments.task_queue_id(each, None, None) for each in ids]}
    return Call("taskQueueCountsBatch", "POST", "/task-queues/counts", models.TaskQueueCountsBatch, body=body)


def list_pending_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    continuation_token: str | None = None,
    limit: int | None = None,
) -> Call[models.PendingTasksPage]:
    """Return one page of the pending runs of a task queue, oldest first.

    Scopes: `queue:pending-list:<task_queue_id>`. Safe to repeat. Pages may overlap by a few runs;
    `iter_pending_tasks` returns each run once. A page has up to `limit` items, by default and at most 1000.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    query = arguments.page_query(continuation_token, limit)
    path = arguments.path("task-queues", queue, "pending")
    return Call("listPendingTasks", "GET", path, models.PendingTasksPage, query)


def iter_pending_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    page_size: int | None = None,
) -> Pages[models.PendingTasksPage, models.PendingTask]:
    """Iterate over the pending runs of a task queue, requesting further pages; see `list_pending_tasks`."""
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    first = list_pending_tasks(queue, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.tasks, attrgetter("task_id", "run_id"))


def list_claimed_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    continuation_token: str | None = None,
    limit: int | None = None,
) -> Call[models.ClaimedTasksPage]:
    """Return one page of the claimed runs of a task queue.

    Scopes: `queue:claimed-list:<task_queue_id>`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    query = arguments.page_query(continuation_token, limit)
    path = arguments.path("task-queues", queue, "claimed")
    return Call("listClaimedTasks", "GET", path, models.ClaimedTasksPage, query)


def iter_claimed_tasks(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    page_size: int | None = None,
) -> Pages[models.ClaimedTasksPage, models.ClaimedTask]:
    """Iterate over the claimed runs of a task queue, requesting further pages; see `list_claimed_tasks`."""
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    first = list_claimed_tasks(queue, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.tasks, attrgetter("task_id", "run_id"))


def list_worker_types(
    provisioner_id: str, *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.WorkerTypesPage]:
    """Return one page of the task queues of a provisioner. Deprecated by the Queue: use `list_task_queues`.

    Scopes: `queue:list-worker-types:<provisioner_id>`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        InputError: `continuation_token` is not a token of this list.
    """
    provisioner = arguments.identifier("provisioner_id", provisioner_id)
    query = arguments.page_query(continuation_token, limit)
    path = arguments.path("provisioners", provisioner, "worker-types")
    return Call("listWorkerTypes", "GET", path, models.WorkerTypesPage, query)


def iter_worker_types(
    provisioner_id: str, *, page_size: int | None = None
) -> Pages[models.WorkerTypesPage, models.WorkerType]:
    """Iterate over the task queues of a provisioner, requesting further pages; see `list_worker_types`."""
    first = list_worker_types(provisioner_id, limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.worker_types, attrgetter("provisioner_id", "worker_type"))


def get_worker_type(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[models.WorkerType]:
    """Return a task queue. Deprecated by the Queue: use `get_task_queue`.

    Scopes: `queue:get-worker-type:<task_queue_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: No worker has claimed from the task queue lately.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type)
    return Call("getWorkerType", "GET", path, models.WorkerType)


def list_task_queues(
    *, continuation_token: str | None = None, limit: int | None = None
) -> Call[models.TaskQueuesPage]:
    """Return one page of the task queues that workers have claimed from lately.

    Scopes: `queue:list-task-queues`. Safe to repeat.
    A page has up to `limit` items, by default and at most 1000.

    Raises:
        InputError: `continuation_token` is not a token of this list.
    """
    query = arguments.page_query(continuation_token, limit)
    return Call("listTaskQueues", "GET", "/task-queues", models.TaskQueuesPage, query)


def iter_task_queues(*, page_size: int | None = None) -> Pages[models.TaskQueuesPage, models.TaskQueue]:
    """Iterate over the task queues, requesting further pages; see `list_task_queues`."""
    first = list_task_queues(limit=arguments.page_size(page_size))
    return Pages(first, lambda page: page.task_queues, attrgetter("task_queue_id"))


def get_task_queue(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[models.TaskQueue]:
    """Return a task queue.

    Scopes: `queue:get-task-queue:<task_queue_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: No worker has claimed from the task queue lately.
    """
    queue = arguments.task_queue_id(task_queue_id, provisioner_id, worker_type)
    return Call("getTaskQueue", "GET", arguments.path("task-queues", queue), models.TaskQueue)


def list_workers(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    quarantined: bool | None = None,
    continuation_token: str | None = None,
    limit: int | None = None,
) -> Call[models.WorkersPage]:
    """Return one page of the workers of a task queue. Deprecated by the Queue.

    Scopes: `queue:list-workers:<task_queue_id>`. Safe to repeat.

    Args:
        task_queue_id: The task queue; or pass the old pair, the next two arguments.
        provisioner_id: The first part of the task queue id.
        worker_type: The second part of the task queue id.
        quarantined: True for quarantined workers only, False for the others only; default: all.
        continuation_token: The token of the previous page; default: the first page.
        limit: The number of workers that the Queue reads for one page, at most 1000.

    Raises:
        InputError: `continuation_token` is not a token of this list.
    """
    query = arguments.page_query(continuation_token, limit)
    arguments.check_kind("quarantined", quarantined, bool | None)
    if quarantined is not None:
        query["quarantined"] = "true" if quarantined else "false"
    path = _of_pair(task_queue_id, provisioner_id, worker_type, "workers")
    return Call("listWorkers", "GET", path, models.WorkersPage, query)


def iter_workers(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    quarantined: bool | None = None,
    page_size: int | None = None,
) -> Pages[models.WorkersPage, models.WorkerSummary]:
    """Iterate over the workers of a task queue, requesting further pages; see `list_workers`."""
    first = list_workers(
        task_queue_id,
        provisioner_id=provisioner_id,
        worker_type=worker_type,
        quarantined=quarantined,
        limit=arguments.page_size(page_size),
    )
    return Pages(first, lambda page: page.workers, attrgetter("worker_group", "worker_id"))


def get_worker(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
) -> Call[models.Worker]:
    """Return a worker, with its last tasks. Deprecated by the Queue.

    Scopes: `queue:get-worker:<task_queue_id>/<worker_group>/<worker_id>`. Safe to repeat.

    Raises:
        ResourceNotFound: The worker has not claimed lately.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type, "workers", *_worker(worker_group, worker_id))
    return Call("getWorker", "GET", path, models.Worker)


def quarantine_worker(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    quarantine_until: datetime | str,
    quarantine_info: str | None = None,
) -> Call[models.Worker]:
    """Quarantine a worker until a time: it is given no tasks. A time in the past ends the quarantine.

    Never retried automatically: each repeat adds an entry to the worker's history.

    Scopes: `queue:quarantine-worker:<task_queue_id>/<worker_group>/<worker_id>`.

    Args:
        task_queue_id: The task queue; or pass the old pair, the next two arguments.
        provisioner_id: The first part of the task queue id.
        worker_type: The second part of the task queue id.
        worker_group: The worker's group.
        worker_id: The worker's id.
        quarantine_until: When the quarantine ends.
        quarantine_info: The reason, at most 4000 characters.

    Raises:
        ResourceNotFound: The worker is not known.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type, "workers", *_worker(worker_group, worker_id))
    body = {"quarantineUntil": arguments.moment("quarantine_until", quarantine_until)}
    if quarantine_info is not None:
        allowed = "a str of at most 4000 characters"
        body["quarantineInfo"] = arguments.text("quarantine_info", quarantine_info, _INFO, allowed)
    return Call("quarantineWorker", "PUT", path, models.Worker, body=body)


def declare_worker(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    expires: datetime | str,
) -> Call[models.Worker]:
    """Declare a worker to the Queue, or extend its `expires`.

    Scopes: `queue:declare-worker:<task_queue_id>/<worker_group>/<worker_id>#expires`. Safe to repeat.

    Raises:
        InternalServerError: `expires` may be in the past.
    """
    path = _of_pair(task_queue_id, provisioner_id, worker_type, *_worker(worker_group, worker_id))
    body = {"expires": arguments.moment("expires", expires)}
    return Call("declareWorker", "PUT", path, models.Worker, body=body)


def _of_pair(
    task_queue_id: str | None, provisioner_id: str | None, worker_type: str | None, *rest: str
) -> str:
    provisioner, worker = arguments.task_queue_pair(task_queue_id, provisioner_id, worker_type)
    return arguments.path("provisioners", provisioner, "worker-types", worker, *rest)


def _worker(worker_group: str, worker_id: str) -> tuple[str, str]:
    return (arguments.identifier("worker_group", worker_group), arguments.identifier("worker_id", worker_id))


def ping() -> Call[models.Ping]:
    """Check that the Queue responds, and return its uptime."""
    return Call("ping", "GET", "/ping", models.Ping)


def lbheartbeat() -> Call[None]:
    """Check that the Queue responds; for load balancers."""
    return Call("lbheartbeat", "GET", "/__lbheartbeat__", NoneType)


def version() -> Call[models.Version]:
    """Return the version of the Queue that is deployed."""
    return Call("version", "GET", "/__version__", models.Version)


def heartbeat() -> Call[None]:
    """Check that the Queue responds; its database and other services are not checked."""
    return Call("heartbeat", "GET", "/__heartbeat__", NoneType)


def current_scopes() -> Call[models.ScopeSet]:
    """Return the scopes of the client's credentials, with roles expanded.

    Scopes: `auth:current-scopes`. Safe to repeat.
    """
    return Call("auth.currentScopes", "GET", "/scopes/current", models.ScopeSet, service="auth")


def test_authenticate(
    *, client_scopes: Collection[str], required_scopes: Collection[str]
) -> Call[models.Authentication]:
    """Test the signing of requests, with the client id `tester` and the access token `no-secret`.

    Safe to repeat.

    Args:
        client_scopes: The scopes that `tester` has for this call.
        required_scopes: The scopes that this call requires.

    Raises:
        AuthenticationFailed: The signature is not valid.
        InsufficientScopes: The credentials do not have the required scopes.
    """
    body = {
        "clientScopes": arguments.texts("client_scopes", client_scopes),
        "requiredScopes": arguments.texts("required_scopes", required_scopes),
    }
    path = "/test-authenticate"
    return Call("auth.testAuthenticate", "POST", path, models.Authentication, body=body, service="auth")


def test_authenticate_get() -> Call[models.Authentication]:
    """Test the signing of a GET request or of a signed URL, as `test_authenticate` does.

    `tester` has the scopes `test:*` and `auth:create-client:test:*`; the call requires
    `test:authenticate-get`. Safe to repeat.

    Raises:
        AuthenticationFailed: The signature is not valid.
        InsufficientScopes: The credentials do not have the required scope.
    """
    path = "/test-authenticate-get/"
    return Call("auth.testAuthenticateGet", "GET", path, models.Authentication, service="auth")
