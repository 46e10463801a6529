"""Downloads, described once: each function becomes a method of `Queue` and of `AsyncQueue`."""

from __future__ import annotations

import os
from dataclasses import replace

from taskqueue_client._protocol.conversation import Conversation
from taskqueue_client.errors import InvalidArgument

from .chain_verification import ChainOfTrust, PublicKeys, verify_chain_of_trust
from .destinations import FileDestination, MemoryDestination, StreamDestination, checked_path
from .downloading import DownloadRequest, DownloadResult, downloading
from .storage import Progress
from .transfers import TransferClient, reporter, silently

MOST_IN_MEMORY = 64 * 1024 * 1024
"""The default limit of a download to memory, in bytes."""


def download_artifact(
    client: TransferClient,
    /,
    task_id: str,
    name: str,
    *,
    run_id: int | None = None,
    to: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
    verified_by: PublicKeys | ChainOfTrust | None = None,
) -> Conversation[DownloadResult]:
    """Download one artifact, following links, and compare it with the known hashes.

    An interrupted download is resumed if the server supports that. gzip is decoded.

    Scopes: `queue:get-artifact:<name>`, also for each link's target.

    Args:
        client: The client.
        task_id: The task.
        name: The artifact's name.
        run_id: The run; the latest one by default.
        to: The path of a file, which appears when it is complete and verified, and replaces an existing file
            or symbolic link. Default: download to memory.
        max_bytes: The largest allowed size in bytes, decoded. Default: 64 MiB in memory; any size in a file,
            but gzip may unpack to no more than 64 MiB or 500 times its size, whichever is more.
        progress: Called with the bytes received, and the total if it is known, both before decoding.
        verified_by: The public keys of the trusted workers, as for `verify_chain_of_trust`, or the result of
            that method. The run's chain of trust is verified first; the content is returned only if its hash
            is the signed one.

    Raises:
        InvalidArgument: A value is malformed, or `to` is a folder, a device, a FIFO or in `/dev`.
        ChainOfTrustError: The run's chain of trust cannot be verified, or was signed for other content.
        ErrorArtifact: The artifact is an error, which says why the file is missing.
        DownloadTooLarge: The artifact has more than `max_bytes`.
        HashMismatch: The content differs from the stored content.
        ArtifactError: The content could not be downloaded.
        CallFailed: The Queue or the object service refused, or did not respond.
        OSError: The file cannot be written.
    """
    if to is None and max_bytes is None:
        max_bytes = MOST_IN_MEMORY
    report = silently if progress is None else (yield from reporter(progress))
    destination = MemoryDestination() if to is None else FileDestination(checked_path(to))
    request = DownloadRequest(task_id, run_id, name, max_bytes)
    if verified_by is not None:
        request = yield from _signed(client, request, verified_by)
    result = yield from downloading(client, request, destination, report)
    if isinstance(destination, MemoryDestination):
        return replace(result, content=destination.content)
    return replace(result, path=destination.path)


def _signed(
    client: TransferClient, request: DownloadRequest, verified_by: PublicKeys | ChainOfTrust
) -> Conversation[DownloadRequest]:
    """Return `request` with the hashes that the worker has signed."""
    task_id, run_id = request.task_id, request.run_id
    if isinstance(verified_by, ChainOfTrust):
        chain = verified_by
        if chain.task_id != task_id or run_id not in {None, chain.run_id}:
            finding = f"it is the chain of trust of {chain.task_id}/{chain.run_id}"
            wanted = task_id if run_id is None else f"{task_id}/{run_id}"
            raise InvalidArgument("verified_by", chain, f"the chain of trust of {wanted}", finding)
    else:
        chain = yield from verify_chain_of_trust(client, task_id, verified_by, run_id=run_id)
    return replace(request, run_id=chain.run_id, signed=chain.hashes_of(request.name))


def stream_artifact(
    client: TransferClient,
    /,
    task_id: str,
    name: str,
    *,
    run_id: int | None = None,
    max_bytes: int | None = None,
) -> Conversation[None]:
    """Download one artifact block by block, decoded.

    Blocks are returned before the whole content can be verified: use them only if the loop ends without an
    error. To leave the loop of `AsyncQueue` early, use `contextlib.aclosing`.

    Args:
        client: The client.
        task_id: The task.
        name: The artifact's name.
        run_id: The run; the latest one by default.
        max_bytes: The largest allowed size in bytes, decoded. Default: any size, but gzip may unpack to no
            more than 64 MiB or 500 times its size, whichever is more.

    Raises:
        DownloadTooLarge: The artifact has more than `max_bytes`.
        StreamInterrupted: The connection was lost, and the server cannot resume.
        HashMismatch: The content differs from the stored content.
        ArtifactError: The content could not be downloaded.
        CallFailed: The Queue or the object service refused, or did not respond.
    """
    request = DownloadRequest(task_id, run_id, name, max_bytes)
    yield from downloading(client, request, StreamDestination(name), silently)
