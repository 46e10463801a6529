"""Request bodies: which are accepted, and the errors for others."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import socket
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client import slugid
from taskqueue_client.local.http.request_bodies import read_body
from taskqueue_client.local.http.schema_check import FORMATS, compile_schema
from taskqueue_client.local.javascript_values import is_list, is_object
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.local.request_schemas import REQUEST_SCHEMAS
from tests.local.contract_schemas import violations
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Wire, little_memory

if TYPE_CHECKING:
    from pathlib import Path

    from taskqueue_client.testing import TaskFactory

_EXCEPTION = f"{QUEUE}/task/{NO_SUCH_TASK}/runs/0/exception"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"a":', "Unexpected end of JSON input"),
        ('{"reason": NaN}', None),
        ("{'reason': 1}", None),
        ('{"reason": "\\ud800"}', None),
        ('{"reason": "a\\u0000"}', "a string holds the character NUL"),
        ("[" * 100_000, None),
    ],
)
def test_a_body_that_is_not_json_is_malformed(wire: Wire, body: str, words: str | None) -> None:
    reply = wire.json("POST", _EXCEPTION, body, key=wire.root)
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")
    assert (
        reply.words == f"Failed to parse JSON: {words}"
        if words
        else reply.words.startswith("Failed to parse JSON: ")
    )
    assert reply.json["requestInfo"]["payload"] == body


def test_a_lone_surrogate_that_utf_7_spells_is_malformed(wire: Wire) -> None:
    headers = {"Content-Type": "application/json; charset=utf-7"}
    reply = wire.send("POST", _EXCEPTION, body=b'{"reason": "+2AA-"}', headers=headers, key=wire.root)
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")
    assert reply.words == "Failed to parse JSON: a string contains a lone surrogate"


def test_a_backslash_before_u0000_is_not_a_nul(wire: Wire, task_factory: TaskFactory) -> None:
    url, payload = f"{QUEUE}/task/{slugid()}", {"text": "\\u0000"}
    assert wire.json("PUT", url, task_factory(payload=payload), key=wire.root).status == 200
    assert wire.send("GET", url).json["payload"] == payload


@pytest.mark.parametrize("scalar", ["text", 12, 1.5, True, None])
def test_a_scalar_body_is_malformed_and_echoed_as_that_scalar(wire: Wire, scalar: object) -> None:
    reply = wire.json("POST", _EXCEPTION, json.dumps(scalar), key=wire.root)
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")
    assert reply.words == "Failed to parse JSON: Must be an object or array"
    assert reply.json["requestInfo"]["payload"] == scalar


async def test_a_client_that_disconnects_before_its_body_is_read_causes_no_error() -> None:
    """The request is made by hand: over a connection, the loop may see the body or the disconnect first."""
    loop = asyncio.get_running_loop()
    body = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    request = make_mocked_request("POST", "/", {"Content-Length": "9"}, payload=body)
    body.set_exception(ConnectionResetError("Connection lost"))
    with pytest.raises(Refusal, match="request aborted"):
        await read_body(request)


def test_json_is_parsed_even_where_no_body_is_wanted(wire: Wire) -> None:
    reply = wire.json("GET", f"{QUEUE}/ping", "{")
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json;charset=utf-8",
        "Application/JSON",
        'application/json ; a="b;\\"" ;c=d ',
    ],
)
def test_a_content_type_of_json_is_accepted(wire: Wire, content_type: str) -> None:
    reply = wire.json("POST", f"{QUEUE}/tasks/status", {"taskIds": []}, content_type=content_type)
    assert reply.status == 200


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/plain", "application/vnd.api+json", "application/jsonx", "json"),
        *("application/json;", "application/json; charset", 'application/json; charset="utf-8'),
    ],
)
def test_another_content_type_is_malformed(wire: Wire, content_type: str) -> None:
    reply = wire.json("POST", f"{QUEUE}/tasks/status", {}, content_type=content_type)
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")
    assert reply.words == (
        f"Payload must be JSON with content-type: application/json got content-type: {content_type}"
    )


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain"])
def test_no_body_at_all_is_malformed_where_one_is_wanted(wire: Wire, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    reply = wire.send("POST", f"{QUEUE}/tasks/status", headers=headers)
    assert reply.words.endswith(f"application/json got content-type: {content_type or 'null'}")


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
def test_compressed_bodies_are_read(wire: Wire, encoding: str, pack: Any) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    reply = wire.send("POST", f"{QUEUE}/tasks/status", body=pack(b'{"taskIds": []}'), headers=headers)
    assert reply.status == 200


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        *(("zip", b"{}"), ("gzip", b"{}"), ("gzip", gzip.compress(b"{}", mtime=0)[:-4]), ("br", b"{}")),
        *(("gzip", b""), ("deflate", b"")),
    ],
)
def test_bodies_that_cannot_be_unpacked_are_malformed(wire: Wire, encoding: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    reply = wire.send("POST", f"{QUEUE}/tasks/status", body=body, headers=headers)
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")


AROUND_THE_LIMITS = [300, *range(440, 500), *range(900, 1000), 9_990, 1_000_000]
"""Levels of nesting: Python allows 1,000 nested calls, and modules in C 10,000 since 3.12."""


def test_a_body_that_is_nested_too_deep_is_refused_with_the_reason(
    wire: Wire, task_factory: TaskFactory
) -> None:
    whole = json.dumps(task_factory(payload={"a": "HERE"}))
    codes = set[bytes]()
    for levels in AROUND_THE_LIMITS:
        body = whole.replace('"HERE"', "[" * levels + "]" * levels).encode()
        url = f"{QUEUE}/task/{slugid()}"
        reply = wire.send("PUT", url, key=wire.root, body=body, headers={"Content-Type": "application/json"})
        if reply.status == 200:
            assert wire.send("GET", url).status == 200
        else:
            assert reply.status == 400
            assert b"nested deeper than Python can handle" in reply.body  # too deep for `reply.json`
            codes.add(reply.body.split(b'"')[3])
    assert codes == {b"MalformedPayload"}


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_over_ten_mebibytes_is_too_large(wire: Wire, packed: bool) -> None:  # noqa: FBT001 - a parameter of the test
    body = b'{"taskIds": ["' + b"x" * (10 * 1024 * 1024) + b'"]}'
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if packed else {})
    reply = wire.send(
        "POST", f"{QUEUE}/tasks", body=gzip.compress(body, 1) if packed else body, headers=headers
    )
    assert (reply.status, reply.json["code"]) == (413, "InputTooLarge")


def test_a_body_of_unknown_length_is_too_large_when_it_has_more_than_ten_mebibytes(wire: Wire) -> None:
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    head = f"POST {QUEUE}/tasks HTTP/1.1\r\nHost: {wire.host}\r\nConnection: close\r\n"
    coding = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply = wire.raw((head + coding).encode() + 11 * chunk + b"0\r\n\r\n", "POST")
    assert (reply.status, reply.json["code"]) == (413, "InputTooLarge")


def test_expect_continue_gets_100_continue(wire: Wire) -> None:
    head = (
        f"POST {QUEUE}/tasks/status HTTP/1.1\r\nHost: {wire.host}\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n{}"
    )
    assert wire.raw(head.encode(), "POST").status == 200


def test_a_request_in_http_1_0_gets_no_100_continue(wire: Wire) -> None:
    """HTTP/1.0 has no such response: its clients would take it for the final response."""
    host, _, port = wire.host.partition(":")
    head = (
        f"POST {QUEUE}/tasks/status HTTP/1.0\r\nHost: {wire.host}\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}"
    )
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode())
        with connection.makefile("rb") as received:
            assert received.readline().split()[1] == b"200"


@pytest.mark.parametrize("prefix", [b"\xef\xbb\xbf", b""])
def test_a_byte_order_mark_and_wrong_utf8_are_accepted(wire: Wire, prefix: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    body = prefix + b'{"taskIds": ["\xff"]}'
    assert wire.send("POST", f"{QUEUE}/tasks/status", key=wire.root, body=body, headers=headers).status == 200


def test_a_byte_order_mark_alone_is_not_a_body(wire: Wire) -> None:
    headers = {"Content-Type": "application/json"}
    resource = f"{QUEUE}/tasks/status"
    assert wire.send("POST", resource, key=wire.root, body=b"\xef\xbb\xbf", headers=headers).status == 200


@pytest.mark.parametrize(
    ("encoding", "body"), [("zip", b"{}"), ("gzip", b"{}"), ("identity", b"x" * (10 * 1024 * 1024 + 1))]
)
def test_a_body_that_is_not_announced_as_json_is_ignored(wire: Wire, encoding: str, body: bytes) -> None:
    headers = {"Content-Type": "text/plain", "Content-Encoding": encoding}
    resource = f"{QUEUE}/task/{NO_SUCH_TASK}/runs/0/completed"
    reply = wire.send("POST", resource, key=wire.root, body=body, headers=headers)
    assert (reply.status, reply.json["code"]) == (404, "ResourceNotFound")
    reply = wire.send("POST", f"{QUEUE}/tasks/status", key=wire.root, body=body, headers=headers)
    assert (
        reply.words == "Payload must be JSON with content-type: application/json got content-type: text/plain"
    )


def test_an_unknown_character_set_is_malformed(wire: Wire) -> None:
    reply = wire.json("POST", f"{QUEUE}/tasks/status", {}, content_type="application/json; charset=zlib")
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")


def test_numbers_are_read_as_javascript_reads_them(wire: Wire, task_factory: TaskFactory) -> None:
    task_id = slugid()
    task = json.dumps(task_factory(payload={"n": "@", "big": "#"}, retries=3))
    task = task.replace('"@"', "1.0").replace('"#"', "1" * 30).replace('"retries": 3', '"retries": 3.0')
    assert wire.json("PUT", f"{QUEUE}/task/{task_id}", task, key=wire.root).status == 200
    stored = wire.send("GET", f"{QUEUE}/task/{task_id}").json
    assert (stored["retries"], stored["payload"]) == (3, {"n": 1, "big": float("1" * 30)})


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("9007199254740992", 2**53),
        ("9007199254740993", 2**53),
        ("-1234567890123456789", -1234567890123456800),
        ("1e17", 10**17),
        ("9223372036854775808", 9223372036854776000),
        ("1e21", 1e21),
        ("1e400", None),
    ],
)
def test_an_error_echoes_numbers_as_javascript_reads_them(wire: Wire, given: str, echoed: object) -> None:
    reply = wire.json("PUT", f"{QUEUE}/task/{slugid()}", f'{{"payload": [{given}]}}', key=wire.root)
    assert [*map(repr, reply.json["requestInfo"]["payload"]["payload"])] == [repr(echoed)]


@pytest.mark.parametrize(
    ("given", "shown"),
    [("1e17", 10**17), ("9223372036854774784", 9223372036854775000), ("-0.0", 0)],
)
def test_a_large_length_is_kept_as_javascript_keeps_it(
    wire: Wire, task_factory: TaskFactory, given: str, shown: float
) -> None:
    task, run = task_factory(), f"{QUEUE}/task/{(task_id := slugid())}/runs/0"
    assert wire.json("PUT", f"{QUEUE}/task/{task_id}", task, key=wire.root).status == 200
    worker = {"workerGroup": "g", "workerId": "w"}
    assert wire.json("POST", f"{run}/claim", worker, key=wire.root).status == 200
    body = {"storageType": "s3", "expires": task["deadline"], "contentType": "a/b", "contentLength": "@"}
    request = json.dumps(body).replace('"@"', given)
    assert wire.json("POST", f"{run}/artifacts/public%2Fx", request, key=wire.root).status == 200
    length = wire.send("GET", f"{run}/artifact-info/public%2Fx", key=wire.root).json["contentLength"]
    assert repr(length) == repr(shown)


@pytest.mark.parametrize(
    ("changes", "violations"),
    [
        ({"foo": 1}, ['data must NOT have additional properties: "foo"']),
        ({"": 1}, ["data must NOT have additional properties"]),
        ({"payload": "x"}, ["data/payload must be object"]),
        ({"retries": 50}, ["data/retries must be <= 49"]),
        ({"retries": -1}, ["data/retries must be >= 0"]),
        ({"retries": 1.5}, ["data/retries must be integer"]),
        ({"priority": "normal"}, ["data/priority must be equal to one of the allowed values"]),
        (
            {"routes": ["a", "b", "a"]},
            ["data/routes must NOT have duplicate items (items ## 2 and 0 are identical)"],
        ),
        ({"routes": [""]}, ["data/routes/0 must NOT have fewer than 1 characters"]),
        ({"routes": ["x" * 250]}, ["data/routes/0 must NOT have more than 249 characters"]),
        ({"routes": [str(n) for n in range(65)]}, ["data/routes must NOT have more than 64 items"]),
        ({"scopes": ["ä"]}, ['data/scopes/0 must match pattern "^[ -~]*$"']),
        ({"created": "today"}, ['data/created must match format "date-time"']),
        ({"tags": {"a/b": 1}}, ["data/tags/a~1b must be string"]),
        (
            {"metadata": {}},
            [
                f"data/metadata must have required property '{name}'"
                for name in ("name", "description", "owner", "source")
            ],
        ),
        (
            {"metadata": {"name": "n", "description": "d", "owner": "o", "source": None}},
            ["data/metadata/source must be string"],
        ),
    ],
)
def test_each_violation_is_reported_with_the_services_text(
    wire: Wire, task_factory: TaskFactory, changes: dict[str, Any], violations: list[str]
) -> None:
    reply = wire.json("PUT", f"{QUEUE}/task/{slugid()}", task_factory(**changes), key=wire.root)
    assert reply.json["code"] == "InputValidationError"
    assert reply.words.split("\nErrors:\n  * ")[1].split("\n  * ") == violations


def test_a_body_that_fits_no_kind_of_artifact_says_so_last(wire: Wire) -> None:
    resource = f"{QUEUE}/task/{NO_SUCH_TASK}/runs/0/artifacts/x"
    reply = wire.json("POST", resource, {"storageType": "tape"}, key=wire.root)
    assert reply.words.endswith("\n  * data must match exactly one schema in oneOf")


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T08:59:12.886Z",
        "2026-11-21 08:59:12Z",
        "2026-11-21t08:59:12.123456789z",
        "2026-11-21T08:59:12+00:00",
        "2026-11-21T08:59:12+0000",
        "2026-11-21T08:59:12",
        "2024-02-29T23:59:59-12:30",
        "2026-11-21\t08:59:12Z",
        "2026-11-21\u00a008:59:12Z",
        "2026-11-21T23:59:60Z",
        "2026-11-21T08:59:12+24:00",
        "2026-11-21T08:59:12-0860",
        "0000-02-29T00:00:00Z",
    ],
)
def test_dates_are_checked_loosely(text: str) -> None:
    assert FORMATS["date-time"](text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T08:59Z",
        "0000-02-30T00:00:00Z",
        "2026-11-21T08:59:60Z",
        "2026-11-21  08:59:12Z",
        "2026-11-21T08:59:12Z\n",
        "2026-11-21T08:59:12+2",
    ],
)
def test_dates_that_do_not_exist_are_refused(text: str) -> None:
    assert not FORMATS["date-time"](text)


_SAMPLES: dict[str, list[Any]] = {
    "queue/v1/create-task-request": [
        {
            "provisionerId": "p",
            "workerType": "w",
            "schedulerId": "s",
            "projectId": "a/b.c",
            "taskGroupId": NO_SUCH_TASK,
            "dependencies": [NO_SUCH_TASK],
            "requires": "all-resolved",
            "routes": ["a.b"],
            "priority": "low",
            "retries": 4,
            "created": "2026-11-21T08:59:12.886Z",
            "deadline": "2026-11-21T08:59:12.886Z",
            "expires": "2026-11-21T08:59:12.886Z",
            "scopes": ["a:*"],
            "payload": {"a": 1},
            "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://s.example/x"},
            "tags": {"kind": "test"},
            "extra": {},
        }
    ],
    "queue/v1/tasks-request": [{"taskIds": ["x"]}],
    "queue/v1/change-task-priority-request": [{"newPriority": "high"}],
    "queue/v1/claim-work-request": [{"workerGroup": "g", "workerId": "i", "tasks": 3}],
    "queue/v1/task-claim-request": [{"workerGroup": "g", "workerId": "i"}],
    "queue/v1/task-exception-request": [{"reason": "internal-error"}],
    "queue/v1/post-artifact-request": [
        {"storageType": "s3", "expires": "2026-11-21T08:59:12Z", "contentType": "a/b", "contentLength": 3},
        {"storageType": "object", "expires": "2026-11-21T08:59:12Z", "contentType": "a/b"},
        {
            "storageType": "reference",
            "expires": "2026-11-21T08:59:12Z",
            "contentType": "a/b",
            "url": "https://x.example/",
        },
        {"storageType": "link", "expires": "2026-11-21T08:59:12Z", "artifact": "public/x"},
        {
            "storageType": "error",
            "expires": "2026-11-21T08:59:12Z",
            "reason": "too-large-file-on-worker",
            "message": "m",
        },
    ],
    "queue/v1/finish-artifact-request": [{"uploadId": NO_SUCH_TASK}],
    "queue/v1/quarantine-worker-request": [
        {"quarantineUntil": "2026-11-21T08:59:12Z", "quarantineInfo": "i"}
    ],
    "queue/v1/update-worker-request": [{"expires": "2026-11-21T08:59:12Z"}],
    "object/v1/create-upload-request": [
        {
            "projectId": "p",
            "uploadId": NO_SUCH_TASK,
            "expires": "2026-11-21T08:59:12Z",
            "hashes": {"sha256": "a" * 64, "sha512": "0" * 128, "md5": "x"},
            "proposedUploadMethods": {
                "dataInline": {"contentType": "a/b", "objectData": "eA=="},
                "putUrl": {"contentType": "a/b", "contentLength": 1},
            },
        }
    ],
    "object/v1/finish-upload-request": [
        {"projectId": "p", "uploadId": NO_SUCH_TASK, "hashes": {"sha256": "a" * 64}}
    ],
    "object/v1/download-object-request": [{"acceptDownloadMethods": {"getUrl": True, "simple": True}}],
}
_ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    50,
    10**6,
    "",
    "x" * 300,
    "x" * 40,
    "a b",
    "ä",
    [],
    ["x", "x"],
    [1],
    {},
    {"a": 1},
    "2026-02-30T00:00:00Z",
]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if is_object(value):
        inner = list(value.items())
    elif is_list(value):
        inner = list(enumerate(value))
    return [path, *(each for key, below in inner for each in _paths(below, (*path, key)))]


def _set(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    for step in path[:-1]:
        value = value[step]
    if new is _GONE:
        del value[path[-1]]
    else:
        value[path[-1]] = new
    return None


_GONE = object()


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """A schema's name and a body for it: valid, or with one or two wrong values."""
    name = draw(st.sampled_from(sorted(_SAMPLES)))
    body = copy.deepcopy(draw(st.sampled_from(_SAMPLES[name])))
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(_paths(body)))
        odd = copy.deepcopy(draw(st.sampled_from([*_ODD, _GONE])))
        if odd is not _GONE or path:
            replaced = _set(body, path, odd)
            body = replaced if not path else body
    if is_object(body) and draw(st.integers(0, 9)) == 0:
        body["unknown"] = 1
    return name, body


@given(bodies())
def test_our_schemas_accept_exactly_what_the_contracts_do(contract: Path, named: tuple[str, Any]) -> None:
    name, body = named
    errors: list[str] = []
    compile_schema(REQUEST_SCHEMAS[name])(body, "data", errors)
    assert bool(errors) == bool(violations(contract, name, body)), errors


@pytest.mark.parametrize("text", ["git@" + "a*" * 4_900_000, "http://x" + "/a" * 4_900_000 + " "])
def test_megabytes_where_a_url_is_wanted_are_refused_and_take_little_memory(wire: Wire, text: str) -> None:
    with little_memory():
        reply = wire.json("PUT", f"{QUEUE}/task/{NO_SUCH_TASK}", {"metadata": {"source": text}})
    assert "data/metadata/source must NOT have more than 4096 characters" in reply.words


def test_a_url_may_be_megabytes_long_and_takes_little_memory_to_check() -> None:
    url = "http://x/" + "%41" * 3_300_000
    with little_memory():
        assert FORMATS["uri"](url)


_ADDRESSES = (
    "::",
    "::1",
    "1::",
    "1:2:3:4:5:6:7:8",
    "1:2:3:4:5:6:7::",
    "::2:3:4:5:6:7:8",
    "1::6:7:8",
    "::ffff:192.0.2.1",
    "1:2:3:4:5:6:192.0.2.01",
    "v1.a:b",
)
_NO_ADDRESSES = (
    "",
    "...",
    "1:2",
    "1:2:3:4:5:6:7:8:9",
    "1:2:3:4:5:6:7:8::",
    "1::2::3",
    "12345::",
    "192.0.2.1",
    "::256.0.2.1",
    "fe80::1%25eth0",
    "v1.%41",
    "v.a",
)


@pytest.mark.parametrize("host", _ADDRESSES + _NO_ADDRESSES)
def test_brackets_in_a_url_contain_an_address(host: str) -> None:
    assert bool(FORMATS["uri"](f"http://user@[{host}]:80/path")) == (host in _ADDRESSES)
