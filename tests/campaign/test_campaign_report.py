"""The plan, the faults and the report of a campaign."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.campaign.__main__ import conclude
from tests.campaign.campaign_report import recoveries, table, time_line
from tests.campaign.campaign_run import Outcome
from tests.campaign.checked_world import DONE, KILLED_AT, world
from tests.campaign.evidence import Evidence
from tests.campaign.fault_plan import RATES, planned_faults
from tests.campaign.fleet import Sample
from tests.campaign.incidents import Incident
from tests.campaign.memory import slopes
from tests.campaign.task_plan import KINDS, MEGABYTE, planned_tasks
from tests.campaign.violations import Violation

FOUND = [Violation("task lost", DONE, "it was created, and the queue does not know it")]
SLOTS = ["w1", "w2", "w3"]


def outcome(evidence: Evidence | None = None) -> Outcome:
    reclaims = [(KILLED_AT + 2.5, "w1-2"), (KILLED_AT + 0.5, "w2-1")]
    return Outcome(evidence or world(), 1000, 49, reclaims, 1000, Path("queue.sqlite"))


def test_tasks_and_faults_follow_from_the_seed() -> None:
    def tasks(seed: int) -> list[object]:
        return list(islice(planned_tasks(seed, longest=20, largest=20 * MEGABYTE), 500))

    assert tasks(1) == tasks(1) != tasks(2)
    first = planned_faults(1, seconds=600, lease=12, slots=SLOTS)
    assert first == planned_faults(1, seconds=600, lease=12, slots=SLOTS)
    assert first != planned_faults(2, seconds=600, lease=12, slots=SLOTS)


def test_the_plan_has_every_kind_of_task_and_of_artifact() -> None:
    tasks = list(islice(planned_tasks(1, longest=20, largest=20 * MEGABYTE), 3000))
    assert {each.kind for each in tasks} == KINDS.keys()
    artifacts = [each for task in tasks for each in task.artifacts]
    assert {each.storage for each in artifacts} == {"s3", "object"}
    assert min(each.size for each in artifacts) == 0
    assert max(each.size for each in artifacts) > 15 * MEGABYTE
    known: set[str] = set()
    for each in tasks:
        assert known.issuperset(each.dependencies)
        known.add(each.task_id)


def test_every_kind_of_fault_strikes_also_in_a_short_campaign() -> None:
    faults = planned_faults(1, seconds=25, lease=10, slots=SLOTS)
    assert {each.kind for each in faults} == RATES.keys()
    assert faults == sorted(faults)


def test_the_last_worker_is_never_ended_and_the_queue_is_not_killed_near_the_end() -> None:
    faults = planned_faults(1, seconds=3600, lease=12, slots=SLOTS)
    ended = {each.target for each in faults if each.kind in {"worker killed", "worker terminated"}}
    assert ended == {"w1", "w2"}
    assert max(each.at for each in faults if each.kind == "queue killed") <= 0.6 * 3600


def test_a_recovery_ends_with_the_next_reclaim_of_the_same_slot() -> None:
    killed = Incident("worker killed", "w1-1", KILLED_AT, KILLED_AT)
    down = Incident("queue killed", "queue", KILLED_AT, KILLED_AT)
    late = Incident("worker killed", "w2-1", KILLED_AT + 1, KILLED_AT + 1)
    struck = Incident("exchange: reset", "GET /", KILLED_AT, KILLED_AT)
    found = recoveries([killed, down, late, struck], outcome().reclaims)
    assert [(each.incident, each.seconds) for each in found] == [(killed, 2.5), (down, 0.5), (late, None)]


def test_the_report_has_counts_and_violations() -> None:
    report = table(outcome(), FOUND, 7)
    assert [
        line.split() for line in report.splitlines() if line.startswith(("tasks", "runs", "exchanges"))
    ] == [
        ["tasks", "4"],
        ["runs", "4"],
        ["exchanges", "1000"],
        ["exchanges", "with", "a", "fault", "49", "4.9%"],
    ]
    assert "worker killed                    1  2.5  2.5" in report
    assert str(FOUND[0]) in report


def test_the_time_line_is_a_picture() -> None:
    root = ET.fromstring(time_line(outcome(), FOUND, 7))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"worker killed", "successful reclaims", "resolved runs", "0 min"} <= set(texts)


def test_a_violation_prints_the_command_that_repeats_the_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = world()._replace(tasks={})
    assert conclude(outcome(lost), 7, 3, tmp_path) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("repeat: make campaign MINUTES=3 SEED=7\n")
    assert (tmp_path / "report.txt").read_text() in printed


def test_a_campaign_without_violations_keeps_its_report_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queue.sqlite.artifacts").mkdir()
    found = outcome()._replace(database=tmp_path / "queue.sqlite")
    assert conclude(found, 7, 3, tmp_path) == 0
    assert "repeat" not in capsys.readouterr().out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.txt", "time-line.svg"]


def test_memory_is_flat_after_the_warm_up() -> None:
    samples = [Sample("queue (1)", 1000 + t, min(80, 20 + t)) for t in range(300)]
    assert slopes(samples)["queue (1)"].per_hour == pytest.approx(0)
    assert slopes(samples[:100]) == {}
