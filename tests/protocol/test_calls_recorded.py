"""The recorded exchanges with the real Queue: each request is made again, each response is decoded."""

from __future__ import annotations

import json
import re
from datetime import datetime
from types import NoneType
from typing import Any, cast

import msgspec
import pytest

from taskqueue_client._protocol.conversation import Call
from tests.protocol.calls_contract import ENTRIES, call_with, function_of, needs_contract, recorded, snake

ENDPOINTS = {(entry["service"], entry["name"]): entry for entry in ENTRIES}


def _entry_of(exchange: dict[str, Any]) -> dict[str, Any] | None:
    service, _, name = exchange["endpoint"].rpartition(".")
    return ENDPOINTS.get((service or "queue", name))


EXCHANGES = [(stem, exchange) for stem, exchange in recorded() if _entry_of(exchange) is not None]

each_exchange = pytest.mark.parametrize(
    "exchange", [exchange for _, exchange in EXCHANGES], ids=[stem for stem, _ in EXCHANGES]
)


def _call_of(exchange: dict[str, Any]) -> Call[Any]:
    """Return the call that makes the request."""
    entry = _entry_of(exchange)
    assert entry is not None
    path, _, query = exchange["request"]["path"].partition("?")
    route = re.fullmatch(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", entry["route"]), path.split("/v1", 1)[1])
    assert route is not None
    body = exchange["request"].get("body")
    values: dict[str, Any] = {
        **dict(part.split("=") for part in query.split("&") if part),
        **{key: value.replace("%2F", "/") for key, value in route.groupdict().items()},
        **(body or {}),
    }
    named = {snake(key): value for key, value in values.items()}
    return call_with(function_of(entry), {"definition": body, "request": body} | _with_types(named))


def _with_types(named: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: int(named[key]) for key in ("run_id", "limit") if key in named}
    flags = {key: named[key] == "true" for key in ("quarantined",) if key in named}
    return named | numbers | flags


@needs_contract
@each_exchange
def test_a_recorded_request_is_made_again_from_its_values(exchange: dict[str, Any]) -> None:
    call = _call_of(exchange)
    query = "&".join(f"{key}={value}" for key, value in call.query.items())
    path = f"/api/{call.service}/v1{call.path}" + (f"?{query}" if query else "")
    request = exchange["request"]
    assert (call.method, path) == (request["method"], request["path"])
    assert json.loads(json.dumps(call.body)) == request.get("body")


@needs_contract
@each_exchange
def test_a_recorded_response_is_decoded_without_loss(exchange: dict[str, Any]) -> None:
    call, response = _call_of(exchange), exchange["response"]
    if response["status"] >= 400:
        assert response["status"] not in call.accepts
        return
    assert response["status"] in call.accepts
    if call.returns is NoneType:
        assert not response.get("body")
    elif call.endpoint == "object.download":
        assert call.returns(response["headers"]["location"]).url == response["headers"]["location"]
    else:
        decoded = msgspec.json.decode(msgspec.json.encode(response["body"]), type=call.returns)
        _assert_contains(msgspec.json.decode(msgspec.json.encode(decoded)), response["body"])


def _assert_contains(ours: Any, theirs: object) -> None:
    """Every value of `theirs` is in `ours`; times may be written in another way."""
    if isinstance(theirs, dict):
        for key, value in cast("dict[str, object]", theirs).items():
            _assert_contains(ours[key], value)
    elif isinstance(theirs, list):
        for one, other in zip(ours, cast("list[object]", theirs), strict=True):
            _assert_contains(one, other)
    else:
        assert ours == theirs or datetime.fromisoformat(ours) == datetime.fromisoformat(str(theirs))
