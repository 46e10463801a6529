"""Write workers for the Taskcluster Queue, submit tasks to it, and test both on one machine.

`Queue` and `AsyncQueue` are the typed clients, `WorkerLoop` is the base class of workers, `LocalQueue` runs a
queue on this machine. Names that take time to import are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from taskqueue_client._protocol.retry import RetryPolicy

from . import errors
from ._version import __version__ as __version__
from .credentials import Credentials, temporary_credentials
from .definitions import TaskDefinition, from_now, task_definition
from .errors import TaskQueueError
from .models import ReasonResolved, TaskState
from .scopes import missing_scopes
from .slugid import slugid

if TYPE_CHECKING:
    from .aio import AsyncQueue
    from .client import Queue
    from .graph import follow_group, follow_group_async, plan_graph, submit_graph, submit_graph_async
    from .local import LocalQueue
    from .worker import (
        ClaimLost,
        IntermittentTask,
        InternalError,
        MalformedPayload,
        ResourceUnavailable,
        TaskFailed,
        TaskRun,
        WorkerLoop,
        WorkerShutdown,
    )

__all__ = [
    "AsyncQueue", "ClaimLost", "Credentials", "IntermittentTask", "InternalError", "LocalQueue",
    "MalformedPayload", "Queue", "ReasonResolved", "ResourceUnavailable", "RetryPolicy", "TaskDefinition",
    "TaskFailed", "TaskQueueError", "TaskRun", "TaskState", "WorkerLoop", "WorkerShutdown", "errors",
    "follow_group", "follow_group_async", "from_now", "missing_scopes", "plan_graph", "slugid",
    "submit_graph", "submit_graph_async", "task_definition", "temporary_credentials",
]  # fmt: skip

_LAZY = {
    ".aio": ["AsyncQueue"],
    ".client": ["Queue"],
    ".graph": ["follow_group", "follow_group_async", "plan_graph", "submit_graph", "submit_graph_async"],
    ".local": ["LocalQueue"],
    ".worker": [
        "ClaimLost", "IntermittentTask", "InternalError", "MalformedPayload", "ResourceUnavailable",
        "TaskFailed", "TaskRun", "WorkerLoop", "WorkerShutdown",
    ],
}  # fmt: skip
"""The names that are imported on first use, by module."""


if not TYPE_CHECKING:  # a type checker that saw `__getattr__` would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use (PEP 562)."""
        for module, names in _LAZY.items():
            if name in names:
                globals()[name] = value = getattr(importlib.import_module(module, __name__), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that have not been imported yet."""
    return sorted({*globals(), *__all__})
