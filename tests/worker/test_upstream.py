"""Artifacts of other tasks: downloaded into the work directory, verified, several at a time."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import resource
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import example, given
from hypothesis import strategies as st

from taskqueue_client import calls
from taskqueue_client._dates import timestamp
from taskqueue_client._protocol.conversation import Conversation, Work
from taskqueue_client.artifacts import DownloadResult
from taskqueue_client.artifacts.download_methods import download_to
from taskqueue_client.artifacts.downloading import Destination
from taskqueue_client.artifacts.transfers import open_folder
from taskqueue_client.clock import SystemClock
from taskqueue_client.errors import ErrorArtifact, InvalidArgument, ResourceNotFound
from taskqueue_client.local.faults import Respond
from taskqueue_client.models import StorageType
from taskqueue_client.worker.features import upstream
from taskqueue_client.worker.features.upstream import UpstreamArtifact, upstream_of_payload
from taskqueue_client.worker.outcomes import MalformedPayload
from taskqueue_client.worker.run.task_run import TaskRun
from tests.servers import listening
from tests.worker.queue_world import WAIT, World
from tests.worker.run_outcomes import reasons
from tests.worker.running_commands import open_descriptors
from tests.worker.worker_world import log_of, work


@pytest.fixture
def build(world: World) -> str:
    """Return the identifier of a completed task with two artifacts, an error artifact and a log."""
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/build/a.txt", b"a")
        task.upload_artifact("public/build/deep/b.txt", b"b", storage="object")
        task.queue.create_error_artifact(
            *(task.task_id, task.run_id, "public/none"),
            expires=task.expires,
            reason="file-missing-on-worker",
            message="no such file",
        )

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    return task_id


@pytest.fixture(params=["def", "async def"])
def run(world: World, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Return a function that runs a task: the handler gives `seen` the result of a method of `TaskRun`."""

    def run(
        method: str,
        *args: Any,
        seen: Callable[[TaskRun, Any], object],
        payload: Any = None,
        dependencies: Sequence[str] = (),
        group: str | None = None,
        **options: Any,
    ) -> str:
        grouped = {"taskGroupId": group} if group else {}
        task_id = world.create(payload, dependencies=[*dependencies], **grouped)

        def handler(task: TaskRun) -> None:
            try:
                seen(task, getattr(task, method)(*args, **options))
            except Exception as error:
                seen(task, error)
                raise

        async def awaited(task: TaskRun) -> None:
            try:
                result = await getattr(task, f"{method}_async")(*args, **options)
            except Exception as error:
                await asyncio.to_thread(seen, task, error)
                raise
            await asyncio.to_thread(seen, task, result)

        work(world, handler) if request.param == "def" else work(world, awaited=awaited)
        return task_id

    return run


Seen = list[Any]


def keep(seen: Seen) -> Callable[[TaskRun, Any], object]:
    """Return a function that adds each result to the list `seen`."""

    def kept(_: TaskRun, result: Any) -> None:
        seen.append(result)

    return kept


def failed_with(run: Callable[..., str], method: str, *args: Any, **options: Any) -> Exception:
    seen: Seen = []
    run(method, *args, seen=keep(seen), **options)
    assert isinstance(seen[0], Exception)
    return seen[0]


def test_an_artifact_is_downloaded_into_the_work_directory(
    world: World, build: str, run: Callable[..., str]
) -> None:
    def seen(task: TaskRun, result: Any) -> None:
        assert result.path == task.work_directory / "in/here/a"
        assert result.path.read_text() == "a"

    task_id = run("download_artifact", build, "public/build/a.txt", to="in/here/a", seen=seen)
    assert reasons(world, task_id) == ["completed"]


def test_without_a_path_an_artifact_is_downloaded_to_memory(
    world: World, build: str, run: Callable[..., str]
) -> None:
    def seen(_: TaskRun, result: Any) -> None:
        assert result.content == b"a"

    task_id = run("download_artifact", build, "public/build/a.txt", run_id=0, seen=seen)
    assert reasons(world, task_id) == ["completed"]


def test_a_download_that_leads_out_of_the_work_directory_is_refused_unless_allowed(
    build: str, run: Callable[..., str], tmp_path: Path
) -> None:
    download = partial(failed_with, run, "download_artifact", build, "public/build/a.txt")
    for to in (tmp_path / "x", "../x"):
        error = download(to=to)
        assert isinstance(error, InvalidArgument)
        assert error.argument == "to"
    assert list(tmp_path.iterdir()) == []
    run(
        *("download_artifact", build, "public/build/a.txt"),
        to=tmp_path / "new/x",
        allow_outside=True,
        seen=keep([]),
    )
    assert (tmp_path / "new/x").read_text() == "a"


@pytest.mark.parametrize("to", ["a\0b", "\ud800"])
@pytest.mark.parametrize("allow_outside", [True, False])
def test_a_path_that_no_system_takes_is_refused_before_anything_is_downloaded(
    build: str, run: Callable[..., str], to: str, *, allow_outside: bool
) -> None:
    options = {"to": to, "allow_outside": allow_outside}
    for error in (
        failed_with(run, "download_artifact", build, "public/build/a.txt", **options),
        failed_with(run, "upstream_artifacts", [{"taskId": build}], **options),
    ):
        assert isinstance(error, InvalidArgument)
        assert (
            str(error) == f"to: {to!r} is not valid; expected a str or a path, without NUL or lone surrogates"
        )


@pytest.mark.parametrize("to", ["folder/", "", 5])
def test_a_download_goes_to_the_path_of_a_file(build: str, run: Callable[..., str], to: Any) -> None:
    error = failed_with(run, "download_artifact", build, "public/build/a.txt", to=to)
    assert isinstance(error, InvalidArgument)
    assert (
        str(error) == f"to: {to!r} is not valid; expected the path of a file, not of a folder, device or FIFO"
    )


@pytest.mark.parametrize(
    "to",
    ["folder", "fifo", "file/x", "file/x/y", "a" * 300, "new/" + "a" * 300, "x/" * 2500 + "y"],
    ids=["folder", "fifo", "below a file", "far below a file", "long", "long in a new folder", "deep"],
)
def test_a_path_of_the_payload_at_which_no_file_can_be_makes_the_payload_malformed(
    world: World, build: str, to: str
) -> None:
    def handler(task: TaskRun) -> None:
        (task.work_directory / "folder").mkdir()
        (task.work_directory / "file").touch()
        os.mkfifo(task.work_directory / "fifo")
        task.download_artifact(build, "public/build/a.txt", to=task.payload["to"])

    task_id = world.create({"to": to})
    work(world, handler)
    assert reasons(world, task_id) == ["malformed-payload"]
    assert "  $.to: " in log_of(world, task_id)


@pytest.mark.parametrize("concurrency", [0, 1.5, True, None])
def test_how_many_are_downloaded_at_the_same_time_is_a_number(
    build: str, run: Callable[..., str], concurrency: Any
) -> None:
    error = failed_with(run, "upstream_artifacts", [{"taskId": build}], concurrency=concurrency)
    assert isinstance(error, InvalidArgument)
    assert error.argument == "concurrency"


def test_a_misspelled_option_is_refused_by_name(build: str, run: Callable[..., str]) -> None:
    known = "allow_outside, max_bytes, run_id, to, verified_by"
    error = failed_with(run, "download_artifact", build, "public/build/a.txt", path="x")
    assert str(error) == f"path: unknown argument; known arguments: {known}"
    known = "allow_outside, concurrency, to, verified_by"
    error = failed_with(run, "upstream_artifacts", [{"taskId": build}], path="x")
    assert str(error) == f"path: unknown argument; known arguments: {known}"


def test_text_for_allow_outside_is_refused(world: World, build: str, tmp_path: Path) -> None:
    def handler(task: TaskRun) -> None:
        options: Any = {"to": tmp_path / "x", "allow_outside": "no"}
        with pytest.raises(InvalidArgument, match="allow_outside: 'no' is not valid; expected bool"):
            task.download_artifact(build, "public/build/a.txt", **options)
        with pytest.raises(InvalidArgument, match="allow_outside: 'no' is not valid; expected bool"):
            task.upstream_artifacts([{"taskId": build}], **options)

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    assert not (tmp_path / "x").exists()


def test_a_download_through_a_symbolic_link_out_of_the_work_directory_is_refused(
    world: World, build: str, tmp_path: Path
) -> None:
    def handler(task: TaskRun) -> None:
        (task.work_directory / "link").symlink_to(tmp_path)
        with pytest.raises(InvalidArgument, match="allow_outside"):
            task.download_artifact(build, "public/build/a.txt", to="link/x")
        with pytest.raises(InvalidArgument, match="allow_outside"):
            task.upstream_artifacts([{"taskId": build}], to="link")

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checked", ["path_inside", "_place"])
@pytest.mark.parametrize("to", ["in/a.txt", "in/deep/a.txt"])
def test_a_link_that_is_put_in_the_place_of_a_checked_directory_is_not_followed(
    world: World, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: str, to: str
) -> None:
    """A process of another user may try this with a worker that runs as root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    check = getattr(upstream, checked)

    def check_and_replace(directory: Path, *args: Any, **options: Any) -> Path:
        path: Path = check(directory, *args, **options)
        (directory / "in").rename(directory / "before")
        (directory / "in").symlink_to(outside)
        if checked == "_place":
            (outside / "deep").mkdir()
        return path

    def handler(task: TaskRun) -> None:
        (task.work_directory / "in").mkdir()
        with pytest.raises(InvalidArgument if checked == "path_inside" else NotADirectoryError):
            task.download_artifact(build, "public/build/a.txt", to=to)
        assert [each for each in outside.rglob("*") if each.name != "deep"] == []
        assert checked == "_place" or not (outside / "deep").exists()

    monkeypatch.setattr(upstream, checked, check_and_replace)
    task_id = world.create(dependencies=[build])
    work(world, handler)
    assert reasons(world, task_id) == ["completed"], log_of(world, task_id)


def test_the_payload_s_upstream_artifacts_are_downloaded(
    world: World, build: str, run: Callable[..., str]
) -> None:
    missing = ("public/missing", "public/none", "public/*.zip")
    entries = [
        {"taskId": build, "taskType": "build", "paths": ["public/build/deep/b.txt"], "formats": ["gpg"]},
        {"taskId": build, "taskType": "build", "paths": ["public/build/*"]},
        {"taskId": build, "taskType": "l10n", "paths": [*missing], "optional": True},
    ]

    def seen(task: TaskRun, result: list[UpstreamArtifact]) -> None:
        top = task.work_directory / "upstream" / build
        first, second = result
        assert first.path == top / "public/build/deep/b.txt"
        assert (first.task_id, first.task_type, first.formats) == (build, "build", ("gpg",))
        assert set(first.download.hashes) == {"sha256"}
        assert (second.name, second.path.read_text()) == ("public/build/a.txt", "a")

    payload = {"upstreamArtifacts": entries}
    task_id = run("upstream_artifacts", payload=payload, dependencies=[build], seen=seen)
    assert reasons(world, task_id) == ["completed"]
    log = log_of(world, task_id)
    for name in missing:
        assert f"optional artifact {name} of task {build} does not exist" in log


def test_all_artifacts_of_a_dependency_are_downloaded_where_the_handler_wants(
    world: World, build: str, run: Callable[..., str]
) -> None:
    def seen(task: TaskRun, result: list[UpstreamArtifact]) -> None:
        assert {each.name for each in result} == {
            "public/build/a.txt",
            "public/build/deep/b.txt",
            "public/logs/live.log",
            "public/logs/live_backing.log",
        }
        assert {each.path for each in result} == {
            task.work_directory / "cot" / build / each.name for each in result
        }

    task_id = run("upstream_artifacts", [{"taskId": build}], to="cot", concurrency=2, seen=seen)
    assert reasons(world, task_id) == ["completed"]


@pytest.mark.parametrize("optional", [False, True])
def test_a_required_artifact_that_does_not_exist_is_an_error(
    build: str,
    run: Callable[..., str],
    optional: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    entries = [{"taskId": build, "paths": ["public/x"], "optional": optional}]
    found: Seen = []
    run("upstream_artifacts", entries, seen=keep(found))
    assert found == [[]] if optional else isinstance(found[0], ResourceNotFound)
    error = failed_with(run, "upstream_artifacts", [{"taskId": build, "paths": ["public/none"]}])
    assert isinstance(error, ErrorArtifact)
    error = failed_with(run, "upstream_artifacts", [{"taskId": build, "paths": ["public/*.zip"]}])
    assert isinstance(error, InvalidArgument)
    assert error.argument == "paths"


def test_an_artifact_that_several_entries_name_has_the_formats_of_all_of_them(
    build: str, run: Callable[..., str]
) -> None:
    entries = [
        {"taskId": build, "paths": ["public/build/a.txt"], "formats": ["gpg", "sha512"]},
        {"taskId": build, "paths": ["public/build/*"], "formats": ["jar", "gpg"], "optional": True},
    ]
    found: Seen = []
    run("upstream_artifacts", entries, seen=keep(found))
    formats = {each.name: each.formats for each in found[0]}
    assert formats == {
        "public/build/a.txt": ("gpg", "sha512", "jar"),
        "public/build/deep/b.txt": ("jar", "gpg"),
    }


def test_the_artifacts_of_a_task_are_listed_and_matched_once_for_all_entries_and_equal_paths(
    build: str, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload may have a hundred thousand entries, which would occupy worker and Queue for hours."""
    listings, matched = [0], [0]

    def listed(*args: Any) -> Any:
        listings[0] += 1
        return iter_artifacts(*args)

    def counted(path: str, name: str) -> bool:
        matched[0] += 1
        return matches(path, name)

    iter_artifacts, matches = calls.iter_artifacts, upstream.matches
    monkeypatch.setattr(calls, "iter_artifacts", listed)
    monkeypatch.setattr(upstream, "matches", counted)
    found: Seen = []
    entries = 2 * [{"taskId": build, "paths": 10 * ["public/build/*"]}]
    run("upstream_artifacts", entries, seen=keep(found))
    assert [each.name for each in found[0]] == ["public/build/a.txt", "public/build/deep/b.txt"]
    assert listings == [1]
    assert matched[0] < 20


def test_an_artifact_is_required_if_one_of_several_entries_says_so(
    build: str, run: Callable[..., str]
) -> None:
    entries = [
        {"taskId": build, "paths": ["public/none"], "optional": True},
        {"taskId": build, "paths": ["public/none"]},
    ]
    assert isinstance(failed_with(run, "upstream_artifacts", entries), ErrorArtifact)


@pytest.mark.parametrize(
    ("key", "closest"), [("path", "paths"), ("format", "formats"), ("optinal", "optional")]
)
def test_a_misspelled_key_of_an_entry_is_refused(
    build: str, run: Callable[..., str], key: str, closest: str
) -> None:
    """An entry without `paths` stands for all artifacts."""
    entry = {"taskId": build, "paths": ["public/build/a.txt"], "locale": "de"}
    entry[key] = entry.pop(closest, "x")
    error = failed_with(run, "upstream_artifacts", [entry])
    assert isinstance(error, InvalidArgument)
    words = f"unknown key {key!r}, the closest known one is {closest!r} - at `$[0]`"
    assert error.finding == words
    with pytest.raises(MalformedPayload, match=re.escape(words)):
        upstream_of_payload({"upstreamArtifacts": [entry]}, {build})


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(MalformedPayload, match="surrogates not allowed"):
        upstream_of_payload({"upstreamArtifacts": ["\udcff"]}, {})


MALFORMED: list[dict[str, Any]] = [
    {},
    {"upstreamArtifacts": None},
    {"upstreamArtifacts": [{"paths": ["x"]}]},
    {"upstreamArtifacts": [{"taskId": "../../etc", "paths": ["passwd"]}]},
    {"upstreamArtifacts": [{"taskId": "fN1SbArXTPSVFNUvaOlinQ", "paths": [1]}]},
]


@pytest.mark.parametrize("payload", MALFORMED, ids=str)
def test_a_payload_without_proper_upstream_artifacts_is_malformed(
    world: World, run: Callable[..., str], payload: dict[str, Any]
) -> None:
    task_id = run("upstream_artifacts", payload=payload, seen=keep([]))
    assert reasons(world, task_id) == ["malformed-payload"]
    assert "upstreamArtifacts" in log_of(world, task_id)


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("public/x", "resource-unavailable"),
        ("public/none", "resource-unavailable"),
        ("public/*.zip", "resource-unavailable"),
        ("private/x", "malformed-payload"),
        ("public/../../x", "malformed-payload"),
        ("/etc/x", "malformed-payload"),
    ],
)
def test_the_task_not_the_worker_is_blamed_for_upstream_artifacts_of_its_payload_that_cannot_be_had(
    world: World, build: str, run: Callable[..., str], path: str, outcome: str
) -> None:
    payload = {"upstreamArtifacts": [{"taskId": build, "paths": [path]}]}
    task_id = run("upstream_artifacts", payload=payload, dependencies=[build], seen=keep([]))
    assert reasons(world, task_id) == [outcome]
    assert "payload.upstreamArtifacts: " in log_of(world, task_id)
    assert "Traceback" not in log_of(world, task_id)


@pytest.mark.parametrize(
    "names",
    [
        ["public/a", "public/a/b"],
        ["public/a/b", "public/a"],
        ["public/a", "public//a"],
        ["public/" + "x" * 256],
        ["public/a/"],
        ["/x"],
    ],
)
def test_artifacts_whose_names_cannot_be_those_of_files_are_unavailable(
    world: World, names: list[str]
) -> None:
    """An upstream task chooses the names of its artifacts: no name may shut the worker down."""

    def build(task: TaskRun) -> None:
        for each in names:
            task.upload_artifact(each, b"x")

    def publish(task: TaskRun) -> None:
        task.upstream_artifacts()

    dependency = world.create()
    work(world, build)
    task_id = world.create({"upstreamArtifacts": [{"taskId": dependency}]}, dependencies=[dependency])
    work(world, publish)
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert f"payload.upstreamArtifacts: the artifact '{names[0][:8]}" in log_of(world, task_id)


def test_the_payload_may_not_name_a_task_that_the_task_does_not_depend_on(
    world: World, build: str, run: Callable[..., str]
) -> None:
    payload = {"upstreamArtifacts": [{"taskId": build, "paths": ["public/build/a.txt"]}]}
    task_id = run("upstream_artifacts", payload=payload, seen=keep([]))
    assert reasons(world, task_id) == ["malformed-payload"]
    assert f"payload.upstreamArtifacts: {build} is not in the task's dependencies" in log_of(world, task_id)


def test_the_payload_may_name_the_decision_task_whose_id_is_that_of_the_group(
    world: World, build: str, run: Callable[..., str]
) -> None:
    payload = {"upstreamArtifacts": [{"taskId": build, "paths": ["public/build/a.txt"]}]}
    task_id = run("upstream_artifacts", payload=payload, group=build, seen=keep([]))
    assert reasons(world, task_id) == ["completed"]


def test_an_expired_artifact_of_the_payload_is_unavailable(
    world: World, build: str, run: Callable[..., str]
) -> None:
    payload = {"upstreamArtifacts": [{"taskId": build, "paths": ["public/build/a.txt"]}]}
    world.local.faults.add(Respond("queue.artifact", status=410))
    task_id = run("upstream_artifacts", payload=payload, dependencies=[build], seen=keep([]))
    assert reasons(world, task_id) == ["resource-unavailable"]


def downloading_x_of(world: World, build: Callable[[TaskRun], object]) -> str:
    """Run `build` as a task, and another task whose payload lists `public/x` of it; return the second."""
    dependency = world.create()
    work(world, build)
    payload = {"upstreamArtifacts": [{"taskId": dependency, "paths": ["public/x"]}]}
    task_id = world.create(payload, dependencies=[dependency])
    work(world, lambda task: task.upstream_artifacts())
    return task_id


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (None, "HTTP 404 NoSuchKey"),
        (b"nonsense", "gzip"),
        (gzip.compress(b"x")[:-1], "the gzip stream is truncated"),
        (gzip.compress(bytes(2**27)), "unpacked from"),
    ],
    ids=["none", "no gzip", "truncated", "bomb"],
)
def test_an_artifact_of_the_payload_whose_content_is_missing_or_damaged_is_unavailable(
    world: World, stored: bytes | None, why: str
) -> None:
    """An upstream task chooses the content of its artifacts: none may shut the worker down."""

    def build(task: TaskRun) -> None:
        request = {"storageType": "s3", "expires": timestamp(task.expires), "contentType": "text/plain"}
        created = task.queue.create_artifact(task.task_id, task.run_id, "public/x", request)  # type: ignore[arg-type]
        if stored is not None:
            headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
            requests.put(str(created.put_url), stored, headers=headers, timeout=WAIT).raise_for_status()

    task_id = downloading_x_of(world, build)
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert why in log_of(world, task_id)


def referring_to(url: str) -> Callable[[TaskRun], object]:
    """Return a handler that creates the reference `public/x` to a URL."""
    return lambda task: task.queue.create_reference_artifact(
        *(task.task_id, task.run_id, "public/x", url), expires=task.expires
    )


def test_a_reference_of_the_payload_that_is_not_a_url_of_http_is_unavailable_at_once(world: World) -> None:
    task_id = downloading_x_of(world, referring_to("ftp://example.com/x"))
    assert reasons(world, task_id) == ["resource-unavailable"]


@pytest.mark.parametrize("status", [401, 403, 407, 410, 418])
def test_a_reference_of_the_payload_that_its_server_refuses_is_unavailable(world: World, status: int) -> None:
    """An upstream task chooses the URL of a reference: none may shut the worker down."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\nno".encode())
        writer.close()

    with listening(refuse) as port:
        task_id = downloading_x_of(world, referring_to(f"http://127.0.0.1:{port}/x"))
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert f"HTTP {status} no" in log_of(world, task_id)


def test_a_reference_of_the_payload_to_a_server_that_cannot_be_reached_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    def pass_over(_: SystemClock, seconds: float) -> None:
        assert seconds > 0

    monkeypatch.setattr(SystemClock, "sleep", pass_over)
    task_id = downloading_x_of(world, referring_to("http://127.0.0.1:1/x"))
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert "the connection to 127.0.0.1:1 failed" in log_of(world, task_id)


@pytest.mark.parametrize("endpoint", ["queue.statuses", "queue.listArtifacts", "queue.artifact"])
@pytest.mark.parametrize("status", [403, 410])
def test_what_a_proxy_responds_in_the_place_of_the_queue_is_not_the_task_s_fault(
    world: World, build: str, run: Callable[..., str], endpoint: str, status: int
) -> None:
    payload = {"upstreamArtifacts": [{"taskId": build, "paths": ["public/build/*"]}]}
    world.local.faults.add(Respond(endpoint, status=status, html=True, times=9))  # polls meet it, too
    task_id = run("upstream_artifacts", payload=payload, dependencies=[build], seen=keep([]))
    assert reasons(world, task_id) == ["internal-error"]


@pytest.mark.parametrize(
    ("endpoint", "of_upstream"),
    [("queue.latestArtifact", "queue.artifact"), ("storage.get", "storage.get")],
)
def test_downloads_of_a_handler_survive_an_outage_of_a_minute(
    monkeypatch: pytest.MonkeyPatch, world: World, build: str, endpoint: str, of_upstream: str
) -> None:
    sleeps: list[float] = []

    def pass_over(_: SystemClock, seconds: float) -> None:
        sleeps.append(seconds)

    monkeypatch.setattr(SystemClock, "sleep", pass_over)

    def handler(task: TaskRun) -> None:
        world.local.faults.add(Respond(endpoint, status=503, times=10))
        assert task.download_artifact(build, "public/build/a.txt").content == b"a"
        world.local.faults.add(Respond(of_upstream, status=503, times=10))
        task.upstream_artifacts([{"taskId": build, "paths": ["public/build/a.txt"]}])

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    assert sum(sleeps) > 2 * 60


def test_a_wrong_option_is_the_worker_s_mistake_also_with_the_payload_s_list(
    world: World, build: str, run: Callable[..., str]
) -> None:
    payload = {"upstreamArtifacts": [{"taskId": build, "paths": ["public/build/a.txt"]}]}
    task_id = run("upstream_artifacts", payload=payload, dependencies=[build], to="../x", seen=keep([]))
    assert reasons(world, task_id) == ["internal-error"]


@pytest.mark.parametrize("path", ["public/build/*", "public/build/deep/b.txt"])
def test_artifacts_of_one_run_are_downloaded_if_their_task_is_rerun_meanwhile(
    world: World, build: str, run: Callable[..., str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rerun(
        client: Any, task_id: str, name: str, *args: Any, **options: Any
    ) -> Conversation[DownloadResult]:
        yield from Work(partial(world.queue.rerun_task, task_id))
        return (yield from download_to(client, task_id, name, *args, **options))

    monkeypatch.setattr(upstream, "download_to", rerun)
    paths, seen = ["public/build/a.txt", path], Seen()
    entry = {"taskId": build, "paths": paths, "optional": True}
    run("upstream_artifacts", [entry], concurrency=1, seen=keep(seen))
    assert [each.name for each in seen[0]] == ["public/build/a.txt", "public/build/deep/b.txt"]


def test_without_the_scope_to_read_statuses_artifacts_are_those_of_the_latest_run(
    world: World, build: str, run: Callable[..., str]
) -> None:
    world.local.faults.add(Respond("queue.statuses", status=403, times=99))
    seen = Seen()
    run("upstream_artifacts", [{"taskId": build, "paths": ["public/build/*"]}], seen=keep(seen))
    assert [each.name for each in seen[0]] == ["public/build/a.txt", "public/build/deep/b.txt"]


def test_an_id_of_no_task_is_refused_and_an_empty_list_has_no_artifacts(run: Callable[..., str]) -> None:
    error = failed_with(run, "upstream_artifacts", [{"taskId": 22 * "x"}])
    assert isinstance(error, InvalidArgument)
    assert error.argument == "task_id"
    run("upstream_artifacts", [], seen=keep(seen := Seen()))
    assert seen == [[]]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "public/../../x"])
def test_a_name_cannot_lead_out_of_the_directory(build: str, run: Callable[..., str], name: str) -> None:
    error = failed_with(run, "upstream_artifacts", [{"taskId": build, "paths": [name]}])
    assert isinstance(error, InvalidArgument)
    assert error.argument == "paths"


def test_no_more_than_asked_for_are_downloaded_at_the_same_time(
    world: World, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = world.create()
    names = [f"public/{each}" for each in range(100)]

    def upload(task: TaskRun) -> None:
        for name in names:
            task.upload_artifact(name, b"x")

    work(world, upload)
    active: set[str] = set()
    most: list[int] = []

    def counted(
        client: Any, task_id: str, name: str, *args: Any, **options: Any
    ) -> Conversation[DownloadResult]:
        active.add(name)
        most.append(len(active))
        result = yield from download_to(client, task_id, name, *args, **options)
        active.remove(name)
        return result

    monkeypatch.setattr(upstream, "download_to", counted)
    seen: Seen = []
    entries = [{"taskId": task_id, "paths": names}]
    run("upstream_artifacts", entries, concurrency=4, seen=keep(seen))
    assert [each.name for each in seen[0]] == names
    assert max(most) == 4


def test_two_thousand_paths_are_downloaded_in_order_and_a_few_at_a_time(
    world: World, build: str, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are left out; another test checks how many are made at a time."""
    names = [f"public/{each % 100}/{each}" for each in range(2_000)]
    active: set[str] = set()
    most: list[int] = []

    def counted(client: Any, task_id: str, name: str, to: Any, **_: Any) -> Conversation[DownloadResult]:
        del client, task_id
        active.add(name)
        most.append(len(active))
        yield from Work(lambda: to.path.write_bytes(b""))
        active.remove(name)
        return DownloadResult(name, StorageType.S3, "text/plain", 0, {}, to.path)

    monkeypatch.setattr(upstream, "download_to", counted)
    found: list[str] = []

    def seen(_: TaskRun, result: list[UpstreamArtifact]) -> None:
        found.extend(each.name for each in result if each.path.is_file())

    entries = [{"taskId": build, "paths": names[:1000]}, {"taskId": build, "paths": names[800:]}]
    payload = {"upstreamArtifacts": entries}
    task_id = run("upstream_artifacts", payload=payload, dependencies=[build], seen=seen)
    assert reasons(world, task_id) == ["completed"]
    assert found == names
    assert max(most) <= upstream.CONCURRENCY


def test_a_part_of_a_file_that_cannot_be_removed_leaves_no_directory_open(tmp_path: Path) -> None:
    before = open_descriptors()
    destination = Destination(tmp_path / "a.txt", open_folder)
    destination.restart()
    (part,) = tmp_path.iterdir()
    part.unlink()
    part.mkdir()  # a task may do so, or remove permissions
    with pytest.raises(IsADirectoryError, match=r"a\.txt"):
        destination.discard()
    assert open_descriptors() <= before


LARGE = 1024 * 1024


@pytest.mark.parametrize("is_async", [False, True])
def test_a_disk_that_is_full_while_downloading_is_an_error_that_leaves_no_part_of_a_file(
    world: World, *, is_async: bool
) -> None:
    """A limit of file sizes stands in for a full disk."""
    build = world.create()
    work(world, lambda task: task.upload_artifact("public/large", bytes(LARGE)))
    left: list[list[Path]] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def download(task: TaskRun) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, before[1]))
        try:
            if is_async:
                await task.download_artifact_async(build, "public/large", to="in/large")
            else:
                await asyncio.to_thread(task.download_artifact, build, "public/large", to="in/large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            left.append([path for path in task.work_directory.rglob("*") if path.is_file()])

    task_id = world.create()
    work(world, awaited=download)
    assert left == [[]]
    assert reasons(world, task_id) == ["internal-error"]
    assert "File too large" in log_of(world, task_id)


@example(["", "b", "a", ""], "ab")
@example(["", "a", "a", ""], "a")
@given(st.lists(st.text("ab", max_size=3), min_size=2, max_size=5), st.text("ab", max_size=8))
def test_a_path_with_asterisks_matches_names_with_any_text_in_their_place(
    parts: list[str], name: str
) -> None:
    expected = re.fullmatch(".*".join(parts), name) is not None
    assert upstream.matches("*".join(parts), name) == expected


def test_a_path_with_many_asterisks_does_not_take_long() -> None:
    """The path is from the payload; as a regular expression, it would hold the interpreter lock for years."""
    assert not upstream.matches("*a" * 500 + "*b", "a" * 1000)


def test_a_directory_that_the_worker_cannot_make_is_the_machine_s_fault_and_not_the_payload_s(
    world: World, build: str
) -> None:
    def handler(task: TaskRun) -> None:
        task.download_artifact(build, "public/build/a.txt", to=task.payload["to"], allow_outside=True)

    task_id = world.create({"to": "/sys/x/y"})
    work(world, handler)
    assert reasons(world, task_id) == ["internal-error"]
    assert "'/sys/x'" in log_of(world, task_id)
