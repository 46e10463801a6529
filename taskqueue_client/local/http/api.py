"""Requests to endpoints: routing, the checks in their order, the handler, and the response.

The order is: body, scopes that the URL determines, URL parameters, query, content type and schema, handler.
The first step that fails decides the response.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes
from uuid import uuid4

from aiohttp import web

from taskqueue_client.local import endpoints
from taskqueue_client.local.auth.auth_service import (
    Caller,
    Identity,
    SignedRequest,
    check_payload_hash,
    tester_validator,
)
from taskqueue_client.local.auth.presented_credentials import bad_request
from taskqueue_client.local.endpoints import LEGACY, Endpoint, camel_case
from taskqueue_client.local.engine.store import is_of_machine
from taskqueue_client.local.engine.task_artifacts import ErrorContent, Redirect
from taskqueue_client.local.http import request_bodies
from taskqueue_client.local.refusal import Refusal, refuse
from taskqueue_client.local.request_schemas import SLUGID
from taskqueue_client.local.storage.objects import SeeOther

from .responses import empty_response, error_response, finish, json_response, see_other

ENDPOINTS: tuple[Endpoint, ...] = (*endpoints.queue, *endpoints.objects, *endpoints.auth)
"""The endpoints of every local queue, which the imports above have declared."""

_SPLATS = {"taskQueueId", "name"}
_PREFIX = re.compile(r"(?:/api/([a-z]+))?/v1(/[^/]*)")


@dataclass(frozen=True, slots=True)
class Match:
    """An endpoint and the parameters of its URL, percent-decoded."""

    endpoint: Endpoint
    params: dict[str, str]


class BrokenEscapeError(Exception):
    """A URL parameter is not percent-encoded UTF-8."""


class Routes:
    """Finds the endpoint of a path; compares only the few endpoints with its service and first segment."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._routes: defaultdict[tuple[str, str], list[tuple[Endpoint, re.Pattern[str]]]] = defaultdict(list)
        for endpoint in endpoints:
            first_segment = "/" + endpoint.route.split("/")[1]
            self._routes[endpoint.service, first_segment].append((endpoint, _compile(endpoint)))

    def find(self, method: str, path: str) -> Match | None:
        """Return the endpoint of a request; None if no route matches (the response is a plain 404).

        Raises:
            BrokenEscapeError: A parameter is not percent-encoded UTF-8; as in the service, of any method.
        """
        wanted = "GET" if method == "HEAD" else method
        for endpoint, route in self._near(path):
            if found := route.fullmatch(path):
                params = {name: _decode(name, raw) for name, raw in found.groupdict().items()}
                if endpoint.method == wanted:
                    return Match(endpoint, params)
        return None

    def allowed_methods(self, path: str) -> list[str]:
        """Return the methods that the path takes; empty for an unknown path."""
        found = {endpoint.method for endpoint, route in self._near(path) if route.fullmatch(path)}
        return sorted(found | ({"HEAD"} if "GET" in found else set()))

    def _near(self, path: str) -> list[tuple[Endpoint, re.Pattern[str]]]:
        start = _PREFIX.match(path)
        return self._routes.get((start[1] or LEGACY, start[2]), []) if start else []


def _decode(name: str, raw: str) -> str:
    try:
        return unquote_to_bytes(_BAD_ESCAPE.sub("%ff", raw)).decode()  # no UTF-8 has a byte ff
    except ValueError:
        raise BrokenEscapeError(name) from None


_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _compile(endpoint: Endpoint) -> re.Pattern[str]:
    """Return a route's pattern; a slash may follow unless the last parameter may contain slashes."""
    pattern = re.escape(endpoint.base + endpoint.route.rstrip("/"))
    for name in endpoint.parameters:
        is_splat = name in _SPLATS and not endpoint.one_segment
        pattern = pattern.replace(f"<{name}>", f"(?P<{name}>{'.*' if is_splat else '[^/]+'})")
    return re.compile(pattern if pattern.endswith(".*)") else pattern + "/?", re.DOTALL)


ROUTES = Routes(ENDPOINTS)

_IDENTIFIER = "^[a-zA-Z0-9-_]{1,38}$"
_URL_PATTERNS = {
    "taskId": SLUGID,
    "taskGroupId": SLUGID,
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
    if pattern == _URL_PATTERNS["runId"]:  # matches the same, without backtracking
        pattern = "^[0-9]+$"
    if pattern == ".":  # of JavaScript: not a line terminator
        pattern = "[^\n\r\u2028\u2029]"
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII).search


_MATCHERS = {name: _matcher(pattern) for name, pattern in (_URL_PATTERNS | _QUERY_PATTERNS).items()}


def check_url(params: Mapping[str, str]) -> None:
    """Raise a Refusal that names each URL parameter that does not match its pattern."""
    wrong = [
        f"URL parameter '{name}' given as '{value}' must match regular expression: '/{_URL_PATTERNS[name]}/'"
        for name, value in params.items()
        if not _MATCHERS[name](value)
    ]
    if wrong:
        refuse("InvalidRequestArguments", "\n".join(["Invalid URL patterns:", *wrong]))


def read_query(endpoint: Endpoint, query_string: str) -> dict[str, str]:
    """Return the query parameters of a request, without its bewit; refuse unknown and invalid parameters."""
    query = parse_qs(query_string, keep_blank_values=True, errors="replace")
    query.pop("bewit", None)
    wrong = [_what_is_wrong(endpoint, name, values) for name, values in query.items()]
    if problems := [problem for problem in wrong if problem]:
        refuse("InvalidRequestArguments", "\n".join(problems))
    return {name: value for name, (value,) in query.items()}


def _what_is_wrong(endpoint: Endpoint, name: str, values: list[str]) -> str | None:
    if name not in endpoint.query:
        return f"Query-string parameter: {name} is not supported!"
    if len(values) > 1:
        return f"Query-string parameter: {name} must be a string!"
    if not _MATCHERS[name](values[0]):
        given = f'{name}="{values[0]}"'
        return f"Query-string parameter: {given} does not match expression: /{_QUERY_PATTERNS[name]}/"
    return None


def _bounded(digits: str, largest: int) -> int:
    """Return a number, or `largest` for larger ones, which no run and no page can have."""
    significant = digits.lstrip("0")
    return largest if len(significant) > len(str(largest)) else min(int(significant or "0"), largest)


_HOST = re.compile(r"([^:\[\]]+|\[[^\]]+\])(?::([0-9]{1,5}))?")
_FORWARDED_PORT = re.compile(r" *\+?([0-9]{1,6})")  # the first port of several, as the service reads them
_HTTPS = 443
_HTTP = 80
_STORAGE_TYPE = "x-taskcluster-artifact-storage-type"

_log = logging.getLogger(__name__)


class _Call:
    def __init__(self, request: web.BaseRequest, match: Match) -> None:
        self.request = request
        self.endpoint = match.endpoint
        self.params = match.params
        self.content_type = request.headers.get("Content-Type")
        self.has_json = False
        self.text = ""
        self.payload: Any = {}
        self.query: Mapping[str, str] = {}

    async def read_body(self) -> None:
        """Read and parse the body; as in the service, ignore it if it is not announced as JSON."""
        self.has_json = request_bodies.has_json(self.request)
        if not self.has_json:
            return
        body = await request_bodies.read_body(self.request)
        if text := request_bodies.read_text(body, self.content_type):
            self.text = self.payload = text
            self.payload = request_bodies.parse(text)
            if not isinstance(self.payload, (dict, list)):
                refuse("MalformedPayload", "Failed to parse JSON: Must be an object or array")

    def check_announced(self) -> None:
        """Refuse a request whose headers do not announce a JSON body."""
        if not self.has_json:
            expected = "Payload must be JSON with content-type: application/json"
            refuse("MalformedPayload", f"{expected} got content-type: {self.content_type or 'null'}")


@dataclass(slots=True)
class Api:
    """Responds to requests to endpoints.

    Args:
        services: By name, the objects whose methods are the endpoints' handlers.
        authenticate: See `SignatureValidator.authenticate`.
        now: The time, in seconds since the epoch.
        root_url: The root URL of the deployment, known once the server has started.
    """

    services: Mapping[str, object]
    authenticate: Callable[[SignedRequest], Identity]
    now: Callable[[], float]
    root_url: Callable[[], str]

    async def respond(self, request: web.BaseRequest, match: Match) -> web.Response:
        """Return the response to a request; never raises."""
        call = _Call(request, match)
        try:
            response = await self._run(call)
        except Refusal as refusal:
            response = self._error(call, refusal)
        except Exception as error:  # noqa: BLE001 - an internal error must not be shown to the caller
            incident, cause = uuid4(), None if is_of_machine(error) else error
            _log.error(
                "%s failed, incidentId %s: %s", call.endpoint.full_name, incident, error, exc_info=cause
            )
            message = f"Internal Server Error, incidentId {incident}."
            response = self._error(call, Refusal("InternalServerError", message))
        return finish(request, response)

    def _error(self, call: _Call, refusal: Refusal) -> web.Response:
        about = (refusal, call.endpoint.name, call.params)
        try:
            return error_response(*about, call.payload, self.now())
        # The payload is nested nearly too deep, and the response nests it deeper; or it has lone surrogates.
        except (RecursionError, UnicodeEncodeError):
            return error_response(*about, {}, self.now())

    async def _run(self, call: _Call) -> web.Response:
        endpoint = call.endpoint
        await call.read_body()
        caller = Caller(lambda: self._identify(call), endpoint.scopes, call.params)
        if endpoint.is_checked_first:
            caller.require()
        check_url(call.params)
        call.query = read_query(endpoint, call.request.raw_path.partition("?")[2])
        if endpoint.schema is not None:
            call.check_announced()
            request_bodies.check_body(endpoint.schema, call.payload, self.root_url)
        given = (_argument_reader(name)(call, caller) for name in endpoint.argument_names)
        result = endpoint.handler(self.services[endpoint.service], *given)
        return _response(await result if inspect.isawaitable(result) else result)

    def _identify(self, call: _Call) -> Identity:
        tester_scopes, authenticate = call.endpoint.tester_scopes, self.authenticate
        if tester_scopes is not None:
            authenticate = tester_validator(tester_scopes(call.payload), self.now).authenticate
        request, (host, port) = call.request, _host_and_port(call.request.headers)
        authorization = request.headers.get("Authorization")
        identity = authenticate(SignedRequest(request.method, request.raw_path, host, port, authorization))
        check_payload_hash(identity, call.text.encode(), call.content_type)
        return identity


_ArgumentReader = Callable[[_Call, Caller], object]

_ARGUMENT_READERS: dict[str, _ArgumentReader] = {
    "caller": lambda _, caller: caller,
    "body": lambda call, _: call.payload,
    "task_queue_id": lambda call, _: (
        call.params.get("taskQueueId") or "{provisionerId}/{workerType}".format_map(call.params)
    ),
    "worker": lambda call, _: (call.params["workerGroup"], call.params["workerId"]),
    "run_id": lambda call, _: _bounded(call.params["runId"], _LARGEST_RUN_ID),
    "token": lambda call, _: call.query.get("continuationToken"),
    "limit": lambda call, _: _bounded(call.query.get("limit", "1000"), _LARGEST_PAGE),
    "quarantined": lambda call, _: {"true": True, "false": False}.get(call.query.get("quarantined", "")),
}
"""The arguments of handlers by the names of their parameters; other names are URL parameters."""


@cache
def _argument_reader(name: str) -> _ArgumentReader:
    parameter = camel_case(name)
    return _ARGUMENT_READERS.get(name) or (lambda call, _: call.params[parameter])


def _response(result: Any) -> web.Response:
    if result is None:
        return empty_response()
    if isinstance(result, Redirect):
        headers = {"Location": result.url, _STORAGE_TYPE: result.storage_type}
        return json_response({"storageType": result.storage_type, "url": result.url}, 303, headers)
    if isinstance(result, ErrorContent):
        return json_response(result, 424, {_STORAGE_TYPE: "error"})
    if isinstance(result, SeeOther):
        return see_other(result.url)
    return json_response(result)


def _host_and_port(headers: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port that the client connected to; a proxy names its port in a header."""
    found = _HOST.fullmatch(headers.get("Host", "").strip())
    if found is None:
        bad_request("Invalid Host header")
    forwarded = _FORWARDED_PORT.match(headers.get("x-forwarded-port", ""))
    if forwarded is not None:
        return found[1], int(forwarded[1])
    if headers.get("x-forwarded-proto") == "https":
        return found[1], _HTTPS
    return found[1], int(found[2] or _HTTP)
