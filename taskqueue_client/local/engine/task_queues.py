"""Records of task queues, and the views of them by provisioner and worker type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskqueue_client.local.engine import times
from taskqueue_client.local.engine.paging import MAX_PAGE, Page, page_size
from taskqueue_client.local.refusal import not_found

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core

_UNEXPIRED = "SELECT task_queue_id, expires, last_date_active FROM task_queues WHERE expires > ?"
_OF_PROVISIONER = (
    " AND task_queue_id > ? || '/' AND task_queue_id < ? || '0'"  # 0 is the next character after /
)
_PROVISIONERS = (
    "SELECT substr(task_queue_id, 1, instr(task_queue_id, '/') - 1) AS provisioner_id, max(expires),"
    " max(last_date_active) FROM task_queues WHERE expires > ?"
)


@dataclass(frozen=True, slots=True)
class TaskQueues:
    """The endpoints of task queues, provisioners and worker types."""

    core: Core

    def list_task_queues(self, continuation_token: str | None, limit: int) -> dict[str, Any]:
        """A page of the task queues that have not expired."""
        page = Page.of(continuation_token, limit)
        rows = self.core.store.rows(
            _UNEXPIRED + " ORDER BY sort_key(task_queue_id) LIMIT ? OFFSET ?", self.core.now(), *page.window
        )
        return page.answer("taskQueues", rows, _task_queue)

    def get_task_queue(self, task_queue_id: str) -> dict[str, Any]:
        """One task queue.

        Raises:
            Refusal: `ResourceNotFound`: it is unknown or expired.
        """
        row = self.core.store.row(_UNEXPIRED + " AND task_queue_id = ?", self.core.now(), task_queue_id)
        if row is None:
            message = f"Task queue `{task_queue_id}` does not exist."
            raise not_found(message)
        return _task_queue(row)

    def list_worker_types(
        self, provisioner_id: str, continuation_token: str | None, limit: int
    ) -> dict[str, Any]:
        """A page of a provisioner's task queues."""
        page = Page.of(continuation_token, limit)
        rows = self.core.store.rows(
            _UNEXPIRED + _OF_PROVISIONER + " ORDER BY sort_key(task_queue_id) LIMIT ? OFFSET ?",
            self.core.now(),
            provisioner_id,
            provisioner_id,
            *page.window,
        )
        return page.answer("workerTypes", rows, lambda row: _with_pair(_task_queue(row)))

    def get_worker_type(self, provisioner_id: str, worker_type: str) -> dict[str, Any]:
        """One task queue, by the two halves of its id."""
        return _with_pair(self.get_task_queue(f"{provisioner_id}/{worker_type}"))

    def list_provisioners(self, _continuation_token: str | None, limit: int) -> dict[str, Any]:
        """The first provisioners; as in the service there is no way to the others, and 0 is no limit."""
        rows = self.core.store.rows(
            _PROVISIONERS + " GROUP BY 1 ORDER BY sort_key(provisioner_id) LIMIT ?",
            self.core.now(),
            page_size(limit) or MAX_PAGE,
        )
        return {"provisioners": [_provisioner(row) for row in rows]}

    def get_provisioner(self, provisioner_id: str) -> dict[str, Any]:
        """One provisioner: the latest times of its task queues."""
        row = self.core.store.row(
            _PROVISIONERS + _OF_PROVISIONER + " GROUP BY 1", self.core.now(), provisioner_id, provisioner_id
        )
        if row is None:
            message = f"Provisioner `{provisioner_id}` does not exist."
            raise not_found(message)
        return _provisioner(row)

    def touch(self, task_queue_id: str, expires: int, now: int) -> None:
        """Note that a queue is in use, within a transition; what it lasts is never shortened."""
        self.core.store.change(
            "INSERT INTO task_queues VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
            " expires = max(expires, excluded.expires), last_date_active = excluded.last_date_active",
            task_queue_id,
            expires,
            now,
        )


def _task_queue(row: tuple[Any, ...]) -> dict[str, Any]:
    return {"taskQueueId": row[0], **_activity(row)}


def _provisioner(row: tuple[Any, ...]) -> dict[str, Any]:
    return {"provisionerId": row[0], **_activity(row)}


def _activity(row: tuple[Any, ...]) -> dict[str, str]:
    _, expires, last_date_active = row
    return {
        "expires": times.text(expires),
        "lastDateActive": times.text(last_date_active),
        "description": "",
        "stability": "experimental",
    }


def _with_pair(task_queue: dict[str, Any]) -> dict[str, Any]:
    provisioner_id, worker_type = task_queue["taskQueueId"].split("/")
    return {**task_queue, "provisionerId": provisioner_id, "workerType": worker_type}
