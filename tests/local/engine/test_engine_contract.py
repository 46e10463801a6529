"""Responses and messages against the contract's schemas and recordings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from jsonschema import Draft6Validator
from referencing import Registry
from referencing.jsonschema import DRAFT6

from taskqueue_client.local.messages import EXCHANGE_PREFIX, EXCHANGES
from tests.local.engine.engine_world import GROUP, HOUR, QUEUE, WORKER, World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ALL = 1000
EVERYTHING = (None, ALL)


class Schemas:
    """Checks values against the schemas of a folder."""

    def __init__(self, folder: Path) -> None:
        contents = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        empty: Registry[Any] = Registry()
        self._registry = empty.with_resources(
            (schema["$id"].rstrip("#"), DRAFT6.create_resource(schema)) for schema in contents
        )

    def check(self, name: str, value: Any) -> None:
        schema = self._registry.contents(f"/schemas/queue/v1/{name}.json")
        validator: Any = Draft6Validator(schema, registry=self._registry)
        errors = validator.iter_errors(json.loads(json.dumps(value)))
        assert [error.message for error in errors] == []


@pytest.fixture(scope="module")
def schemas(contract: Path) -> Schemas:
    return Schemas(contract / "data" / "schemas")


async def lived(world: World) -> tuple[str, str]:
    """Make a group whose tasks send every message; return the ids of its first and of a blocked task."""
    group = world.create()
    blocked = world.create(taskGroupId=group, dependencies=[group])
    (claim,) = await world.claim_work()
    world.artifact(group, "public/r", "reference", contentType="a/b", url="https://x.org")
    world.artifact(group, "public/s", "s3", contentType="a/b", contentLength=3)
    world.artifact(group, "public/o", "object", contentType="a/b")
    world.artifact(group, "public/l", "link", artifact="public/r")
    world.artifact(group, "public/e", "error", reason="file-missing-on-worker", message="gone")
    assert claim["runId"] == 0
    failed = world.running(taskGroupId=group)
    world.engine.report_failed(world.caller, failed, 0)
    world.fail(world.running(taskGroupId=group), "worker-shutdown")
    world.engine.change_task_priority(world.caller, blocked, {"newPriority": "high"})
    world.engine.change_task_group_priority(world.caller, group, {"newPriority": "medium"})
    world.engine.seal_task_group(world.caller, group)
    world.engine.report_completed(world.caller, group, 0, {})
    return group, blocked


async def test_every_response_is_valid(world: World, schemas: Schemas) -> None:
    group, _ = await lived(world)
    engine, caller, check = world.engine, world.caller, schemas.check
    check("task", engine.task(group))
    check("task-status-response", engine.status(group))
    check("tasks-response", engine.tasks(caller, {"taskIds": [group]}, *EVERYTHING))
    check("tasks-statuses-response", engine.statuses(caller, {"taskIds": [group]}, *EVERYTHING))
    check("list-dependent-tasks-response", engine.list_dependent_tasks(group, *EVERYTHING))
    check("list-task-group-response", engine.list_task_group(group, None, 2))
    check("task-group-response", engine.get_task_group(group))
    check("task-group-response", engine.seal_task_group(caller, group))
    check("list-pending-tasks-response", engine.list_pending_tasks(QUEUE, None, 1))
    check("list-claimed-tasks-response", engine.list_claimed_tasks(QUEUE, *EVERYTHING))
    check("pending-tasks-response", engine.pending_tasks(QUEUE))
    check("task-queue-counts-response", engine.task_queue_counts(QUEUE))
    for each in engine.task_queue_counts_batch(caller, {"taskQueueIds": [QUEUE]})["taskQueueCounts"]:
        check("task-queue-counts-response", each)
    check("list-taskqueues-response", engine.list_task_queues(*EVERYTHING))
    check("taskqueue-response", engine.get_task_queue(QUEUE))
    check("list-provisioners-response", engine.list_provisioners(*EVERYTHING))
    check("provisioner-response", engine.get_provisioner("prov"))
    check("list-workertypes-response", engine.list_worker_types("prov", *EVERYTHING))
    check("workertype-response", engine.get_worker_type(QUEUE))
    check("list-workers-response", engine.list_workers(QUEUE, *EVERYTHING, None))
    check("worker-response", engine.get_worker(QUEUE, (GROUP, WORKER)))
    check("list-artifacts-response", engine.list_artifacts(group, 0, None, 2))
    check("artifact-response", engine.artifact_info(group, 0, "public/s"))
    for name in ("public/r", "public/s", "public/l", "public/e"):
        check("artifact-content-response", engine.artifact(caller, group, 0, name))
    body = {"newPriority": "lowest"}
    check("task-group-priority-change-response", engine.change_task_group_priority(caller, group, body))
    check("cancel-task-group-response", engine.cancel_task_group(caller, group))


async def test_every_claim_is_valid(world: World, schemas: Schemas) -> None:
    world.create()
    schemas.check("claim-work-response", {"tasks": await world.claim_work()})
    task_id = world.create()
    schemas.check("task-claim-response", world.claim(task_id))
    schemas.check("task-reclaim-response", world.engine.reclaim_task(world.caller, task_id, 0))
    requests: dict[str, dict[str, Any]] = {"s3": {}, "object": {}, "reference": {"url": "https://x.org"}}
    for storage_type, more in requests.items():
        response = world.artifact(task_id, f"public/{storage_type}", storage_type, contentType="a/b", **more)
        schemas.check("post-artifact-response", response)
    quarantine = {"quarantineUntil": world.now(HOUR)}
    worker = world.engine.quarantine_worker(world.caller, QUEUE, (GROUP, WORKER), quarantine)
    schemas.check("worker-response", worker)


async def test_every_message_is_valid_and_every_exchange_used(world: World, schemas: Schemas) -> None:
    group, _ = await lived(world)
    world.engine.cancel_task_group(world.caller, group)
    world.running()
    world.clock.advance(hours=3)
    used: set[str] = set()
    for message in world.taken():
        name = message.exchange.removeprefix(EXCHANGE_PREFIX)
        used.add(name)
        schema = "task-group-changed" if name in {"task-group-resolved", "task-group-sealed"} else name
        schemas.check(f"{schema}-message", message.body)
        assert len(message.routing_key.split(".")) == (4 if "task-group" in name else 10)
        assert message.cc == ([] if "task-group" in name else ["route.a.route"])
    assert used == set(EXCHANGES)


def shape(value: Any) -> Any:
    """The keys of a JSON value on all levels, in their order; of each list, only its first element."""
    if isinstance(value, dict):
        return [(key, shape(child)) for key, child in cast("dict[str, Any]", value).items()]
    return [shape(child) for child in cast("Sequence[Any]", value)[:1]] if isinstance(value, list) else None


async def test_messages_have_the_keys_of_the_recorded_ones_in_their_order(
    world: World, contract: Path
) -> None:
    group, _ = await lived(world)
    world.engine.cancel_task_group(world.caller, group)
    sent = {message.exchange: message for message in reversed(world.taken())}
    compared = 0
    for path in (contract / "recorded").glob("exchange.*.json"):
        recorded = json.loads(path.read_text())
        if path.name in {"exchange.task-exception.json", "exchange.artifact-created.object.json"}:
            continue  # `lived` makes no run and no artifact of their form
        ours = sent[recorded["exchange"]]
        theirs = recorded["body"]
        keys = [key for key in theirs if key != "sealed"]
        assert [key for key in ours.body if key != "sealed"] == keys, path.name
        if "status" in theirs:
            assert list(ours.body["status"]) == list(theirs["status"]), path.name
        compared += 1
    assert compared == 11


@pytest.mark.parametrize(
    ("recording", "path"),
    [
        ("task", ()),
        ("listPendingTasks", ("tasks", 0)),
        ("listClaimedTasks", ("tasks", 0)),
        ("claimTask", ()),
        ("createTask", ()),
        ("listTaskGroup.page", ()),
        ("getTaskQueue", ()),
        ("getProvisioner", ()),
        ("getWorkerType", ()),
        ("getWorker", ()),
        ("taskQueueCounts", ()),
    ],
)
def test_responses_have_the_keys_of_the_recorded_ones_in_their_order(
    world: World, contract: Path, recording: str, path: tuple[str | int, ...]
) -> None:
    tags, extra = {"kind": "example"}, {"treeherder": {"symbol": "ex"}}
    payload = {"command": ["true"], "maxRunTime": 600}
    scopes = ["example:scope:read:*"]
    more: dict[str, Any] = {"tags": tags, "extra": extra, "payload": payload, "scopes": scopes}
    task_id = world.create(**more)
    world.create(taskGroupId=task_id, **more)
    body = {"expires": world.now(HOUR)}
    declared = world.engine.declare_worker(world.caller, QUEUE, (GROUP, WORKER), body)
    assert declared["recentTasks"] == []
    claimed = world.claim(world.create(**more))
    engine = world.engine
    responses: dict[str, Any] = {
        "task": engine.task(task_id),
        "listPendingTasks": engine.list_pending_tasks(QUEUE, *EVERYTHING),
        "listClaimedTasks": engine.list_claimed_tasks(QUEUE, *EVERYTHING),
        "claimTask": claimed,
        "createTask": engine.status(task_id),
        "listTaskGroup.page": engine.list_task_group(task_id, None, 1),
        "getTaskQueue": engine.get_task_queue(QUEUE),
        "getProvisioner": engine.get_provisioner("prov"),
        "getWorkerType": engine.get_worker_type(QUEUE),
        "getWorker": engine.get_worker(QUEUE, (GROUP, WORKER)),
        "taskQueueCounts": engine.task_queue_counts(QUEUE),
    }
    recorded = json.loads((contract / "recorded" / f"{recording}.json").read_text())["response"]["body"]
    ours = responses[recording]
    for step in path:
        recorded, ours = recorded[step], ours[step]
    if recording == "listTaskGroup.page":  # the recorded task depends on another one
        recorded["tasks"][0]["task"]["dependencies"] = []
        recorded["tasks"][0]["status"]["runs"] = ours["tasks"][0]["status"]["runs"]
    assert shape(ours) == shape(recorded)
