"""A fault campaign against the local queue and real workers; see `docs/fault-campaign.md`."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .campaign_report import table, time_line
from .campaign_run import Campaign, Outcome, Settings
from .checker import violations
from .evidence import directory_of

BROKER = "amqp://guest:guest@127.0.0.1:5672/"


LONGEST = 60.0
"""Minutes of one campaign of a soak: its evidence is kept in memory until it is checked."""


def main() -> int:
    options = _options()
    until = time.time() + options.hours * 3600
    minutes = min(LONGEST, options.hours * 60) if options.hours else options.minutes
    for seed in itertools.count(options.seed):
        status = _campaign(seed, minutes, options.directory)
        if status or time.time() >= until:
            return status
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="how long faults are injected (20)")
    parser.add_argument("--hours", type=float, default=0, help="repeat with the next seed for so long")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of tasks and faults (the time)")
    parser.add_argument("--directory", type=Path, help="for evidence and report (a temporary one)")
    return parser.parse_args()


def _campaign(seed: int, minutes: float, kept: Path | None) -> int:
    """Run a campaign; return 1 if there was a violation."""
    directory = kept or Path(tempfile.mkdtemp(prefix="taskqueue-campaign-"))
    directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=directory / "campaign.log", level=logging.INFO, force=True)
    settings = Settings(seed, minutes * 60, os.environ.get("PULSE_URL") or BROKER)
    outcome = asyncio.run(Campaign(settings, directory, _print_line).run())
    return conclude(outcome, seed, minutes, directory)


def conclude(outcome: Outcome, seed: int, minutes: float, directory: Path) -> int:
    """Write the report; if there is a violation, return 1 and print the command that repeats the campaign."""
    found = violations(outcome.evidence)
    report = table(outcome, found, seed)
    (directory / "report.txt").write_text(report)
    (directory / "time-line.svg").write_text(time_line(outcome, found, seed))
    _print_line(report)
    _print_line(f"report, time line and logs: {directory}")
    if found:
        _print_line(f"repeat: make campaign MINUTES={minutes:g} SEED={seed}")
    else:
        shutil.rmtree(directory_of(outcome.database))  # gigabytes
    return int(bool(found))


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
