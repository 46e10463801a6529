"""The check of a task definition: what `create_task` does before it sends anything."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from benchmarks.inputs import Inputs
from benchmarks.measure import ROUNDS, Row, at_most, worst
from taskqueue_client._protocol.schemas import check_definition
from taskqueue_client.definitions import TaskDefinition

COUNT = 500


def rows() -> Iterator[Row]:
    yield at_most("check of a definition of 2.5 kB, µs", "", worst(_of_usual), 25)
    yield at_most("check of 10,000 dependencies, ms", "", worst(_of_large), 4)


def _of_usual(inputs: Inputs) -> float:
    definitions = inputs.definitions(COUNT)
    size = statistics.mean(len(msgspec.json.encode(each)) for each in definitions)
    return _microseconds(definitions) * min(2_500 / size, 1)


def _of_large(inputs: Inputs) -> float:
    return _microseconds(inputs.definitions(1, dependencies=10_000)) / 1000


def _microseconds(definitions: list[TaskDefinition]) -> float:
    """Processor time for one definition: the median of several rounds. Dates differ, so no cache helps."""
    now = datetime.now(UTC).timestamp()

    def used() -> float:
        started = time.process_time()
        for definition in definitions:
            check_definition(definition, now)
        return time.process_time() - started

    return statistics.median(used() for _ in range(ROUNDS)) / len(definitions) * 1e6
