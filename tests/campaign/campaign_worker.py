"""A worker of a campaign, in a separate process: does what payloads say, and reports it on stdout.

python -m tests.campaign.campaign_worker '{"awaiting": true, …}'
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil

from taskqueue_client.clock import SystemClock
from taskqueue_client.events import PulseSettings
from taskqueue_client.worker import TaskRun, WorkerLoop, outcomes

from .task_plan import KINDS, PlannedArtifact

_IN_MEMORY = 100_000
"""The size in bytes from which an artifact is written to a file first."""

_INTERMITTENT = {kind: each.retries_used for kind, each in KINDS.items() if each.retries_used}


class SteppingClock(SystemClock):
    """The clock of a machine on which somebody sets the time."""

    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


def obey(clock: SteppingClock) -> None:
    """Perform commands from standard input; shut down at its end, which means that the campaign has ended."""
    for line in sys.stdin:
        command, *values = line.split()
        if command == "clock":
            clock.offset = float(values[0])
        else:
            say("objects", count=counted_objects())
    os.kill(os.getpid(), signal.SIGTERM)


def counted_objects() -> int:
    """Count objects without `gc.get_objects`: while a thread builds a tuple, nobody else may refer to it."""
    gc.collect()
    gc.freeze()
    try:
        return gc.get_freeze_count()
    finally:
        gc.unfreeze()


def say(event: str, task: TaskRun | None = None, **fields: Any) -> None:
    """Report an event to the campaign in one write: in a pipe, lines below 4 KiB do not mix."""
    about = {} if task is None else {"task": task.task_id, "run": task.run_id}
    line = json.dumps({"event": event, "t": time.time(), **about, **fields})
    os.write(1, line.encode() + b"\n")


class BlockingWorker(WorkerLoop):
    """Handlers in threads."""

    payload_schema: ClassVar[Mapping[str, Any] | None] = {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(KINDS)}},
    }

    def run_task(self, task: TaskRun) -> None:
        say("begin", task)
        work = task.payload
        _declare(task)
        if command := _command(work):
            task.run_command(command)
        elif work["kind"] == "blocking":
            time.sleep(work["seconds"])
        elif task.canceled.wait(work["seconds"]):
            task.canceled.check()
        if work["kind"] in _INTERMITTENT:
            _ask_for_retry(task, [run.reason_resolved for run in task.queue.status(task.task_id).status.runs])
        _end(task)


class AwaitingWorker(WorkerLoop):
    """Handlers in one event loop."""

    payload_schema: ClassVar[Mapping[str, Any] | None] = BlockingWorker.payload_schema

    async def run_task(self, task: TaskRun) -> None:
        say("begin", task)
        work = task.payload
        await asyncio.to_thread(_declare, task)
        if command := _command(work):
            await task.run_command_async(command)
        elif work["kind"] == "blocking":
            time.sleep(work["seconds"])  # noqa: ASYNC251 - blocks the loop of all handlers, as bad handlers do
        else:
            await asyncio.sleep(work["seconds"])
        if work["kind"] in _INTERMITTENT:
            status = await task.async_queue.status(task.task_id)
            _ask_for_retry(task, [run.reason_resolved for run in status.status.runs])
        _end(task)


def _command(work: Mapping[str, Any]) -> list[str] | None:
    """Return a command that leaves a daemon behind; None if the task has none."""
    if work["kind"] not in {"command", "failed-command"}:
        return None
    status = int(work["kind"] == "failed-command")
    script = f"(setsid sleep 900 >/dev/null 2>&1 &) ; echo working; sleep {work['seconds']}; exit {status}"
    return ["sh", "-c", script]


def _declare(task: TaskRun) -> None:
    for each in task.payload.get("artifacts", ()):
        artifact = PlannedArtifact(*each)
        source: bytes | Path = (
            b"".join(artifact.content(task.task_id)) if artifact.size < _IN_MEMORY else Path()
        )
        if isinstance(source, Path):
            source = task.work_directory / artifact.name.replace("/", "_")
            with source.open("wb") as file:
                file.writelines(artifact.content(task.task_id))
        task.upload_artifact(
            artifact.name, source, storage="object" if artifact.storage == "object" else "s3"
        )


def _ask_for_retry(task: TaskRun, reasons: list[str | None]) -> None:
    kind = task.payload["kind"]
    if kind == "always-intermittent" or reasons.count("intermittent-task") < _INTERMITTENT[kind]:
        message = "the plan says so"
        raise outcomes.IntermittentTask(message)


def _end(task: TaskRun) -> None:
    kind = task.payload["kind"]
    message = "the plan says so"
    if kind == "failed":
        raise outcomes.TaskFailed(message)
    if kind == "unavailable":
        raise outcomes.ResourceUnavailable(message)
    if kind == "bug":
        raise ValueError(message)
    say("end", task)


def _left() -> dict[str, Any]:
    """Return what a worker must not leave behind: this process's threads, children and file descriptors."""
    process = psutil.Process()
    threads = sorted(each.name for each in threading.enumerate())
    return {
        "threads": threads,
        "processes": sorted(each.name() for each in process.children(recursive=True)),
        "descriptors": process.num_fds(),
    }


def main() -> None:
    settings = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(threadName)s %(message)s")
    clock = SteppingClock()
    threading.Thread(target=obey, args=(clock,), name="stdin", daemon=True).start()
    ctypes.CDLL(None)  # as running commands does: libffi may open a file, which would count as left

    before = _left()
    kind = AwaitingWorker if settings["awaiting"] else BlockingWorker
    worker = kind(
        clock=clock,
        pulse=PulseSettings.from_url(settings["pulse"]),
        work_directory=Path(settings["work_directory"]),
        **settings["settings"],
    )
    say("started")
    worker.run()
    for each in threading.enumerate():  # some end a moment after `run` has returned
        if each.name != "stdin" and each is not threading.main_thread():
            each.join(10)
    say("stopped", before=before, after=_left())


if __name__ == "__main__":
    main()
