"""What waits in a task queue, and what is claimed from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import times
from taskqueue_client.local.engine.paging import decode_index, encode_index, page_of, page_size
from taskqueue_client.local.engine.records import get_task
from taskqueue_client.local.refusal import Refusal

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core

_PENDING = " FROM pending WHERE task_queue_id = ? AND expires > ?"
_CLAIMED = " FROM claims JOIN tasks USING (task_id) WHERE claims.task_queue_id = ? AND taken_until > ?"


@dataclass(frozen=True, slots=True)
class QueueLists:
    """The endpoints that count and list the tasks of a task queue."""

    core: Core

    def pending_tasks(self, task_queue_id: str) -> dict[str, Any]:
        """How many runs wait for a worker."""
        return {**_queue(task_queue_id), "pendingTasks": self._count("*", _PENDING, task_queue_id)}

    def task_queue_counts(self, task_queue_id: str) -> dict[str, Any]:
        """How many runs wait, and how many have a claim that has not run out."""
        claimed = self._count("DISTINCT task_id || '/' || run_id", _CLAIMED, task_queue_id)
        return {**self.pending_tasks(task_queue_id), "claimedTasks": claimed}

    def list_pending_tasks(
        self, task_queue_id: str, continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of the waiting runs, the oldest first."""
        size = page_size(limit)
        rows = self.core.store.rows(
            f"SELECT task_id, run_id, inserted {_PENDING} AND seq > ? ORDER BY seq LIMIT ?",
            task_queue_id,
            self.core.now(),
            self._last_seq(task_queue_id, continuation_token),
            size + 1,
        )
        return page_of("tasks", rows, size, self._pending_task, _pending_token)

    def list_claimed_tasks(
        self, task_queue_id: str, continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of the claimed tasks, by the time of their latest claim or reclaim."""
        size = page_size(limit)
        claimed, task_id = decode_index(continuation_token, tuple[str, str]) or ("", "")
        rows = self.core.store.rows(
            f"SELECT task_id, run_id, worker_group, worker_id, max(claimed) {_CLAIMED} GROUP BY task_id"
            " HAVING (max(claimed), task_id) > (?, ?) ORDER BY max(claimed), task_id LIMIT ?",
            task_queue_id,
            self.core.now(),
            _moment(claimed),
            task_id,
            size + 1,
        )
        return page_of("tasks", rows, size, self._claimed_task, _claimed_token)

    def _count(self, what: str, of: str, task_queue_id: str) -> int:
        count: int = self.core.store.value(f"SELECT count({what}) {of}", task_queue_id, self.core.now())
        return count

    def _last_seq(self, task_queue_id: str, token: str | None) -> int:
        """Where the previous page ended; if that run waits no more, just before those of its time."""
        inserted, task_id = decode_index(token, tuple[str, str]) or ("", "")
        exact = "SELECT max(seq) FROM pending WHERE task_queue_id = ? AND inserted = ? AND task_id = ?"
        near = "SELECT max(seq) FROM pending WHERE task_queue_id = ? AND inserted < ?"
        moment = _moment(inserted)
        return (
            self.core.store.value(exact, task_queue_id, moment, task_id)
            or self.core.store.value(near, task_queue_id, moment)
            or 0
        )

    def _pending_task(self, row: tuple[Any, ...]) -> dict[str, Any]:
        task_id, run_id, inserted = row
        task = get_task(self.core.store, task_id).definition()
        return {"taskId": task_id, "runId": run_id, "task": task, "inserted": times.text(inserted)}

    def _claimed_task(self, row: tuple[Any, ...]) -> dict[str, Any]:
        task_id, run_id, worker_group, worker_id, claimed = row
        return {
            "taskId": task_id,
            "runId": run_id,
            "workerGroup": worker_group,
            "workerId": worker_id,
            "claimed": times.text(claimed),
            "task": get_task(self.core.store, task_id).definition(),
        }


def _queue(task_queue_id: str) -> dict[str, str]:
    provisioner_id, worker_type = task_queue_id.split("/")
    return {"provisionerId": provisioner_id, "workerType": worker_type, "taskQueueId": task_queue_id}


def _pending_token(row: tuple[Any, ...]) -> str:
    task_id, _, inserted = row
    return encode_index(times.text(inserted), task_id)


def _claimed_token(row: tuple[Any, ...]) -> str:
    return encode_index(times.text(row[-1]), row[0])


def _moment(text: str) -> int:
    try:
        return times.parse(text, "continuationToken")
    except Refusal:
        return 0
