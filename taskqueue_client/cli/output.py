"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000
"""From one unit to the next."""

_WIDE = 10_000
"""Columns of what is no terminal: nothing is cut off or wrapped there."""

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Give a command the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: object) -> None:
    """Print a value as one line, with the keys of the Queue's own JSON."""
    click.echo(msgspec.json.encode(value))


def print_either(value: object, line: str, *, as_json: bool) -> None:
    """Print a value for programs, or a line for people."""
    if as_json:
        print_json(value)
    else:
        click.echo(line)


def console(*, stderr: bool = False) -> Console:
    """Where tables go: as wide as the terminal, or as they need to be if it is none."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def new_table(*columns: str) -> Table:
    """An empty table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def printable(text: str) -> str:
    """A text of somebody else's without what could move the cursor or change colours."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def duration(start: datetime | None, end: datetime | None) -> str:
    """How long something took, or has taken so far, for people: `1:02:03`, `12.3 s`."""
    if start is None:
        return ""
    took = (end or datetime.now(UTC)) - start
    if took < timedelta(minutes=1):
        return f"{max(took.total_seconds(), 0):.1f} s"
    return str(timedelta(seconds=int(took.total_seconds())))


def size(count: int | None) -> str:
    """A number of bytes for people; nothing if it is not known."""
    if count is None:
        return ""
    steps = min(int(math.log(max(count, 1), _STEP)), len(_UNITS) - 1)
    return f"{count} B" if steps == 0 else f"{count / _STEP**steps:.1f} {_UNITS[steps]}"
