"""What is checked and set right before the Queue is asked: names, expiry, content types."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache

from taskqueue_client._dates import instant, timestamp
from taskqueue_client.errors import InvalidArgument

_NAME = re.compile(r"[\x20-\x7e]{1,1024}")
"""The Queue takes longer names too, but then fails to list them."""

_LONGEST_CONTENT_TYPE = 255


def checked_name(name: object) -> str:
    """The name of an artifact that is to be created.

    Raises:
        InvalidArgument: It is empty, longer than 1024 characters, not printable ASCII, or has a `.` or
            `..` between slashes, which storage services and browsers take for a step in a directory.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument("name", name, "1 to 1024 printable ASCII characters")
    if {".", ".."} & set(name.split("/")):
        raise InvalidArgument("name", name, "a name without '.' and '..' between slashes")
    return name


def checked_content_type(content_type: str) -> str:
    """A content type, which becomes a header.

    Raises:
        InvalidArgument: It is empty, too long or not printable ASCII.
    """
    if not _NAME.fullmatch(content_type) or len(content_type) > _LONGEST_CONTENT_TYPE:
        raise InvalidArgument("content_type", content_type, "1 to 255 printable ASCII characters")
    return content_type


@lru_cache(maxsize=128)  # the artifacts of a run have the same
def clamped_expiry(expires: datetime | str, task_expires: datetime | None) -> str:
    """Until when an artifact is kept: not longer than its task, as the Queue demands.

    Raises:
        InvalidArgument: `expires` is no moment in time, or one of the two has no time zone.
    """
    moment = _moment("expires", expires)
    if task_expires is not None:
        moment = min(moment, _moment("task_expires", task_expires))
    return timestamp(moment)


def _moment(argument: str, given: datetime | str) -> datetime:
    moment = instant(given) if isinstance(given, str) else given
    if moment is None or moment.tzinfo is None:
        raise InvalidArgument(argument, given, "a datetime with a time zone, or a date-time as text")
    return moment
