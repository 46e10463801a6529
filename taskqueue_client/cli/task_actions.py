"""`taskqueue cancel`, `rerun`, `retrigger`, `schedule`, `priority` and `quarantine`."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import click

from taskqueue_client._dates import instant, timestamp
from taskqueue_client.definitions import TaskDefinition
from taskqueue_client.errors import Attempted, CallFailed, UnreadableResponse
from taskqueue_client.models import Priority, TaskStatus, TaskStatusResponse
from taskqueue_client.slugid import slugid

from .arguments import (
    check_either,
    connect_with_credentials,
    group_option,
    some_task_ids_argument,
    task_ids_argument,
)
from .failures import ExitStatus, done_for_all, not_tried
from .output import in_utc, json_option, print_change


@click.command()
@task_ids_argument
@group_option
@json_option
def cancel(task_ids: tuple[str, ...], group: str | None, *, as_json: bool) -> None:
    """Cancel tasks, or all tasks of a group; resolved tasks stay as they are.

    A group is sealed first, as the Queue requires: no task can be added to it afterwards. With --json, prints
    the status of each task or, for a group, the number and ids of canceled tasks.
    """
    check_either(task_ids, group)
    with connect_with_credentials() as queue:
        if group:
            queue.seal_task_group(group)
            try:
                canceled = queue.cancel_task_group(group)
            except (CallFailed, KeyboardInterrupt):
                click.echo(f"task group {group} is sealed: no task can be added to it", err=True)
                raise
            line = f"{canceled.cancelled_count} of {canceled.task_group_size} tasks were canceled"
            print_change(canceled, line, as_json=as_json)
        _change_each(task_ids, queue.cancel_task, lambda status: str(status.state), as_json=as_json)


@click.command()
@some_task_ids_argument
@json_option
def rerun(task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Add a run to tasks that are resolved or unscheduled; dependencies are not waited for.

    With --json, prints the status of each task.
    """

    def shown(status: TaskStatus) -> str:
        return f"{status.state}, run {len(status.runs) - 1}"

    with connect_with_credentials() as queue:
        _change_each(task_ids, queue.rerun_task, shown, as_json=as_json)


@click.command()
@some_task_ids_argument
@json_option
def schedule(task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Schedule unscheduled tasks; their dependencies are not waited for.

    A task that is scheduled already stays as it is. With --json, prints the status of each task.
    """
    with connect_with_credentials() as queue:
        _change_each(task_ids, queue.schedule_task, lambda status: str(status.state), as_json=as_json)


@click.command()
@click.argument("priority", type=click.Choice([str(each) for each in Priority]))
@task_ids_argument
@group_option
@json_option
def priority(priority: str, task_ids: tuple[str, ...], group: str | None, *, as_json: bool) -> None:
    """Change the priority of tasks, or of all tasks of a group.

    The Queue changes only tasks that have never been resolved. With --json, prints the status of each task
    or, for a group, the number and ids of changed tasks.
    """
    check_either(task_ids, group)
    wanted = Priority(priority)
    with connect_with_credentials() as queue:
        if group:
            changed = queue.change_task_group_priority(group, wanted)
            print_change(changed, f"tasks changed: {changed.tasks_affected}", as_json=as_json)
        change = partial(queue.change_task_priority, new_priority=wanted)
        _change_each(task_ids, change, lambda status: str(status.priority), as_json=as_json)


@click.command()
@click.argument("task_queue_id")
@click.argument("worker_group")
@click.argument("worker_id")
@click.option(
    "--hours",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 876_000),
    help="Length of the quarantine from now.",
)
@click.option("--reason", default="", help="Stored with the quarantine.")
@json_option
def quarantine(
    task_queue_id: str, worker_group: str, worker_id: str, *, hours: float, reason: str, as_json: bool
) -> None:
    """Give a worker no tasks for some hours; zero hours lift a quarantine.

    With --json, prints the worker.
    """
    if math.isnan(hours):  # click accepts nan in every range
        raise click.BadParameter("nan is not in the range 0<=x<=876000.", param_hint="'--hours'")
    with connect_with_credentials() as queue:
        queue.ping()  # measures the clock skew
        until = queue.now() + timedelta(hours=hours)
        worker = queue.quarantine_worker(
            task_queue_id,
            worker_group=worker_group,
            worker_id=worker_id,
            quarantine_until=until,
            quarantine_info=reason,
        )
    until = worker.quarantine_until or until
    state = f"in quarantine until {in_utc(until)}" if hours else "not in quarantine"
    print_change(worker, f"{worker_group}/{worker_id} is {state}", as_json=as_json)


@click.command()
@some_task_ids_argument
@click.option("--exact", is_flag=True, help="Copy dependencies and routes as well.")
@json_option
def retrigger(task_ids: tuple[str, ...], *, exact: bool, as_json: bool) -> None:
    """Create copies of tasks, with new ids, in the groups of the originals, which must not be sealed.

    `created` is now, and `deadline` and `expires` are moved by the same time. Dependencies and routes are
    dropped, so that a copy starts at once and does not replace the original in the index. With --json, prints
    an object with `taskId`, `newTaskId` and `status` for each task.
    """
    with connect_with_credentials() as queue:

        def act(task_id: str) -> None:
            new_task_id = slugid()
            task = queue.task(task_id)
            if "created" not in task:
                attempted = Attempted("task", "GET", queue.root_url)
                raise UnreadableResponse(attempted, HTTPStatus.OK, "no `created`")
            definition = _copied(task, queue.now(), exact=exact)
            try:
                status = queue.create_task(new_task_id, definition).status
            except (CallFailed, KeyboardInterrupt) as error:
                if not isinstance(error, CallFailed) or error.attempted.outcome_unknown:
                    click.echo(f"{new_task_id}, a copy of {task_id}, may have been created", err=True)
                raise
            document = {"taskId": task_id, "newTaskId": new_task_id, "status": status.to_dict()}
            print_change(document, f"{task_id} {new_task_id} {status.state}", as_json=as_json)

        _for_each(task_ids, act)


def _change_each(
    task_ids: tuple[str, ...],
    change: Callable[[str], TaskStatusResponse],
    shown: Callable[[TaskStatus], str],
    *,
    as_json: bool,
) -> None:
    """Change each task, and print its status afterwards: for people, what `shown` returns."""

    def act(task_id: str) -> None:
        status = change(task_id).status
        print_change(status, f"{task_id} {shown(status)}", as_json=as_json)

    _for_each(task_ids, act)


def _for_each(task_ids: tuple[str, ...], act: Callable[[str], None]) -> None:
    """Call `act` for each task, even if the Queue refuses another one; exit with status 1 in this case.

    If output fails, as after `| head -1`, the error is raised after the other tasks have been changed, too.
    """
    output_errors: list[OSError] = []
    left = list(task_ids)

    def act_on(task_id: str) -> None:
        del left[0]
        try:
            act(task_id)
        except OSError as error:
            output_errors.append(error)
        except KeyboardInterrupt:
            if left:
                click.echo(f"interrupted at {task_id}{not_tried(left)}", err=True)
            raise

    are_done = done_for_all(task_ids, act_on)
    if output_errors:
        raise output_errors[0]
    if not are_done:
        click.get_current_context().exit(ExitStatus.NOT_COMPLETED)


def _copied(task: dict[str, Any], now: datetime, *, exact: bool) -> TaskDefinition:
    """Return a definition for a copy of a task, created now, with as much time to deadline and expiry."""
    copy = dict(task)
    if not exact:
        copy |= {"dependencies": [], "requires": "all-completed", "routes": []}
    delay = now - (instant(task["created"]) or now)
    for key in ("created", "deadline", "expires"):
        if (moment := instant(task.get(key, ""))) is not None:
            copy[key] = timestamp(moment + delay)
    return cast("TaskDefinition", copy)
