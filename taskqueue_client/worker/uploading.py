"""Bringing a run's artifacts and log to where everybody can read them."""

from __future__ import annotations

import asyncio
import errno
import io
from contextlib import closing
from typing import BinaryIO, Literal, cast

from taskqueue_client._retry import is_temporary
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.awaiting import Performer
from taskqueue_client.artifacts.defaults import silently
from taskqueue_client.artifacts.direct import DirectSender
from taskqueue_client.artifacts.errors import StorageFailed
from taskqueue_client.artifacts.sources import SyncContent, open_source
from taskqueue_client.artifacts.uploading import Artifact, Options, uploading
from taskqueue_client.errors import InvalidArgument, TaskQueueError

from .declared import LOG_LINK, LOG_NAME, ArtifactOptions, Declared
from .outcomes import InternalError, Outcome, ResourceUnavailable, TaskFailed
from .run_resources import RunResources
from .task_log import LogPrefix
from .worker_metrics import WorkerMetrics

CONCURRENCY = 16
"""Artifacts of one run that go up at a time: more do not go faster."""

ErrorReason = Literal["file-missing-on-worker", "file-not-readable-on-worker", "invalid-resource-on-worker"]

_TROUBLE_OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO}
"""An `OSError` that says nothing about the file that was named."""

_SEVERITY: tuple[type[Outcome], ...] = (TaskFailed, ResourceUnavailable, InternalError)
"""Which of several outcomes counts: the last of these."""


class Uploading:
    """The uploads of one run.

    Args:
        resources: What belongs to the run.
        queue: Signs with the run's credentials.
        sender: Sends what is small.
        metrics: What is counted.
    """

    def __init__(
        self, resources: RunResources, queue: AsyncQueue, sender: DirectSender, metrics: WorkerMetrics
    ) -> None:
        self._sender = sender
        self._metrics = metrics
        self._resources = resources
        self._queue = queue
        self._settings = queue.transfer_settings
        self._uploaded: set[str] = set()
        self._at_once = asyncio.Semaphore(CONCURRENCY)

    async def everything(self) -> Outcome | None:
        """Upload the log and all artifacts that are not up yet; the outcome that a failure means."""
        pending = [each for each in self._resources.declared() if each.name not in self._uploaded]
        if not pending:
            return await self.log()
        failures = await asyncio.gather(self.log(), *map(self._artifact, pending))
        return max(filter(None, failures), key=_severity, default=None)

    async def log_so_far(self) -> Outcome | None:
        """`log`, while there is more to come: not compressed, so that readers can ask for what is new."""
        return await self.log(compress=False)

    async def log(self, *, compress: bool | None = None) -> Outcome | None:
        """Upload the log as it is now, with its link; the outcome that a failure means."""
        # The object service has no way to replace the log as it grows.
        options = ArtifactOptions(content_type="text/plain; charset=utf-8", storage="s3", compress=compress)
        try:
            with closing(self._resources.log.checkpoint()) as snapshot:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._link_log())
                    await self._upload(LOG_NAME, _content_of(snapshot), options)
        except ExceptionGroup as errors:
            errors.__traceback__ = None  # its last frame, of the task group, holds the group of errors
            return self._failed(LOG_NAME, errors.exceptions[0])
        except Exception as error:  # noqa: BLE001 - a run without its log does not end as if all were well
            return self._failed(LOG_NAME, error)
        return None

    async def _link_log(self) -> None:
        if LOG_LINK not in self._uploaded:
            await self._queue.create_artifact(
                *self._resources.key,
                LOG_LINK,
                {
                    "storageType": "link",
                    "artifact": LOG_NAME,
                    "expires": self._resources.expires,
                    "contentType": "text/plain; charset=utf-8",
                },
            )
            self._uploaded.add(LOG_LINK)

    async def _artifact(self, declared: Declared) -> Outcome | None:
        async with self._at_once:
            try:
                await self._upload(declared.name, declared.source, declared.options)
            except Exception as error:  # noqa: BLE001 - the other artifacts go up all the same
                return await self._explained(declared, self._failed(declared.name, error), error)
        self._uploaded.add(declared.name)
        return None

    async def _upload(self, name: str, content: SyncContent, options: ArtifactOptions) -> None:
        """`AsyncQueue.upload_artifact`, except that opening and sending what is small takes no thread."""
        task_expires = self._resources.held.claim.status.expires
        checked = Options.checked(
            options.get("expires", task_expires),
            task_expires,
            options.get("storage") or self._settings.storage,
            options.get("content_type"),
            options.get("compress"),
        )
        artifact = Artifact(*self._resources.key, name)
        steps = uploading(self._settings, artifact, open_source(content), checked, silently)
        result = await Performer(self._queue, self._sender).perform(steps)
        self._metrics.uploads.add(of="uploaded")
        self._metrics.uploaded_bytes.add(result.size)

    def _failed(self, name: str, error: Exception) -> Outcome:
        self._metrics.uploads.add(of="failed")
        self._resources.log.logger.error("cannot upload %s: %s", name, error)
        return outcome_of_failed_upload(name, error)

    async def _explained(self, declared: Declared, outcome: Outcome, error: Exception) -> Outcome:
        """Where the file was missing, say so to whoever looks for the artifact."""
        if isinstance(outcome, TaskFailed):
            try:
                await self._queue.create_artifact(
                    *self._resources.key,
                    declared.name,
                    {
                        "storageType": "error",
                        "reason": _error_reason(error),
                        "message": str(outcome),
                        "expires": self._resources.expires,
                    },
                )
            except TaskQueueError as trouble:
                self._resources.log.logger.error("cannot say so in its place: %s", trouble)  # noqa: TRY400 - the error says it all
            else:
                self._uploaded.add(declared.name)
        return outcome


def _content_of(snapshot: io.BytesIO | LogPrefix) -> SyncContent:
    return snapshot.getvalue() if isinstance(snapshot, io.BytesIO) else cast("BinaryIO", snapshot)


def outcome_of_failed_upload(name: str, error: Exception) -> Outcome:
    """What a run ends as whose artifact could not be uploaded.

    - The file is missing, unreadable or no file: `TaskFailed`, as the task did not produce it.
    - Storage or the Queue cannot be reached, or is out of order: `ResourceUnavailable`.
    - Anything else, such as a refusal or a full disk: `InternalError`.
    """
    words = f"{name} was not uploaded: {error}"
    if _is_for_now(error):
        return ResourceUnavailable(words)
    if isinstance(error, OSError) and error.errno not in _TROUBLE_OF_THE_MACHINE:
        return TaskFailed(words)
    if isinstance(error, InvalidArgument) and error.argument == "source":
        return TaskFailed(words)
    return InternalError(words)


def _is_for_now(error: Exception) -> bool:
    return is_temporary(error) or (isinstance(error, StorageFailed) and error.is_temporary)


def _error_reason(error: Exception) -> ErrorReason:
    if isinstance(error, FileNotFoundError):
        return "file-missing-on-worker"
    return (
        "file-not-readable-on-worker" if isinstance(error, PermissionError) else "invalid-resource-on-worker"
    )


def _severity(outcome: Outcome) -> int:
    return _SEVERITY.index(type(outcome))
