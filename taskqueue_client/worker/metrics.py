"""Counters, gauges and histograms, and Prometheus' text format for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, Mapping[str, str], float]
"""What to add to the metric's name, labels, and the value."""


class Metric(Protocol):
    """Something that is counted or measured.

    Attributes:
        name: As Prometheus has it.
        help: What it is, in one line.
        kind: `counter`, `gauge` or `histogram`.
    """

    name: str
    help: str
    kind: str

    def samples(self) -> Iterator[Sample]:
        """What is shown."""
        ...


class Counter:
    """Something that only grows. Safe to use from any thread.

    Args:
        name: As Prometheus has it; ends in `_total`.
        help_text: What it is, in one line.
        label: What it is told apart by, if by anything.
        values: What the label may be; all are shown from the beginning, so that a rise from 0 is seen.
    """

    kind = "counter"

    def __init__(
        self, name: str, help_text: str, label: str | None = None, values: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.help = help_text
        self._label = label
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(values or [""], 0.0)

    def add(self, amount: float = 1, of: str = "") -> None:
        """Count.

        Args:
            amount: How much.
            of: The label's value.
        """
        with self._lock:
            self._values[of] += amount

    def value(self, of: str = "") -> float:
        """The count."""
        return self._values[of]

    def samples(self) -> Iterator[Sample]:
        """See `Metric.samples`."""
        for of, value in self._values.items():
            yield "", {} if self._label is None else {self._label: of}, value


class Gauge:
    """Something that goes up and down, as it is now.

    Args:
        name: As Prometheus has it.
        help_text: What it is, in one line.
        value: None if there is none now.
    """

    kind = "gauge"

    def __init__(self, name: str, help_text: str, value: float | None) -> None:
        self.name = name
        self.help = help_text
        self._value = value

    def samples(self) -> Iterator[Sample]:
        """See `Metric.samples`."""
        if self._value is not None:
            yield "", {}, self._value


class Histogram:
    """How often something was how large. Safe to use from any thread.

    Args:
        name: As Prometheus has it.
        help_text: What it is, in one line.
        buckets: Upper bounds, rising.
    """

    kind = "histogram"

    def __init__(self, name: str, help_text: str, buckets: Sequence[float]) -> None:
        self.name = name
        self.help = help_text
        self._bounds = (*buckets, float("inf"))
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        bucket = next(index for index, bound in enumerate(self._bounds) if value <= bound)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def samples(self) -> Iterator[Sample]:
        """See `Metric.samples`."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        for index, bound in enumerate(self._bounds):
            yield "_bucket", {"le": _number(bound)}, sum(counts[: index + 1])
        yield "_sum", {}, total
        yield "_count", {}, sum(counts)


def exposition(metrics: Sequence[Metric]) -> str:
    """The metrics in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for metric in metrics:
        lines += (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}")
        lines += (
            f"{metric.name}{suffix}{_labels(on)} {_number(value)}" for suffix, on, value in metric.samples()
        )
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
