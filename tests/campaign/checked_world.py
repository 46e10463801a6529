"""The evidence of a small campaign without violations, for tests that plant violations in it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec

from taskqueue_client.models import Run

from .evidence import Evidence, ReceivedMessage, StoredArtifact, StoredTask, planned_digest
from .fleet import HandlerEvent
from .incidents import Incident
from .task_plan import PlannedArtifact, PlannedTask

LEASE = 10.0
DONE, RETRIED, DEPENDENT, BLOCKED = "done", "retried", "dependent", "blocked"
ARTIFACT = "public/0.bin"
LOG, LIVE = "public/logs/live_backing.log", "public/logs/live.log"
KILLED_AT = 1020.0


def moment(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat()


def run(run_id: int, reason: str, began: float, ended: float, **changes: Any) -> Run:
    """Return a resolved run that a worker has claimed."""
    fields: dict[str, Any] = {
        "runId": run_id,
        "state": reason if reason in {"completed", "failed"} else "exception",
        "reasonCreated": "retry" if run_id else "scheduled",
        "reasonResolved": reason,
        "workerGroup": "campaign",
        "workerId": f"w{run_id + 1}-1",
        "takenUntil": moment(ended if reason == "claim-expired" else ended + 5),
        "scheduled": moment(began - 1),
        "started": moment(began),
        "resolved": moment(ended),
        **changes,
    }
    return msgspec.convert(fields, Run)


def planned(task_id: str, **changes: Any) -> PlannedTask:
    artifacts = (PlannedArtifact(ARTIFACT, 9, "s3"),)
    return dataclasses.replace(PlannedTask(task_id, "group", "quick", 0, artifacts=artifacts), **changes)


def world() -> Evidence:
    """Return evidence of four tasks: done, retried after a kill -9, dependent on the first, and blocked."""
    tasks = {
        DONE: StoredTask(30, 30, [run(0, "completed", 1001, 1005)]),
        RETRIED: StoredTask(30, 29, [run(0, "claim-expired", 1015, 1030), run(1, "completed", 1032, 1035)]),
        DEPENDENT: StoredTask(30, 30, [run(0, "failed", 1008, 1009)]),
        BLOCKED: StoredTask(30, 30, []),
    }
    plan = {
        DONE: planned(DONE),
        RETRIED: planned(RETRIED),
        DEPENDENT: planned(DEPENDENT, kind="failed", dependencies=(DONE,)),
        BLOCKED: planned(BLOCKED, dependencies=(DEPENDENT,)),
    }
    return Evidence(
        LEASE,
        plan,
        tasks,
        {task_id: _artifacts(plan[task_id], len(stored.runs) - 1) for task_id, stored in tasks.items()},
        [message for task_id, stored in tasks.items() for message in _messages(task_id, stored.runs)],
        [event for task_id, stored in tasks.items() for event in _handlers(task_id, stored.runs)],
        [Incident("worker killed", "w1-1", KILLED_AT, KILLED_AT)],
        [],
        [],
        [],
    )


def _artifacts(task: PlannedTask, run_id: int) -> dict[tuple[int, str], StoredArtifact]:
    if run_id < 0:
        return {}
    return {
        (run_id, ARTIFACT): StoredArtifact("s3", present=True, digest=planned_digest(task, ARTIFACT)),
        (run_id, LOG): StoredArtifact("s3", present=True, digest="any"),
        (run_id, LIVE): StoredArtifact("link", present=True, digest=None),
    }


def _messages(task_id: str, runs: list[Run]) -> list[ReceivedMessage]:
    """Return the messages of the transitions of a task."""
    found = [ReceivedMessage("task-defined", task_id, None, "unscheduled", [])]
    for each in runs:
        before = runs[: each.run_id]
        pending = _before(
            each, state="pending", worker_id=None, worker_group=None, started=None, taken_until=None
        )
        running = _before(each, state="running")
        found.append(ReceivedMessage("task-pending", task_id, each.run_id, "pending", [*before, pending]))
        found.append(ReceivedMessage("task-running", task_id, each.run_id, "running", [*before, running]))
        if each.reason_resolved != "claim-expired":
            found.append(
                ReceivedMessage("artifact-created", task_id, each.run_id, "running", [*before, running], LIVE)
            )
        found.append(
            ReceivedMessage(f"task-{each.state}", task_id, each.run_id, str(each.state), [*before, each])
        )
    return found


def _before(each: Run, **fields: Any) -> Run:
    return msgspec.structs.replace(each, **{"resolved": None, "reason_resolved": None, **fields})


def _handlers(task_id: str, runs: list[Run]) -> list[HandlerEvent]:
    found: list[HandlerEvent] = []
    for each in runs:
        worker = str(each.worker_id)
        assert each.started is not None
        assert each.resolved is not None
        found.append(HandlerEvent("begin", worker, task_id, each.run_id, each.started.timestamp() + 0.1))
        if each.state == "completed":
            found.append(HandlerEvent("end", worker, task_id, each.run_id, each.resolved.timestamp() - 0.1))
    return found
