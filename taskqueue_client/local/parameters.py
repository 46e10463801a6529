"""URL parameters and query strings: what they must look like, and what a handler gets for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from taskqueue_client.local.refuse import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from taskqueue_client.local.endpoints import Endpoint

_IDENTIFIER = "^[a-zA-Z0-9-_]{1,38}$"
_SLUGID = "^[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]$"
_URL_PATTERNS = {
    "taskId": _SLUGID,
    "taskGroupId": _SLUGID,
    "taskQueueId": r"^[a-zA-Z0-9-_]{1,38}\/[a-z]([-a-z0-9]{0,36}[a-z0-9])?$",
    "provisionerId": _IDENTIFIER,
    "workerType": _IDENTIFIER,
    "workerGroup": _IDENTIFIER,
    "workerId": _IDENTIFIER,
    "runId": "^[1-9]*[0-9]+$",
    "name": r"^[\x20-\x7e]+$",
}
_QUERY_PATTERNS = {"continuationToken": ".", "limit": "^[0-9]+$", "quarantined": "^(true|false)$"}

_LARGEST_PAGE = 1000
_LARGEST_RUN_ID = 2**31 - 1


def _matcher(pattern: str) -> Callable[[str], object]:
    if pattern == _URL_PATTERNS["runId"]:  # the same language, without going over the digits again and again
        pattern = "^[0-9]+$"
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII).search


_MATCHERS = {name: _matcher(pattern) for name, pattern in (_URL_PATTERNS | _QUERY_PATTERNS).items()}


def check_url(params: Mapping[str, str]) -> None:
    """Raise a Refusal that names each URL parameter which is off its pattern."""
    wrong = [
        f"URL parameter '{name}' given as '{value}' must match regular expression: '/{_URL_PATTERNS[name]}/'"
        for name, value in params.items()
        if not _MATCHERS[name](value)
    ]
    if wrong:
        refuse("InvalidRequestArguments", "\n".join(["Invalid URL patterns:", *wrong]))


def read_query(endpoint: Endpoint, query_string: str) -> dict[str, str]:
    """The query parameters of a request, without its bewit.

    Raises:
        Refusal: One is unknown to the endpoint, given twice, empty or off its pattern.
    """
    pairs = parse_qsl(query_string, keep_blank_values=True, errors="replace")
    query = {name: value for name, value in pairs if name != "bewit"}
    repeated = {name for name in query if sum(each == name for each, _ in pairs) > 1}
    wrong = [_what_is_wrong(endpoint, name, value, repeated) for name, value in query.items()]
    if problems := [problem for problem in wrong if problem]:
        refuse("InvalidRequestArguments", "\n".join(problems))
    return query


def _what_is_wrong(endpoint: Endpoint, name: str, value: str, repeated: Iterable[str]) -> str | None:
    if name not in endpoint.query:
        return f"Query-string parameter: {name} is not supported!"
    if name in repeated:
        return f"Query-string parameter: {name} must not be given more than once"
    if not _MATCHERS[name](value):
        return (
            f'Query-string parameter: {name}="{value}" does not match expression: /{_QUERY_PATTERNS[name]}/'
        )
    return None


def run_id(text: str) -> int:
    """The number of a run; numbers that no run can have become the largest one."""
    return _bounded(text, _LARGEST_RUN_ID)


def page_size(query: Mapping[str, str]) -> int:
    """How many rows a page may have: what is asked for, at most 1000."""
    return _bounded(query.get("limit", str(_LARGEST_PAGE)), _LARGEST_PAGE)


def _bounded(digits: str, largest: int) -> int:
    significant = digits.lstrip("0")
    return largest if len(significant) > len(str(largest)) else min(int(significant or "0"), largest)
