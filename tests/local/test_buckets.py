"""Storage behind signed URLs: what S3's clients rely on."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import http.client
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import requests

from taskqueue_client.local import LocalQueue
from tests.local.storage_server import Served, s3_key, serving

ROOT = Path(__file__).parents[2]

MIB = 1 << 20


async def put(url: str, data: bytes, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return await asyncio.to_thread(requests.put, url, data=data, headers=named, timeout=30)


async def get(url: str, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return await asyncio.to_thread(requests.get, url, headers=named, timeout=30)


def has_error(response: requests.Response, status: int, code: str) -> bool:
    return (
        response.status_code == status
        and response.headers["Content-Type"].startswith("application/xml")
        and f"<Error><Code>{code}</Code>" in response.text
    )


@pytest.mark.parametrize("name", ["public/log.txt", "private/log.txt"])
async def test_a_body_comes_back_with_its_type_length_and_etag(name: str) -> None:
    async with serving() as served:
        stored = await put(served.put_url(name), b"some text", Content_Type="text/x-log")
        response = await get(served.get_url(name))
    assert (stored.status_code, stored.content) == (200, b"")
    assert response.content == b"some text"
    assert response.headers["Content-Type"] == "text/x-log"
    assert response.headers["Content-Length"] == "9"
    assert response.headers["ETag"] == stored.headers["ETag"]


@pytest.mark.parametrize("excess", [0, 1])
async def test_the_etag_is_the_md5_sum_of_all_but_large_bodies(excess: int) -> None:
    data = b"x" * (16 * MIB + excess)
    async with serving() as served:
        stored = await put(served.put_url("public/x"), data)
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    assert (stored.headers["ETag"] == f'"{md5}"') == (excess == 0)


async def test_a_gzip_body_is_kept_as_it_was_sent() -> None:
    packed = gzip.compress(b"text " * 1000)
    async with serving() as served, aiohttp.ClientSession(auto_decompress=False) as session:
        await put(served.put_url("public/log"), packed, Content_Encoding="gzip", Content_Type="text/plain")
        async with session.get(served.get_url("public/log")) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert await response.read() == packed
        assert (await get(served.get_url("public/log"))).text == "text " * 1000


async def curl(*arguments: str | Path) -> None:
    process = await asyncio.create_subprocess_exec("curl", "--silent", "--fail", *arguments)
    assert await process.wait() == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_uploads_and_downloads(tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(bytes(range(256)) * 8192)  # large enough for "Expect: 100-continue"
    async with serving() as served:
        await curl("--upload-file", tmp_path / "up", served.put_url("private/a b"))
        await curl("--output", tmp_path / "down", served.get_url("private/a b"))
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()


@pytest.mark.parametrize(
    ("asked", "part", "described"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=7-99", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", b"0123456789", "bytes 0-9/10"),
    ],
)
async def test_the_response_to_a_range_is_206(asked: str, part: bytes, described: str) -> None:
    async with serving() as served:
        await put(served.put_url("public/x"), b"0123456789")
        response = await get(served.get_url("public/x"), Range=asked)
    assert (response.status_code, response.content) == (206, part)
    assert response.headers["Content-Range"] == described


@pytest.mark.parametrize("asked", ["bytes=4-2", "bytes=0-1,3-4", "lines=1-2", "bytes=x"])
async def test_a_range_that_cannot_be_read_gives_the_whole_body(asked: str) -> None:
    async with serving() as served:
        await put(served.put_url("public/x"), b"0123456789")
        response = await get(served.get_url("public/x"), Range=asked)
    assert (response.status_code, response.content) == (200, b"0123456789")


async def test_a_range_behind_the_end_is_refused() -> None:
    async with serving() as served:
        await put(served.put_url("public/x"), b"0123456789")
        for asked in ("bytes=10-", "bytes=-0"):  # the second: the last 0 bytes
            assert has_error(await get(served.get_url("public/x"), Range=asked), 416, "InvalidRange")


async def test_a_range_of_a_body_that_was_replaced_gives_the_whole_new_one() -> None:
    async with serving() as served:
        before = await put(served.put_url("public/x"), b"0123456789")
        await put(served.put_url("public/x"), b"abcdefghij")
        response = await get(served.get_url("public/x"), Range="bytes=5-", If_Range=before.headers["ETag"])
    assert (response.status_code, response.content) == (200, b"abcdefghij")


async def test_a_body_that_the_client_has_is_not_sent_again() -> None:
    async with serving() as served:
        stored = await put(served.put_url("public/x"), b"0123456789")
        response = await get(served.get_url("public/x"), If_None_Match=stored.headers["ETag"])
    assert (response.status_code, response.content) == (304, b"")


@pytest.mark.parametrize(
    ("condition", "since", "status"),
    [
        ("If_Match", 0, 200),
        ("If_None_Match", 0, 304),
        ("If_Modified_Since", 0, 304),
        ("If_Modified_Since", -1, 200),
        ("If_Unmodified_Since", 0, 200),
        ("If_Unmodified_Since", -1, 412),
    ],
)
async def test_a_body_is_sent_only_on_the_conditions_of_the_request(
    condition: str, since: int, status: int
) -> None:
    """`wget -N` and `curl -z` transfer only what has changed; a download in parts notices a replaced body."""
    async with serving() as served:
        await put(served.put_url("public/x"), b"0123456789")
        found = await get(served.get_url("public/x"))
        modified = parsedate_to_datetime(found.headers["Last-Modified"]) + timedelta(seconds=since)
        by_date = format_datetime(modified, usegmt=True)
        wanted = {condition: by_date if condition.endswith("Since") else found.headers["ETag"]}
        response = await get(served.get_url("public/x"), **wanted)
    assert response.status_code == status
    assert (response.content == found.content) is (status == 200)


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
async def test_a_date_without_a_zone_is_in_utc() -> None:
    """RFC 9110, 5.6.7: the format of asctime."""
    async with serving() as served:
        await put(served.put_url("public/x"), b"0123456789")
        found = await get(served.get_url("public/x"))
        modified = parsedate_to_datetime(found.headers["Last-Modified"])
        before = (modified - timedelta(hours=1)).strftime("%a %b %d %H:%M:%S %Y")
        response = await get(served.get_url("public/x"), If_Modified_Since=before)
    assert response.status_code == 200


async def test_a_part_of_a_replaced_body_is_refused_to_a_client_that_has_begun_with_the_old_one() -> None:
    async with serving() as served:
        before = await put(served.put_url("public/x"), b"0123456789")
        await put(served.put_url("public/x"), b"abcdefghij")
        url, old = served.get_url("public/x"), before.headers["ETag"]
        refused = await get(url, Range="bytes=5-", If_Match=old)
        later = "Fri, 01 Jan 2100 00:00:00 GMT"
        by_etag = [
            await get(url, If_None_Match=old, If_Modified_Since=later),
            await get(url, If_Match="*", If_Unmodified_Since="Thu, 01 Jan 1970 00:00:01 GMT"),
            await get(
                url, If_Modified_Since="yesterday", If_Unmodified_Since=f"Fri, 01 Jan {9**99} 00:00:00 GMT"
            ),
        ]
    assert has_error(refused, 412, "PreconditionFailed")
    assert [response.status_code for response in by_etag] == [200, 200, 200]


@pytest.mark.parametrize("data", [b"", b"0123456789"])
async def test_the_response_to_head_has_the_length_and_no_body(data: bytes) -> None:
    async with serving() as served:
        await put(served.put_url("public/x"), data, Content_Type="text/plain")
        response = await asyncio.to_thread(requests.head, served.get_url("public/x"), timeout=30)
        whole = await get(served.get_url("public/x"))
    assert (response.status_code, response.headers["Content-Length"]) == (200, str(len(data)))
    assert whole.content == data


async def test_a_url_that_is_signed_for_get_refuses_head() -> None:
    """The method is part of the signature, as with S3."""
    async with serving() as served:
        await put(served.put_url("private/x"), b"data")
        url = served.get_url("private/x")
        refused = await asyncio.to_thread(requests.head, url, timeout=30)
        assert (await get(url)).content == b"data"
    assert refused.status_code == 403


def ask(url: str, **headers: str) -> requests.Response:
    """Make a preflight request, as a browser does before a page of another origin may send its request."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return requests.options(url, headers={"Origin": "https://page.example"} | named, timeout=30)


@pytest.mark.parametrize("bucket", ["public-bucket", "private-bucket", "object-bucket"])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "POST", "DELETE"])
def test_a_browser_lets_pages_of_other_origins_use_storage(
    shared_queue: LocalQueue, bucket: str, method: str
) -> None:
    """The service configures its buckets so: pages read artifacts where `getArtifact` redirects to."""
    wanted = {"Access_Control_Request_Method": method, "Access_Control_Request_Headers": "content-type,range"}
    response = ask(f"{shared_queue.root_url}/storage/{bucket}/task/0/x", **wanted)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert response.headers["Access-Control-Allow-Methods"] == "GET, PUT, HEAD, POST, DELETE"
    assert response.headers["Access-Control-Allow-Headers"] == "content-type,range"
    assert response.headers["Access-Control-Max-Age"] == "3600"


def test_a_browser_that_asks_for_too_much_or_too_little_is_refused(shared_queue: LocalQueue) -> None:
    url = f"{shared_queue.root_url}/storage/public-bucket/task/0/x"
    for wanted in (
        {"Access_Control_Request_Method": "PATCH"},
        {"Access_Control_Request_Method": "GET", "Access_Control_Request_Headers": "\xff"},
    ):
        assert has_error(ask(url, **wanted), 403, "AccessForbidden")
    assert has_error(ask(url), 400, "BadRequest")
    assert has_error(requests.options(url, timeout=30), 400, "BadRequest")


async def test_pages_of_other_origins_can_read_responses_and_errors() -> None:
    async with serving() as served:
        stored = await put(served.put_url("public/x"), b"data")
        responses = [stored, *[await get(served.get_url(name)) for name in ("public/x", "public/nothing")]]
        responses.append(await get(served.get_url("private/x").partition("?")[0]))
    assert [response.status_code for response in responses] == [200, 200, 404, 403]
    assert {response.headers.get("Access-Control-Allow-Origin") for response in responses} == {"*"}


async def test_storage_refuses_what_no_valid_signature_allows() -> None:
    async with serving() as served:
        put_url = served.put_url("private/x")
        await put(put_url, b"secret")
        other = put_url.replace("private/x", "private/y")
        assert has_error(await put(other, b"data"), 403, "SignatureDoesNotMatch")
        assert has_error(await get(put_url), 403, "SignatureDoesNotMatch")
        assert has_error(await put(served.get_url("private/x"), b"data"), 403, "SignatureDoesNotMatch")
        assert has_error(await get(served.get_url("private/x").partition("?")[0]), 403, "AccessDenied")
        public = served.storage.buckets.plain_url("public-bucket", s3_key("public/x"))
        assert has_error(await put(public, b"data"), 403, "AccessDenied")
        assert len(served.files()) == 1


async def test_urls_end_when_their_time_is_over() -> None:
    async with serving() as served:
        (put_url, get_url) = (served.put_url("private/x"), served.get_url("private/x"))
        served.clock.advance(minutes=30)
        assert (await put(put_url, b"data")).status_code == 200
        assert (await get(get_url)).status_code == 200
        served.clock.advance(seconds=1)
        assert has_error(await get(get_url), 403, "AccessDenied")
        served.clock.advance(minutes=15, seconds=8)
        assert (await put(put_url, b"data")).status_code == 200
        served.clock.advance(seconds=2)
        expired = await put(put_url, b"data")
    assert has_error(expired, 403, "AccessDenied")
    assert "Request has expired" in expired.text


@pytest.mark.parametrize("name", ["public/nothing", "private/nothing"])
async def test_an_object_that_was_never_stored_is_missing(name: str) -> None:
    async with serving() as served:
        assert has_error(await get(served.get_url(name)), 404, "NoSuchKey")


def send_raw(
    url: str, *headers: tuple[str, str], body: bytes = b"", finish: bool = True
) -> tuple[int, bytes]:
    """Send a PUT as it is, and return status and body; without `finish`, close the connection after it."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
        connection.putrequest("PUT", f"{parts.path}?{parts.query}")
        for name, text in headers:
            connection.putheader(name, text)
        connection.endheaders(body)
        if not finish:
            return (0, b"")
        response = connection.getresponse()
        return (response.status, response.read())


async def test_an_upload_must_announce_its_length() -> None:
    async with serving() as served:
        url = served.put_url("public/x")
        (status, text) = await asyncio.to_thread(send_raw, url)
        assert (status, b"MissingContentLength" in text) == (411, True)
        chunked = ("Transfer-Encoding", "chunked")
        (status, text) = await asyncio.to_thread(send_raw, url, chunked, body=b"3\r\nabc\r\n0\r\n\r\n")
        assert (status, b"NotImplemented" in text) == (501, True)


async def break_off(served: Served, name: str, length: int, sent: bytes) -> None:
    """Begin an upload, close the connection, and wait until the server has noticed."""
    served.responded.clear()
    announced = ("Content-Length", str(length))
    await asyncio.to_thread(send_raw, served.put_url(name), announced, body=sent, finish=False)
    await asyncio.wait_for(served.responded.wait(), 30)


async def test_an_upload_that_breaks_off_leaves_nothing() -> None:
    async with serving() as served:
        await break_off(served, "public/x", 4 * MIB, b"x" * (2 * MIB))
        assert served.files() == []
        assert has_error(await get(served.get_url("public/x")), 404, "NoSuchKey")


async def test_an_upload_that_breaks_off_leaves_the_body_before_it() -> None:
    async with serving() as served:
        await put(served.put_url("public/x"), b"before")
        await break_off(served, "public/x", 100, b"x")
        assert len(served.files()) == 1
        assert (await get(served.get_url("public/x"))).content == b"before"


@pytest.mark.parametrize(
    ("md5", "code"),
    [(hashlib.md5(b"other").digest(), "BadDigest"), (b"short", "InvalidDigest"), (b"", "InvalidDigest")],
)
async def test_an_upload_whose_bytes_do_not_have_the_announced_md5_sum_leaves_the_body_before_it(
    md5: bytes, code: str
) -> None:
    async with serving() as served:
        right = b64encode(hashlib.md5(b"before").digest()).decode()
        assert (await put(served.put_url("public/x"), b"before", Content_MD5=right)).status_code == 200
        refused = await put(served.put_url("public/x"), b"after", Content_MD5=b64encode(md5).decode())
        assert has_error(refused, 400, code)
        assert len(served.files()) == 1
        assert (await get(served.get_url("public/x"))).content == b"before"


async def test_an_upload_with_a_header_that_is_not_utf_8_is_refused() -> None:
    async with serving() as served:
        url = served.put_url("public/x")
        assert has_error(await put(url, b"x", Content_Type="text/\xe9"), 400, "InvalidArgument")
        assert served.files() == []


async def test_a_full_disk_is_an_error_that_clients_retry_and_leaves_nothing() -> None:
    (soft, hard) = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with serving() as served:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
        try:
            refused = await put(served.put_url("public/x"), b"x" * (3 * MIB))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert has_error(refused, 500, "InternalError")
        assert served.files() == []


async def test_a_disk_that_is_full_only_when_the_upload_is_recorded_is_the_same_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        served.store.rows(f"PRAGMA max_page_count = {served.store.value('PRAGMA page_count')}")
        replies = [await put(served.put_url("x" * 900 + str(number)), b"x") for number in range(6)]
        assert has_error(replies[-1], 500, "InternalError")
        assert len(served.files()) == [reply.status_code for reply in replies].count(200)
    assert caplog.messages[-1] == "an upload could not be stored: database or disk is full"


async def test_an_upload_after_the_directory_was_deleted_is_an_error_that_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        served.directory.rmdir()
        assert has_error(await put(served.put_url("public/x"), b"x"), 500, "InternalError")
    finding = f"{served.directory} was deleted, with all artifacts; restart the local queue"
    assert caplog.messages == [f"an upload could not be stored: {finding}"]
    assert not any(record.exc_info for record in caplog.records)


async def test_a_body_that_is_replaced_leaves_no_file_and_no_download_short() -> None:
    async with serving() as served, aiohttp.ClientSession() as session:
        await put(served.put_url("public/x"), b"a" * (8 * MIB))
        async with session.get(served.get_url("public/x")) as response:
            await put(served.put_url("public/x"), b"b")
            assert len(served.files()) == 1
            assert await response.read() == b"a" * (8 * MIB)
        assert (await get(served.get_url("public/x"))).content == b"b"


HOSTILE_NAMES = [
    "public/../../../../etc/passwd",
    "public/..",
    "public/.",
    "public/./x",
    "public/~.",
    "public/~../x",
    "public/%2E%2E/x",
    "public//x",
    "public/x/",
    "/etc/passwd",
    "public/a b+c&d=e?f#g%20%",
    "public/'\"<>;:@!$(),*~|\\^`{}[]",
    "private/" + "n" * 1000,
]


async def test_each_name_has_its_own_body_in_a_file_that_is_not_named_after_it() -> None:
    async with serving() as served:
        for number, name in enumerate(HOSTILE_NAMES):
            assert (await put(served.put_url(name), b"%d" % number)).status_code == 200, name
        async with aiohttp.ClientSession() as session:
            for number, name in enumerate(HOSTILE_NAMES):
                assert (await get(served.get_url(name))).content == b"%d" % number, name
                async with session.get(served.get_url(name)) as response:
                    assert await response.read() == b"%d" % number, name
        assert all(path.name.isalnum() and len(path.name) == 32 for path in served.files())
        assert len(served.files()) == len(HOSTILE_NAMES)


def send_bytes(url: str, request: bytes) -> bytes:
    """The first line of the response to a request."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline()


@pytest.mark.parametrize("method", [b"GET", b"PUT"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("path", "extra"),
    [
        (b"", b""),
        (b"\xff\xc3", b""),
        (b"%ff%00%c3", b""),
        (b"%zz%", b""),
        (b"#x", b""),
        (b"a", b"X-Other: \xff\r\n"),
        (b"a", b"Content-Type: \xff\r\n"),
        (b"a", b"Content-Length: -1\r\n"),
        (b"a", b"Range: bytes=99999999999999999999-\r\n"),
    ],
)
async def test_a_malformed_request_is_the_clients_fault(
    method: bytes,
    signed: bool,  # noqa: FBT001  a parameter of the test
    path: bytes,
    extra: bytes,
) -> None:
    async with serving() as served:
        query = b"?" + served.put_url("public/x").partition("?")[2].encode() if signed else b""
        head = method + b" /storage/public-bucket/" + path + query + b" HTTP/1.1\r\n"
        request = head + b"Host: \xff\r\nConnection: close\r\n" + extra + b"\r\n"
        line = await asyncio.to_thread(send_bytes, served.url, request)
    assert line.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


async def test_objects_in_a_file_outlive_the_server(tmp_path: Path) -> None:
    store = str(tmp_path / "tasks.sqlite")
    async with serving(store) as served:
        await put(served.put_url("private/x"), b"kept", Content_Type="text/x")
        url = urlsplit(served.get_url("private/x"))
    directory = tmp_path / "tasks.sqlite.artifacts"
    assert directory.stat().st_mode & 0o777 == 0o700
    (directory / ("a" * 32)).write_bytes(b"a body without a row")
    (directory / "notes.txt").write_text("not ours")
    async with serving(store, port=url.port or 0) as served:
        response = await get(url.geturl())
        assert (response.content, response.headers["Content-Type"]) == (b"kept", "text/x")
        assert len([path for path in served.files() if path.name != "notes.txt"]) == 1
        assert (directory / "notes.txt").exists()


async def test_objects_are_found_through_a_link_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to("tasks.sqlite")
    async with serving(str(tmp_path / "tasks.sqlite")) as served:
        await put(served.put_url("public/x"), b"kept")
    async with serving(str(tmp_path / "link.sqlite")) as served:
        assert (await get(served.get_url("public/x"))).content == b"kept"


async def test_a_body_whose_file_was_deleted_does_not_exist_until_it_is_stored_again() -> None:
    async with serving() as served:
        await put(served.put_url("public/x"), b"lost")
        served.files()[0].unlink()
        assert has_error(await get(served.get_url("public/x")), 404, "NoSuchKey")
        await put(served.put_url("public/x"), b"again")
        assert (await get(served.get_url("public/x"))).content == b"again"


async def test_objects_in_memory_leave_no_directory() -> None:
    async with serving() as served:
        await put(served.put_url("private/x"), b"data")
        directory = served.files()[0].parent
    assert not directory.exists()


async def test_a_sparse_body_takes_little_memory_and_little_disk() -> None:
    size = 256 * MIB

    class Zeros:
        left = size

        def __len__(self) -> int:
            return self.left

        def read(self, count: int) -> bytes:
            count = min(count, self.left)
            self.left -= count
            return bytes(count)

    async with serving() as served:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        url = served.put_url("public/core")
        await asyncio.to_thread(requests.put, url, data=Zeros(), timeout=60)  # type: ignore[arg-type]
        (path,) = served.files()
        assert (path.stat().st_size, path.stat().st_blocks) == (size, 0)
        async with aiohttp.ClientSession() as session, session.get(served.get_url("public/core")) as response:
            assert sum([len(chunk) async for chunk in response.content.iter_any()]) == size
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 32 * 1024, "KiB"


async def test_no_acknowledged_body_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    store = str(tmp_path / "tasks.sqlite")
    names = [f"public/{number}" for number in range(40)]
    acknowledged: list[str] = []
    for killed_at in (3, 11, 17):
        command = [sys.executable, "-m", "tests.local.storage_server", store, *names]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        urls = [(await process.stdout.readline()).decode().strip() for _ in names]
        uploads = [asyncio.create_task(upload(url, name)) for url, name in zip(urls, names, strict=True)]
        while sum(upload.done() for upload in uploads) < killed_at:
            await asyncio.wait(
                [upload for upload in uploads if not upload.done()], return_when="FIRST_COMPLETED"
            )
        process.send_signal(signal.SIGKILL)
        await process.wait()
        acknowledged += [name for name in await asyncio.gather(*uploads) if name is not None]
    assert len(acknowledged) >= 31
    async with serving(store) as served:
        for name in acknowledged:
            assert (await get(served.get_url(name))).content == content(name)
        in_use = served.store.connection.execute("SELECT file FROM bodies ORDER BY file").fetchall()
        assert [(path.name,) for path in served.files()] == in_use


def content(name: str) -> bytes:
    return name.encode() * 30_000


async def upload(url: str, name: str) -> str | None:
    """Upload an object; return its name if the upload was acknowledged, or None."""
    try:
        async with aiohttp.ClientSession() as session, session.put(url, data=content(name)) as response:
            return name if response.status == 200 else None
    except aiohttp.ClientError:
        return None


def test_a_start_removes_the_files_of_a_killed_queue_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other = tmp_path / "taskqueue-artifacts-left", tmp_path / "another"
    for directory in (left, other):
        directory.mkdir()
        (directory / "body").touch()
    with LocalQueue():
        (in_use,) = {*tmp_path.iterdir()} - {other}
        assert in_use != left
        with LocalQueue():
            assert len({*tmp_path.iterdir()} - {other, in_use}) == 1
            assert in_use.is_dir()
    assert [*tmp_path.iterdir()] == [other]
