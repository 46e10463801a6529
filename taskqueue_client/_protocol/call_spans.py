"""Spans of OpenTelemetry for API calls. This module is imported only if tracing is on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlsplit

from taskqueue_client._version import __version__

from .api_responses import Response, ResponseRefused, TransportFailed
from .conversation import Call
from .wire import Attempt, Origin, Request, log

try:
    from opentelemetry import context, trace
except ImportError as error:
    raise ImportError("tracing needs opentelemetry-api: pip install 'taskqueue_client[otel]'") from error

R = TypeVar("R")

_failures = count()


def guarded(call: Callable[[], R], default: R) -> R:
    """Return the result of a call of the program's OpenTelemetry, or `default` if it raises an error.

    The SDK passes on the errors of span processors, samplers and propagators. Without this function, they
    would fail API calls, and end claiming.
    """
    try:
        return call()
    except Exception:  # noqa: BLE001 - calls and runs go on, whatever the error is
        log.log(
            logging.DEBUG if next(_failures) else logging.WARNING,
            "OpenTelemetry failed, so spans are missing or incomplete; later errors are logged as DEBUG",
            exc_info=True,
        )
        return default


class Tracer:
    """The package's tracer, from the tracer provider of the program. Errors of the provider are logged."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("taskqueue_client", __version__)

    def start_span(self, name: str, parent: context.Context | None = None, **options: Any) -> trace.Span:
        """Start a span. If that fails, return one that records nothing; its children are the parent's."""
        span_context = trace.get_current_span(parent).get_span_context()
        default: trace.Span = trace.NonRecordingSpan(span_context)
        return guarded(lambda: self._tracer.start_span(name, parent, **options), default)


def end(span: trace.Span) -> None:
    """End a span. Errors of span processors are logged."""
    guarded(span.end, None)


def fail(span: trace.Span, error_type: str) -> None:
    """Mark a span as failed. Messages of errors may contain secrets, so only the type is recorded."""
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR)


class CallSpans:
    """Makes a span for each attempt at a call, by OpenTelemetry's conventions for HTTP client spans.

    Names and attributes are those of https://opentelemetry.io/docs/specs/semconv/http/http-spans/; the
    name of a span has the endpoint instead of the path, which has too many values. The path of a root URL is
    not shown: in the URL of a task's proxy, it is a secret.
    """

    def __init__(self, root_url: str) -> None:
        parts, (host, port) = urlsplit(root_url), Origin.of(root_url)
        self._server: dict[str, str | int] = {"server.address": host.strip("[]"), "server.port": int(port)}
        self._root_url = root_url
        self._shown = f"{parts.scheme}://{host}:{port}{'/REDACTED' if parts.path else ''}"
        self._tracer = Tracer()

    def around(
        self, call: Call[Any], attempt: Attempt, resends: int
    ) -> Generator[Attempt, Response | None, Response]:
        """Yield an attempt, and make its span when the response or a failure comes.

        The span is made only then: it has no child spans, and costs a third less if all attributes are known
        at its start.
        """
        began, parent = time.time_ns(), context.get_current()
        try:
            response = yield attempt
        except BaseException as failure:
            status, error_type = _failed(failure)
            span = self._span(call, attempt.request, resends, status, began, parent)
            fail(span, error_type)
            end(span)
            raise
        assert response is not None  # noqa: S101 - `Attempts` guarantees it
        span = self._span(call, attempt.request, resends, response.status, began, parent)
        if response.status not in call.accepts:
            fail(span, str(response.status))
        end(span)
        return response

    def _span(
        self,
        call: Call[Any],
        request: Request,
        resends: int,
        status: int | None,
        began: int,
        parent: context.Context,
    ) -> trace.Span:
        url = self._shown + request.url.removeprefix(self._root_url)
        attributes = {**self._server, "http.request.method": call.method, "url.full": url}
        if status is not None:
            attributes["http.response.status_code"] = status
        if resends:
            attributes["http.request.resend_count"] = resends
        name = f"{call.method} {call.endpoint}"
        return self._tracer.start_span(
            name, parent, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=began
        )


def _failed(failure: BaseException) -> tuple[int | None, str]:
    """Return the HTTP status, if there was one, and the type of the error."""
    if isinstance(failure, ResponseRefused):
        return failure.status, type(failure.__cause__ or failure).__qualname__
    if isinstance(failure, TransportFailed):
        return None, "timeout" if failure.timed_out else type(failure.__cause__ or failure).__qualname__
    return None, "CancelledError" if isinstance(failure, GeneratorExit) else type(failure).__qualname__
