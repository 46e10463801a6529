"""Routing: finds the endpoint of a request, and decodes its URL and query parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote_to_bytes

from taskqueue_client.local.refusal import refuse

from .endpoints import ENDPOINTS, LEGACY, Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_SPLATS = {"taskQueueId", "name"}
_PREFIX = re.compile(r"(?:/api/([a-z]+))?/v1(/[^/]*)")

RouteTable = dict[tuple[str, str], list[tuple[Endpoint, re.Pattern[str]]]]
"""Endpoints with their routes as expressions, by service and first segment."""


@dataclass(frozen=True, slots=True)
class Match:
    """An endpoint and the parameters of its URL, percent-decoded."""

    endpoint: Endpoint
    params: dict[str, str]


class BrokenEscapeError(Exception):
    """A URL parameter is not percent-encoded UTF-8."""


def find_endpoint(method: str, path: str, table: RouteTable | None = None) -> Match | None:
    """Return the endpoint of a request; None when no route fits (then the response is a plain 404).

    Args:
        method: The method of the request.
        path: The path of the request, percent-encoded.
        table: The endpoints; those that every local queue has by default.

    Raises:
        BrokenEscapeError: A parameter is not percent-encoded UTF-8; as in the service, whatever the method.
    """
    wanted = "GET" if method == "HEAD" else method
    for endpoint, route in _routes_near(path, table):
        if found := route.fullmatch(path):
            params = {name: _decode(name, raw) for name, raw in found.groupdict().items()}
            if endpoint.method == wanted:
                return Match(endpoint, params)
    return None


def allowed_methods(path: str, table: RouteTable | None = None) -> list[str]:
    """Return the methods that the path takes; empty for an unknown path."""
    found = {endpoint.method for endpoint, route in _routes_near(path, table) if route.fullmatch(path)}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


def _routes_near(path: str, table: RouteTable | None) -> list[tuple[Endpoint, re.Pattern[str]]]:
    """Return the routes with the path's first segment: looking through these few is quick."""
    start = _PREFIX.match(path)
    return (table or _ROUTES).get((start[1] or LEGACY, start[2]), []) if start else []


def _decode(name: str, raw: str) -> str:
    try:
        value = unquote_to_bytes(_BAD_ESCAPE.sub("%ff", raw)).decode()  # no UTF-8 has a byte ff
    except ValueError:
        raise BrokenEscapeError(name) from None
    return value


_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _compile(endpoint: Endpoint) -> re.Pattern[str]:
    """Return a route's expression; a slash may follow unless its last parameter may contain slashes."""
    pattern = re.escape(endpoint.base + endpoint.route.rstrip("/"))
    for name in endpoint.parameters:
        is_splat = name in _SPLATS and not endpoint.one_segment
        pattern = pattern.replace(f"<{name}>", f"(?P<{name}>{'.*' if is_splat else '[^/]+'})")
    return re.compile(pattern if pattern.endswith(".*)") else pattern + "/?", re.DOTALL)


def route_table(endpoints: Iterable[Endpoint]) -> RouteTable:
    """Return the table that `find_endpoint` looks in."""
    routes: RouteTable = defaultdict(list)
    for endpoint in endpoints:
        first_segment = "/" + endpoint.route.split("/")[1]
        routes[endpoint.service, first_segment].append((endpoint, _compile(endpoint)))
    return dict(routes)


_ROUTES = route_table(ENDPOINTS)

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
    "clientId": "^[A-Za-z0-9!@/:.+|_-]+$",
    "name": r"^[\x20-\x7e]+$",
}
_QUERY_PATTERNS = {"continuationToken": ".", "limit": "^[0-9]+$", "quarantined": "^(true|false)$"}

_LARGEST_PAGE = 1000
_LARGEST_RUN_ID = 2**31 - 1


def _matcher(pattern: str) -> Callable[[str], object]:
    if pattern == _URL_PATTERNS["runId"]:  # the same language, without going over the digits again and again
        pattern = "^[0-9]+$"
    if pattern == ".":  # in JavaScript, no end of a line
        pattern = "[^\n\r\u2028\u2029]"
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
    """Return the query parameters of a request, without its bewit.

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
        return f"Query-string parameter: {name} must be a string!"
    if not _MATCHERS[name](value):
        return (
            f'Query-string parameter: {name}="{value}" does not match expression: /{_QUERY_PATTERNS[name]}/'
        )
    return None


def run_id(text: str) -> int:
    """Return the number of a run; numbers that no run can have become the largest one."""
    return _bounded(text, _LARGEST_RUN_ID)


def page_size(query: Mapping[str, str]) -> int:
    """Return how many rows a page may have: as the request says, at most 1000."""
    return _bounded(query.get("limit", str(_LARGEST_PAGE)), _LARGEST_PAGE)


def _bounded(digits: str, largest: int) -> int:
    significant = digits.lstrip("0")
    return largest if len(significant) > len(str(largest)) else min(int(significant or "0"), largest)
