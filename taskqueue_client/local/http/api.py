"""Handling of requests to endpoints: the checks in their order, the handler, and the response.

Body, scopes that the URL determines, URL parameters, query, content type and schema, handler: the first
that fails decides the response.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from taskqueue_client.local.auth.auth_service import (
    Identity,
    RequestCaller,
    SignedRequest,
    check_payload_hash,
    tester_validator,
)
from taskqueue_client.local.auth.presented_credentials import bad_request
from taskqueue_client.local.engine.task_artifacts import ErrorContent, Redirect
from taskqueue_client.local.http import request_bodies
from taskqueue_client.local.javascript_values import media_type
from taskqueue_client.local.refusal import Refusal, refuse
from taskqueue_client.local.storage.objects import SeeOther

from .endpoint_routes import check_url, page_size, read_query, run_id
from .endpoints import camel_case
from .responses import empty_response, error_response, finish, json_response, see_other

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from .endpoint_routes import Match

_HOST = re.compile(r"([^:\[\]]+|\[[^\]]+\])(?::([0-9]{1,5}))?")
_FORWARDED_PORT = re.compile(r" *\+?([0-9]{1,6})")
"""The first port of several, as the service reads them."""

_HTTPS = 443
_HTTP = 80
_STORAGE_TYPE = "x-taskcluster-artifact-storage-type"

_log = logging.getLogger(__name__)


class _Call:
    """One request on its way through the checks."""

    def __init__(self, request: web.BaseRequest, match: Match) -> None:
        self.request = request
        self.match = match
        self.endpoint = match.endpoint
        self.params = match.params
        self.content_type = request.headers.get("Content-Type")
        has_body = "Content-Length" in request.headers or "Transfer-Encoding" in request.headers
        self.has_json = has_body and media_type(self.content_type) == "application/json"
        self.text = ""
        self.payload: Any = {}
        self.query: Mapping[str, str] = {}

    async def read_body(self) -> None:
        """Read and parse the body; as in the service, one that is not announced as JSON is ignored."""
        if not self.has_json:
            return
        body = await request_bodies.read_body(self.request)
        if text := request_bodies.read_text(body, self.content_type):
            self.text = self.payload = text
            self.payload = request_bodies.parse(text)
            request_bodies.check_kind(self.payload)

    def check_announced(self) -> None:
        """Refuse a request without a body that is announced as JSON."""
        if not self.has_json:
            expected = "Payload must be JSON with content-type: application/json"
            refuse("MalformedPayload", f"{expected} got content-type: {self.content_type or 'null'}")


class Api:
    """Responds to requests to endpoints.

    Args:
        services: By name, the objects whose methods are the endpoints' handlers.
        authenticate: See `SignatureValidator.authenticate`.
        now: The time, in seconds since the epoch.
        root_url: The root URL of the deployment, called for each request.
    """

    def __init__(
        self,
        services: Mapping[str, object],
        authenticate: Callable[[SignedRequest], Identity],
        now: Callable[[], float],
        root_url: Callable[[], str],
    ) -> None:
        self._services = services
        self._authenticate = authenticate
        self._now = now
        self._root_url = root_url

    async def respond(self, request: web.BaseRequest, match: Match) -> web.Response:
        """Return the response to a request; never raises."""
        call = _Call(request, match)
        try:
            response = await self._run(call)
        except Refusal as refusal:
            response = self._error(call, refusal)
        except Exception:  # noqa: BLE001 - an internal error must not be shown to the caller
            incident = uuid4()
            _log.exception("%s failed, incidentId %s", call.endpoint.full_name, incident)
            message = f"Internal Server Error, incidentId {incident}."
            response = self._error(call, Refusal("InternalServerError", message))
        return finish(request, response)

    def _error(self, call: _Call, refusal: Refusal) -> web.Response:
        about = (refusal, call.endpoint.name, call.params)
        now_ms = int(1000 * self._now())
        try:
            return error_response(*about, call.payload, now_ms)
        except RecursionError:  # the payload is nested nearly too deep, and the response nests it deeper
            return error_response(*about, {}, now_ms)

    async def _run(self, call: _Call) -> web.Response:
        endpoint = call.endpoint
        await call.read_body()
        caller = RequestCaller(lambda: self._identify(call), endpoint.scopes, call.params)
        if endpoint.is_checked_first:
            caller.require()
        check_url(call.params)
        call.query = read_query(endpoint, call.request.raw_path.partition("?")[2])
        if endpoint.schema is not None:
            call.check_announced()
            request_bodies.check_body(endpoint.schema, call.payload, self._root_url)
        given = (_taker(name)(call, caller) for name in endpoint.argument_names)
        result = endpoint.handler(self._services[endpoint.service], *given)
        return _response(await result if inspect.isawaitable(result) else result)

    def _identify(self, call: _Call) -> Identity:
        """Authenticate the sender of a request, and check the signed hash of the body."""
        identity = self._authenticate_for(call)(_signed(call.request))
        check_payload_hash(identity, call.text.encode(), call.content_type)
        return identity

    def _authenticate_for(self, call: _Call) -> Callable[[SignedRequest], Identity]:
        if call.endpoint.tester_scopes is None:
            return self._authenticate
        return tester_validator(call.endpoint.tester_scopes(call.payload), self._now).authenticate


_Taker = Callable[[_Call, RequestCaller], object]

_TAKERS: dict[str, _Taker] = {
    "caller": lambda _, caller: caller,
    "body": lambda call, _: call.payload,
    "run_id": lambda call, _: run_id(call.params["runId"]),
    "continuation_token": lambda call, _: call.query.get("continuationToken"),
    "limit": lambda call, _: page_size(call.query),
    "quarantined": lambda call, _: {"true": True, "false": False}.get(call.query.get("quarantined", "")),
}
"""The arguments of handlers by the names of their parameters; other names are URL parameters."""


@cache
def _taker(name: str) -> _Taker:
    parameter = camel_case(name)
    return _TAKERS.get(name) or (lambda call, _: call.params[parameter])


def _response(result: Any) -> web.Response:
    """Return the HTTP response for what a handler returned."""
    if result is None:
        return empty_response()
    if isinstance(result, Redirect):
        headers = {"Location": result.url, _STORAGE_TYPE: result.storage_type}
        return json_response({"storageType": result.storage_type, "url": result.url}, 303, headers)
    if isinstance(result, ErrorContent):
        body = {"reason": result.reason, "message": result.message}
        return json_response(body, 424, {_STORAGE_TYPE: "error"})
    if isinstance(result, SeeOther):
        return see_other(result.url)
    return json_response(result)


def _signed(request: web.BaseRequest) -> SignedRequest:
    host, port = _host_and_port(request.headers)
    authorization = request.headers.get("Authorization")
    return SignedRequest(request.method, request.raw_path, host, port, authorization)


def _host_and_port(headers: Mapping[str, str]) -> tuple[str, int]:
    """Return what the client connected to, as a proxy in front of the service tells it."""
    found = _HOST.fullmatch(headers.get("Host", "").strip())
    if found is None:
        bad_request("Invalid Host header")
    forwarded = _FORWARDED_PORT.match(headers.get("x-forwarded-port", ""))
    if forwarded is not None:
        return found[1], int(forwarded[1])
    if headers.get("x-forwarded-proto") == "https":
        return found[1], _HTTPS
    return found[1], int(found[2] or _HTTP)
