"""Mutate the core with mutmut, and count the mutants that the tests of their area notice.

    python -m tests.mutation [--seed 0] [--tenths 2] [AREA…]

A seed always chooses the same sample: the mutants whose number ends with certain digits. Mutants that only
change the wording of a sentence are not counted, nor are those in `equivalent.toml`, which change nothing.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.areas import AREAS, Area

ROOT = Path(__file__).parents[2]
EQUIVALENT = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())["mutant"]
ENOUGH = 0.95
"""The share of the killable mutants of an area that the tests have to kill."""

KILLED = {"killed", "segfault"}
"""The verdicts that mean that a test has failed. `timeout` does not: pytest itself ends a test that hangs."""

SURVIVED = {"survived", "no tests"}

TEXT = re.compile(r'"([^"]*)"')

CONFIG = """
[tool.mutmut]
source_paths = ["taskqueue_client/"]
only_mutate = {modules}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:xdist", "--timeout=60"]
also_copy = ["docs", "examples", "typings", "README.md"]
do_not_mutate_patterns = ["^\\\\s*log\\\\.", "^\\\\s*(raise|message|why|what|words) ?.*\\"", "cast\\\\("]
timeout_multiplier = 60.0
timeout_constant = 2.0
"""


class Mutant(NamedTuple):
    """A mutant that was tried."""

    name: str
    verdict: str


def main() -> int:
    options = _options()
    digits = random.Random(options.seed).sample("0123456789", options.tenths)
    print(f"seed {options.seed}: mutants whose number ends with one of {' '.join(sorted(digits))}")
    results = [_try(name, "".join(digits), options.workers) for name in options.areas or AREAS]
    return 0 if all(results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--tenths", type=int, default=2, help="the size of the sample")
    parser.add_argument("--workers", type=int, default=2, help="mutants that are tried at a time")
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []], help="default: all areas")
    return parser.parse_args()


def _try(name: str, digits: str, workers: int) -> bool:
    """Try the mutants of an area; return whether enough of them were killed."""
    folder = _copy(name, AREAS[name])
    run = [sys.executable, "-m", "mutmut", "run", "--max-children", str(workers), f"*__mutmut_*[{digits}]"]
    ran = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    log = folder / "mutmut.log"
    log.write_text(ran.stdout + ran.stderr)
    counts: Counter[str] = Counter()
    survivors: list[str] = []
    for mutant in _tried(folder, digits):
        diff = _diff(folder, mutant.name) if mutant.verdict in SURVIVED else ""
        verdict = judged(mutant, diff)
        counts[verdict] += 1
        if verdict == "survived":
            survivors.append(f"{mutant.name}\n{diff}")
    return reported(name, counts, survivors, log)


def reported(name: str, counts: Counter[str], survivors: list[str], log: Path) -> bool:
    """Print how the mutants of an area count; return whether all were tried and enough were killed."""
    killable = counts["killed"] + counts["survived"]
    share = counts["killed"] / killable if killable else 0.0
    print(
        f"{name}: {counts['killed']} of {killable} killed ({share:.0%}), {counts['equivalent']} equivalent, "
        f"{counts['wording']} of wording",
        *survivors,
        sep="\n",
        flush=True,
    )
    if counts["not tried"] or not killable:
        print(f"{name}: not tried: {counts['not tried']} of {sum(counts.values())}; see {log}", flush=True)
        return False
    return share >= ENOUGH


def _copy(name: str, area: Area) -> Path:
    """Copy the repository: an interrupted run must not leave a mutant in it. Return the copy."""
    folder = ROOT / "build" / "mutants" / name
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for each in listed.stdout.splitlines():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / each).is_file():
            shutil.copy(ROOT / each, folder / each)
    modules = [f"taskqueue_client/{each}" for each in area.modules]
    with (folder / "pyproject.toml").open("a") as config:
        config.write(CONFIG.format(modules=modules, tests=list(area.tests)))
    return folder


def _tried(folder: Path, digits: str) -> Iterator[Mutant]:
    listed = _mutmut(folder, "results", "--all", "true")
    for name, verdict in re.findall(rf"^\s*(\S+__mutmut_\d*[{digits}]): (.+)$", listed, re.MULTILINE):
        yield Mutant(name, verdict)


def _diff(folder: Path, name: str) -> str:
    lines = _mutmut(folder, "show", name).splitlines()
    return "\n".join(each for each in lines if re.match(r"[-+](?![-+])", each))


def judged(mutant: Mutant, diff: str) -> str:
    """Return how a mutant counts: killed, survived, equivalent, of wording or not tried."""
    if mutant.verdict not in SURVIVED:
        return "killed" if mutant.verdict in KILLED else "not tried"
    removed = " ".join(each[1:].strip() for each in diff.splitlines() if each.startswith("-"))
    added = " ".join(each[1:].strip() for each in diff.splitlines() if each.startswith("+"))
    if _is_wording(removed, added):
        return "wording"
    known = any(each["before"] == removed and each["after"] == added for each in EQUIVALENT)
    return "equivalent" if known else "survived"


def _is_wording(removed: str, added: str) -> bool:
    """Return whether the changed strings are all sentences: one without a space is a name, which matters."""
    if re.sub('"XX|XX"', '"', added).lower() != removed.lower():
        return False
    strings = zip(TEXT.findall(removed), TEXT.findall(added), strict=True)
    return all(" " in before for before, after in strings if before != after)


def _mutmut(folder: Path, *command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "mutmut", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
