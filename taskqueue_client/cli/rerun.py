"""`taskqueue rerun`."""

from __future__ import annotations

import click

from .arguments import task_ids_argument
from .connection import connect_with_credentials
from .output import json_option, print_either


@click.command()
@task_ids_argument
@json_option
def command(task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Run tasks again, whatever became of them; their dependencies are not waited for.

    With --json, prints the status of each task.
    """
    if not task_ids:
        message = "Give at least one task id."
        raise click.UsageError(message)
    with connect_with_credentials() as queue:
        for task_id in task_ids:
            status = queue.rerun_task(task_id).status
            line = f"{task_id} {status.state}, run {len(status.runs) - 1}"
            print_either(status, line, as_json=as_json)
