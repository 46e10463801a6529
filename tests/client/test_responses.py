"""The caller gets the response, or an error that says what happened, whatever a server sends."""

from __future__ import annotations

import pickle
import threading
from types import NoneType
from typing import Any

import msgspec
import pytest

from taskqueue_client import errors
from taskqueue_client._protocol.api_responses import Response, error_of_response
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import is_conflict
from taskqueue_client.models import TaskStatusResponse
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
    assert str(error).startswith(
        f"status (GET {server.root_url}/api/queue/v1/task/x/status, attempted once in "
    )


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        (say({"error": "Not found"}, 404), errors.NotFound, "Not found"),
        (say({"reason": "too-large-file-on-worker", "message": "m"}, 424), errors.ErrorArtifact, "m"),
        (
            Say(502, b"<html><style>p {}</style><h1>502 Bad\nGateway</h1></html>"),
            errors.ServerError,
            "502 Bad Gateway",
        ),
        (Say(503, b""), errors.ServerError, "empty response with status 503"),
        (Say(418, b"\xff\xfe"), errors.ApiError, "\ufffd"),
        (Say(403, b"[1]"), errors.InsufficientScopes, "[1]"),
        (say({"code": 7, "message": 9}, 400), errors.BadRequest, '{"code":7,"message":9}'),
        (Say(413, b"x" * 10_000), errors.InputTooLarge, "xxx"),
        (
            Say(301, b"moved", {"Location": "https://tc.example.com/api?secret"}),
            errors.ApiError,
            "redirected to https://tc.example.com/api, but calls do not follow redirects; check the root URL",
        ),
        (Say(304, b""), errors.ApiError, "empty response with status 304"),
    ],
)
def test_a_response_that_no_service_sent_is_readable_too(
    client: Any, server: ScriptedServer, response: Say, kind: type[errors.ApiError], words: str
) -> None:
    server.otherwise = response
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
    assert str(caught.value).endswith(": HTTP 424, error artifact (too-large-file-on-worker): 8 GB")


@pytest.mark.parametrize(
    ("block", "missing", "words"),
    [
        ("queue:get-task:x", ["queue:get-task:x"], "missing queue:get-task:x"),
        (
            '{\n "AnyOf": [\n "a", {"AllOf": ["b", "c"]}, "a"]\n}',
            ["a", "b", "c"],
            "missing one of: a, (b and c), a",
        ),
        ('{"AllOf": ["a", {"AnyOf": ["b", "c"]}]}', ["a", "b", "c"], "missing a and one of: b, c"),
        ('{"AllOf": ["a"]}', ["a"], "missing a"),
        ('"quoted"', ["quoted"], "missing quoted"),
        ('{"AllOf": 5}', [], '{"AllOf": 5}'),
        ('{"AnyOf": ["a", 1]}', [], "Client ID me"),
        ("[]", [], "Client ID me"),
        ("{}", [], "Client ID me"),
    ],
)
def test_a_refusal_lists_the_missing_scopes_and_alternatives_as_alternatives(
    client: Any, server: ScriptedServer, block: str, missing: list[str], words: str
) -> None:
    message = f"Client ID me is missing:\n\n```\n{block}\n```\n\nIn all:\n\n```\nother\n```{TRAILER}"
    server.otherwise = say({"code": "InsufficientScopes", "message": message}, 403)
    with pytest.raises(errors.InsufficientScopes) as caught:
        client.send(STATUS)
    assert caught.value.missing_scopes == missing
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (
            "Client ID a/b does not have sufficient scopes and is missing the following scopes:",
            "client 'a/b' is missing x",
        ),
        (
            "This request requires Taskcluster credentials that satisfy the following scope expression:",
            "the request had no credentials; missing x",
        ),
        ("Another text:", "missing x"),
    ],
)
def test_a_refusal_names_the_client_that_lacks_scopes(
    client: Any, server: ScriptedServer, begins: str, words: str
) -> None:
    server.otherwise = say({"code": "InsufficientScopes", "message": f"{begins}\n\n```\nx\n```"}, 403)
    with pytest.raises(errors.InsufficientScopes) as caught:
        client.send(STATUS)
    assert str(caught.value).endswith(f": HTTP 403 InsufficientScopes: {words}")


FINISH = Call("finishArtifact", "PUT", "/x", NoneType, body={})


@pytest.mark.parametrize("call", [STATUS, FINISH])
def test_a_login_page_is_not_taken_for_a_response(
    client: Any, server: ScriptedServer, call: Call[Any]
) -> None:
    server.otherwise = Say(200, b"<html>please log in</html>", {"Content-Type": "text/html"})
    with pytest.raises(errors.UnreadableResponse, match=r"HTTP 200 .* it is not JSON: please log in$"):
        client.send(call)


@pytest.mark.parametrize(
    "body",
    [b'{"credentials": "a-secret', b' ["a-secret', b"<a-secret>", b'\xef\xbb\xbf{"a-secret', b'"a-secret'],
)
def test_an_unreadable_response_that_may_be_json_is_not_shown(
    client: Any, server: ScriptedServer, body: bytes
) -> None:
    server.otherwise = Say(200, body, {"Content-Length": str(len(body))})
    with pytest.raises(errors.UnreadableResponse) as caught:
        client.send(STATUS)
    assert "a-secret" not in str(caught.value)
    assert not str(caught.value).endswith(": ")


@pytest.mark.parametrize("response", [Say(204, b""), Say(200, b""), say({})])
def test_an_empty_response_is_none_where_the_endpoint_has_none(
    client: Any, server: ScriptedServer, response: Say
) -> None:
    server.otherwise = response
    assert client.send(FINISH) is None


@pytest.mark.parametrize("returns", [dict[str, Any], TaskStatusResponse])
def test_an_empty_response_is_unreadable_where_the_endpoint_returns_something(
    client: Any, server: ScriptedServer, returns: Any
) -> None:
    server.otherwise = Say(204, b"")
    with pytest.raises(errors.UnreadableResponse, match="HTTP 204"):
        client.send(Call("task", "GET", "/x", returns))


def test_a_redirect_is_a_response_where_the_endpoint_says_so(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({"url": "http://elsewhere"}, 303, Location="http://elsewhere")
    call = Call("getArtifact", "GET", "/x", dict[str, Any], accepts=frozenset({303}))
    assert client.send(call) == {"url": "http://elsewhere"}
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b'{"code": "RequestConflict"}', True), (b'{"error": "policy"}', False), (b"<html>", False)],
)
def test_only_a_409_with_a_code_is_a_refusal_of_the_queue(body: bytes, *, expected: bool) -> None:
    error = error_of_response(errors.Attempted("a", "GET", "u"), Response(409, {}, body, "http://p:1"), 0.0)
    assert type(error) is errors.RequestConflict
    assert is_conflict(error) is expected
    assert ("the proxy http://p:1 may have responded" in error.message) is not expected


class WithTwoArguments(Exception):
    """An error that cannot be unpickled, which breaks process pools: pickle calls it with one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


@pytest.mark.parametrize(
    "error",
    [
        error_of_response(
            errors.Attempted("a", "GET", "u"), Response(403, {}, b'{"code": "InsufficientScopes"}'), 0.0
        ),
        errors.ConnectionFailed(errors.Attempted("a", "GET", "u", 3), "why"),
        errors.UnreadableResponse(errors.Attempted("a", "GET", "u"), 200, "why"),
        errors.InvalidArgument("run_id", -1, "0 or more"),
        errors.InvalidDefinition([errors.Problem("$.retries", 99, "at most 49")]),
        errors.InvalidArgument("to", threading.Lock(), "a path"),
        errors.InvalidDefinition([errors.Problem("$.payload", threading.Lock(), "an object")]),
        errors.InvalidArgument("to", WithTwoArguments("one", "two"), "a path"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error: Exception) -> None:
    error.__notes__ = ["while the fleet was restarted"]  # not added: the test may run again in this process
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__notes__ == ["while the fleet was restarted"]


def test_attempts_counted_late_travel_too(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({}, 500)
    with pytest.raises(errors.ServerError) as caught:
        client.with_options(attempts=3).send(STATUS)
    assert pickle.loads(pickle.dumps(caught.value)).attempts == 3


def test_values_that_json_cannot_hold_are_refused_before_any_request(
    client: Any, server: ScriptedServer
) -> None:
    with pytest.raises(errors.InvalidArgument, match="JSON"):
        client.send(Call("createTask", "PUT", "/x", dict[str, Any], body={"payload": object()}))
    assert server.received == []


class Name(str):
    """A subclass of str, such as those of template libraries."""

    __slots__ = ()


def test_text_of_a_subclass_is_sent_as_text(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({})
    client.send(Call("createTask", "PUT", "/x", dict[str, Any], body={"name": Name("build")}))
    assert server.received[0].body == b'{"name":"build"}'


def test_the_recorded_errors_of_the_service_are_read(contract: Any) -> None:
    recorded = sorted(contract.glob("recorded/error.*.json"))
    assert recorded
    for path in recorded:
        response = msgspec.json.decode(path.read_bytes())["response"]
        read = Response(response["status"], {}, msgspec.json.encode(response["body"]))
        error = error_of_response(errors.Attempted("x", "GET", "u"), read, 0.0)
        code = response["body"].get("code")
        assert error.code == code
        assert code is None or type(error) is CODES[code][1]
        assert "---" not in error.message
        if isinstance(error, errors.InsufficientScopes):
            assert error.missing_scopes


def test_a_body_over_ten_mebibytes_is_refused_before_it_is_sent(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({})
    call = Call("createTask", "PUT", "/x", dict[str, Any], body={"payload": "x" * (10 * 1024 * 1024)})
    with pytest.raises(errors.InvalidArgument) as caught:
        client.send(call)
    words = "body: the request body of createTask has 10,485,774 bytes as JSON; expected at most 10,485,760"
    assert str(caught.value) == words
    assert server.received == []


@pytest.mark.filterwarnings(
    "ignore:Sending a large body:ResourceWarning"
)  # aiohttp's warning, over a ClientSession
def test_a_body_of_ten_mebibytes_is_sent(client: Any, server: ScriptedServer) -> None:
    server.otherwise = say({})
    body = {"payload": "x" * (10 * 1024 * 1024 - 14)}
    client.send(Call("createTask", "PUT", "/x", dict[str, Any], body=body))
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [200, 204])
def test_an_empty_response_in_place_of_an_object_is_called_empty(
    client: Any, server: ScriptedServer, status: int
) -> None:
    server.otherwise = Say(status, b"")
    words = f"HTTP {status} with an unreadable response: it is empty"
    with pytest.raises(errors.UnreadableResponse, match=words):
        client.status("fN1SbArXTPSVFNUvaOlinQ")
