"""Downloads from servers that differ from S3, or that break the rules of HTTP."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client.artifacts import (
    DownloadCorrupt,
    NotOffered,
    RedirectRefused,
    StorageFailed,
    StorageRefused,
    StreamInterrupted,
    downloading,
)
from taskqueue_client.artifacts.sources import BLOCK
from tests.artifacts.conftest import EitherClient, no_isal
from tests.artifacts.raw_server import RawResponse, RawServer, Request, json_response

CONTENT = b"".join(number.to_bytes(4, "big") for number in range(100_000))
HALF = len(CONTENT) // 2


def serve(server: RawServer, *responses: RawResponse | Callable[[Request], RawResponse]) -> list[Request]:
    """Be Queue and storage: send these responses in turn, then the last one again; return the GETs."""
    left = list(responses)
    gets: list[Request] = []

    def respond(request: Request) -> RawResponse:
        if request.path.startswith("/api/"):
            return json_response({"storageType": "reference", "url": f"{server.url}/file?signature=secret"})
        gets.append(request)
        given = left.pop(0) if len(left) > 1 else left[0]
        return given if isinstance(given, RawResponse) else given(request)

    server.respond = respond
    return gets


def cut(*headers: tuple[str, str]) -> RawResponse:
    return RawResponse(headers=headers, body=CONTENT[:HALF], announced=len(CONTENT))


def whole(*headers: tuple[str, str]) -> RawResponse:
    return RawResponse(headers=headers, body=CONTENT)


def rest(request: Request) -> RawResponse:
    return part(request, len(CONTENT))


PART = 10


def next_part(request: Request) -> RawResponse:
    return part(request, PART)


def part(request: Request, size: int) -> RawResponse:
    """Respond with at most `size` bytes of the requested range."""
    start = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    body = CONTENT[start : start + size]
    span = ("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(CONTENT)}")
    return RawResponse(206, (span,), body)


def test_the_rest_is_asked_for_if_the_file_is_still_the_same(
    raw_client: EitherClient, server: RawServer
) -> None:
    gets = serve(server, cut(("ETag", '"1"')), rest)
    assert raw_client.download("x").content == CONTENT
    assert (gets[1].headers["Range"], gets[1].headers["If-Range"]) == (f"bytes={HALF}-", '"1"')


@pytest.mark.parametrize("headers", [(), (("ETag", 'W/"1"'),)])
def test_without_a_strong_etag_everything_is_asked_for_again(
    raw_client: EitherClient, server: RawServer, headers: tuple[tuple[str, str], ...]
) -> None:
    gets = serve(server, cut(*headers), whole())
    assert raw_client.download("x").content == CONTENT
    assert gets[1].headers["Range"] is None


def test_a_file_that_was_replaced_meanwhile_is_taken_from_its_start(
    raw_client: EitherClient, server: RawServer
) -> None:
    serve(server, cut(("ETag", '"1"')), RawResponse(headers=(("ETag", '"2"'),), body=b"new"))
    assert raw_client.download("x").content == b"new"


@pytest.mark.parametrize(
    ("etag", "total"), [('"2"', len(CONTENT)), ('W/"1"', "*"), ('"1"', len(CONTENT) + 1)]
)
def test_the_rest_of_another_file_is_not_taken(
    raw_client: EitherClient, server: RawServer, etag: str, total: object
) -> None:
    """Not every server knows `If-Range`."""
    headers = (("Content-Range", f"bytes {HALF}-{len(CONTENT) - 1}/{total}"), ("ETag", etag))
    gets = serve(server, cut(("ETag", '"1"')), RawResponse(206, headers, bytes(HALF)), whole())
    assert raw_client.download("x").content == CONTENT
    assert [each.headers["Range"] for each in gets] == [None, f"bytes={HALF}-", None]


def test_the_rest_of_another_file_is_not_given_to_a_stream(
    raw_client: EitherClient, server: RawServer
) -> None:
    headers = (("Content-Range", f"bytes {HALF}-{len(CONTENT) - 1}/{len(CONTENT)}"), ("ETag", '"2"'))
    serve(server, cut(("ETag", '"1"')), RawResponse(206, headers, bytes(HALF)), whole())
    with pytest.raises(StreamInterrupted, match=f"after {HALF} bytes"):
        raw_client.stream("x")


def test_another_part_than_was_asked_for_is_not_taken(raw_client: EitherClient, server: RawServer) -> None:
    other = RawResponse(206, (("Content-Range", f"bytes 0-9/{len(CONTENT)}"),), CONTENT[:10])
    gets = serve(server, cut(("ETag", '"1"')), other, whole())
    assert raw_client.download("x").content == CONTENT
    assert [each.headers["Range"] for each in gets] == [None, f"bytes={HALF}-", None]


@pytest.mark.parametrize("to_file", [False, True], ids=["to memory", "to a file"])
def test_a_part_that_was_not_asked_for_is_not_taken(
    raw_client: EitherClient, server: RawServer, tmp_path: Path, *, to_file: bool
) -> None:
    span = ("Content-Range", f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")
    packed = RawResponse(206, (span, ("Content-Encoding", "gzip")), gzip.compress(CONTENT))
    serve(server, packed, whole())
    to = tmp_path / "file"
    result = raw_client.download("x", **({"to": to} if to_file else {}))
    assert (to.read_bytes() if to_file else result.content) == CONTENT
    serve(server, packed)
    with pytest.raises(StorageFailed, match="HTTP 206, but all of the content was requested"):
        raw_client.download("x")


def test_an_interim_response_is_not_the_response(raw_client: EitherClient, server: RawServer) -> None:
    head = f"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
    serve(server, RawResponse(raw=head.encode() + CONTENT))
    assert raw_client.download("x").content == CONTENT


def test_less_than_the_rest_is_not_taken_for_all_of_it(raw_client: EitherClient, server: RawServer) -> None:
    gets = serve(server, cut(("ETag", '"1"')), next_part, rest)
    assert raw_client.download("x").content == CONTENT
    assert gets[2].headers["Range"] == f"bytes={HALF + PART}-"


def test_the_rest_of_a_file_is_taken_where_the_server_does_not_say_how_long_the_file_is(
    raw_client: EitherClient, server: RawServer
) -> None:
    span = ("Content-Range", f"bytes {HALF}-{len(CONTENT) - 1}/*")
    serve(server, cut(("ETag", '"1"')), RawResponse(206, (span,), CONTENT[HALF:]))
    assert raw_client.download("x").content == CONTENT


@pytest.mark.parametrize(
    ("span", "received"),
    [((("Content-Range", "bytes 0-9/400000"),), "bytes 0-9/400000"), ((), "none")],
    ids=["another part", "no range"],
)
def test_an_error_says_which_part_a_server_sent_instead_of_the_rest(
    raw_client: EitherClient, server: RawServer, span: tuple[tuple[str, str], ...], received: str
) -> None:
    serve(server, cut(("ETag", '"1"')), RawResponse(206, span, CONTENT[:10]))
    with pytest.raises(StorageFailed) as caught:
        raw_client.download("x")
    reason = f"requested bytes from {HALF} on, received Content-Range: {received}"
    assert str(caught.value) == f"GET {server.url}/file: {reason}"


def test_an_error_says_how_many_bytes_are_missing(raw_client: EitherClient, server: RawServer) -> None:
    gets = serve(server, cut(("ETag", '"1"')), next_part)
    with pytest.raises(StorageFailed) as caught:
        raw_client.download("x")
    left = len(CONTENT) - HALF - PART * (len(gets) - 1)
    assert str(caught.value) == f"GET {server.url}/file: the response ends {left} bytes too early"


@pytest.mark.parametrize("to_file", [False, True], ids=["to memory", "to a file"])
def test_interruptions_do_not_count_as_long_as_much_is_received(
    raw_client: EitherClient,
    server: RawServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    to_file: bool,
) -> None:
    monkeypatch.setattr(downloading, "GOES_ON_AFTER", len(CONTENT) // 50)
    gets = serve(server, cut(("ETag", '"1"')), partial(part, size=len(CONTENT) // 50))
    to = tmp_path / "file"
    result = raw_client.download("x", **({"to": to} if to_file else {}))
    assert (to.read_bytes() if to_file else result.content) == CONTENT
    assert len(gets) == 1 + 25


def test_a_stream_goes_on_as_long_as_much_is_received(
    raw_client: EitherClient, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "GOES_ON_AFTER", len(CONTENT) // 50)
    serve(server, cut(("ETag", '"1"')), partial(part, size=len(CONTENT) // 50))
    assert b"".join(raw_client.stream("x")) == CONTENT


def test_a_part_that_is_longer_than_its_range_is_not_accepted(
    raw_client: EitherClient, server: RawServer
) -> None:
    span = ("Content-Range", f"bytes {HALF}-{len(CONTENT) - 1}/{len(CONTENT)}")
    longer = RawResponse(206, (span, ("ETag", '"1"')), CONTENT)
    gets = serve(server, cut(("ETag", '"1"')), longer, RawResponse(body=CONTENT))
    assert raw_client.download("x").content == CONTENT
    assert [get.headers["Range"] for get in gets] == [None, f"bytes={HALF}-", None]


@pytest.mark.parametrize(("encoding", "encode"), [("identity", bytes), ("gzip", gzip.compress)])
def test_a_url_that_storage_calls_expired_is_replaced_and_the_download_resumes(
    raw_client: EitherClient, server: RawServer, encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    expired = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    refusal = RawResponse(403, (("Content-Encoding", encoding),), encode(expired))
    signatures, gets = iter(["first", "second"]), list[Request]()

    def respond(request: Request) -> RawResponse:
        if request.path.startswith("/api/"):
            url = f"{server.url}/file?signature={next(signatures)}"
            return json_response({"storageType": "s3", "url": url})
        gets.append(request)
        if request.path.endswith("second"):
            return rest(request)
        return cut(("ETag", '"1"')) if len(gets) == 1 else refusal

    server.respond = respond
    assert raw_client.download("x").content == CONTENT
    assert [get.path.rpartition("=")[2] for get in gets] == ["first", "first", "second"]


def serve_cdn(server: RawServer, cdn: RawResponse, storage: RawResponse) -> list[str]:
    """Let the Queue refer to a CDN, unless storage is requested; return the paths of requests to them."""
    gets: list[str] = []

    def respond(request: Request) -> RawResponse:
        if request.path.startswith("/api/"):
            if request.headers["x-taskcluster-skip-cdn"] == "1":
                return replace(json_response({"storageType": "s3", "url": f"{server.url}/key"}), status=303)
            return json_response({"storageType": "s3", "url": f"{server.url}/cdn"})
        gets.append(request.path)
        return cdn if request.path == "/cdn" else storage

    server.respond = respond
    return gets


@pytest.mark.parametrize("status", [403, 404])
def test_what_was_requested_from_a_cdn_before_its_upload_is_read_from_storage(
    raw_client: EitherClient, server: RawServer, status: int
) -> None:
    gets = serve_cdn(server, RawResponse(status), whole())
    assert raw_client.download("x").content == CONTENT
    assert b"".join(raw_client.stream("x")) == CONTENT
    assert gets == ["/cdn", "/key"] * 2


def test_content_that_storage_does_not_have_either_is_not_requested_again(
    raw_client: EitherClient, server: RawServer
) -> None:
    gets = serve_cdn(server, RawResponse(404), RawResponse(404))
    with pytest.raises(StorageRefused, match="HTTP 404"):
        raw_client.download("x")
    assert gets == ["/cdn", "/key"]


def serve_object(
    raw_client: EitherClient, server: RawServer, respond: Callable[[Request], RawResponse]
) -> list[Request]:
    """Let the server be the Queue, the object service, and storage that responds to each GET."""
    gets: list[Request] = []

    def respond_to_all(request: Request) -> RawResponse:
        if request.path.startswith("/api/queue/"):
            return json_response({"storageType": "object", "name": "t/key"})
        if request.path.startswith("/api/object/"):
            expires = datetime.fromtimestamp(raw_client.clock.now() + 60, UTC).isoformat()
            hashes = {"sha256": sha256(CONTENT).hexdigest()}
            url = f"{server.url}/file"
            return json_response({"method": "getUrl", "url": url, "expires": expires, "hashes": hashes})
        gets.append(request)
        return respond(request)

    server.respond = respond_to_all
    return gets


def test_a_url_that_expires_before_storage_looks_at_it_is_replaced(
    raw_client: EitherClient, server: RawServer
) -> None:
    def respond(_: Request) -> RawResponse:
        if len(gets) == 1:
            raw_client.clock.sleep(61)
            return RawResponse(403, (), b"<Error><Code>AccessDenied</Code></Error>")
        return whole()

    gets = serve_object(raw_client, server, respond)
    assert raw_client.download("x").content == CONTENT
    assert len(gets) == 2


@pytest.mark.parametrize("storage_type", ["blob", "link"])
def test_content_of_an_unknown_storage_type_is_not_read(
    raw_client: EitherClient, server: RawServer, storage_type: str
) -> None:
    seen: list[Request] = []

    def respond(request: Request) -> RawResponse:
        seen.append(request)
        if request.path.startswith("/api/"):
            return json_response({"storageType": storage_type, "url": f"{server.url}/file"})
        return whole()

    server.respond = respond
    with pytest.raises(NotOffered, match=f"does not support; found storage type {storage_type}$"):
        raw_client.download("x")
    assert len(seen) == 1


def test_a_stream_cannot_begin_again(raw_client: EitherClient, server: RawServer) -> None:
    serve(server, cut(), whole())
    with pytest.raises(StreamInterrupted, match=f"after {HALF} bytes"):
        raw_client.stream("x")


CHUNKS = (("Transfer-Encoding", "chunked"),)


def test_a_body_in_chunks_is_read(raw_client: EitherClient, server: RawServer) -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
    serve(server, RawResponse(headers=CHUNKS, body=body))
    assert raw_client.download("x").content == CONTENT


def test_where_only_the_end_was_missing_everything_is_asked_for_again(
    raw_client: EitherClient, server: RawServer
) -> None:
    block, headers = bytes(BLOCK), (*CHUNKS, ("ETag", '"1"'))
    no_end = RawResponse(headers=headers, body=b"%x\r\n%b\r\n" % (BLOCK, block), hangs_up=True)
    gets = serve(server, no_end, RawResponse(416), RawResponse(body=block))
    assert raw_client.download("x").content == block
    assert [each.headers["Range"] for each in gets] == [None, f"bytes={BLOCK}-", None]


def test_a_server_that_refuses_every_range_is_an_error(raw_client: EitherClient, server: RawServer) -> None:
    serve(server, cut(("ETag", '"1"')), RawResponse(416))
    with pytest.raises(StorageFailed, match=f"^GET {server.url}/file: the server has no bytes after"):
        raw_client.download("x")


def test_a_body_whose_last_chunk_is_missing_is_not_taken(
    raw_client: EitherClient, server: RawServer, tmp_path: Path
) -> None:
    body = b"%x\r\n%b\r\n" % (HALF, CONTENT[:HALF])
    serve(server, RawResponse(headers=(*CHUNKS, ("Connection", "close")), body=body, announced=0))
    with pytest.raises(StorageFailed, match="the response is incomplete"):
        raw_client.download("x", to=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def encoded(encoding: str, body: bytes) -> RawResponse:
    return RawResponse(headers=(("Content-Encoding", encoding),), body=body)


@pytest.mark.parametrize("encoding", ["", "identity", "Identity", "gzip", "GZIP", "x-gzip", "gzip \t"])
def test_the_names_of_encodings_are_those_of_http(
    raw_client: EitherClient, server: RawServer, encoding: str
) -> None:
    serve(server, encoded(encoding, gzip.compress(CONTENT) if "zip" in encoding.lower() else CONTENT))
    assert raw_client.download("x").content == CONTENT


@pytest.mark.parametrize("backend", ["isal", "zlib"])
def test_gzip_of_several_members_is_decoded(
    raw_client: EitherClient, server: RawServer, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    if backend == "zlib":
        monkeypatch.setattr("taskqueue_client.artifacts.content.isal", no_isal)
    serve(server, encoded("gzip", gzip.compress(CONTENT) + gzip.compress(b"") + gzip.compress(b"end")))
    assert raw_client.download("x").content == CONTENT + b"end"


@pytest.mark.parametrize("backend", ["isal", "zlib"])
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(CONTENT, mtime=0)[:-1]),
        ("gzip", gzip.compress(CONTENT, mtime=0)[:1000]),
        ("gzip", gzip.compress(CONTENT, mtime=0)[:-8] + bytes(8)),
        ("gzip", CONTENT),
        ("br", CONTENT),
    ],
    ids=["without its end", "half", "wrong checksum", "no gzip", "unknown encoding"],
)
def test_content_that_cannot_be_decoded_is_an_error_and_leaves_no_file(
    raw_client: EitherClient,
    server: RawServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    body: bytes,
    backend: str,
) -> None:
    if backend == "zlib":
        monkeypatch.setattr("taskqueue_client.artifacts.content.isal", no_isal)
    serve(server, encoded(encoding, body))
    with pytest.raises(DownloadCorrupt):
        raw_client.download("x", to=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def redirect(to: str, status: int = 302) -> RawResponse:
    return RawResponse(status, (("Location", to), ("Set-Cookie", "session=1")), b"elsewhere")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_without_cookies(
    raw_client: EitherClient, server: RawServer, status: int
) -> None:
    gets = serve(server, redirect("other \t", status), redirect("/third?x=1#part", status), whole())
    assert raw_client.download("x").content == CONTENT
    assert [get.path for get in gets] == ["/file?signature=secret", "/other", "/third?x=1"]
    assert all(get.headers["Cookie"] is get.headers["Authorization"] is None for get in gets)


def test_there_is_an_end_to_redirects(raw_client: EitherClient, server: RawServer) -> None:
    gets = serve(server, redirect("/again"))
    with pytest.raises(RedirectRefused, match="more than 5"):
        raw_client.download("x")
    assert len(gets) == 6


def test_the_url_of_an_object_must_not_redirect(raw_client: EitherClient, server: RawServer) -> None:
    gets = serve_object(
        raw_client, server, lambda get: redirect("/other") if get.path == "/file" else whole()
    )
    with pytest.raises(RedirectRefused, match="more than 0"):
        raw_client.download("x")
    with pytest.raises(RedirectRefused, match="more than 0"):
        raw_client.stream("x")
    assert [get.path for get in gets] == ["/file", "/file"]


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://example.com/x", "data:,x"])
def test_redirects_stay_within_http(raw_client: EitherClient, server: RawServer, to: str) -> None:
    serve(server, redirect(to))
    with pytest.raises(RedirectRefused, match=r"redirected to a \w+ URL; only https is followed") as caught:
        raw_client.download("x")
    assert "secret" not in str(caught.value)


def test_a_redirect_to_a_malformed_url_is_refused(raw_client: EitherClient, server: RawServer) -> None:
    serve(server, redirect("http://[::1"))
    with pytest.raises(RedirectRefused, match="malformed URL"):
        raw_client.download("x")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:///etc/passwd", "file:///etc/passwd"),
        ("ftp://u:p@host/x?secret#secret", "ftp://host/x"),
        ("mailto:me", "mailto:me"),
        ("http://[::1", "a malformed URL"),
        ("http://", "http://"),
        ("http://host/a b", "http://host/a b"),
        ("http://h:x/", "http://h:x/"),
        ("http://h:99999/", "http://h:99999/"),
        ("http://[v1.a]/", "http://[v1.a]/"),
    ],
)
def test_a_reference_that_is_not_a_url_is_an_error(
    raw_client: EitherClient, server: RawServer, url: str, shown: str
) -> None:
    server.respond = lambda _: json_response({"storageType": "reference", "url": url})
    with pytest.raises(RedirectRefused) as caught:
        raw_client.download("x")
    finding = "the response of the service has a URL that is not valid"
    assert str(caught.value) == f"GET {shown}: {finding}; expected an http or https URL with a host"
    assert not caught.value.is_temporary


def test_a_response_without_a_url_is_an_error(raw_client: EitherClient, server: RawServer) -> None:
    server.respond = lambda _: json_response({"storageType": "newer"})
    with pytest.raises(Exception, match="the response to artifact has no URL"):
        raw_client.download("x")


def test_a_refusal_does_not_show_the_signature(raw_client: EitherClient, server: RawServer) -> None:
    refusal: Any = b"<Error><Code>AccessDenied</Code><Message>No.</Message></Error>"
    serve(server, RawResponse(403, (), refusal))
    with pytest.raises(
        StorageFailed, match=r"GET http://127.0.0.1:\d+/file: HTTP 403 AccessDenied No\."
    ) as caught:
        raw_client.download("x")
    assert "secret" not in repr(caught.value)


@pytest.mark.parametrize("is_gzip", [True, False])
def test_a_refusal_that_a_proxy_has_compressed_can_be_read(
    raw_client: EitherClient, server: RawServer, *, is_gzip: bool
) -> None:
    body = b"<Error><Code>NoSuchKey</Code><Message>No key.</Message></Error>"
    serve(server, RawResponse(404, (("Content-Encoding", "gzip"),), gzip.compress(body) if is_gzip else body))
    with pytest.raises(StorageFailed) as caught:
        raw_client.download("x")
    assert str(caught.value).endswith("/file: HTTP 404 NoSuchKey No key.")


def test_of_the_page_of_a_proxy_an_error_shows_the_text(raw_client: EitherClient, server: RawServer) -> None:
    style = b"<style>" + b"body { margin: 0 }\n" * 100 + b"</style>"
    page = (
        b"<html>\r\n<head><title>Denied</title>" + style + b"</head>\r\n<body>by\r\nsquid</body></html>\r\n"
    )
    serve(server, RawResponse(407, (), page))
    with pytest.raises(StorageFailed) as caught:
        raw_client.download("x")
    assert str(caught.value).endswith("/file: HTTP 407 Denied by squid")
