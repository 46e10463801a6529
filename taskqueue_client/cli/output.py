"""Output: tables for people, JSON for programs, and texts of tasks without terminal control sequences."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from shutil import get_terminal_size

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taskqueue_client._arguments import printable
from taskqueue_client.models import Model, ReasonResolved, Run, TaskAndStatus, TaskState, TaskStatus

_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000  # the factor between two units
_WIDE = 10_000  # the width of output that is not a terminal: nothing is cut off or wrapped

STYLES = {
    TaskState.COMPLETED: "green",
    TaskState.FAILED: "red",
    TaskState.EXCEPTION: "magenta",
    TaskState.RUNNING: "yellow",
}
"""The color of each state."""

BAR, FULL_BAR = "cyan", "green"
"""The colors of progress bars. With 16 colors, rich's own are the same for a full and an empty bar."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_DIRECTION = rb"\xe2(?:\x80[\xaa-\xae]|\x81[\xa6-\xa9])"
"""Characters that change the direction of text (UAX #9, 2.1 to 2.5), in UTF-8."""

_ESCAPED_TOO = re.compile(rb"\x7f|\xc2[\x80-\x9f]|" + _DIRECTION)
"""Control characters that JSON allows in its strings, in UTF-8."""


def print_json(value: object) -> None:
    """Print a value as one line of JSON, with the keys of the Queue's API, without control characters."""
    value = value.to_dict() if isinstance(value, Model) else value
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # bytes of a path or argument that are not text; `os.fsencode` returns them
        encoded = json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
    click.echo(_ESCAPED_TOO.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), encoded))


def print_either(value: object, line: str, *, as_json: bool) -> None:
    """Print a value for programs, or a line for people."""
    if as_json:
        print_json(value)
    else:
        click.echo(line)


def print_change(value: object, line: str, *, as_json: bool) -> None:
    """Print what a command has changed, such as ids of new tasks; to standard error if output fails."""
    try:
        print_either(value, line, as_json=as_json)
    except (OSError, KeyboardInterrupt):
        click.echo(line, err=True)
        raise


def console(*, stderr: bool = False) -> Console:
    """Return the console for tables: as wide as the terminal or, without one, as wide as needed.

    It is interactive only on a terminal: variables such as `FORCE_COLOR` change only its colors.
    """
    stream = sys.stderr if stderr else sys.stdout
    width, is_interactive = (_terminal_width(), None) if stream.isatty() else (_WIDE, False)
    return Console(
        stderr=stderr,
        width=width,
        force_interactive=is_interactive,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _terminal_width() -> int | None:
    """Return the width if a shell has set COLUMNS to 0, which rich would use; else None: rich finds it."""
    return get_terminal_size().columns if os.environ.get("COLUMNS") == "0" else None


def new_table(*columns: str, shortened: str) -> Table:
    """Return an empty table. On a narrow terminal, the column `shortened` is cut off; use `cell` for it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column != shortened)
    return table


def cell(text: str) -> Text:
    """Return a printable text for the column that may be cut off, in one line."""
    return Text(printable(text), no_wrap=True)


def in_utc(moment: datetime) -> str:
    """Format a time in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(start: datetime | None, end: datetime | None, now: datetime) -> str:
    """Format the time from `start` to `end`, or to `now`: `1:02:03`, `12.3 s`; empty without a start."""
    if start is None:
        return ""
    took = (end or now) - start
    if took < timedelta(minutes=1):
        return f"{max(took.total_seconds(), 0):.1f} s"
    return str(timedelta(seconds=int(took.total_seconds())))


def size(count: int | None) -> str:
    """Format a number of bytes; None as an empty text."""
    if count is None:
        return ""
    steps = min(int(math.log(max(count, 1), _STEP)), len(_UNITS) - 1)
    return f"{count} B" if steps == 0 else f"{count / _STEP**steps:.1f} {_UNITS[steps]}"


def tasks_table(members: Iterable[TaskAndStatus], blocked: Collection[str], now: datetime) -> Table:
    """Return a table with a row for each task; `now` is the service's time."""
    table = new_table("NAME", "TASK ID", "STATE", "REASON", "RUN", "DURATION", shortened="NAME")
    for member in members:
        status = member.status
        run = last_run(status)
        table.add_row(
            cell(str(member.task["metadata"]["name"])),
            status.task_id,
            status.state,
            "blocked" if status.task_id in blocked else reason_of(run),
            "" if run is None else str(run.run_id),
            "" if run is None else duration(run.started, run.resolved, now),
            style=STYLES.get(status.state),
        )
    return table


def runs_table(status: TaskStatus, now: datetime) -> Table:
    """Return a table with a row for each run of a task; `now` is the service's time."""
    table = new_table("RUN", "STATE", "REASON", "WORKER", "SCHEDULED", "DURATION", shortened="WORKER")
    for run in status.runs:
        table.add_row(
            str(run.run_id),
            run.state,
            reason_of(run),
            cell(f"{run.worker_group}/{run.worker_id}" if run.worker_id else ""),
            in_utc(run.scheduled),
            duration(run.started, run.resolved, now),
            style=STYLES.get(TaskState(run.state)),
        )
    return table


def last_run(status: TaskStatus) -> Run | None:
    """Return the latest run, if there is one."""
    return status.runs[-1] if status.runs else None


def reason_of(run: Run | None) -> str:
    """Return the reason of a resolved run, if it says more than the state."""
    if run is None or run.reason_resolved in {None, ReasonResolved.COMPLETED, ReasonResolved.FAILED}:
        return ""
    return str(run.reason_resolved)


_LONGEST = 256  # bytes of the parameters of a control sequence; a longer one is not a sequence, but text
_PARAMETERS = rb"[0-?]{0,%d}[ -/]{0,%d}" % (_LONGEST, _LONGEST)
_STRING = rb"\x1b[\]PX^_][^\x07\x18\x1a\x1b\n]*"

_CONTROL = re.compile(
    rb"(?P<color>\x1b\[[0-9;:]{0,%d}m)" % _LONGEST
    + rb"|\x1b\[" + _PARAMETERS + rb"[@-~]"  # the cursor, erasing, modes
    + rb"|" + _STRING + rb"(?:\x07|\x1b\\|(?=[\x18\x1a\x1b\n]|\Z))"  # the title, the clipboard, links
    + rb"|\x1b[ -/]{0,%d}[0-~]" % _LONGEST  # a reset, character sets
    + rb"|\xc2[\x80-\x9f]"  # controls of one character
    + rb"|" + _DIRECTION
    + rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"  # all but tab, line feed and carriage return
)  # fmt: skip
"""Control functions by ECMA-48, section 5, in UTF-8."""

_RESET = b"\x1b[0m"

_BEGUN = re.compile(
    rb"(?:\x1b\[" + _PARAMETERS
    + rb"|" + _STRING + rb"\x1b?"
    + rb"|\x1b[ -/]{0,%d})\Z" % _LONGEST
)  # fmt: skip
"""The beginning of a control function that the next block may continue."""


class TerminalFilter:
    """Removes what controls the terminal from a text, except for colors. A task's log may contain anything.

    Colors and other attributes of characters (SGR, `ESC [ … m`), tabs, line feeds and carriage returns
    pass. Removed are sequences that move the cursor, erase, set the title, write to the clipboard (OSC 52),
    make links or reset the terminal, single control characters, and those that change the direction of text.
    A string such as a title ends with its line at the latest, so that a string without an end does not hide
    the rest. Bytes that are not UTF-8 become replacement characters: some terminals take them for controls.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = b""
        self._color = b""  # the last sequence that has passed

    def filtered(self, block: bytes) -> bytes:
        """Return what may be written of the next block. The block may end within a sequence."""
        text = self._begun + self._decoder.decode(block).encode()
        begun = _BEGUN.search(text)
        self._begun = b"" if begun is None else _shortened(begun[0])
        finished = text if begun is None else text[: begun.start()]
        return _CONTROL.sub(self._passing, finished)

    def end(self) -> bytes:
        """Return what resets the attributes of characters, if the text has not: it may hide what follows."""
        return b"" if self._color in {b"", b"\x1b[m", _RESET} else _RESET

    def _passing(self, found: re.Match[bytes]) -> bytes:
        color: bytes = found["color"] or b""
        self._color = color or self._color
        return color


def _shortened(begun: bytes) -> bytes:
    """Return the beginning of a control function without the text of its string, which may be long."""
    if begun[1:2] not in {b"]", b"P", b"X", b"^", b"_"}:
        return begun
    return begun[:2] + (b"\x1b" if begun.endswith(b"\x1b") else b"")
