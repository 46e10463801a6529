"""Artifacts without content of their own: references, links and errors."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from taskqueue_client import calls
from taskqueue_client._call import Call
from taskqueue_client.definitions import LinkArtifactRequest
from taskqueue_client.models import CreateArtifactResponse

from .content_types import content_type_of
from .naming import checked_content_type, checked_name, clamped_expiry

Reason = Literal[
    "file-missing-on-worker",
    "invalid-resource-on-worker",
    "too-large-file-on-worker",
    "file-not-readable-on-worker",
]

_LONGEST_MESSAGE = 4096
"""Characters that the Queue takes; the rest of a longer message is cut off."""


def create_reference_artifact(
    task_id: str,
    run_id: int,
    name: str,
    url: str,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    task_expires: datetime | None = None,
) -> Call[CreateArtifactResponse]:
    """Create an artifact that is somewhere else, or let an existing reference point there.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Args:
        task_id: The task.
        run_id: The run.
        name: The artifact's name; beginning with `public/`, it is for everybody.
        url: Where its content is, for everybody who may read the artifact.
        expires: Until when it is kept.
        content_type: Its type; by the name's ending when left out.
        task_expires: The task's own `expires`, which the artifact's is cut down to.

    Raises:
        InvalidArgument: A value is malformed.
        RequestConflict: An artifact that is no reference has the name, or the run is not running.
    """
    given = content_type_of(name) if content_type is None else checked_content_type(content_type)
    return calls.create_artifact(
        task_id,
        run_id,
        checked_name(name),
        {
            "storageType": "reference",
            "expires": clamped_expiry(expires, task_expires),
            "contentType": given,
            "url": url,
        },
    )


def create_link_artifact(
    task_id: str,
    run_id: int,
    name: str,
    target: str,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    task_expires: datetime | None = None,
) -> Call[CreateArtifactResponse]:
    """Create another name for an artifact of the same run, or turn a reference into one.

    A live log is a reference while it is written, and becomes a link to the stored log.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Args:
        task_id: The task.
        run_id: The run.
        name: The other name.
        target: The artifact's name; it need not exist yet.
        expires: Until when the link is kept.
        content_type: Its type; that of the reference it replaces, or of everything, when left out.
        task_expires: The task's own `expires`, which the link's is cut down to.

    Raises:
        InvalidArgument: A value is malformed.
        RequestConflict: An artifact that is no reference has the name, or the run is not running.
    """
    request: LinkArtifactRequest = {
        "storageType": "link",
        "expires": clamped_expiry(expires, task_expires),
        "artifact": checked_name(target),
    }
    if content_type is not None:
        request["contentType"] = checked_content_type(content_type)
    return calls.create_artifact(task_id, run_id, checked_name(name), request)


def create_error_artifact(
    task_id: str,
    run_id: int,
    name: str,
    reason: Reason,
    message: str,
    *,
    expires: datetime | str,
    task_expires: datetime | None = None,
) -> Call[CreateArtifactResponse]:
    """Create an artifact that says why there is no file; readers get an `ErrorArtifact`.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have. Safe to repeat.

    Args:
        task_id: The task.
        run_id: The run.
        name: The name that the file would have.
        reason: Why, for programs.
        message: Why, for people; cut off after 4096 characters.
        expires: Until when it is kept.
        task_expires: The task's own `expires`, which the artifact's is cut down to.

    Raises:
        InvalidArgument: A value is malformed.
        RequestConflict: An artifact of another kind has the name, or the run is not running.
    """
    return calls.create_artifact(
        task_id,
        run_id,
        checked_name(name),
        {
            "storageType": "error",
            "expires": clamped_expiry(expires, task_expires),
            "reason": reason,
            "message": message[:_LONGEST_MESSAGE],
        },
    )
