"""Arguments that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from taskqueue_client.slugid import is_slugid

F = TypeVar("F", bound=Callable[..., Any])


class SlugId(click.ParamType[str]):
    """A task id, or the id of a task group."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The id.

        Raises:
            BadParameter: It cannot be one.
        """
        if not is_slugid(value):
            self.fail(
                f"{value!r} is no id: they have 22 letters, digits, - and _, as `submit` prints them",
                param,
                ctx,
            )
        return str(value)


class Seconds(click.FloatRange):
    """A time to sleep for: at most a day."""

    def __init__(self) -> None:
        super().__init__(0, 86_400, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds.

        Raises:
            BadParameter: It is no number, or out of range.
        """
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):  # no comparison finds it out of range
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def group_option(command: F) -> F:
    """Let a command take `--group ID` in place of a task id."""
    return click.option("--group", type=SlugId(), metavar="ID", help="A task group, in place of a task.")(
        command
    )


def task_argument(command: F) -> F:
    """Give a command one task id."""
    return click.argument("task_id", type=SlugId())(command)


def task_ids_argument(command: F) -> F:
    """Give a command any number of task ids."""
    return click.argument("task_ids", type=SlugId(), nargs=-1, metavar="TASK_ID...")(command)


def run_option(command: F) -> F:
    """Let a command take the number of a run."""
    return click.option("--run", "run_id", type=click.IntRange(0), help="Which run.  [default: the last]")(
        command
    )


def check_either(task_ids: tuple[str, ...], group: str | None) -> None:
    """Refuse a command line with both tasks and a group, or with neither.

    Raises:
        UsageError: It has.
    """
    if bool(task_ids) == bool(group):
        message = "Give task ids, or a group with --group."
        raise click.UsageError(message)
