"""JSON schemas of the request bodies of each endpoint.

The limits are those of the services' reference; the order of the properties is the order in which
defaults appear in `requestInfo.payload` and in which violations are listed.
"""

from __future__ import annotations

from typing import Any

SLUGID = "^[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]$"
_SCOPE: dict[str, Any] = {"type": "string", "pattern": "^[ -~]*$"}
_DATE: dict[str, Any] = {"type": "string", "format": "date-time"}
_URI: dict[str, Any] = {"type": "string", "format": "uri"}
_TEXT: dict[str, Any] = {"type": "string"}
_ID: dict[str, Any] = {"type": "string", "pattern": SLUGID}
_PRIORITIES = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"]


def _closed(required: list[str], /, **properties: dict[str, Any]) -> dict[str, Any]:
    """Return an object with these properties and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": required}


def _full(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return an object with these properties, all of them required, and no others."""
    return _closed([*properties], **properties)


def _name(pattern: str, longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest, "pattern": pattern}


def _text(longest: int, **more: object) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **more}


def _whole(least: int, **more: object) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, **more}


def _list(items: dict[str, Any], **limits: object) -> dict[str, Any]:
    return {"type": "array", "default": [], "items": items, **limits}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_IDENTIFIER = _name("^([a-zA-Z0-9-_]*)$", 38)
_PROJECT_ID = _name("^([a-zA-Z0-9._/-]*)$", 500)
_WORKER = {"workerGroup": _IDENTIFIER, "workerId": _IDENTIFIER}

_METADATA = _full(
    name=_text(255),
    description=_text(32768),
    owner=_text(255),
    source=_text(4096, pattern="^(https?://|ssh://|git@)", anyOf=[{"format": "uri"}, {"format": "regex"}]),
)

_TASK_QUEUE_ID = {"type": "string", "pattern": "^[a-zA-Z0-9-_]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?$"}

_CREATE_TASK = _closed(
    ["created", "deadline", "payload", "metadata"],
    provisionerId={"type": "string", "pattern": "^[a-zA-Z0-9-_]{1,38}$"},
    workerType={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,36}[a-z0-9])?$"},
    taskQueueId=_TASK_QUEUE_ID,
    schedulerId={**_IDENTIFIER, "default": "-"},
    projectId={**_PROJECT_ID, "default": "none"},
    taskGroupId=_ID,
    dependencies=_list(_ID, maxItems=10000, uniqueItems=True),
    requires={**_one_of("all-completed", "all-resolved"), "default": "all-completed"},
    routes=_list(_text(249, minLength=1), maxItems=64, uniqueItems=True),
    priority={**_one_of(*_PRIORITIES), "default": "lowest"},
    retries=_whole(0, maximum=49, default=5),
    created=_DATE,
    deadline=_DATE,
    expires=_DATE,
    scopes=_list(_SCOPE),
    payload={"type": "object", "default": []},
    metadata=_METADATA,
    tags={"type": "object", "default": {}, "additionalProperties": _text(4096)},
    extra={"type": "object", "default": {}},
)

_CONTENT = {"contentType": _text(255), "contentLength": _whole(0)}


def _artifact(storage_type: str, required: list[str], /, **properties: dict[str, Any]) -> dict[str, Any]:
    required = ["storageType", "expires", *required]
    return _closed(required, storageType=_one_of(storage_type), expires=_DATE, **properties)


_REASONS = (
    "file-missing-on-worker",
    "invalid-resource-on-worker",
    "too-large-file-on-worker",
    "file-not-readable-on-worker",
)
_POST_ARTIFACT = {
    "oneOf": [
        _artifact("s3", ["contentType"], **_CONTENT),
        _artifact("object", ["contentType"], **_CONTENT),
        _artifact("reference", ["url", "contentType"], url=_URI, contentType=_text(255)),
        _artifact("link", ["artifact"], artifact=_TEXT, contentType=_text(255)),
        _artifact("error", ["reason", "message"], reason=_one_of(*_REASONS), message=_text(4096)),
    ]
}

_HASHES = {
    "type": "object",
    "properties": {
        "sha256": {"type": "string", "pattern": "^[a-z0-9]{64}$"},
        "sha512": {"type": "string", "pattern": "^[a-z0-9]{128}$"},
    },
}
_TRUE = {"type": "boolean", "const": True}
_SCOPES = _list(_SCOPE, uniqueItems=True)

REQUEST_SCHEMAS: dict[str, dict[str, Any]] = {
    "queue/v1/create-task-request": _CREATE_TASK,
    "queue/v1/tasks-request": _closed([], taskIds=_list(_TEXT)),
    "queue/v1/task-queue-counts-request": _full(
        taskQueueIds={"type": "array", "items": _TASK_QUEUE_ID, "maxItems": 1000, "uniqueItems": True},
    ),
    "queue/v1/change-task-priority-request": _full(newPriority=_one_of(*_PRIORITIES)),
    "queue/v1/claim-work-request": _closed(
        ["workerGroup", "workerId", "tasks"], tasks=_whole(1, maximum=32, default=1), **_WORKER
    ),
    "legacy/v1/claim-work-request": _closed(["workerGroup", "workerId"], **_WORKER, xmlMessage=_TEXT),
    "queue/v1/task-claim-request": _full(**_WORKER),
    "queue/v1/task-exception-request": _full(
        reason=_one_of(
            *("worker-shutdown", "malformed-payload", "resource-unavailable"),
            *("internal-error", "intermittent-task"),
        ),
    ),
    "queue/v1/post-artifact-request": _POST_ARTIFACT,
    "queue/v1/finish-artifact-request": _full(uploadId=_ID),
    "queue/v1/quarantine-worker-request": _closed(
        ["quarantineUntil"], quarantineUntil=_DATE, quarantineInfo=_text(4000)
    ),
    "queue/v1/update-worker-request": _full(expires=_DATE),
    "object/v1/create-upload-request": _closed(
        ["projectId", "uploadId", "expires", "proposedUploadMethods"],
        projectId=_PROJECT_ID,
        uploadId=_ID,
        expires=_DATE,
        hashes=_HASHES,
        proposedUploadMethods=_closed(
            [],
            dataInline=_full(contentType=_TEXT, objectData=_text(10926)),
            putUrl=_full(contentType=_TEXT, contentLength={"type": "integer"}),
        ),
    ),
    "object/v1/finish-upload-request": _closed(
        ["uploadId", "projectId"], projectId=_PROJECT_ID, uploadId=_ID, hashes=_HASHES
    ),
    "object/v1/download-object-request": _full(acceptDownloadMethods=_closed([], getUrl=_TRUE, simple=_TRUE)),
    "auth/v1/test-authenticate-request": _full(clientScopes=_SCOPES, requiredScopes=_SCOPES),
    "auth/v1/authenticate-hawk-request": _closed(
        ["method", "resource", "host", "port"],
        method=_one_of(
            *("get", "post", "put", "head", "delete", "options", "trace", "copy", "lock", "mkcol", "move"),
            *("purge", "propfind", "proppatch", "unlock", "report", "mkactivity", "checkout", "merge"),
            *("m-search", "notify", "subscribe", "unsubscribe", "patch", "search", "connect"),
        ),
        resource=_TEXT,
        host={"type": "string", "format": "hostname"},
        port=_whole(0, maximum=65535),
        authorization=_TEXT,
        sourceIp={**_TEXT, "oneOf": [{**_TEXT, "format": "ipv6"}, {**_TEXT, "format": "ipv4"}]},
    ),
}
"""Schemas by `<service>/<version>/<name>`, the middle part of the schema's address."""
