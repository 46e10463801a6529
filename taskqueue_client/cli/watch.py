"""`taskqueue watch`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import click
import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from taskqueue_client.graph import blocked_tasks, follow
from taskqueue_client.models import TaskAndStatus, TaskState

from .arguments import Seconds, check_either, group_option, task_ids_argument
from .connection import connect
from .failures import ExitStatus
from .output import console, json_option, print_json, printable
from .status import one_task, tasks_of_group
from .tables import STYLES, last_run, reason_of, tasks_table

_BAR_WIDTH = 40
_RESERVED_LINES = 4
"""Lines of a terminal that are not the table's."""
_FIRST = (TaskState.RUNNING, TaskState.FAILED, TaskState.EXCEPTION, TaskState.PENDING, TaskState.UNSCHEDULED)
"""Which tasks are shown where there is no room for all."""

interval_option = click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=Seconds(),
    help="Seconds between looks.",
)


@click.command()
@task_ids_argument
@group_option
@interval_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, task_ids: tuple[str, ...], group: str | None, interval: float, *, as_json: bool
) -> None:
    """Follow tasks, or the tasks of a group, until they are resolved.

    Also ends when the tasks that are left wait in vain, because one that they need failed. The exit status
    is 0 if all tasks are completed. With --json, prints a line for each change of a task's state.
    """
    check_either(task_ids, group)
    with connect() as queue:
        members = show(
            follow(
                lambda: (
                    tasks_of_group(queue, group) if group else [one_task(queue, each) for each in task_ids]
                ),
                interval=interval,
            ),
            as_json=as_json,
        )
    ctx.exit(exit_status(members))


def exit_status(members: list[TaskAndStatus]) -> ExitStatus:
    """Whether tasks that were waited for are completed."""
    completed = all(member.status.state is TaskState.COMPLETED for member in members)
    return ExitStatus.DONE if completed else ExitStatus.NOT_COMPLETED


def show(snapshots: Iterator[list[TaskAndStatus]], *, as_json: bool) -> list[TaskAndStatus]:
    """Print what changes, as lines or, on a terminal, in place; gives the last snapshot."""
    if as_json:
        return _show_changes(snapshots, _print_json_line)
    if not console().is_terminal:
        return _show_changes(snapshots, _print_line)
    return _show_live(snapshots)


def _show_changes(
    snapshots: Iterator[list[TaskAndStatus]], show_one: Callable[[TaskAndStatus, str], None]
) -> list[TaskAndStatus]:
    """Print a line for each task whose state, run or reason is another one."""
    known: dict[str, tuple[object, ...]] = {}
    members: list[TaskAndStatus] = []
    for members in snapshots:
        blocked = blocked_tasks(members)
        for member in members:
            status = member.status
            reason = "blocked" if status.task_id in blocked else reason_of(last_run(status))
            now = (status.state, len(status.runs), reason)
            if known.get(status.task_id) != now:
                known[status.task_id] = now
                show_one(member, reason)
    return members


def _print_json_line(member: TaskAndStatus, reason: str) -> None:
    del reason  # as the status has it, or as the other lines tell
    print_json({"name": member.task["metadata"]["name"], **msgspec.to_builtins(member.status)})


def _print_line(member: TaskAndStatus, reason: str) -> None:
    name = printable(str(member.task["metadata"]["name"]))
    click.echo(f"{member.status.task_id} {name} {member.status.state} {reason}".rstrip())


def _show_live(snapshots: Iterator[list[TaskAndStatus]]) -> list[TaskAndStatus]:
    output = console()
    latest: list[TaskAndStatus] = []

    def render() -> RenderableType:
        return progress(latest, output.height - _RESERVED_LINES)

    with Live(console=output, get_renderable=render) as live:
        for latest in snapshots:  # noqa: B007 - shown by `render`, also between two snapshots
            live.refresh()
    return latest


def progress(members: list[TaskAndStatus], lines: int) -> RenderableType:
    """A bar, the number of tasks in each state, and a table of as many tasks as there is room for."""
    counts = Counter(member.status.state for member in members)
    resolved = sum(counts[state] for state in (TaskState.COMPLETED, TaskState.FAILED, TaskState.EXCEPTION))
    summary = Text(f" {resolved}/{len(members)}")
    for state, count in counts.items():
        summary.append(f"  {count} {state}", style=STYLES.get(state, ""))
    bar = ProgressBar(total=max(len(members), 1), completed=resolved, width=_BAR_WIDTH)
    shown = members
    if len(members) > lines:
        rank = {state: position for position, state in enumerate(_FIRST)}
        shown = sorted(members, key=lambda member: rank.get(member.status.state, len(_FIRST)))[:lines]
    return Group(tasks_table(shown, blocked_tasks(members)), bar, summary)
