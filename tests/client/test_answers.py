"""Whatever comes back, the caller gets the answer or an error that says what happened."""

from __future__ import annotations

import pickle
from types import NoneType
from typing import Any

import msgspec
import pytest

from taskqueue_client import errors
from taskqueue_client._call import Call
from tests.client.scripted import Say, ScriptedServer, say

STATUS = Call("status", "GET", "/task/x/status", dict[str, Any])
TRAILER = "\n\n---\n\n* method:     status\n* errorCode:  X\n* statusCode: 400\n* time:       2026"

CODES = {
    "MalformedPayload": (400, errors.MalformedRequestBody),
    "InvalidRequestArguments": (400, errors.InvalidRequestArguments),
    "InputValidationError": (400, errors.InputValidationError),
    "InputError": (400, errors.InputError),
    "AuthenticationFailed": (401, errors.AuthenticationFailed),
    "InsufficientScopes": (403, errors.InsufficientScopes),
    "ResourceNotFound": (404, errors.ResourceNotFound),
    "RequestConflict": (409, errors.RequestConflict),
    "ResourceExpired": (410, errors.ResourceExpired),
    "InputTooLarge": (413, errors.InputTooLarge),
    "InternalServerError": (500, errors.InternalServerError),
    "NoMatchingMethod": (406, errors.NoMatchingMethod),
    "NoMatchingBackend": (400, errors.NoMatchingBackend),
}


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_class(client: Any, server: ScriptedServer, code: str) -> None:
    status, kind = CODES[code]
    info = {"method": "status", "params": {"taskId": "x"}, "payload": {}, "time": "2026"}
    server.otherwise = say({"code": code, "message": "It says why." + TRAILER, "requestInfo": info}, status)
    with pytest.raises(errors.ApiError) as caught:
        client.with_options(attempts=1).send(STATUS)
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.message) == (status, code, "It says why.")
    assert error.request_info == info
    assert error.endpoint == "status"
    assert error.attempted.method == "GET"
    assert error.attempted.url == f"{server.root_url}/api/queue/v1/task/x/status"
    assert str(error).startswith(f"status (GET {server.root_url}/api/queue/v1/task/x/status, sent once in ")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (say({"error": "Not found"}, 404), errors.NotFound, "Not found"),
        (say({"reason": "too-large-file-on-worker", "message": "m"}, 424), errors.ErrorArtifact, "m"),
        (
            Say(502, b"<html><style>p {}</style><h1>502 Bad\nGateway</h1></html>"),
            errors.ServerError,
            "502 Bad Gateway",
        ),
        (Say(503, b""), errors.ServerError, "an empty answer with status 503"),
        (Say(418, b"\xff\xfe"), errors.ApiError, "\ufffd"),
        (Say(403, b"[1]"), errors.InsufficientScopes, "[1]"),
        (say({"code": 7, "message": 9}, 400), errors.BadRequest, '{"code":7,"message":9}'),
        (Say(413, b"x" * 10_000), errors.InputTooLarge, "xxx"),
        (Say(302, b"", {"Location": "https://login.example.com"}), errors.ApiError, "an empty answer"),
    ],
)
def test_an_answer_that_no_service_gave_is_readable_too(
    client: Any, server: ScriptedServer, answer: Say, kind: type[errors.ApiError], words: str
) -> None:
    server.otherwise = answer
    with pytest.raises(errors.ApiError) as caught:
        client.with_options(attempts=1).send(STATUS)
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert len(str(caught.value)) < 1000


def test_a_reason_for_an_error_artifact_is_at_hand(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({"reason": "too-large-file-on-worker", "message": "8 GB"}, 424)
    with pytest.raises(errors.ErrorArtifact) as caught:
        client.send(STATUS)
    assert caught.value.reason == "too-large-file-on-worker"


@pytest.mark.parametrize(
    ("block", "missing"),
    [
        ("queue:get-task:x", ["queue:get-task:x"]),
        ('{\n "AnyOf": [\n "a", {"AllOf": ["b", "c"]}, "a"]\n}', ["a", "b", "c"]),
        ('{"AllOf": ["a"]}', ["a"]),
        ('"quoted"', ["quoted"]),
    ],
)
def test_a_refusal_lists_the_missing_scopes(
    client: Any, server: ScriptedServer, block: str, missing: list[str]
) -> None:
    message = f"Client ID me is missing:\n\n```\n{block}\n```\n\nIn all:\n\n```\nother\n```{TRAILER}"
    server.otherwise = say({"code": "InsufficientScopes", "message": message}, 403)
    with pytest.raises(errors.InsufficientScopes) as caught:
        client.send(STATUS)
    assert caught.value.missing_scopes == missing


def test_a_login_page_is_not_taken_for_an_answer(client: Any, server: ScriptedServer) -> None:
    server.otherwise = Say(200, b"<html>please log in</html>", {"Content-Type": "text/html"})
    with pytest.raises(errors.UnreadableAnswer, match="HTTP 200"):
        client.send(STATUS)


def test_an_empty_answer_is_none_where_the_endpoint_has_none(client: Any, server: ScriptedServer) -> None:
    server.otherwise = Say(204, b"")
    assert client.send(Call("finishArtifact", "PUT", "/x", NoneType, body={})) is None


def test_a_redirect_is_an_answer_where_the_endpoint_says_so(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({"url": "http://elsewhere"}, 303, Location="http://elsewhere")
    call = Call("getArtifact", "GET", "/x", dict[str, Any], accepts=frozenset({303}))
    assert client.send(call) == {"url": "http://elsewhere"}
    assert len(server.received) == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.of_answer(errors.Attempted("a", "GET", "u"), 403, b'{"code": "InsufficientScopes"}'),
        errors.ConnectionFailed(errors.Attempted("a", "GET", "u", 3), "why"),
        errors.UnreadableAnswer(errors.Attempted("a", "GET", "u"), 200, "why"),
        errors.InvalidArgument("run_id", -1, "0 or more"),
        errors.InvalidDefinition([errors.Problem("$.retries", 99, "at most 49")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_attempts_counted_late_travel_too(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({}, 500)
    with pytest.raises(errors.ServerError) as caught:
        client.with_options(attempts=3).send(STATUS)
    assert pickle.loads(pickle.dumps(caught.value)).attempts == 3


def test_what_json_cannot_hold_is_refused_before_any_request(client: Any, server: ScriptedServer) -> None:
    with pytest.raises(errors.InvalidArgument, match="JSON"):
        client.send(Call("createTask", "PUT", "/x", dict[str, Any], body={"payload": object()}))
    assert server.received == []


def test_the_recorded_errors_of_the_service_are_read(contract: Any) -> None:
    recorded = sorted(contract.glob("recorded/error.*.json"))
    assert recorded
    for path in recorded:
        answer = msgspec.json.decode(path.read_bytes())["response"]
        error = errors.of_answer(
            errors.Attempted("x", "GET", "u"), answer["status"], msgspec.json.encode(answer["body"])
        )
        code = answer["body"].get("code")
        assert error.code == code
        assert code is None or type(error) is CODES[code][1]
        assert "---" not in error.message
        if isinstance(error, errors.InsufficientScopes):
            assert error.missing_scopes
