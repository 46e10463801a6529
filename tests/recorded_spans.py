"""The spans that the code under test makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@cache
def _exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # an example may have set the provider of this process
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, (name, [span.name for span in self.all()])
        return found[0]

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def parent_of(self, span: ReadableSpan) -> str | None:
        """The name of the span's parent; None if it has none."""
        return next((each.name for each in self.all() if is_child(span, each)), None)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == context_of(parent).span_id


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter = _exporter()
    exporter.clear()
    yield Spans(exporter)
    exporter.clear()
