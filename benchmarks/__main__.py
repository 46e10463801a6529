"""All benchmarks as one table: `python -m benchmarks`, or parts of it: `python -m benchmarks sync local`.

Each part runs in a separate process. If it fails or takes too long, it is printed as failed, and the others
still run. The figures are kept in `docs/benchmarks`; a run of some parts replaces only the figures of these.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from threading import Timer

import msgspec

from benchmarks.measure import Row, spin, spread
from benchmarks.report import Result, load, machine, save

PARTS = {
    "definitions": ("benchmarks.definitions", "rows"),
    "sync": ("benchmarks.client", "sync_http"),
    "async": ("benchmarks.client", "async_http"),
    "https": ("benchmarks.client", "sync_https"),
    "signing": ("benchmarks.client", "signing"),
    "decoding": ("benchmarks.client", "decoding"),
    "imports": ("benchmarks.client", "imports"),
    "runs": ("benchmarks.worker", "beside_aiohttp"),
    "tracing": ("benchmarks.worker", "tracing"),
    "scriptworker": ("benchmarks.worker", "beside_scriptworker"),
    "held": ("benchmarks.worker", "held_runs"),
    "idle": ("benchmarks.worker", "waiting"),
    "proxy": ("benchmarks.proxy", "rows"),
    "polling": ("benchmarks.polling", "rows"),
    "small": ("benchmarks.artifacts", "small_artifacts"),
    "gzip": ("benchmarks.artifacts", "gzip"),
    "large": ("benchmarks.artifacts", "large_artifacts"),
    "checkpoints": ("benchmarks.checkpoints", "rows"),
    "tls": ("benchmarks.artifacts", "large_over_tls"),
    "floors": ("benchmarks.artifacts", "floors"),
    "memory": ("benchmarks.artifacts", "of_fresh_processes"),
    "local": ("benchmarks.local_queue", "rows"),
    "beside": ("benchmarks.local_queue", "beside_bare_server"),
    "events": ("benchmarks.events", "rows"),
    "threads": ("benchmarks.growth", "calls_by_threads"),
    "concurrency": ("benchmarks.growth", "runs_by_concurrency"),
    "pending": ("benchmarks.growth", "claims_by_pending_tasks"),
    "artifacts": ("benchmarks.growth", "uploads_by_artifacts"),
}
"""The parts, in the order of the table, with the module and the function that gives the rows."""

LIMIT = 180.0
"""Seconds that a part may take."""

LIMIT_OF_ALL = 840.0
"""Seconds after which no more parts are begun."""

_ROW = "row: "


def main(names: list[str]) -> int:
    if unknown := {*names} - {*PARTS}:
        print(f"unknown: {' '.join(sorted(unknown))}; there are: {' '.join(PARTS)}", file=sys.stderr)
        return 2
    results, began = load(), time.monotonic()
    print(machine())
    for name in names or PARTS:
        print(f"\n{name}", flush=True)
        left = LIMIT_OF_ALL - (time.monotonic() - began)
        results[name] = _result(name, min(LIMIT, left))
        save({each: results[each] for each in PARTS if each in results})
    found = [results[name] for name in names or PARTS]
    missed = sum(not row.reached for result in found for row in result.rows)
    failed = sum(bool(result.error) for result in found)
    print(f"\n{missed} rows missed, {failed} parts failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _result(name: str, limit: float) -> Result:
    """Run a part, and print each row as it comes."""
    before, rows, error = spin(), list[Row](), "the time for all parts is used up"
    if limit > 0:
        command = [sys.executable, "-m", "benchmarks", "--part", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            rows, error = _rows_of(process, limit)
    noise = spread([*before, *spin()])
    print(f"{'FAILED ' + error if error else ''}  noise {noise:.0%}".strip(), flush=True)
    return Result(rows, noise, machine(), error)


def _rows_of(process: subprocess.Popen[str], limit: float) -> tuple[list[Row], str]:
    assert process.stdout is not None
    timer = Timer(
        limit, partial(os.killpg, process.pid, signal.SIGKILL)
    )  # kills the servers of the part, too
    timer.start()
    rows: list[Row] = []
    for line in process.stdout:
        if line.startswith(_ROW):
            rows.append(msgspec.json.decode(line.removeprefix(_ROW), type=Row))
            print(rows[-1], flush=True)
        else:
            print(line, end="", flush=True)
    timed_out = timer.finished.is_set()
    timer.cancel()
    if process.wait() == 0:
        return rows, ""
    return rows, f"took longer than {limit:.0f} s" if timed_out else "ended with an error; see the output"


def part(name: str) -> None:
    """Run one part; the main function of its process."""
    module, function = PARTS[name]
    rows: Iterator[Row] = getattr(import_module(module), function)()
    for row in rows:
        print(_ROW + msgspec.json.encode(row).decode(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        part(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
