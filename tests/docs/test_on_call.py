"""The commands on the page for operators are typed as the command line takes them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.local import LocalQueue
from tests.cli.command import run

PAGE = " ".join((Path(__file__).parents[2] / "docs/how-to/on-call.md").read_text().split())
GOES_ON = ("taskqueue listen", "taskqueue local")
COMMANDS = sorted(
    {
        command
        for command in re.findall(r"`(taskqueue [^`]+)`", PAGE)
        if not command.startswith(("taskqueue listen", "taskqueue local"))  # these do not end by themselves
    }
)


def test_the_page_names_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} >= {"doctor", "quarantine", "rerun", "status"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_for_operators_can_be_typed_as_it_is_written(
    command: str, deployment: LocalQueue, queue: Queue, task_factory: Any
) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj-demo/linux"))
    (claim,) = queue.claim_work("proj-demo/linux", worker_group="rack-7", worker_id="machine-12").tasks
    run_queue = queue.with_credentials(claim.credentials)
    run_queue.upload_artifact(task_id, 0, "public/logs/live.log", b"", expires="30 minutes")
    run_queue.report_failed(task_id, 0)
    if "schedule" in command:
        blocked_by, task_id = task_id, slugid()
        queue.create_task(task_id, task_factory(taskQueueId="proj-demo/linux", dependencies=[blocked_by]))
    command = re.sub(r"\b(TASK|GROUP)\b", task_id, command)
    result = run(*shlex.split(command)[1:])
    assert result.exit_code == ExitStatus.DONE, (deployment.root_url, result.stdout, result.stderr)
