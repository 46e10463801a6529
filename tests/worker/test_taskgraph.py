"""taskgraph, which tasks of Mozilla's projects use, works unchanged in the commands of a worker."""

from __future__ import annotations

import grp
import io
import json
import os
import pwd
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taskqueue_client import slugid
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import World
from tests.worker.worker_world import log_of, work

_found = find_spec("taskgraph")
assert _found is not None
assert _found.origin is not None
TASKGRAPH = Path(_found.origin).parent

DECIDE = """
import json, os, sys
from taskgraph.create import create_tasks
from taskgraph.graph import Graph
from taskgraph.task import Task
from taskgraph.taskgraph import TaskGraph
from taskgraph.util import taskcluster

upstream, *new = sys.argv[1:]
own, definition = os.environ["TASK_ID"], taskcluster.get_task_definition(upstream)
times = {"created": {"relative-datestamp": "0 seconds"}, "deadline": {"relative-datestamp": "1 hour"}}
task = {key: definition[key] for key in ("taskQueueId", "metadata", "payload", "projectId")} | times
tasks = {id: Task("k", f"label {id}", {}, dict(task, dependencies=new[:at])) for at, id in enumerate(new)}
edges = {(id, other, "needs") for at, id in enumerate(new) for other in new[:at]}
create_tasks({"trust-domain": "demo"}, TaskGraph(tasks, Graph(set(new), edges)),
             {task.label: id for id, task in tasks.items()}, {"level": "1"}, own)
statuses = taskcluster.status_task_batched([upstream, own, *new])
taskcluster.cancel_task(new[-1])
print("SEEN " + json.dumps({
    "names": sorted(each["name"] for each in taskcluster.list_artifacts(upstream)),
    "json": taskcluster.get_artifact(upstream, "public/build/target.json"),
    "private": taskcluster.get_artifact(upstream, "private/notes.txt").read().decode(),
    "definitions": sorted(taskcluster.get_task_definitions([upstream, own, *new])),
    "states": [statuses[name]["state"] for name in (upstream, own, *new)],
    "canceled": taskcluster.state_task(new[-1]),
}))
"""


def archive(name: str, content: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


BUILT = {
    "public/build/target.json": b'{"built": true}',
    "public/build/target.tar.gz": archive("bin/tool", b"a tool"),
    "private/notes.txt": b"a note",
}


def built(world: World) -> str:
    """Return the identifier of a completed task with artifacts."""
    task_id = world.create()

    def build(task: TaskRun) -> None:
        for name, content in BUILT.items():
            task.upload_artifact(name, content)

    work(world, build)
    assert world.run(task_id).reason_resolved == "completed"
    return task_id


def test_a_decision_task_reads_upstream_tasks_and_creates_its_graph(world: World) -> None:
    upstream, new = built(world), [slugid() for _ in range(3)]
    scopes = ["queue:get-artifact:private/notes.txt", "queue:scheduler-id:demo-level-1"]
    scopes += ["queue:create-task:lowest:test-provisioner/test-worker", "queue:create-task:project:none"]
    scopes += ["queue:cancel-task:demo-level-1/*", "queue:schedule-task:demo-level-1/*"]
    decision = world.create(scopes=scopes, schedulerId="demo-level-1")
    printed: list[str] = []

    def decide(task: TaskRun) -> None:
        command = [sys.executable, "-c", DECIDE, upstream, *new]
        printed.append(task.run_command(command, proxy=True, capture="stdout").stdout or "")

    work(world, decide)
    assert world.run(decision).reason_resolved == "completed", log_of(world, decision)
    seen: dict[str, Any] = json.loads(printed[0].partition("SEEN ")[2])
    assert seen == {
        "names": sorted({*BUILT, "public/logs/live.log", "public/logs/live_backing.log"}),
        "json": {"built": True},
        "private": "a note",
        "definitions": sorted([upstream, decision, *new]),
        "states": ["completed", "running", "unscheduled", "unscheduled", "unscheduled"],
        "canceled": "exception",
    }
    assert world.queue.task(new[0])["dependencies"] == [decision]
    assert world.queue.status(new[0]).status.state == "pending"


def test_run_task_fetches_artifacts_of_upstream_tasks_and_runs_a_command(world: World) -> None:
    upstream = built(world)
    names = ["public/build/target.tar.gz", "private/notes.txt"]
    fetches = [{"artifact": name, "task": upstream, "extract": name.endswith("gz")} for name in names]
    env = {"MOZ_FETCHES": json.dumps(fetches), "MOZ_FETCHES_DIR": "fetches"}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = ["--user", pwd.getpwuid(os.getuid()).pw_name, "--group", grp.getgrgid(os.getgid()).gr_name]
    run_task = [sys.executable, str(TASKGRAPH / "run-task" / "run-task"), *own, "--"]
    task_id = world.create(scopes=["queue:get-artifact:private/notes.txt"])

    def handler(task: TaskRun) -> None:
        task.run_command(
            [*run_task, "sh", "-c", "cat fetches/bin/tool fetches/notes.txt"], proxy=True, env=env
        )

    work(world, handler)
    log = log_of(world, task_id)
    assert world.run(task_id).reason_resolved == "completed", log
    assert "a toola note" in log
