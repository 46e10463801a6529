"""Checks of arguments, made before there is a call.

The patterns are those of the Queue's URL parameters and request schemas: nothing that it takes is
refused. Each function gives back what it was given, in the form in which it is sent, or raises
`InvalidArgument`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from functools import lru_cache
from typing import cast
from urllib.parse import quote

from taskqueue_client._dates import is_date_time, timestamp
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.slugid import is_slugid

_IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]{1,38}")
_TASK_QUEUE_ID = re.compile(r"[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_NAME = re.compile(r"[\x20-\x7e]+")


def path(*parts: str | int) -> str:
    """The path of a call: every part is percent-encoded whole, as the official clients do it.

    A part that is only dots would be taken for a step in a directory tree on its way, so its dots are
    encoded as well.
    """
    return "/" + "/".join([_encoded(part) for part in parts])


@lru_cache(maxsize=512)  # most parts are words of the routes, and the same few ids come again
def _encoded(part: str | int) -> str:
    text = str(part)
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")


def slugid(argument: str, given: object) -> str:
    """A task id, task group id or upload id."""
    if not isinstance(given, str) or not is_slugid(given):
        raise InvalidArgument(argument, given, "a slugid: 22 characters, as slugid() makes them")
    return given


def number(argument: str, given: object, *, least: int = 0, most: int | None = None) -> int:
    """A run id, a limit, a count."""
    if isinstance(given, int) and not isinstance(given, bool) and least <= given <= (most or given):
        return given
    limits = f"{least} or more" if most is None else f"{least} to {most}"
    raise InvalidArgument(argument, given, f"a whole number, {limits}")


def identifier(argument: str, given: object) -> str:
    """A provisioner, worker type, worker group or worker."""
    if not isinstance(given, str) or not _IDENTIFIER.fullmatch(given):
        raise InvalidArgument(argument, given, "1 to 38 letters, digits, - and _")
    return given


def name(given: object) -> str:
    """The name of an artifact or object."""
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InvalidArgument("name", given, "one or more printable ASCII characters")
    return given


def one_of(argument: str, given: str, allowed: Collection[str]) -> str:
    """A value of an enumeration."""
    if given not in allowed:
        raise InvalidArgument(argument, given, f"one of {', '.join(allowed)}")
    return str(given)


def texts(argument: str, given: object) -> list[str]:
    """Several texts. One text is several letters to Python, and a mistake here."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidArgument(argument, given, "a list of texts")
    members = [*cast("Collection[object]", given)]
    if not all(isinstance(member, str) for member in members):
        raise InvalidArgument(argument, members, "a list of texts")
    return cast("list[str]", members)


def moment(argument: str, given: object) -> str:
    """A date and time, which needs a time zone if it is a datetime."""
    if isinstance(given, datetime) and given.tzinfo is not None:
        return timestamp(given)
    if isinstance(given, str) and is_date_time(given):
        return given
    raise InvalidArgument(argument, given, "a datetime with a time zone, or a date-time as text")


def task_queue_id(given: object, provisioner_id: object, worker_type: object) -> str:
    """The id of the task queue that is named by it or by the old pair."""
    if given is None or provisioner_id is not None or worker_type is not None:
        given = "/".join(task_queue_pair(given, provisioner_id, worker_type))
    if not isinstance(given, str) or not _TASK_QUEUE_ID.fullmatch(given):
        allowed = (
            "<provisioner>/<worker type>, each 1 to 38 letters, digits, - and _; the worker type in lower "
            "case, without _, beginning with a letter and not ending with -"
        )
        raise InvalidArgument("task_queue_id", given, allowed)
    return given


def task_queue_pair(given: object, provisioner_id: object, worker_type: object) -> tuple[str, str]:
    """The old pair that names the same task queue."""
    if isinstance(given, str) and provisioner_id is None and worker_type is None:
        provisioner_id, _, worker_type = given.partition("/")
    elif given is not None or provisioner_id is None or worker_type is None:
        allowed = "either task_queue_id, or both provisioner_id and worker_type"
        raise InvalidArgument("task_queue_id", (given, provisioner_id, worker_type), allowed)
    return identifier("provisioner_id", provisioner_id), identifier("worker_type", worker_type)


def page_query(continuation_token: object, limit: object) -> dict[str, str]:
    """The query parameters that ask for a page."""
    query: dict[str, str] = {}
    if continuation_token is not None:
        if not isinstance(continuation_token, str) or not _PRINTABLE.fullmatch(continuation_token):
            raise InvalidArgument("continuation_token", continuation_token, "the token of the page before")
        query["continuationToken"] = continuation_token
    if limit is not None:
        query["limit"] = str(number("limit", limit))
    return query
