"""Changes an engine on a file until the process is killed, and prints a line before and after each change.

Run as `crash_driver.py FILE`. Lines are `{"doing": taskId}` and `{"done": taskId, "seen": …}`, where
`seen` is the task's status and the names of its artifacts after the change.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import TYPE_CHECKING, Any

from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, QUEUE, WORKER, World

if TYPE_CHECKING:
    from collections.abc import Callable


def seen(world: World, task_id: str) -> dict[str, Any]:
    """Return what the test compares after the crash: status and artifacts of a task."""
    artifacts = world.engine.list_artifacts(task_id, 0, None, 1000)["artifacts"]
    return {"status": world.status(task_id), "artifacts": [artifact["name"] for artifact in artifacts]}


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def do(world: World, task_id: str, change: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    say(doing=task_id)
    change(*args, **kwargs)
    say(done=task_id, seen=seen(world, task_id))


async def claim_all(world: World) -> list[tuple[str, int]]:
    """Claim all pending tasks; the lines `doing` name each task that the claim may change."""
    for entry in world.engine.list_pending_tasks(QUEUE, None, 32)["tasks"]:
        say(doing=entry["taskId"])
    body = {"workerGroup": GROUP, "workerId": WORKER, "tasks": 32}
    claims = (await world.engine.claim_work(world.caller, QUEUE, body))["tasks"]
    for claim in claims:
        task_id = claim["status"]["taskId"]
        say(done=task_id, seen=seen(world, task_id))
    return [(claim["status"]["taskId"], claim["runId"]) for claim in claims]


async def drive(world: World) -> None:
    engine = world.engine
    while True:
        for _ in range(random.randint(1, 4)):
            task_id = slugid()
            do(world, task_id, world.create, task_id)
        for task_id, run_id in await claim_all(world):
            do(world, task_id, engine.reclaim_task, world.caller, task_id, run_id)
            if run_id == 0:
                more = {"contentType": "a/b", "url": "https://x.org"}
                do(world, task_id, world.artifact, task_id, f"public/{slugid()}", "reference", **more)
            if random.random() < 0.5:
                do(world, task_id, engine.report_completed, world.caller, task_id, run_id, {})
            else:
                do(world, task_id, world.fail, task_id, "worker-shutdown", run_id)


if __name__ == "__main__":
    asyncio.run(drive(World(sys.argv[1])))
