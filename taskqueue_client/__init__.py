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
from .client import Queue as Queue
from .credentials import Credentials as Credentials
from .credentials import temporary_credentials as temporary_credentials
from .errors import TaskQueueError as TaskQueueError
from .slugid import slugid as slugid

if TYPE_CHECKING:
    from .aio import AsyncQueue as AsyncQueue

_LAZY = {
    "AsyncQueue": ".aio",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
