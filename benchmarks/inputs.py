"""The inputs of all benchmarks: a set as in real deployments, and two random sets that nobody tuned for.

A figure is the worst of the sets. The first set is fixed: definitions of 2.5 kB with 4 dependencies, 8 scopes
and 2 routes, claims of 5 kB, text artifacts. The other two are generated from seeds, which differ from run to
run unless BENCHMARK_SEEDS names them ("17 4242"); the report prints them.
"""

from __future__ import annotations

import os
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from taskqueue_client.definitions import TaskDefinition, from_now, task_definition
from taskqueue_client.models import Priority
from taskqueue_client.slugid import slugid

TEXT_SIZES = (1_000, 100_000, 100_000_000)
"""Bytes of the text artifacts."""

_WORDS = ["build", "test", "fetch", "linux", "windows", "opt", "debug", "lint", "docs", "sign", "cache"]


@dataclass(frozen=True)
class Inputs:
    """A set of inputs. All its definitions and claims are different, so that no cache helps.

    Attributes:
        seed: The seed that the set is generated from; 0: the fixed set.
    """

    seed: int

    def __str__(self) -> str:
        return f"seed {self.seed}" if self.seed else "fixed"

    def definitions(self, count: int, dependencies: int | None = None) -> list[TaskDefinition]:
        """Task definitions of about 2.5 kB; of the fixed set, with 4 dependencies, 8 scopes and 2 routes."""
        chance = random.Random(self.seed)
        now = datetime.now(UTC)
        return [
            _definition(chance, now + timedelta(milliseconds=number), dependencies, is_fixed=self.seed == 0)
            for number in range(count)
        ]

    def claims(self, count: int, tasks: int = 1, size: int = 5_000) -> list[bytes]:
        """Responses of `claimWork` with so many tasks in each, of about `size` bytes per task."""
        definitions = self.definitions(count * tasks)
        runs = [_claim(definition, size) for definition in definitions]
        return [msgspec.json.encode({"tasks": runs[at : at + tasks]}) for at in range(0, len(runs), tasks)]

    def text(self, size: int) -> Iterator[bytes]:
        """Lines of a build log, in chunks of 1 MB that repeat: no compressor looks back that far."""
        chance = random.Random(self.seed)
        chunk = b"".join(_lines(chance, min(size, 1_000_000)))[: min(size, 1_000_000)]
        whole, rest = divmod(size, len(chunk))
        yield from (chunk for _ in range(whole))
        yield chunk[:rest]


FIXED = Inputs(0)


def input_sets() -> list[Inputs]:
    """The fixed set, and two of seeds that are new in each run."""
    named = os.environ.get("BENCHMARK_SEEDS", "").split() or random.sample(list(map(str, range(1, 9999))), 2)
    return [FIXED, *(Inputs(int(seed)) for seed in named)]


def _name(chance: random.Random, *, parts: int = 3) -> str:
    return "-".join(chance.choice(_WORDS) for _ in range(parts))


def _definition(
    chance: random.Random, created: datetime, dependencies: int | None, *, is_fixed: bool
) -> TaskDefinition:
    def about(usual: int, most: int) -> int:
        return usual if is_fixed else chance.randint(0, most)

    name = _name(chance)
    command = f"set -e; ./mach {name} --verbose " + "".join(chance.choices(string.ascii_letters + " ", k=500))
    payload = {
        "command": ["/bin/bash", "-c", command],
        "env": {f"{_name(chance, parts=2).upper()}_{at}": _name(chance) for at in range(about(8, 12))},
        "maxRunTime": chance.choice([600, 3600, 7200.0]),
        "image": None if chance.random() < 0.5 else {"type": "task-image", "taskId": slugid()},
        "artifacts": [{"name": f"public/{_name(chance)}", "type": "file"} for _ in range(about(4, 8))],
    }
    return task_definition(
        f"proj-{chance.choice(_WORDS)}/{_name(chance, parts=2)}",
        payload,
        name=name,
        owner=f"{chance.choice(_WORDS)}@example.com",
        source=f"https://hg.example.com/{_name(chance)}/file/{chance.getrandbits(160):040x}/ci",
        description="".join(chance.choices([*string.printable[:95], "ä", "ß", "…"], k=about(100, 200))),
        created=created,
        taskGroupId=slugid(),
        schedulerId=f"level-{chance.randint(1, 3)}",
        priority=chance.choice(list(Priority)),
        retries=chance.randint(0, 5),
        dependencies=[slugid() for _ in range(about(4, 20) if dependencies is None else dependencies)],
        scopes=[f"docker-worker:cache:{_name(chance)}-{at}*" for at in range(about(8, 16))],
        routes=[f"index.v2.{_name(chance)}.{at}.latest" for at in range(about(2, 6))],
        tags={chance.choice(_WORDS): _name(chance) for _ in range(about(4, 10))},
        extra={"treeherder": {"symbol": name[:4], "tier": 1}, "index": {"rank": 1.5}},
    )


def _claim(definition: TaskDefinition, size: int) -> dict[str, Any]:
    now = datetime.now(UTC)
    task_id, until = slugid(), from_now("20 minutes", now)
    names = {"workerGroup": "region-1", "workerId": "i-0123456789abcdef0"}
    provisioner, _, worker_type = definition.get("taskQueueId", "").partition("/")
    task: dict[str, Any] = {
        **definition,
        "provisionerId": provisioner,
        "workerType": worker_type,
        "projectId": "none",
    }
    queue = {key: task[key] for key in ("provisionerId", "workerType", "taskQueueId", "projectId")}
    group = {key: task[key] for key in ("schedulerId", "taskGroupId", "priority", "deadline", "expires")}
    run = {"runId": 0, "state": "running", "reasonCreated": "scheduled", "scheduled": task["created"]}
    run |= {"takenUntil": until, "started": from_now("0 s", now), **names}
    scopes = [f"queue:{verb}:{task_id}/0" for verb in ("reclaim-task", "resolve-task", "create-artifact")]
    milliseconds = int(now.timestamp() * 1000)
    certificate = {"version": 1, "scopes": scopes, "start": milliseconds, "expiry": milliseconds + 1_500_000}
    certificate |= {"seed": 2 * slugid(), "signature": 2 * slugid(), "issuer": "static/taskcluster/queue"}
    claim = {
        "status": {"taskId": task_id, **queue, **group, "retriesLeft": 5, "state": "running", "runs": [run]},
        "runId": 0,
        "takenUntil": until,
        **names,
        "task": task,
        "credentials": {
            "clientId": f"task-client/{task_id}/0/on/region-1/i-0123456789abcdef0",
            "accessToken": 2 * slugid(),
            "certificate": msgspec.json.encode(certificate).decode(),
        },
    }
    missing = size - len(msgspec.json.encode(claim))
    task["payload"] = {**definition["payload"], "script": "x = y + z;\n" * max(missing // 12, 0)}
    return claim


def _lines(chance: random.Random, size: int) -> Iterator[bytes]:
    made, at = 0, datetime(2026, 11, 21, 9, tzinfo=UTC)
    while made < size:
        at += timedelta(milliseconds=chance.randint(1, 2000))
        words = " ".join(chance.choices(_WORDS, k=chance.randint(3, 9)))
        line = f"[{at:%H:%M:%S.%f}] {words} 0x{chance.getrandbits(32):08x}\n".encode()
        made += len(line)
        yield line
