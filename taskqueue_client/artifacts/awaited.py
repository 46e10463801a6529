"""The transfers of the awaited client: each function becomes a method of `AsyncQueue`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from .awaiting import BlocksOfThread, Performer, in_loop
from .defaults import CONCURRENCY, MOST_IN_MEMORY, check_concurrency, silently
from .destinations import FileDestination, MemoryDestination, StreamDestination
from .downloading import DownloadResult, Wanted, downloading
from .many import ManyUploads
from .reporting import Contents, UploadReport, listed
from .sources import Content
from .steps import AsyncClient, StorageName
from .storage import Progress
from .uploading import Artifact, Options, UploadResult, uploading


async def upload_artifact(
    client: AsyncClient,
    /,
    task_id: str,
    run_id: int,
    name: str,
    source: Content,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    storage: StorageName | None = None,
    compress: bool | None = None,
    task_expires: datetime | None = None,
    progress: Progress | None = None,
) -> UploadResult:
    """Upload one artifact; what blocks is done on threads.

    What fails on its way to the storage is sent again from its start, under a fresh URL if need be. The
    artifact is complete and right when this returns.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have.

    Args:
        client: The client, of which this is a method.
        task_id: The task.
        run_id: The run, running or resolved as an exception in the last 25 minutes.
        name: Printable ASCII; names that begin with `public/` are for everybody.
        source: A path (also as a `str`), bytes, a file opened in binary mode (read from where it stands),
            or an iterable of bytes, asynchronous or not. What cannot be read twice is put into a temporary
            file first.
        expires: Until when the artifact is kept: not longer than its task.
        content_type: Its type; by the ending of its name when left out.
        storage: `s3`, or `object` for the object service, which stores hashes too; the client's
            `artifact_storage` when left out.
        compress: Store it as gzip, which readers decode. True compresses all that is not compressed
            already, None only text of 1 kB and more. The object service takes no gzip.
        task_expires: The task's own `expires`, which the artifact's is cut down to.
        progress: Called in the event loop with the bytes sent, and how many there are; both begin anew
            with each attempt.

    Raises:
        InvalidArgument: A value is not allowed; nothing was sent.
        ArtifactError: The content did not arrive, or was changed while it was read.
        CallFailed: The Queue or the object service refused, or did not answer.
        OSError: The content cannot be read, or there is no room for a temporary file.
    """
    options = Options.checked(
        expires, task_expires, storage or client.transfer_settings.storage, content_type, compress
    )
    artifact = Artifact(task_id, run_id, name)
    steps = uploading(client.transfer_settings, artifact, source, options, _reported(progress))
    return await Performer(client).perform(steps)


async def upload_artifacts(
    client: AsyncClient,
    /,
    task_id: str,
    run_id: int,
    artifacts: Contents,
    *,
    expires: datetime | str,
    concurrency: int = CONCURRENCY,
    storage: StorageName | None = None,
    compress: bool | None = None,
    task_expires: datetime | None = None,
    progress: Callable[[str, int, int | None], object] | None = None,
) -> UploadReport:
    """Upload many artifacts; each one is attempted, whatever becomes of the others.

    Args:
        client: The client, of which this is a method.
        task_id: The task.
        run_id: The run.
        artifacts: Contents by name, or a folder, in which names are paths from there. A link that leads
            out of the folder is not uploaded, but reported.
        expires: Until when the artifacts are kept.
        concurrency: How many go up at the same time.
        storage: As for `upload_artifact`.
        compress: As for `upload_artifact`.
        task_expires: As for `upload_artifact`.
        progress: Called in the event loop with a name, its bytes sent, and how many there are.

    Returns:
        The result, or the error, of each artifact.

    Raises:
        InvalidArgument: An option is not allowed. What is wrong with one artifact is in the report.
        OSError: The folder cannot be read.
    """
    options = Options.checked(
        expires, task_expires, storage or client.transfer_settings.storage, None, compress
    )
    check_concurrency(concurrency)
    every = await Performer(client).on_thread(lambda _: listed(artifacts))
    uploads = ManyUploads(client, task_id, run_id, every, options, silently if progress is None else progress)
    return UploadReport(await uploads.perform(concurrency))


async def download_artifact(
    client: AsyncClient,
    /,
    task_id: str,
    name: str,
    *,
    run_id: int | None = None,
    to: str | os.PathLike[str] | None = None,
    max_bytes: int = MOST_IN_MEMORY,
    progress: Progress | None = None,
) -> DownloadResult:
    """Download one artifact, following links, and compare it with all that is known of it.

    An interrupted download goes on where it was, if the server lets it. gzip is decoded.

    Scopes: `queue:get-artifact:<name>`, also for each link's target.

    Args:
        client: The client, of which this is a method.
        task_id: The task.
        name: The artifact's name.
        run_id: The run; the latest one when left out.
        to: A path, at which the file appears when it is complete and verified; a file that is there is
            replaced. When left out, the content goes to memory.
        max_bytes: How much may go to memory.
        progress: Called in the event loop with the bytes that came, and how many there are, both before
            decoding.

    Raises:
        InvalidArgument: A value is malformed, or `to` is a folder.
        ErrorArtifact: The artifact says why there is no file.
        DownloadTooLarge: It has more than `max_bytes`.
        HashMismatch: It is not what was stored.
        ArtifactError: It did not arrive.
        CallFailed: The Queue or the object service refused, or did not answer.
        OSError: The file cannot be written.
    """
    wanted, performer = Wanted(task_id, run_id, name), Performer(client)
    settings, report = client.transfer_settings, _reported(progress)
    if to is not None:
        path = Path(to)
        result = await performer.perform(downloading(settings, wanted, FileDestination(path), report))
        return replace(result, path=path)
    memory = MemoryDestination(name, max_bytes)
    result = await performer.perform(downloading(settings, wanted, memory, report))
    return replace(result, content=memory.content)


async def stream_artifact(
    client: AsyncClient, /, task_id: str, name: str, *, run_id: int | None = None
) -> AsyncIterator[bytes]:
    """Download one artifact block by block, decoded.

    Blocks are handed out before all of them can be verified: what was made of them counts only if the
    loop ends without an error. Use `contextlib.aclosing` to leave the loop early.

    Args:
        client: The client, of which this is a method.
        task_id: The task.
        name: The artifact's name.
        run_id: The run; the latest one when left out.

    Raises:
        StreamInterrupted: The connection was lost, and the server cannot give just the rest.
        HashMismatch: It is not what was stored.
        ArtifactError: It did not arrive.
        CallFailed: The Queue or the object service refused, or did not answer.
    """
    blocks = BlocksOfThread()
    wanted, destination = Wanted(task_id, run_id, name), StreamDestination(name, blocks.put)
    steps = downloading(client.transfer_settings, wanted, destination, silently)
    performer = Performer(client, threads=client.storage.stream_threads)
    task = asyncio.create_task(blocks.end_with(performer.perform(steps)), name=f"stream of {name}")
    try:
        while (block := await blocks.get()) is not None:
            yield block
        await task
    finally:
        await blocks.give_up(task)


def _reported(progress: Progress | None) -> Progress:
    return silently if progress is None else in_loop(progress)
