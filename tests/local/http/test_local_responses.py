"""The form of responses: headers, JSON, errors, and the order of the checks of a request."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client import slugid
from taskqueue_client.local import LocalQueue
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Wire

if TYPE_CHECKING:
    from taskqueue_client.testing import TaskFactory

_OBJECTS = "/api/object/v1"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_EXPIRES_AFTER_ITS_TASK = {"storageType": "link", "expires": "2999-01-01T00:00:00Z", "artifact": "y"}
_ALWAYS = {
    "content-type": "application/json; charset=utf-8",
    "cache-control": "no-store no-cache must-revalidate",
    "access-control-allow-origin": "*",
    "access-control-max-age": "900",
    "access-control-allow-methods": "OPTIONS,GET,HEAD,POST,PUT,DELETE,TRACE,CONNECT",
    "access-control-allow-headers": "X-Requested-With,Content-Type,Authorization,Accept,Origin,Cache-Control",
    "access-control-request-method": "*",
    "content-security-policy": "report-uri /__cspreport__;default-src 'none';frame-ancestors 'none';",
    "x-content-type-options": "nosniff",
}


@pytest.mark.parametrize(
    "resource",
    [f"{QUEUE}/ping", f"{QUEUE}/task/{NO_SUCH_TASK}", f"{QUEUE}/task/bad", "/nothing", "/__version__"],
)
def test_every_response_has_the_services_headers(wire: Wire, resource: str) -> None:
    headers = wire.send("GET", resource).headers
    assert {name: headers.get(name) for name in _ALWAYS} == _ALWAYS
    assert headers["etag"].startswith('W/"')
    assert _UUID.fullmatch(headers["x-for-trace-id"])
    assert _UUID.fullmatch(headers["x-for-request-id"])


def test_a_trace_id_is_handed_back(wire: Wire) -> None:
    headers = {"x-taskcluster-trace-id": "trace-1"}
    assert wire.send("GET", f"{QUEUE}/ping", headers=headers).headers["x-for-trace-id"] == "trace-1"


def test_json_is_printed_with_two_spaces(wire: Wire) -> None:
    assert wire.send("GET", f"{QUEUE}/__version__").body == (
        b'{\n  "version": "dev",\n  "commit": "",\n  "source": "",\n  "build": ""\n}'
    )


def test_a_matching_etag_gives_304_without_a_body(wire: Wire) -> None:
    etag = wire.send("GET", f"{QUEUE}/__version__").headers["etag"]
    reply = wire.send("GET", f"{QUEUE}/__version__", headers={"If-None-Match": f'"other", {etag}'})
    assert (reply.status, reply.body) == (304, b"")
    assert reply.headers["etag"] == etag


def test_the_redirect_to_an_object_is_sent_as_express_sends_it(wire: Wire) -> None:
    name = "hello.txt"
    upload = {"projectId": "a-project", "uploadId": slugid()}
    inline = {"dataInline": {"contentType": "text/plain", "objectData": "aGVsbG8="}}
    terms = {**upload, "expires": "2099-01-01T00:00:00.000Z", "proposedUploadMethods": inline}
    assert wire.json("PUT", f"{_OBJECTS}/upload/{name}", terms, key=wire.root).status == 200
    assert wire.json("POST", f"{_OBJECTS}/finish-upload/{name}", upload, key=wire.root).status == 200
    reply = wire.send("GET", f"{_OBJECTS}/download/{name}", key=wire.root)
    assert reply.body.decode() == f"See Other. Redirecting to {reply.headers['location']}"
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["vary"] == "Accept, Accept-Encoding"
    assert "etag" not in reply.headers


def test_an_error_is_never_304(wire: Wire) -> None:
    etag = wire.send("GET", "/nothing").headers["etag"]
    assert wire.send("GET", "/nothing", headers={"If-None-Match": etag}).status == 404


@pytest.fixture
def large(wire: Wire, task_factory: TaskFactory) -> str:
    """The resource of a task whose definition is more than 2 kB."""
    resource = f"{QUEUE}/task/{slugid()}"
    task = task_factory(payload={"text": "x" * 2000})
    assert wire.json("PUT", resource, task, key=wire.root).status == 200
    return resource


def test_large_responses_are_compressed_on_request(wire: Wire, large: str) -> None:
    plain = wire.send("GET", large)
    packed = wire.send("GET", large, headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    refused = wire.send("GET", large, headers={"Accept-Encoding": "gzip;q=0"})
    assert refused.body == plain.body


def test_small_responses_are_not_compressed(wire: Wire) -> None:
    reply = wire.send("GET", f"{QUEUE}/ping", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in reply.headers


def test_head_is_get_without_a_body(wire: Wire) -> None:
    reply = wire.send("HEAD", f"{QUEUE}/__version__")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-length"] == "69"


def test_head_announces_the_length_of_the_plain_body(wire: Wire, large: str) -> None:
    plain = wire.send("GET", large)
    head = wire.send("HEAD", large, headers={"Accept-Encoding": "gzip"})
    assert head.headers["content-length"] == plain.headers["content-length"]
    assert head.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in head.headers


def test_options_names_the_methods_of_a_route(wire: Wire) -> None:
    reply = wire.send("OPTIONS", f"{QUEUE}/task/{NO_SUCH_TASK}")
    assert (reply.status, reply.headers["allow"]) == (200, "GET, HEAD, PUT")
    assert (reply.body, reply.headers["content-type"]) == (b"GET, HEAD, PUT", "text/plain")


@pytest.mark.parametrize(
    ("method", "resource"),
    [
        ("GET", f"{QUEUE}/no/such/route"),
        ("DELETE", f"{QUEUE}/ping"),
        ("POST", f"{QUEUE}/task/{NO_SUCH_TASK}"),
        ("GET", f"{QUEUE}/Ping"),
        ("GET", f"{QUEUE}//ping"),
        ("GET", f"/{QUEUE}/ping"),
        ("GET", f"{QUEUE}/task-queues/prov/type"),
        ("PUT", "/api/object/v1/upload/t/task/0/name"),
        ("OPTIONS", f"{QUEUE}/no/such/route"),
        ("GET", "/api/hooks/v1/ping"),
        ("GET", "/admin/clock"),
        ("DELETE", "/storage/public-bucket/x"),
    ],
)
def test_a_path_without_a_route_is_a_plain_404(wire: Wire, method: str, resource: str) -> None:
    reply = wire.send(method, resource)
    assert (reply.status, reply.json) == (404, {"error": "Not found"})


@pytest.mark.parametrize("path", ["/__version__", "/__heartbeat__", "/__lbheartbeat__"])
@pytest.mark.parametrize("service", ["", "/api/queue/v1", "/api/object/v1", "/api/auth/v1"])
def test_each_service_and_the_process_say_that_they_are_there(wire: Wire, service: str, path: str) -> None:
    assert wire.send("GET", service + path).status == 200


def test_robots_are_turned_away(wire: Wire) -> None:
    assert b"Disallow: /" in wire.send("GET", "/robots.txt").body


@pytest.mark.parametrize("path", ["/__version__", "/__heartbeat__", "/__lbheartbeat__", "/robots.txt"])
def test_endpoints_of_the_process_ignore_the_method_and_what_follows_their_path(
    wire: Wire, path: str
) -> None:
    """Load balancers put a slash at the end, or send POST."""
    expected = wire.send("GET", path).body
    for method, resource in [
        ("GET", f"{path}/"),
        ("GET", f"{path}/below"),
        ("POST", path),
        ("OPTIONS", path),
    ]:
        reply = wire.send(method, resource)
        assert (reply.status, reply.body) == (200, expected)
    assert wire.send("GET", f"{path}x").status == 404


def test_an_error_has_the_services_form(wire: Wire) -> None:
    reply = wire.send("GET", f"{QUEUE}/task/{NO_SUCH_TASK}/status")
    body = reply.json
    time = body["requestInfo"]["time"]
    assert reply.status == 404
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert list(body) == ["code", "message", "requestInfo"]
    assert body["code"] == "ResourceNotFound"
    assert body["message"].endswith(
        "\n\n---\n\n* method:     status\n* errorCode:  ResourceNotFound\n* statusCode: 404\n* time:       "
        + time
    )
    assert body["requestInfo"] == {
        "method": "status",
        "params": {"taskId": NO_SUCH_TASK},
        "payload": {},
        "time": time,
    }


def test_an_errors_payload_has_stored_dates_only_if_the_error_came_after_they_were_read(
    wire: Wire, task_factory: TaskFactory
) -> None:
    task_id = slugid()
    created = datetime.now(UTC).replace(microsecond=120_000)
    day = timedelta(days=1)
    dates = {"created": created, "deadline": created + day, "expires": created + 2 * day}
    stored = {name: f"{date:%Y-%m-%dT%H:%M:%S}.120Z" for name, date in dates.items()}
    given: dict[str, Any] = {name: f"{date:%Y-%m-%d %H:%M:%S}.12+00:00" for name, date in dates.items()}

    def refused(**changes: Any) -> dict[str, Any]:
        definition = {**task_factory(), **given, **changes}
        reply = wire.json(
            "PUT",
            f"{QUEUE}/task/{task_id}",
            {name: value for name, value in definition.items() if value is not None},
            key=wire.root,
        )
        assert reply.status in {400, 409}
        payload = reply.json["requestInfo"]["payload"]
        return {name: payload.get(name) for name in dates}

    definition = {**task_factory(), **stored}
    assert wire.json("PUT", f"{QUEUE}/task/{task_id}", definition, key=wire.root).status == 200
    early = {"created": "2020-01-01 00:00:00Z"}
    assert refused(**early, expires=None) == {**given, **early, "expires": None}
    assert refused(expires=given["created"]) == {**given, "expires": given["created"]}
    assert refused(scopes=["x**"]) == stored
    assert refused(retries=3) == stored


def test_an_errors_payload_has_the_defaults(wire: Wire) -> None:
    reply = wire.json("PUT", f"{QUEUE}/task/{slugid()}", {"taskQueueId": "p/w"}, key=wire.root)
    assert reply.words == (
        "\nSchema Validation Failed!"
        f"\nRejecting Schema: {wire.local.root_url}/schemas/queue/v1/create-task-request.json#"
        "\nErrors:"
        "\n  * data must have required property 'created'"
        "\n  * data must have required property 'deadline'"
        "\n  * data must have required property 'metadata'"
        "\n  * data/payload must be object"
    )
    assert json.dumps(reply.json["requestInfo"]["payload"]) == json.dumps(
        {
            "taskQueueId": "p/w",
            "schedulerId": "-",
            "projectId": "none",
            "dependencies": [],
            "requires": "all-completed",
            "routes": [],
            "priority": "lowest",
            "retries": 5,
            "scopes": [],
            "payload": [],
            "tags": {},
            "extra": {},
        }
    )


_MALFORMED = "{"
_OFF_SCHEMA = '{"reason": "none"}'


@pytest.mark.parametrize(
    ("resource", "body", "content_type", "status", "code"),
    [
        ("/task/bad/runs/x/exception?y=1", _MALFORMED, "application/json", 400, "MalformedPayload"),
        ("/task/bad/runs/x/exception?y=1", _OFF_SCHEMA, "text/plain", 403, "InsufficientScopes"),
    ],
)
def test_the_body_is_parsed_before_scopes_are_checked(
    wire: Wire, resource: str, body: str, content_type: str, status: int, code: str
) -> None:
    reply = wire.json("POST", QUEUE + resource, body, content_type=content_type)
    assert (reply.status, reply.json["code"]) == (status, code)


@pytest.mark.parametrize(
    ("resource", "body", "content_type", "code"),
    [
        ("/task/bad/runs/x/exception?y=1", _OFF_SCHEMA, "text/plain", "InvalidRequestArguments"),
        (f"/task/{NO_SUCH_TASK}/runs/0/exception?y=1", _OFF_SCHEMA, "text/plain", "InvalidRequestArguments"),
        (f"/task/{NO_SUCH_TASK}/runs/0/exception", _OFF_SCHEMA, "text/plain", "MalformedPayload"),
        (f"/task/{NO_SUCH_TASK}/runs/0/exception", _OFF_SCHEMA, "application/json", "InputValidationError"),
        (
            f"/task/{NO_SUCH_TASK}/runs/0/exception",
            '{"reason": "internal-error"}',
            "application/json",
            "ResourceNotFound",
        ),
    ],
)
def test_after_the_scopes_come_url_query_content_type_schema_and_handler(
    wire: Wire, resource: str, body: str, content_type: str, code: str
) -> None:
    reply = wire.json("POST", QUEUE + resource, body, key=wire.root, content_type=content_type)
    assert reply.json["code"] == code


def test_scopes_that_the_body_decides_are_checked_after_the_schema(wire: Wire) -> None:
    bad = wire.json("POST", f"{QUEUE}/claim-work/p/w", {}, key=wire.root.temporary([], signature="x"))
    good = wire.json("POST", f"{QUEUE}/claim-work/p/w", {"workerGroup": "g", "workerId": "i"})
    assert (bad.status, bad.json["code"]) == (400, "InputValidationError")
    assert (good.status, good.json["code"]) == (403, "InsufficientScopes")


def test_an_endpoint_without_scopes_ignores_even_bad_credentials(wire: Wire) -> None:
    assert wire.send("GET", f"{QUEUE}/ping", headers={"Authorization": "Hawk nonsense"}).status == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("unknown=1", "Query-string parameter: unknown is not supported!"),
        ("limit=-1", 'Query-string parameter: limit="-1" does not match expression: /^[0-9]+$/'),
        ("limit=", 'Query-string parameter: limit="" does not match expression: /^[0-9]+$/'),
        ("limit=5%0A", 'Query-string parameter: limit="5\n" does not match expression: /^[0-9]+$/'),
        ("limit=1&limit=2", "Query-string parameter: limit must be a string!"),
        ("continuationToken=", 'Query-string parameter: continuationToken="" does not match expression: /./'),
        (
            "continuationToken=%0D%E2%80%A8%E2%80%A9%0A",
            'Query-string parameter: continuationToken="\r\u2028\u2029\n" does not match expression: /./',
        ),
        ("quarantined=true", "Query-string parameter: quarantined is not supported!"),
    ],
)
def test_a_query_off_its_pattern_is_refused(wire: Wire, query: str, words: str) -> None:
    reply = wire.send("GET", f"{QUEUE}/task-queues?{query}", key=wire.root)
    assert (reply.status, reply.json["code"], reply.words) == (400, "InvalidRequestArguments", words)


def test_a_url_parameter_off_its_pattern_is_named_with_the_pattern(wire: Wire) -> None:
    reply = wire.send("GET", f"{QUEUE}/pending/a%2FB", key=wire.root)
    assert reply.words == (
        "Invalid URL patterns:\nURL parameter 'taskQueueId' given as 'a/B' must match regular expression: "
        r"'/^[a-zA-Z0-9-_]{1,38}\/[a-z]([-a-z0-9]{0,36}[a-z0-9])?$/'"
    )


@pytest.mark.parametrize("run_id", ["9" * 5000, "99999999999999999999", "2147483648"])
def test_a_run_id_of_any_size_is_a_run_that_does_not_exist(wire: Wire, run_id: str) -> None:
    resource = f"{QUEUE}/task/{NO_SUCH_TASK}/runs/{run_id}/artifacts"
    reply = wire.send("GET", resource)
    assert (reply.status, reply.json["code"]) == (404, "ResourceNotFound")


@pytest.mark.parametrize(
    ("verb", "scope", "body", "missing", "pending", "running"),
    [
        ("reclaim", "reclaim-task", {}, 404, [403, 403, 409], 200),
        ("completed", "resolve-task", {}, 404, [409, 403, 409], 200),
        ("failed", "resolve-task", {}, 404, [409, 403, 409], 200),
        ("exception", "resolve-task", {"reason": "internal-error"}, 404, [403, 403, 409], 200),
        ("artifacts/x", "create-artifact", _EXPIRES_AFTER_ITS_TASK, 400, [400, 403, 400], 400),
    ],
)
def test_a_run_id_with_zeros_needs_the_scope_first_as_typed_and_later_as_read(
    wire: Wire,
    task_factory: TaskFactory,
    verb: str,
    scope: str,
    body: dict[str, str],
    missing: int,
    pending: list[int],
    running: int,
) -> None:
    """A missing run is refused before the second check of scopes, and a pending run by some calls, too."""
    task_id = slugid()

    def statuses(task_id: str) -> list[int]:
        """The statuses with the scope of the run id as typed, with that of the number, and with both."""
        scopes = [f"queue:{scope}:{task_id}/00", f"queue:{scope}:{task_id}/0"]
        keys = [wire.root.temporary(each) for each in (scopes[:1], scopes[1:], scopes)]
        resource = f"{QUEUE}/task/{task_id}/runs/00/{verb}"
        return [wire.json("POST", resource, body, key=key).status for key in keys]

    assert statuses(NO_SUCH_TASK) == [missing, 403, missing]
    assert wire.json("PUT", f"{QUEUE}/task/{task_id}", task_factory(), key=wire.root).status == 200
    assert statuses(task_id) == pending
    worker = {"workerGroup": "g", "workerId": "w"}
    assert wire.json("POST", f"{QUEUE}/task/{task_id}/runs/0/claim", worker, key=wire.root).status == 200
    assert statuses(task_id) == [403, 403, running]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "artifacts", "list-artifacts:<taskId>:"),
        ("GET", "artifact-info/x", "list-artifacts:<taskId>:"),
        ("PUT", "artifacts/x", "create-artifact:<taskId>/"),
    ],
)
def test_reading_and_finishing_an_artifact_need_the_scope_only_as_the_run_id_is_typed(
    method: str, path: str, scope: str
) -> None:
    scope = "queue:" + scope.replace("<taskId>", NO_SUCH_TASK)
    with LocalQueue(anonymous_scopes=[]) as local:
        private = Wire(local)
        resource = f"{QUEUE}/task/{NO_SUCH_TASK}/runs/01/{path}"
        for typed, status in ((f"{scope}01", 404), (f"{scope}1", 403)):
            key = private.root.temporary([typed])
            assert private.json(method, resource, {"uploadId": NO_SUCH_TASK}, key=key).status == status


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("raw", ["%zz", "%", "%ff", "a%c3"])
def test_a_parameter_that_is_not_percent_encoded_utf8_gets_a_page(wire: Wire, raw: str, method: str) -> None:
    reply = wire.send(method, f"{QUEUE}/task/{raw}")
    assert (reply.status, reply.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert b"<pre>Bad Request</pre>" in reply.body


def test_a_request_that_is_not_http_gets_400_in_the_form_of_an_error(wire: Wire) -> None:
    reply = wire.raw(b"NONSENSE\r\n\r\n")
    assert (reply.status, list(reply.json)) == (400, ["code", "message", "requestInfo"])


def test_an_overlong_header_gets_400_in_the_form_of_an_error(wire: Wire) -> None:
    reply = wire.send("GET", f"{QUEUE}/ping", headers={"X": "y" * 20_000})
    assert (reply.status, list(reply.json)) == (400, ["code", "message", "requestInfo"])
