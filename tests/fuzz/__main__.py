"""Fuzz the parsers guided by coverage, or send random requests to local queues.

    python -m tests.fuzz [--seconds 20] [TARGET]
    python -m tests.fuzz --requests 1000000 [--seed 0]

atheris ends its process when the time is over, so each parser gets a process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taskqueue_client.local.http.api import ENDPOINTS
from tests.fuzz.request_fuzzer import BATCH, Findings, fuzz

CORPUS = Path(__file__).parent / "corpus"
PARSERS = sorted(each.name for each in CORPUS.iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, help="how many to send")
    parser.add_argument("--seed", type=int, default=0, help="chooses the requests")
    parser.add_argument("--seconds", type=int, default=20, help="of each parser")
    parser.add_argument("target", nargs="?", choices=PARSERS)
    options = parser.parse_args()
    if options.requests is not None:
        return _fuzz_queue(options.requests, options.seed)
    if find_spec("atheris") is None:
        print("skipped: atheris is not installed; `pip install atheris` where there is a wheel of it")
        return 0
    if options.target is not None:
        _fuzz(options.target, options.seconds)
        return 0
    commands = {
        each: [sys.executable, "-m", "tests.fuzz", "--seconds", str(options.seconds), each]
        for each in PARSERS
    }
    failed = [each for each, command in commands.items() if subprocess.run(command, check=False).returncode]
    print(f"{len(PARSERS) - len(failed)} of {len(PARSERS)} parsers are fine", *failed)
    return 1 if failed else 0


def _fuzz_queue(requests: int, seed: int) -> int:
    """Send requests in batches, each to a new local queue; print the findings after each tenth batch."""
    started, seen = time.monotonic(), Findings()
    for batch, begin in enumerate(range(0, requests, BATCH)):
        size = min(BATCH, requests - begin)
        found = fuzz(seed + batch, size)
        seen.add(found)
        for each in found.wrong:
            print(f"{each}\nrepeat it: python -m tests.fuzz --requests {size} --seed {seed + batch}")
        if batch % 10 == 9 or begin + size == requests:
            print(
                f"{begin + size} requests in {(time.monotonic() - started) / 60:.1f} min: {seen}", flush=True
            )
    refused = [each.full_name for each in ENDPOINTS if not seen.accepted[each.full_name]]
    print("endpoints that have accepted no request:", ", ".join(refused) or "none")
    return 1 if seen.wrong else 0


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz one parser; a finding is written to the working directory, as `crash-…`."""
    atheris: Any = import_module("atheris")  # atheris has no types

    with atheris.instrument_imports(include=["taskqueue_client"]):
        from tests.fuzz.targets import TARGETS

    def read(data: bytes) -> None:
        TARGETS[name](data)

    with tempfile.TemporaryDirectory() as found:
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", found, str(CORPUS / name)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
