"""Many artifacts at once: each one is attempted, and each one has its result."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from taskqueue_client import AsyncQueue, Queue
from taskqueue_client.artifacts import StorageRefused, many_uploads
from taskqueue_client.artifacts.many_uploads import files_in
from taskqueue_client.artifacts.transfers import client_for_event_loop
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import CutUpload, Drop, Respond
from tests.artifacts.conftest import EitherClient, Run, Seen
from tests.artifacts.raw_server import RawResponse, RawServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "artifacts"
    (folder / "public" / "logs").mkdir(parents=True)
    (folder / "public" / "x.bin").write_bytes(b"x")
    (folder / "public" / "logs" / "live.log").write_bytes(b"log")
    (folder / "private").write_bytes(b"private")
    return folder


@pytest.fixture
def deep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a file in more nested folders than Python allows calls; pytest could not remove them."""
    depth = min(sys.getrecursionlimit(), 1500)  # a longer path would be too long for the system
    monkeypatch.chdir(folder)
    for _ in range(depth):
        Path("a").mkdir()
        os.chdir("a")
    Path("deep").touch()
    yield "a/" * depth + "deep"
    Path("deep").unlink()
    for _ in range(depth):
        os.chdir("..")
        Path("a").rmdir()


def test_a_folder_that_becomes_a_link_before_it_is_read_is_not_entered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that still runs could do this to publish files that it may not read itself."""
    (folder / "other").mkdir()
    (folder / "other" / "secret").touch()
    read, list_entries = list[Path](), os.scandir

    def swapping(path: str) -> Any:
        if not read and path != str(folder):
            read.append(Path(path))
            (replaced,) = {folder / "public", folder / "other"} - {Path(path)}
            replaced.rename(folder.parent / "outside")
            replaced.symlink_to(folder.parent / "outside")
        return list_entries(path)

    monkeypatch.setattr(os, "scandir", swapping)
    links = list[Path]()
    found = files_in(folder, on_link=links.append)
    assert len(links) == 1
    assert not any(each.is_relative_to(links[0]) for each in found)


def test_a_folder_without_files_is_warned_of(
    client: EitherClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dist" / "empty").mkdir(parents=True)
    report = client.upload_many(tmp_path / "dist")
    assert report.outcomes == ()
    assert f"nothing to upload: the folder {str(tmp_path / 'dist')!r} has no files" in caplog.text


def test_a_folder_that_becomes_a_link_before_its_files_are_opened_is_not_followed(
    client: EitherClient, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x.bin").write_bytes(b"secret")
    list_files = many_uploads.listed

    def swapping(contents: Any) -> Any:
        found = list_files(contents)
        (folder / "public").rename(tmp_path / "before")
        (folder / "public").symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(many_uploads, "listed", swapping)
    report = client.upload_many(folder)
    assert [outcome.name for outcome in report.failed] == ["public/logs/live.log", "public/x.bin"]
    assert {type(outcome.error) for outcome in report.failed} == {NotADirectoryError}


def test_a_file_in_a_thousand_folders_is_found_and_refused_for_its_name(
    client: EitherClient, folder: Path, deep: str
) -> None:
    report = client.upload_many(folder)
    (refused,) = report.failed
    assert refused.name == deep
    assert isinstance(refused.error, InvalidArgument)
    assert len(report.outcomes) == 4


@pytest.mark.parametrize("storage", ["s3", "object"])
def test_a_folder_goes_up_under_the_paths_within(client: EitherClient, folder: Path, storage: str) -> None:
    report = client.upload_many(folder, storage=storage)
    assert report.is_complete
    assert [outcome.name for outcome in report.outcomes] == [
        "private",
        "public/logs/live.log",
        "public/x.bin",
    ]
    assert client.download("public/logs/live.log").content == b"log"


def test_a_link_that_leads_out_of_the_folder_is_reported_and_not_uploaded(
    client: EitherClient, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "stolen").symlink_to(tmp_path / "secret")
    (folder / "all").symlink_to(tmp_path)
    (folder / "fine").symlink_to("private")
    (folder / "same").symlink_to("public")
    (folder / "loop").symlink_to("loop")
    report = client.upload_many(folder)
    assert [outcome.name for outcome in report.failed] == ["all", "loop", "stolen"]
    assert "same" not in {outcome.name.partition("/")[0] for outcome in report.outcomes}
    assert client.download("fine").content == b"private"


def test_every_artifact_is_attempted_and_every_failure_reported(
    client: EitherClient, tmp_path: Path, content: Path
) -> None:
    artifacts: dict[Any, Any] = {
        "public/before": b"1",
        "": b"2",
        "public/../up": b"3",
        "public/\x07": b"4",
        7: b"5",
        "public/missing": tmp_path / "missing",
        "public/folder": tmp_path,
        "public/nonsense": 8,
        "public/nothing": None,
        "public/after": content,
    }
    report = client.upload_many(artifacts, concurrency=2)
    assert [outcome.name for outcome in report.outcomes] == list(artifacts)
    kinds: list[type] = [type(outcome.error) for outcome in report.failed]
    assert kinds == [
        InvalidArgument,
        InvalidArgument,
        InvalidArgument,
        InvalidArgument,
        FileNotFoundError,
        InvalidArgument,
        InvalidArgument,
        InvalidArgument,
    ]
    assert client.download("public/before").content == b"1"
    assert client.download("public/after").content == content.read_bytes()


def test_a_storage_that_refuses_one_does_not_stop_the_rest(client: EitherClient, local: LocalQueue) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=413))
    report = client.upload_many({f"x{number}": b"x" for number in range(20)}, concurrency=4)
    assert [type(outcome.error) for outcome in report.failed] == [StorageRefused]
    assert len([outcome for outcome in report.outcomes if outcome.result]) == 19


@pytest.mark.parametrize(
    "fault",
    [
        Drop(endpoint="storage.put"),
        Drop(endpoint="storage.put", after=True),
        CutUpload(endpoint="storage.put", at=10),
        Respond(endpoint="storage.put", status=503),
        Drop(endpoint="queue.createArtifact", after=True),
    ],
    ids=["dropped", "response lost", "cut", "busy", "creation's response lost"],
)
def test_small_artifacts_are_sent_again_if_a_request_or_response_is_lost(
    client: EitherClient, local: LocalQueue, fault: Any
) -> None:
    local.faults.add(fault)
    contents = {f"public/x{number}": b"%d" % number for number in range(20)}
    assert client.upload_many(contents, concurrency=4).is_complete
    assert local.faults.waiting() == []
    assert {name: client.download(name).content for name in contents} == contents


async def test_2000_artifacts_are_uploaded_and_each_one_is_reported(
    local: LocalQueue, run: Run, tmp_path: Path
) -> None:
    for number in range(2000):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
    seen = Seen()
    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        report = await queue.upload_artifacts(
            run.task_id,
            run.run_id,
            tmp_path,
            expires=run.expires,
            progress=seen,
        )
        assert report.is_complete
        assert len(report.outcomes) == len(seen) == 2000
        for number in (0, 999, 1999):
            downloaded = await queue.download_artifact(run.task_id, f"{number}.bin")
            assert downloaded.content == b"%d" % number


def test_no_more_artifacts_than_asked_for_are_uploaded_at_the_same_time(
    raw_client: EitherClient, server: RawServer
) -> None:
    lock, counts = threading.Lock(), {"now": 0, "most": 0}
    meeting = threading.Barrier(3)

    def respond(request: Any) -> RawResponse:
        if request.method != "PUT":
            url = f"{server.url}/key"
            return RawResponse(
                body=b'{"storageType": "s3", "contentType": "a/b", "putUrl": "%s",'
                b' "expires": "2099-01-01T00:00:00.000Z"}' % url.encode()
            )
        with lock:
            counts["now"] += 1
            counts["most"] = max(counts.values())
        meeting.wait(timeout=30)  # until three uploads are open
        with lock:
            counts["now"] -= 1
        return RawResponse()

    server.respond = respond
    assert raw_client.upload_many({f"x{number}": b"x" for number in range(12)}, concurrency=3).is_complete
    assert counts["most"] == 3


class CountedPath:
    """A path that counts how often it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = 0

    def __fspath__(self) -> str:
        self.opened += 1
        return str(self.path)


@pytest.mark.parametrize(("size", "opened"), [(100_000, 64), (32 * 1024, 128)])
def test_files_are_opened_ahead_while_few_are_open_and_few_bytes_are_in_memory(
    client: EitherClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, opened: int
) -> None:
    monkeypatch.setattr(many_uploads, "monotonic", lambda: 0.0)  # else a busy machine opens fewer files
    assert opened_before_the_first_upload(client, tmp_path, size) == opened


def test_files_are_opened_ahead_only_for_a_moment_if_the_disk_is_slow(
    client: EitherClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_uploads, "monotonic", partial(next, itertools.count(step=0.03)))
    assert opened_before_the_first_upload(client, tmp_path, size=1) == 2


def opened_before_the_first_upload(client: EitherClient, folder: Path, size: int) -> int:
    file, opened = CountedPath(folder / "file"), list[int]()
    file.path.write_bytes(bytes(size))

    def progress(*_: object) -> None:
        opened.append(file.opened)

    contents = {f"{number}.bin": file for number in range(150)}
    report = client.upload_many(contents, concurrency=1, progress=progress)
    assert report.is_complete
    assert file.opened == 150
    return opened[0]


def test_an_interrupt_leaves_no_file_open(local: LocalQueue, run: Run, tmp_path: Path) -> None:
    file = CountedPath(tmp_path / "file")
    file.path.write_bytes(bytes(100_000))

    def progress(*_: object) -> None:
        assert file.opened > 1
        raise KeyboardInterrupt

    with Queue(local.root_url, local.credentials) as queue, pytest.raises(KeyboardInterrupt):
        queue.upload_artifacts(
            *(run.task_id, run.run_id, {f"x{number}": file for number in range(60)}),
            concurrency=1,
            expires=run.expires,
            progress=progress,
        )
    assert str(file.path) not in {os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()}


def test_a_folder_that_cannot_be_read_is_an_error_and_nothing_is_uploaded(
    client: EitherClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_entries = os.scandir

    def broken(path: str) -> Any:
        if path.endswith("/logs"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return list_entries(path)

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(OSError, match=r"Input/output error: .*/public/logs"):
        client.upload_many(folder)
    assert client.result(client.queue.list_artifacts(client.run.task_id, 0)).artifacts == []


@pytest.mark.parametrize("concurrency", [0, -1, "4", 1.5, True, None])
def test_a_concurrency_of_nothing_is_refused(client: EitherClient, concurrency: Any) -> None:
    with pytest.raises(InvalidArgument, match="concurrency"):
        client.upload_many({}, concurrency=concurrency)


@pytest.mark.parametrize("wrong", [{"task_id": None}, {"task_id": "x"}, {"run_id": "0"}, {"run_id": -1}])
def test_a_task_or_run_that_cannot_be_is_refused_at_once(client: EitherClient, wrong: dict[str, Any]) -> None:
    [name] = wrong
    run = {"task_id": client.run.task_id, "run_id": client.run.run_id, **wrong}
    with pytest.raises(InvalidArgument, match=f"^{name}: "):
        client.upload_artifacts(artifacts={"public/x": b"x"}, expires=client.run.expires, **run)


@pytest.mark.parametrize("artifacts", [["x"], None, 5, b".", "", "a\0b"])
def test_a_value_that_is_neither_contents_nor_a_folder_is_refused(
    client: EitherClient, artifacts: Any
) -> None:
    with pytest.raises(InvalidArgument, match=r"^artifacts: "):
        client.upload_many(artifacts)


def test_an_upload_of_nothing_gives_an_empty_report(client: EitherClient) -> None:
    assert client.upload_many({}).outcomes == ()


def test_a_file_is_not_a_folder(client: EitherClient, content: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^artifacts: "):
        client.upload_many(content)


async def test_asynchronous_iterables_go_up_among_others(local: LocalQueue, run: Run) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"one "
        await asyncio.sleep(0)
        yield b"two"

    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        report = await queue.upload_artifacts(
            run.task_id, run.run_id, {"a": blocks(), "b": b"b"}, expires=run.expires
        )
        assert report.is_complete
        assert (await queue.download_artifact(run.task_id, "a")).content == b"one two"


async def test_canceling_stops_all_uploads(local: LocalQueue, run: Run) -> None:
    async with AsyncQueue(local.root_url, local.credentials, clock=local.clock) as queue:
        first = asyncio.Event()
        uploads = asyncio.create_task(
            queue.upload_artifacts(
                run.task_id,
                run.run_id,
                {f"x{number}": b"x" for number in range(500)},
                expires=run.expires,
                progress=lambda _name, _done, _total: first.set(),
            )
        )
        await first.wait()
        uploads.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploads
        page = await queue.list_artifacts(run.task_id, run.run_id)
        assert 0 < len(page.artifacts) < 500


MANY = {f"public/{number}.bin": b"%d" % number for number in range(250)}
"""So many artifacts that the synchronous client uploads them in an event loop if it can."""


@pytest.fixture
def synchronous(local: LocalQueue) -> Iterator[Queue]:
    with Queue(local.root_url, local.credentials, clock=local.clock) as queue:
        yield queue


def upload_many(queue: Queue, run: Run, artifacts: Any = MANY) -> set[threading.Thread]:
    """Upload the artifacts, and return the threads in which progress was reported."""
    threads = set[threading.Thread]()

    def progress(*_: object) -> None:
        threads.add(threading.current_thread())

    report = queue.upload_artifacts(
        run.task_id, run.run_id, artifacts, expires=run.expires, progress=progress
    )
    assert report.is_complete
    return threads


def test_many_small_artifacts_go_up_in_one_other_thread_each_time(synchronous: Queue, run: Run) -> None:
    for _ in range(2):
        (thread,) = upload_many(synchronous, run)
        assert thread is not threading.current_thread()
        assert not thread.is_alive()
    assert len(list(synchronous.iter_artifacts(run.task_id, run.run_id))) == len(MANY)


def test_threads_that_share_a_client_upload_many_artifacts_each(synchronous: Queue, run: Run) -> None:
    both = [{f"{name}-{part}": content for name, content in MANY.items()} for part in "ab"]
    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(partial(upload_many, synchronous, run), both))
    assert len(list(synchronous.iter_artifacts(run.task_id, run.run_id))) == 2 * len(MANY)


def test_failures_among_many_are_reported(synchronous: Queue, local: LocalQueue, run: Run) -> None:
    local.faults.add(Respond(endpoint="storage.put", status=413))
    local.faults.add(Respond(endpoint="storage.put", status=503))
    contents: dict[str, Any] = {**MANY, "public/missing": "missing"}
    report = synchronous.upload_artifacts(run.task_id, run.run_id, contents, expires=run.expires)
    assert {type(outcome.error) for outcome in report.failed} == {StorageRefused, FileNotFoundError}
    assert len(report.failed) == 2


def test_an_error_of_a_signal_handler_ends_the_uploads(synchronous: Queue, run: Run) -> None:
    class Interrupted(Exception):
        """An error that no artifact has caused."""

    def handler(*_: object) -> None:
        raise Interrupted

    def progress(*_: object) -> None:
        for number in signals:
            signal.raise_signal(number)

    signals = iter([signal.SIGUSR1])
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Interrupted):
            synchronous.upload_artifacts(
                run.task_id, run.run_id, MANY, expires=run.expires, progress=progress
            )
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert upload_many(synchronous, run)


def test_an_event_loop_that_is_set_for_the_thread_stays_set(synchronous: Queue, run: Run) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        upload_many(synchronous, run)
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_many_artifacts_go_up_where_an_event_loop_runs(synchronous: Queue, run: Run) -> None:
    assert len(upload_many(synchronous, run)) == 1


def test_many_creations_go_over_an_injected_session(local: LocalQueue, run: Run) -> None:
    with requests.Session() as session:
        sent = Seen()
        session.mount("http://", CountingAdapter(sent))
        with Queue(local.root_url, local.credentials, session=session, clock=local.clock) as queue:
            upload_many(queue, run)
    assert len(sent) == len(MANY)


class CountingAdapter(HTTPAdapter):
    def __init__(self, sent: Seen) -> None:
        super().__init__()
        self.sent = sent

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override] # its options by name
        self.sent(request.method)
        return super().send(request, **options)


def test_a_socks_proxy_keeps_uploads_in_threads(synchronous: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_for_event_loop(synchronous) is not None
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    assert client_for_event_loop(synchronous) is None


def test_asynchronous_iterables_are_refused_among_many(synchronous: Queue, run: Run) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"one"

    contents: dict[str, Any] = {**MANY, "public/blocks": blocks()}
    report = synchronous.upload_artifacts(run.task_id, run.run_id, contents, expires=run.expires)
    assert [(outcome.name, type(outcome.error)) for outcome in report.failed] == [
        ("public/blocks", InvalidArgument)
    ]
