"""The spans of API calls, as OpenTelemetry's SDK records them."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from taskqueue_client import AsyncQueue, Queue, calls, slugid
from taskqueue_client._protocol.api_responses import Response
from taskqueue_client._protocol.call_spans import CallSpans
from taskqueue_client._protocol.retry import PolicyRetries, RetryPolicy
from taskqueue_client._protocol.wire import Wire, attempts
from taskqueue_client.clock import SystemClock
from taskqueue_client.errors import CallTimedOut, ConnectionFailed, ResourceNotFound, UnreadableResponse
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Respond
from tests.recorded_spans import Spans, attributes_of, spans

__all__ = ["spans"]


def port_of(local: LocalQueue) -> int:
    return int(local.root_url.rpartition(":")[2])


def test_a_call_is_a_client_span_with_the_attributes_of_http(local: LocalQueue, spans: Spans) -> None:
    with Queue(local.root_url, tracing=True) as queue:
        queue.ping()
    span = spans.one("GET ping")
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    assert dict(attributes_of(span)) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": port_of(local),
        "url.full": f"{local.root_url}/api/queue/v1/ping",
    }


async def test_a_call_of_the_asynchronous_client_is_a_span_too(local: LocalQueue, spans: Spans) -> None:
    async with AsyncQueue(local.root_url, tracing=True) as queue:
        await queue.ping()
    assert attributes_of(spans.one("GET ping"))["http.response.status_code"] == 200


def test_each_attempt_is_a_span_that_says_how_many_were_before(local: LocalQueue, spans: Spans) -> None:
    local.faults.add(Respond(endpoint="queue.ping", status=503, times=2))
    with Queue(local.root_url, tracing=True).with_options(wait_initial=0.01, wait_jitter=0) as queue:
        queue.ping()
    attempts = [attributes_of(each) for each in spans.named("GET ping")]
    assert [each["http.response.status_code"] for each in attempts] == [503, 503, 200]
    assert [each.get("http.request.resend_count") for each in attempts] == [None, 1, 2]
    assert [each.get("error.type") for each in attempts] == ["503", "503", None]
    statuses = [each.status.status_code for each in spans.named("GET ping")]
    assert statuses == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]


def test_a_refusal_is_an_error_with_its_status(local: LocalQueue, spans: Spans) -> None:
    with (
        Queue(local.root_url, local.credentials, tracing=True) as queue,
        pytest.raises(ResourceNotFound),
    ):
        queue.status(slugid())
    assert attributes_of(spans.one("GET status"))["error.type"] == "404"


def test_a_call_without_a_response_names_the_failure(spans: Spans) -> None:
    with LocalQueue() as gone:
        root_url = gone.root_url
    with (
        Queue(root_url, tracing=True).with_options(attempts=1) as queue,
        pytest.raises(ConnectionFailed),
    ):
        queue.ping()
    span = spans.one("GET ping")
    assert span.status.status_code is StatusCode.ERROR
    assert "http.response.status_code" not in attributes_of(span)
    assert attributes_of(span)["error.type"]


def test_a_response_that_is_too_large_is_an_error_with_its_status(
    local: LocalQueue, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskqueue_client._transport.synchronous.MAX_RESPONSE", 1)
    with Queue(local.root_url, tracing=True) as queue, pytest.raises(UnreadableResponse):
        queue.ping()
    span = spans.one("GET ping")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["http.response.status_code"] == 200
    assert attributes_of(span)["error.type"] == "ResponseRefused"


def test_a_call_that_takes_too_long_is_a_timeout(spans: Spans) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        root_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Queue(root_url, tracing=True).with_options(attempts=1, read_timeout=0.05) as queue,
            pytest.raises(CallTimedOut),
        ):
            queue.ping()
    assert attributes_of(spans.one("GET ping"))["error.type"] == "timeout"


async def test_a_call_whose_task_is_canceled_ends_its_span(local: LocalQueue, spans: Spans) -> None:
    async with AsyncQueue(local.root_url, local.credentials, tracing=True) as queue:
        long_poll = asyncio.create_task(queue.claim_work("p/w", worker_group="g", worker_id="w", tasks=1))
        await asyncio.sleep(0)
        long_poll.cancel()
        await asyncio.wait([long_poll])
        del long_poll
    span = spans.one("POST claimWork")
    assert attributes_of(span)["error.type"] == "CancelledError"


def test_a_span_begins_with_its_attempt_in_the_trace_of_that_moment(spans: Spans) -> None:
    tracer = trace.get_tracer("test")
    wire = Wire("https://tc.example.com", None, SystemClock())
    steps = attempts(wire, PolicyRetries(RetryPolicy()), calls.ping(), CallSpans("https://tc.example.com"))
    with tracer.start_as_current_span("caller"):
        next(steps)
    between = time.time_ns()
    with tracer.start_as_current_span("another"), suppress(StopIteration):
        steps.send(Response(200, {}, b'{"alive": true, "uptime": 1}'))
    span = spans.one("GET ping")
    assert spans.parent_of(span) == "caller"
    assert (span.start_time or between) < between <= (span.end_time or 0)


def test_the_path_of_a_root_url_is_not_shown_as_that_of_a_task_proxy_is_a_secret(spans: Spans) -> None:
    with LocalQueue() as gone:
        root_url = gone.root_url
    with (
        Queue(f"{root_url}/secret-path", tracing=True).with_options(attempts=1) as queue,
        pytest.raises(ConnectionFailed),
    ):
        queue.ping()
    assert attributes_of(spans.one("GET ping"))["url.full"] == f"{root_url}/REDACTED/api/queue/v1/ping"


def test_calls_make_no_spans_unless_tracing_is_on(local: LocalQueue, spans: Spans) -> None:
    with Queue(local.root_url, tracing=True) as traced:
        Queue(local.root_url).ping()
        traced.with_options(tracing=False).ping()
        assert spans.all() == []
        traced.with_credentials(None).ping()
        assert len(spans.all()) == 1
