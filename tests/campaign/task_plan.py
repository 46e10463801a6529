"""The plan of a campaign: its tasks, and how each of them must end. A pure function of the seed."""

from __future__ import annotations

import random
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

MEGABYTE = 1_000_000
_PIECE = 1 << 16
_NEIGHBORS = 60
"""The number of preceding tasks among which dependencies are chosen."""

ENOUGH_RETRIES = 30


class Kind(NamedTuple):
    """A kind of task.

    Attributes:
        weight: How many of the tasks are of this kind, in percent.
        reason: The `reasonResolved` of the last run.
        retries_used: How many runs before the last one end as `intermittent-task`.
    """

    weight: int
    reason: str
    retries_used: int = 0


KINDS = {
    "quick": Kind(30, "completed"),
    "artifacts": Kind(13, "completed"),
    "command": Kind(13, "completed"),
    "long": Kind(6, "completed"),
    "blocking": Kind(6, "completed"),
    "failed": Kind(6, "failed"),
    "failed-command": Kind(4, "failed"),
    "malformed": Kind(3, "malformed-payload"),
    "unavailable": Kind(3, "resource-unavailable"),
    "bug": Kind(3, "internal-error"),
    "intermittent": Kind(5, "completed", 2),
    "always-intermittent": Kind(2, "intermittent-task", 2),
    "canceled": Kind(3, "canceled"),
    "deadline": Kind(3, "deadline-exceeded"),
}


class PlannedArtifact(NamedTuple):
    """An artifact that a task uploads; its content follows from the task and the name."""

    name: str
    size: int
    storage: str

    def content(self, task_id: str) -> Iterator[bytes]:
        """Yield the content in pieces. Text is compressed for its upload; other content is not."""
        rng = random.Random(f"{task_id}/{self.name}")
        for start in range(0, self.size, _PIECE):
            length = min(_PIECE, self.size - start)
            yield rng.randbytes(length).hex()[:length].encode() if self.is_text else rng.randbytes(length)

    @property
    def is_text(self) -> bool:
        return self.name.endswith(".txt")


@dataclass(frozen=True)
class PlannedTask:
    """A task, and how it must end.

    Attributes:
        task_id: Its identifier.
        group: The identifier of its group.
        kind: A key of `KINDS`.
        seconds: How long its handler waits.
        retries: How often the Queue retries it.
        dependencies: The tasks that it depends on.
        requires: `all-completed` or `all-resolved`.
        artifacts: The artifacts that it uploads.
    """

    task_id: str
    group: str
    kind: str
    seconds: float
    retries: int = ENOUGH_RETRIES
    dependencies: tuple[str, ...] = ()
    requires: str = "all-completed"
    artifacts: tuple[PlannedArtifact, ...] = ()

    @property
    def reason(self) -> str:
        return KINDS[self.kind].reason

    @property
    def payload(self) -> dict[str, Any]:
        """The payload; that of a malformed task has a kind that the schema does not allow."""
        kind = {"not": "text"} if self.kind == "malformed" else self.kind
        artifacts = [list(each) for each in self.artifacts]
        return {"kind": kind, "seconds": self.seconds, "artifacts": artifacts}


def planned_tasks(seed: int, *, longest: float, largest: int) -> Iterator[PlannedTask]:
    """Yield tasks without end, each after the tasks that it depends on.

    Args:
        seed: Two calls with the same arguments yield the same tasks.
        longest: How long the longest handlers take, in seconds.
        largest: The size of the largest artifacts, in bytes.
    """
    rng = random.Random(f"tasks {seed}")
    tasks: list[PlannedTask] = []
    blocked: set[str] = set()
    group = ""
    for number in count():
        group = _slugid(rng) if number % 50 == 0 else group
        kind = rng.choices(list(KINDS), [each.weight for each in KINDS.values()])[0]
        dependencies, requires = _dependencies(rng, tasks[-_NEIGHBORS:], blocked)
        task = PlannedTask(
            _slugid(rng),
            group,
            kind,
            round(_seconds(rng, kind, longest), 3),
            _retries(rng, kind),
            tuple(each.task_id for each in dependencies),
            requires,
            tuple(_artifacts(rng, kind, largest)),
        )
        unmet = [each for each in dependencies if each.reason != "completed" or each.task_id in blocked]
        if unmet and (requires == "all-completed" or any(each.task_id in blocked for each in unmet)):
            blocked.add(task.task_id)
        tasks = [*tasks[-_NEIGHBORS:], task]
        yield task


def _slugid(rng: random.Random) -> str:
    raw = bytearray(rng.randbytes(16))
    raw[0], raw[6], raw[8] = raw[0] & 0x7F, raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
    return urlsafe_b64encode(raw)[:22].decode()


def _seconds(rng: random.Random, kind: str, longest: float) -> float:
    if kind in {"canceled", "deadline"}:
        return 3600
    if kind == "long":
        return rng.uniform(0.3, 1) * longest
    return rng.uniform(0.2, 2.5) if kind in {"blocking", "command"} else rng.choice([0, 0, 0.1, 0.5])


def _retries(rng: random.Random, kind: str) -> int:
    if kind == "always-intermittent":
        return KINDS[kind].retries_used
    few = kind in {"quick", "command", "long", "artifacts"} and rng.random() < 0.1
    return rng.choice([0, 1]) if few else ENOUGH_RETRIES


def _dependencies(
    rng: random.Random, before: list[PlannedTask], blocked: set[str]
) -> tuple[list[PlannedTask], str]:
    """Return some of the preceding tasks, mostly ones that let a dependent run, and its `requires`."""
    requires = "all-resolved" if rng.random() < 0.3 else "all-completed"
    if rng.random() > 0.35 or not before:
        return [], requires
    # Such a task may never be created: the network may be down until its short deadline has passed.
    before = [each for each in before if each.kind != "deadline"]
    met = [each for each in before if each.reason == "completed" and each.task_id not in blocked]
    among = before if requires == "all-resolved" or rng.random() < 0.1 else met
    return rng.sample(among, min(len(among), rng.randint(1, 4))), requires


def _artifacts(rng: random.Random, kind: str, largest: int) -> Iterator[PlannedArtifact]:
    if kind not in {"quick", "artifacts", "command", "long", "failed", "bug", "unavailable"}:
        return
    sizes = [partial(rng.randint, 0, 0), partial(rng.randint, 1, 3), partial(rng.randint, 100, 20_000)]
    if kind == "artifacts":
        sizes += [partial(rng.randint, 50_000, 2_000_000)] * 2 + [partial(rng.randint, largest // 4, largest)]
    for number in range(rng.randint(0, 3) if kind != "artifacts" else rng.randint(1, 4)):
        weights = [1] * len(sizes) if kind != "artifacts" else [2, 4, 2, 2, 2, 1]
        size = rng.choices(sizes, weights)[0]()
        suffix, storage = rng.choice(["bin", "txt"]), rng.choice(["s3", "s3", "object"])
        yield PlannedArtifact(f"public/{number}.{suffix}", size, storage)
