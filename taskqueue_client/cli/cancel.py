"""`taskqueue cancel`."""

from __future__ import annotations

import click

from .arguments import check_either, group_option, task_ids_argument
from .connection import connect_with_credentials
from .output import json_option, print_either


@click.command()
@task_ids_argument
@group_option
@json_option
def command(task_ids: tuple[str, ...], group: str | None, *, as_json: bool) -> None:
    """Cancel tasks, or all tasks of a group; those that are resolved stay as they are.

    A group is sealed first, without which the Queue does not cancel it: no task can be added any more. With
    --json, prints the status of each task or, of a group, what was cancelled.
    """
    check_either(task_ids, group)
    with connect_with_credentials() as queue:
        if group:
            queue.seal_task_group(group)
            cancelled = queue.cancel_task_group(group)
            line = f"{cancelled.cancelled_count} of {cancelled.task_group_size} tasks were cancelled"
            print_either(cancelled, line, as_json=as_json)
        for task_id in task_ids:
            status = queue.cancel_task(task_id).status
            print_either(status, f"{task_id} {status.state}", as_json=as_json)
