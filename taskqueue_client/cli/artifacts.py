"""`taskqueue artifacts` and `taskqueue signed-url`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from taskqueue_client import calls
from taskqueue_client._arguments import printable, some_of
from taskqueue_client._dates import timestamp
from taskqueue_client._protocol.conversation import Conversation, Together, converse_async
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts import DownloadResult
from taskqueue_client.artifacts.download_methods import checked_path, download_to
from taskqueue_client.artifacts.downloading import Destination
from taskqueue_client.client import Queue
from taskqueue_client.credentials import expires_at
from taskqueue_client.errors import InvalidArgument, TaskQueueError
from taskqueue_client.models import StorageType

from .arguments import connect, connect_with_credentials, duration, run_option, task_argument
from .failures import ExitStatus, Failure, in_one_line
from .output import (
    BAR,
    FULL_BAR,
    cell,
    console,
    json_option,
    last_run,
    new_table,
    print_either,
    print_json,
    size,
)

R = TypeVar("R")

_FEW = 20  # the most artifacts that an interrupted command names


@click.group()
def command() -> None:
    """List and download the artifacts of a task."""


@command.command("list")
@task_argument
@run_option
@json_option
def list_(task_id: str, run_id: int | None, *, as_json: bool) -> None:
    """List the artifacts of a task.

    With --json, prints an object for each artifact.
    """
    with connect() as queue:
        every = (
            queue.iter_latest_artifacts(task_id) if run_id is None else queue.iter_artifacts(task_id, run_id)
        )
        artifacts = list(every)
    if as_json:
        for artifact in artifacts:
            print_json(artifact)
        return
    table = new_table("NAME", "SIZE", "TYPE", "STORAGE", "EXPIRES", shortened="NAME")
    for artifact in artifacts:
        table.add_row(
            cell(artifact.name),
            size(artifact.content_length),
            printable(artifact.content_type),
            artifact.storage_type,
            f"{artifact.expires:%Y-%m-%d}",
        )
    console().print(table)


@command.command("get")
@task_argument
@click.argument("names", nargs=-1, metavar="[NAME]...")
@run_option
@click.option(
    "--to",
    "folder",
    default=Path(),
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the files.  [default: .]",
)
@click.option(
    "--concurrency",
    default=4,
    show_default=True,
    type=click.IntRange(1, 32),
    help="The number of parallel downloads.",
)
@json_option
@click.pass_context
def get(
    ctx: click.Context,
    task_id: str,
    names: tuple[str, ...],
    run_id: int | None,
    folder: Path,
    concurrency: int,
    *,
    as_json: bool,
) -> None:
    """Download artifacts of a task: those named, or all with content. All are of one run.

    The name of an artifact becomes a path below the folder. A file appears, or is replaced, when its download
    is complete and verified. With --json, prints an object for each artifact, with `path` or `error`.
    """
    with connect() as queue:
        run_id = _latest_run(queue, task_id) if run_id is None else run_id
        chosen = names or [
            each.name
            for each in queue.iter_artifacts(task_id, run_id)
            if each.storage_type not in {StorageType.ERROR, StorageType.LINK}
        ]
        client = AsyncQueue(queue.root_url, queue.credentials)
    if not chosen:
        click.echo(f"task {task_id} has no artifacts with content", err=True)
    bars = _bars(hidden=as_json)
    complete: list[str] = []
    downloads = map(partial(_download, client, bars, complete, task_id, run_id, folder), chosen)
    try:
        with bars or nullcontext():
            results = asyncio.run(_performed(client, Together(downloads, concurrency)))
    except KeyboardInterrupt:
        if complete:
            click.echo(f"complete: {some_of(complete, _FEW)}", err=True)
        raise
    finally:
        if bars is not None:
            bars.console.show_cursor()  # Ctrl-C while the bars start may have left the cursor hidden
    for name, result in zip(chosen, results, strict=True):
        _print(name, result, as_json=as_json)
    ctx.exit(ExitStatus.NOT_COMPLETED if any(isinstance(each, str) for each in results) else ExitStatus.DONE)


def _latest_run(queue: Queue, task_id: str) -> int:
    """Return the latest run: a rerun may begin meanwhile, and artifacts of two runs must not be mixed."""
    run = last_run(queue.status(task_id).status)
    if run is None:
        raise Failure(f"task {task_id} has no run", ExitStatus.REFUSED)
    return run.run_id


async def _performed(queue: AsyncQueue, downloads: Together[R]) -> list[R]:
    """Download; an interruption cancels all downloads and removes partial files."""
    async with queue:
        return await converse_async(queue, iter(downloads))


def _download(
    queue: AsyncQueue,
    bars: Progress | None,
    complete: list[str],
    task_id: str,
    run_id: int,
    folder: Path,
    name: str,
) -> Conversation[DownloadResult | str]:
    """Download one artifact, and add its name to `complete`; return the error in one line if that fails."""
    try:
        progress = _progress(bars, name)
        file = _FileInFolder(checked_path(_path(folder, name)))
        result = yield from download_to(queue, task_id, name, file, run_id=run_id, progress=progress)
    except (TaskQueueError, OSError) as error:
        return in_one_line(error)
    complete.append(name)
    return result


class _FileInFolder(Destination):
    """A file whose folder is created when content comes: a missing artifact must leave no empty folder."""

    def restart(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        super().restart()


def _path(folder: Path, name: str) -> Path:
    """Return the path of an artifact's file, which is always inside the folder."""
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts) or not name.isprintable():
        rule = "a path within the folder, without empty parts, . and ..; another folder is given with --to"
        raise InvalidArgument("name", name, rule)
    return folder.joinpath(*parts)


def _bars(*, hidden: bool) -> Progress | None:
    terminal = console(stderr=True)
    if hidden or not terminal.is_interactive:
        return None
    bar = BarColumn(complete_style=BAR, finished_style=FULL_BAR)
    columns = (TextColumn("{task.description}", markup=False), bar, DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=terminal)


def _progress(bars: Progress | None, name: str) -> Callable[[int, int | None], object] | None:
    if bars is None:
        return None
    bar = bars.add_task(printable(name), total=None)
    return lambda done, total: bars.update(bar, completed=done, total=total)


def _print(name: str, result: DownloadResult | str, *, as_json: bool) -> None:
    if isinstance(result, str):
        if as_json:
            print_json({"name": name, "error": result})
        else:
            click.echo(f"{printable(name)}: {result}", err=True)
        return
    document = {
        "name": name,
        "path": str(result.path),
        "size": result.size,
        "contentType": result.content_type,
        "hashes": result.hashes,
    }
    verified = ", ".join(sorted(result.hashes))
    checked = f"verified: {verified}" if verified else "no checksum available"
    print_either(document, f"{result.path} ({size(result.size)}; {checked})", as_json=as_json)


@click.command()
@task_argument
@click.argument("name")
@run_option
@click.option(
    "--lifetime",
    default="15 minutes",
    show_default=True,
    type=duration("100 years"),
    help="How long the URL is valid, in seconds or text such as '2 hours'.",
)
@json_option
def signed_url(task_id: str, name: str, run_id: int | None, lifetime: float, *, as_json: bool) -> None:
    """Make a URL that gives access to the artifact NAME of a task for a while, without credentials.

    Treat the URL as a secret. With --json, prints an object with `url` and `expires`.
    """
    with connect_with_credentials() as queue:
        if queue.credentials is None:
            variables = "set TASKCLUSTER_ROOT_URL and credentials, and unset TASKCLUSTER_PROXY_URL"
            raise Failure(f"a proxy cannot sign URLs: {variables}")
        if run_id is None:
            call = calls.get_latest_artifact(task_id, name)
        else:
            call = calls.get_artifact(task_id, run_id, name)
        valid = timedelta(seconds=lifetime)
        queue.ping()  # measures the clock skew
        expires = queue.now() + valid
        url = queue.signed_url(call, lifetime=valid)
        last = expires_at(queue.credentials)
    if last is not None and last < expires.timestamp():
        expires = datetime.fromtimestamp(last, UTC)
        click.echo(f"the URL expires with the credentials, at {timestamp(expires)}", err=True)
    print_either({"url": url, "expires": timestamp(expires)}, url, as_json=as_json)
