"""The tables of the demo: the states of the tasks, their artifacts, and a timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taskqueue_client import Queue
from taskqueue_client.artifacts import DownloadResult
from taskqueue_client.graph import Graph
from taskqueue_client.models import Run, StorageType, TaskAndStatus

_LOG = "public/logs/live_backing.log"
_WIDTH = 48
"""Characters of the time line."""
_DIGITS = 16
"""Digits of a hash that are shown."""


@dataclass(frozen=True)
class Ended:
    """A task and its downloaded artifacts; before it has ended, it has none."""

    member: TaskAndStatus
    artifacts: list[DownloadResult]

    @property
    def name(self) -> str:
        """The task's name in the graph."""
        return str(self.member.task["metadata"]["name"])

    @property
    def run(self) -> Run | None:
        """The last run; None if the task was not scheduled."""
        return self.member.status.runs[-1] if self.member.status.runs else None

    @property
    def reason(self) -> str:
        """The reason for which the last run was resolved."""
        return str(self.run.reason_resolved or "") if self.run else ""

    @property
    def expected(self) -> str:
        """The reason that the graph expects."""
        return str(self.member.task["extra"]["expected"])

    @property
    def is_as_expected(self) -> bool:
        """Whether the task ended as the graph expects."""
        return self.reason == self.expected


def show_progress(console: Console, snapshots: Iterable[list[TaskAndStatus]]) -> None:
    """Show the states of the tasks on a terminal while they change."""
    try:
        with Live(console=console, transient=True) as live:
            for members in snapshots:
                tasks = [Ended(each, []) for each in members]
                live.update(_outcomes(tasks, "The tasks", are_over=False), refresh=True)
    finally:
        console.show_cursor()  # Ctrl-C while `Live` starts leaves the cursor hidden


def collect(queue: Queue, graph: Graph, folder: Path) -> list[Ended]:
    """Download the artifacts of the tasks of a graph, in the graph's order."""
    members = {member.status.task_id: member for member in queue.iter_task_group(graph.task_group_id)}
    return [_ended(queue, members[task.task_id], folder) for task in graph.tasks]


def _ended(queue: Queue, member: TaskAndStatus, folder: Path) -> Ended:
    task_id = member.status.task_id
    artifacts = queue.iter_latest_artifacts(task_id) if member.status.runs else ()
    names = [
        artifact.name
        for artifact in artifacts
        if artifact.storage_type in {StorageType.S3, StorageType.OBJECT}
    ]
    place = folder / str(member.task["metadata"]["name"])
    place.mkdir(parents=True, exist_ok=True)
    downloads = [queue.download_artifact(task_id, name, to=place / name.rpartition("/")[2]) for name in names]
    return Ended(member, downloads)


def show(console: Console, every: list[Ended]) -> None:
    """Print the tables and the time line."""
    console.print(_outcomes(every, "How the tasks ended", are_over=True))
    console.print(_artifacts(every))
    console.print(_time_line(every))


def _outcomes(every: list[Ended], title: str, *, are_over: bool) -> Table:
    table = Table("task", "state", "reason", "duration", "expected", "", title=title)
    for ended in every:
        run = ended.run
        table.add_row(
            ended.name,
            ended.member.status.state,
            ended.reason,
            f"{_seconds(run.started, run.resolved):.2f} s" if run and run.resolved else "",
            ended.expected,
            _verdict(ended) if are_over or ended.reason else "",
        )
    return table


def _verdict(ended: Ended) -> Text:
    return Text("yes", "green") if ended.is_as_expected else Text("NO", "bold red")


def _artifacts(every: list[Ended]) -> Table:
    table = Table("task", "artifact", "bytes", "verified", title="The artifacts of the tasks")
    table.columns[2].justify = "right"
    for ended in every:
        for download in ended.artifacts:
            name = Text(download.name, "bold" if download.name == _LOG else "")
            table.add_row(ended.name, name, str(download.size), _hash(download))
    return table


def _hash(download: DownloadResult) -> str:
    for algorithm, value in sorted(download.hashes.items()):
        return f"{algorithm}:{value[:_DIGITS]}…"
    return "length only"


def _time_line(every: list[Ended]) -> Table:
    """Show the time from the first start to the last end: dots for waiting, blocks for running."""
    runs = [(ended.name, run) for ended in every for run in ended.member.status.runs]
    begin = min((run.started for _, run in runs if run.started), default=None)
    end = max((run.resolved for _, run in runs if run.resolved), default=None)
    scale = _WIDTH / max(_seconds(begin, end), 0.001)
    table = Table("run", "", title=f"When they ran: {_seconds(begin, end):.2f} s in all")
    for name, run in runs:
        moments = (run.scheduled, run.started, run.resolved)
        scheduled, started, resolved = (max(round(_seconds(begin, each) * scale), 0) for each in moments)
        bar = " " * scheduled + "·" * (started - scheduled) + "█" * max(resolved - started, 1)
        table.add_row(f"{name}/{run.run_id}", bar)
    return table


def _seconds(begin: datetime | None, end: datetime | None) -> float:
    return (end - begin).total_seconds() if begin and end else 0.0
