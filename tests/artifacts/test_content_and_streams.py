"""The small rules of artifacts: content types, names, errors."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import io
import mimetypes
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client import AsyncQueue, Credentials, Queue, slugid
from taskqueue_client.artifacts import (
    DownloadTooLarge,
    HashMismatch,
    SourceChanged,
    StorageFailed,
    UploadAlreadyBegun,
    content_type_of,
    is_compressed,
)
from taskqueue_client.artifacts.artifact_errors import storage_refused
from taskqueue_client.artifacts.content import COMPRESSED_ENDINGS, COMPRESSED_TYPES, CONTENT_TYPES, Gunzip
from taskqueue_client.artifacts.sources import BLOCK, Block, BlockThread, Hashes, hexdigests, open_source
from taskqueue_client.artifacts.transfers import Transfer
from tests.artifacts.conftest import EitherClient
from tests.artifacts.raw_server import RawResponse, RawServer, Request, json_response


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("public/a.b/log", "application/octet-stream"),
        ("a.tar.gz", "application/gzip"),
        ("a.html", "text/html; charset=utf-8"),
        (".log", "text/plain; charset=utf-8"),
        ("a.", "application/octet-stream"),
    ],
)
def test_only_the_last_ending_of_the_last_part_counts(name: str, content_type: str) -> None:
    assert content_type_of(name) == content_type


def test_the_machine_s_mime_types_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimetypes, "types_map", {".log": "application/x-machine", ".mine": "x/y"})
    assert content_type_of("live.log") == "text/plain; charset=utf-8"
    assert content_type_of("x.mine") == "application/octet-stream"


def test_the_sync_client_s_transfers_do_without_aiohttp() -> None:
    code = (
        "import sys, taskqueue_client.artifacts.download_methods;"
        "print({'aiohttp', 'tenacity'} & {*sys.modules})"
    )
    imports = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert imports.stdout == "set()\n"


def test_every_type_by_ending_agrees_about_what_is_compressed() -> None:
    text = [ending for ending, kind in CONTENT_TYPES.items() if kind.startswith("text/")]
    assert not any(is_compressed(f"x{ending}", CONTENT_TYPES[ending]) for ending in text)
    assert all(is_compressed(f"x{ending}", "application/octet-stream") for ending in COMPRESSED_ENDINGS)
    assert is_compressed("x", "image/png")
    assert not is_compressed("x.svg", "image/svg+xml")


def test_the_documentation_lists_content_types_and_what_is_not_compressed() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/artifacts.md").read_text()
    _, types, compressed = page.split("\n## ")
    rows = [re.findall("`(.+?)`", row) for row in types.splitlines() if row.startswith("| `")]
    assert {ending: kind for kind, *endings in rows for ending in endings} == CONTENT_TYPES
    named = re.findall("`(.+?)`", compressed)
    assert [each for each in named if each.startswith(".")] == sorted(COMPRESSED_ENDINGS)
    assert {each for each in named if "/" in each and not each.endswith("/*")} == COMPRESSED_TYPES


@given(st.lists(st.binary(max_size=200_000), max_size=4), st.integers(1, 5000))
def test_gzip_is_decoded_however_it_is_cut(members: list[bytes], step: int) -> None:
    encoded = b"".join(map(gzip.compress, members))
    gunzip = Gunzip()
    blocks = [encoded[start : start + step] for start in range(0, len(encoded), step)]
    assert b"".join(piece for block in blocks for piece in gunzip.decode(block)) == b"".join(members)
    assert gunzip.is_complete


def test_decoding_gives_pieces_of_bounded_size() -> None:
    pieces = [len(piece) for piece in Gunzip().decode(gzip.compress(bytes(10_500_000)))]
    assert sum(pieces) == 10_500_000
    assert max(pieces) <= 1024 * 1024


@given(st.lists(st.binary(max_size=1000)))
def test_hashes_on_threads_are_the_hashes(blocks: list[bytes]) -> None:
    with Hashes(("sha256", "sha512")) as hashes:
        for block in blocks:
            hashes.update(block)
    assert hashes.hexdigests() == hexdigests(("sha256", "sha512"), b"".join(blocks))


class NotedHash:
    """A sha256 in place of `hashlib.new`, which notes the sizes of the blocks."""

    sizes: ClassVar[list[int]] = []

    def __init__(self, *_: object, **__: object) -> None:
        self._hash = hashlib.sha256()

    def update(self, block: Block, /) -> None:
        self.sizes.append(len(block))
        self._hash.update(block)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class ReadsUnevenly(io.FileIO):
    """A file of which the first call reads a whole block, and each later one 777 bytes."""

    def readinto(self, buffer: Any, /) -> int | None:
        return super().readinto(memoryview(buffer)[: 777 if self.tell() else BLOCK])


def test_a_slow_hash_is_not_overtaken_by_a_file_that_reads_unevenly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(BLOCK + 20 * 777)
    path = tmp_path / "file"
    path.write_bytes(content)
    are_read, expected = Event(), hexdigests(("sha256",), content)

    class Late(NotedHash):
        def update(self, block: Block, /) -> None:
            assert are_read.wait(10)
            super().update(block)

    monkeypatch.setattr(hashlib, "new", Late)
    with ReadsUnevenly(path) as file, Hashes(("sha256",)) as hashes:
        for block in open_source(file).blocks():
            hashes.update(block)
        are_read.set()
        assert hashes.hexdigests() == expected


def test_a_machine_in_fips_mode_compares_the_etag_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In FIPS mode, MD5 is only available for purposes other than security."""
    new = hashlib.new

    def fips(name: str, content: bytes = b"", *, usedforsecurity: bool = True) -> Any:
        if name == "md5" and usedforsecurity:
            message = "[digital envelope routines] unsupported"
            raise ValueError(message)
        return new(name, content, usedforsecurity=usedforsecurity)

    monkeypatch.setattr(hashlib, "new", fips)
    with Hashes(("sha256", "md5")) as hashes:
        hashes.update(b"content")
    assert hashes.hexdigests() == hexdigests(("sha256", "md5"), b"content")


def test_small_blocks_are_handed_to_the_thread_that_hashes_sixteen_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handed over one at a time, small blocks from the network make a download take twice as long."""
    monkeypatch.setattr(hashlib, "new", NotedHash)
    NotedHash.sizes.clear()
    with Hashes(("sha256",)) as hashes:
        for _ in range(40):
            hashes.update(bytes(16_384))
    assert NotedHash.sizes == [262_144, 262_144, 131_072]


def taken(blocks: int, take: Callable[[Block], object], error: BaseException | None = None) -> None:
    """Pass blocks of 16 kB, as TLS does, to a `BlockThread`, and raise an error after them."""
    with BlockThread("blocks", take) as thread:
        for _ in range(blocks):
            thread.put(bytes(16_384))
        if error:
            raise error


def test_while_the_system_starts_no_more_threads_blocks_are_taken_on_the_present_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, refused, used = Thread.start, [None] * 2, list[tuple[int, str]]()

    def start_later(self: Thread) -> None:
        if refused:
            refused.pop()
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(Thread, "start", start_later)
    taken(70, lambda block: used.append((len(block), current_thread().name)))
    batch, own = 256 * 1024, current_thread().name
    assert used == [*[(batch, own)] * 2, *[(batch, "blocks")] * 2, (6 * 16_384, "blocks")]


@pytest.mark.parametrize(("blocks", "name"), [(15, current_thread().name), (16, "blocks")])
def test_small_content_needs_no_thread(blocks: int, name: str) -> None:
    names = set[str]()
    taken(blocks, lambda _: names.add(current_thread().name))
    assert names == {name}


def on_a_full_disk(_: Block) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


CUT = StorageFailed("GET", "https://s3.test/x", "the connection was cut")


@pytest.mark.parametrize("blocks", [1, 16, 1000])
@pytest.mark.parametrize("error", [None, CUT])
def test_a_stream_does_not_go_on_where_it_was_cut_if_its_blocks_could_not_be_written(
    blocks: int, error: Exception | None
) -> None:
    with pytest.raises(OSError, match="No space left"):
        taken(blocks, on_a_full_disk, error)


def test_ctrl_c_while_a_thread_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Thread] = []
    start = Thread.start

    def interrupted(thread: Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        taken(16, lambda _: None)
    started[0].join(10)
    assert not started[0].is_alive()


def test_ctrl_c_is_not_hidden_by_an_error_of_the_disk() -> None:
    with pytest.raises(KeyboardInterrupt):
        taken(16, on_a_full_disk, KeyboardInterrupt())


@pytest.mark.parametrize(
    "error",
    [
        storage_refused("PUT", "https://u:p@s3.test/key?X-Amz-Signature=secret", 403, {}, "for /?sig=secret"),
        SourceChanged("a file"),
        UploadAlreadyBegun("public/x"),
        HashMismatch("x", {"sha256": "a"}, {"sha256": "b"}),
        DownloadTooLarge("x", 10, 1000, 500),
    ],
)
def test_errors_survive_pickling_without_secrets(error: Exception) -> None:
    copy: Exception = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
    assert "secret" not in str(vars(copy)) + repr(copy)
    assert "u:p" not in str(vars(copy)) + repr(copy)


@pytest.mark.parametrize("method", ["upload_artifact", "download_artifact"])
def test_the_event_loop_is_not_blocked_while_bodies_are_transferred(
    server: RawServer, method: str, tmp_path: Path
) -> None:
    """The server responds only after the client's event loop has turned several times."""

    async def transfer() -> None:
        loop, turned = asyncio.get_running_loop(), asyncio.Event()

        def turn(left: int) -> None:
            if left:
                loop.call_soon(turn, left - 1)
            else:
                turned.set()

        def wait_for_loop() -> None:
            loop.call_soon_threadsafe(turn, 5)
            asyncio.run_coroutine_threadsafe(turned.wait(), loop).result(timeout=30)

        def respond(request: Request) -> RawResponse:
            if request.path.startswith("/api/"):
                url = f"{server.url}/file"
                created = {"contentType": "a/b", "expires": "2099-01-01T00:00:00.000Z", "putUrl": url}
                return json_response({"storageType": "s3", "url": url, **created})
            wait_for_loop()
            return RawResponse(body=bytes(100_000))

        server.respond = respond
        async with AsyncQueue(server.url, Credentials("tester", "secret")) as queue:
            if method == "upload_artifact":
                await queue.upload_artifact(slugid(), 0, "x", bytes(100_000), expires="2099-01-01T00:00:00Z")
            else:
                await queue.download_artifact(slugid(), "x", to=tmp_path / "x")
        assert turned.is_set()

    asyncio.run(transfer())


def test_a_stream_that_is_closed_early_ends_its_download(raw_client: EitherClient, server: RawServer) -> None:
    big = RawResponse(body=bytes(20_000_000))
    reference = json_response({"storageType": "reference", "url": f"{server.url}/file"})
    server.respond = lambda request: reference if request.path.startswith("/api/") else big
    blocks: Any = raw_client.queue.stream_artifact(raw_client.run.task_id, "x")

    async def leave() -> None:
        assert await anext(blocks)
        await blocks.aclose()

    if raw_client.is_async:
        raw_client.result(leave())
    else:
        assert next(blocks)
        blocks.close()
    Transfer(raw_client.queue).storage.threads().shutdown(wait=True)  # returns when the thread has ended


def test_an_open_stream_occupies_no_thread_of_other_transfers(
    raw_client: EitherClient, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskqueue_client.artifacts.storage.MOST_THREADS", 1)
    big = RawResponse(body=bytes(20_000_000))
    reference = json_response({"storageType": "reference", "url": f"{server.url}/file"})
    server.respond = lambda request: reference if request.path.startswith("/api/") else big
    blocks: Any = raw_client.queue.stream_artifact(raw_client.run.task_id, "x")

    async def begin() -> None:
        assert await anext(blocks)

    async def leave() -> None:
        await blocks.aclose()

    if raw_client.is_async:
        raw_client.result(begin())
    else:
        assert next(blocks)
    assert Transfer(raw_client.queue).storage.threads().submit(int).result(timeout=10) == 0
    if raw_client.is_async:
        raw_client.result(leave())
    else:
        blocks.close()


def test_a_stream_after_close_begins_anew(server: RawServer) -> None:
    reference = json_response({"storageType": "reference", "url": f"{server.url}/file"})
    server.respond = lambda request: reference if request.path.startswith("/api/") else RawResponse(body=b"x")
    queue = Queue(server.url)
    for _ in range(2):
        assert b"".join(queue.stream_artifact(slugid(), "x")) == b"x"
        queue.close()


def test_a_stream_that_is_canceled_while_its_thread_connects_is_canceled(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = json_response({"storageType": "reference", "url": f"{server.url}/file"})
    server.respond = lambda _: reference
    connecting, may_end = Event(), Event()

    def connect(*_: object) -> None:
        connecting.set()
        may_end.wait()

    monkeypatch.setattr("taskqueue_client._protocol.conversation.STOPPING_TIMEOUT", 0.01)
    monkeypatch.setattr("taskqueue_client.artifacts.storage.StorageAttempt.open", connect)

    async def read(queue: AsyncQueue) -> None:
        await anext(queue.stream_artifact(slugid(), "x"))

    async def cancel() -> None:
        async with AsyncQueue(server.url) as queue:
            reading = asyncio.create_task(read(queue))
            await asyncio.to_thread(connecting.wait)
            reading.cancel()
            await asyncio.wait([reading])
            may_end.set()
            assert reading.cancelled()

    asyncio.run(cancel())


async def test_an_upload_that_is_canceled_while_its_temporary_file_is_made_closes_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, canceled = Event(), Event()
    made: list[Any] = []
    temporary_file: Callable[[], Any] = tempfile.TemporaryFile

    def make() -> Any:
        begun.set()
        canceled.wait()
        made.append(temporary_file())
        return made[-1]

    async def blocks() -> AsyncIterator[bytes]:
        yield b"content"

    monkeypatch.setattr(tempfile, "TemporaryFile", make)
    async with AsyncQueue("http://127.0.0.1:1") as queue:
        upload = queue.upload_artifact(slugid(), 0, "public/x", blocks(), expires="1 day")
        uploading = asyncio.create_task(upload)
        await asyncio.to_thread(begun.wait)
        uploading.cancel()
        canceled.set()
        with pytest.raises(asyncio.CancelledError):
            await uploading
    assert [file.closed for file in made] == [True]
