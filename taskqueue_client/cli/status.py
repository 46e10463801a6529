"""`taskqueue status` and `taskqueue watch`: the state of a task or group, once or until it is resolved."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import Generic, TypeVar

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from taskqueue_client._arguments import printable, some_of
from taskqueue_client._following import failed_dependencies
from taskqueue_client._protocol.retry import is_outage
from taskqueue_client.client import Queue
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import CallFailed, InsufficientScopes
from taskqueue_client.graph import blocked_tasks, follow
from taskqueue_client.models import TaskAndStatus, TaskState
from taskqueue_client.models.tasks import RESOLVED

from .arguments import check_either, connect, duration, group_option, task_ids_argument
from .failures import ExitStatus, Failure, done_for_all, in_one_line
from .output import (
    BAR,
    FULL_BAR,
    STYLES,
    console,
    in_utc,
    json_option,
    last_run,
    print_either,
    print_json,
    reason_of,
    runs_table,
    tasks_table,
)


@click.command()
@task_ids_argument
@group_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in TaskState]),
    help="Only tasks in this state; may be repeated.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    task_ids: tuple[str, ...],
    group: str | None,
    states: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Show the state of tasks, or of the tasks of a group with totals.

    A task that is unscheduled because a dependency failed is `blocked`; the totals count such tasks.
    With --json, prints an object with `task`, the definition, and `status` for each task.
    """
    check_either(task_ids, group)
    with connect() as queue:
        members = list(queue.iter_task_group(group)) if group else []
        all_known = done_for_all(task_ids, lambda each: members.append(_member(queue, each)))
        everything = members if as_json else members + blocking(queue, members)
        blocked = blocked_tasks(everything)
    chosen = [member for member in members if not states or member.status.state in states]
    if as_json:
        for member in chosen:
            print_json(member)
    elif not group and len(members) == 1 and chosen:
        _print_one(members[0], queue.now(), blockers(everything))
    elif group or members:
        console().print(tasks_table(chosen, blocked, queue.now()))
        click.echo(_totals(members, blocked))
    if not all_known:
        ctx.exit(ExitStatus.NOT_COMPLETED)


def _totals(members: Sequence[TaskAndStatus], blocked: Collection[str]) -> str:
    counts = Counter(member.status.state for member in members)
    parts = {state: f"{count} {state}" for state, count in sorted(counts.items())}
    if number := sum(member.status.task_id in blocked for member in members):
        parts[TaskState.UNSCHEDULED] += f" ({number} {_BLOCKED})"
    tasks = "1 task" if len(members) == 1 else f"{len(members)} tasks"
    return f"{tasks}: {', '.join(parts.values())}"


def _members(queue: Queue, task_ids: Sequence[str], group: str | None) -> list[TaskAndStatus]:
    if group:
        return list(queue.iter_task_group(group))
    return [_member(queue, each) for each in task_ids]


def _member(queue: Queue, task_id: str) -> TaskAndStatus:
    return TaskAndStatus(task=queue.task(task_id), status=queue.status(task_id).status)


def _print_one(member: TaskAndStatus, now: datetime, blocked_by: str) -> None:
    status, metadata = member.status, member.task["metadata"]
    state = f"{status.state}, {_BLOCKED} by {blocked_by}" if blocked_by else str(status.state)
    if status.state == TaskState.RUNNING and (until := status.runs[-1].taken_until):
        state += f", claimed until {in_utc(until)}"  # if its worker is gone, the run ends then
    retries = "1 retry" if status.retries_left == 1 else f"{status.retries_left} retries"
    rows = {
        "task": f"{metadata['name']} ({status.task_id})",
        "group": status.task_group_id,
        "queue": f"{status.task_queue_id}, priority {status.priority}",
        "owner": metadata["owner"],
        "state": f"{state}, {retries} left",
        "deadline": in_utc(status.deadline),
    }
    for key, value in rows.items():
        click.echo(f"{key:<10}{printable(str(value))}")
    if status.runs:
        click.echo()
        console().print(runs_table(status, now))


_BAR_WIDTH = 40
_RESERVED_LINES = 4  # lines of the terminal outside of the table
_FIRST = (TaskState.RUNNING, TaskState.FAILED, TaskState.EXCEPTION, TaskState.PENDING, TaskState.UNSCHEDULED)
"""The order in which tasks are shown if the terminal has no room for all."""

_Snapshot = tuple[list[TaskAndStatus], frozenset[str]]  # tasks, and the ids of those that are blocked
_FEW = 3  # how many of the tasks that block another one are named
_BLOCKED = "blocked"  # the reason of an unscheduled task with a failed dependency

T = TypeVar("T")

OUTAGE_MOST = 3600.0
"""Seconds that an outage may last while tasks are followed."""

interval_option = click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=duration(),
    help="Time between requests, in seconds or text such as '1 minute'.",
)


@click.command()
@task_ids_argument
@group_option
@interval_option
@json_option
@click.pass_context
def watch(
    ctx: click.Context, task_ids: tuple[str, ...], group: str | None, interval: float, *, as_json: bool
) -> None:
    """Follow tasks, or the tasks of a group, until they are resolved.

    Also ends if the remaining tasks are blocked, because a dependency failed. An outage of up to an hour is
    waited out. The exit status is 0 if all tasks are completed. With --json, prints an object for each change
    of a task's state: its status, `name`, and whether it is `blocked`.
    """
    check_either(task_ids, group)
    with connect() as queue:
        members = followed(queue, lambda: _members(queue, task_ids, group), interval, as_json=as_json)
    if not members:
        raise Failure(f"task group {group} has no tasks", ExitStatus.REFUSED)
    ctx.exit(exit_status(members))


def followed(
    queue: Queue, look: Callable[[], list[TaskAndStatus]], interval: float, *, as_json: bool
) -> list[TaskAndStatus]:
    """Print changes of the tasks that `look` returns, until all are resolved or blocked; return the tasks."""
    ours: set[str] = set()

    def look_with_blockers() -> list[TaskAndStatus]:
        members = look()
        ours.update(member.status.task_id for member in members)
        return members + blocking(queue, members)

    changes = follow(PatientLook(look_with_blockers, SystemClock()), interval=interval)
    snapshots = (
        ([member for member in everything if member.status.task_id in ours], blocked_tasks(everything))
        for everything in changes
    )
    return _show(snapshots, queue.now, as_json=as_json)


def blocking(queue: Queue, members: list[TaskAndStatus]) -> list[TaskAndStatus]:
    """Return other tasks that may block unscheduled ones: their dependencies, direct and indirect.

    Tasks that may still complete are left out: `follow` would wait for them, too.
    """
    others: list[TaskAndStatus] = []
    seen: set[str] = set()
    latest = members
    while latest:
        seen.update(member.status.task_id for member in latest)
        waiting = [member for member in latest if member.status.state is TaskState.UNSCHEDULED]
        missing = {dependency for member in waiting for dependency in member.task["dependencies"]} - seen
        latest = _read(queue, missing)
        others += latest
    blocked = blocked_tasks(members + others)
    return [each for each in others if each.status.state in RESOLVED or each.status.task_id in blocked]


def blockers_of(queue: Queue, task_id: str) -> str:
    """Return what blocks a task, as `blockers` does; an empty str if the credentials may not read it."""
    members = _read(queue, [task_id])
    return blockers(members + blocking(queue, members))


def blockers(members: Sequence[TaskAndStatus]) -> str:
    """Return the failed tasks that block others, in words: three of them, and the number of the rest."""
    known = {member.status.task_id: member for member in members}
    statuses = {task_id: member.status for task_id, member in known.items()}
    blocked = blocked_tasks(members)
    found = (
        known[dependency]
        for member in members
        if member.status.task_id in blocked
        for dependency in failed_dependencies(member.task, statuses)
    )
    named = dict.fromkeys(map(_named, found))
    return some_of(named, _FEW)


def _named(member: TaskAndStatus) -> str:
    name = printable(str(member.task["metadata"]["name"]))
    return f"{member.status.task_id} ({name}, {member.status.state})"


def _read(queue: Queue, task_ids: Collection[str]) -> list[TaskAndStatus]:
    """Return any number of tasks with a few requests; none if the credentials may not read them."""
    if not task_ids:
        return []
    try:
        definitions = {each.task_id: each.task for each in queue.iter_tasks(task_ids)}
        statuses = list(queue.iter_statuses(task_ids))
    except InsufficientScopes:
        return []  # the chosen tasks can be followed nevertheless
    return [
        TaskAndStatus(task=definitions[each.task_id], status=each.status)
        for each in statuses
        if each.task_id in definitions
    ]


class PatientLook(Generic[T]):
    """Reads something with `look`; in an outage, returns what it read last: many graphs take hours.

    If the first `look` fails and nothing is `known`, its error is raised: the settings may be wrong.
    """

    def __init__(self, look: Callable[[], T], clock: Clock, known: T | None = None) -> None:
        self._look = look
        self._clock = clock
        self._last = known
        self._outage_since: float | None = None

    def __call__(self) -> T:
        """Return what is read. In an outage, write a note to standard error, and return what was read last.

        Raises:
            CallFailed: The Queue refuses, or an outage takes longer than `OUTAGE_MOST`.
        """
        try:
            self._last = self._look()
        except CallFailed as error:
            if self._last is None or not is_outage(error):
                raise
            self._note(error)
        else:
            self._outage_since = None
        return self._last

    def _note(self, error: CallFailed) -> None:
        now = self._clock.monotonic()
        if self._outage_since is None:
            self._outage_since = now
            # Not with `click.echo`, which would write into the middle of a table on a terminal.
            sys.stderr.write(f"{in_one_line(error)}; retrying for an hour at most\n")
            sys.stderr.flush()
        if now - self._outage_since > OUTAGE_MOST:
            raise error


def exit_status(members: list[TaskAndStatus]) -> ExitStatus:
    """Return the exit status for tasks that were waited for."""
    completed = all(member.status.state is TaskState.COMPLETED for member in members)
    return ExitStatus.DONE if completed else ExitStatus.NOT_COMPLETED


def _show(
    snapshots: Iterator[_Snapshot], now: Callable[[], datetime], *, as_json: bool
) -> list[TaskAndStatus]:
    """Print changes as lines or, on a terminal, in place; return the last snapshot."""
    if console().is_interactive and not as_json:
        return _show_live(snapshots, now)
    known: dict[str, tuple[object, ...]] = {}
    members: list[TaskAndStatus] = []
    for members, blocked in snapshots:
        for member in members:
            status = member.status
            reason = _BLOCKED if status.task_id in blocked else reason_of(last_run(status))
            shown = (status.state, len(status.runs), reason)
            if known.get(status.task_id) != shown:
                known[status.task_id] = shown
                _print_line(member, reason, as_json=as_json)
    return members


def _print_line(member: TaskAndStatus, reason: str, *, as_json: bool) -> None:
    name, status = str(member.task["metadata"]["name"]), member.status
    line = f"{status.task_id} {printable(name)} {status.state} {reason}".rstrip()
    document = {"name": name, "blocked": reason == _BLOCKED, **status.to_dict()}
    print_either(document, line, as_json=as_json)


def _show_live(snapshots: Iterator[_Snapshot], now: Callable[[], datetime]) -> list[TaskAndStatus]:
    output = console()
    latest: _Snapshot = ([], frozenset())

    def render() -> RenderableType:
        return progress(*latest, output.height - _RESERVED_LINES, now())

    try:
        with Live(console=output, get_renderable=render) as live:
            for latest in snapshots:  # noqa: B007 - `render` shows it, also between snapshots
                live.refresh()
    finally:
        output.show_cursor()  # Ctrl-C while `Live` starts may have left the cursor hidden
    return latest[0]


def progress(
    members: list[TaskAndStatus], blocked: frozenset[str], lines: int, now: datetime
) -> RenderableType:
    """Return a progress bar, totals, and a table of as many tasks as fit; `now` is the service's time."""
    counts = Counter(member.status.state for member in members)
    resolved = sum(counts[state] for state in RESOLVED)
    summary = Text(f" {resolved}/{len(members)}")
    for state, count in counts.items():
        summary.append(f"  {count} {state}", style=STYLES.get(state, ""))
    total = max(len(members), 1)
    bar = ProgressBar(total, resolved, _BAR_WIDTH, complete_style=BAR, finished_style=FULL_BAR)
    shown = members
    if len(members) > lines:
        rank = {state: position for position, state in enumerate(_FIRST)}
        shown = sorted(members, key=lambda member: rank.get(member.status.state, len(_FIRST)))[:lines]
    return Group(tasks_table(shown, blocked, now), bar, summary)
