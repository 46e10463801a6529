"""Functions that run the command, and a worker that only reports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, Literal

from click.testing import CliRunner, Result

from taskqueue_client import Queue
from taskqueue_client.cli import taskqueue

Report = Literal["completed", "failed", "malformed-payload"]

COMMAND = [sys.executable, "-m", "taskqueue_client"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals of Ctrl-C, of `timeout` and service managers, and of a terminal that is closed."""


# Click 8.1 mixes both streams by default; later versions have no such option.
STREAMS: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run the command in this process."""
    runner = CliRunner(**STREAMS)
    return runner.invoke(taskqueue, arguments, input=stdin, catch_exceptions=False)


def run_json(*arguments: str) -> list[Any]:
    """Run a command with `--json`; return the values that it prints, one in each line."""
    result = run(*arguments, "--json")
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


@contextmanager
def running(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """Start the command in a separate process; kill it at the end of the block."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Worker:
    """Claims as many tasks as there are reports, and reports each task by its name.

    Args:
        queue: The client.
        reports: How each task ends, by its name.
    """

    def __init__(self, queue: Queue, reports: Mapping[str, Report]) -> None:
        self._queue = queue
        self._reports = reports

    def work(self) -> None:
        """Claim and report tasks until each report is made."""
        left = len(self._reports)
        while left:
            response = self._queue.claim_work("proj/linux", worker_group="g", worker_id="w", tasks=1)
            for claim in response.tasks:
                run = self._queue.with_credentials(claim.credentials)
                report = self._reports[claim.task["metadata"]["name"]]
                self._report(run, claim.status.task_id, claim.run_id, report)
                left -= 1

    @staticmethod
    def _report(run: Queue, task_id: str, run_id: int, report: Report) -> None:
        if report == "completed":
            run.report_completed(task_id, run_id)
        elif report == "failed":
            run.report_failed(task_id, run_id)
        else:
            run.report_exception(task_id, run_id, report)
