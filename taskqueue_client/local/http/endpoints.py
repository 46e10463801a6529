"""Every endpoint of the queue, object and auth services: route, scopes, query, input and handler.

Written from the services' reference, apart from the clients' own table in `calls/`: were the two one,
a wrong route would agree with itself.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.auth.auth_service import AuthService
from taskqueue_client.local.engine import (
    claims_and_reports,
    creation,
    scheduling,
    task_artifacts,
    task_queues,
    task_records,
    worker_records,
)
from taskqueue_client.local.storage.objects import ObjectService

if TYPE_CHECKING:
    from taskqueue_client.scopes import ScopeExpression


LEGACY = "legacy"
"""The service of endpoints that were removed before the Queue's URLs began with `/api/queue`."""

_PARAMETER = re.compile(r"<(\w+)>")
_STARTED = time.monotonic()


def ping(_service: object) -> dict[str, Any]:
    """Return that the service is alive, and for how many seconds."""
    return {"alive": True, "uptime": time.monotonic() - _STARTED}


def heartbeat(_service: object) -> dict[str, Any]:
    """Return an empty object: the response itself is the heartbeat."""
    return {}


def lbheartbeat(_service: object) -> dict[str, Any]:
    """Return the same, for load balancers."""
    return {}


def version(_service: object) -> dict[str, str]:
    """Return what a source checkout of the service returns."""
    return {"version": "dev", "commit": "", "source": "", "build": ""}


def camel_case(name: str) -> str:
    """Return a name in the spelling of the services, such as `taskId` for `task_id`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


Handler = Callable[..., Any]
"""A function of the service's own object and of whatever its further parameters name (see `api`)."""


@dataclass(frozen=True)
class Endpoint:
    """One method of one service's API, version 1.

    Args:
        service: `queue`, `object` or `auth`; or `legacy`, whose endpoints are below `/v1`.
        method: `GET`, `POST` or `PUT`.
        route: The path below `/api/<service>/v1`, with `<parameter>` in it.
        handler: The function or method that handles a call, named like the endpoint in snake_case.
        scopes: The scopes that a caller needs; None if credentials are not checked.
        query: The query parameters it takes.
        schema: The schema of its body, a key of `REQUEST_SCHEMAS`; None if it takes no body.
        one_segment: Whether its last parameter may contain slashes only as `%2F`.
        tester_scopes: For an endpoint that tries out a signer: the scopes that its client `tester` has,
            from the body.
    """

    service: str
    method: str
    route: str
    handler: Handler
    scopes: ScopeExpression | None = None
    query: tuple[str, ...] = ()
    schema: str | None = None
    one_segment: bool = False
    tester_scopes: Callable[[Any], Sequence[str]] | None = None

    @cached_property
    def name(self) -> str:
        """As in the reference, e.g. `createTask`."""
        return camel_case(self.handler.__name__)

    @cached_property
    def full_name(self) -> str:
        """Name with its service, e.g. `queue.createTask`."""
        return f"{self.service}.{self.name}"

    @cached_property
    def base(self) -> str:
        """The path that the route is below."""
        return "/v1" if self.service == LEGACY else f"/api/{self.service}/v1"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the route."""
        return tuple(_PARAMETER.findall(self.route))

    @cached_property
    def is_checked_first(self) -> bool:
        """Whether the URL alone says which scopes are needed: then they are checked before anything else."""
        return self.scopes is not None and _needs(self.scopes) <= set(self.parameters)

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the handler's parameters after the first one."""
        return tuple(inspect.signature(self.handler).parameters)[1:]


def _needs(expression: ScopeExpression) -> set[str]:
    """Return the parameters that a scope expression mentions."""
    if isinstance(expression, str):
        return set(_PARAMETER.findall(expression))
    if "for" in expression:
        return {str(expression["in"])}
    (parts,) = expression.values()
    return {name for part in parts for name in _needs(part)}


def heartbeats(service: str) -> tuple[Endpoint, ...]:
    """Return the endpoints that tell whether a service is there."""
    return (
        Endpoint(service, "GET", "/ping", ping),
        Endpoint(service, "GET", "/__lbheartbeat__", lbheartbeat),
        Endpoint(service, "GET", "/__version__", version),
        Endpoint(service, "GET", "/__heartbeat__", heartbeat),
    )


_PAGED = ("continuationToken", "limit")


def _in_group(verb: str) -> ScopeExpression:
    """Return the scopes for a verb on a task: by the task, by its project, or by its scheduler."""
    return {
        "AnyOf": [
            f"queue:{verb}-task:<schedulerId>/<taskGroupId>/<taskId>",
            f"queue:{verb}-task-in-project:<projectId>",
            {"AllOf": [f"queue:{verb}-task", "assume:scheduler-id:<schedulerId>/<taskGroupId>"]},
        ]
    }


def _each(variable: str, names: str, scope: str) -> ScopeExpression:
    return {"AllOf": [{"for": variable, "in": names, "each": scope}]}


_GET_ARTIFACT = _each("name", "names", "queue:get-artifact:<name>")
_CREATE_TASK: ScopeExpression = {
    "AllOf": [
        {"for": "scope", "in": "scopes", "each": "<scope>"},
        {"for": "route", "in": "routes", "each": "queue:route:<route>"},
        "queue:create-task:project:<projectId>",
        "queue:scheduler-id:<schedulerId>",
        {
            "AnyOf": [
                {
                    "for": "priority",
                    "in": "priorities",
                    "each": "queue:create-task:<priority>:<provisionerId>/<workerType>",
                }
            ]
        },
    ]
}

_TASK = "/task/<taskId>"
_RUN = "/task/<taskId>/runs/<runId>"
_GROUP = "/task-group/<taskGroupId>"
_WORKER_TYPE = "/provisioners/<provisionerId>/worker-types/<workerType>"
_WORKER = "<provisionerId>/<workerType>/<workerGroup>/<workerId>"


def _get(route: str, handler: Handler, scopes: ScopeExpression, *query: str) -> Endpoint:
    return Endpoint("queue", "GET", route, handler, scopes, query)


def _post(
    route: str, handler: Handler, scopes: ScopeExpression, schema: str | None = None, *query: str
) -> Endpoint:
    return Endpoint("queue", "POST", route, handler, scopes, query, schema and f"queue/v1/{schema}")


def _put(route: str, handler: Handler, scopes: ScopeExpression, schema: str) -> Endpoint:
    return Endpoint("queue", "PUT", route, handler, scopes, (), f"queue/v1/{schema}")


_QUEUE = (
    _get(_TASK, task_records.task, "queue:get-task:<taskId>"),
    _post(
        "/tasks",
        task_records.tasks,
        _each("taskId", "taskIds", "queue:get-task:<taskId>"),
        "tasks-request",
        *_PAGED,
    ),
    _post(
        "/tasks/status",
        task_records.statuses,
        _each("taskId", "taskIds", "queue:status:<taskId>"),
        "tasks-request",
        *_PAGED,
    ),
    _get(f"{_TASK}/status", task_records.status, "queue:status:<taskId>"),
    _get(
        f"{_TASK}/dependents",
        task_records.list_dependent_tasks,
        "queue:list-dependent-tasks:<taskId>",
        *_PAGED,
    ),
    _put(_TASK, creation.create_task, _CREATE_TASK, "create-task-request"),
    _post(f"{_TASK}/schedule", scheduling.schedule_task, _in_group("schedule")),
    _post(f"{_TASK}/rerun", scheduling.rerun_task, _in_group("rerun")),
    _post(f"{_TASK}/cancel", scheduling.cancel_task, _in_group("cancel")),
    _post(
        f"{_TASK}/priority",
        scheduling.change_task_priority,
        {
            "AnyOf": [
                "queue:change-task-priority:<taskId>",
                "queue:change-task-priority-in-queue:<taskQueueId>",
            ]
        },
        "change-task-priority-request",
    ),
    _get(f"{_GROUP}/list", scheduling.list_task_group, "queue:list-task-group:<taskGroupId>", *_PAGED),
    _get(_GROUP, scheduling.get_task_group, "queue:list-task-group:<taskGroupId>"),
    _post(f"{_GROUP}/seal", scheduling.seal_task_group, "queue:seal-task-group:<schedulerId>/<taskGroupId>"),
    _post(
        f"{_GROUP}/cancel",
        scheduling.cancel_task_group,
        "queue:cancel-task-group:<schedulerId>/<taskGroupId>",
    ),
    _post(
        f"{_GROUP}/priority",
        scheduling.change_task_group_priority,
        "queue:change-task-group-priority:<schedulerId>/<taskGroupId>",
        "change-task-priority-request",
    ),
    _post(
        "/claim-work/<taskQueueId>",
        claims_and_reports.claim_work,
        {"AllOf": ["queue:claim-work:<taskQueueId>", "queue:worker-id:<workerGroup>/<workerId>"]},
        "claim-work-request",
    ),
    _post(
        f"{_RUN}/claim",
        claims_and_reports.claim_task,
        {
            "AllOf": [
                "queue:claim-task:<provisionerId>/<workerType>",
                "queue:worker-id:<workerGroup>/<workerId>",
            ]
        },
        "task-claim-request",
    ),
    _post(f"{_RUN}/reclaim", claims_and_reports.reclaim_task, "queue:reclaim-task:<taskId>/<runId>"),
    _post(f"{_RUN}/completed", claims_and_reports.report_completed, "queue:resolve-task:<taskId>/<runId>"),
    _post(f"{_RUN}/failed", claims_and_reports.report_failed, "queue:resolve-task:<taskId>/<runId>"),
    _post(
        f"{_RUN}/exception",
        claims_and_reports.report_exception,
        "queue:resolve-task:<taskId>/<runId>",
        "task-exception-request",
    ),
    _post(
        f"{_RUN}/artifacts/<name>",
        task_artifacts.create_artifact,
        "queue:create-artifact:<taskId>/<runId>",
        "post-artifact-request",
    ),
    _put(
        f"{_RUN}/artifacts/<name>",
        task_artifacts.finish_artifact,
        "queue:create-artifact:<taskId>/<runId>",
        "finish-artifact-request",
    ),
    _get(f"{_RUN}/artifacts/<name>", task_artifacts.get_artifact, _GET_ARTIFACT),
    _get(f"{_TASK}/artifacts/<name>", task_artifacts.get_latest_artifact, _GET_ARTIFACT),
    _get(f"{_RUN}/artifact-content/<name>", task_artifacts.artifact, _GET_ARTIFACT),
    _get(f"{_TASK}/artifact-content/<name>", task_artifacts.latest_artifact, _GET_ARTIFACT),
    _get(
        f"{_RUN}/artifacts", task_artifacts.list_artifacts, "queue:list-artifacts:<taskId>:<runId>", *_PAGED
    ),
    _get(
        f"{_TASK}/artifacts", task_artifacts.list_latest_artifacts, "queue:list-artifacts:<taskId>", *_PAGED
    ),
    _get(
        f"{_RUN}/artifact-info/<name>", task_artifacts.artifact_info, "queue:list-artifacts:<taskId>:<runId>"
    ),
    _get(
        f"{_TASK}/artifact-info/<name>", task_artifacts.latest_artifact_info, "queue:list-artifacts:<taskId>"
    ),
    _get("/pending/<taskQueueId>", task_queues.pending_tasks, "queue:pending-count:<taskQueueId>"),
    _get(
        "/task-queues/<taskQueueId>/counts",
        task_queues.task_queue_counts,
        {"AllOf": ["queue:pending-count:<taskQueueId>", "queue:claimed-count:<taskQueueId>"]},
    ),
    _get(
        "/task-queues/<taskQueueId>/pending",
        task_queues.list_pending_tasks,
        "queue:pending-list:<taskQueueId>",
        *_PAGED,
    ),
    _get(
        "/task-queues/<taskQueueId>/claimed",
        task_queues.list_claimed_tasks,
        "queue:claimed-list:<taskQueueId>",
        *_PAGED,
    ),
    _get("/task-queues", task_queues.list_task_queues, "queue:list-task-queues", *_PAGED),
    Endpoint(
        *("queue", "GET", "/task-queues/<taskQueueId>", task_queues.get_task_queue),
        "queue:get-task-queue:<taskQueueId>",
        one_segment=True,
    ),
    _get("/provisioners", task_queues.list_provisioners, "queue:list-provisioners", *_PAGED),
    _get(
        "/provisioners/<provisionerId>", task_queues.get_provisioner, "queue:get-provisioner:<provisionerId>"
    ),
    _get(
        "/provisioners/<provisionerId>/worker-types",
        task_queues.list_worker_types,
        "queue:list-worker-types:<provisionerId>",
        *_PAGED,
    ),
    _get(_WORKER_TYPE, task_queues.get_worker_type, "queue:get-worker-type:<provisionerId>/<workerType>"),
    _get(
        f"{_WORKER_TYPE}/workers",
        worker_records.list_workers,
        "queue:list-workers:<provisionerId>/<workerType>",
        *_PAGED,
        "quarantined",
    ),
    _get(
        f"{_WORKER_TYPE}/workers/<workerGroup>/<workerId>",
        worker_records.get_worker,
        f"queue:get-worker:{_WORKER}",
    ),
    _put(
        f"{_WORKER_TYPE}/workers/<workerGroup>/<workerId>",
        worker_records.quarantine_worker,
        {"AllOf": [f"queue:quarantine-worker:{_WORKER}"]},
        "quarantine-worker-request",
    ),
    _put(
        f"{_WORKER_TYPE}/<workerGroup>/<workerId>",
        worker_records.declare_worker,
        _each("property", "properties", f"queue:declare-worker:{_WORKER}#<property>"),
        "update-worker-request",
    ),
    *heartbeats("queue"),
)

_UPLOAD: ScopeExpression = "object:upload:<projectId>:<name>"
_DOWNLOAD: ScopeExpression = "object:download:<name>"

_OBJECT = (
    Endpoint(
        *("object", "PUT", "/upload/<name>", ObjectService.create_upload, _UPLOAD),
        schema="object/v1/create-upload-request",
        one_segment=True,
    ),
    Endpoint(
        *("object", "POST", "/finish-upload/<name>", ObjectService.finish_upload, _UPLOAD),
        schema="object/v1/finish-upload-request",
        one_segment=True,
    ),
    Endpoint(
        *("object", "PUT", "/start-download/<name>", ObjectService.start_download),
        _DOWNLOAD,
        schema="object/v1/download-object-request",
    ),
    Endpoint("object", "GET", "/metadata/<name>", ObjectService.object, _DOWNLOAD),
    Endpoint("object", "GET", "/download/<name>", ObjectService.download, _DOWNLOAD),
    *heartbeats("object"),
)

_AUTH = (
    Endpoint(
        *("auth", "POST", "/test-authenticate", AuthService.test_authenticate),
        _each("scope", "requiredScopes", "<scope>"),
        schema="auth/v1/test-authenticate-request",
        tester_scopes=itemgetter("clientScopes"),
    ),
    Endpoint(
        *("auth", "GET", "/test-authenticate-get/", AuthService.test_authenticate_get),
        _each("scope", "requiredScopes", "<scope>"),
        tester_scopes=lambda _: ("test:*", "auth:create-client:test:*"),
    ),
    Endpoint("auth", "GET", "/scopes/current", AuthService.current_scopes, "auth:current-scopes"),
    Endpoint("auth", "GET", "/clients/<clientId>", AuthService.client, "auth:get-client:<clientId>"),
    Endpoint(
        *("auth", "POST", "/authenticate-hawk", AuthService.authenticate_hawk),
        schema="auth/v1/authenticate-hawk-request",
    ),
    *heartbeats("auth"),
)

ENDPOINTS: tuple[Endpoint, ...] = (*_QUEUE, *_OBJECT, *_AUTH)
"""All endpoints. Where two routes fit a path, the one that comes first takes it."""
