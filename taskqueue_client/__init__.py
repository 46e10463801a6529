"""Write workers for the Taskcluster Queue, submit tasks to it, and test both on one machine.

`Queue` and `AsyncQueue` are the typed clients, `WorkerLoop` is the worker to subclass, `LocalQueue` is
the queue at home. What costs time to import is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors as errors
from ._retry import RetryPolicy as RetryPolicy
from ._version import __version__ as __version__
from .credentials import Credentials as Credentials
from .credentials import temporary_credentials as temporary_credentials
from .definitions import TaskDefinition as TaskDefinition
from .definitions import from_now as from_now
from .definitions import task_definition as task_definition
from .errors import TaskQueueError as TaskQueueError
from .slugid import slugid as slugid

if TYPE_CHECKING:
    from .aio import AsyncQueue as AsyncQueue
    from .client import Queue as Queue
    from .local import LocalQueue as LocalQueue
    from .worker import ClaimLost as ClaimLost
    from .worker import IntermittentTask as IntermittentTask
    from .worker import InternalError as InternalError
    from .worker import MalformedPayload as MalformedPayload
    from .worker import ResourceUnavailable as ResourceUnavailable
    from .worker import TaskFailed as TaskFailed
    from .worker import TaskRun as TaskRun
    from .worker import WorkerLoop as WorkerLoop
    from .worker import WorkerShutdown as WorkerShutdown

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
    return sorted({*globals(), *_LAZY})
