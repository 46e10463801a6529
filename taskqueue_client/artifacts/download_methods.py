"""Downloads to a file, to memory, or as a stream of blocks: methods of `Queue` and of `AsyncQueue`."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from inspect import GEN_RUNNING, getgeneratorstate
from pathlib import Path

from taskqueue_client._arguments import check_kind, check_path
from taskqueue_client._protocol.conversation import Conversation, Item
from taskqueue_client.errors import InvalidArgument

from .artifact_errors import StreamInterrupted
from .chain_verification import ChainOfTrust, PublicKeys, verify_chain_of_trust
from .downloading import FILE, Destination, DownloadRequest, DownloadResult, downloading
from .sources import Block
from .storage import Progress, no_progress
from .transfers import Transfer, TransferClient, reporter

MOST_IN_MEMORY = 64 * 1024 * 1024
"""The default limit of a download to memory, in bytes."""

_DEVICES = Path("/dev")
"""The folder of `/dev/stdout`, which leads to a regular file if the output of the program goes to a file."""


def checked_path(to: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is to be written."""
    check_kind("to", to, str | os.PathLike, FILE)
    check_path("to", to)
    path = os.fspath(to)
    if path.endswith("/") or not Path(path).name or Path(path).parent == _DEVICES:
        raise InvalidArgument("to", to, FILE)
    return Path(path)


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
        InvalidArgument: A value is malformed, or `to` is a folder, a device, a FIFO or directly in `/dev`.
        ChainOfTrustError: The run's chain of trust cannot be verified, or was signed for other content.
        ErrorArtifact: The artifact is an error, which says why the file is missing.
        DownloadTooLarge: The artifact has more than `max_bytes`.
        HashMismatch: The content differs from the stored content.
        ArtifactError: The content could not be downloaded.
        CallFailed: The Queue or the object service refused, or did not respond.
        OSError: The file cannot be written.
    """
    destination = Destination(None if to is None else checked_path(to))
    return (
        yield from download_to(
            client,
            task_id,
            name,
            destination,
            run_id=run_id,
            max_bytes=max_bytes,
            progress=progress,
            verified_by=verified_by,
        )
    )


def download_to(
    client: TransferClient,
    task_id: str,
    name: str,
    destination: Destination,
    *,
    run_id: int | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
    verified_by: PublicKeys | ChainOfTrust | None = None,
) -> Conversation[DownloadResult]:
    """Download one artifact to a destination, otherwise as `download_artifact` does."""
    if destination.path is None and max_bytes is None:
        max_bytes = MOST_IN_MEMORY
    report = yield from reporter(progress)
    request = DownloadRequest(task_id, run_id, name, max_bytes)
    if verified_by is not None:
        request = yield from _signed(client, request, verified_by)
    return (yield from downloading(client, request, destination, report))


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


class StreamDestination(Destination):
    """A stream that passes each block to the caller at once, before the content is verified."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._given = 0

    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        """See `Destination`."""

        def close() -> None:
            if getgeneratorstate(pieces) != GEN_RUNNING:  # else a thread still connects in it, and ends it
                pieces.close()

        return transfer.releasing(close, self._given_one_by_one(pieces, transfer))

    def _given_one_by_one(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        while (piece := (yield from transfer.work(partial(next, pieces, None)))) is not None:
            self._given += len(piece)
            yield from Item(bytes(piece))

    def restart(self) -> None:
        """Fail if the caller has blocks already: they would be repeated."""
        if self._given:
            raise StreamInterrupted(self._name, self._given)


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
    yield from downloading(client, request, StreamDestination(name), no_progress)
