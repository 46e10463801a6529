"""From a method and the raw path of a request to an endpoint and its URL parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from taskqueue_client.local.endpoints import ENDPOINTS, ONE_SEGMENT, Endpoint
from taskqueue_client.local.refuse import refuse

_SPLATS = {"taskQueueId", "name"}
_PREFIX = re.compile(r"/api/([a-z]+)/v1(/[^/]*)")


@dataclass(frozen=True, slots=True)
class Match:
    """An endpoint and the parameters of its URL, percent-decoded."""

    endpoint: Endpoint
    params: dict[str, str]


def find_endpoint(method: str, path: str) -> Match | None:
    """Whom a request is for; None when no route fits (then the answer is a plain 404).

    Raises:
        Refusal: A parameter is not percent-encoded UTF-8.
    """
    wanted = "GET" if method == "HEAD" else method
    for endpoint, route in _routes_near(path):
        if endpoint.method == wanted and (found := route.fullmatch(path)):
            return Match(endpoint, {name: _decode(name, raw) for name, raw in found.groupdict().items()})
    return None


def allowed_methods(path: str) -> list[str]:
    """The methods that the path takes; empty when there is no such path."""
    found = {endpoint.method for endpoint, route in _routes_near(path) if route.fullmatch(path)}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


def _routes_near(path: str) -> list[tuple[Endpoint, re.Pattern[str]]]:
    """The routes with the path's first segment: looking through these few is quick."""
    start = _PREFIX.match(path)
    return _ROUTES.get(start.groups(), []) if start else []


def _decode(name: str, raw: str) -> str:
    try:
        value = unquote_to_bytes(_BAD_ESCAPE.sub("%ff", raw)).decode()  # no UTF-8 has a byte ff
    except ValueError:
        refuse("InvalidRequestArguments", f"URL parameter '{name}' is not percent-encoded UTF-8")
    return value


_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _compile(endpoint: Endpoint) -> re.Pattern[str]:
    """A route as an expression; a slash may follow it unless it ends in a parameter that takes slashes."""
    pattern = re.escape(f"/api/{endpoint.service}/v1{endpoint.route.rstrip('/')}")
    for name in endpoint.parameters:
        is_splat = name in _SPLATS and endpoint.name not in ONE_SEGMENT
        pattern = pattern.replace(f"<{name}>", f"(?P<{name}>{'.*' if is_splat else '[^/]+'})")
    return re.compile(pattern if pattern.endswith(".*)") else pattern + "/?", re.DOTALL)


def _index() -> dict[tuple[str | None, ...], list[tuple[Endpoint, re.Pattern[str]]]]:
    routes: defaultdict[tuple[str | None, ...], list[tuple[Endpoint, re.Pattern[str]]]] = defaultdict(list)
    for endpoint in ENDPOINTS:
        first_segment = "/" + endpoint.route.split("/")[1]
        routes[endpoint.service, first_segment].append((endpoint, _compile(endpoint)))
    return dict(routes)


_ROUTES = _index()
