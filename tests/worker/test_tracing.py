"""The spans of a worker, as OpenTelemetry's SDK records them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from taskqueue_client import slugid
from taskqueue_client._protocol import call_spans
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Respond
from taskqueue_client.worker import IntermittentTask, TaskFailed, TaskRun, WorkerIdentity
from taskqueue_client.worker.run_spans import OpenTelemetryTracing
from tests.recorded_spans import Spans, attributes_of, context_of, spans
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import Stuck, Working, artifact, work, worker_for

__all__ = ["spans"]

RUN = f"run {TASK_QUEUE_ID}"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def upstream_artifact(world: World) -> str:
    """Return the identifier of a completed task with an artifact."""
    task_id = world.create(taskQueueId="proj/upstream")
    [claim] = world.queue.claim_work("proj/upstream", worker_group="tests", worker_id="upstream").tasks
    run = world.queue.with_credentials(claim.credentials)
    run.upload_artifact(task_id, 0, "public/app.zip", b"application", expires=claim.status.expires)
    run.report_completed(task_id, 0)
    return task_id


def test_a_run_is_one_trace_with_its_attempt_commands_downloads_uploads_and_report(
    world: World, spans: Spans
) -> None:
    upstream, task_id = upstream_artifact(world), world.create()

    def handler(task: TaskRun) -> None:
        task.upstream_artifacts([{"taskId": upstream, "paths": ["public/app.zip"]}])
        task.run_command(["sh", "-c", "exit 0"])
        task.upload_artifact("public/report.txt", text="fine")

    work(world, handler, tracing=True)
    run = spans.one(RUN)
    of_trace = [span for span in spans.all() if context_of(span).trace_id == context_of(run).trace_id]
    parents = {span.name: spans.parent_of(span) for span in of_trace}
    assert parents == {
        RUN: None,
        "attempt": RUN,
        "POST statuses": "attempt",
        "download artifact": "attempt",
        "GET artifact": "download artifact",
        "sh": "attempt",
        "upload artifact": RUN,
        "POST createArtifact": parents["POST createArtifact"],
        "POST reportCompleted": RUN,
    }
    assert run.kind is SpanKind.INTERNAL
    assert run.status.status_code is StatusCode.UNSET
    assert dict(attributes_of(run)) == {
        "cicd.pipeline.run.id": task_id,
        "cicd.pipeline.task.name": "test task",
        "cicd.pipeline.task.run.id": f"{task_id}/0",
        "cicd.pipeline.task.run.url.full": f"{world.local.root_url}/tasks/{task_id}/runs/0",
        "cicd.worker.id": "group/worker",
        "cicd.pipeline.task.run.result": "success",
        "taskqueue.outcome": "completed",
    }
    command = spans.one("sh")
    assert command.kind is SpanKind.CLIENT
    assert attributes_of(command)["process.executable.name"] == "sh"
    assert attributes_of(command)["process.exit.code"] == 0
    uploads = {attributes_of(each)["artifact.filename"]: each for each in spans.named("upload artifact")}
    assert uploads.keys() == {"public/report.txt", "public/logs/live_backing.log"}
    assert attributes_of(uploads["public/report.txt"])["file.size"] == 4
    assert attributes_of(spans.one("download artifact"))["file.size"] == 11


def test_the_claim_is_a_span_to_which_its_runs_link(world: World, spans: Spans) -> None:
    world.create()
    work(world, lambda _: None, tracing=True)
    claim, run = spans.one(f"receive {TASK_QUEUE_ID}"), spans.one(RUN)
    assert [link.context for link in run.links] == [context_of(claim)]
    assert context_of(claim).trace_id != context_of(run).trace_id
    assert claim.kind is SpanKind.CLIENT
    assert attributes_of(claim)["messaging.batch.message_count"] == 1
    assert attributes_of(claim)["messaging.destination.name"] == TASK_QUEUE_ID


def test_a_claim_request_that_fails_is_a_span_and_one_without_work_is_none(
    world: World, spans: Spans
) -> None:
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=502))
    with Working(world, worker_for(world, lambda _: None, tracing=True)):
        until(lambda: spans.named(f"receive {TASK_QUEUE_ID}"))
    assert [span.name for span in spans.all()] == [f"receive {TASK_QUEUE_ID}"]
    assert attributes_of(spans.all()[0])["error.type"] == "InternalServerError"
    assert spans.all()[0].status.status_code is StatusCode.ERROR


def test_a_run_belongs_to_the_trace_that_its_task_names(world: World, spans: Spans) -> None:
    world.create(extra={"traceparent": TRACEPARENT, "tracestate": "vendor=1", "other": {"a": 1}})
    work(world, lambda _: None, tracing=True)
    context = context_of(spans.one(RUN))
    assert trace.format_trace_id(context.trace_id) == TRACE_ID
    assert context.trace_state.to_header() == "vendor=1"


@pytest.mark.parametrize("extra", [{}, {"traceparent": "00-nonsense-1-01"}, {"traceparent": ["a list"]}])
def test_a_run_begins_a_new_trace_if_its_task_does_not_name_one(
    world: World, spans: Spans, extra: dict[str, object]
) -> None:
    world.create(extra=extra)
    work(world, lambda _: None, tracing=True)
    assert spans.one(RUN).parent is None


class FailingPropagator(TraceContextTextMapPropagator):
    """A propagator that fails for a value that it does not expect, such as one of a company."""

    def extract(self, carrier: Any, *args: Any, **options: Any) -> Context:
        int(carrier["traceparent"].partition("-")[0], 16)
        return super().extract(carrier, *args, **options)


def test_a_trace_context_for_which_the_propagator_fails_does_not_end_the_worker(
    world: World, spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    propagator = FailingPropagator()
    monkeypatch.setattr(propagate, "get_global_textmap", lambda: propagator)
    monkeypatch.setattr(propagate, "extract", propagator.extract)
    task_id, other = world.create(extra={"traceparent": "no-hex"}), world.create()
    work(world, lambda _: None, tracing=True, max_tasks=2, concurrency=2)
    assert [world.queue.status(each).status.state for each in (task_id, other)] == ["completed"] * 2
    assert all(each.parent is None for each in spans.named(RUN))
    assert f"ignoring the trace context of task {task_id}: ValueError" in caplog.messages


class Raising(SpanProcessor, Sampler, TraceContextTextMapPropagator):
    """A part of the program's OpenTelemetry that raises in one of its methods, each time."""

    def __init__(self, method: str) -> None:
        setattr(self, method, self._fail)

    def _fail(self, *_: object, **__: object) -> NoReturn:
        message = "instrumentation"
        raise RuntimeError(message)

    def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
        return ALWAYS_ON.should_sample(*args, **options)

    def get_description(self) -> str:
        return "raising"


@pytest.mark.parametrize("method", ["on_start", "on_end", "should_sample", "inject"])
def test_runs_are_reported_though_a_part_of_opentelemetry_raises(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    raising = Raising(method)
    provider = TracerProvider(sampler=raising, shutdown_on_exit=False)
    provider.add_span_processor(raising)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(propagate, "get_global_textmap", lambda: raising)
    monkeypatch.setattr(call_spans, "_failures", count())
    tasks = [world.create() for _ in range(2)]
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=503))
    work(world, lambda task: task.run_command(["true"]), tracing=True, max_tasks=2)
    assert [world.queue.status(each).status.state for each in tasks] == ["completed"] * 2
    warned = [each for each in caplog.records if each.msg.startswith("OpenTelemetry failed")]
    assert len(warned) == 1
    assert "RuntimeError: instrumentation" in (warned[0].exc_text or "")


@pytest.mark.parametrize("is_async", [False, True])
def test_commands_get_the_traceparent_of_their_own_span(world: World, spans: Spans, is_async: bool) -> None:  # noqa: FBT001 - a case
    task_id = world.create(extra={"traceparent": TRACEPARENT, "tracestate": "vendor=1"})
    command = ["sh", "-c", "echo $TRACEPARENT $TRACESTATE > told"]

    def handler(task: TaskRun) -> None:
        task.run_command(command)
        task.upload_artifact("public/told", "told")

    async def awaited(task: TaskRun) -> None:
        await task.run_command_async(command)
        task.upload_artifact("public/told", "told")

    work(world, handler, awaited=awaited if is_async else None, tracing=True)
    span = context_of(spans.one("sh"))
    told = artifact(world, task_id, "public/told").split()
    assert told == [f"00-{TRACE_ID}-{trace.format_span_id(span.span_id)}-01", "vendor=1"]
    assert spans.parent_of(spans.one("sh")) == "attempt"


def test_commands_get_no_traceparent_when_tracing_is_off(world: World) -> None:
    task_id = world.create(extra={"traceparent": TRACEPARENT})

    def handler(task: TaskRun) -> None:
        told = task.run_command(["sh", "-c", "env"], capture=True).stdout or ""
        task.upload_artifact("public/told", text=told)

    work(world, handler)
    assert "TRACEPARENT" not in artifact(world, task_id, "public/told")


@pytest.mark.parametrize("is_async", [False, True])
def test_spans_and_calls_of_a_handler_belong_to_its_attempt(
    world: World,
    spans: Spans,
    is_async: bool,  # noqa: FBT001 - a case
) -> None:
    world.create()

    def handler(task: TaskRun) -> None:
        with trace.get_tracer("handler").start_as_current_span("linking"):
            task.queue.ping()

    async def awaited(task: TaskRun) -> None:
        with trace.get_tracer("handler").start_as_current_span("linking"):
            await task.async_queue.ping()

    work(world, handler, awaited=awaited if is_async else None, tracing=True)
    assert spans.parent_of(spans.one("linking")) == "attempt"
    assert spans.parent_of(spans.one("GET ping")) == "linking"


def test_each_run_has_its_own_trace_when_many_run_at_a_time(world: World, spans: Spans) -> None:
    together = threading.Barrier(4, timeout=WAIT)
    task_ids = [world.create() for _ in range(4)]

    def handler(task: TaskRun) -> None:
        together.wait()
        with trace.get_tracer("handler").start_as_current_span("work", attributes={"task": task.task_id}):
            task.queue.ping()

    work(world, handler, tracing=True, concurrency=4, max_tasks=4)
    by_trace = {
        context_of(run).trace_id: attributes_of(run)["cicd.pipeline.task.run.id"] for run in spans.named(RUN)
    }
    assert set(by_trace.values()) == {f"{task_id}/0" for task_id in task_ids}
    for span in spans.named("work"):
        assert by_trace[context_of(span).trace_id] == f"{attributes_of(span)['task']}/0"
    assert {context_of(span).trace_id for span in spans.named("GET ping")} == by_trace.keys()


def test_each_attempt_of_a_handler_is_a_span(world: World, spans: Spans) -> None:
    world.create()
    calls: list[int] = []

    def handler(_: TaskRun) -> None:
        calls.append(1)
        if len(calls) == 1:
            message = "the mirror is busy"
            raise IntermittentTask(message)

    work(world, handler, tracing=True, intermittent_attempts=2)
    assert len(spans.named("attempt")) == 2


def test_a_failed_run_names_the_type_of_its_error_and_never_its_message(world: World, spans: Spans) -> None:
    world.create()
    secret = slugid()

    def handler(task: TaskRun) -> None:
        task.run_command(["sh", "-c", f"exit 3 # {secret}"])
        raise TaskFailed(secret)

    work(world, handler, tracing=True)
    run, command = spans.one(RUN), spans.one("sh")
    assert attributes_of(run)["cicd.pipeline.task.run.result"] == "failure"
    assert attributes_of(run)["error.type"] == "CommandFailed"
    assert attributes_of(command)["process.exit.code"] == 3
    assert {run.status.status_code, command.status.status_code} == {StatusCode.ERROR}
    assert secret not in "".join(span.to_json() for span in spans.all())


def test_a_canceled_run_is_a_cancellation_and_not_an_error(world: World, spans: Spans) -> None:
    task_id = world.create()
    begun = threading.Event()

    def handler(task: TaskRun) -> None:
        begun.set()
        task.canceled.wait(WAIT)

    with Working(world, worker_for(world, handler, tracing=True, max_tasks=1)) as working:
        assert begun.wait(WAIT)
        world.queue.cancel_task(task_id)
        working.wait_for_end()
    run = spans.one(RUN)
    assert attributes_of(run)["cicd.pipeline.task.run.result"] == "cancellation"
    assert attributes_of(run)["taskqueue.outcome"] == "lost"
    assert run.status.status_code is StatusCode.UNSET


def test_a_run_that_its_worker_has_given_up_is_lost(world: World, spans: Spans) -> None:
    world.create()
    with Stuck() as stuck:
        worker = worker_for(world, stuck, tracing=True, shutdown_timeout=0.2)
        with Working(world, worker) as working:
            assert stuck.started.wait(WAIT)
            worker.shutdown()
            working.wait_for_end()
        run = spans.one(RUN)
    assert attributes_of(run)["taskqueue.outcome"] == "lost"
    assert attributes_of(run)["error.type"] == "other"
    assert attributes_of(run)["cicd.pipeline.task.run.result"] == "error"


def test_reclaims_belong_to_the_trace_of_their_run_and_polls_make_no_spans(spans: Spans) -> None:
    with LocalQueue(claim_timeout=2) as local:
        world = World(local)
        world.create()

        def handler(_: TaskRun) -> None:
            until(lambda: spans.named("POST reclaimTask"))

        work(world, handler, tracing=True)
        world.close()
    assert spans.parent_of(spans.named("POST reclaimTask")[0]) == RUN
    assert not [span for span in spans.all() if "statuses" in span.name.lower()]


def test_a_program_without_a_tracer_provider_is_warned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    OpenTelemetryTracing(WorkerIdentity(TASK_QUEUE_ID, "group", "worker"), "https://tc.example.com")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no tracer provider" in caplog.text


OFF = """
import json, sys
from taskqueue_client import Queue, slugid
from taskqueue_client.local import LocalQueue
from taskqueue_client.worker import WorkerLoop
from tests.worker.queue_world import TASK_QUEUE_ID, World

class Worker(WorkerLoop):
    def run_task(self, task):
        task.run_command(["true"])
        task.queue.ping()

with LocalQueue() as local:
    world = World(local)
    world.create()
    settings = {"task_queue_id": TASK_QUEUE_ID, "worker_group": "g", "worker_id": "w", "metrics_port": 0}
    Worker(root_url=local.root_url, credentials=local.credentials, max_tasks=1, **settings).serve()
    world.close()
print(json.dumps([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]))
"""


def test_opentelemetry_is_not_imported_when_tracing_is_off() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OFF],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT,
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == []


def test_a_missing_opentelemetry_is_an_error_that_names_the_extra_before_anything_is_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "taskqueue_client._protocol.call_spans", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'taskqueue_client\[otel\]'"):
        worker_for(world, lambda _: None, tracing=True)
