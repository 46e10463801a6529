"""Storage that cuts, trickles or falsifies content: the client raises an error, and there is no artifact."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import randbytes
from typing import Any

import pytest

from taskqueue_client import AsyncQueue, Credentials, Queue, RetryPolicy, slugid
from taskqueue_client._transport.connection_errors import TooSlow
from taskqueue_client._transport.sync_connections import Cancellation, StorageAttempt
from taskqueue_client.artifacts import (
    DownloadTooLarge,
    HashMismatch,
    NotOffered,
    StorageFailed,
    StorageRefused,
    downloading,
)
from taskqueue_client.artifacts.transfers import Transfer
from taskqueue_client.clock import MovableClock
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local import LocalQueue
from tests.artifacts.conftest import EitherClient, WaitlessClock
from tests.artifacts.raw_server import RawResponse, RawServer, Request, json_response
from tests.artifacts.test_download_servers import serve
from tests.cli.command import run

HEADS = {
    "in a header": b"HTTP/1.1 200 OK\r\nContent-Type: text/pl",
    "after a header": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n",
    "after the status": b"HTTP/1.1 200 OK\r\n",
    "without a length": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall that there is",
}
cut_heads = pytest.mark.parametrize("raw", HEADS.values(), ids=HEADS)


@cut_heads
def test_a_response_that_is_cut_inside_its_head_is_asked_for_again(
    raw_client: EitherClient, server: RawServer, raw: bytes
) -> None:
    gets = serve(server, RawResponse(raw=raw), RawResponse(raw=raw), RawResponse(body=b"content"))
    assert raw_client.download("x").content == b"content"
    assert len(gets) == 3


@cut_heads
def test_a_response_that_is_always_cut_inside_its_head_is_an_error_and_no_file(
    raw_client: EitherClient, server: RawServer, tmp_path: Path, raw: bytes
) -> None:
    gets = serve(server, RawResponse(raw=raw))
    for download in (
        lambda: raw_client.download("x"),
        lambda: raw_client.download("x", to=tmp_path / "x"),
        lambda: raw_client.stream("x"),
    ):
        with pytest.raises(StorageFailed, match="incomplete"):
            download()
    assert list(tmp_path.iterdir()) == []
    assert len(gets) == 3 * 6


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000),
        b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % (b"9" * 5000),
    ],
    ids=["identity", "chunks"],
)
def test_a_length_with_more_digits_than_python_reads_is_an_incomplete_response(
    raw_client: EitherClient, server: RawServer, head: bytes
) -> None:
    serve(server, RawResponse(raw=head + b"7\r\ncont"), RawResponse(body=b"content"))
    assert raw_client.download("x").content == b"content"


def test_a_range_with_more_digits_than_python_reads_is_not_the_requested_one(
    raw_client: EitherClient, server: RawServer
) -> None:
    etag, wrong = ("ETag", '"1"'), ("Content-Range", f"bytes 4-6/{'9' * 5000}")
    beginning = RawResponse(headers=(etag,), body=b"cont", announced=7)
    serve(server, beginning, RawResponse(206, (etag, wrong), b"ent"), RawResponse(body=b"content"))
    assert raw_client.download("x").content == b"content"


@pytest.mark.parametrize("end", [b"", b"0", b"000", b"0\r\n", b"0\r\nX-Tra"])
def test_chunks_without_an_end_are_an_incomplete_download(
    raw_client: EitherClient, server: RawServer, end: bytes
) -> None:
    serve(server, RawResponse(raw=CHUNKED + end), RawResponse(body=b"content"))
    assert raw_client.download("x").content == b"content"


@pytest.mark.parametrize(("count", "is_accepted"), [(99, True), (100, False)])
def test_a_response_has_a_hundred_trailers_at_most(
    raw_client: EitherClient, server: RawServer, count: int, *, is_accepted: bool
) -> None:
    """A server could send trailers for ever, whatever the limit of the download."""
    trailers = b"0\r\n" + count * b"X-Trailer: x\r\n" + b"\r\n"
    serve(server, RawResponse(raw=CHUNKED + trailers), RawResponse(body=b"content"))
    assert raw_client.download("x").content == (b"x" if is_accepted else b"content")


def test_gzip_of_parts_without_content_counts_for_the_limit(
    raw_client: EitherClient, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could send them for ever."""
    monkeypatch.setattr(downloading, "LONGER_AS_GZIP", 100_000)
    empty = gzip.compress(b"")
    body = empty * (200_000 // len(empty))
    serve(server, RawResponse(headers=(("Content-Encoding", "gzip"),), body=body))
    assert raw_client.download("x", max_bytes=len(body) - 100_000).content == b""
    with pytest.raises(DownloadTooLarge, match=r"'x' has \d+ bytes or more; the limit is max_bytes=1000"):
        raw_client.download("x", max_bytes=1000)


def test_a_transfer_coding_that_was_not_asked_for_is_not_content(
    raw_client: EitherClient, server: RawServer
) -> None:
    serve(server, RawResponse(raw=CHUNKED.replace(b"chunked", b"gzip, chunked")))
    with pytest.raises(StorageFailed, match="incomplete"):
        raw_client.download("x")


@pytest.mark.parametrize("status", [203, 204, 205])
def test_a_response_that_brings_no_artifact_is_not_an_empty_one(
    raw_client: EitherClient, server: RawServer, status: int
) -> None:
    serve(server, RawResponse(status))
    with pytest.raises(StorageRefused, match=f"HTTP {status}"):
        raw_client.download("x")


def test_taskqueue_artifacts_get_fails_when_the_head_is_cut(
    server: RawServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", server.url)
    gets = serve(server, RawResponse(raw=HEADS["after a header"]))
    result = run("artifacts", "get", slugid(), "x", "--run", "0", "--to", str(tmp_path))
    assert result.exit_code != 0
    assert "incomplete" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert len(gets) == 6


@cache
def zeros(megabytes: int) -> bytes:
    """Return so many MB of zeros as gzip, which has about a thousandth of their size."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(1_000_000)) for _ in range(megabytes)), packer.flush()])


def test_gzip_that_unpacks_to_a_thousand_times_its_size_is_an_error_and_no_file(
    raw_client: EitherClient, server: RawServer, tmp_path: Path
) -> None:
    body = zeros(300)
    assert len(body) < 300_000
    serve(server, RawResponse(headers=(("Content-Encoding", "gzip"),), body=body))
    for ratio, download in (
        (0, lambda: raw_client.download("x")),
        (500, lambda: raw_client.download("x", to=tmp_path / "x")),
        (500, lambda: raw_client.stream("x")),
    ):
        with pytest.raises(DownloadTooLarge, match=r"'x' has \d+ bytes or more, .*max_bytes=\d+") as caught:
            download()
        assert caught.value.received <= len(body)
        assert caught.value.max_bytes == max(64 * 2**20, ratio * caught.value.received)
        assert caught.value.size <= 500 * len(body) + 2**20
    assert list(tmp_path.iterdir()) == []


def test_gzip_may_unpack_to_500_times_its_size(raw_client: EitherClient, server: RawServer) -> None:
    body = gzip.compress(randbytes(200_000)) + zeros(80)
    serve(server, RawResponse(headers=(("Content-Encoding", "gzip"),), body=body))
    assert sum(map(len, raw_client.stream("x"))) == 80_200_000


def test_max_bytes_allows_more_of_gzip_and_bounds_files_and_streams(
    raw_client: EitherClient, server: RawServer, tmp_path: Path
) -> None:
    serve(server, RawResponse(headers=(("Content-Encoding", "gzip"),), body=zeros(80)))
    assert raw_client.download("x", to=tmp_path / "x", max_bytes=80_000_000).size == 80_000_000
    assert sum(map(len, raw_client.stream("x", max_bytes=80_000_000))) == 80_000_000
    for download in (
        lambda: raw_client.download("x", to=tmp_path / "y", max_bytes=79_999_999),
        lambda: raw_client.stream("x", max_bytes=79_999_999),
    ):
        with pytest.raises(DownloadTooLarge, match="max_bytes=79999999"):
            download()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_hash_that_an_uploader_stored_on_s3_is_compared(
    raw_client: EitherClient, server: RawServer, encoding: str
) -> None:
    body = gzip.compress(b"content") if encoding == "gzip" else b"content"
    right = hashlib.sha256(b"content").hexdigest()

    def respond(sha256: str) -> RawResponse:
        headers = ("x-amz-meta-content-sha256", sha256), ("Content-Encoding", encoding)
        return RawResponse(headers=headers, body=body)

    serve(server, respond(right))
    assert raw_client.download("x").hashes == {"sha256": right}
    gets = serve(server, respond("0" * 64))
    with pytest.raises(HashMismatch) as caught:
        raw_client.download("x")
    assert len(gets) == 1  # no retry, as by the official clients
    known, found = {"sha256": "0" * 64}, {"sha256": right}
    assert (caught.value.name, caught.value.expected, caught.value.found) == ("x", known, found)
    with pytest.raises(HashMismatch):
        raw_client.stream("x")


@pytest.mark.parametrize("hashes", [{"sha256": hashlib.sha256(b"content").hexdigest()}, {"md5": "0" * 32}])
def test_storage_cannot_vouch_for_an_object(
    raw_client: EitherClient, server: RawServer, hashes: dict[str, str]
) -> None:
    changed = hashlib.sha256(b"changed").hexdigest()
    stored = RawResponse(headers=(("x-amz-meta-content-sha256", changed),), body=b"changed")
    start = {"method": "getUrl", "url": f"{server.url}/key", "expires": "2099-01-01T00:00:00.000Z"}

    def respond(request: Request) -> RawResponse:
        if request.path.startswith("/api/queue/"):
            credentials = {"clientId": "download", "accessToken": "secret"}
            return json_response({"storageType": "object", "name": "t/x", "credentials": credentials})
        is_start = request.path.startswith("/api/object/")
        return json_response({**start, "hashes": hashes}) if is_start else stored

    server.respond = respond
    with pytest.raises(HashMismatch):
        raw_client.download("x")
    with pytest.raises(HashMismatch):
        raw_client.stream("x")


def s3(server: RawServer, put: RawResponse, stored: RawResponse | None = None) -> list[Request]:
    """Be Queue and S3: send `put` in response to PUT, `stored` in response to GET; return all requests."""
    seen: list[Request] = []

    def respond(request: Request) -> RawResponse:
        seen.append(request)
        if request.method == "PUT":
            return put
        if not request.path.startswith("/api/"):
            assert stored is not None
            return RawResponse(404) if request.path == "/cdn" else stored  # the CDN has cached a 404
        url = f"{server.url}/key?signature=1"
        if request.method == "GET":
            cdn = f"{server.url}/cdn" if request.headers["x-taskcluster-skip-cdn"] is None else url
            found = json_response({"storageType": "s3", "url": cdn})
            if stored is None:
                return replace(found, status=403, body=b'{"code": "InsufficientScopes"}')
            return replace(found, status=303)
        expires = "2099-01-01T00:00:00.000Z"
        return json_response({"storageType": "s3", "contentType": "a/b", "expires": expires, "putUrl": url})

    server.respond = respond
    return seen


PORTAL = RawResponse(headers=(("Content-Type", "text/html"),), body=b"<html>Log in</html>", has_etag=False)
ENCRYPTED = RawResponse(headers=(("ETag", f'"{"0" * 32}"'), ("x-amz-server-side-encryption", "aws:kms")))
sizes = pytest.mark.parametrize("size", [10, 1_000_000])


@sizes
def test_a_response_of_a_captive_portal_is_not_an_upload(
    raw_client: EitherClient, server: RawServer, size: int
) -> None:
    seen = s3(server, PORTAL)
    with pytest.raises(StorageFailed, match="not that of a storage service"):
        raw_client.upload("public/x", bytes(size))
    assert len([request for request in seen if request.method == "PUT"]) == 6


EXPIRES = "2099-01-01T00:00:00.000Z"
ID = slugid()


@pytest.mark.parametrize(
    ("storage", "responses", "error"),
    [
        (
            "s3",
            [{"storageType": "s3", "contentType": "a/b", "expires": EXPIRES}],
            "createArtifact has no URL, .*; found storage type s3",
        ),
        (
            "object",
            [{"storageType": "object", "name": "n", "projectId": "p", "expires": EXPIRES}],
            "createArtifact has no URL, .*; found storage type object",
        ),
        (
            "object",
            [{"storageType": "object", "name": "n", "projectId": "p", "expires": EXPIRES, "uploadId": "x"}],
            "createArtifact is not valid: upload_id: 'x' is not valid; .*; found storage type object",
        ),
        (
            "object",
            [
                {"storageType": "object", "name": "n", "projectId": "p", "expires": EXPIRES, "uploadId": ID},
                {
                    "name": "n",
                    "projectId": "p",
                    "expires": EXPIRES,
                    "uploadId": ID,
                    "uploadMethod": {"carrierPigeon": {"url": "https://h/x?signature=1"}},
                },
            ],
            "object.createUpload has no URL, or only methods that this version does not support$",
        ),
    ],
    ids=["no URL", "no upload id", "another upload id", "no known method"],
)
def test_a_response_that_does_not_say_where_to_upload_is_an_error_of_its_own(
    raw_client: EitherClient, server: RawServer, storage: str, responses: list[Any], error: str
) -> None:
    script = [json_response(each) for each in responses]
    server.respond = lambda _: script.pop(0)
    with pytest.raises(NotOffered, match=f"^the response to {error}"):
        raw_client.upload("public/x", bytes(10_000), storage=storage)
    assert script == []


def test_an_upload_url_that_is_not_one_is_an_error_of_the_response(
    raw_client: EitherClient, server: RawServer
) -> None:
    uploading = {"storageType": "s3", "contentType": "a/b", "expires": "2099-01-01T00:00:00.000Z"}
    server.respond = lambda _: json_response({**uploading, "putUrl": "ftp://h/x?signature=1"})
    with pytest.raises(StorageFailed) as caught:
        raw_client.upload("public/x", b"")
    assert str(caught.value) == (
        "PUT ftp://h/x: the response of the service has a URL that is not valid; "
        "expected an http or https URL with a host"
    )


@sizes
def test_an_etag_that_is_not_the_md5_of_what_was_sent_is_not_an_upload(
    raw_client: EitherClient, server: RawServer, size: int
) -> None:
    s3(server, RawResponse(headers=(("ETag", f'"{"0" * 32}"'),)))
    with pytest.raises(StorageFailed, match="differs from the content sent"):
        raw_client.upload("public/x", bytes(size))


def part(size: int) -> RawResponse:
    return RawResponse(206, (("Content-Range", f"bytes 0-0/{size}"),), b"x")


def test_where_the_etag_is_not_an_md5_the_stored_length_is_compared(
    raw_client: EitherClient, server: RawServer
) -> None:
    seen = s3(server, ENCRYPTED, part(10))
    assert raw_client.upload("public/x", bytes(10)).stored_size == 10
    sent = dict(seen[-1].headers)
    assert (sent["Range"], sent["Accept-Encoding"]) == ("bytes=0-0", "identity")  # not all of the content
    assert sent["Cache-Control"] == "no-cache"  # a proxy may have a copy of the last upload under this name
    s3(server, ENCRYPTED, RawResponse(416))  # empty content has no first byte
    assert raw_client.upload("public/x", b"").stored_size == 0
    s3(server, ENCRYPTED, part(9))
    with pytest.raises(StorageFailed, match="differs from the content sent"):
        raw_client.upload("public/x", bytes(10))
    s3(server, ENCRYPTED, RawResponse(404))
    with pytest.raises(StorageFailed, match="differs from the content sent"):
        raw_client.upload("public/x", bytes(10))


@pytest.mark.parametrize(
    "response",
    [
        RawResponse(206, (("Content-Range", f"bytes 0-0/{'9' * 5000}"),), b"x"),
        RawResponse(raw=b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\nx" % (b"9" * 5000)),
    ],
    ids=["range", "length"],
)
def test_a_stored_length_with_more_digits_than_python_reads_is_another_one(
    raw_client: EitherClient, server: RawServer, response: RawResponse
) -> None:
    s3(server, ENCRYPTED, response)
    with pytest.raises(StorageFailed, match="differs from the content sent"):
        raw_client.upload("public/x", bytes(10))


def test_the_stored_length_is_not_what_a_cdn_says(raw_client: EitherClient, server: RawServer) -> None:
    """The CDN may have a copy of the last upload under this name."""
    seen = s3(server, ENCRYPTED, part(10))
    raw_client.upload("public/x", bytes(10))
    assert [request.path.partition("?")[0] for request in seen if request.method == "GET"] == [
        f"/api/queue/v1/task/{raw_client.run.task_id}/runs/0/artifacts/public%2Fx",
        "/key",
    ]


def test_the_stored_length_of_gzip_is_not_that_of_its_content(
    raw_client: EitherClient, server: RawServer
) -> None:
    """Google's storage and Varnish decompress for clients that do not accept gzip."""
    seen = s3(server, ENCRYPTED, part(5000))
    s3_response = server.respond

    def respond(request: Request) -> RawResponse:
        if request.headers["Range"] and request.headers["Accept-Encoding"] == "gzip":
            return part(len(next(put for put in seen if put.method == "PUT").body))
        return s3_response(request)

    server.respond = respond
    result = raw_client.upload("public/x.txt", b"line\n" * 1000)
    assert (result.content_encoding, result.size) == ("gzip", 5000)
    assert result.stored_size < 5000


def test_where_storage_sends_more_than_the_first_byte_the_length_of_the_content_is_compared(
    raw_client: EitherClient, server: RawServer
) -> None:
    s3(server, ENCRYPTED, RawResponse(body=bytes(10)))
    assert raw_client.upload("public/x", bytes(10)).stored_size == 10
    s3(server, ENCRYPTED, RawResponse(body=bytes(9)))
    with pytest.raises(StorageFailed, match="differs from the content sent"):
        raw_client.upload("public/x", bytes(10))


def test_where_the_length_cannot_be_read_an_etag_will_do(raw_client: EitherClient, server: RawServer) -> None:
    s3(server, ENCRYPTED)
    assert raw_client.upload("x", bytes(10)).stored_size == 10


@pytest.mark.parametrize("name", ["public/a b (1).txt", "public/100%.txt", 'public/"quoted".txt'])
def test_an_object_whose_name_has_punctuation_can_be_downloaded(
    client: EitherClient, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    client.upload(name, b"content", storage="object")
    assert client.download(name).content == b"content"
    assert client.download(name, run_id=0).content == b"content"
    assert b"".join(client.stream(name)) == b"content"
    assert "can be downloaded by this client only" in caplog.text


def test_a_name_that_is_refused_is_not_warned_of(
    client: EitherClient, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidArgument, match="printable ASCII"):
        client.upload("public/ä", b"content", storage="object")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "storage", "warned"),
    [
        ("public/a[1].txt", "s3", True),
        ("public/a//b.txt", "s3", True),
        ("public/100%.txt", "s3", True),
        ("public/a b.txt", "s3", False),
        ("private/a[1].txt", "s3", False),
        ("public/a.txt", "object", False),
    ],
)
def test_a_name_that_nobody_can_read_is_warned_of(
    client: EitherClient, caplog: pytest.LogCaptureFixture, name: str, storage: str, *, warned: bool
) -> None:
    client.upload(name, b"content", storage=storage)
    assert ("can be uploaded but not downloaded" in caplog.text) == warned


@pytest.mark.parametrize("storage", ["s3", "object"])
@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("/public/a.txt", True),
        ("Public/a.txt", True),
        ("public", False),
        ("private/public/a.txt", False),
        ("publications/a.txt", False),
    ],
)
def test_a_name_that_looks_public_and_is_not_is_warned_of(
    client: EitherClient, caplog: pytest.LogCaptureFixture, name: str, storage: str, *, warned: bool
) -> None:
    client.upload(name, b"content", storage=storage)
    assert (f"artifact {name!r} is not public" in caplog.text) == warned


def test_a_name_with_a_backslash_in_the_place_of_the_slash_is_warned_of(
    client: EitherClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.upload(r"public\a.txt", b"content")
    assert "is not public" in caplog.text


@pytest.fixture
def hurried(runner: asyncio.Runner | None, server: RawServer) -> Iterator[EitherClient]:
    """A client with a high minimum rate and short timeouts."""
    kind = Queue if runner is None else AsyncQueue
    policy = RetryPolicy(attempts=2, read_timeout=1, min_rate=1e9, min_rate_window=0.1)
    clock = WaitlessClock(MovableClock())
    run: Any = type("Run", (), {"task_id": slugid()})
    client = EitherClient(
        kind(server.url, Credentials("tester", "secret"), clock=clock, retry=policy), runner, run, clock
    )
    yield client
    client.close()


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then until the client disconnects."""
    with suppress(OSError):
        while not threading.Event().wait(0.02):
            handler.wfile.write(b"x")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
            "fewer than 1e\\+09 bytes per second",
        ),
        (b"HTTP/1.1 200 OK\r\nX-Filler: ", "did not come within 1 s"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10;", "fewer than"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Filler: ", "fewer than"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000\r\n\r\n", "fewer than"),
    ],
    ids=["in the content", "in the head", "in a chunk's size", "in the trailers", "in a refusal"],
)
def test_a_download_that_trickles_is_given_up(
    hurried: EitherClient, server: RawServer, raw: bytes, reason: str
) -> None:
    gets = serve(server, RawResponse(raw=raw))
    server.after_raw = trickle
    with pytest.raises(StorageFailed, match=reason):
        hurried.download("x")
    assert len(gets) == 2


def test_a_slow_reader_of_a_stream_is_not_a_slow_storage(server: RawServer) -> None:
    policy = RetryPolicy(min_rate=1.0, min_rate_window=0.05)
    serve(server, RawResponse(body=bytes(3_000_000)))
    with Queue(server.url, retry=policy) as queue:
        blocks = queue.stream_artifact(slugid(), "x")
        size = len(next(blocks))
        threading.Event().wait(0.2)
        assert size + sum(map(len, blocks)) == 3_000_000


def test_a_fast_beginning_does_not_count_for_a_transfer_that_gets_too_slow() -> None:
    policy = RetryPolicy(min_rate=100.0, min_rate_window=10.0)
    attempt = StorageAttempt("http://127.0.0.1/x", policy, Cancellation())
    attempt.end_of_head()
    ten_seconds_ago = time.monotonic() - 10
    attempt.received(1_000_000, ten_seconds_ago)
    with pytest.raises(TooSlow, match="fewer than 100 bytes per second for 10 s"):
        attempt.received(10, ten_seconds_ago)


def test_the_minimum_rate_can_be_switched_off(local: LocalQueue) -> None:
    assert Transfer(Queue(local.root_url, retry=RetryPolicy(min_rate=0))).settings.policy.min_rate == 0
