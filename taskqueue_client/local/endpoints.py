"""Every endpoint of the queue, object and auth services: route, scopes, query and input.

Written from the services' reference, apart from the clients' own table in `calls/`: were the two one,
a wrong route would agree with itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskqueue_client.scopes import ScopeExpression

_PAGED = ("continuationToken", "limit")
_PARAMETER = re.compile(r"<(\w+)>")

ONE_SEGMENT = {"getTaskQueue", "createUpload", "finishUpload"}
"""Endpoints whose last parameter may hold slashes only as `%2F`."""


@dataclass(frozen=True)
class Endpoint:
    """One method of one service's API, version 1.

    Args:
        service: `queue`, `object` or `auth`.
        name: As in the reference, e.g. `createTask`.
        method: `GET`, `POST` or `PUT`.
        route: The path below `/api/<service>/v1`, with `<parameter>` in it.
        scopes: What a caller needs; None when credentials are not looked at.
        query: The query parameters it takes.
        schema: The schema of its body, a key of `REQUEST_SCHEMAS`; None when it takes no body.
    """

    service: str
    name: str
    method: str
    route: str
    scopes: ScopeExpression | None = None
    query: tuple[str, ...] = ()
    schema: str | None = None

    @cached_property
    def full_name(self) -> str:
        """Name with its service, e.g. `queue.createTask`."""
        return f"{self.service}.{self.name}"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the route."""
        return tuple(_PARAMETER.findall(self.route))

    @cached_property
    def is_checked_first(self) -> bool:
        """Whether the URL alone says which scopes are needed: then they are checked before anything else."""
        return self.scopes is not None and _needs(self.scopes) <= set(self.parameters)

    @cached_property
    def handler_name(self) -> str:
        """The name of the Python method that answers, e.g. `create_task`."""
        return re.sub(r"([A-Z])", lambda found: "_" + found[1].lower(), self.name)


def _needs(expression: ScopeExpression) -> set[str]:
    """The parameters that a scope expression mentions."""
    if isinstance(expression, str):
        return set(_PARAMETER.findall(expression))
    if "for" in expression:
        return {str(expression["in"])}
    (parts,) = expression.values()
    return {name for part in parts for name in _needs(part)}


def _in_group(verb: str) -> ScopeExpression:
    """Who may schedule, rerun or cancel a task: by the task, by its project, or by its scheduler."""
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


def _get(name: str, route: str, scopes: ScopeExpression, *query: str) -> Endpoint:
    return Endpoint("queue", name, "GET", route, scopes, query)


def _post(name: str, route: str, scopes: ScopeExpression, schema: str | None = None, *query: str) -> Endpoint:
    return Endpoint("queue", name, "POST", route, scopes, query, schema and f"queue/v1/{schema}")


def _put(name: str, route: str, scopes: ScopeExpression, schema: str) -> Endpoint:
    return Endpoint("queue", name, "PUT", route, scopes, (), f"queue/v1/{schema}")


def _monitoring(service: str) -> tuple[Endpoint, ...]:
    return (
        Endpoint(service, "ping", "GET", "/ping"),
        Endpoint(service, "lbheartbeat", "GET", "/__lbheartbeat__"),
        Endpoint(service, "version", "GET", "/__version__"),
        Endpoint(service, "heartbeat", "GET", "/__heartbeat__"),
    )


_QUEUE = (
    _get("task", _TASK, "queue:get-task:<taskId>"),
    _post("tasks", "/tasks", _each("taskId", "taskIds", "queue:get-task:<taskId>"), "tasks-request", *_PAGED),
    _post(
        "statuses",
        "/tasks/status",
        _each("taskId", "taskIds", "queue:status:<taskId>"),
        "tasks-request",
        *_PAGED,
    ),
    _get("status", f"{_TASK}/status", "queue:status:<taskId>"),
    _get("listDependentTasks", f"{_TASK}/dependents", "queue:list-dependent-tasks:<taskId>", *_PAGED),
    _put("createTask", _TASK, _CREATE_TASK, "create-task-request"),
    _post("scheduleTask", f"{_TASK}/schedule", _in_group("schedule")),
    _post("rerunTask", f"{_TASK}/rerun", _in_group("rerun")),
    _post("cancelTask", f"{_TASK}/cancel", _in_group("cancel")),
    _post(
        "changeTaskPriority",
        f"{_TASK}/priority",
        {
            "AnyOf": [
                "queue:change-task-priority:<taskId>",
                "queue:change-task-priority-in-queue:<taskQueueId>",
            ]
        },
        "change-task-priority-request",
    ),
    _get("listTaskGroup", f"{_GROUP}/list", "queue:list-task-group:<taskGroupId>", *_PAGED),
    _get("getTaskGroup", _GROUP, "queue:list-task-group:<taskGroupId>"),
    _post("sealTaskGroup", f"{_GROUP}/seal", "queue:seal-task-group:<schedulerId>/<taskGroupId>"),
    _post("cancelTaskGroup", f"{_GROUP}/cancel", "queue:cancel-task-group:<schedulerId>/<taskGroupId>"),
    _post(
        "changeTaskGroupPriority",
        f"{_GROUP}/priority",
        "queue:change-task-group-priority:<schedulerId>/<taskGroupId>",
        "change-task-priority-request",
    ),
    _post(
        "claimWork",
        "/claim-work/<taskQueueId>",
        {"AllOf": ["queue:claim-work:<taskQueueId>", "queue:worker-id:<workerGroup>/<workerId>"]},
        "claim-work-request",
    ),
    _post(
        "claimTask",
        f"{_RUN}/claim",
        {
            "AllOf": [
                "queue:claim-task:<provisionerId>/<workerType>",
                "queue:worker-id:<workerGroup>/<workerId>",
            ]
        },
        "task-claim-request",
    ),
    _post("reclaimTask", f"{_RUN}/reclaim", "queue:reclaim-task:<taskId>/<runId>"),
    _post("reportCompleted", f"{_RUN}/completed", "queue:resolve-task:<taskId>/<runId>"),
    _post("reportFailed", f"{_RUN}/failed", "queue:resolve-task:<taskId>/<runId>"),
    _post(
        "reportException",
        f"{_RUN}/exception",
        "queue:resolve-task:<taskId>/<runId>",
        "task-exception-request",
    ),
    _post(
        "createArtifact",
        f"{_RUN}/artifacts/<name>",
        "queue:create-artifact:<taskId>/<runId>",
        "post-artifact-request",
    ),
    _put(
        "finishArtifact",
        f"{_RUN}/artifacts/<name>",
        "queue:create-artifact:<taskId>/<runId>",
        "finish-artifact-request",
    ),
    _get("getArtifact", f"{_RUN}/artifacts/<name>", _GET_ARTIFACT),
    _get("getLatestArtifact", f"{_TASK}/artifacts/<name>", _GET_ARTIFACT),
    _get("artifact", f"{_RUN}/artifact-content/<name>", _GET_ARTIFACT),
    _get("latestArtifact", f"{_TASK}/artifact-content/<name>", _GET_ARTIFACT),
    _get("listArtifacts", f"{_RUN}/artifacts", "queue:list-artifacts:<taskId>:<runId>", *_PAGED),
    _get("listLatestArtifacts", f"{_TASK}/artifacts", "queue:list-artifacts:<taskId>", *_PAGED),
    _get("artifactInfo", f"{_RUN}/artifact-info/<name>", "queue:list-artifacts:<taskId>:<runId>"),
    _get("latestArtifactInfo", f"{_TASK}/artifact-info/<name>", "queue:list-artifacts:<taskId>"),
    _get("pendingTasks", "/pending/<taskQueueId>", "queue:pending-count:<taskQueueId>"),
    _get(
        "taskQueueCounts",
        "/task-queues/<taskQueueId>/counts",
        {"AllOf": ["queue:pending-count:<taskQueueId>", "queue:claimed-count:<taskQueueId>"]},
    ),
    _get(
        "listPendingTasks", "/task-queues/<taskQueueId>/pending", "queue:pending-list:<taskQueueId>", *_PAGED
    ),
    _get(
        "listClaimedTasks", "/task-queues/<taskQueueId>/claimed", "queue:claimed-list:<taskQueueId>", *_PAGED
    ),
    _get("listTaskQueues", "/task-queues", "queue:list-task-queues", *_PAGED),
    _get("getTaskQueue", "/task-queues/<taskQueueId>", "queue:get-task-queue:<taskQueueId>"),
    _get("listProvisioners", "/provisioners", "queue:list-provisioners", *_PAGED),
    _get("getProvisioner", "/provisioners/<provisionerId>", "queue:get-provisioner:<provisionerId>"),
    _get(
        "listWorkerTypes",
        "/provisioners/<provisionerId>/worker-types",
        "queue:list-worker-types:<provisionerId>",
        *_PAGED,
    ),
    _get("getWorkerType", _WORKER_TYPE, "queue:get-worker-type:<provisionerId>/<workerType>"),
    _get(
        "listWorkers",
        f"{_WORKER_TYPE}/workers",
        "queue:list-workers:<provisionerId>/<workerType>",
        *_PAGED,
        "quarantined",
    ),
    _get("getWorker", f"{_WORKER_TYPE}/workers/<workerGroup>/<workerId>", f"queue:get-worker:{_WORKER}"),
    _put(
        "quarantineWorker",
        f"{_WORKER_TYPE}/workers/<workerGroup>/<workerId>",
        {"AllOf": [f"queue:quarantine-worker:{_WORKER}"]},
        "quarantine-worker-request",
    ),
    _put(
        "declareWorker",
        f"{_WORKER_TYPE}/<workerGroup>/<workerId>",
        _each("property", "properties", f"queue:declare-worker:{_WORKER}#<property>"),
        "update-worker-request",
    ),
    *_monitoring("queue"),
)

_UPLOAD: ScopeExpression = "object:upload:<projectId>:<name>"
_DOWNLOAD: ScopeExpression = "object:download:<name>"

_OBJECT = (
    Endpoint(
        "object", "createUpload", "PUT", "/upload/<name>", _UPLOAD, (), "object/v1/create-upload-request"
    ),
    Endpoint(
        "object",
        "finishUpload",
        "POST",
        "/finish-upload/<name>",
        _UPLOAD,
        (),
        "object/v1/finish-upload-request",
    ),
    Endpoint(
        *("object", "startDownload", "PUT", "/start-download/<name>", _DOWNLOAD, ()),
        "object/v1/download-object-request",
    ),
    Endpoint("object", "object", "GET", "/metadata/<name>", _DOWNLOAD),
    Endpoint("object", "download", "GET", "/download/<name>", _DOWNLOAD),
    *_monitoring("object"),
)

_AUTH = (
    Endpoint(
        *("auth", "testAuthenticate", "POST", "/test-authenticate"),
        _each("scope", "requiredScopes", "<scope>"),
        schema="auth/v1/test-authenticate-request",
    ),
    Endpoint(
        *("auth", "testAuthenticateGet", "GET", "/test-authenticate-get/"),
        _each("scope", "requiredScopes", "<scope>"),
    ),
    Endpoint("auth", "currentScopes", "GET", "/scopes/current"),
    Endpoint(
        "auth", "authenticateHawk", "POST", "/authenticate-hawk", schema="auth/v1/authenticate-hawk-request"
    ),
    *_monitoring("auth"),
)

ENDPOINTS: tuple[Endpoint, ...] = (*_QUEUE, *_OBJECT, *_AUTH)
"""All endpoints. Where two routes fit a path, the one that comes first takes it."""
