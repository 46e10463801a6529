"""Artifacts that store no content: references, links and errors."""

from __future__ import annotations

import re
from datetime import datetime
from typing import get_args

from taskqueue_client import _arguments as arguments
from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Conversation
from taskqueue_client.definitions import (
    ErrorArtifactRequest,
    ErrorReason,
    LinkArtifactRequest,
    ReferenceArtifactRequest,
)
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import CreateArtifactResponse

from .content import content_type_of
from .transfers import TransferClient

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_LONGEST_MESSAGE = 4096
"""The most characters that the Queue accepts. Longer messages are truncated."""


def create_reference_artifact(
    client: TransferClient,
    /,
    task_id: str,
    run_id: int,
    name: str,
    url: str,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    task_expires: datetime | None = None,
) -> Conversation[CreateArtifactResponse]:
    """Create an artifact that redirects to a URL, or change the URL of an existing reference.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Args:
        client: The client.
        task_id: The task.
        run_id: The run.
        name: The artifact's name. Everybody may read names that begin with `public/`.
        url: The URL of the content. Everybody who may read the artifact gets it.
        expires: When the artifact expires.
        content_type: The content type; default: by the extension of the name.
        task_expires: The task's `expires`. A later `expires` of the artifact is reduced to it.

    Raises:
        InvalidArgument: A value is malformed.
        RequestConflict: The name belongs to an artifact that is not a reference, or that has another content
            type; or the run is resolved.
    """
    arguments.new_name(name)
    arguments.check_kind("url", url, str)
    if not _ABSOLUTE.match(url):
        allowed = "an absolute URL such as https://example.com/report"
        # without the URL, which may contain a password or a signature
        raise InvalidArgument("url", None, allowed, "it does not begin with a scheme")
    given = content_type_of(name) if content_type is None else content_type
    request: ReferenceArtifactRequest = {
        "storageType": "reference",
        "expires": arguments.artifact_expires(expires, task_expires, client.now),
        "contentType": arguments.content_type(given),
        "url": url,
    }
    return (yield from calls.create_artifact(task_id, run_id, name, request))


def create_link_artifact(
    client: TransferClient,
    /,
    task_id: str,
    run_id: int,
    name: str,
    target: str,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    task_expires: datetime | None = None,
) -> Conversation[CreateArtifactResponse]:
    """Create a second name for an artifact of the same run, or turn a reference into a link.

    A live log is a reference while it is written, and becomes a link to the stored log.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Args:
        client: The client.
        task_id: The task.
        run_id: The run.
        name: The name of the link.
        target: The name of the artifact. The artifact may be created later.
        expires: When the link expires.
        content_type: The content type; default: that of the reference which the link replaces, or
            `application/binary`.
        task_expires: The task's `expires`. A later `expires` of the link is reduced to it.

    Raises:
        InvalidArgument: A value is malformed.
        RequestConflict: The name belongs to an artifact that is neither a reference nor the same link; or the
            run is resolved.
    """
    request: LinkArtifactRequest = {
        "storageType": "link",
        "expires": arguments.artifact_expires(expires, task_expires, client.now),
        "artifact": arguments.new_name(target),
    }
    if content_type is not None:
        request["contentType"] = arguments.content_type(content_type)
    return (yield from calls.create_artifact(task_id, run_id, arguments.new_name(name), request))


def create_error_artifact(
    client: TransferClient,
    /,
    task_id: str,
    run_id: int,
    name: str,
    reason: ErrorReason,
    message: str,
    *,
    expires: datetime | str,
    task_expires: datetime | None = None,
) -> Conversation[CreateArtifactResponse]:
    """Create an artifact that says why a file is missing. Downloads of it raise `ErrorArtifact`.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Args:
        client: The client.
        task_id: The task.
        run_id: The run.
        name: The name of the missing file.
        reason: The reason, for programs.
        message: The reason, for people; truncated after 4096 characters.
        expires: When the artifact expires.
        task_expires: The task's `expires`. A later `expires` of the artifact is reduced to it.

    Raises:
        InvalidArgument: A value is malformed.
        RequestConflict: The name belongs to another artifact, such as an error with another message; or the
            run is resolved.
    """
    arguments.one_of("reason", reason, get_args(ErrorReason))
    arguments.check_kind("message", message, str)
    request: ErrorArtifactRequest = {
        "storageType": "error",
        "expires": arguments.artifact_expires(expires, task_expires, client.now),
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
    }
    return (yield from calls.create_artifact(task_id, run_id, arguments.new_name(name), request))
