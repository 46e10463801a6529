"""Shared by the commands: types of arguments, and a client with the settings of the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from taskqueue_client._dates import seconds_of
from taskqueue_client.slugid import is_slugid

from .failures import Failure

if TYPE_CHECKING:
    from taskqueue_client.client import Queue


def slug_id(given: str) -> str:
    """Return the id of a task or a task group; the type of an argument."""
    if not is_slugid(given):
        expected = "a slugid of 22 characters, as `submit` prints it"
        raise click.BadParameter(f"{given!r} is not the id of a task or group; expected {expected}")
    return given


def duration(longest: str = "1 day") -> Callable[[object], float]:
    """Return the type of an argument that is a number of seconds or text such as `5 minutes`."""

    def duration(given: object) -> float:
        seconds = seconds_of(str(given))
        with suppress(ValueError):
            seconds = float(str(given)) if seconds is None else seconds
        if seconds is None or not 0 < seconds <= (seconds_of(longest) or 0):
            expected = (
                f"seconds, or whole numbers with units such as '5 minutes', more than 0 and at most {longest}"
            )
            raise click.BadParameter(f"{given!r} is not valid; expected {expected}")
        return seconds

    return duration


group_option = click.option("--group", type=slug_id, metavar="ID", help="A task group, instead of tasks.")
task_argument = click.argument("task_id", type=slug_id)
task_ids_argument = click.argument("task_ids", type=slug_id, nargs=-1, metavar="[TASK_ID]...")
some_task_ids_argument = click.argument(
    "task_ids", type=slug_id, nargs=-1, metavar="TASK_ID...", required=True
)
run_option = click.option("--run", "run_id", type=click.IntRange(0), help="The run.  [default: the latest]")


def check_either(task_ids: tuple[str, ...], group: str | None) -> None:
    """Refuse a command line with both tasks and a group, or with neither."""
    if bool(task_ids) == bool(group):
        raise click.UsageError("Give either task ids or --group.")


def connect() -> Queue:
    """Return a client, with credentials if there are any."""
    from taskqueue_client.client import Queue  # noqa: PLC0415 - takes time that `taskqueue local` does not need

    if not (os.environ.get("TASKCLUSTER_PROXY_URL") or os.environ.get("TASKCLUSTER_ROOT_URL")):
        raise Failure(
            "TASKCLUSTER_ROOT_URL is not set: set it to the deployment's URL, or start `taskqueue local`"
        )
    return Queue.from_env()


def connect_with_credentials() -> Queue:
    """Return a client with credentials, or for a proxy that adds credentials."""
    queue = connect()
    if queue.credentials is None and not os.environ.get("TASKCLUSTER_PROXY_URL"):
        raise Failure(
            "no credentials: set TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN "
            "(and TASKCLUSTER_CERTIFICATE, if they are temporary)"
        )
    return queue
