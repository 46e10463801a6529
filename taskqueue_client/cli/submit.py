"""`taskqueue submit`."""

from __future__ import annotations

from pathlib import Path

import click

from taskqueue_client.client import Queue
from taskqueue_client.errors import InvalidDefinition
from taskqueue_client.graph import Graph, follow, plan_graph, plan_task, submit_graph
from taskqueue_client.models import TaskAndStatus

from .connection import connect_with_credentials
from .documents import read_document
from .failures import Failure, in_one_line
from .output import json_option, print_json
from .status import tasks_of_group
from .watch import exit_status, interval_option, show


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--wait", is_flag=True, help="Follow the tasks until they are resolved, as `watch` does.")
@interval_option
@json_option
@click.pass_context
def command(ctx: click.Context, file: Path, interval: float, *, wait: bool, as_json: bool) -> None:
    """Create the task, or the graph of tasks, that a YAML or JSON file describes.

    A file with `tasks` holds task definitions by name, and perhaps `defaults` for all of them and the
    `taskGroupId` of a group to add them to. Their `dependencies` are such names, or ids of tasks that
    exist. Any other file holds one task definition. `deadline` and `expires` may be like "2 hours".
    All of it is checked before anything is sent.
    """
    document = read_document(file)
    with connect_with_credentials() as queue:
        queue.with_options(attempts=2).ping()  # is it there, and what time is it there?
        graph = _planned(file, document, queue)
        _submit(queue, graph)
        _print_ids(graph, as_json=as_json)
        if wait:
            ctx.exit(exit_status(_followed(queue, graph, interval, as_json=as_json)))


def _planned(file: Path, document: dict[str, object], queue: Queue) -> Graph:
    plan = plan_graph if "tasks" in document else plan_task
    try:
        return plan(document, created=queue.now())
    except InvalidDefinition as error:
        message = f"{file}: {in_one_line(error)}"
        raise Failure(message) from error


def _submit(queue: Queue, graph: Graph) -> None:
    try:
        submit_graph(queue, graph)
    except KeyboardInterrupt:
        hint = f"taskqueue cancel --group {graph.task_group_id}"
        click.echo(f"Some of the tasks may have been created; to cancel them: {hint}", err=True)
        raise


def _print_ids(graph: Graph, *, as_json: bool) -> None:
    if as_json:
        print_json({"taskGroupId": graph.task_group_id, "taskIds": graph.task_ids})
        return
    click.echo(f"group {graph.task_group_id}")
    for task in graph.tasks:
        click.echo(f"{task.task_id} {task.name}")


def _followed(queue: Queue, graph: Graph, interval: float, *, as_json: bool) -> list[TaskAndStatus]:
    """Follow the graph's own tasks: its group may have more."""
    ours = set(graph.task_ids.values())

    def look() -> list[TaskAndStatus]:
        return [each for each in tasks_of_group(queue, graph.task_group_id) if each.status.task_id in ours]

    return show(follow(look, interval=interval), as_json=as_json)
