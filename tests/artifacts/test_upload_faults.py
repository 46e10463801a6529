"""With every fault, the artifact is complete and correct, or there is an error and no artifact."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.artifacts import SourceChanged, StorageFailed, StorageRefused, UploadAlreadyBegun
from taskqueue_client.artifacts.sources import open_source
from taskqueue_client.artifacts.transfers import Transfer
from taskqueue_client.errors import InternalServerError, RequestConflict, ServerError
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import CutUpload, Drop, ExpireUrl, Respond
from tests.artifacts.conftest import EitherClient, Run
from tests.artifacts.raw_server import RawResponse, RawServer, responding_early

S3_STEPS = ["queue.createArtifact", "storage.put"]
OBJECT_STEPS = ["object.createUpload", "storage.put", "object.finishUpload", "queue.finishArtifact"]


def left(local: LocalQueue) -> int:
    """The number of times that faults will still strike."""
    return sum(fault["times"] for fault in local.faults.waiting())


@pytest.mark.parametrize("after", [False, True], ids=["request", "response"])
@pytest.mark.parametrize(
    ("storage", "endpoint"),
    [*(("s3", step) for step in S3_STEPS), *(("object", step) for step in OBJECT_STEPS)],
)
def test_a_step_that_is_lost_is_repeated(
    client: EitherClient, local: LocalQueue, content: Path, storage: str, endpoint: str, *, after: bool
) -> None:
    local.faults.add(Drop(endpoint=endpoint, after=after))
    client.upload("public/x.bin", content, storage=storage)
    assert left(local) == 0
    assert client.download("public/x.bin").content == content.read_bytes()


def test_an_object_whose_creation_did_not_arrive_is_created_again(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    local.faults.add(Drop(endpoint="queue.createArtifact", times=2))
    client.upload("public/x.bin", content, storage="object")
    assert client.download("public/x.bin").content == content.read_bytes()


def test_a_lost_response_to_the_creation_of_an_object_is_an_error_of_its_own(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    local.faults.add(Drop(endpoint="queue.createArtifact", after=True))
    with pytest.raises(UploadAlreadyBegun, match="another name"):
        client.upload("public/x.bin", content, storage="object")


def test_an_object_that_somebody_else_began_is_a_conflict(client: EitherClient, content: Path) -> None:
    client.upload("public/x.bin", content, storage="object")
    with pytest.raises((RequestConflict, InternalServerError)):
        client.upload("public/x.bin", content, storage="object")


def test_an_internal_error_of_a_creation_says_that_an_earlier_upload_may_exist(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    local.faults.add(Respond(endpoint="queue.createArtifact", status=500, times=100))
    with pytest.raises(InternalServerError) as caught:
        client.upload("public/x.bin", content, storage="object")
    assert "was created before" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("storage", ["s3", "object"])
@pytest.mark.parametrize("quarter", [0, 1, 2, 3, 4])
def test_a_body_that_is_cut_is_sent_again_from_its_start(
    client: EitherClient, local: LocalQueue, content: Path, quarter: int, storage: str
) -> None:
    local.faults.add(CutUpload(endpoint="storage.put", at=quarter * 250_000))
    client.upload("public/x.bin", content, storage=storage)
    assert left(local) == 0
    assert client.download("public/x.bin").content == content.read_bytes()


@pytest.mark.parametrize("status", [408, 429, 500, 503])
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_transient_error_of_storage_is_retried(
    client: EitherClient, local: LocalQueue, content: Path, status: int, size: int
) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=status, times=3))
    client.upload("public/x.bin", content.read_bytes()[:size])
    assert left(local) == 0
    assert client.download("public/x.bin").size == size


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_wait_that_storage_asks_for_is_kept(
    client: EitherClient, local: LocalQueue, content: Path, status: int, size: int
) -> None:
    headers = {"Retry-After": "170"}
    local.faults.add(Respond(endpoint="storage.put", status=status, headers=headers))
    begun = client.clock.monotonic()
    client.upload("public/x.bin", content.read_bytes()[:size])
    assert 170 <= client.clock.monotonic() - begun < 200


def test_a_wait_that_storage_asks_for_may_be_no_longer_than_a_call_takes(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=503, headers={"Retry-After": "300"}))
    begun = client.clock.monotonic()
    with pytest.raises(StorageRefused) as caught:
        client.upload("public/x.bin", content)
    assert caught.value.retry_after == 300
    assert client.clock.monotonic() - begun < 100


@pytest.mark.parametrize("storage", ["s3", "object"])
def test_storage_in_lasting_trouble_is_an_error_and_no_artifact(
    client: EitherClient, local: LocalQueue, content: Path, storage: str
) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=503, times=100))
    with pytest.raises(StorageRefused) as caught:
        client.upload("public/x.bin", content, storage=storage)
    assert caught.value.status == 503
    assert left(local) == 100 - 6
    with pytest.raises(Exception, match="404"):
        client.download("public/x.bin")


@pytest.mark.parametrize("status", [400, 403, 404, 411, 413])
def test_a_refusal_of_the_storage_is_final(
    client: EitherClient, local: LocalQueue, content: Path, status: int
) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=status, times=2))
    with pytest.raises(StorageRefused) as caught:
        client.upload("public/x.bin", content)
    assert (caught.value.status, left(local)) == (status, 1)


def counted(client: EitherClient, endpoint: str) -> list[str]:
    """Record each call of an endpoint by clients of this class; the returned list grows with each call."""
    made: list[str] = []
    kind: Any = type(client.queue)
    send = kind.send

    def note(self: Any, call: Call[Any], /) -> Any:
        if call.endpoint == endpoint:
            made.append(endpoint)
        return send(self, call)

    kind.send = note
    return made


@pytest.fixture
def calls_made(client: EitherClient, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    kind = type(client.queue)
    monkeypatch.setattr(kind, "send", kind.send)
    return lambda endpoint: counted(client, endpoint)


CREATORS = [("s3", "createArtifact"), ("object", "object.createUpload")]


@pytest.mark.parametrize(("storage", "endpoint"), CREATORS)
def test_a_url_that_has_expired_is_replaced(
    client: EitherClient,
    local: LocalQueue,
    content: Path,
    calls_made: Callable[[str], list[str]],
    storage: str,
    endpoint: str,
) -> None:
    made = calls_made(endpoint)
    local.faults.add(ExpireUrl())
    client.upload("public/x.bin", content, storage=storage)
    assert len(made) == 2
    assert client.download("public/x.bin").content == content.read_bytes()


@pytest.mark.parametrize(("minutes", "urls"), [(20, 1), (43, 2), (50, 2)])
@pytest.mark.parametrize(("storage", "endpoint"), CREATORS)
def test_a_url_near_its_expiry_is_replaced_before_it_is_used(
    client: EitherClient,
    local: LocalQueue,
    content: Path,
    calls_made: Callable[[str], list[str]],
    storage: str,
    endpoint: str,
    minutes: int,
    urls: int,
) -> None:
    made = calls_made(endpoint)
    local.faults.add(CutUpload(endpoint="storage.put", at=500_000))
    client.clock.sleeps_at_least = 60 * minutes
    client.upload("public/x.bin", content, storage=storage)
    assert left(local) == 0
    assert len(made) == urls
    assert client.download("public/x.bin").content == content.read_bytes()


CHANGES: dict[str, Callable[[Path], object]] = {
    "appended": lambda path: os.truncate(path, 20_000_001),
    "cut": lambda path: os.truncate(path, 700_000),
    "overwritten": lambda path: path.write_bytes(bytes(20_000_000)),
    "replaced": lambda path: path.with_name("new").replace(path),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_sent_is_an_error_and_no_artifact(
    raw_client: EitherClient, server: RawServer, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "content"
    path.with_name("new").write_bytes(bytes(20_000_000))
    path.write_bytes(bytes(20_000_000))  # more than what fits into the buffers of a connection
    server.respond = lambda _: RawResponse(body=created(f"{server.url}/key"))
    server.while_receiving = lambda: CHANGES[change](path)
    with pytest.raises(SourceChanged, match="content"):
        raw_client.upload("x", path)
    assert [request.method for request in server.requests] == ["POST"]


class FailsHalfway(io.FileIO):
    """A file on a damaged disk."""

    def readinto(self, buffer: Any, /) -> int | None:
        if self.tell() > 500_000:
            raise OSError(errno.EIO, "Input/output error", str(self.name))
        return super().readinto(buffer)


def test_a_file_that_cannot_be_read_to_its_end_is_not_an_error_of_storage(
    raw_client: EitherClient, server: RawServer, content: Path
) -> None:
    server.respond = lambda _: RawResponse(body=created(f"{server.url}/key"))
    with FailsHalfway(content) as file, pytest.raises(OSError, match="Input/output error") as caught:
        raw_client.upload("x", file)
    assert caught.value.filename == str(content)
    assert [request.method for request in server.requests] == ["POST"]


def test_an_error_of_a_progress_callback_is_raised_as_it_is(server: RawServer, content: Path) -> None:
    """Such as a BrokenPipeError about a closed terminal, which urllib3 takes for a connection error."""

    def report(*_: object) -> None:
        raise BrokenPipeError

    server.respond = lambda _: RawResponse(body=created(f"{server.url}/key"))
    with Queue(server.url, Credentials("tester", "secret")) as queue, pytest.raises(BrokenPipeError):
        queue.upload_artifact(slugid(), 0, "x", content, expires="1 hour", progress=report)
    assert len(server.requests) == 1


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_that_changed_before_it_was_compressed_or_sent_is_noticed(
    client: EitherClient, content: Path, *, compress: bool
) -> None:
    source = open_source(content)
    with content.open("ab") as file:
        file.write(b"more")
    with pytest.raises(SourceChanged):
        client.upload("public/x.bin", source, compress=compress)


def test_the_queue_in_trouble_for_long_is_the_queue_s_error(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    local.faults.add(Respond(endpoint="queue.createArtifact", status=502, html=True, times=100))
    with pytest.raises(ServerError, match="createArtifact"):
        client.upload("public/x.bin", content)


def test_a_storage_that_cannot_be_reached_is_an_error_without_the_signature(
    raw_client: EitherClient, server: RawServer
) -> None:
    server.respond = lambda _: RawResponse(body=created("http://127.0.0.1:9/bucket?X-Amz-Signature=secret"))
    with pytest.raises(
        StorageFailed, match=r"PUT http://127\.0\.0\.1:9/bucket: .*(refused|Connect call failed)"
    ) as caught:
        raw_client.upload("x", b"content")
    assert "secret" not in repr(caught.value)
    assert "secret" not in "".join(str(error) for error in (caught.value.__cause__, caught.value.args))


@pytest.mark.parametrize("is_supported", [True, False], ids=["connector", "ClientSession"])
def test_a_storage_that_does_not_speak_http_is_an_error_without_the_signature(
    raw_client: EitherClient, server: RawServer, monkeypatch: pytest.MonkeyPatch, *, is_supported: bool
) -> None:
    monkeypatch.setattr("taskqueue_client._transport.asynchronous.is_supported", lambda: is_supported)
    body = created(f"{server.url}/key?X-Amz-Signature=secret")
    server.respond = lambda request: (
        RawResponse(raw=b"what?\r\n\r\n") if request.method == "PUT" else RawResponse(body=body)
    )
    with pytest.raises(StorageFailed) as caught:
        raw_client.upload("x", b"content")
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def created(put_url: str) -> bytes:
    return (
        b'{"storageType": "s3", "contentType": "a/b", "expires": "2099-01-01T00:00:00.000Z", "putUrl": "%s"}'
        % put_url.encode()
    )


@pytest.mark.parametrize("size", [7, 1_000_000])
def test_storage_sees_no_credentials_and_no_cookies(
    raw_client: EitherClient, server: RawServer, size: int
) -> None:
    cookie = (("Set-Cookie", "session=1; Path=/"),)
    body = created(f"{server.url}/bucket/key?X-Amz-Signature=a%2Fb")
    server.respond = lambda request: RawResponse(
        headers=cookie, body=b"" if request.method == "PUT" else body
    )
    for _ in range(2):
        raw_client.upload("x", bytes(size))
    puts = [request for request in server.requests if request.method == "PUT"]
    assert [request.path for request in puts] == ["/bucket/key?X-Amz-Signature=a%2Fb"] * 2
    for put in puts:
        assert {name.lower() for name in put.headers} == {
            "host",
            "user-agent",
            "content-type",
            "content-length",
        }
        assert (put.headers["Content-Type"], put.headers["Content-Length"]) == ("a/b", str(size))
        assert put.body == bytes(size)


@pytest.mark.parametrize("size", [7, 1_000_000])
def test_the_error_for_an_upload_that_is_redirected_says_where_to(
    raw_client: EitherClient, server: RawServer, size: int
) -> None:
    elsewhere = (("Location", "https://u:p@other.test/key?signature=secret"),)
    body = created(f"{server.url}/bucket/key")
    server.respond = lambda request: (
        RawResponse(307, elsewhere) if request.method == "PUT" else RawResponse(body=body)
    )
    with pytest.raises(StorageRefused) as caught:
        raw_client.upload("x", bytes(size))
    why = "redirected to https://other.test/key, but uploads do not follow redirects"
    assert str(caught.value) == f"PUT {server.url}/bucket/key: HTTP 307 {why}"


def test_an_early_refusal_is_raised_instead_of_the_broken_connection(
    raw_client: EitherClient, server: RawServer
) -> None:
    with responding_early(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig") as url:
        server.respond = lambda _: RawResponse(body=created(url))
        with pytest.raises(StorageRefused, match="413 big"):
            raw_client.upload("x", bytes(10_000_000))


async def test_a_cancelled_upload_stops_at_once(local: LocalQueue, run: Run, content: Path) -> None:
    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        task: asyncio.Task[Any]
        task = asyncio.create_task(
            queue.upload_artifact(
                run.task_id,
                run.run_id,
                "public/x.bin",
                content,
                expires=run.expires,
                progress=lambda _done, _total: task.cancel(),
            )
        )
        with pytest.raises(asyncio.CancelledError):
            await task
        assert Transfer(queue).storage.threads()._work_queue.empty()
