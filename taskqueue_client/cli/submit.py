"""`taskqueue submit`."""

from __future__ import annotations

import signal
import textwrap
import threading
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import click
import yaml

from taskqueue_client.client import Queue
from taskqueue_client.errors import InvalidDefinition
from taskqueue_client.graph import Graph, SubmissionFailed, plan_graph, plan_task, submit_graph
from taskqueue_client.models import TaskAndStatus

from . import ENDING
from .arguments import connect_with_credentials
from .documents import read_document, refusing_depth, shown
from .failures import Failure, in_one_line, status_of
from .output import json_option, print_change, print_either
from .status import exit_status, followed, interval_option


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check the file and print the definitions; create nothing.")
@click.option("--wait", is_flag=True, help="Follow the tasks until they are resolved, as `watch` does.")
@interval_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, file: Path, interval: float, *, dry_run: bool, wait: bool, as_json: bool
) -> None:
    """Create the task, or the graph of tasks, that a YAML or JSON file describes; - is standard input.

    A file with `tasks` has task definitions by name, optionally `defaults` for all of them and the
    `taskGroupId` of an existing group. Their `dependencies` are such names, or ids of existing tasks. In a
    payload, {task-reference: <build>} stands for the id of the dependency `build`. Any other file is one task
    definition. `deadline` and `expires` may be durations like "2 hours". Everything is checked before
    anything is sent. With --dry-run, neither deployment nor credentials are needed.

    Submitting a file again creates new tasks. If a submission was interrupted, first cancel what it has
    created.

    With --json, prints an object with `taskGroupId` and, by name, `taskIds`; --wait adds what `watch` prints.
    With --dry-run, prints an object for each task, with `name`, `taskId` and the definition, `task`.
    """
    document = read_document(file)
    if dry_run:
        with refusing_depth(file):
            _print_definitions(_planned(file, document, datetime.now(UTC)), as_json=as_json)
        return
    with connect_with_credentials() as queue:
        queue.with_options(attempts=2).ping()  # fails early, and measures the clock skew
        with refusing_depth(file):
            graph = _planned(file, document, queue.now())
        is_new_group = not document.get("taskGroupId")
        with _interruption_explained(graph, is_new_group=is_new_group):
            _submit(queue, graph, is_new_group=is_new_group)
            _print_ids(graph, as_json=as_json)
        if wait:
            ctx.exit(exit_status(_followed(queue, graph, interval, as_json=as_json)))


def _planned(file: Path, document: dict[str, object], created: datetime) -> Graph:
    plan = plan_graph if "tasks" in document else plan_task
    try:
        return plan(document, created=created)
    except InvalidDefinition as error:
        first, *more = map(str, error.problems)
        if not more:
            raise Failure(f"{shown(file)}: {first}") from error
        raise Failure(f"{shown(file)}: {len(error.problems)} problems:", details=[first, *more]) from error


def _submit(queue: Queue, graph: Graph, *, is_new_group: bool) -> None:
    try:
        submit_graph(queue, graph)
    except SubmissionFailed as error:
        cause = error.error
        was = "may have been" if error.name in error.unknown else "was not"
        more = len(set(error.unknown) - {error.name})
        unclear = f", {more} more may have been" if more else ""
        count = f" ({len(error.created)} of {len(graph.tasks)} tasks were{unclear})"
        others = count if error.created or unclear else ""
        advice = how_to_cancel(graph, (*error.created, *error.unknown), is_new_group=is_new_group)
        raise Failure(
            f"task {error.name!r} {was} created: {in_one_line(cause)}{others}{advice}", status_of(cause)
        ) from error


@contextmanager
def _interruption_explained(graph: Graph, *, is_new_group: bool) -> Generator[None]:
    """Say at once what a signal may have left behind: `submit_graph` first waits for calls in progress."""
    is_main = threading.current_thread() is threading.main_thread()
    found = {each: signal.getsignal(each) for each in (signal.SIGINT, *ENDING)}
    before = {each: handler for each, handler in found.items() if is_main and callable(handler)}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def explain(number: int, frame: FrameType | None) -> None:
        restore()  # the next signal ends the wait
        advice = how_to_cancel(graph, graph.task_ids, is_new_group=is_new_group)
        click.echo(f"Some of the tasks may have been created{advice}", err=True)
        if len(graph.tasks) > 1:
            click.echo("Waiting for calls in progress; interrupt again (Ctrl-C) to end now", err=True)
        before[signal.Signals(number)](number, frame)

    for each in before:
        signal.signal(each, explain)
    try:
        yield
    finally:
        restore()


def how_to_cancel(graph: Graph, names: Collection[str], *, is_new_group: bool) -> str:
    """Return how to cancel what was created, and no other tasks of a group that existed before."""
    chosen = set(names)
    ids = [task.task_id for task in graph.tasks if task.name in chosen]
    which = f"--group {graph.task_group_id}" if is_new_group else " ".join(ids)
    return f"; to cancel what was created: taskqueue cancel {which}" if ids else ""


def _print_definitions(graph: Graph, *, as_json: bool) -> None:
    for task in graph.tasks:
        document = {"name": task.name, "taskId": task.task_id, "task": task.definition}
        text = yaml.safe_dump(task.definition, sort_keys=False, allow_unicode=True).rstrip()
        print_either(document, f"{task.name}\n{textwrap.indent(text, '  ')}", as_json=as_json)
    if not as_json:
        click.echo(f"dry run: {len(graph.tasks)} valid, 0 created")


def _print_ids(graph: Graph, *, as_json: bool) -> None:
    document = {"taskGroupId": graph.task_group_id, "taskIds": graph.task_ids}
    lines = [f"group {graph.task_group_id}", *(f"{task.task_id} {task.name}" for task in graph.tasks)]
    print_change(document, "\n".join(lines), as_json=as_json)


def _followed(queue: Queue, graph: Graph, interval: float, *, as_json: bool) -> list[TaskAndStatus]:
    """Follow the tasks of the graph: its group may contain others."""
    ours = set(graph.task_ids.values())

    def look() -> list[TaskAndStatus]:
        members = queue.iter_task_group(graph.task_group_id)
        return [each for each in members if each.status.task_id in ours]

    return followed(queue, look, interval, as_json=as_json)
