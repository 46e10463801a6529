"""Write workers for the Taskcluster Queue, submit tasks to it, and test both on one machine.

`Queue` and `AsyncQueue` are the typed clients, `WorkerLoop` is the worker to subclass, `LocalQueue` is
the queue at home. What costs time to import is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors
from ._retry import RetryPolicy
from ._version import __version__ as __version__
from .credentials import Credentials, temporary_credentials
from .definitions import TaskDefinition, from_now, task_definition
from .errors import TaskQueueError
from .slugid import slugid

if TYPE_CHECKING:
    from .aio import AsyncQueue
    from .client import Queue
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
    "ResourceUnavailable",
    "RetryPolicy",
    "TaskDefinition",
    "TaskFailed",
    "TaskQueueError",
    "TaskRun",
    "WorkerLoop",
    "WorkerShutdown",
    "errors",
    "from_now",
    "slugid",
    "task_definition",
    "temporary_credentials",
]

_LAZY = {
    "AsyncQueue": ".aio",
    "LocalQueue": ".local",
    "Queue": ".client",
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
    """What is public, also what has not been imported yet."""
    return sorted({*globals(), *__all__})
