"""Shared by the commands: types of arguments, and a client with the settings of the environment."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from taskqueue_client._dates import seconds_of
from taskqueue_client.slugid import is_slugid

from .failures import Failure

if TYPE_CHECKING:
    from taskqueue_client.client import Queue


class SlugId(click.ParamType[str]):
    """The id of a task or a task group."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check an id."""
        if not is_slugid(value):
            self.fail(
                f"{value!r} is not a task id; expected 22 letters, digits, - and _, as `submit` prints them",
                param,
                ctx,
            )
        return str(value)


class Duration(click.ParamType[float]):
    """A number of seconds or text such as `5 minutes`."""

    name = "duration"

    def __init__(self, longest: str = "1 day") -> None:
        self._longest = longest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a duration in seconds."""
        seconds = seconds_of(str(value))
        with suppress(ValueError):
            seconds = float(value) if seconds is None else seconds
        if seconds is None or not 0 < seconds <= (seconds_of(self._longest) or 0):
            expected = f"seconds or text such as '5 minutes', more than 0 and at most {self._longest}"
            self.fail(f"{value!r} is not valid; expected {expected}", param, ctx)
        return seconds


group_option = click.option("--group", type=SlugId(), metavar="ID", help="A task group, instead of tasks.")
task_argument = click.argument("task_id", type=SlugId())
task_ids_argument = click.argument("task_ids", type=SlugId(), nargs=-1, metavar="TASK_ID...")
some_task_ids_argument = click.argument(
    "task_ids", type=SlugId(), nargs=-1, metavar="TASK_ID...", required=True
)
run_option = click.option("--run", "run_id", type=click.IntRange(0), help="The run.  [default: the latest]")


def check_either(task_ids: tuple[str, ...], group: str | None) -> None:
    """Refuse a command line with both tasks and a group, or with neither."""
    if bool(task_ids) == bool(group):
        message = "Give either task ids or --group."
        raise click.UsageError(message)


def connect() -> Queue:
    """Return a client, with credentials if there are any."""
    from taskqueue_client.client import Queue  # noqa: PLC0415 - takes time that `taskqueue local` does not need

    if not (os.environ.get("TASKCLUSTER_PROXY_URL") or os.environ.get("TASKCLUSTER_ROOT_URL")):
        message = (
            "TASKCLUSTER_ROOT_URL is not set: set it to the deployment's URL, or start `taskqueue local`"
        )
        raise Failure(message)
    return Queue.from_env()


def connect_with_credentials() -> Queue:
    """Return a client with credentials, or for a proxy that adds credentials."""
    queue = connect()
    if queue.credentials is None and not os.environ.get("TASKCLUSTER_PROXY_URL"):
        message = (
            "no credentials: set TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN "
            "(and TASKCLUSTER_CERTIFICATE, if they are temporary)"
        )
        raise Failure(message)
    return queue
