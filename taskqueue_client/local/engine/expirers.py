"""The nightly jobs: what has been expired for half an hour is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskqueue_client.local.engine import times

if TYPE_CHECKING:
    from taskqueue_client.local.engine.core import Core

_GRACE = 30 * times.MINUTE
_TIME_OF_DAY = times.HOUR + 10 * times.MINUTE  # UTC: the service's last job of the night

_REMOVALS = (
    "DELETE FROM task_queues WHERE expires < ?1",
    "DELETE FROM workers WHERE expires < ?1 AND quarantine_until < ?1",
    "DELETE FROM tasks WHERE expires < ?1",
    "DELETE FROM task_groups WHERE expires < ?1",
    "DELETE FROM dependencies WHERE expires < ?1",
    "DELETE FROM artifacts WHERE expires < ?1",
)


class Expirers:
    """All jobs run together, once a night."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.next_run = _next_night(core.now())

    def run_due(self) -> int:
        """Run the jobs if a night has passed; how often that was done."""
        now = self.core.now()
        if now < self.next_run:
            return 0
        self.next_run = _next_night(now)
        self.run()
        return 1

    def run(self) -> None:
        """Remove what has expired. Artifacts' data goes before their records, so that none is forgotten.

        The data of objects goes with the object service's own job.
        """
        self.core.storage.expire()
        self._delete_data()
        with self.core.transition() as now:
            self.core.store.change("DELETE FROM pending WHERE expires < ?", now)
            for removal in _REMOVALS:
                self.core.store.change(removal, now - _GRACE)
            # the next task of the same id must not meet them
            self.core.store.change("DELETE FROM claims WHERE task_id NOT IN (SELECT task_id FROM tasks)")

    def _delete_data(self) -> None:
        expired = self.core.store.rows(
            "SELECT task_id || '/' || run_id || '/' || name FROM artifacts"
            " WHERE expires < ? AND storage_type = 's3'",
            self.core.now() - _GRACE,
        )
        for (key,) in expired:
            self.core.storage.delete("s3", key)


def _next_night(now: int) -> int:
    """The next moment of that time of day, after now."""
    return (now - _TIME_OF_DAY) // times.DAY * times.DAY + times.DAY + _TIME_OF_DAY
