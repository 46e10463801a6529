"""Uploads of a run's artifacts, its log and its chain of trust."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

from taskqueue_client._dates import timestamp
from taskqueue_client._protocol.conversation import Work, converse_async
from taskqueue_client._protocol.retry import is_conflict
from taskqueue_client._protocol.threads_and_tasks import NO_THREAD
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.chain_verification import CERTIFIED_LOG_NAME, CHAIN_NAME, SIGNATURE_NAME
from taskqueue_client.artifacts.content import LOG_LINK, LOG_NAME
from taskqueue_client.artifacts.sources import Source, open_source
from taskqueue_client.artifacts.storage import no_progress
from taskqueue_client.artifacts.transfers import Transfer
from taskqueue_client.artifacts.uploading import RunArtifact, UploadOptions, uploading
from taskqueue_client.definitions import ErrorReason
from taskqueue_client.errors import RequestConflict, TaskQueueError
from taskqueue_client.worker.commands.masking import masked_text
from taskqueue_client.worker.commands.task_log import LogView
from taskqueue_client.worker.monitor import WorkerMetrics
from taskqueue_client.worker.outcomes import InternalError, Outcome, TaskFailed
from taskqueue_client.worker.worker_log import log

from .declared_artifacts import (
    DeclaredArtifact,
    error_reason,
    is_of_the_task,
    outcome_of_failed_upload,
    worst,
)
from .run_resources import RunResources
from .upload_retries import RetryBudget

if TYPE_CHECKING:
    from taskqueue_client.worker.features.chain_of_trust import RunChain

CONCURRENCY = 16
"""Artifacts of one run that are uploaded at a time: more are not faster."""

_TEXT = "text/plain; charset=utf-8"

ERROR_SUFFIX = ".error"
"""The end of the name of an error artifact if the Queue has already created the artifact itself."""


class ArtifactUploads:
    """The uploads of one run.

    Args:
        budget: How long uploads are retried.
        chain: The run's chain of trust; None: the run gets none.

    Attributes:
        queue: A client with the run's credentials.
        count: How many declared artifacts are uploaded.
    """

    def __init__(
        self,
        resources: RunResources,
        queue: AsyncQueue,
        budget: RetryBudget,
        metrics: WorkerMetrics,
        chain: RunChain | None,
    ) -> None:
        self._chain = chain
        self._metrics = metrics
        self._resources = resources
        self._log = resources.log
        self._tracing = resources.tracing
        self._key = resources.run.task_id, resources.run.run_id
        self._expires = timestamp(resources.run.claim.status.expires)
        self.queue = queue
        self._budget = budget
        self._uploaded: dict[str, None] = {}  # not a set, which takes 0.2 kB of each run
        self._is_streamed = False
        self.count = 0

    async def everything(self) -> Outcome | None:
        """Upload the log and all artifacts that are not uploaded yet; return the outcome of a failure."""
        pending = [each for each in self._resources.artifacts.final() if each.name not in self._uploaded]
        if not pending:
            return await self.log()
        upload = partial(self._artifact, asyncio.Semaphore(CONCURRENCY))
        return worst(await asyncio.gather(*map(upload, pending), self.log()))

    async def refer_to(self, url: str) -> None:
        """Let the log's link lead to `url`, where the worker streams the log, until the log is complete."""
        self._is_streamed = True  # before the call, as its response may be lost
        try:
            await self.queue.create_reference_artifact(
                *self._key, LOG_LINK, url, expires=self._expires, content_type=_TEXT
            )
        except TaskQueueError as error:
            self._is_streamed = False
            log.warning("the log of run %s is not streamed: %s", self._resources.run, error)

    async def checkpoint(self, view: LogView) -> None:
        """Upload the log so far, as gzip, with its link unless the log is streamed. Raises any error."""
        put = self._put_log if self._is_streamed else self._upload_log
        await put(self.queue, _source(view, is_gzip=True), is_final=False)

    async def log(self) -> Outcome | None:
        """Upload the log as it is now, with its link; return the outcome of a failure or a cut log."""
        client = self._budget.client(self.queue, LOG_NAME)
        put = self._end_stream if self._is_streamed else self._upload_log

        async def upload() -> None:
            with closing(await self._source_of_log()) as source:
                await put(client, source)

        try:
            await _retried(client, upload)
        except Exception as error:  # noqa: BLE001 - a run without its log does not end as if all were well
            return self._failed(LOG_NAME, error)
        if self._log.error is not None:
            lost = f"{self._log.lost} bytes could not be written: {self._log.error}"
            return InternalError(f"{LOG_NAME} is incomplete: {lost}")
        return None

    async def _source_of_log(self) -> Source:
        """Return the log; as gzip, if checkpoints have left only the end of it to compress."""
        compressed = self._resources.compressed_log
        if self._log.has_progress:
            return _source(await asyncio.to_thread(self._log.finished))
        if compressed is not None and not compressed.is_broken and self._chain is None:
            with suppress(OSError):  # then the log is compressed again, in the directory of temporary files
                return _source(await asyncio.to_thread(compressed.checkpoint), is_gzip=True)
        return _source(self._log.checkpoint())

    async def _put_log(self, client: AsyncQueue, source: Source, *, is_final: bool = True) -> None:
        # On S3, as the object service cannot replace an artifact, such as a log that grows.
        await self._upload(client, LOG_NAME, source, self._on_s3(_TEXT, is_final=is_final))

    async def _end_stream(self, client: AsyncQueue, source: Source) -> None:
        """Upload the log, and then, also after an error, let the link lead to it instead of the stream."""
        try:
            await self._put_log(client, source)
        finally:
            await self._link_log(client)

    async def _upload_log(self, client: AsyncQueue, source: Source, *, is_final: bool = True) -> None:
        """Upload the log and its link at the same time.

        Without a task group: when that is canceled, it leaves a reference cycle that holds the run.
        """
        link = asyncio.create_task(self._link_log(client))
        try:
            await self._put_log(client, source, is_final=is_final)
            await link
        finally:
            link.cancel()
            await asyncio.wait([link])
            if not link.cancelled():
                link.exception()  # or asyncio logs an error that nobody asks for
            del link  # the traceback of its error holds this frame

    async def chain_of_trust(self) -> Outcome | None:
        """Sign what was uploaded, if the run is to be signed; return the outcome of a failure."""
        if self._chain is None:
            return None
        try:
            with closing(await asyncio.to_thread(self._log.finished)) as view:
                await self._upload_part(CERTIFIED_LOG_NAME, cast("BinaryIO", view), self._on_s3(_TEXT))
            document = self._chain.document(self._resources.artifacts.environment)
            signature = self._chain.sign(document)
            await self._upload_part(CHAIN_NAME, document, self._on_s3("application/json", compress=False))
            await self._upload_part(SIGNATURE_NAME, signature, self._on_s3("application/octet-stream"))
        except Exception as error:  # noqa: BLE001 - a run without its signature does not end as if all were well
            outcome = self._failed(CHAIN_NAME, error)
            if is_conflict(error):
                reserved = "the task has created an artifact that is reserved for its chain of trust"
                return TaskFailed(f"{reserved}: {error}")
            return outcome
        return None

    def _on_s3(
        self, content_type: str, *, compress: bool | None = None, is_final: bool = True
    ) -> UploadOptions:
        """Return the options of what the worker itself uploads."""
        return UploadOptions(self._expires, "s3", content_type, compress, is_final)

    async def _link_log(self, client: AsyncQueue) -> None:
        if LOG_LINK not in self._uploaded:
            await client.create_link_artifact(
                *self._key, LOG_LINK, LOG_NAME, expires=self._expires, content_type=_TEXT
            )
            self._uploaded[LOG_LINK] = None

    async def _artifact(self, at_once: asyncio.Semaphore, declared: DeclaredArtifact) -> Outcome | None:
        async with at_once:
            client = self._budget.client(self.queue, declared.name)
            name, options = declared.name, declared.options
            try:
                await _retried(client, lambda: self._upload(client, name, declared.open(), options))
            except Exception as error:  # noqa: BLE001 - the other artifacts are uploaded all the same
                outcome = self._failed(declared.name, error)
                if (reason := error_reason(error)) is not None:
                    await self._explain(client, declared.name, reason, str(outcome))
                return outcome
        self._uploaded[declared.name] = None
        self.count += 1
        return None

    async def _upload_part(self, name: str, content: bytes | BinaryIO, options: UploadOptions) -> None:
        await self._upload(self._budget.client(self.queue, name), name, open_source(content), options)

    async def _upload(self, client: AsyncQueue, name: str, source: Source, options: UploadOptions) -> None:
        """Upload like `AsyncQueue.upload_artifact`, of content that was opened without a thread."""
        with self._tracing.span("upload artifact", {"artifact.filename": name}) as span:
            size = await self._transfer(client, name, source, options)
            span.set("file.size", size)
        self._metrics.uploads.labels("uploaded").inc()
        self._metrics.uploaded_bytes.inc(size)

    async def _transfer(self, client: AsyncQueue, name: str, source: Source, options: UploadOptions) -> int:
        chain, sha256 = None if source.is_gzip else self._chain, ""
        if chain is not None:
            sha256 = await converse_async(client, chain.hashed(client, source))
        steps = uploading(Transfer(client), RunArtifact(*self._key, name), source, options, no_progress)
        result = await converse_async(client, steps)
        self._budget.succeeded()
        if chain is not None:
            chain.add(name, sha256)
        return result.size

    def _failed(self, name: str, error: Exception) -> Outcome:
        self._metrics.uploads.labels("invalid" if is_of_the_task(error) else "failed").inc()
        self._log.logger.error("cannot upload %s: %s", name, str(error) or type(error).__name__)
        return outcome_of_failed_upload(name, error)

    async def _explain(self, client: AsyncQueue, name: str, reason: ErrorReason, why: str) -> None:
        """Create an error artifact instead of an artifact that cannot be uploaded now or later.

        The Queue does not replace an artifact by an error. If it has created the artifact already, although
        there is no content, the error artifact has another name.
        """
        message = masked_text(why, self._log.secrets)  # it names a path, and may be public
        create = partial(
            client.create_error_artifact, *self._key, reason=reason, message=message, expires=self._expires
        )
        self._uploaded[name] = None
        try:
            try:
                await create(name=name)
            except RequestConflict:
                await create(name=name + ERROR_SUFFIX)
        except TaskQueueError as trouble:
            self._log.logger.error("cannot create the error artifact: %s", trouble)  # noqa: TRY400 - the error says it all


def _source(view: LogView, *, is_gzip: bool = False) -> Source:
    """Return a source that closes the view."""
    return Source("the task's log", view, size=view.size, is_gzip=is_gzip)


async def _retried(client: AsyncQueue, upload: Callable[[], Awaitable[None]]) -> None:
    """Upload; again while the machine has no thread or file descriptor free, for as long as in an outage."""
    try:
        await upload()
    except Exception as error:
        if not _is_momentary(error):
            raise
        work = Work[None](lambda: None, run_async=upload)
        await converse_async(client, Transfer(client).retried(partial(iter, work), _is_momentary))


def _is_momentary(error: BaseException) -> bool:
    return getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE} or str(error) == NO_THREAD
