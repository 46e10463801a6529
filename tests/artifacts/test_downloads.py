"""A download is complete and correct, or there is an error and no file."""

from __future__ import annotations

import hashlib
import io
import math
import os
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue
from taskqueue_client.artifacts import DownloadTooLarge, HashMismatch, StorageFailed, StorageRefused
from taskqueue_client.errors import ErrorArtifact, InvalidArgument, ResourceNotFound
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import CutDownload, Respond
from tests.artifacts.conftest import EitherClient, Run, Seen, file_size_limit
from tests.artifacts.raw_server import RawResponse, RawServer
from tests.worker.request_log import requests_noted

NAME = "public/x.bin"


@pytest.fixture(params=["s3", "object"])
def stored(request: pytest.FixtureRequest, client: EitherClient, content: Path) -> bytes:
    """The content of an artifact, in either storage."""
    client.upload(NAME, content, storage=request.param)
    return content.read_bytes()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "downloads"
    folder.mkdir()
    return folder


def test_a_file_appears_under_its_name(client: EitherClient, stored: bytes, folder: Path) -> None:
    downloaded = client.download(NAME, to=folder / "x")
    assert (folder / "x").read_bytes() == stored
    (folder / "y").touch()
    assert (folder / "x").stat().st_mode == (folder / "y").stat().st_mode
    (folder / "y").unlink()
    assert (downloaded.path, downloaded.size, downloaded.content) == (folder / "x", len(stored), b"")
    assert downloaded.name == NAME
    assert files(folder) == ["x"]


def test_a_file_that_was_there_is_replaced(client: EitherClient, stored: bytes, folder: Path) -> None:
    (folder / "x").write_bytes(b"old")
    client.download(NAME, to=str(folder / "x"))
    assert (folder / "x").read_bytes() == stored


def test_a_link_is_replaced_and_the_file_that_it_leads_to_stays(
    client: EitherClient, stored: bytes, folder: Path
) -> None:
    (folder / "other").write_bytes(b"other")
    (folder / "x").symlink_to("other")
    client.download(NAME, to=folder / "x")
    assert not (folder / "x").is_symlink()
    assert (folder / "x").read_bytes() == stored
    assert (folder / "other").read_bytes() == b"other"


@pytest.mark.parametrize("name", ["fifo", "link"])
def test_a_destination_that_is_neither_a_file_nor_missing_is_refused_and_stays(
    client: EitherClient, stored: bytes, folder: Path, name: str
) -> None:
    del stored
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("fifo")
    with pytest.raises(InvalidArgument, match=r"^to: .* expected the path of a file, not of a folder"):
        client.download(NAME, to=folder / name)
    assert (folder / "fifo").is_fifo()
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize(
    "to",
    [io.BytesIO(), 5, False, b"x", "", "a\0b", "a\ud800", "new/", "/dev/stdout"],
    ids=lambda to: type(to).__name__,
)
def test_a_destination_that_is_not_the_path_of_a_file_is_refused_before_any_request(
    client: EitherClient, local: LocalQueue, to: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    local.faults.add(Respond(endpoint="queue.latestArtifact", status=500))
    with pytest.raises(InvalidArgument, match=r"^to: .* expected (the path of a file|.* without NUL)"):
        client.download(NAME, to=to)
    assert local.faults.waiting()
    assert not list(tmp_path.iterdir())


async def asynchronous(*_: object) -> None:
    """A callback that nobody would await."""


@pytest.mark.parametrize("options", [{"progress": 5}, {"progress": asynchronous}])
def test_progress_that_cannot_be_reported_is_refused(client: EitherClient, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^progress: .* expected a function that is not asynchronous"):
        client.download(NAME, **options)


def test_keys_that_are_not_texts_are_refused(client: EitherClient) -> None:
    with pytest.raises(InvalidArgument, match=r"^public_keys: 5 is not valid"):
        client.download(NAME, verified_by=5)


@pytest.mark.parametrize("limit", [math.nan, "10", -1, 1.5, True])
def test_a_limit_that_is_not_a_whole_number_is_refused(
    client: EitherClient, stored: bytes, limit: Any
) -> None:
    del stored
    with pytest.raises(InvalidArgument, match=r"^max_bytes: .* expected a whole number, 0 or more"):
        client.download(NAME, max_bytes=limit)
    with pytest.raises(InvalidArgument, match="max_bytes"):
        client.stream(NAME, max_bytes=limit)


def test_memory_and_the_stream_give_the_same(client: EitherClient, stored: bytes) -> None:
    assert client.download(NAME).content == stored
    assert b"".join(client.stream(NAME)) == stored


def test_a_given_run_is_read(client: EitherClient, stored: bytes) -> None:
    assert client.download(NAME, run_id=0).content == stored
    with pytest.raises(ResourceNotFound):
        client.download(NAME, run_id=1)


def test_a_missing_artifact_is_not_found(client: EitherClient, folder: Path) -> None:
    with pytest.raises(ResourceNotFound):
        client.download("missing", to=folder / "x")
    with pytest.raises(ResourceNotFound):
        client.stream("missing")
    assert files(folder) == []


def test_a_link_is_followed(client: EitherClient, stored: bytes) -> None:
    task_id, run_id, expires = client.run
    client.create_link_artifact(task_id, run_id, "public/link", NAME, expires=expires)
    assert client.download("public/link").content == stored


def test_a_reference_is_followed_and_may_become_a_link(
    client: EitherClient, stored: bytes, server: RawServer
) -> None:
    task_id, run_id, expires = client.run
    server.respond = lambda _: RawResponse(headers=(("Content-Type", "text/live"),), body=b"live")
    client.create_reference_artifact(
        task_id, run_id, "live.log", f"{server.url}/live?x=1#end", expires=expires
    )
    live = client.download("live.log")
    assert (live.content, live.content_type, live.storage_type) == (b"live", "text/live", "reference")
    assert [(request.path, request.headers["Authorization"]) for request in server.requests] == [
        ("/live?x=1", None)
    ]
    client.create_link_artifact(task_id, run_id, "live.log", NAME, expires=expires)
    assert client.download("live.log").content == stored


def test_an_error_artifact_is_a_typed_error(client: EitherClient) -> None:
    task_id, run_id, expires = client.run
    client.create_error_artifact(
        task_id, run_id, "x", "file-missing-on-worker", "no such file" * 999, expires=expires
    )
    with pytest.raises(ErrorArtifact, match="no such file") as caught:
        client.download("x")
    assert caught.value.reason == "file-missing-on-worker"
    assert caught.value.refused.status == 424
    assert (caught.value.endpoint, caught.value.attempted.method) == ("latestArtifact", "GET")
    url = f"{client.queue.root_url}/api/queue/v1/task/{task_id}/artifact-content/x"
    assert caught.value.attempted.url == url


def test_memory_has_a_limit(client: EitherClient, stored: bytes) -> None:
    assert client.download(NAME, max_bytes=len(stored)).size == len(stored)
    with pytest.raises(DownloadTooLarge, match="max_bytes=999999"):
        client.download(NAME, max_bytes=len(stored) - 1)


def test_the_limit_counts_decoded_bytes(client: EitherClient) -> None:
    uploaded = client.upload("zeros.txt", bytes(50_000_000))
    assert uploaded.stored_size < 1_000_000
    with pytest.raises(DownloadTooLarge):
        client.download("zeros.txt", max_bytes=1_000_000)


@pytest.mark.usefixtures("stored")
def test_a_folder_is_not_a_place_for_a_download(client: EitherClient, folder: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^to: "):
        client.download(NAME, to=folder)
    with pytest.raises(InvalidArgument, match=r"^to: "):
        client.download(NAME, to=".")
    with pytest.raises(FileNotFoundError):
        client.download(NAME, to=folder / "missing" / "x")


@pytest.mark.parametrize("quarter", [0, 1, 2, 3])
def test_an_interrupted_download_goes_on_where_it_was(
    client: EitherClient, local: LocalQueue, stored: bytes, folder: Path, quarter: int
) -> None:
    local.faults.add(CutDownload(endpoint="storage.get", at=quarter * 250_000))
    seen = Seen()
    client.download(NAME, to=folder / "x", progress=seen)
    assert (folder / "x").read_bytes() == stored
    assert seen == sorted(seen)  # progress never goes back


def test_an_interrupted_gzip_stream_goes_on_where_it_was(client: EitherClient, local: LocalQueue) -> None:
    text = b"".join(b"line %d\n" % number for number in range(500_000))
    size = client.upload("x.log", text).stored_size
    local.faults.add(CutDownload(endpoint="storage.get", at=size // 2))
    seen = Seen()
    assert client.download("x.log", progress=seen).content == text
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


def test_an_interrupted_stream_goes_on_where_it_was(
    client: EitherClient, local: LocalQueue, stored: bytes
) -> None:
    local.faults.add(CutDownload(endpoint="storage.get", at=600_000))
    assert b"".join(client.stream(NAME)) == stored


@pytest.mark.usefixtures("stored")
def test_a_download_that_never_ends_well_leaves_no_file(
    client: EitherClient, local: LocalQueue, folder: Path
) -> None:
    (folder / "x").write_bytes(b"old")
    local.faults.add(CutDownload(endpoint="storage.get", at=10, times=100))
    with pytest.raises(StorageFailed, match="missing at its end"):
        client.download(NAME, to=folder / "x")
    assert files(folder) == ["x"]
    assert (folder / "x").read_bytes() == b"old"


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_transient_error_of_storage_is_retried(
    client: EitherClient, local: LocalQueue, stored: bytes, status: int
) -> None:
    local.faults.add(Respond(endpoint="storage.get", status=status, times=3))
    assert client.download(NAME).content == stored


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_that_storage_asks_for_is_kept(
    client: EitherClient, local: LocalQueue, stored: bytes, status: int
) -> None:
    local.faults.add(Respond(endpoint="storage.get", status=status, headers={"Retry-After": "170"}))
    begun = client.clock.monotonic()
    assert client.download(NAME).content == stored
    assert 170 <= client.clock.monotonic() - begun < 200


@pytest.mark.parametrize("storage", ["s3", "object"])
@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_refusal_of_the_storage_is_final(
    client: EitherClient, local: LocalQueue, content: Path, status: int, storage: str
) -> None:
    """Only S3 may have a CDN, which may have cached a 403 or 404: the client asks the storage, too."""
    client.upload(NAME, content, storage=storage)
    local.faults.add(Respond(endpoint="storage.get", status=status, times=9))
    with pytest.raises(StorageRefused) as caught:
        client.download(NAME)
    assert caught.value.status == status
    requests = 2 if storage == "s3" and status in {403, 404} else 1
    assert [fault["times"] for fault in local.faults.waiting()] == [9 - requests]


def test_a_url_that_expired_during_an_interruption_is_replaced(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    client.upload("private/x", content, storage="object")
    local.faults.add(CutDownload(endpoint="storage.get", at=500_000))
    local.faults.add(Respond(endpoint="storage.get", status=503, headers={"Retry-After": "1"}))
    client.clock.sleeps_at_least = 600
    with requests_noted(local) as requests:
        assert client.download("private/x").content == content.read_bytes()
    assert 403 not in {each.status for each in requests}  # no URL was used after it had expired


def test_credentials_of_an_object_that_expired_during_an_interruption_are_replaced(
    client: EitherClient, local: LocalQueue, content: Path
) -> None:
    client.upload("private/x", content, storage="object")
    local.faults.add(CutDownload(endpoint="storage.get", at=500_000))
    client.clock.sleeps_at_least = 2 * 3600
    assert client.download("private/x").content == content.read_bytes()


@pytest.mark.usefixtures("stored")
def test_a_full_disk_leaves_no_file(client: EitherClient, folder: Path) -> None:
    with file_size_limit(300_000), pytest.raises(OSError, match="File too large") as caught:
        client.download(NAME, to=folder / "x")
    assert caught.value.filename == str(folder / "x")
    assert files(folder) == []


@pytest.mark.usefixtures("stored")
def test_a_file_that_cannot_be_created_is_named(client: EitherClient, folder: Path) -> None:
    target = folder / "missing" / "x"
    with pytest.raises(FileNotFoundError) as caught:
        client.download(NAME, to=target)
    assert str(caught.value) == f"[Errno 2] No such file or directory: '{target}'"


@pytest.mark.parametrize("name", ["x.bin", "x.log"])
def test_a_full_disk_under_a_temporary_file_is_an_error(client: EitherClient, name: str) -> None:
    noise = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(30_000))
    source = client.iterator([noise]) if name == "x.bin" else noise
    with file_size_limit(300_000), pytest.raises(OSError, match="File too large") as caught:
        client.upload(name, source, compress=name == "x.log")
    assert caught.value.filename == tempfile.gettempdir()
    with pytest.raises(ResourceNotFound):
        client.download(name)


RIGHT = hashlib.sha256(b"content").hexdigest()


@pytest.mark.parametrize(
    "hashes", [{"sha256": "0" * 64}, {"sha256": RIGHT, "sha512": "0" * 128}, {}, {"md5": "0" * 32}]
)
def test_an_object_that_cannot_be_verified_is_an_error_and_no_file(
    client: EitherClient, local: LocalQueue, folder: Path, hashes: dict[str, str]
) -> None:
    with Queue(local.root_url, local.credentials, clock=local.clock) as queue:
        upload_by_hand(queue, client.run, b"content", hashes)
    with pytest.raises(HashMismatch):
        client.download(NAME, to=folder / "x")
    with pytest.raises(HashMismatch):
        client.stream(NAME)
    assert files(folder) == []


def test_hashes_that_are_not_known_are_ignored_beside_one_that_is(
    client: EitherClient, local: LocalQueue
) -> None:
    with Queue(local.root_url, local.credentials, clock=local.clock) as queue:
        upload_by_hand(queue, client.run, b"content", {"sha256": RIGHT, "md5": "0" * 32})
    downloaded = client.download(NAME)
    assert (downloaded.content, downloaded.hashes) == (b"content", {"sha256": RIGHT})


def upload_by_hand(queue: Queue, run: Run, data: bytes, hashes: dict[str, str]) -> None:
    """Upload an object with any hashes: the service does not compare them with the data."""
    request: Any = {"storageType": "object", "expires": run.expires.isoformat(), "contentType": "a/b"}
    begun = queue.create_artifact(run.task_id, run.run_id, NAME, request)
    assert begun.name is not None
    terms: Any = {"project_id": begun.project_id, "upload_id": begun.upload_id}
    inline: Any = {"dataInline": {"contentType": "a/b", "objectData": b64encode(data).decode()}}
    queue.create_upload(begun.name, **terms, expires=begun.expires or "", proposed_upload_methods=inline)
    queue.finish_upload(begun.name, **terms, hashes=hashes)
    queue.finish_artifact(run.task_id, run.run_id, NAME, upload_id=terms["upload_id"])
