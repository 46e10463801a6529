"""Choices that HTTP gives to clients: targets, charsets, codings, cached responses, hosts."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client import slugid
from taskqueue_client.local import LocalQueue
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Wire, little_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskqueue_client.testing import TaskFactory

STATUSES = f"{QUEUE}/tasks/status"
DEFINITION: dict[str, Any] = {"taskIds": [NO_SUCH_TASK]}

_DECOMPRESSOBJ: Any = zlib.decompressobj


def _post(wire: Wire, body: bytes, content_type: str = "application/json", coding: str | None = None) -> int:
    headers = {"Content-Type": content_type} | ({} if coding is None else {"Content-Encoding": coding})
    return wire.send("POST", STATUSES, body=body, headers=headers, key=wire.root).status


@pytest.mark.parametrize(
    "charset",
    [
        "UTF-8",
        "utf8",
        "Latin1",
        "ISO_8859-1",
        '"ISO_8859-1:1987"',
        "28591",
        "cp1252",
        "windows-1252",
        "WIN-1252",
    ],
)
def test_charsets_are_known_by_all_their_names(wire: Wire, charset: str) -> None:
    content_type = f"application/json; charset={charset}"
    assert _post(wire, json.dumps(DEFINITION).encode(), content_type) == 200


@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        *(
            (name, name)
            for name in ("utf-16", "utf-16le", "utf-32", "shift_jis", "koi8-r", "euc-kr", "gb18030")
        ),
        *((name, name) for name in ("big5", "cp437", "cp737", "koi8-u")),
        *(("Windows-31J", "cp932"), ("x-sjis", "cp932"), ("ks_c_5601-1989", "cp949"), ("tis-620", "tis_620")),
        *(("windows-874", "cp874"), ("ibm878", "koi8_r"), ("macintosh", "mac_roman"), ("x-gbk", "gbk")),
    ],
)
def test_other_charsets_are_decoded(wire: Wire, charset: str, codec: str) -> None:
    assert _post(wire, json.dumps(DEFINITION).encode(codec), f"application/json; charset={charset}") == 200


@pytest.mark.parametrize(("charset", "data"), [("koi8-u", b"\xa4"), ("shift_jis", b"\x87\x40")])
def test_a_charset_has_the_characters_that_it_has_in_the_service(
    wire: Wire, charset: str, data: bytes
) -> None:
    body = b'{"taskIds": 1, "x": "%b"}' % data
    headers = {"Content-Type": f"application/json; charset={charset}"}
    reply = wire.send("POST", STATUSES, body=body, headers=headers, key=wire.root)
    assert reply.json["requestInfo"]["payload"]["x"] == {"koi8-u": "є", "shift_jis": "①"}[charset]


@pytest.mark.parametrize(
    "charset",
    [
        *("zlib", "rot13", "idna", "unicode_escape", "undefined", "no-such"),
        *("iso-2022-jp", "cp037", "johab"),
    ],
)
def test_an_unknown_charset_is_refused(wire: Wire, charset: str) -> None:
    for body in (b"{}", b""):
        assert _post(wire, body, f"application/json; charset={charset}") == 400


@pytest.mark.parametrize(
    "parameters", ['a="b; charset=zlib"', 'charset=""', "charset=utf-16; Charset=utf-8", 'charset="utf\\-8"']
)
def test_only_the_last_parameter_of_that_name_names_the_charset(wire: Wire, parameters: str) -> None:
    assert _post(wire, json.dumps(DEFINITION).encode(), f"application/json; {parameters}") == 200


def _members(data: bytes) -> bytes:
    return gzip.compress(data[:5]) + gzip.compress(data[5:])


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("GZIP", _members),
        ("deflate", zlib.compress),
    ],
)
def test_encoded_request_bodies_are_decoded(
    wire: Wire, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    assert _post(wire, encode(json.dumps(DEFINITION).encode()), coding=coding) == 200


def _brotli() -> Any:
    return pytest.importorskip("brotli", minversion="1.2", reason="without brotli 1.2, `br` is not offered")


def test_brotli_is_read_and_written_where_it_is_installed(wire: Wire, task_factory: TaskFactory) -> None:
    brotli = _brotli()
    packed = brotli.compress(json.dumps(DEFINITION).encode())
    assert _post(wire, packed, coding="br") == 200
    assert _post(wire, packed[:-3], coding="br") == 400
    assert _post(wire, brotli.compress(bytes(20 << 20)), coding="br") == 413
    path = _large(wire, task_factory)
    reply = wire.send("GET", path, headers={"Accept-Encoding": "gzip, br"})
    assert reply.headers["content-encoding"] == "br"
    assert brotli.decompress(reply.body) == wire.send("GET", path).body


def test_of_a_body_that_is_unpacked_to_gigabytes_little_more_than_the_limit_is_unpacked(wire: Wire) -> None:
    packer = _brotli().Compressor(quality=5, lgwin=24)
    bomb = b"".join(packer.process(bytes(1 << 24)) for _ in range(64)) + packer.finish()
    with little_memory():
        assert _post(wire, bomb, coding="br") == 413


class CountedGzip:
    """Unpacks as zlib does, and counts the bytes passed to it."""

    given = 0

    def __init__(self, wbits: int) -> None:
        self._unpacker = _DECOMPRESSOBJ(wbits)

    def decompress(self, block: bytes, max_length: int) -> Any:
        CountedGzip.given += len(block)
        return self._unpacker.decompress(block, max_length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unpacker, name)


def test_the_rest_of_a_body_is_not_given_to_zlib_again_for_each_gzip_member(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountedGzip, "given", 0)
    monkeypatch.setattr(zlib, "decompressobj", CountedGzip)
    members = 20_000
    assert _post(wire, members * gzip.compress(b"", mtime=0), coding="gzip") == 200
    assert 0 < CountedGzip.given <= 1024 * members


@pytest.mark.parametrize("coding", ["zstd", "gzip, gzip", "x"])
def test_an_unknown_request_coding_is_malformed(wire: Wire, coding: str) -> None:
    for body in (b"{}", b""):
        assert _post(wire, body, coding=coding) == 400


@pytest.mark.parametrize(("coding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_body_that_is_not_in_its_coding_is_malformed(
    wire: Wire, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    for body in (b"{}", encode(b"{}")[:-5]):
        assert _post(wire, body, coding=coding) == 400


def _large(wire: Wire, task_factory: TaskFactory) -> str:
    path = f"{QUEUE}/task/{slugid()}"
    assert wire.json("PUT", path, task_factory(payload={"text": "x" * 2000}), key=wire.root).status == 200
    return path


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0.0", None),
        ("gzip;q=0.0, deflate;q=0.1, identity;q=0", "deflate"),
        ("identity", None),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.5, gzip;q=0.5", "gzip"),
        ("gzip;q=0.5, deflate;q=0.5, br;q=0.5, *", None),
        ("compress", None),
        ("", None),
        ("x-other, *;q=0, gzip", "gzip"),
    ],
)
def test_a_response_has_the_coding_of_the_highest_quality(
    wire: Wire, task_factory: TaskFactory, accepted: str, coding: str | None
) -> None:
    reply = wire.send("GET", _large(wire, task_factory), headers={"Accept-Encoding": accepted})
    assert reply.headers.get("content-encoding") == coding
    unpackers: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
    unpack = unpackers.get(coding or "", bytes)
    assert json.loads(unpack(reply.body))["payload"] == {"text": "x" * 2000}


def test_with_no_cache_the_body_is_sent_although_the_etag_matches(wire: Wire) -> None:
    path = f"{QUEUE}/__version__"
    known = {"If-None-Match": wire.send("GET", path).headers["etag"]}
    assert wire.send("GET", path, headers=known).status == 304
    assert wire.send("GET", path, headers={**known, "Cache-Control": "max-age=0, no-cache"}).status == 200


def test_a_request_target_may_be_a_url(wire: Wire) -> None:
    target = f"http://{wire.host}{QUEUE}/ping?bewit="
    head = f"GET {target} HTTP/1.1\r\nHost: {wire.host}\r\nConnection: close\r\n\r\n"
    assert wire.raw(head.encode()).status == 200


@pytest.mark.parametrize(
    "head", ["GET\r\n", "GET / HTTP/1.1\r\nx\r\n", f"GET /{'x' * 16385} HTTP/1.1\r\n", "\x16\x03\x01\r\n"]
)
def test_what_is_not_http_is_malformed(wire: Wire, head: str) -> None:
    reply = wire.raw(f"{head}\r\n".encode())
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")


def test_no_response_names_the_server(wire: Wire) -> None:
    for path in (f"{QUEUE}/ping", "/nowhere", "/storage/public-bucket/x"):
        assert "server" not in wire.send("GET", path).headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_a_host_that_is_not_this_machines_is_refused(wire: Wire, host: str) -> None:
    reply = wire.send("GET", f"{QUEUE}/ping", headers={"Host": host})
    assert (reply.status, list(reply.json)) == (421, ["error"])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:99", "192.168.1.1:80"])
def test_addresses_and_localhost_are_this_machine(wire: Wire, host: str) -> None:
    assert wire.send("GET", f"{QUEUE}/ping", headers={"Host": host}).status == 200


def test_a_queue_for_other_machines_takes_every_host() -> None:
    with LocalQueue(allow_remote=True) as local:
        assert Wire(local).send("GET", f"{QUEUE}/ping", headers={"Host": "queue.example"}).status == 200


def test_a_request_without_a_host_is_not_misdirected(wire: Wire) -> None:
    name, _, port = wire.host.partition(":")
    with socket.create_connection((name, int(port)), timeout=10) as connection:
        connection.sendall(f"GET {QUEUE}/ping HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize(
    "header", ["the secret", "Basic the secret", "Bearer  the secret", "Bearer other", "Bearer"]
)
def test_the_admin_routes_want_the_secret_as_bearer(header: str) -> None:
    with LocalQueue(admin_secret="the secret") as local:
        wire = Wire(local)
        assert wire.send("GET", "/admin/clock", headers={"Authorization": header}).status == 401
        assert wire.send("GET", "/admin/clock", headers={"Authorization": "Bearer the secret"}).status == 200


def test_a_refused_create_task_does_not_echo_what_would_be_filled_in_later(
    wire: Wire, task_factory: TaskFactory
) -> None:
    definition = task_factory()
    del definition["expires"]
    reply = wire.json("PUT", f"{QUEUE}/task/{slugid()}", definition)
    echoed = reply.json["requestInfo"]["payload"]
    assert (reply.status, echoed["provisionerId"]) == (403, "test-provisioner")
    assert not {"taskGroupId", "expires"} & echoed.keys()
