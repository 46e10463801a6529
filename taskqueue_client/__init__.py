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
    "AsyncQueue",
    "ClaimLost",
    "Credentials",
    "IntermittentTask",
    "InternalError",
    "LocalQueue",
    "MalformedPayload",
    "Queue",
    "ReasonResolved",
    "ResourceUnavailable",
    "RetryPolicy",
    "TaskDefinition",
    "TaskFailed",
    "TaskQueueError",
    "TaskRun",
    "TaskState",
    "WorkerLoop",
    "WorkerShutdown",
    "errors",
    "follow_group",
    "follow_group_async",
    "from_now",
    "missing_scopes",
    "plan_graph",
    "slugid",
    "submit_graph",
    "submit_graph_async",
    "task_definition",
    "temporary_credentials",
]

_LAZY = {
    "AsyncQueue": ".aio",
    "LocalQueue": ".local",
    "Queue": ".client",
    "follow_group": ".graph",
    "follow_group_async": ".graph",
    "plan_graph": ".graph",
    "submit_graph": ".graph",
    "submit_graph_async": ".graph",
    "ClaimLost": ".worker",
    "IntermittentTask": ".worker",
    "InternalError": ".worker",
    "MalformedPayload": ".worker",
    "ResourceUnavailable": ".worker",
    "TaskFailed": ".worker",
    "TaskRun": ".worker",
    "WorkerLoop": ".worker",
    "WorkerShutdown": ".worker",
}


def __getattr__(name: str) -> Any:
    """Import what is public and was not asked for yet (PEP 562)."""
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that have not been imported yet."""
    return sorted({*globals(), *__all__})
