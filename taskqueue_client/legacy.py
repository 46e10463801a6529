"""Legacy polling: workers poll Azure storage queues, as all workers did from 2014 to 2019.

The functions return calls that both clients make: `queue.send(poll_task_urls("proj/worker-type"))`, or with
`AsyncQueue`, `await queue.send(…)`. `WorkerLoop(task_source=AzureTaskSource)` is a worker that polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from random import random
from typing import Any, TypeVar, cast
from urllib.parse import quote

from taskqueue_client import _arguments as arguments
from taskqueue_client import errors
from taskqueue_client._protocol.api_responses import Response, ResponseRefused, TransportFailed
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.queue_messages import MAX_XML, QueueMessage, decode_run, parse_messages
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.asynchronous import own_transport
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client.errors import Attempted, UnreadableResponse
from taskqueue_client.models import TaskClaim, TaskStatus
from taskqueue_client.models._base import Model, prepare
from taskqueue_client.worker import SourceContext

__all__ = [
    "AzureTaskSource", "PollQueue", "PollTaskUrl", "PollTaskUrls", "PolledClaim", "claim_work",
    "poll_task_url", "poll_task_urls",
]  # fmt: skip

log = logging.getLogger("taskqueue_client.worker")

_MOST_MESSAGES = 32  # the most messages that Azure returns in one response
_STORAGE_TIMEOUTS = Timeouts(connect=5.0, read=10.0, total=15.0)
_REFUSED = (401, 403, 404)
_GONE = (404, 400)  # MessageNotFound, PopReceiptMismatch

_POISONOUS = 15
"""A message that was polled so often is deleted without a claim: its run may have crashed each worker."""

_REFRESH_EARLY = 310.0
"""Signed URLs are replaced so many seconds before they expire, but not before half of their lifetime: after a
poll, they must be valid until the message is deleted, within the 300 s for which it is invisible."""

_IDLE_FIRST = 1.0
_IDLE_MOST = 30.0
"""Seconds between polls that find nothing: doubled each time, with up to half of that added or taken off."""

_CLAIM_ATTEMPTS = 3
_CLAIM_TIMEOUT = 10.0
"""`claimTask` may be repeated by the same worker. The lease is measured from the end of all claims, so all of
them must end soon."""

_DELETE_ATTEMPTS = 3
_DELETE_WAIT = 1.0
"""Attempts to delete a message, and seconds between them. A message that stays is polled again."""

_MOST_REMEMBERED = 100_000
"""Claimed runs that are not claimed again: the Queue would repeat the claim. Older runs are forgotten."""

R = TypeVar("R")


class PollTaskUrl(Model, frozen=True, kw_only=True):
    """A signed URL to poll one Azure queue with, valid until `expires`."""

    signed_poll_task_url: str
    expires: datetime


class PollQueue(Model, frozen=True, kw_only=True):
    """The signed URLs of one Azure queue.

    `{{messageId}}` and `{{popReceipt}}` in `signed_delete_url` stand for a message's values, URI-encoded.
    """

    signed_poll_url: str
    signed_delete_url: str


class PollTaskUrls(Model, frozen=True, kw_only=True):
    """The Azure queues of a task queue, the highest priority first; the URLs are valid until `expires`."""

    queues: list[PollQueue]
    expires: datetime


class PolledClaim(Model, frozen=True, kw_only=True):
    """A claimed run, without the task's definition and without credentials of the run."""

    status: TaskStatus
    run_id: int
    worker_group: str
    worker_id: str
    taken_until: datetime


prepare(PollTaskUrl, PollTaskUrls, PolledClaim)


def poll_task_urls(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[PollTaskUrls]:
    """Return the signed URLs to poll a task queue with: the call as it was from February 2015 to 2019.

    Scopes: `queue:poll-task-urls:<provisionerId>/<workerType>`, or both `queue:poll-task-urls` and
    `assume:worker-type:<provisionerId>/<workerType>`.

    Args:
        task_queue_id: The task queue; or pass the old pair, the next two arguments.
        provisioner_id: The first part of the task queue id.
        worker_type: The second part of the task queue id.

    Raises:
        NotFound: The Queue does not have the endpoint: version 24 (November 2019) removed it.
    """
    pair = arguments.task_queue_pair(task_queue_id, provisioner_id, worker_type)
    return Call("pollTaskUrls", "GET", arguments.path("poll-task-url", *pair), PollTaskUrls)


def poll_task_url(
    task_queue_id: str | None = None, *, provisioner_id: str | None = None, worker_type: str | None = None
) -> Call[PollTaskUrl]:
    """Return the signed URL to poll a task queue with: the call of the first draft, at `<root URL>/v1`.

    Scopes: both `queue:poll-task` and `assume:worker-type:<provisionerId>/<workerType>`. The arguments are
    those of `poll_task_urls`.

    Raises:
        NotFound: The Queue does not have the endpoint.
    """
    pair = arguments.task_queue_pair(task_queue_id, provisioner_id, worker_type)
    return Call("pollTaskUrl", "GET", arguments.path("poll-task-url", *pair), PollTaskUrl, service="")


def claim_work(
    task_queue_id: str | None = None,
    *,
    provisioner_id: str | None = None,
    worker_type: str | None = None,
    worker_group: str,
    worker_id: str,
    xml_message: str | None = None,
) -> Call[PolledClaim | None]:
    """Claim one run: the `claimWork` of the first draft, at `<root URL>/v1`. None if there is no work.

    Never retried automatically. Scopes: all of `queue:claim-task`,
    `assume:worker-type:<provisionerId>/<workerType>` and `assume:worker-id:<worker_group>/<worker_id>`.

    Args:
        task_queue_id: The task queue; or pass the old pair, the next two arguments.
        provisioner_id: The first part of the task queue id.
        worker_type: The second part of the task queue id.
        worker_group: The worker's group, such as a region.
        worker_id: The worker's id, unique within its group.
        xml_message: The whole response to a poll with the URL of `poll_task_url`, if it contains
            `<MessageId>`; None lets the Queue look for a pending run.

    Raises:
        InputError: `xml_message` is malformed, or its run belongs to another task queue.
        AuthenticationFailed: The Queue did not sign the message.
        ResourceNotFound: The task or run does not exist.
        RequestConflict: The run is not pending any more, and this worker has not claimed it before.
    """
    pair = arguments.task_queue_pair(task_queue_id, provisioner_id, worker_type)
    body = {
        "workerGroup": arguments.identifier("worker_group", worker_group),
        "workerId": arguments.identifier("worker_id", worker_id),
        **({} if xml_message is None else {"xmlMessage": xml_message}),
    }
    returns = cast("type[PolledClaim | None]", PolledClaim | None)
    return Call("claimWork", "POST", arguments.path("claim-work", *pair), returns, body=body, service="")


class AzureTaskSource:
    """A task source that polls the Azure storage queues of a task queue; see `TaskSource`.

    Pass the class itself as `task_source` of `WorkerLoop`. The worker's credentials need
    `queue:poll-task-urls:<task_queue_id>`, `queue:claim-task:<task_queue_id>` and
    `queue:worker-id:<worker_group>/<worker_id>`.

    Args:
        context: The worker's client, identity and clock.
    """

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._claiming_queue = context.queue.with_options(attempts=_CLAIM_ATTEMPTS, timeout=_CLAIM_TIMEOUT)
        self._storage = StoragePolling()
        self._queues: Sequence[PollQueue] = ()
        self._refresh_at = 0.0
        self._empty_polls = 0
        self._claimed: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._stopping = False
        self._waiting: asyncio.Task[Any] | None = None
        self._deleting: set[asyncio.Task[None]] = set()

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        """See `TaskSource.claim`. Returns claims of the first Azure queue, by priority, that has some."""
        with suppress(_StoppedError):
            for queue in await self._until_stopped(self._current_queues()):
                messages = await self._until_stopped(self._poll(queue, count))
                if claims := await self._claim_all(queue, messages):
                    self._empty_polls = 0
                    return claims
            await self._until_stopped(self._idle())
        return []

    def stop(self) -> None:
        """See `TaskSource.stop`; messages that were polled and not claimed become visible again."""
        self._stopping = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def close(self) -> None:
        """See `TaskSource.close`. Waits up to a second for messages that are being deleted."""
        if self._deleting:
            _, late = await asyncio.wait(self._deleting, timeout=_DELETE_WAIT)
            for each in late:
                each.cancel()
        await self._storage.close()

    async def _until_stopped(self, work: Coroutine[Any, Any, R]) -> R:
        """Return the result of `work`; raise _StoppedError if the source is stopped before."""
        self._waiting = task = asyncio.create_task(work)
        if self._stopping:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if self._stopping and task.cancelled():
                raise _StoppedError from None
            raise
        finally:
            self._waiting = None

    async def _idle(self) -> None:
        doubled = min(_IDLE_FIRST * 2.0 ** min(self._empty_polls, 16), _IDLE_MOST)
        self._empty_polls += 1
        await self._clock.sleep_async(doubled * (0.5 + random()))  # noqa: S311 - spreads polls, keeps no secret

    # Polling

    async def _current_queues(self) -> Sequence[PollQueue]:
        """Return the queues, the highest priority first, with URLs that are valid for some time."""
        if not self._queues or self._clock.monotonic() >= self._refresh_at:
            requested = self._clock.monotonic()
            urls = await self._ask_for_urls()
            valid = max((urls.expires - self._context.queue.now()).total_seconds(), 0.0)
            self._refresh_at = requested + max(valid - _REFRESH_EARLY, valid / 2)
            self._queues = urls.queues
        return self._queues

    async def _ask_for_urls(self) -> PollTaskUrls:
        try:
            return await self._context.queue.send(poll_task_urls(self._context.identity.task_queue_id))
        except errors.NotFound:
            log.error("this Queue has no legacy polling (pollTaskUrls): use the default task source")  # noqa: TRY400 - the worker reports the error
            raise

    async def _poll(self, queue: PollQueue, count: int) -> list[QueueMessage]:
        try:
            return await self._storage.poll(queue, count)
        except UrlRefused:
            self._queues = ()  # the next call requests new URLs
            raise

    # Claiming

    async def _claim_all(self, queue: PollQueue, messages: Sequence[QueueMessage]) -> list[TaskClaim]:
        """Claim the runs of messages. If none was claimed, raise a failure that is not about a run."""
        ended = await asyncio.gather(*(self._claim_one(queue, each) for each in messages))
        claims = [each for each in ended if isinstance(each, TaskClaim)]
        failures = [each for each in ended if isinstance(each, errors.CallFailed)]
        if failures and not claims:
            raise failures[0]
        for error in failures:
            log.warning("cannot claim a polled task, its message becomes visible again: %s", error)
        return claims

    async def _claim_one(
        self, queue: PollQueue, message: QueueMessage
    ) -> TaskClaim | errors.CallFailed | None:
        """Claim the run of one message, and delete the message, unless a later claim may succeed.

        Return the claim, or the failure after which a later claim may succeed, or None.
        """
        if self._stopping:
            return None
        run, claim = _run_of(message), None
        # A message about a run in `_claimed` is only deleted: deleting it failed before, or the run has two.
        if run is not None and run not in self._claimed:
            try:
                claim = await self._claim(*run)
            except errors.CallFailed as error:
                if not _is_about_run(error):
                    return error
                log.info("run %s/%d was not claimed, deleting its message: %s", *run, error)
        self._delete(queue, message)
        return claim

    async def _claim(self, task_id: str, run_id: int) -> TaskClaim:
        """Claim a run, which is in `_claimed` during the call, and afterwards unless the call fails."""
        self._claimed[task_id, run_id] = None
        if len(self._claimed) > _MOST_REMEMBERED:
            self._claimed.popitem(last=False)
        who = self._context.identity
        try:
            return await self._claiming_queue.claim_task(
                task_id, run_id, worker_group=who.worker_group, worker_id=who.worker_id
            )
        except errors.CallFailed:
            del self._claimed[task_id, run_id]
            raise

    # Deleting

    def _delete(self, queue: PollQueue, message: QueueMessage) -> None:
        """Delete a message in the background: claims must not wait for the storage."""
        task = asyncio.create_task(self._delete_persistently(queue, message))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete_persistently(self, queue: PollQueue, message: QueueMessage) -> None:
        for left in reversed(range(_DELETE_ATTEMPTS)):
            try:
                await self._storage.delete(queue, message)
            except errors.CallFailed as error:
                if not left:
                    log.warning("cannot delete the message %s: %s", message.message_id, error)
                    return
                await self._clock.sleep_async(_DELETE_WAIT)
            else:
                return


class _StoppedError(Exception):
    """The source was stopped while it waited."""


def _run_of(message: QueueMessage) -> tuple[str, int] | None:
    """Return the run that a message is about; None if the message is to be deleted without a claim."""
    try:
        run = decode_run(message.text)
    except ValueError as error:
        log.error("deleting message %s, whose text cannot be read: %s", message.message_id, error)  # noqa: TRY400 - the error says all
        return None
    if message.dequeue_count < _POISONOUS:
        return run.task_id, run.run_id
    log.error(
        "operator alert: the message about run %s/%d was polled %d times, deleting it without a claim: the"
        " run may have crashed each worker that polled it",
        *(run.task_id, run.run_id, message.dequeue_count),
    )
    return None


def _is_about_run(error: errors.CallFailed) -> bool:
    """Return whether a call was refused because of its run: a 4xx that is not about the worker itself.

    The Queue's own errors are JSON. A page is sent by a load balancer, which may not reach the Queue.
    """
    if isinstance(error, (errors.AuthenticationFailed, errors.InsufficientScopes, errors.TooManyRequests)):
        return False
    is_of_queue = isinstance(error, errors.ApiError) and bool(error.refused.document)
    return is_of_queue and not isinstance(error, errors.ServerError)


class _StorageQueueFailed(UnreadableResponse):
    """The storage did not respond with 2xx."""

    def __str__(self) -> str:
        return f"{self.attempted}: HTTP {self.status}: {self.reason}"


class UrlRefused(_StorageQueueFailed):
    """The storage refused a signed URL, or has no such queue: request new URLs from the Queue."""


class StoragePolling:
    """Connections to Azure storage queues. For one event loop.

    The URLs contain signatures: errors and logs show them without their query.
    """

    def __init__(self) -> None:
        self._transport = own_transport(NetworkSettings())

    async def poll(self, queue: PollQueue, count: int) -> list[QueueMessage]:
        """Return up to `count` messages, which are invisible to other polls for the next 300 s."""
        url = f"{queue.signed_poll_url}&numofmessages={min(count, _MOST_MESSAGES)}"
        response, attempted = await self._request("pollQueue", "GET", url)
        try:
            return parse_messages(response.body)
        except ValueError as error:
            raise UnreadableResponse(attempted, response.status, str(error)) from None

    async def delete(self, queue: PollQueue, message: QueueMessage) -> None:
        """Delete a polled message. No error if it does not exist, or another worker has polled it since."""
        url = queue.signed_delete_url.replace("{{messageId}}", quote(message.message_id, safe=""))
        url = url.replace("{{popReceipt}}", quote(message.pop_receipt, safe=""))
        await self._request("deleteMessage", "DELETE", url, _GONE)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _request(
        self, name: str, method: str, url: str, accepts: tuple[int, ...] = ()
    ) -> tuple[Response, Attempted]:
        attempted = Attempted(name, method, url.partition("?")[0])
        try:
            response = await self._transport.request(
                Request(method, url, {}, None), _STORAGE_TIMEOUTS, MAX_XML
            )
        except (TransportFailed, ResponseRefused) as failure:
            raise failure.of_call(attempted) from failure.__cause__
        except ValueError:  # shows the URL, and is not a CallFailed, after which the worker would retry
            raise TransportFailed("the signed URL is not valid", is_unsent=True).of_call(attempted) from None
        if response.status in accepts or response.status // 100 == 2:  # noqa: PLR2004 - 2xx
            return response, attempted
        if response.status in _REFUSED:
            why = "the storage refused the signed URL: it has expired, a clock is wrong, or the queue is gone"
            raise UrlRefused(attempted, response.status, why)
        raise _StorageQueueFailed(attempted, response.status, "the storage queue did not respond with 2xx")
