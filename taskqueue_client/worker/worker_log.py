"""The worker's own log: events of the worker and its runs. `commands/task_log.py` has the logs of tasks."""

from __future__ import annotations

import logging

log = logging.getLogger("taskqueue_client.worker")
