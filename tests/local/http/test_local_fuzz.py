"""Whatever is sent: never a 500, never an inside view, never a change that was not asked for."""

from __future__ import annotations

import json
import socket
import string
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskqueue_client.local.endpoints import ENDPOINTS, Endpoint
from taskqueue_client.local.request_schemas import REQUEST_SCHEMAS
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskqueue_client.local import LocalQueue

_FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_NOT_WAITING = [endpoint for endpoint in ENDPOINTS if endpoint.name != "claimWork"]

_good = {
    "taskId": NO_SUCH_TASK,
    "taskGroupId": NO_SUCH_TASK,
    "taskQueueId": "p%2Fw",
    "runId": "0",
    "name": "public%2Fx",
    "provisionerId": "p",
    "workerType": "w",
    "workerGroup": "g",
    "workerId": "i",
}
_odd = st.one_of(
    st.sampled_from(
        ["", "%", "%00", "%ff", "..", "%2F", "a" * 5000, "1" * 400, "-1", "0x1", "%0a", "*", ";", "+"]
    ),
    st.text(string.printable.replace(" ", "").translate(dict.fromkeys(range(33))), max_size=30),
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def _for_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the schema nearly takes, and some that it does not."""
    if "oneOf" in schema:
        return st.one_of(*map(_for_schema, schema["oneOf"])) | _json
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | _json
    kind = "date-time" if schema.get("format") == "date-time" else schema.get("type", "")
    return _KINDS[kind](schema) | _json


def _object(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    known = {name: _for_schema(each) for name, each in schema.get("properties", {}).items()}
    return st.fixed_dictionaries({}, optional={**known, "unknown": _json})


_KINDS: dict[str, Callable[[dict[str, Any]], st.SearchStrategy[Any]]] = {
    "object": _object,
    "array": lambda schema: st.lists(_for_schema(schema.get("items", {})), max_size=3),
    "integer": lambda _: st.integers() | st.integers(0, 40),
    "string": lambda _: st.sampled_from(["a", "p/w", NO_SUCH_TASK, "https://x.example/y", "x" * 300]),
    "date-time": lambda _: st.sampled_from(
        ["2026-11-21T08:59:12Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]
    ),
    "boolean": lambda _: st.booleans(),
    "": lambda _: st.none(),
}


@st.composite
def _paths(draw: st.DrawFn, endpoint: Endpoint) -> str:
    path = f"/api/{endpoint.service}/v1{endpoint.route}"
    for name in endpoint.parameters:
        path = path.replace(f"<{name}>", draw(st.just(_good[name]) | _odd))
    query = draw(
        st.none()
        | st.sampled_from(["limit=0", "limit=3", "limit=x", "continuationToken=x", "a=%ff", "&=&", "bewit=x"])
    )
    return path if query is None else f"{path}?{query}"


@st.composite
def _calls(draw: st.DrawFn) -> tuple[Endpoint, str, bytes, str]:
    endpoint = draw(st.sampled_from(_NOT_WAITING))
    schema = REQUEST_SCHEMAS[endpoint.schema] if endpoint.schema else {}
    body = draw(_for_schema(schema).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20))
    content_type = draw(
        st.sampled_from(["application/json", "application/json; charset=utf-16", "text/plain", ""])
    )
    return endpoint, draw(_paths(endpoint)), body, content_type


@_FUZZ
@given(call=_calls(), signed=st.booleans())
def test_no_call_of_an_endpoint_makes_the_server_fail(
    wire: Wire,
    call: tuple[Endpoint, str, bytes, str],
    signed: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    endpoint, path, body, content_type = call
    headers = {"Content-Type": content_type} if content_type else {}
    before = _changes(wire.local)
    reply = wire.send(endpoint.method, path, body=body, headers=headers, key=wire.root if signed else None)
    assert reply.status < 500, reply.body
    if reply.status >= 400 and reply.status not in {404, 424}:
        assert list(reply.json) == ["code", "message", "requestInfo"]
    if reply.status in {400, 401, 403, 404} and endpoint.name != "createTask":  # which makes the group first
        assert _changes(wire.local) == before


def _changes(local: LocalQueue) -> int:
    """How many rows have been written so far."""
    reports: Any = local.engine.report_completed
    return local.call(lambda: int(reports.__self__.core.store.connection.total_changes))


_header_text = st.text(string.printable.translate(dict.fromkeys(b"\r\n\x0b\x0c")), max_size=60)


@_FUZZ
@given(
    name=st.sampled_from(
        [
            "Authorization",
            "Host",
            "Content-Encoding",
            "Accept-Encoding",
            "If-None-Match",
            "Expect",
            "x-forwarded-port",
            "x-taskcluster-trace-id",
            "Content-Type",
            "Cookie",
        ]
    ),
    value=_header_text | _header_text.map(lambda text: f'Hawk id="{text}"') | st.just("\udcff"),
)
def test_no_header_makes_the_server_fail(wire: Wire, name: str, value: str) -> None:
    reply = wire.send("GET", f"{QUEUE}/task-queues", headers={name: value.strip()})
    assert reply.status < 500, reply.body
    wire.send(
        "POST",
        f"{QUEUE}/tasks",
        body=b"{}",
        headers={"Content-Type": "application/json", name: value.strip()},
    )


@_FUZZ
@given(st.binary(max_size=200))
def test_no_bytes_make_the_server_fail(wire: Wire, data: bytes) -> None:
    host, _, port = wire.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert not connection.recv(100).startswith(b"HTTP/1.1 5")
    assert wire.send("GET", f"{QUEUE}/ping").status == 200


@_FUZZ
@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "DELETE", "POST"]),
    path=st.lists(_odd | st.sampled_from(["public-bucket", "private-bucket", "etc"]), max_size=4).map(
        "/".join
    ),
)
def test_no_storage_address_makes_the_server_fail(wire: Wire, method: str, path: str) -> None:
    assert wire.send(method, f"/storage/{path}", body=b"x", headers={"Range": "bytes=5-1"}).status < 500
