"""Polls of Azure storage queues, and deletes of messages, with signed URLs."""

from __future__ import annotations

from urllib.parse import quote

from taskqueue_client._protocol.api_responses import Response, ResponseRefused, TransportFailed
from taskqueue_client._protocol.queue_messages import MAX_XML, QueueMessage, parse_messages
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.asynchronous import own_transport
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client.errors import Attempted, CallTimedOut, ConnectionFailed, UnreadableResponse

from .poll_calls import PollQueue

MOST_MESSAGES = 32
"""The number of messages that Azure hands out in one response, at most."""

_TIMEOUTS = Timeouts(connect=5.0, read=10.0, total=15.0)
_REFUSED = (401, 403, 404)
_GONE = (404, 400)  # MessageNotFound, PopReceiptMismatch


class UrlRefused(UnreadableResponse):
    """The storage refused a signed URL, or does not have its queue: request other URLs from the Queue."""


class StoragePolling:
    """Connections to Azure storage queues. For one event loop.

    The URLs hold signatures: errors and logs show them without their query.
    """

    def __init__(self) -> None:
        self._transport = own_transport(NetworkSettings())

    async def poll(self, queue: PollQueue, count: int) -> list[QueueMessage]:
        """Return up to `count` messages, which are invisible to other polls from now on (for 300 s).

        Raises:
            UrlRefused: The storage refused the URL.
            CallFailed: The poll failed.
        """
        url = f"{queue.signed_poll_url}&numofmessages={min(count, MOST_MESSAGES)}"
        response, attempted = await self._request("pollQueue", "GET", url)
        try:
            return parse_messages(response.body)
        except ValueError as error:
            raise UnreadableResponse(attempted, response.status, str(error)) from None

    async def delete(self, queue: PollQueue, message: QueueMessage) -> None:
        """Delete a message that was polled. It may be gone already, or in the hands of another worker.

        Raises:
            UrlRefused: The storage refused the URL.
            CallFailed: The request failed.
        """
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
            response = await self._transport.request(Request(method, url, {}, None), _TIMEOUTS, MAX_XML)
        except TransportFailed as failure:
            failed = CallTimedOut if failure.timed_out else ConnectionFailed
            raise failed(attempted, failure.reason) from failure.__cause__
        except ResponseRefused as refused:
            raise UnreadableResponse(attempted, refused.status, refused.reason) from refused.__cause__
        if response.status in accepts or response.status // 100 == 2:  # noqa: PLR2004 - 2xx
            return response, attempted
        if response.status in _REFUSED:
            why = "the storage refused the signed URL: it has expired, a clock is wrong, or the queue is gone"
            raise UrlRefused(attempted, response.status, why)
        raise UnreadableResponse(attempted, response.status, "the storage queue did not respond with 2xx")
