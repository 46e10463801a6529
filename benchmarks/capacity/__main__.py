"""Simulate fleets, print what they cost a deployment, and write it for the documentation.

`python -m benchmarks.capacity` takes some minutes. Fleets are simulated with up to 1,000 workers and scaled:
workers influence each other only through the deployment, which is assumed to grow with them.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

from .fleet import Load
from .line_plot import write_plot
from .scenarios import (
    WINDOW,
    Herd,
    broker_outage,
    former_policy,
    mass_boot,
    no_event,
    outage,
    spot_termination,
    steady,
)

SIMULATED = 100
"""Workers of a steady fleet; its mean is exact enough, and a day is long."""

HERD = 1000
"""Workers of a fleet whose peaks count: with fewer, chance adds to a peak."""

FLEETS = (100, 1_000, 10_000, 100_000)

REPLICA = 100
"""Requests per second that one replica of a deployment's Queue can take, for the table of replicas."""

PEAK = 1.5
"""The peak, as a multiple of the mean, for which there must be enough replicas."""

PULSE = 300.0
"""Seconds between polls for canceled runs when RabbitMQ sends messages about them, too."""

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"

HERD_LOAD = Load(HERD, concurrency=4, poll=60.0)
"""Polls at intervals of 5 s would be most of the mean, and hide the peaks of everything else."""


def main() -> None:
    logging.disable(logging.CRITICAL)
    tables = [_steady_table(), _day_table(), _herd_table()]
    (FOLDER / "capacity.md").write_text("\n".join(tables))
    print("\n".join(tables))


def _steady_table() -> str:
    rows: list[list[str]] = []
    for concurrency in (1, 4, 32):
        for poll in (5.0, 60.0, PULSE):
            load = Load(SIMULATED, concurrency=concurrency, poll=poll)
            rates = steady(load, hours=1)
            total = sum(rates.values())
            most = max(rates, key=lambda kind: rates[kind])
            scaled = [_number(total * fleet / SIMULATED) for fleet in FLEETS]
            rows.append([str(concurrency), f"{poll:g} s", *scaled, f"{most}, {rates[most] / total:.0%}"])
    head = ["concurrency", "polls every", *(f"{fleet:,} workers" for fleet in FLEETS), "most of it"]
    return _table("Requests per second in the steady state", head, rows)


def _day_table() -> str:
    load = Load(SIMULATED, concurrency=4, poll=60.0)
    rates = steady(load, hours=24)
    rows = [[kind, *(_number(rate * fleet / SIMULATED) for fleet in FLEETS)] for kind, rate in rates.items()]
    total = sum(rates.values())
    replicas = [str(math.ceil(PEAK * total * fleet / SIMULATED / REPLICA)) for fleet in FLEETS]
    rows.append([f"replicas at {REPLICA} requests/s and a peak of {PEAK}", *replicas])
    head = ["24 hours, concurrency 4, polls every 60 s", *(f"{fleet:,} workers" for fleet in FLEETS)]
    return _table("Requests per second by kind", head, rows)


def _herd_table() -> str:
    herds = {"none: by chance alone": no_event(HERD_LOAD)}
    for minutes in (1, 5, 30):
        with former_policy():
            herds[f"outage of {minutes} min, before"] = outage(HERD_LOAD, minutes)
        herds[f"outage of {minutes} min"] = outage(HERD_LOAD, minutes)
    herds["broker outage"] = broker_outage(HERD_LOAD)
    herds["boot of as many workers again"] = mass_boot(HERD_LOAD)
    herds["half of the workers terminated"] = spot_termination(HERD_LOAD)
    _plot(herds["outage of 5 min, before"], herds["outage of 5 min"])
    rows = [
        [
            name,
            f"{herd.peaks['all']:.2f}",
            f"{herd.peaks.get('report', 0):.1f}",
            f"{herd.peaks.get('reclaimTask', 0):.1f}",
            f"{herd.drained} s",
            f"{herd.lost:.1%}",
        ]
        for name, herd in herds.items()
    ]
    head = ["event", "peak, all", "peak, reports", "peak, reclaims", "calm after", "claims lost"]
    return _table("Peaks over the mean after an event, in 10 s", head, rows)


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return f"**{title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _plot(former: Herd, now: Herd) -> None:
    """Draw requests per second over the mean, from a minute before the end of an outage."""
    minutes = [number * WINDOW / 60 - 1 for number in range(len(now.curve))]
    write_plot(
        FOLDER / "capacity-outage.svg",
        "requests per second after an outage of 5 minutes, as a multiple of the mean",
        {
            "waits that grow": [(x, rate / now.mean) for x, rate in zip(minutes, now.curve, strict=True)],
            "waits of 30 s at most": [
                (x, rate / former.mean) for x, rate in zip(minutes, former.curve, strict=True)
            ],
        },
        x_ticks={-1: "", 0: "end", 5: "5 min", 10: "10 min", 15: "15 min"},
        y_ticks={0: "0", 1: "1", 2: "2", 3: "3", 4: "4", 5: "5"},
    )


if __name__ == "__main__":
    main()
