"""The functions of `calls` against the services' references."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client import calls
from taskqueue_client.errors import InvalidArgument
from tests.protocol.calls_contract import (
    BY_ID,
    ENTRIES,
    OBJECT_FUNCTIONS,
    QUEUE_ENTRIES,
    SLUGID,
    VALUES,
    call_with,
    function_of,
    label,
    needs_contract,
    official,
    snake,
    validator,
)

ROOT_URL = "https://tc.example.com"

each_endpoint = pytest.mark.parametrize("entry", ENTRIES, ids=label)


@needs_contract
def test_every_endpoint_of_the_queue_is_there() -> None:
    assert len(QUEUE_ENTRIES) == 49
    assert all(callable(function_of(entry)) for entry in ENTRIES)
    assert len(ENTRIES) == 49 + len(OBJECT_FUNCTIONS)


@needs_contract
@each_endpoint
def test_name_service_method_and_route_are_those_of_the_reference(entry: dict[str, Any]) -> None:
    call = call_with(function_of(entry), BY_ID)
    assert (call.endpoint, call.service) == (label(entry), entry["service"])
    assert call.method == entry["method"].upper()
    assert re.fullmatch(re.sub(r"<\w+>", "[^/]+", entry["route"]), call.path)


@needs_contract
@each_endpoint
@pytest.mark.parametrize("values", [BY_ID, VALUES], ids=["task queue id", "pair"])
def test_the_official_client_asks_for_the_same_url(entry: dict[str, Any], values: dict[str, Any]) -> None:
    call = call_with(function_of(entry), values)
    client = {"queue": official.Queue, "object": official.Object}[entry["service"]]
    arguments: dict[str, Any] = {"params": {name: str(BY_ID[snake(name)]) for name in entry["args"]}}
    if "input" in entry:
        arguments["payload"] = {}
    expected = client({"rootUrl": ROOT_URL}).buildUrl(entry["name"], **arguments)
    assert f"{ROOT_URL}/api/{call.service}/v1{call.path}" == expected


@needs_contract
@each_endpoint
def test_every_query_parameter_can_be_given_and_no_other_is_sent(entry: dict[str, Any]) -> None:
    function = function_of(entry)
    assert set(call_with(function, BY_ID).query) == set(entry.get("query", []))
    optional = {"continuation_token", "limit", "quarantined"}
    bare = {name: value for name, value in BY_ID.items() if name not in optional}
    assert call_with(function, bare).query == {}


@needs_contract
@each_endpoint
def test_every_url_parameter_has_its_snake_case_name(entry: dict[str, Any]) -> None:
    names = {snake(name) for name in entry["args"]}
    assert names <= set(inspect.signature(function_of(entry)).parameters)


@needs_contract
@each_endpoint
def test_the_body_is_on_the_endpoints_schema(entry: dict[str, Any]) -> None:
    body = call_with(function_of(entry), BY_ID).body
    if "input" not in entry:
        assert body is None
    else:
        validator(entry["input"]).validate(body)


def _scopes_of(expression: Any) -> set[str]:
    """The scopes of an expression, without the names of their parameters."""
    if isinstance(expression, str):
        return {re.sub(r"<\w+>", "<>", expression.replace("<taskQueueId>", "<provisionerId>/<workerType>"))}
    if "each" in expression:
        return _scopes_of(expression["each"])
    return {scope for parts in expression.values() for part in parts for scope in _scopes_of(part)}


@needs_contract
@each_endpoint
def test_every_scope_of_the_reference_is_in_the_documentation(entry: dict[str, Any]) -> None:
    text = inspect.getdoc(function_of(entry)) or ""
    text = re.sub("<(task_queue_id|taskQueueId)>", "<>/<>", text).replace("#expires`", "#<>`")
    documented = set(re.findall("`([a-z]+:.*?)`", re.sub(r"<\w+>", "<>", text.partition("Scopes:")[2])))
    own_scopes_of_a_task = "<>"
    assert documented == _scopes_of(entry.get("scopes") or {"AllOf": []}) - {own_scopes_of_a_task}


@pytest.mark.parametrize("name", ["currentScopes", "testAuthenticate", "testAuthenticateGet"])
def test_the_auth_services_endpoints_are_those_of_the_official_client(name: str) -> None:
    client = official.Auth({"rootUrl": ROOT_URL})
    call = call_with(getattr(calls, snake(name)), VALUES)
    assert (call.endpoint, call.service) == (f"auth.{name}", "auth")
    assert call.method.lower() == client.funcinfo[name]["method"]
    payload: dict[str, Any] = {"payload": {}} if "input" in client.funcinfo[name] else {}
    assert f"{ROOT_URL}/api/auth/v1{call.path}" == client.buildUrl(name, **payload)


def test_the_counts_of_several_task_queues_are_requested_as_by_the_official_client() -> None:
    """The recorded reference is older than this endpoint."""
    client = official.Queue({"rootUrl": ROOT_URL})
    call = calls.task_queue_counts_batch(["prov/a", "prov/b"])
    assert (call.endpoint, call.service) == ("taskQueueCountsBatch", "queue")
    assert call.method.lower() == client.funcinfo["taskQueueCountsBatch"]["method"]
    assert f"{ROOT_URL}/api/queue/v1{call.path}" == client.buildUrl("taskQueueCountsBatch", payload={})
    assert call.body == {"taskQueueIds": ["prov/a", "prov/b"]}


def test_a_wrong_task_queue_among_several_is_refused_before_the_call() -> None:
    with pytest.raises(InvalidArgument, match="no-slash"):
        calls.task_queue_counts_batch(["prov/a", "no-slash"])


def test_test_authenticate_sends_both_lists_of_scopes() -> None:
    call = calls.test_authenticate(client_scopes=("a", "b"), required_scopes=["a"])
    assert call.body == {"clientScopes": ["a", "b"], "requiredScopes": ["a"]}


PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1)


@settings(deadline=None)
@given(PRINTABLE.filter(lambda name: name not in {".", ".."}))
def test_any_artifact_name_is_encoded_as_the_official_client_does(name: str) -> None:
    call = calls.get_artifact(SLUGID, 0, name)
    client = official.Queue({"rootUrl": ROOT_URL})
    assert f"{ROOT_URL}/api/queue/v1{call.path}" == client.buildUrl("getArtifact", SLUGID, 0, name)


@pytest.mark.parametrize(("name", "encoded"), [(".", "%2E"), ("..", "%2E%2E"), ("a/..", "a%2F..")])
def test_a_name_of_dots_is_not_a_step_up_the_path(name: str, encoded: str) -> None:
    assert calls.get_artifact(SLUGID, 0, name).path.endswith(f"/artifacts/{encoded}")


def test_each_function_is_named_like_its_endpoint() -> None:
    functions = {name: each for name in calls.__all__ if inspect.isfunction(each := getattr(calls, name))}
    described = {
        name: call_with(each, BY_ID).endpoint for name, each in functions.items() if name[:5] != "iter_"
    }
    objects = {f"object.{endpoint}": name for endpoint, name in OBJECT_FUNCTIONS.items()}
    assert len(described) == 50 + len(OBJECT_FUNCTIONS) + 3
    for name, endpoint in described.items():
        assert name == objects.get(endpoint, snake(endpoint.removeprefix("auth.")))
