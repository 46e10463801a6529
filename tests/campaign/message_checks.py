"""Compares the stream of messages with the transitions that the queue's database shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from taskqueue_client.models import Run

from .evidence import Evidence, ReceivedMessage, StoredTask
from .excuses import Excuses, seconds
from .violations import Violation

_SENT_FOR = frozenset({"object", "link", "error", "reference"})
"""The storage types of artifacts that a message is sent for; none is sent for `s3`."""


class Key(NamedTuple):
    """What identifies a message: repetitions have the same key."""

    exchange: str
    task_id: str
    run_id: int | None
    artifact: str | None = None


def messages_as_transitions(evidence: Evidence, excuses: Excuses) -> Iterator[Violation]:
    """Each transition and artifact has its message, each message its transition, and all are in order."""
    received: defaultdict[str, list[ReceivedMessage]] = defaultdict(list)
    for message in evidence.messages:
        received[message.task_id].append(message)
    for task_id in evidence.planned.keys() & evidence.tasks.keys():
        stored = evidence.tasks[task_id]
        transitions, artifacts = list(_transitions(task_id, stored)), list(_artifacts(evidence, task_id))
        yield from _check_task(received[task_id], transitions, artifacts)
        yield from _check_contents(received[task_id], stored)
        yield from _check_repetitions(task_id, received[task_id], excuses)


def _key(message: ReceivedMessage) -> Key:
    return Key(message.exchange, message.task_id, message.run_id, message.artifact)


def _transitions(task_id: str, stored: StoredTask) -> Iterator[Key]:
    """Yield the keys of the messages that a task must have, in their order."""
    yield Key("task-defined", task_id, None)
    for run in stored.runs:
        if run.reason_created != "exception":
            yield Key("task-pending", task_id, run.run_id)
        if run.started is not None:
            yield Key("task-running", task_id, run.run_id)
        if run.resolved is not None:
            yield Key(f"task-{run.state}", task_id, run.run_id)


def _artifacts(evidence: Evidence, task_id: str) -> Iterator[Key]:
    for (run_id, name), artifact in evidence.artifacts.get(task_id, {}).items():
        if artifact.present and artifact.storage_type in _SENT_FOR:
            yield Key("artifact-created", task_id, run_id, name)


def _check_task(
    received: list[ReceivedMessage], transitions: list[Key], artifacts: list[Key]
) -> Iterator[Violation]:
    first: dict[Key, int] = {}
    for position, message in enumerate(received):
        first.setdefault(_key(message), position)
    for each in (*transitions, *artifacts):
        if each not in first:
            yield Violation("message lost", each.task_id, _shown(each))
    for key in first.keys() - {*transitions, *artifacts}:
        yield Violation("message without a transition", key.task_id, _shown(key))
    order = [first[each] for each in transitions if each in first]
    if order != sorted(order):
        yield Violation("messages out of order", transitions[0].task_id, " ".join(map(str, order)))
    for each in artifacts:
        running = first.get(Key("task-running", each.task_id, each.run_id), -1)
        if first.get(each, running) < running:
            yield Violation("messages out of order", each.task_id, _shown(each))


def _check_contents(received: list[ReceivedMessage], stored: StoredTask) -> Iterator[Violation]:
    """A message shows its run as the database does: a resolved run never changes again."""
    for message in received:
        for shown, run in zip(message.runs, stored.runs, strict=False):
            if not _same(shown, run):
                detail = (
                    f"{_shown(_key(message))} shows run {run.run_id} as {shown.state} {shown.reason_resolved}"
                )
                yield Violation("message contradicts the state", message.task_id, detail)
        least = 0 if message.run_id is None else message.run_id + 1
        if not least <= len(message.runs) <= len(stored.runs):
            yield Violation("message contradicts the state", message.task_id, f"{len(message.runs)} runs")


def _same(shown: Run, run: Run) -> bool:
    if shown.scheduled != run.scheduled or shown.reason_created != run.reason_created:
        return False
    if shown.resolved is not None:
        return shown == run
    started = shown.started is None or (shown.started, shown.worker_id) == (run.started, run.worker_id)
    return started and seconds(shown.taken_until or run.scheduled) <= seconds(run.taken_until)


def _check_repetitions(
    task_id: str, received: list[ReceivedMessage], excuses: Excuses
) -> Iterator[Violation]:
    repeated = len(received) - len({_key(each) for each in received})
    if repeated and not excuses.repetition(task_id):
        yield Violation("message repeated", task_id, f"{repeated} times, and no call or delivery was")


def _shown(key: Key) -> str:
    return " ".join(str(each) for each in (key.exchange, key.run_id, key.artifact) if each is not None)
