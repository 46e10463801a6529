"""Background work: expired claims, deadlines, dependencies, removed workers, and the nightly jobs."""

from __future__ import annotations

from collections.abc import Callable

from taskqueue_client.local import messages, times

from .core import Core
from .run_transitions import cancel, drop_claims, finish_with_exception, send_exception
from .scheduling import resolve_task
from .task_records import Run, Task, find_task
from .worker_records import forget_removed

_DUE = (
    "SELECT min(moment) FROM (SELECT min(taken_until) AS moment FROM claims"
    " UNION ALL SELECT min(inserted) FROM resolved"
    " UNION ALL SELECT min(deadline) + ? FROM tasks WHERE deadline_open)"
)
_EXPIRED_CLAIM = (
    "SELECT task_id, run_id, taken_until FROM claims WHERE taken_until <= ? ORDER BY taken_until LIMIT 1"
)
_PASSED_DEADLINE = "SELECT task_id FROM tasks WHERE deadline_open AND deadline <= ? ORDER BY deadline LIMIT 1"
_RESOLUTION = (
    "SELECT seq, task_id, task_group_id, resolution FROM resolved WHERE inserted <= ? ORDER BY seq LIMIT 1"
)
_GRACE = 30 * times.MINUTE
_TIME_OF_DAY = times.HOUR + 10 * times.MINUTE  # in UTC, of the last nightly job of the service

_BATCH = 500
"""The most claims, deadlines or expired tasks that are handled before the next requests are served."""

_EXPIRED_ARTIFACTS = (
    "DELETE FROM artifacts WHERE (task_id, run_id, sort_key) IN"
    " (SELECT task_id, run_id, sort_key FROM artifacts WHERE expires < ? LIMIT ?)"
    " RETURNING task_id || '/' || run_id || '/' || name, storage_type"
)
_EXPIRED_TASKS = (
    "DELETE FROM tasks WHERE task_id IN (SELECT task_id FROM tasks WHERE expires < ? LIMIT ?)"
    " RETURNING task_id"
)
_REMOVALS = (
    "DELETE FROM task_groups WHERE expires < ?",
    "DELETE FROM task_queues WHERE expires < ?",
    "DELETE FROM workers WHERE max(expires, quarantine_until) < ?",
)


class BackgroundWork:
    """The work of the service's resolver processes and nightly jobs.

    Resolvers look for work at every multiple of the resolver interval; each piece of work is a transition.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._night = _next_night(core.now()) - times.DAY  # last night: the queue may not have run then
        self._interval = max(1, times.milliseconds(core.settings.resolver_interval))
        self._deadline_delay = times.milliseconds(core.settings.deadline_delay)
        core.on_resolved = self._resolve_at_once

    def run_due(self) -> bool:
        """Do a batch of the work that is due; return whether there may be more.

        Each piece of work takes effect at its due time, the earliest first, however far the clock has
        jumped: a run whose claim expired an hour before the deadline is retried before the deadline passes.
        """
        left = _BATCH
        while (moment := self._next_resolution()) is not None and moment <= self._core.now():
            with self._core.as_of(moment):
                left = self._do_some(left, _EXPIRED_CLAIM, self._resolve_claim)
                left = self._do_some(left, _PASSED_DEADLINE, self._resolve_deadline, self._deadline_delay)
                left = self._do_some(left, _RESOLUTION, self._resolve_dependencies)
            if not left:
                return True
        return self._expire_at_night()

    def next_due(self) -> float:
        """Return when `run_due` has something to do next, in seconds since the epoch."""
        moment = self._next_resolution()
        return (self._night if moment is None else min(self._night, moment)) / times.SECOND

    def expire(self) -> bool:
        """Remove a batch of expired records, as the nightly jobs do; return whether there may be more."""
        core = self._core
        with core.transition() as now:
            before = now - _GRACE
            if core.storage.objects.expire(now, _BATCH) or self._expire_artifacts(before):
                return True
            core.store.change("DELETE FROM pending WHERE expires < ?", now)
            core.store.change("DELETE FROM dependencies WHERE expires < ?", before)
            if self._expire_tasks(before):
                return True
            for removal in _REMOVALS:
                core.store.change(removal, before)
            forget_removed(core, now)
        return False

    def _expire_artifacts(self, before: int) -> bool:
        removed = self._core.store.rows(_EXPIRED_ARTIFACTS, before, _BATCH)
        for key, storage_type in removed:
            if storage_type == "s3":
                self._core.storage.delete(key)
        return len(removed) == _BATCH

    def _expire_tasks(self, before: int) -> bool:
        """Remove tasks and their claims, after their artifacts and dependencies: an id may be used again."""
        removed = self._core.store.rows(_EXPIRED_TASKS, before, _BATCH)
        for task_id in removed:
            self._core.store.change("DELETE FROM claims WHERE task_id = ?", *task_id)
        return len(removed) == _BATCH

    def _expire_at_night(self) -> bool:
        """Run the jobs that were due last night, as of that time; return whether there may be more.

        Records that expired since then stay until the next night. If the clock was set back by more than a
        day, the time of the next night is computed again.
        """
        now = self._core.now()
        if not self._night - times.DAY <= now < self._night:
            night = _next_night(now)
            with self._core.as_of(night - times.DAY):
                if self.expire():
                    return True
            self._night = night
        return False

    def _resolve_at_once(self) -> None:
        """Schedule dependents after a resolution, unless a resolver with an interval does that."""
        if self._core.settings.resolver_interval == 0:
            while not self._do_some(_BATCH, _RESOLUTION, self._resolve_dependencies):
                pass

    def _next_resolution(self) -> int | None:
        """Return the time of the next work of a resolver, in milliseconds; None if no work is planned."""
        moment: int | None = self._core.store.value(_DUE, self._deadline_delay)
        return None if moment is None else -(-moment // self._interval) * self._interval

    def worker_removed(self, task_queue_id: str, worker_group: str, worker_id: str) -> None:
        """Resolve the runs of a worker that was stopped or removed; may be repeated.

        As in the service, a run is announced once for each record of a claim on it, so twice if it was
        reclaimed lately.
        """
        claims = "FROM claims WHERE task_queue_id = ? AND worker_group = ? AND worker_id = ?"
        key = (task_queue_id, worker_group, worker_id)
        with self._core.transition() as now:
            held = self._core.store.rows(f"SELECT task_id, run_id {claims}", *key)
            self._core.store.change(f"DELETE {claims}", *key)
            for task_id, run_id in held:
                self._end_run_of_removed_worker(task_id, run_id, now)

    def expire_claim(self, task_id: str) -> None:
        """Resolve the run of a task if its claim has expired, without waiting for a resolver."""
        with self._core.transition() as now:
            expired = "SELECT run_id, taken_until FROM claims WHERE task_id = ? AND taken_until <= ?"
            for claim in self._core.store.rows(expired, task_id, now):
                self._resolve_claim(now, task_id, *claim)

    def _do_some(self, most: int, query: str, resolve: Callable[..., None], delay: int = 0) -> int:
        """Do the work that a query finds, row by row, as of the last time at which resolvers look for work.

        Returns how many of the `most` rows were not needed: 0 if there may be more work.
        """
        for left in range(most, 0, -1):
            row = self._core.store.row(query, self._core.now() // self._interval * self._interval - delay)
            if row is None:
                return left
            with self._core.transition() as now:
                resolve(now, *row)
        return 0

    def _resolve_claim(self, now: int, task_id: str, run_id: int, taken_until: int) -> None:
        """Resolve a run whose claim has expired, unless it was reclaimed or is past its deadline."""
        delete = "DELETE FROM claims WHERE task_id = ? AND run_id = ? AND taken_until = ?"
        self._core.store.change(delete, task_id, run_id, taken_until)
        task = find_task(self._core.store, task_id)
        if task is None or run_id >= len(task.runs):  # claimTask records claims of runs that do not exist
            return
        run = task.run(run_id)
        current = run.state == "running" and run.taken_until == times.text(taken_until)
        if current and task.deadline > now:
            finish_with_exception(self._core, task, run, "claim-expired", now)
        if run.reason_resolved == "claim-expired" and run_id >= len(task.runs) - 2:
            self._announce(task, run, now)

    def _announce(self, task: Task, run: Run, now: int) -> None:
        if not send_exception(self._core, task, run):
            resolve_task(self._core, task.task_id, task.task_group_id, "exception", now)

    def _resolve_deadline(self, now: int, task_id: str) -> None:
        self._core.store.change("UPDATE tasks SET deadline_open = 0 WHERE task_id = ?", task_id)
        task = find_task(self._core.store, task_id)
        run = cancel(self._core, task, "deadline-exceeded", now) if task else None
        if task and run:
            resolve_task(self._core, task_id, task.task_group_id, "exception", now)
            self._core.send(messages.missed_deadline, task, run)

    def _resolve_dependencies(self, now: int, seq: int, task_id: str, group_id: str, resolution: str) -> None:
        self._core.store.change("DELETE FROM resolved WHERE seq = ?", seq)
        resolve_task(self._core, task_id, group_id, resolution, now)

    def _end_run_of_removed_worker(self, task_id: str, run_id: int, now: int) -> None:
        """Resolve and announce a run; as in the service, also one that the worker ended by its shutdown."""
        task = find_task(self._core.store, task_id)
        if task is None:
            return
        drop_claims(self._core, task_id, run_id)
        if run_id >= len(task.runs):
            return
        run = task.run(run_id)
        if run.state == "running":
            finish_with_exception(self._core, task, run, "worker-shutdown", now)
        if run.reason_resolved == "worker-shutdown" and run_id >= len(task.runs) - 2:
            self._announce(task, run, now)


def _next_night(now: int) -> int:
    """Return when the nightly jobs run next, after `now`; both in milliseconds."""
    return (now - _TIME_OF_DAY) // times.DAY * times.DAY + times.DAY + _TIME_OF_DAY
