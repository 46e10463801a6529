"""The sources that can be uploaded, and the resulting artifacts."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import sys
import tempfile
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import AsyncQueue, Queue
from taskqueue_client.artifacts.content import fast_zlib, gzipped, gzipped_content, isal
from taskqueue_client.artifacts.sources import Source, TemporaryFileFailed, open_source
from taskqueue_client.definitions import StorageName
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Respond
from tests.artifacts.conftest import EitherClient, Run, Seen, file_size_limit, no_isal

BYTES = b"".join(number.to_bytes(4, "big") for number in range(250_000))


def at_offset(path: Path) -> io.BufferedReader:
    path.write_bytes(b"before" + BYTES)
    file = path.open("rb")
    assert file.read(6) == b"before"
    return file


def compressed_file(path: Path) -> gzip.GzipFile:
    path.write_bytes(gzip.compress(BYTES, 1))
    return gzip.open(path)


def memory_at_offset(_: Path) -> io.BytesIO:
    file = io.BytesIO(b"before" + BYTES)
    file.seek(6)
    return file


def a_path(path: Path) -> Path:
    path.write_bytes(BYTES)
    return path


class ReadsLittle(io.FileIO):
    """A file of which each call reads 777 bytes: network file systems may read less than is asked for."""

    def readinto(self, buffer: Any, /) -> int | None:
        return super().readinto(memoryview(buffer)[:777])


SOURCES: dict[str, Callable[[Path], Any]] = {
    "path": a_path,
    "path as text": lambda path: str(a_path(path)),
    "bytes": lambda _: BYTES,
    "bytearray": lambda _: bytearray(BYTES),
    "open file": at_offset,
    "unbuffered file": lambda path: a_path(path).open("rb", buffering=0),
    "file that reads little at a time": lambda path: ReadsLittle(a_path(path)),
    "file in memory": memory_at_offset,
    "compressed file": compressed_file,
    "list": lambda _: [BYTES[:100], b"", BYTES[100:]],
}


@pytest.mark.parametrize("storage", ["s3", "object"])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_arrives_whole(
    client: EitherClient, tmp_path: Path, kind: str, storage: str
) -> None:
    source = SOURCES[kind](tmp_path / "source")
    uploaded = client.upload("public/x.bin", source, storage=storage)
    if hasattr(source, "close"):
        source.close()
    assert uploaded.size == uploaded.stored_size == len(BYTES)
    assert client.download("public/x.bin").content == BYTES


@pytest.mark.parametrize("storage", ["s3", "object"])
def test_an_iterator_arrives_whole(client: EitherClient, storage: str) -> None:
    client.upload("public/x.bin", client.iterator([BYTES[:5], BYTES[5:]]), storage=storage)
    assert client.download("public/x.bin").content == BYTES


@pytest.mark.parametrize(
    ("from_file", "options"),
    [
        (True, {"storage": "s3"}),
        (False, {"storage": "s3"}),
        (True, {"storage": "object"}),
        (True, {"storage": "s3", "compress": True}),
    ],
)
def test_a_large_artifact_is_never_in_memory_as_a_whole(
    client: EitherClient, tmp_path: Path, options: dict[str, Any], *, from_file: bool
) -> None:
    megabyte, size = 2**20, 32
    path, back = tmp_path / "large", tmp_path / "back"
    with path.open("wb") as file:
        file.truncate(size * megabyte)
    content = path if from_file else client.iterator(bytes(megabyte) for _ in range(size))
    tracemalloc.start()
    try:
        client.upload("public/x.bin", content, **options)
        client.download("public/x.bin", to=back)
        assert tracemalloc.get_traced_memory()[1] < 24 * megabyte  # including the memory of the local queue
    finally:
        tracemalloc.stop()
    assert back.stat().st_size == size * megabyte


def test_the_content_of_a_pipe_arrives_whole(client: EitherClient) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        os.write(writing, b"through a pipe")
        os.close(writing)
        client.upload("public/x.bin", pipe)
    assert client.download("public/x.bin").content == b"through a pipe"


@pytest.mark.parametrize("make", [at_offset, memory_at_offset])
def test_a_file_that_has_been_read_or_written_to_its_end_is_warned_of(
    client: EitherClient, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], io.BytesIO]
) -> None:
    with make(tmp_path / "content") as file:
        client.upload("public/some.bin", file)
        assert not caplog.text
        client.upload("public/none.bin", file)
    assert "artifact 'public/none.bin' is empty: <" in caplog.text
    assert client.download("public/none.bin").content == b""


def test_an_empty_file_is_not_warned_of(client: EitherClient, caplog: pytest.LogCaptureFixture) -> None:
    client.upload("public/empty.bin", io.BytesIO())
    assert not caplog.text


@pytest.mark.parametrize("storage", ["s3", "object"])
@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 65536, 65537, 524288, 524289])
def test_every_size_arrives_whole(client: EitherClient, size: int, storage: str) -> None:
    uploaded = client.upload("public/x.bin", BYTES[:size], storage=storage)
    assert uploaded.stored_size == size
    assert client.download("public/x.bin").content == BYTES[:size]


@pytest.mark.parametrize(("size", "puts"), [(8191, 0), (8192, 1)])
def test_the_object_service_gets_small_content_within_the_request(
    client: EitherClient, local: LocalQueue, size: int, puts: int
) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=500, times=2))
    seen = Seen()
    client.upload("public/x.bin", BYTES[:size], storage="object", progress=seen)
    assert sum(fault["times"] for fault in local.faults.waiting()) == 2 - 2 * puts
    assert seen[-1] == (size, size)


def test_every_upload_to_s3_is_hashed(client: EitherClient, tmp_path: Path) -> None:
    right = {"sha256": hashlib.sha256(BYTES).hexdigest()}
    (tmp_path / "file").write_bytes(BYTES)
    (tmp_path / "small").write_bytes(BYTES[:100])
    assert client.upload("public/memory", BYTES).hashes == right
    assert client.upload("public/small", tmp_path / "small").hashes == {
        "sha256": hashlib.sha256(BYTES[:100]).hexdigest()
    }
    assert client.upload("public/file", tmp_path / "file").hashes == right


def test_an_object_is_finished_with_the_hash_that_every_client_knows(client: EitherClient) -> None:
    uploaded = client.upload("public/x.bin", BYTES, storage="object")
    downloaded = client.download("public/x.bin")
    assert list(uploaded.hashes) == ["sha256"]
    assert downloaded.hashes == uploaded.hashes


def test_the_storage_is_the_client_s_unless_a_call_says_otherwise(
    client: EitherClient, local: LocalQueue
) -> None:
    mine = EitherClient(
        type(client.queue)(local.root_url, local.credentials, artifact_storage="object"),
        client.runner,
        client.run,
        client.clock,
    )
    assert mine.upload("public/one", BYTES).storage_type == "object"
    assert mine.upload("public/two", BYTES, storage="s3").storage_type == "s3"
    (outcome,) = mine.upload_many({"public/three": b"3"}).outcomes
    assert outcome.result.storage_type == "object"
    assert client.upload("public/four", BYTES).storage_type == "s3"
    mine.close()


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_storage_that_there_is_not_is_refused(kind: type[Queue | AsyncQueue]) -> None:
    with pytest.raises(InvalidArgument, match="artifact_storage"):
        kind("https://tc.example.com", artifact_storage="gcs")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # what is tested


@pytest.mark.parametrize(
    ("name", "given", "content_type"),
    [
        ("public/live.log", None, "text/plain; charset=utf-8"),
        ("public/LIVE.LOG", None, "text/plain; charset=utf-8"),
        ("public/target.json", None, "application/json"),
        ("public/target", None, "application/octet-stream"),
        ("public/live.log", "text/x-mine; charset=latin-1", "text/x-mine; charset=latin-1"),
    ],
)
@pytest.mark.parametrize("storage", ["s3", "object"])
def test_the_content_type_is_by_ending_or_as_given(
    client: EitherClient, name: str, given: str | None, content_type: str, storage: str
) -> None:
    assert client.upload(name, BYTES, content_type=given, storage=storage).content_type == content_type
    info = client.latest_artifact_info(client.run.task_id, name)
    assert (info.content_type, client.download(name).content_type) == (content_type, content_type)


@pytest.mark.parametrize(
    ("name", "compress", "encoding"),
    [
        ("public/live.log", None, "gzip"),
        ("public/live.log", False, None),
        ("public/x.bin", None, None),
        ("public/x.bin", True, "gzip"),
        ("public/x.tar.zst", True, None),
        ("public/x.jpg", True, None),
        ("public/image", True, "gzip"),
    ],
)
def test_text_is_compressed_and_compressed_content_is_not(
    client: EitherClient, name: str, compress: Any, encoding: str | None
) -> None:
    uploaded = client.upload(name, BYTES, compress=compress)
    assert uploaded.content_encoding == encoding
    assert (uploaded.stored_size < uploaded.size) == (encoding == "gzip")
    assert client.download(name).content == BYTES


def test_a_worker_s_log_that_is_gzip_already_is_stored_with_that_encoding(client: EitherClient) -> None:
    packed = gzip.compress(BYTES)
    source = Source("the task's log", io.BytesIO(packed), size=len(packed), is_gzip=True)
    uploaded = client.upload("public/live.log", source)
    assert (uploaded.content_encoding, uploaded.stored_size) == ("gzip", len(packed))
    assert client.download("public/live.log").content == BYTES


@pytest.mark.parametrize(("size", "encoding"), [(1023, None), (1024, "gzip")])
def test_text_that_fits_into_a_packet_is_not_compressed(
    client: EitherClient, size: int, encoding: str | None
) -> None:
    assert client.upload("public/live.log", b"x" * size).content_encoding == encoding
    assert client.download("public/live.log").content == b"x" * size


def test_an_asynchronous_iterable_is_for_the_asynchronous_client(client: EitherClient) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"x"

    if isinstance(client.queue, AsyncQueue):
        assert client.upload("x", blocks()).size == 1
    else:
        with pytest.raises(InvalidArgument, match=r"source: .*asynchronous iterables are for AsyncQueue"):
            client.upload("x", blocks())


def test_content_of_a_compressed_content_type_is_not_compressed(client: EitherClient) -> None:
    uploaded = client.upload("public/x", BYTES, content_type="application/zip", compress=True)
    assert uploaded.content_encoding is None


def test_compression_without_isal_gives_the_same_content(
    client: EitherClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskqueue_client.artifacts.content.isal", no_isal)
    assert client.upload("public/live.log", BYTES).content_encoding == "gzip"
    assert client.download("public/live.log").content == BYTES


@pytest.mark.parametrize("has_isal", [True, False])
@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_content_is_compressed_with_and_without_isal(
    size: int, monkeypatch: pytest.MonkeyPatch, *, has_isal: bool
) -> None:
    if not has_isal:
        monkeypatch.setattr("taskqueue_client.artifacts.content.isal", no_isal)
    content = b"one line of a log\n" * (size // 18)
    with closing(gzipped(open_source(content), list)) as compressed:
        assert gzip.decompress(b"".join(map(bytes, compressed.blocks()))) == content


@pytest.mark.parametrize("has_isal", [True, False])
@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_content_that_does_not_fit_on_the_disk_when_compressed_raises_an_error_that_says_where(
    size: int, monkeypatch: pytest.MonkeyPatch, *, has_isal: bool
) -> None:
    if not has_isal:
        monkeypatch.setattr("taskqueue_client.artifacts.content.isal", no_isal)
    with file_size_limit(10), pytest.raises(TemporaryFileFailed) as caught:
        gzipped(open_source(os.urandom(size)), list)
    assert str(caught.value) == (
        f"[Errno 27] cannot write a temporary file: File too large: '{tempfile.gettempdir()}'"
    )


def test_text_is_stored_as_it_is_if_it_cannot_be_compressed_on_the_disk(
    client: EitherClient, content: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    uploaded = client.upload("public/x.txt", content)
    assert uploaded.content_encoding is None
    with pytest.raises(TemporaryFileFailed, match="missing"):
        client.upload("public/y.txt", content, compress=True)
    monkeypatch.undo()
    assert client.download("public/x.txt").content == content.read_bytes()


def test_content_of_100_kb_is_compressed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting several threads would take four times the processor time."""

    def several(*_: object, **_options: object) -> None:
        pytest.fail("compressed by several threads")

    monkeypatch.setattr("isal.igzip_threaded.open", several)
    with closing(gzipped(open_source(bytes(100_000)), list)) as compressed:
        assert gzip.decompress(b"".join(map(bytes, compressed.blocks()))) == bytes(100_000)


def test_the_expiry_is_cut_down_to_the_task_s(client: EitherClient) -> None:
    task_expires = client.run.expires
    result = client.upload("x", b"1", expires=task_expires + timedelta(days=9), task_expires=task_expires)
    expires = client.latest_artifact_info(client.run.task_id, "x").expires
    assert abs(expires - task_expires) < timedelta(milliseconds=1)
    assert result.expires == expires


def test_a_distance_is_measured_from_the_service_s_time(client: EitherClient, local: LocalQueue) -> None:
    local.clock.advance(hours=3)
    client.status(client.run.task_id)  # the response has the service's time
    client.upload("one", b"1", expires="1 hour")  # 2 hours ago, by the machine's clock
    client.upload_many({"two": b"2"}, expires="1 hour")
    run = client.run.task_id, client.run.run_id
    client.create_reference_artifact(*run, "three", "https://example.com", expires="1 hour")
    client.create_link_artifact(*run, "four", "one", expires="1 hour")
    client.create_error_artifact(*run, "five", "file-missing-on-worker", "no file", expires="1 hour")
    service = datetime.fromtimestamp(local.clock.now(), UTC)
    for name in ("one", "two", "three", "four", "five"):
        expires = client.latest_artifact_info(client.run.task_id, name).expires
        assert abs(expires - service - timedelta(hours=1)) < timedelta(minutes=1)


@pytest.mark.parametrize("storage", ["s3", "object"])
def test_progress_goes_from_the_first_block_to_the_last(
    client: EitherClient, content: Path, storage: str
) -> None:
    seen = Seen()
    client.upload("public/x.bin", content, progress=seen, storage=storage)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == (1_000_000, 1_000_000)


@pytest.mark.parametrize("storage", ["s3", "object"])
@pytest.mark.parametrize("size", [0, 1, 8192, 524289])
async def test_all_progress_is_reported_before_an_asynchronous_upload_returns(
    local: LocalQueue, run: Run, size: int, storage: StorageName
) -> None:
    seen = Seen()
    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        await queue.upload_artifact(
            run.task_id, run.run_id, "x", BYTES[:size], expires=run.expires, storage=storage, progress=seen
        )
        assert seen[-1] == (size, size)


async def test_an_asynchronous_upload_needs_no_thread_of_the_loop_s_own_executor(
    local: LocalQueue, run: Run
) -> None:
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    occupied = loop.run_in_executor(None, free.wait)
    in_the_end = loop.call_later(20, free.set)
    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        await queue.upload_artifact(run.task_id, run.run_id, "x", BYTES, expires=run.expires)
    assert not free.is_set()
    in_the_end.cancel()
    free.set()
    await occupied


async def test_an_asynchronous_upload_goes_on_after_an_error_of_progress_which_asyncio_logs(
    local: LocalQueue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def progress(done: int, total: int | None) -> None:
        message = f"at {done} of {total}"
        raise ValueError(message)

    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        await queue.upload_artifact(
            run.task_id, run.run_id, "x", BYTES[:10], expires=run.expires, progress=progress
        )
        assert (await queue.download_artifact(run.task_id, "x")).content == BYTES[:10]
    assert "ValueError: at 10 of 10" in caplog.text


@pytest.mark.parametrize("name", ["", "a\nb", "ä", "a\x7f", "a/../b", "..", "./a", "x" * 1025])
def test_a_bad_name_is_refused_before_anything_happens(
    client: EitherClient, local: LocalQueue, name: str
) -> None:
    local.faults.add(Respond(endpoint="queue.createArtifact", status=500))
    with pytest.raises(InvalidArgument, match=r"^name: "):
        client.upload(name, b"1")
    assert local.faults.waiting()


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


async def asynchronous(*_: object) -> None:
    """A callback that nobody would await."""


BAD: dict[str, Callable[[Path], Any]] = {
    "number": lambda _: 7,
    "folder": folder,
    "pipe": fifo,
    "text file": lambda _: io.StringIO("text"),
    "texts": lambda _: ["text"],
    "empty dict": lambda _: {},
    "file for writing": lambda path: path.open("wb"),
    "unbuffered file for writing": lambda path: path.open("wb", buffering=0),
    "path with NUL": lambda _: "a\0b",
    "path that cannot be encoded": lambda _: "a\ud800",
    "every second byte": lambda _: memoryview(b"abcd")[::2],
}


@pytest.mark.parametrize("kind", BAD)
def test_a_source_that_cannot_be_uploaded_is_refused_before_any_request(
    client: EitherClient, local: LocalQueue, tmp_path: Path, kind: str
) -> None:
    local.faults.add(Respond(endpoint="queue.createArtifact", status=500))
    source = BAD[kind](tmp_path / "source")
    with pytest.raises(InvalidArgument, match=r"^source: "):
        client.upload("x", source)
    if hasattr(source, "close"):
        source.close()
    assert local.faults.waiting()


def test_an_error_about_an_element_of_a_source_does_not_take_it_for_the_source(client: EitherClient) -> None:
    with pytest.raises(InvalidArgument, match=r"^source: it contains 'text', which is not bytes; expected "):
        client.upload("x", ["text"])


@pytest.mark.parametrize(
    "options",
    [
        {"storage": "azure"},
        {"storage": ""},
        {"storage": ["s3"]},
        {"compress": "no"},
        {"compress": 0},
        {"progress": 5},
        {"progress": asynchronous},
        {"storage": "object", "compress": True},
        {"expires": "tomorrow"},
        {"content_type": "text/plain\r\nX-Evil: 1"},
        {"content_type": ""},
        {"content_type": 5},
        {"storage": "object", "content_type": "text"},
        {"storage": "object", "content_type": "text/plain; charset"},
    ],
)
def test_a_bad_option_is_refused(client: EitherClient, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{next(reversed(options))}: "):
        client.upload("x", b"1", **options)


@pytest.mark.parametrize(
    ("storage", "content_type"),
    [("s3", "text"), ("object", "text/plain"), ("object", 'text/plain; charset="utf-8"; format=flowed')],
)
def test_only_the_object_service_needs_a_well_formed_content_type(
    client: EitherClient, storage: str, content_type: str
) -> None:
    assert client.upload("x", b"1", storage=storage, content_type=content_type).content_type == content_type


def test_a_missing_file_is_the_usual_error(client: EitherClient, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.upload("x", tmp_path / "missing")


def test_a_file_with_buffered_writes_counts_as_unchanged(client: EitherClient, content: Path) -> None:
    with content.open("r+b") as file:
        assert file.read(4)
        file.seek(0)
        file.write(b"HEAD")
        file.seek(0)  # stays within the buffer, so the buffer is not written
        client.upload("x", file)
    assert client.download("x").content == content.read_bytes()


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="/proc is Linux's")
@pytest.mark.parametrize("opened", [False, True])
def test_a_file_of_the_kernel_whose_size_is_0_arrives_whole(client: EitherClient, *, opened: bool) -> None:
    version = Path("/proc/version")
    with version.open("rb") as file:
        client.upload("x", file if opened else version)
        assert not file.closed
    assert client.download("x").content == version.read_bytes()


def test_a_file_of_the_caller_s_stays_open(client: EitherClient, content: Path) -> None:
    with content.open("rb") as file:
        client.upload("x", file)
        assert not file.closed


def test_a_listing_has_the_size_before_compression_except_of_objects(client: EitherClient) -> None:
    client.upload("public/text.txt", b"x" * 5000)
    client.upload("public/object.txt", b"x" * 5000, storage="object")
    listed = client.list_artifacts(client.run.task_id, client.run.run_id).artifacts
    assert {each.name: each.content_length for each in listed} == {
        "public/object.txt": None,
        "public/text.txt": 5000,
    }


def test_without_isal_content_is_compressed_by_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    isal.cache_clear()
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert fast_zlib() is zlib
        assert gzip.decompress(gzipped_content(b"x" * 1000).content or b"") == b"x" * 1000
    finally:
        isal.cache_clear()
