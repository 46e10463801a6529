"""A small model of the Queue's state machine, written from the rules and not from the engine.

It knows tasks, runs, the order of pending runs, dependencies, groups and the flag "ever resolved". Each
method performs one event and adds its messages to `messages`. Where the Queue sorts tasks by their ids, the
model sorts them by their creation: give it ids that ascend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Sent = tuple[str, str, int | None]

PRIORITIES = ("lowest", "very-low", "low", "medium", "high", "very-high", "highest")
RETRY = {"claim-expired": "retry", "worker-shutdown": "retry", "intermittent-task": "task-retry"}


@dataclass
class ModelRun:
    created: str
    state: str = "pending"
    resolved: str | None = None
    taken_until: float | None = None


@dataclass
class ModelTask:
    task_id: str
    group: str
    priority: str
    retries: int
    deadline: float
    requires: str
    open: set[str] = field(default_factory=set[str])
    left: int = 0
    runs: list[ModelRun] = field(default_factory=list[ModelRun])
    ever_resolved: bool = False
    deadline_seen: bool = False

    @property
    def state(self) -> str:
        return self.runs[-1].state if self.runs else "unscheduled"

    @property
    def is_resolved(self) -> bool:
        return self.state in {"completed", "failed", "exception"}


class Conflict(Exception):
    """The Queue would respond with 409."""


class Model:
    def __init__(self, now: float, claim_timeout: float) -> None:
        self.now = now
        self.claim_timeout = claim_timeout
        self.tasks: dict[str, ModelTask] = {}
        self.line: list[tuple[str, int]] = []
        self.sealed: set[str] = set()
        self.messages: list[Sent] = []

    def create(self, task: ModelTask, dependencies: list[str]) -> None:
        if task.group in self.sealed:
            raise Conflict
        enough = {"completed", "failed", "exception"} if task.requires == "all-resolved" else {"completed"}
        task.open = {each for each in dependencies if self.tasks[each].state not in enough}
        task.left = task.retries
        self.tasks[task.task_id] = task
        self._send("task-defined", task)
        if not task.open:
            self._add_run(task, "scheduled")

    def schedule(self, task: ModelTask) -> None:
        self._before_deadline(task)
        if not task.runs:
            self._add_run(task, "scheduled")

    def rerun(self, task: ModelTask) -> None:
        self._before_deadline(task)
        if task.state == "pending":
            self._send("task-pending", task, len(task.runs) - 1)
        elif task.state != "running":
            if len(task.runs) >= 50:
                raise Conflict
            task.left = min(task.retries, 50 - len(task.runs) - 1)
            self._add_run(task, "rerun")

    def cancel(self, task: ModelTask) -> None:
        self._before_deadline(task)
        self._end(task, "canceled")
        if task.runs[-1].resolved == "canceled":
            self._send("task-exception", task, len(task.runs) - 1)
            self._resolution(task, "exception")

    def cancel_group(self, group: str) -> int:
        if group not in self.sealed:
            raise Conflict
        tasks = [task for task in self.tasks.values() if task.group == group and task.deadline > self.now]
        ended = [task for task in tasks if self._end(task, "canceled")]
        for task in ended:
            self._send("task-exception", task, len(task.runs) - 1)
        for task in ended:
            self._resolution(task, "exception")
        return len(ended)

    def claim(self, count: int) -> list[tuple[str, int]]:
        def urgency(entry: tuple[str, int]) -> int:
            return -PRIORITIES.index(self.tasks[entry[0]].priority)

        chosen = sorted(self.line, key=urgency)[:count]
        for task_id, run_id in chosen:
            self.line.remove((task_id, run_id))
            run = self.tasks[task_id].runs[run_id]
            run.state, run.taken_until = "running", self.now + self.claim_timeout
            self._send("task-running", self.tasks[task_id], run_id)
        return chosen

    def reclaim(self, task: ModelTask) -> None:
        task.runs[-1].taken_until = self.now + self.claim_timeout

    def report(self, task: ModelTask, state: str) -> None:
        run = task.runs[-1]
        if run.state not in {"running", state}:
            raise Conflict
        run.state = run.resolved = state
        self._send(f"task-{state}", task, len(task.runs) - 1)
        self._resolution(task, state)

    def exception(self, task: ModelTask, reason: str) -> None:
        if task.runs[-1].state != "running":
            raise Conflict
        if self._end_with_retry(task, reason):
            self._resolution(task, "exception")

    def change_priority(self, task: ModelTask, priority: str) -> None:
        if task.deadline <= self.now or task.ever_resolved or task.priority == priority:
            raise Conflict
        task.priority = priority
        self._send("task-priority-changed", task)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (moment := self._next_due()) <= end:
            self.now = moment
            self._do_due()
        self.now = end

    def _next_due(self) -> float:
        deadlines = [task.deadline for task in self.tasks.values() if not task.deadline_seen]
        running = [task.runs[-1] for task in self.tasks.values() if task.state == "running"]
        return min([*deadlines, *(run.taken_until or 0 for run in running)], default=math.inf)

    def _do_due(self) -> None:
        claims = {task.task_id: task.runs[-1].taken_until for task in self.tasks.values() if task.runs}
        for task in sorted(self.tasks.values(), key=lambda task: claims.get(task.task_id) or 0):
            taken_until = claims.get(task.task_id) if task.state == "running" else None
            expired = taken_until is not None and taken_until <= self.now < task.deadline
            if expired and self._end_with_retry(task, "claim-expired"):
                self._resolution(task, "exception")
        for task in sorted(self.tasks.values(), key=lambda task: task.deadline):
            if task.deadline <= self.now and not task.deadline_seen:
                task.deadline_seen = True
                self._miss_deadline(task)

    def _miss_deadline(self, task: ModelTask) -> None:
        if self._end(task, "deadline-exceeded"):
            self._resolution(task, "exception")
            self._send("task-exception", task, len(task.runs) - 1)

    def _before_deadline(self, task: ModelTask) -> None:
        if task.deadline < self.now:
            raise Conflict

    def _end(self, task: ModelTask, reason: str) -> bool:
        """End the task; return False if it was resolved before."""
        if task.is_resolved:
            return False
        if not task.runs:
            task.runs.append(ModelRun("exception"))
        run = task.runs[-1]
        run.state, run.resolved = "exception", reason
        entry = (task.task_id, len(task.runs) - 1)
        if entry in self.line:
            self.line.remove(entry)
        return True

    def _end_with_retry(self, task: ModelTask, reason: str) -> bool:
        """End the running run; return whether its task has ended, too: False if there is a retry."""
        run_id = len(task.runs) - 1
        task.runs[-1].state, task.runs[-1].resolved = "exception", reason
        self._send("task-exception", task, run_id)
        if reason not in RETRY or task.left == 0:
            return True
        task.left -= 1
        self._add_run(task, RETRY[reason])
        return False

    def _add_run(self, task: ModelTask, reason: str) -> None:
        task.runs.append(ModelRun(reason))
        if task.deadline > self.now:
            self.line.append((task.task_id, len(task.runs) - 1))
        else:
            task.deadline_seen = False  # a run added in the millisecond of the deadline ends then, too
        self._send("task-pending", task, len(task.runs) - 1)

    def _resolution(self, task: ModelTask, resolution: str) -> None:
        for other in self.tasks.values():
            if task.task_id in other.open and (resolution == "completed" or other.requires == "all-resolved"):
                other.open.remove(task.task_id)
                if not other.open and not other.runs and other.deadline >= self.now:
                    self._add_run(other, "scheduled")
        task.ever_resolved = True
        if all(other.ever_resolved for other in self.tasks.values() if other.group == task.group):
            self.messages.append(("task-group-resolved", task.group, None))

    def _send(self, exchange: str, task: ModelTask, run_id: int | None = None) -> None:
        self.messages.append((exchange, task.task_id, run_id))
