"""Run all benchmarks, or those that are named: `python -m benchmarks client events`."""

from __future__ import annotations

import subprocess
import sys

ALL = ("client", "local_queue", "artifacts", "worker", "events")


def main(names: list[str]) -> int:
    for name in names or ALL:
        print(f"\n{name}", flush=True)
        ran = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        if ran.returncode:
            return ran.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
