"""The spans of a worker. This module is imported only if tracing is on.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging (claims), CI/CD (runs),
command-line programs (commands) and HTTP clients (API calls): https://opentelemetry.io/docs/specs/semconv/.
Messages of errors and arguments of commands may contain secrets, so no span has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from typing import Any, Self, cast

from taskqueue_client._protocol.call_spans import Tracer, end, fail, guarded  # explains a missing package

from opentelemetry import context, propagate, trace  # isort: skip

from taskqueue_client.models import ReasonResolved, TaskClaim
from taskqueue_client.worker.config import WorkerIdentity
from taskqueue_client.worker.outcomes import LOST, LossReason
from taskqueue_client.worker.worker_log import log

from .tracing import Attributes, RunTrace, Span, Tracing

_RESULTS: Mapping[str, str] = {
    ReasonResolved.COMPLETED.value: "success",
    ReasonResolved.FAILED.value: "failure",
    ReasonResolved.MALFORMED_PAYLOAD.value: "failure",
    LossReason.CANCELED.value: "cancellation",
    LossReason.DEADLINE_EXCEEDED.value: "timeout",
}
"""`cicd.pipeline.task.run.result` by outcome or loss reason; `error` for all others."""

_UNPROPAGATED = trace.set_span_in_context(trace.INVALID_SPAN, context.Context())
"""The context of a run that is not a part of another trace."""


class OpenTelemetryTracing(Tracing):
    """`Tracing` with the tracer provider and the propagator of the program."""

    def __init__(self, identity: WorkerIdentity, root_url: str) -> None:
        self._identity = identity
        self._root_url = root_url
        self._tracer = Tracer()
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            log.warning(
                "tracing is on, but the program has no tracer provider, so no spans are recorded: "
                "set up OpenTelemetry's SDK, or start the worker with opentelemetry-instrument"
            )

    def span(
        self, name: str, attributes: Attributes | None = None, *, is_client: bool = False
    ) -> AbstractContextManager[Span]:
        """See `Tracing`."""
        kind = trace.SpanKind.CLIENT if is_client else trace.SpanKind.INTERNAL
        return _CurrentSpan(self._tracer.start_span(name, kind=kind, attributes=attributes))

    def claimed(self, began: int, claims: Sequence[TaskClaim]) -> AbstractContextManager[object]:
        """See `Tracing`."""
        if not claims:
            return nullcontext()
        span = self._claim_span(began, claims[0].status.task_queue_id)
        span.set_attribute("messaging.batch.message_count", len(claims))
        return _CurrentSpan(span)

    def claim_failed(self, began: int, task_queue_id: str, error: Exception) -> None:
        """See `Tracing`."""
        span = self._claim_span(began, task_queue_id)
        fail(span, type(error).__qualname__)
        end(span)

    def _claim_span(self, began: int, task_queue_id: str) -> trace.Span:
        attributes = {
            "messaging.system": "taskcluster",
            "messaging.operation.name": "claimWork",
            "messaging.operation.type": "receive",
            "messaging.destination.name": task_queue_id,
        }
        return self._tracer.start_span(
            f"receive {task_queue_id}", kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=began
        )

    def begin_run(self, claim: TaskClaim) -> RunTrace:
        """See `Tracing`."""
        link = trace.get_current_span().get_span_context()
        parent = _context_of(claim)
        span = self._tracer.start_span(
            f"run {claim.status.task_queue_id}",
            parent,
            attributes=self._attributes_of(claim),
            links=[trace.Link(link)] if link.is_valid else None,
        )
        return _RunTrace(trace.set_span_in_context(span, parent))

    def _attributes_of(self, claim: TaskClaim) -> Attributes:
        task_id, run_id = claim.status.task_id, claim.run_id
        return {
            "cicd.pipeline.run.id": claim.status.task_group_id,
            "cicd.pipeline.task.name": claim.task.get("metadata", {}).get("name", ""),
            "cicd.pipeline.task.run.id": f"{task_id}/{run_id}",
            "cicd.pipeline.task.run.url.full": f"{self._root_url}/tasks/{task_id}/runs/{run_id}",
            "cicd.worker.id": f"{self._identity.worker_group}/{self._identity.worker_id}",
        }

    def variables(self) -> dict[str, str]:
        """See `Tracing`.

        The names are those of https://opentelemetry.io/docs/specs/otel/context/env-carriers/.
        """
        carrier: dict[str, str] = {}
        guarded(lambda: propagate.inject(carrier), None)
        return {re.sub(r"\W", "_", name).upper(): value for name, value in carrier.items()}


def _context_of(claim: TaskClaim) -> context.Context:
    """Return the trace context in `extra` of a task definition, such as its `traceparent`."""
    extra: Any = claim.task.get("extra")
    if not isinstance(extra, dict):
        return _UNPROPAGATED
    given = cast("dict[str, Any]", extra)
    try:
        fields = propagate.get_global_textmap().fields
        carrier = {name: text for name in fields if isinstance(text := given.get(name), str)}
        return propagate.extract(carrier, _UNPROPAGATED) if carrier else _UNPROPAGATED
    except Exception as error:  # noqa: BLE001 - a task must not end the worker, whatever propagator is used
        log.warning("ignoring the trace context of task %s: %s", claim.status.task_id, type(error).__name__)
        return _UNPROPAGATED


class _CurrentSpan(Span):
    """Makes a span current, and ends it; unlike `trace.use_span`, it does not record messages of errors."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token: Token[context.Context] | None = None

    def set(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._token is not None:
            context.detach(self._token)
        if kind is not None:
            fail(self._span, kind.__qualname__)
        end(self._span)


class _RunTrace(RunTrace):
    def __init__(self, current: context.Context) -> None:
        super().__init__()
        self._span = trace.get_current_span(current)
        self._has_outcome = False
        self.context.run(context.attach, current)

    def set_outcome(self, outcome: str, reason: str, error: BaseException | None) -> None:
        self._has_outcome = True
        result = _RESULTS.get(reason if outcome == LOST else outcome, "error")
        self._span.set_attributes({"cicd.pipeline.task.run.result": result, "taskqueue.outcome": outcome})
        if result not in {"success", "cancellation"}:
            fail(self._span, reason or (outcome if error is None else type(error).__qualname__))

    def end(self) -> None:
        if not self._has_outcome:
            self.set_outcome(LOST, LossReason.OTHER.value, None)
        end(self._span)
