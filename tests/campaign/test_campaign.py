"""A short fault campaign with a fixed seed: real processes, real HTTP, real files, and no violation."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.campaign.campaign_report import table, time_line
from tests.campaign.campaign_run import Campaign, Settings
from tests.campaign.checker import violations
from tests.campaign.fault_plan import RATES

SEED = 1

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a campaign needs /proc and more than one loopback address"
)


def test_a_short_campaign_has_no_violation(tmp_path: Path, broker_url: str) -> None:
    settings = Settings(
        SEED, seconds=25, broker=broker_url, lease=10, workers=3, backlog=24, largest=1_000_000, longest=8
    )
    outcome = asyncio.run(Campaign(settings, tmp_path).run())
    found = violations(outcome.evidence)
    report = table(outcome, found, SEED)
    (tmp_path / "report.txt").write_text(report)
    assert found == [], f"{report}evidence: {tmp_path}"
    assert {each.kind for each in outcome.evidence.incidents} >= RATES.keys()
    assert outcome.broken
    assert any(task.reason == "completed" for task in outcome.evidence.tasks.values())
    assert ET.fromstring(time_line(outcome, found, SEED)).tag.endswith("svg")
