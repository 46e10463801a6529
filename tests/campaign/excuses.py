"""The deviations that the faults of a campaign explain."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from taskqueue_client.models import Run

from .incidents import Incident

SLACK = 1.5
"""Seconds between a fault and its effect: a call that was under way, a signal that is on its way."""

LATE = 0.5
"""Seconds by which a busy machine may be late."""

_EVERYBODY = frozenset({"queue", "network", "machine"})
_ENDS = frozenset({"worker killed", "worker terminated", "worker stopped"})


def seconds(moment: datetime | None) -> float:
    """Return a moment in seconds since the epoch; infinity for None, which has not happened."""
    return float("inf") if moment is None else moment.timestamp()


class Excuses:
    """Finds the incidents that explain what happened to a run.

    Args:
        incidents: All incidents of the campaign.
        lease: How long a claim lasts, in seconds.
    """

    def __init__(self, incidents: list[Incident], lease: float) -> None:
        self._lease = lease
        self._everybody = [each for each in incidents if each.target in _EVERYBODY]
        self._by_target: defaultdict[str, list[Incident]] = defaultdict(list)
        self._undelivered = {run for each in incidents for run in each.runs}
        self._exchanges = [each for each in incidents if each.kind.startswith("exchange: ")]
        for each in incidents:
            self._by_target[each.target].append(each)

    def expiry(self, task_id: str, run: Run) -> bool:
        """Return whether the faults explain that a claim expired."""
        if f"{task_id}/{run.run_id}" in self._undelivered:
            return True
        began, ended = seconds(run.started) - SLACK, seconds(run.taken_until) + SLACK
        if self._of_worker(run, _ENDS, began, ended):
            return True
        began = (
            seconds(run.taken_until) - 2 * self._lease - SLACK
        )  # the worker may not know of the last reclaim
        return self._of_everybody(began, ended) or self._of_calls(
            task_id, f"/runs/{run.run_id}/", began, ended
        )

    def lateness(self, run: Run) -> float:
        """Return how many seconds after its claim a run may be resolved: the queue may see the end late."""
        began, ended = seconds(run.taken_until), seconds(run.resolved)
        return float("inf") if self._of_everybody(began, ended) else LATE

    def shutdown(self, run: Run) -> bool:
        """Return whether the faults explain that a run was reported as worker-shutdown."""
        began, ended = seconds(run.started) - SLACK, seconds(run.resolved) + SLACK
        return self._of_worker(run, frozenset({"worker terminated"}), began, ended)

    def unavailable(self, task_id: str, run: Run) -> bool:
        """Return whether the faults explain that storage could not be reached."""
        began, ended = seconds(run.started) - SLACK, seconds(run.resolved) + SLACK
        outages = [each for each in self._by_target["storage"] if each.overlaps(began, ended)]
        calls = self._of_calls(task_id, f"/{run.run_id}/", began, ended)
        return bool(outages) or calls or self._of_everybody(began, ended)

    def internal_error(self, task_id: str, run: Run) -> bool:
        """Return whether the faults explain an internal error: a full disk, or calls that failed."""
        began, ended = seconds(run.started) - SLACK, seconds(run.resolved) + SLACK
        full = self._of_worker(run, frozenset({"worker disk full"}), began, ended)
        return full or self._of_everybody(began, ended) or self._of_calls(task_id, "/", began, ended)

    def repeated_report(self, task_id: str, run: Run) -> bool:
        """Return whether the faults explain that an exception of a run was reported again."""
        began, ended = seconds(run.resolved) - SLACK, seconds(run.resolved) + self._lease
        calls = self._of_calls(task_id, f"/runs/{run.run_id}/exception", began, ended)
        return calls or self._of_everybody(began, ended)

    def repetition(self, task_id: str) -> bool:
        """Return whether the faults explain a repeated message: a call or a delivery was repeated."""
        cuts = any(each.kind in {"broker cut", "broker silent"} for each in self._by_target["broker"])
        return cuts or bool(self._everybody) or self._of_calls(task_id, "/", 0, float("inf"))

    def _of_worker(self, run: Run, kinds: frozenset[str], began: float, ended: float) -> bool:
        incidents = self._by_target.get(run.worker_id or "", ())
        return any(each.kind in kinds and each.overlaps(began, ended) for each in incidents)

    def _of_everybody(self, began: float, ended: float) -> bool:
        return any(each.overlaps(began, ended) for each in self._everybody)

    def _of_calls(self, task_id: str, part: str, began: float, ended: float) -> bool:
        return any(
            task_id in each.target and part in each.target and each.overlaps(began, ended)
            for each in self._exchanges
        )
