"""The contract's references, schemas and recordings, and how a call is made from values by name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import taskcluster  # pyright: ignore[reportMissingTypeStubs] # it has none
from referencing import Registry
from referencing.jsonschema import DRAFT6

from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.definitions import task_definition

official: Any = taskcluster
"""The official client, which is the oracle."""

CONTRACT = Path(__file__).parents[3] / "shared" / "contract"

needs_contract = pytest.mark.skipif(
    not CONTRACT.is_dir(), reason="the measured contract of the Queue is not beside this checkout"
)

OBJECT_FUNCTIONS = {
    "createUpload": "create_upload",
    "finishUpload": "finish_upload",
    "startDownload": "start_download",
    "object": "object_metadata",
    "download": "download_object",
}
"""The endpoints of the object service that uploads and downloads need."""


SLUGID = "fN1SbArXTPSVFNUvaOlinQ"
VALUES: dict[str, Any] = {
    "task_id": SLUGID,
    "task_ids": [SLUGID],
    "task_queue_ids": ["My_provisioner-1/worker-type"],
    "task_group_id": SLUGID,
    "run_id": 0,
    "name": "public/a b%2F?'#&=~.log",
    "provisioner_id": "My_provisioner-1",
    "worker_type": "worker-type",
    "worker_group": "Group_1",
    "worker_id": "i-0123",
    "tasks": 32,
    "continuation_token": "a+b/c==&?",
    "limit": 0,
    "quarantined": True,
    "definition": task_definition("p/w", {}, name="n", owner="o", source="https://example.com"),
    "new_priority": "very-high",
    "reason": "worker-shutdown",
    "request": {"storageType": "link", "expires": "2026-11-21T09:20:53.649Z", "artifact": "x"},
    "upload_id": SLUGID,
    "project_id": "none",
    "expires": datetime(2026, 11, 21, 9, 20, 53, 649999, tzinfo=UTC),
    "quarantine_until": "2026-11-21 09:20:53z",
    "quarantine_info": "disk is full",
    "hashes": {"sha256": "0" * 64},
    "proposed_upload_methods": {"putUrl": {"contentType": "text/plain", "contentLength": 3}},
    "accept_download_methods": {"simple": True},
    "client_scopes": ["a"],
    "required_scopes": [],
}
BY_ID: dict[str, Any] = {**VALUES, "task_queue_id": "My_provisioner-1/worker-type"}
"""A value for every argument, by its name; the task queue as the old pair, and by its id."""


def _entries(service: str) -> list[dict[str, Any]]:
    reference = CONTRACT / "data" / service / "api.json"
    entries: list[Any] = json.loads(reference.read_text())["entries"] if reference.is_file() else []
    return [{**entry, "service": service or "queue"} for entry in entries]


QUEUE_ENTRIES = _entries("")
OBJECT_ENTRIES = [entry for entry in _entries("object") if entry["name"] in OBJECT_FUNCTIONS]
ENTRIES = QUEUE_ENTRIES + OBJECT_ENTRIES


def label(entry: Mapping[str, Any]) -> str:
    """The endpoint's name, as in `Call.endpoint`."""
    return str(entry["name"]) if entry["service"] == "queue" else f"{entry['service']}.{entry['name']}"


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def function_of(entry: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that declares an endpoint."""
    name = str(entry["name"])
    found: Callable[..., Any] = getattr(
        calls, OBJECT_FUNCTIONS[name] if entry["service"] == "object" else snake(name)
    )
    return found


def call_with(function: Callable[..., Any], values: Mapping[str, Any]) -> Call[Any]:
    """Return the (first) call of a function, given the values of its parameters by name.

    A task queue is given by its id if the function has a parameter for it, else by the pair.
    """
    names = set(inspect.signature(function).parameters) & values.keys()
    if "task_queue_id" in names:
        names -= {"provisioner_id", "worker_type"}
    described: Any = function(**{name: values[name] for name in names})
    call: Call[Any] = described if hasattr(described, "endpoint") else next(described)
    return call


def schema_id(file: str) -> str:
    """The id of a schema by the name that the references have for it, such as `v1/task.json#`."""
    return str(_schema(file)["$id"]).removesuffix("#")


def _schema(file: str) -> Any:
    name = file.removeprefix("v1/").removesuffix("#")
    folders = (CONTRACT / "data" / "schemas", CONTRACT / "data" / "object" / "schemas")
    path = next(path for folder in folders if (path := folder / name).is_file())
    return json.loads(path.read_text())


def _registry() -> Registry[Any]:
    """All schemas. A pattern's `$` is the end of the text in JavaScript, which Python writes as `\\Z`."""
    files = sorted((CONTRACT / "data").rglob("schemas/*.json"))
    schemas = [json.loads(path.read_text().replace('$"', r'\\Z"')) for path in files]
    resources = [(each["$id"].removesuffix("#"), DRAFT6.create_resource(each)) for each in schemas]
    return Registry[Any]().with_resources(resources)


REGISTRY = _registry()


def validator(file: str, **options: Any) -> Any:
    """Return a validator for a schema of the contract."""
    return jsonschema.Draft6Validator({"$ref": schema_id(file)}, registry=REGISTRY, **options)


def recorded(pattern: str = "*") -> list[tuple[str, dict[str, Any]]]:
    """The recordings of calls and their responses, with the names of their files."""
    files = sorted((CONTRACT / "recorded").glob(f"{pattern}.json"))
    calls_only = [path for path in files if not path.name.startswith(("error.", "exchange."))]
    return [(path.stem, json.loads(path.read_text())) for path in calls_only]
