"""The checker of campaigns finds each kind of violation when it is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.campaign.checked_world import (
    ARTIFACT,
    BLOCKED,
    DEPENDENT,
    DONE,
    KILLED_AT,
    LIVE,
    LOG,
    RETRIED,
    moment,
    planned,
    run,
    world,
)
from tests.campaign.checker import violations
from tests.campaign.evidence import Evidence, StoredArtifact, StoredTask
from tests.campaign.fleet import HandlerEvent, Sample
from tests.campaign.incidents import Incident

Plant = Callable[[Evidence], Evidence]


def test_a_campaign_as_planned_has_no_violations() -> None:
    assert violations(world()) == []


def task(task_id: str, *runs: Any, left: int = 30, of: int = 30) -> Plant:
    """Replace a task in the queue's database."""
    return lambda evidence: evidence._replace(
        tasks={**evidence.tasks, task_id: StoredTask(of, left, list(runs))}
    )


def forget(task_id: str) -> Plant:
    return lambda evidence: evidence._replace(
        tasks={name: stored for name, stored in evidence.tasks.items() if name != task_id}
    )


def incidents(*found: Incident) -> Plant:
    return lambda evidence: evidence._replace(incidents=list(found))


def artifact(name: str, **changes: Any) -> Plant:
    """Change an artifact of the first task, or remove it."""

    def plant(evidence: Evidence) -> Evidence:
        artifacts = dict(evidence.artifacts[DONE])
        before: StoredArtifact = artifacts.pop((0, name))
        if changes:
            artifacts[0, name] = before._replace(**changes)
        return evidence._replace(artifacts={**evidence.artifacts, DONE: artifacts})

    return plant


def handler(*events: HandlerEvent) -> Plant:
    """Replace the events of the first task's handlers."""
    return lambda evidence: evidence._replace(
        handlers=[*(each for each in evidence.handlers if each.task_id != DONE), *events]
    )


def messages(change: Callable[[list[Any]], list[Any]]) -> Plant:
    return lambda evidence: evidence._replace(messages=change(evidence.messages))


def without(exchange: str, task_id: str) -> Plant:
    """Lose a message."""
    return messages(lambda found: [each for each in found if each[:2] != (exchange, task_id)])


def swapped(found: list[Any]) -> list[Any]:
    """Swap the last two messages of the first task."""
    places = [place for place, each in enumerate(found) if each.task_id == DONE]
    found = list(found)
    first, second = places[-3], places[-1]  # task-running and task-completed
    found[first], found[second] = found[second], found[first]
    return found


def contradicting(found: list[Any]) -> list[Any]:
    """Let the last message about a task show another end of its run."""
    changed = msgspec.structs.replace(found[4].runs[0], resolved=run(0, "failed", 1, 2).resolved)
    return [*found[:4], found[4]._replace(runs=[changed]), *found[5:]]


def growing(evidence: Evidence) -> Evidence:
    samples = [Sample("queue (1)", 1000 + t, 80 + t / 4) for t in range(400)]
    return evidence._replace(memory=samples)


def hoarding(evidence: Evidence) -> Evidence:
    samples = [Sample("w4-1 (1)", 1000 + t, 180_000 + 200 * t) for t in range(0, 400, 20)]
    return evidence._replace(objects=samples)


def begin(worker: str) -> HandlerEvent:
    return HandlerEvent("begin", worker, DONE, 0, 1001.1)


def end(worker: str, t: float = 1004.9) -> HandlerEvent:
    return HandlerEvent("end", worker, DONE, 0, t)


QUEUE_KILL = Incident("queue killed", "queue", 1005.5, 1006)

PLANTED: dict[str, tuple[str, Plant]] = {
    "a task that the queue has forgotten": ("task lost", forget(DONE)),
    "a task that failed instead of being completed": ("wrong end", task(DONE, run(0, "failed", 1001, 1005))),
    "an internal error without a fault": ("wrong end", task(DONE, run(0, "internal-error", 1001, 1005))),
    "an unreachable storage without a fault": (
        "wrong end",
        task(DONE, run(0, "resource-unavailable", 1001, 1005)),
    ),
    "retries left, and no retry": ("wrong end", task(DONE, run(0, "claim-expired", 1001, 1005))),
    "a task that is still running": (
        "not resolved",
        task(DONE, run(0, "completed", 1001, 1005, state="running", resolved=None, reasonResolved=None)),
    ),
    "a task that ran although its dependency failed": (
        "dependencies",
        task(BLOCKED, run(0, "completed", 1011, 1012)),
    ),
    "a task that was never scheduled": ("dependencies", task(DEPENDENT)),
    "a task that was scheduled before its dependency ended": (
        "scheduled early",
        task(DEPENDENT, run(0, "failed", 1004, 1009)),
    ),
    "a claim that expired without a fault": ("retry not explained", incidents()),
    "a claim that expired after another worker was killed": (
        "retry not explained",
        incidents(Incident("worker killed", "w7-1", KILLED_AT, KILLED_AT)),
    ),
    "a claim that expired long after the network was cut": (
        "retry not explained",
        incidents(Incident("network cut", "network", 1001, 1003)),
    ),
    "a shutdown without SIGTERM": (
        "retry not explained",
        task(RETRIED, run(0, "worker-shutdown", 1015, 1030), run(1, "completed", 1032, 1035), left=29),
    ),
    "a retry that was not counted": (
        "retries used",
        task(RETRIED, run(0, "claim-expired", 1015, 1030), run(1, "completed", 1032, 1035), left=30),
    ),
    "a retry after a failure": (
        "wrong retry",
        task(RETRIED, run(0, "failed", 1015, 1030), run(1, "completed", 1032, 1035), left=29),
    ),
    "a run that overlaps the run before": (
        "overlapping runs",
        task(RETRIED, run(0, "claim-expired", 1015, 1030), run(1, "completed", 1029, 1035), left=29),
    ),
    "a run that ended before it began": ("times of a run", task(DONE, run(0, "completed", 1005, 1002))),
    "a run that was resolved after its claim": (
        "resolved after claim",
        task(DONE, run(0, "completed", 1001, 1005, takenUntil=moment(1004.4))),
    ),
    "a claim that expired too early": (
        "expired early",
        task(
            RETRIED,
            run(0, "claim-expired", 1015, 1030, takenUntil=moment(1033)),
            run(1, "completed", 1032, 1035),
            left=29,
        ),
    ),
    "a completed run without an artifact": ("artifact missing", artifact(ARTIFACT)),
    "a completed run with an unfinished artifact": ("artifact missing", artifact(ARTIFACT, present=False)),
    "a completed run without its log": ("artifact missing", artifact(LOG)),
    "a log without a body": ("artifact missing", artifact(LOG, digest=None)),
    "an artifact with other bytes": ("wrong bytes", artifact(ARTIFACT, digest="0" * 64)),
    "a handler that was called twice": (
        "handler called again",
        handler(begin("w1-1"), begin("w1-1"), end("w1-1")),
    ),
    "a handler of a worker that had no claim": (
        "handler of another worker",
        handler(begin("w9-1"), end("w9-1")),
    ),
    "a run that was completed by nobody": ("completed too early", handler()),
    "a run that was completed during its handler": (
        "completed too early",
        handler(begin("w1-1"), end("w1-1", t=1006)),
    ),
    "a lost message about a definition": ("message lost", without("task-defined", DONE)),
    "a lost message about a run": ("message lost", without("task-running", DONE)),
    "a lost message about an end": ("message lost", without("task-completed", DONE)),
    "a lost message about an artifact": ("message lost", without("artifact-created", DONE)),
    "a message about a run that was never there": (
        "message without a transition",
        messages(lambda found: [*found, found[4]._replace(exchange="task-failed")]),
    ),
    "messages in the wrong order": ("messages out of order", messages(swapped)),
    "a message that shows another end": ("message contradicts the state", messages(contradicting)),
    "a process that is left": ("left behind", lambda found: found._replace(leftovers=["process 7 sleep"])),
    "memory that grows": ("memory grows", growing),
    "objects that become more": ("memory grows", hoarding),
}


@pytest.mark.parametrize(("rule", "plant"), PLANTED.values(), ids=PLANTED)
def test_a_planted_violation_is_found(rule: str, plant: Plant) -> None:
    assert rule in {each.rule for each in violations(plant(world()))}


def test_a_message_that_was_sent_twice_without_a_repeated_call_is_found() -> None:
    evidence = world()._replace(incidents=[])
    evidence = task(RETRIED, run(0, "completed", 1015, 1030))(evidence)
    twice = [*evidence.messages, evidence.messages[4]]
    assert "message repeated" in {each.rule for each in violations(evidence._replace(messages=twice))}


EXPLAINED: dict[str, tuple[Incident, Plant]] = {
    "a claim that expired while the queue was down": (
        Incident("queue killed", "queue", 1025, 1029),
        incidents(),
    ),
    "a claim that expired while the network was cut": (
        Incident("network cut", "network", 1025, 1029),
        incidents(),
    ),
    "a claim that no worker was told of": (
        Incident("claim not delivered", "POST /claim-work", 1015, 1015, [f"{RETRIED}/0"]),
        incidents(),
    ),
    "a claim that expired after a lost reclaim": (
        Incident("exchange: request lost", f"POST /task/{RETRIED}/runs/0/reclaim", 1025, 1025),
        incidents(),
    ),
    "an internal error on a full disk": (
        Incident("worker disk full", "w1-1", 1002, 1003),
        task(DONE, run(0, "internal-error", 1001, 1005)),
    ),
    "an unreachable storage during its outage": (
        Incident("storage outage", "storage", 1002, 1003),
        task(DONE, run(0, "resource-unavailable", 1001, 1005)),
    ),
    "a run that was given back at a shutdown": (
        Incident("worker terminated", "w1-1", 1028, 1031),
        task(RETRIED, run(0, "worker-shutdown", 1015, 1030), run(1, "completed", 1032, 1035), left=29),
    ),
}

CONSEQUENCES = {
    "message contradicts the state",
    "message lost",
    "message without a transition",
    "dependencies",
}
"""The violations that follow if a task is changed without its messages and dependents."""


@pytest.mark.parametrize(("incident", "plant"), EXPLAINED.values(), ids=EXPLAINED)
def test_a_deviation_that_a_fault_explains_is_not_a_violation(incident: Incident, plant: Plant) -> None:
    evidence = plant(world())
    evidence = evidence._replace(incidents=[incident, *evidence.incidents])
    rules = {each.rule for each in violations(evidence)}
    assert rules - CONSEQUENCES == set()


@pytest.mark.parametrize(
    ("requires", "rules"), [("all-resolved", []), ("all-completed", ["scheduled early"])]
)
def test_a_claim_that_expired_may_schedule_dependents_that_require_all_resolved(
    requires: str, rules: Sequence[str]
) -> None:
    evidence = task(DEPENDENT, run(0, "failed", 1032, 1033))(world())
    dependent = planned(DEPENDENT, kind="failed", dependencies=(RETRIED,), requires=requires)
    evidence = evidence._replace(planned={**evidence.planned, DEPENDENT: dependent})
    assert {each.rule for each in violations(evidence)} - CONSEQUENCES == set(rules)


def test_a_claim_that_expired_by_a_wrong_clock_does_not_hide_that_the_next_run_ended_before() -> None:
    expired, ended = run(0, "claim-expired", 1015, 1070), run(1, "completed", 1032, 1035)
    evidence = task(RETRIED, expired, ended, left=29)(world())
    evidence = task(DEPENDENT, run(0, "failed", 1037, 1038))(evidence)
    dependent = planned(DEPENDENT, kind="failed", dependencies=(RETRIED,), requires="all-resolved")
    evidence = evidence._replace(planned={**evidence.planned, DEPENDENT: dependent})
    assert "scheduled early" not in {each.rule for each in violations(evidence)}


REPEATED = Incident("exchange: 502 after", f"POST /task/{RETRIED}/runs/0/exception", 1029.9, 1030)


@pytest.mark.parametrize(
    ("incidents", "rules"), [([REPEATED], set[str]()), ([], {"scheduled early"})], ids=["explained", "not"]
)
def test_a_repeated_report_of_a_retried_run_may_schedule_dependents_that_require_all_resolved(
    incidents: list[Incident], rules: set[str]
) -> None:
    given_back, ended = run(0, "intermittent-task", 1015, 1030), run(1, "completed", 1032, 1035)
    evidence = task(RETRIED, given_back, ended, left=29)(world())._replace(incidents=incidents)
    evidence = task(DEPENDENT, run(0, "failed", 1032, 1033))(evidence)
    dependent = planned(DEPENDENT, kind="failed", dependencies=(RETRIED,), requires="all-resolved")
    evidence = evidence._replace(planned={**evidence.planned, DEPENDENT: dependent})
    assert {each.rule for each in violations(evidence)} & {"scheduled early"} == rules


def test_a_message_that_was_lost_when_the_queue_was_killed_is_found() -> None:
    evidence = without("task-completed", DONE)(world())
    evidence = evidence._replace(incidents=[QUEUE_KILL, *evidence.incidents])
    assert {each.rule for each in violations(evidence)} == {"message lost"}


def test_the_content_of_an_artifact_follows_from_its_task() -> None:
    first, second = planned(DONE).artifacts[0], planned(DONE).artifacts[0]
    assert b"".join(first.content(DONE)) == b"".join(second.content(DONE))
    assert b"".join(first.content(DONE)) != b"".join(first.content(LIVE))
