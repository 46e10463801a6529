"""The interface of a worker's tracing. These classes make no spans: they are used when tracing is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context

from taskqueue_client.models import TaskClaim

Attributes = Mapping[str, str | int]


class Span:
    """A span that has begun."""

    def set(self, name: str, value: str | int) -> None:
        """Set an attribute."""


class RunTrace:
    """The span of a run, from its claim to its end.

    Attributes:
        context: The context in which the span is current. Tasks and threads that work on the run use copies.
    """

    def __init__(self) -> None:
        self.context = Context()

    def set_outcome(self, outcome: str, reason: str, error: BaseException | None) -> None:
        """Note how the run ended: what was reported, or `lost` with the reason, and the error, if any."""

    def end(self) -> None:
        """End the span; a run without an outcome counts as an error."""


_NO_SPAN = nullcontext(Span())
_NO_TRACE = RunTrace()


class Tracing:
    """Makes the spans of a worker. Its methods may be called from any thread."""

    def span(
        self, name: str, attributes: Attributes | None = None, *, is_client: bool = False
    ) -> AbstractContextManager[Span]:
        """Return a context manager in which a new span is current; an exception marks the span as failed.

        Use few different names. `is_client` says that the span is about a process or service that is called.
        """
        del name, attributes, is_client
        return _NO_SPAN

    def claimed(self, began: int, claims: Sequence[TaskClaim]) -> AbstractContextManager[object]:
        """Return a context manager in which the span of a claim request that has ended is current.

        The request began at `began`, in nanoseconds since the epoch. There is no span for an empty response.
        """
        del began, claims
        return _NO_SPAN

    def claim_failed(self, began: int, task_queue_id: str, error: Exception) -> None:
        """Make the span of a claim request that failed."""

    def begin_run(self, claim: TaskClaim) -> RunTrace:
        """Begin the span of a run, in the trace that the task's definition names, or in a new one."""
        del claim
        return _NO_TRACE

    def variables(self) -> dict[str, str]:
        """Return the environment variables that pass the current span to a command."""
        return {}


NO_TRACING = Tracing()
