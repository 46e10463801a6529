"""The Queue that the environment names."""

from __future__ import annotations

import os

from taskqueue_client.client import Queue

from .failures import Failure


def connect() -> Queue:
    """A client for what everybody may do, or for what the credentials allow if there are any.

    Raises:
        Failure: No deployment is named.
        InvalidArgument: The URL or the credentials are malformed, or half of the credentials is missing.
    """
    if not (os.environ.get("TASKCLUSTER_PROXY_URL") or os.environ.get("TASKCLUSTER_ROOT_URL")):
        message = (
            "TASKCLUSTER_ROOT_URL is not set: set it to the deployment's URL, or start `taskqueue local`"
        )
        raise Failure(message)
    return Queue.from_env()


def connect_with_credentials() -> Queue:
    """A client for what needs credentials.

    Raises:
        Failure: No deployment is named, or there are no credentials and no proxy that adds them.
        InvalidArgument: As `connect` says.
    """
    queue = connect()
    if queue.credentials is None and not os.environ.get("TASKCLUSTER_PROXY_URL"):
        message = (
            "no credentials: set TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN "
            "(and TASKCLUSTER_CERTIFICATE, if they are temporary)"
        )
        raise Failure(message)
    return queue
