"""The transfers of the client that blocks: each function becomes a method of `Queue`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from queue import Queue

from taskqueue_client.errors import InvalidArgument

from .buffers import AHEAD
from .cancellation import Cancellation
from .defaults import CONCURRENCY, MOST_IN_MEMORY, check_concurrency, silently
from .destinations import FileDestination, MemoryDestination, StreamDestination
from .downloading import DownloadResult, Wanted, downloading
from .performing import perform
from .reporting import Contents, Listed, UploadOutcome, UploadReport, listed
from .sources import SyncContent
from .steps import Client, StorageName
from .storage import Progress
from .uploading import Artifact, Options, UploadResult, uploading


def upload_artifact(
    client: Client,
    /,
    task_id: str,
    run_id: int,
    name: str,
    source: SyncContent,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    storage: StorageName | None = None,
    compress: bool | None = None,
    task_expires: datetime | None = None,
    progress: Progress | None = None,
) -> UploadResult:
    """Upload one artifact.

    What fails on its way to the storage is sent again from its start, under a fresh URL if need be. The
    artifact is complete and right when this returns.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have.

    Args:
        client: The client, of which this is a method.
        task_id: The task.
        run_id: The run, running or resolved as an exception in the last 25 minutes.
        name: Printable ASCII; names that begin with `public/` are for everybody.
        source: A path (also as a `str`), bytes, a file opened in binary mode (read from where it stands),
            or an iterable of bytes. What cannot be read twice is put into a temporary file first.
        expires: Until when the artifact is kept: not longer than its task.
        content_type: Its type; by the ending of its name when left out.
        storage: `s3`, or `object` for the object service, which stores hashes too; the client's
            `artifact_storage` when left out.
        compress: Store it as gzip, which readers decode. True compresses all that is not compressed
            already, None only text of 1 kB and more. The object service takes no gzip.
        task_expires: The task's own `expires`, which the artifact's is cut down to.
        progress: Called with the bytes sent, and how many there are; both begin anew with each attempt.

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
    steps = uploading(
        client.transfer_settings, artifact, source, options, silently if progress is None else progress
    )
    return perform(client, steps)


def upload_artifacts(
    client: Client,
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
        progress: Called with a name, its bytes sent, and how many there are; from several threads.

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
    one = partial(
        _upload_listed, client, (task_id, run_id), options, silently if progress is None else progress
    )
    return UploadReport(tuple(_in_parallel(one, listed(artifacts), concurrency)))


def _upload_listed(
    client: Client,
    run: tuple[str, int],
    options: Options,
    progress: Callable[[str, int, int | None], object],
    listed: Listed,
) -> UploadOutcome:
    name, content = listed
    if isinstance(content, InvalidArgument):
        return UploadOutcome(name, error=content)
    artifact = Artifact(*run, name)
    steps = uploading(client.transfer_settings, artifact, content, options, partial(progress, name))
    try:
        return UploadOutcome(name, perform(client, steps))
    except Exception as error:  # noqa: BLE001 - it is what the report is for
        return UploadOutcome(name, error=error)


def _in_parallel(
    one: Callable[[Listed], UploadOutcome], every: list[Listed], concurrency: int
) -> list[UploadOutcome]:
    with ThreadPoolExecutor(concurrency, thread_name_prefix="artifacts") as threads:
        try:
            return list(threads.map(one, every))
        except BaseException:
            threads.shutdown(cancel_futures=True)  # those under way end by themselves
            raise


def download_artifact(
    client: Client,
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
        progress: Called with the bytes that came, and how many there are, both before decoding.

    Raises:
        InvalidArgument: A value is malformed, or `to` is a folder.
        ErrorArtifact: The artifact says why there is no file.
        DownloadTooLarge: It has more than `max_bytes`.
        HashMismatch: It is not what was stored.
        ArtifactError: It did not arrive.
        CallFailed: The Queue or the object service refused, or did not answer.
        OSError: The file cannot be written.
    """
    wanted = Wanted(task_id, run_id, name)
    settings, report = client.transfer_settings, silently if progress is None else progress
    if to is not None:
        path = Path(to)
        result = perform(client, downloading(settings, wanted, FileDestination(path), report))
        return replace(result, path=path)
    memory = MemoryDestination(name, max_bytes)
    result = perform(client, downloading(settings, wanted, memory, report))
    return replace(result, content=memory.content)


def stream_artifact(
    client: Client, /, task_id: str, name: str, *, run_id: int | None = None
) -> Iterator[bytes]:
    """Download one artifact block by block, decoded.

    Blocks are handed out before all of them can be verified: what was made of them counts only if the
    loop ends without an error.

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
    blocks: Queue[bytes | None] = Queue(AHEAD)
    cancellation = Cancellation()
    destination = StreamDestination(name, blocks.put)
    steps = downloading(client.transfer_settings, Wanted(task_id, run_id, name), destination, silently)

    def download() -> None:
        try:
            perform(client, steps, cancellation)
        finally:
            blocks.put(None)

    future = client.storage.stream_threads.submit(download)
    try:
        while (block := blocks.get()) is not None:
            yield block
        future.result()
    finally:
        cancellation.cancel()
        while not future.done() and blocks.get() is not None:
            pass  # make room, so that the thread comes to its end
