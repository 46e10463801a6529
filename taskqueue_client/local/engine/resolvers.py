"""Background work: claims that run out, deadlines, dependencies, and workers that are gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskqueue_client.local.engine import announce, times
from taskqueue_client.local.engine.dependencies import resolve_task
from taskqueue_client.local.engine.records import Run, Task, find_task
from taskqueue_client.local.engine.transitions import (
    cancel,
    drop_claims,
    finish_with_exception,
    send_exception,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskqueue_client.local.engine.core import Core

_DUE = (
    "SELECT (SELECT min(taken_until) FROM claims), (SELECT min(inserted) FROM resolved),"
    " (SELECT min(deadline) FROM tasks WHERE deadline_open) + ?"
)


@dataclass(frozen=True, slots=True)
class Resolvers:
    """What the service's resolver processes do.

    They look for work at every multiple of the resolver interval; each piece of work is a transition.
    """

    core: Core

    def run_due(self) -> int:
        """Do everything whose time has come; how many pieces of work that were.

        Each is done as of its own moment, the earliest first, however far a clock has jumped: a claim
        that ran out an hour before the deadline has been retried when the deadline comes.
        """
        resolvers = (self._resolve_claim, self._resolve_deadline, self._resolve_dependencies)
        done = 0
        while (moment := self.next_due()) is not None and moment <= self.core.now():
            with self.core.as_of(moment):
                done += sum(_exhaust(resolver) for resolver in resolvers)
        return done

    def resolve_at_once(self) -> None:
        """After a resolution: schedule dependents, unless a resolver with an interval does that."""
        if self.core.settings.resolver_interval == 0:
            _exhaust(self._resolve_dependencies)

    def next_due(self) -> int | None:
        """When there is work to do next; None if there is none."""
        row = self.core.store.row(_DUE, self._deadline_delay())
        due = [moment for moment in row or () if moment is not None]
        return -(-min(due) // self._interval()) * self._interval() if due else None

    def worker_removed(self, task_queue_id: str, worker_group: str, worker_id: str) -> None:
        """End the runs of a worker that was stopped or removed; may be repeated."""
        claims = "FROM claims WHERE task_queue_id = ? AND worker_group = ? AND worker_id = ?"
        key = (task_queue_id, worker_group, worker_id)
        with self.core.transition() as now:
            held = self.core.store.rows(f"SELECT DISTINCT task_id, run_id {claims}", *key)
            self.core.store.change(f"DELETE {claims}", *key)
            for task_id, run_id in held:
                self._end_run_of_removed_worker(task_id, run_id, now)

    def _interval(self) -> int:
        return max(1, int(self.core.settings.resolver_interval * times.SECOND))

    def _deadline_delay(self) -> int:
        return int(self.core.settings.deadline_delay * times.SECOND)

    def _horizon(self) -> int:
        """What was due up to this moment has been noticed by now."""
        return self.core.now() // self._interval() * self._interval()

    def _resolve_claim(self) -> bool:
        row = self.core.store.row(
            "SELECT task_id, run_id, taken_until FROM claims WHERE taken_until <= ?"
            " ORDER BY taken_until LIMIT 1",
            self._horizon(),
        )
        if row is None:
            return False
        with self.core.transition() as now:
            self.core.store.change(
                "DELETE FROM claims WHERE task_id = ? AND run_id = ? AND taken_until = ?", *row
            )
            task_id, run_id, taken_until = row
            self._expire_claim(task_id, run_id, taken_until, now)
        return True

    def _expire_claim(self, task_id: str, run_id: int, taken_until: int, now: int) -> None:
        """Records that a reclaim has outdated, and runs past their deadline, are left alone."""
        task = find_task(self.core.store, task_id)
        if task is None:
            return
        run = task.run(run_id)
        current = run.state == "running" and run.taken_until == times.text(taken_until)
        if current and task.deadline > now:
            finish_with_exception(self.core, task, run, "claim-expired", now)
        if run.reason_resolved == "claim-expired" and run_id >= len(task.runs) - 2:
            self._announce(task, run, now)

    def _announce(self, task: Task, run: Run, now: int) -> None:
        if not send_exception(self.core, task, run):
            resolve_task(self.core, task.task_id, task.task_group_id, "exception", now)

    def _resolve_deadline(self) -> bool:
        row = self.core.store.row(
            "SELECT task_id FROM tasks WHERE deadline_open AND deadline <= ? ORDER BY deadline LIMIT 1",
            self._horizon() - self._deadline_delay(),
        )
        if row is None:
            return False
        with self.core.transition() as now:
            self.core.store.change("UPDATE tasks SET deadline_open = 0 WHERE task_id = ?", *row)
            self._miss_deadline(row[0], now)
        return True

    def _miss_deadline(self, task_id: str, now: int) -> None:
        task = find_task(self.core.store, task_id)
        run = cancel(self.core, task, "deadline-exceeded", now) if task else None
        if task and run:
            resolve_task(self.core, task_id, task.task_group_id, "exception", now)
            self.core.send(announce.missed_deadline, task, run)

    def _resolve_dependencies(self) -> bool:
        row = self.core.store.row(
            "SELECT seq, task_id, task_group_id, resolution FROM resolved WHERE inserted <= ?"
            " ORDER BY seq LIMIT 1",
            self._horizon(),
        )
        if row is None:
            return False
        with self.core.transition() as now:
            seq, task_id, task_group_id, resolution = row
            self.core.store.change("DELETE FROM resolved WHERE seq = ?", seq)
            resolve_task(self.core, task_id, task_group_id, resolution, now)
        return True

    def _end_run_of_removed_worker(self, task_id: str, run_id: int, now: int) -> None:
        task = find_task(self.core.store, task_id)
        if task is None:
            return
        run = task.run(run_id)
        drop_claims(self.core, task, run)
        if run.state == "running":
            finish_with_exception(self.core, task, run, "worker-shutdown", now)
            self._announce(task, run, now)


def _exhaust(resolver: Callable[[], bool]) -> int:
    done = 0
    while resolver():
        done += 1
    return done
