"""Artifacts that a handler declares: each kind of source, arguments, and paths in the work directory."""

from __future__ import annotations

import errno
import os
import pkgutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.testing import run_handler
from taskqueue_client.worker.commands.work_directory import path_inside
from taskqueue_client.worker.loop import WorkerLoop
from taskqueue_client.worker.outcomes import IntermittentTask, InternalError
from taskqueue_client.worker.run import declared_artifacts
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World
from tests.worker.run_outcomes import LOG, reasons
from tests.worker.test_work_directory import nobody
from tests.worker.worker_world import artifact, artifact_names, log_of, work


def test_every_kind_of_source_is_uploaded_as_it_was_in_the_call(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        path = task.work_directory / "file"
        path.write_text("_opened")
        task.upload_artifact("public/bytes", b"bytes")
        task.upload_artifact("public/bytearray", bytearray(b"bytearray"))
        task.upload_artifact("public/text", text="täxt")
        task.upload_artifact("public/iterable", (each.encode() for each in ("iter", "able")))
        with path.open("rb") as file:
            file.read(1)
            task.upload_artifact("public/opened", file)
        path.write_text("path")
        task.upload_artifact("public/path", "file")
        task.upload_artifact("public/absolute", path)

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    found = {name: artifact(world, task_id, f"public/{name}") for name in ("bytes", "bytearray", "text")}
    assert found == {"bytes": "bytes", "bytearray": "bytearray", "text": "täxt"}
    assert artifact(world, task_id, "public/iterable") == "iterable"
    assert artifact(world, task_id, "public/opened") == "opened"
    assert artifact(world, task_id, "public/path") == artifact(world, task_id, "public/absolute") == "path"


def test_the_log_of_a_task_warns_of_a_file_that_was_written_and_not_rewound() -> None:
    class Writer(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            with tempfile.TemporaryFile() as file:
                task.upload_artifact("public/empty", file)
                file.write(b"content")
                task.upload_artifact("public/file", file)

    result = run_handler(Writer, {})
    assert result.artifacts == {"public/empty": b"", "public/file": b""}
    assert result.log.count(" is at its end") == 1
    assert "artifact 'public/file' is empty: <" in result.log


def test_an_empty_iterable_whose_tell_is_not_that_of_a_file_is_uploaded() -> None:
    class Told(list[bytes]):
        def tell(self, listener: object) -> None:
            """Tell a listener of the blocks."""

    class Uploader(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            task.upload_artifact("public/told", Told())

    assert run_handler(Uploader, {}).artifacts == {"public/told": b""}


def test_an_asynchronous_handler_uploads_what_an_asynchronous_iterable_gives(world: World) -> None:
    task_id = world.create()

    async def blocks() -> AsyncIterator[bytes]:
        for number in range(3):
            yield str(number).encode() * 100_000

    async def handler(task: TaskRun) -> None:
        await task.upload_artifact_async("public/blocks", blocks())
        await task.upload_artifact_async("public/iterable", iter([b"a", b"b"]))
        await task.upload_artifact_async("public/text", text="text")

    work(world, awaited=handler)
    assert reasons(world, task_id) == ["completed"]
    expected = "0" * 100_000 + "1" * 100_000 + "2" * 100_000
    assert artifact(world, task_id, "public/blocks") == expected
    assert artifact(world, task_id, "public/iterable") == "ab"
    assert artifact(world, task_id, "public/text") == "text"


def test_stored_content_is_uploaded_again_after_a_failure_and_removed_with_the_run(
    world: World, tmp_path: Path
) -> None:
    task_id = world.create()
    world.local.faults.add_json({"kind": "respond", "endpoint": "storage.put", "status": 503, "times": 2})

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", iter([b"x" * 100_000]))

    work(world, handler, work_directory=tmp_path, upload_timeout=0)
    assert reasons(world, task_id) == ["resource-unavailable"]
    assert artifact(world, task_id, "public/x") == "x" * 100_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "FIFO", "no directory", "no directory, but a file"])
@pytest.mark.parametrize("is_awaited", [True, False])
def test_what_a_task_has_put_in_the_place_of_stored_content_fails_the_task_and_not_the_worker(
    world: World, tmp_path: Path, kind: str, *, is_awaited: bool
) -> None:
    """Content would be written to the target of a link, and the worker would wait for a reader of a FIFO."""
    target = tmp_path / "target"
    target.write_text("theirs")

    def change(first: Path) -> None:
        if kind == "link":
            first.with_name("2").symlink_to(target)
        elif kind == "FIFO":
            os.mkfifo(first.with_name("2"))
        else:
            first.unlink()
            first.parent.rmdir()
            if kind == "no directory, but a file":
                first.parent.touch()

    def stored(task: TaskRun) -> Path:
        (found,) = task.work_directory.parent.glob(f"{task.task_id}-*/1")
        return found

    async def given() -> AsyncIterator[bytes]:
        yield b"content"

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/1", iter([b"content"]))
        change(stored(task))
        task.upload_artifact("public/2", iter([b"content"]))

    async def awaited(task: TaskRun) -> None:
        await task.upload_artifact_async("public/1", given())
        change(stored(task))
        await task.upload_artifact_async("public/2", given())

    task_id = world.create()
    if is_awaited:
        work(world, awaited=awaited)
    else:
        work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert "TaskFailed: public/2 cannot be stored: [Errno " in log_of(world, task_id)
    assert target.read_text() == "theirs"


def test_an_option_that_is_none_has_its_default(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", b"x", content_type=None, expires=None, storage=None, compress=None)

    work(world, handler, artifact_storage="object")
    assert reasons(world, task_id) == ["completed"]
    assert world.queue.latest_artifact_info(task_id, "public/x").storage_type == "object"


def _refused(world: World, call: Callable[[TaskRun], object]) -> InvalidArgument:
    """Return the error that a call in a handler raises. The run is completed, and has no artifact."""
    task_id = world.create()
    refused: list[InvalidArgument] = []

    def handler(task: TaskRun) -> None:
        with pytest.raises(InvalidArgument) as caught:
            call(task)
        refused.append(caught.value)

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    assert artifact_names(world, task_id) == LOG
    return refused[0]


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("expires", {"source": b"", "expires": "tomorrow"}),
        ("expires", {"source": b"", "expires": "2026-01-01T00:00:00.000Z"}),
        ("storage", {"source": b"", "storage": "disk"}),
        ("content_type", {"source": b"", "content_type": "a\nb"}),
        ("content_typ", {"source": b"", "content_typ": "text/plain"}),
        ("source", {}),
        ("source", {"source": b"", "text": ""}),
        ("source", {"source": 1}),
        ("source", {"source": ["text"]}),
        ("source", {"source": _nothing()}),
    ],
    ids=[
        "time",
        "past",
        "storage",
        "type",
        "unknown",
        "none",
        "both",
        "number",
        "iterable of text",
        "async iterable",
    ],
)
def test_arguments_are_checked_in_the_call(world: World, argument: str, options: dict[str, Any]) -> None:
    refusal = _refused(world, lambda task: task.upload_artifact("public/x", **options))
    assert refusal.argument == argument


def test_an_option_that_is_none_is_as_if_it_were_not_given(world: World) -> None:
    """So a handler may pass `payload.get("expires")`."""
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        (task.work_directory / "dist").mkdir()
        (task.work_directory / "dist/x.txt").write_text("x")
        task.upload_artifact("public/x.txt", "dist/x.txt", expires=None, content_type=None, compress=None)
        task.upload_artifacts("public/dist", "dist", expires=None, content_type=None)

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    expires = world.queue.status(task_id).status.expires
    found = {each.name: each for each in world.queue.iter_latest_artifacts(task_id)}
    for name in ("public/x.txt", "public/dist/x.txt"):
        assert found[name].expires == expires
        assert found[name].content_type == "text/plain; charset=utf-8"


def _link(task: TaskRun) -> str:
    (task.work_directory / "link").symlink_to("/etc/passwd")
    return "link"


def _link_to_directory(task: TaskRun) -> str:
    (task.work_directory / "etc").symlink_to("/etc")
    return "etc/passwd"


def _fifo(task: TaskRun) -> str:
    os.mkfifo(task.work_directory / "fifo")
    return "fifo"


def _is(path: str) -> Callable[[TaskRun], str]:
    def source(_: TaskRun) -> str:
        return path

    return source


@pytest.mark.parametrize(
    "source",
    [
        _is("/etc/passwd"),
        _is("../x"),
        _is("/dev/zero"),
        _is("."),
    ],
    ids=["absolute", "parent", "device", "work directory"],
)
def test_a_path_outside_of_the_work_directory_or_not_to_a_file_is_refused(
    world: World, source: Callable[[TaskRun], str]
) -> None:
    assert _refused(world, lambda task: task.upload_artifact("public/x", source(task))).argument == "source"


def test_a_device_outside_of_the_work_directory_is_refused_also_if_a_file_there_is_allowed(
    world: World,
) -> None:
    error = _refused(world, lambda task: task.upload_artifact("public/x", "/dev/null", allow_outside=True))
    assert str(error) == "source: '/dev/null' is not valid; expected a regular file"


def _directory(task: TaskRun) -> str:
    (task.work_directory / "directory").mkdir()
    return "directory"


@pytest.mark.parametrize("make", [_link, _link_to_directory, _fifo, _directory])
def test_a_directory_fifo_or_link_in_the_place_of_a_file_fails_the_task_and_not_the_worker(
    world: World, make: Callable[[TaskRun], str]
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x", make(task))
        task.upload_artifact("public/y", text="the others are uploaded")

    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert getattr(world.queue.artifact(task_id, 0, "public/x"), "reason") == "invalid-resource-on-worker"  # noqa: B009 - of the kind that has one
    assert artifact(world, task_id, "public/y") == "the others are uploaded"
    assert "root:" not in log_of(world, task_id)


def test_a_link_that_leads_out_in_the_place_of_a_directory_fails_the_task_and_is_not_followed(
    world: World,
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        (task.work_directory / "dist").symlink_to("/etc")
        assert task.upload_artifacts("public/build", "dist") == []

    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert artifact_names(world, task_id) == {"public/build", *LOG}


def test_a_link_that_leads_out_when_the_handler_has_ended_is_not_followed(
    world: World, tmp_path: Path
) -> None:
    task_id = world.create()
    (tmp_path / "secret").write_text("of the machine")

    def handler(task: TaskRun) -> None:
        path = task.work_directory / "x"
        path.write_text("harmless")
        task.upload_artifact("public/x", "x")
        path.unlink()
        path.symlink_to(tmp_path / "secret")

    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert getattr(world.queue.artifact(task_id, 0, "public/x"), "reason") == "invalid-resource-on-worker"  # noqa: B009 - of the kind that has one
    assert "allow_outside" in log_of(world, task_id)


@pytest.mark.parametrize("replaced", ["folder/x", "folder"])
def test_a_link_that_is_put_there_when_the_path_has_been_checked_is_not_followed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """A process of another user may do so, if the worker has not found and ended it."""
    task_id = world.create()
    (tmp_path / "x").write_text("of the machine")

    def checked(directory: Path, *args: Any) -> Path:
        path = path_inside(directory, *args)
        (directory / replaced).rename(directory / "before")
        (directory / replaced).symlink_to(tmp_path / "x" if replaced == "folder/x" else tmp_path)
        return path

    def handler(task: TaskRun) -> None:
        (task.work_directory / "folder").mkdir()
        (task.work_directory / "folder/x").write_text("harmless")
        task.upload_artifact("public/x", "folder/x")

    monkeypatch.setattr(declared_artifacts, "path_inside", checked)
    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert getattr(world.queue.artifact(task_id, 0, "public/x"), "reason") == "invalid-resource-on-worker"  # noqa: B009 - as above


@pytest.mark.parametrize(
    ("argument", "path", "options"),
    [
        ("allow_outside", "link", {"allow_outside": "false"}),
        ("allow_outside", "link", {"allow_outside": 1}),
        ("path", "a\0b", {}),
    ],
)
def test_a_wrong_argument_is_refused_in_the_call_whatever_is_at_the_path(
    world: World, tmp_path: Path, argument: str, path: str, options: dict[str, Any]
) -> None:
    (tmp_path / "secret").write_text("of the machine")

    def linked(task: TaskRun) -> TaskRun:
        (task.work_directory / "link").symlink_to(tmp_path / "secret")
        return task

    file = _refused(world, lambda task: linked(task).upload_artifact("public/x", path, **options))
    directory = _refused(world, lambda task: linked(task).upload_artifacts("public", path, **options))
    given = ("source", "directory") if argument == "path" else (argument, argument)
    assert (file.argument, directory.argument) == given


def test_files_outside_are_uploaded_if_the_worker_allows_it(world: World, tmp_path: Path) -> None:
    task_id = world.create()
    (tmp_path / "file").write_text("outside")

    def handler(task: TaskRun) -> None:
        (task.work_directory / "link").symlink_to(tmp_path / "file")
        task.upload_artifact("public/a", tmp_path / "file", allow_outside=True)
        task.upload_artifact("public/b", "link", allow_outside=True)
        task.upload_artifacts("public/c", tmp_path, allow_outside=True)

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    assert {artifact(world, task_id, f"public/{name}") for name in ("a", "b", "c/file")} == {"outside"}


def test_a_directory_s_files_become_artifacts(world: World) -> None:
    task_id = world.create()
    names: list[str] = []

    def handler(task: TaskRun) -> None:
        (task.work_directory / "dist/sub").mkdir(parents=True)
        (task.work_directory / "dist/a.txt").write_text("a")
        (task.work_directory / "dist/sub/b.txt").write_text("b")
        names.extend(task.upload_artifacts("public/build", "dist/"))

    work(world, handler)
    assert reasons(world, task_id) == ["completed"]
    assert names == ["public/build/a.txt", "public/build/sub/b.txt"]
    assert artifact_names(world, task_id) == {*names, *LOG}
    assert artifact(world, task_id, names[1]) == "b"


def test_the_log_names_what_of_a_directory_is_not_uploaded(tmp_path: Path) -> None:
    class Handler(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            (task.work_directory / "dist/empty").mkdir(parents=True)
            (task.work_directory / "dist/file").write_text("x")
            (task.work_directory / "dist/linked").symlink_to(tmp_path)
            (task.work_directory / "dist/out").symlink_to(tmp_path)
            task.upload_artifacts("public", "dist")
            task.upload_artifacts("public/empty", "dist/empty")

    result = run_handler(Handler, {})
    assert result.outcome == "completed"
    assert result.artifacts == {"public/file": b"x"}
    assert "WARNING not uploaded: the files in '" in result.log
    assert "dist/linked', because it is a symbolic link to a directory; other such links: 1\n" in result.log
    assert "WARNING not uploaded: the directory 'dist/empty' has no files\n" in result.log


def test_the_log_names_an_artifact_that_is_declared_again() -> None:
    class Handler(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            for each in ("first", "last"):
                task.upload_artifact("public/x", text=each)

    result = run_handler(Handler, {})
    assert result.artifacts == {"public/x": b"last"}
    assert "INFO public/x was declared again: the last declaration is uploaded\n" in result.log


def test_the_task_s_log_warns_once_of_a_directory_whose_files_nobody_can_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(task: TaskRun) -> None:
        (task.work_directory / "dist").mkdir()
        for each in "ab":
            (task.work_directory / "dist" / each).touch()
        task.upload_artifacts("Public", "dist")

    task_id = world.create()
    work(world, handler)
    assert artifact_names(world, task_id) >= {"Public/a", "Public/b"}
    warning = "artifact 'Public/a' is not public: the names of public artifacts begin with 'public/'"
    assert f"WARNING {warning}; other such names: 1\n" in log_of(world, task_id)
    assert "is not public" not in caplog.text


def test_slashes_at_the_end_of_a_prefix_are_not_doubled(world: World) -> None:
    names: list[str] = []

    def handler(task: TaskRun) -> None:
        (task.work_directory / "a.txt").write_text("a")
        names.extend(task.upload_artifacts("public/build//", "."))

    world.create()
    work(world, handler)
    assert names == ["public/build/a.txt"]


@pytest.mark.parametrize("compress", [True, False])
def test_a_handler_decides_whether_a_text_is_compressed_and_its_readers_decode_it(
    world: World, *, compress: bool
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        task.upload_artifact("public/x.txt", text="ü" * 5000, compress=compress)

    work(world, handler)
    url: Any = getattr(world.queue.artifact(task_id, 0, "public/x.txt"), "url")  # noqa: B009 - of the kinds that have one
    response = requests.get(url, headers={"Accept-Encoding": "gzip"}, timeout=WAIT)
    assert response.text == "ü" * 5000  # without a charset, requests assumes ISO 8859-1
    assert (response.headers.get("Content-Encoding") == "gzip") is compress


def test_a_run_without_space_for_temporary_files_keeps_its_log_and_its_artifacts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        (task.work_directory / "x.txt").write_text("x" * 100_000)
        task.upload_artifact("public/x.txt", "x.txt")
        task.log.info("y" * 100_000)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    work(world, handler, work_directory=tmp_path)
    monkeypatch.undo()
    assert reasons(world, task_id) == ["completed"]
    assert artifact(world, task_id, "public/x.txt") == "x" * 100_000
    assert "y" * 100_000 in log_of(world, task_id)


def test_a_temporary_file_that_cannot_be_written_is_not_the_task_s_fault(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        (task.work_directory / "x.txt").write_text("x" * 100_000)
        task.upload_artifact("public/x.txt", "x.txt", compress=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    work(world, handler, work_directory=tmp_path)
    monkeypatch.undo()
    assert reasons(world, task_id) == ["internal-error"]
    assert f"cannot write a temporary file: No such file or directory: '{tmp_path}/missing'" in log_of(
        world, task_id
    )


@pytest.mark.parametrize("kind", ["content", "directory"])
def test_a_machine_without_room_for_files_or_descriptors_is_not_the_task_s_fault(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    task_id = world.create()
    path_open: Any = Path.open
    scandir = os.scandir

    def full_open(path: Path, *args: Any, **options: Any) -> Any:
        if f"{task_id}-0-artifacts-" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return path_open(path, *args, **options)

    def full_scandir(path: Any = ".") -> Any:
        if str(path).endswith("/folder"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return scandir(path)

    def handler(task: TaskRun) -> None:
        if kind == "content":
            task.upload_artifact("public/x", iter([b"content"]))
        (task.work_directory / "folder").mkdir()
        task.upload_artifacts("public", "folder")

    monkeypatch.setattr(Path, "open", full_open)
    monkeypatch.setattr(os, "scandir", full_scandir)
    work(world, handler)
    monkeypatch.undo()
    assert reasons(world, task_id) == ["internal-error"]
    cause = "No space left on device" if kind == "content" else "Too many open files"
    assert cause in log_of(world, task_id)


@pytest.mark.parametrize("other", [_link, _fifo], ids=["link", "FIFO"])
def test_an_unreadable_file_of_a_directory_fails_the_task_and_the_others_are_uploaded(
    world: World, other: Callable[[TaskRun], str]
) -> None:
    task_id = world.create()
    names: list[str] = []

    def handler(task: TaskRun) -> None:
        (task.work_directory / "fine").write_text("fine")
        names.append(f"public/{other(task)}")
        assert sorted(task.upload_artifacts("public", ".")) == sorted(["public/fine", *names])

    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert artifact(world, task_id, "public/fine") == "fine"
    assert getattr(world.queue.artifact(task_id, 0, names[0]), "reason") == "invalid-resource-on-worker"  # noqa: B009 - of the kind that has one


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ü", "expected 1 to 1024 printable ASCII characters"), ("logs/live.log", "is reserved for")],
)
def test_a_name_in_a_directory_that_no_artifact_may_have_fails_the_task(
    world: World, name: str, expected: str
) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        (task.work_directory / "logs").mkdir()
        (task.work_directory / name).touch()
        (task.work_directory / "a.txt").write_text("fine")
        task.upload_artifacts("public", ".")

    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert artifact(world, task_id, "public/a.txt") == "fine"
    assert len(artifact_names(world, task_id)) == len(LOG) + 1
    log = log_of(world, task_id)
    assert f"/{name}' cannot be an artifact: name: " in log
    assert expected in log


def test_several_names_in_a_directory_that_no_artifact_may_have_are_counted(world: World) -> None:
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        for name in ("ä", "ö", "ü"):
            (task.work_directory / name).touch()
        task.upload_artifacts("public", ".")

    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    log = log_of(world, task_id)
    assert "/ä' cannot be an artifact: name: 'public/ä' is not valid" in log
    assert log.endswith("; other files with such names: 2\n")


def test_a_thread_that_an_attempt_has_left_behind_cannot_act_for_the_next_attempt(world: World) -> None:
    task_id = world.create()
    is_reading, next_has_declared = threading.Event(), threading.Event()
    attempts: list[TaskRun] = []
    refused: list[InternalError] = []

    def content() -> Iterator[bytes]:
        is_reading.set()
        yield b"of the first attempt"
        next_has_declared.wait(30)

    def declare_too_late() -> None:
        try:
            attempts[0].upload_artifact("public/x", content())
        except InternalError as error:
            refused.append(error)

    left_behind = threading.Thread(target=declare_too_late)

    def handler(task: TaskRun) -> None:
        attempts.append(task)
        if len(attempts) == 1:
            left_behind.start()
            is_reading.wait(30)
            raise IntermittentTask
        task.upload_artifact("public/x", b"of the second attempt")
        next_has_declared.set()
        left_behind.join()
        first = attempts[0]
        for call in (
            lambda: first.work_directory,
            lambda: first.upload_artifact("public/y", b""),
            lambda: first.upload_artifacts("public", "."),
            lambda: first.run_command(["touch", "x"]),
            first.proxy,
        ):
            with pytest.raises(InternalError, match=r"^attempt 1 of run .* has ended: only attempt 2 can "):
                call()

    work(world, handler, intermittent_attempts=2)
    assert reasons(world, task_id) == ["completed"]
    assert artifact_names(world, task_id) == {*LOG, "public/x"}
    assert artifact(world, task_id, "public/x") == "of the second attempt"
    assert len(refused) == 1


def _run_true(task: TaskRun) -> None:
    task.run_command(["true"])


@pytest.mark.parametrize(
    ("replaced", "call"),
    [
        ("socket.create_server", TaskRun.proxy),
        ("taskqueue_client.worker.run.run_resources.protect_process", _run_true),
    ],
)
def test_a_proxy_or_command_that_is_starting_when_its_attempt_ends_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, replaced: str, call: Callable[[TaskRun], object]
) -> None:
    task_id = world.create()
    is_starting, next_has_begun = threading.Event(), threading.Event()
    start: Callable[..., object] = pkgutil.resolve_name(replaced)
    refused: list[InternalError] = []

    def wait_and_start(*args: object) -> object:
        is_starting.set()
        next_has_begun.wait(30)
        return start(*args)

    def call_too_late(task: TaskRun) -> None:
        try:
            call(task)
        except InternalError as error:
            refused.append(error)

    def handler(task: TaskRun) -> None:
        if not left_behind:
            left_behind.append(threading.Thread(target=call_too_late, args=[task]))
            left_behind[0].start()
            is_starting.wait(30)
            raise IntermittentTask
        assert task.work_directory.is_dir()
        next_has_begun.set()
        left_behind[0].join()

    left_behind: list[threading.Thread] = []
    monkeypatch.setattr(replaced, wait_and_start)
    work(world, handler, intermittent_attempts=2)
    assert reasons(world, task_id) == ["completed"]
    assert [str(error).partition(" of run")[0] for error in refused] == ["attempt 1"]


def test_a_prefix_that_no_artifact_may_have_is_refused(world: World) -> None:
    assert _refused(world, lambda task: task.upload_artifacts("ü", ".")).argument == "name"


@pytest.mark.parametrize("prefix", [None, 0, b""])
def test_a_prefix_that_is_not_a_str_is_refused(world: World, prefix: Any) -> None:
    error = _refused(world, lambda task: task.upload_artifacts(prefix, "."))
    assert str(error) == f"prefix: {prefix!r} is not valid; expected str"


def test_without_a_prefix_names_are_paths_in_the_directory(world: World) -> None:
    def handler(task: TaskRun) -> None:
        (task.work_directory / "fine").touch()
        assert task.upload_artifacts("", ".") == ["fine"]

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["completed"]


@pytest.mark.parametrize("given", [5, "\ud800"])
def test_an_argument_text_that_is_not_a_str_is_refused(world: World, given: Any) -> None:
    assert _refused(world, lambda task: task.upload_artifact("public/x", text=given)).argument == "text"


def test_the_output_of_a_command_is_uploaded_byte_by_byte(world: World) -> None:
    def handler(task: TaskRun) -> None:
        listed = task.run_command(["printf", r"f\374r\n"], capture="stdout")
        task.upload_artifact("public/list.txt", text=listed.stdout)

    task_id = world.create()
    work(world, handler)
    assert world.queue.download_artifact(task_id, "public/list.txt").content == b"f\xfcr\n"


def test_a_directory_outside_of_the_work_directory_is_refused(world: World) -> None:
    assert _refused(world, lambda task: task.upload_artifacts("public", "..")).argument == "directory"


@pytest.mark.parametrize(("prefix", "name"), [("public/build/", "public/build"), ("", "dist")])
def test_a_missing_directory_fails_the_task_as_a_missing_file_does(
    world: World, prefix: str, name: str
) -> None:
    def handler(task: TaskRun) -> None:
        assert task.upload_artifacts(prefix, "dist") == []
        task.upload_artifact("public/x", text="x")

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert artifact(world, task_id, "public/x") == "x"
    assert getattr(world.queue.artifact(task_id, 0, name), "reason") == "file-missing-on-worker"  # noqa: B009 - of the kind that has one


@pytest.mark.parametrize(
    ("unreadable", "name"), [("dist/sub", "public/sub"), ("dist", "public"), (".", "public")]
)
def test_a_directory_that_the_task_has_made_unreadable_fails_the_task_as_an_unreadable_file_does(
    tmp_path: Path, unreadable: str, name: str
) -> None:
    class Worker(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            (task.work_directory / "dist/sub").mkdir(parents=True)
            (task.work_directory / "dist/fine").write_text("fine")
            task.upload_artifact("public/other", b"other")
            (task.work_directory / unreadable).chmod(0)
            task.upload_artifacts("public", "dist")

    with nobody(tmp_path):
        worker = Worker(
            root_url="http://localhost",
            task_queue_id=TASK_QUEUE_ID,
            worker_group="group",
            worker_id="worker",
            work_directory=tmp_path,
        )
        result = run_handler(worker, {})
    assert result.outcome == "failed", result.log
    readable = {"public/other", "public/fine"} if unreadable == "dist/sub" else {"public/other"}
    assert result.artifacts.keys() == readable
    assert f"{name} was not uploaded: [Errno 13] Permission denied" in result.log


def test_directories_with_longer_paths_than_the_system_allows_fail_the_task(world: World) -> None:
    def handler(task: TaskRun) -> None:
        deeper = "x" * 200
        task.run_command(f"for i in $(seq 30); do mkdir {deeper}; cd {deeper}; done; true", shell=True)
        task.upload_artifacts("public", ".")

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert "x' cannot be an artifact: name: " in log_of(world, task_id)


def test_a_file_in_the_place_of_a_directory_fails_the_task(world: World) -> None:
    def handler(task: TaskRun) -> None:
        (task.work_directory / "dist").touch()
        assert task.upload_artifacts("public/build", "dist") == []
        task.upload_artifact("public/x", text="x")

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["failed"]
    assert artifact(world, task_id, "public/x") == "x"
    assert getattr(world.queue.artifact(task_id, 0, "public/build"), "reason") == "invalid-resource-on-worker"  # noqa: B009 - of the kind that has one
    assert "public/build was not uploaded: [Errno 20] Not a directory: " in log_of(world, task_id)


def test_the_log_of_a_run_whose_artifact_is_missing_does_not_say_that_the_task_is_completed(
    world: World,
) -> None:
    task_id = world.create()
    work(world, lambda task: task.upload_artifact("public/x", "missing"))
    log = log_of(world, task_id)
    assert "completed" not in log
    assert log.index("the handler succeeded") < log.index("cannot upload public/x")


@pytest.mark.parametrize("name", ["public/x", "public/logs/live.log", "public/logs/live_backing.log"])
def test_a_name_under_which_the_task_has_created_another_artifact_fails_the_task_and_not_the_worker(
    world: World, name: str
) -> None:
    def handler(task: TaskRun) -> None:
        other: Any = {
            "storageType": "error",
            "reason": "file-missing-on-worker",
            "message": "no",
            "expires": "1 hour",
        }
        task.queue.create_artifact(task.task_id, task.run_id, name, other)
        task.upload_artifact("public/x", b"content")

    task_id = world.create()
    work(world, handler)
    assert reasons(world, task_id) == ["failed"]


def test_secrets_are_masked_in_error_artifacts(world: World) -> None:
    def handler(task: TaskRun) -> None:
        task.register_secret("hunter2")
        task.upload_artifact("public/x", "hunter2/missing")

    task_id = world.create()
    work(world, handler)
    message = getattr(world.queue.artifact(task_id, 0, "public/x"), "message")  # noqa: B009 - as above
    assert message.endswith("/[masked]/missing'")


@pytest.mark.parametrize("source", [b"late", iter([b"late"])], ids=["bytes", "iterable"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_artifact_that_is_declared_after_the_handler_has_ended_is_refused(
    world: World, source: Any, *, is_lost: bool
) -> None:
    tasks: list[TaskRun] = []

    def handler(task: TaskRun) -> None:
        tasks.append(task)
        if is_lost:
            world.queue.cancel_task(task.task_id)
            task.canceled.wait(WAIT)

    task_id = world.create()
    work(world, handler)
    with pytest.raises(InternalError, match="handler of this run has ended"):
        tasks[0].upload_artifact("public/late", source)
    with pytest.raises(InternalError, match="handler of this run has ended"):
        tasks[0].describe_environment({"imageHash": "late"})
    assert reasons(world, task_id) == ["canceled" if is_lost else "completed"]
