"""Workers: claim runs of tasks, keep them, do what they say, and report how they ended.

Subclass `WorkerLoop` and write `run_task`; what it raises, from `outcomes`, says how a run ends.
"""

from __future__ import annotations

from .cancelled import Cancelled as Cancelled
from .command import CommandFailed as CommandFailed
from .command import CommandNotStarted as CommandNotStarted
from .command import CommandResult as CommandResult
from .command import CommandTimedOut as CommandTimedOut
from .config import WorkerConfig as WorkerConfig
from .loop import WorkerLoop as WorkerLoop
from .outcomes import ClaimLost as ClaimLost
from .outcomes import IntermittentTask as IntermittentTask
from .outcomes import InternalError as InternalError
from .outcomes import MalformedPayload as MalformedPayload
from .outcomes import Outcome as Outcome
from .outcomes import ResourceUnavailable as ResourceUnavailable
from .outcomes import TaskFailed as TaskFailed
from .outcomes import WorkerShutdown as WorkerShutdown
from .outcomes import outcome_for as outcome_for
from .task_run import TaskRun as TaskRun
