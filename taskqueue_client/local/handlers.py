"""What the methods behind the endpoints are given, and what becomes of the values they return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local.answers import empty_answer, json_answer, text_answer
from taskqueue_client.local.engine import ErrorArtifact, Redirect
from taskqueue_client.local.json_types import is_object
from taskqueue_client.local.parameters import page_size, run_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from taskqueue_client.local.authentication.caller import RequestCaller
    from taskqueue_client.local.endpoints import Endpoint
    from taskqueue_client.local.routing import Match

_WITH_CALLER = {"quarantineWorker", "currentScopes"}
"""Endpoints that want to know the caller, beside those that check scopes themselves."""

_BODY_WITHOUT_SCHEMA = {"reportCompleted"}
_STORAGE_TYPE = "x-taskcluster-artifact-storage-type"


def arguments(
    match: Match, caller: RequestCaller, body: Any, query: Mapping[str, str], headers: Mapping[str, str]
) -> list[Any]:
    """What the endpoint's method is called with: caller, URL parameters, body, page and the like."""
    endpoint = match.endpoint
    checks_scopes = endpoint.scopes is not None and not endpoint.is_checked_first
    args: list[Any] = [caller] if checks_scopes or endpoint.name in _WITH_CALLER else []
    args += [run_id(value) if name == "runId" else value for name, value in match.params.items()]
    if endpoint.schema is not None:
        args.append(body)
    elif endpoint.name in _BODY_WITHOUT_SCHEMA:
        args.append(body if is_object(body) else {})
    return args + _beside(endpoint, query, headers)


def _beside(endpoint: Endpoint, query: Mapping[str, str], headers: Mapping[str, str]) -> list[Any]:
    beside: list[Any] = []
    if "limit" in endpoint.query:
        beside = [query.get("continuationToken"), page_size(query)]
    if "quarantined" in endpoint.query:
        beside.append({"true": True, "false": False}.get(query.get("quarantined", "")))
    if endpoint.name in {"getArtifact", "getLatestArtifact"}:
        beside.append(headers.get("x-taskcluster-skip-cdn") in {"true", "1"})
    return beside


def to_answer(endpoint: Endpoint, result: Any) -> web.Response:
    """The HTTP answer for what a method returned."""
    if result is None:
        return empty_answer()
    if isinstance(result, Redirect):
        headers = {"Location": result.url, _STORAGE_TYPE: result.storage_type}
        return json_answer({"storageType": result.storage_type, "url": result.url}, 303, headers)
    if isinstance(result, ErrorArtifact):
        return json_answer(
            {"reason": result.reason, "message": result.message}, 424, {_STORAGE_TYPE: "error"}
        )
    if endpoint.full_name == "object.download":
        text = f"See Other. Redirecting to {result}"
        return text_answer(text, "text/plain", 303, {"Location": result})
    return json_answer(result)
