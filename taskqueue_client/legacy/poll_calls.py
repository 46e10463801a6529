"""Calls of the first deployments of the Queue, whose workers polled Azure storage queues."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from taskqueue_client._protocol.conversation import Call
from taskqueue_client.calls import _arguments as arguments
from taskqueue_client.models import TaskStatus
from taskqueue_client.models._base import Model


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
        RequestConflict: The run is not pending any more.
    """
    pair = arguments.task_queue_pair(task_queue_id, provisioner_id, worker_type)
    body = {
        "workerGroup": arguments.identifier("worker_group", worker_group),
        "workerId": arguments.identifier("worker_id", worker_id),
        **({} if xml_message is None else {"xmlMessage": xml_message}),
    }
    returns = cast("type[PolledClaim | None]", PolledClaim | None)
    return Call("claimWork", "POST", arguments.path("claim-work", *pair), returns, body=body, service="")
