"""`taskqueue status`."""

from __future__ import annotations

import click

from taskqueue_client.client import Queue
from taskqueue_client.graph import blocked_tasks
from taskqueue_client.models import TaskAndStatus

from .arguments import check_either, group_option, task_ids_argument
from .connection import connect
from .output import console, json_option, print_json, printable
from .tables import runs_table, tasks_table


@click.command()
@task_ids_argument
@group_option
@json_option
def command(task_ids: tuple[str, ...], group: str | None, *, as_json: bool) -> None:
    """Show where tasks, or the tasks of a group, stand.

    With --json, prints an object with `task`, the definition, and `status` for each task.
    """
    check_either(task_ids, group)
    with connect() as queue:
        members = tasks_of_group(queue, group) if group else [one_task(queue, each) for each in task_ids]
    if as_json:
        for member in members:
            print_json(member)
    elif len(members) == 1:
        _print_one(members[0])
    else:
        console().print(tasks_table(members, blocked_tasks(members)))


def one_task(queue: Queue, task_id: str) -> TaskAndStatus:
    """A task as a group's list has it."""
    return TaskAndStatus(task=queue.task(task_id), status=queue.status(task_id).status)


def tasks_of_group(queue: Queue, group: str) -> list[TaskAndStatus]:
    """All tasks of a group."""
    return list(queue.iter_task_group(group))


def _print_one(member: TaskAndStatus) -> None:
    status, metadata = member.status, member.task["metadata"]
    rows = {
        "task": f"{metadata['name']} ({status.task_id})",
        "group": status.task_group_id,
        "queue": f"{status.task_queue_id}, priority {status.priority}",
        "owner": metadata["owner"],
        "state": f"{status.state}, {status.retries_left} retries left",
        "deadline": f"{status.deadline:%Y-%m-%d %H:%M:%S} UTC",
    }
    for key, value in rows.items():
        click.echo(f"{key:<10}{printable(str(value))}")
    if status.runs:
        click.echo()
        console().print(runs_table(status))
