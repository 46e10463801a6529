"""The order in which a request to an endpoint is looked at, and the answer it gets.

Body, scopes that the URL determines, URL parameters, query, content type and schema, handler: the first
that objects decides the answer.
"""

from __future__ import annotations

import inspect
import logging
import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from taskqueue_client.local import json_bodies
from taskqueue_client.local.answers import error_answer, finish
from taskqueue_client.local.auth_service import TESTER_GET_SCOPES, tester_validator
from taskqueue_client.local.authentication.caller import RequestCaller, check_payload_hash
from taskqueue_client.local.authentication.headers import bad_request
from taskqueue_client.local.authentication.validator import Identity, SignatureValidator, SignedRequest
from taskqueue_client.local.handlers import arguments, to_answer
from taskqueue_client.local.parameters import check_url, read_query, run_id
from taskqueue_client.local.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import web

    from taskqueue_client.local.routing import Match

_HOST = re.compile(r"([^:\[\]]+|\[[^\]]+\])(?::([0-9]{1,5}))?")
_HTTPS = 443
_HTTP = 80

_log = logging.getLogger(__name__)


class _Call:
    """One request on its way through the checks."""

    def __init__(self, request: web.BaseRequest, match: Match) -> None:
        self.request = request
        self.match = match
        self.endpoint = match.endpoint
        self.params = match.params
        self.content_type = request.headers.get("Content-Type")
        self.text = ""
        self.payload: Any = {}

    async def read_body(self) -> None:
        body = await json_bodies.read_body(self.request)
        if body and json_bodies.media_type(self.content_type) == json_bodies.JSON_TYPE:
            self.text = self.payload = json_bodies.read_text(body, self.content_type)
            self.payload = json_bodies.parse(self.text)

    def check_body(self, root_url: str) -> None:
        if self.endpoint.schema is not None:
            content_type = self.content_type if _announces_body(self.request) else None
            json_bodies.check_body(self.endpoint.schema, content_type, self.payload, root_url)


def _announces_body(request: web.BaseRequest) -> bool:
    return "Content-Length" in request.headers or "Transfer-Encoding" in request.headers


class Api:
    """Answers requests to endpoints.

    Args:
        services: By name, the objects whose methods are the endpoints' handlers.
        validator: Judges signatures.
        now: The time, in seconds since the epoch.
        root_url: The root URL of the deployment, asked for each time.
    """

    def __init__(
        self,
        services: Mapping[str, object],
        validator: SignatureValidator,
        now: Callable[[], float],
        root_url: Callable[[], str],
    ) -> None:
        self._services = services
        self._validator = validator
        self._now = now
        self._root_url = root_url

    async def answer(self, request: web.BaseRequest, match: Match) -> web.Response:
        """The answer to a request; never an exception."""
        call = _Call(request, match)
        try:
            answer = await self._run(call)
        except Refusal as refusal:
            answer = self._error(call, refusal)
        except Exception:  # noqa: BLE001 - whatever goes wrong must not show its inside to the caller
            incident = uuid4()
            _log.exception("%s failed, incidentId %s", call.endpoint.full_name, incident)
            message = f"Internal Server Error, incidentId {incident}."
            answer = self._error(call, Refusal("InternalServerError", message))
        return finish(request, answer)

    def _error(self, call: _Call, refusal: Refusal) -> web.Response:
        about = (refusal, call.endpoint.name, call.params)
        now_ms = int(1000 * self._now())
        try:
            return error_answer(*about, call.payload, now_ms)
        except RecursionError:  # it could just be read, and an answer about it is nested a little deeper
            return error_answer(*about, {}, now_ms)

    async def _run(self, call: _Call) -> web.Response:
        await call.read_body()
        caller = RequestCaller(lambda: self._identify(call), call.endpoint.scopes, call.params)
        if call.endpoint.is_checked_first:
            caller.require()
        check_url(call.params)
        query = read_query(call.endpoint, call.request.raw_path.partition("?")[2])
        call.check_body(self._root_url())
        if call.endpoint.is_checked_first and "runId" in call.params:
            caller.require(runId=run_id(call.params["runId"]))  # `01` is run 1 from here on
        handler = getattr(self._services[call.endpoint.service], call.endpoint.handler_name)
        result = handler(*arguments(call.match, caller, call.payload, query, call.request.headers))
        return to_answer(call.endpoint, await result if inspect.isawaitable(result) else result)

    def _identify(self, call: _Call) -> Identity:
        """Who sent the request; the body is held against its signed hash as well."""
        identity = self._validator_for(call).authenticate(_signed(call.request))
        check_payload_hash(identity, call.text.encode(), call.content_type)
        return identity

    def _validator_for(self, call: _Call) -> SignatureValidator:
        """Two endpoints are there to try out a signer, and have a client of their own."""
        if call.endpoint.name == "testAuthenticate":
            return tester_validator(call.payload["clientScopes"], self._now)
        if call.endpoint.name == "testAuthenticateGet":
            return tester_validator(TESTER_GET_SCOPES, self._now)
        return self._validator


def _signed(request: web.BaseRequest) -> SignedRequest:
    host, port = _host_and_port(request.headers)
    authorization = request.headers.get("Authorization")
    return SignedRequest(request.method, request.raw_path, host, port, authorization)


def _host_and_port(headers: Mapping[str, str]) -> tuple[str, int]:
    """What the client connected to, as a proxy in front of the service tells it."""
    found = _HOST.fullmatch(headers.get("Host", "").strip())
    if found is None:
        bad_request("Invalid Host header")
    forwarded = headers.get("x-forwarded-port", "")
    if forwarded.isdecimal():
        return found[1], int(forwarded[:6])
    if headers.get("x-forwarded-proto") == "https":
        return found[1], _HTTPS
    return found[1], int(found[2] or _HTTP)
